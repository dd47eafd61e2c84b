# SPDX-License-Identifier: MIT
"""torch.compile(backend="cudagraphs"): inference, training, and a second shape, all in graphs."""
import torch
from torch import nn
from recorder import Recorder

recorder = Recorder()
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
compiled = torch.compile(model, backend="cudagraphs", dynamic=False)
with torch.no_grad():
    for size in (64, 32):
        x = torch.zeros(size, 256, device="cuda")
        for number in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            output = compiled(x).clone()
            recorder.step(f"inference of {size}, {number}", output)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(5):
    torch.compiler.cudagraph_mark_step_begin()
    optimizer.zero_grad(set_to_none=True)
    loss = compiled(torch.zeros(48, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    recorder.step(f"training, {number}", loss)
del output, loss, x
torch.cuda.synchronize()
torch.cuda.empty_cache()
recorder.step("emptied")
torch.compiler.reset()
del compiled
torch.cuda.empty_cache()
recorder.step("compiled code destroyed")
recorder.print()
