# SPDX-License-Identifier: MIT
"""Captures inference of several batch sizes into one pool, and a whole training step; replays and destroys them."""
import torch
from torch import nn
from recorder import Recorder

recorder = Recorder()
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
side = torch.cuda.Stream()


def warmed(function):
    """Runs a function three times before its capture, on a side stream, as PyTorch's documentation recommends."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)


pool, graphs = None, {}
with torch.no_grad():
    for size in (256, 64, 16, 4):
        inputs = torch.zeros(size, 512, device="cuda")
        warmed(lambda: model(inputs))  # noqa: B023
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            output = model(inputs)
        pool = pool or graph.pool()
        graphs[size] = graph, inputs, output
        recorder.step(f"inference of {size}", output)
for size in (4, 256, 16, 64, 4):
    graph, inputs, output = graphs[size]
    inputs.copy_(torch.zeros(size, 512))
    graph.replay()
    held = output.clone()
    recorder.step(f"replay of {size}", held)

optimizer = torch.optim.Adam(model.parameters(), capturable=True)
batch, target = torch.zeros(128, 512, device="cuda"), torch.zeros(128, 512, device="cuda")


def train():
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(model(batch), target)
    loss.backward()
    optimizer.step()
    return loss


warmed(train)
recorder.step("training, warm")
step = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(step):
    loss = train()
recorder.step("training, captured", loss)
for _ in range(4):
    batch.copy_(torch.zeros(128, 512, device="cuda"))
    step.replay()
recorder.step("training, replayed")
del loss
step.reset()
for graph, _, _ in graphs.values():
    graph.reset()
del graph, graphs, inputs, output, held
torch.cuda.synchronize()
recorder.step("graphs destroyed")
torch.cuda.empty_cache()
recorder.step("emptied")
recorder.print()
