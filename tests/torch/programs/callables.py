# SPDX-License-Identifier: MIT
"""Captures graphs of a model's two halves with make_graphed_callables(), and trains through them."""
import torch
from torch import nn
from recorder import Recorder

recorder = Recorder()
# PyTorch's thread for backward passes may free its tensors late, even after the empty_cache() before a capture.
torch.autograd.set_multithreading_enabled(False)
first = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 256)).cuda()
second = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16)).cuda()
x = torch.zeros(64, 256, device="cuda")
h = torch.zeros(64, 256, device="cuda", requires_grad=True)
first, second = torch.cuda.make_graphed_callables((first, second), ((x,), (h,)))
recorder.step("captured")
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
for number in range(5):
    optimizer.zero_grad(set_to_none=True)
    hidden = first(torch.zeros(64, 256, device="cuda"))
    output = second(hidden)
    loss = output.square().mean()
    loss.backward()
    optimizer.step()
    recorder.step(f"step {number}", output)
del hidden, output, loss
torch.cuda.empty_cache()
recorder.step("emptied")
recorder.print()
