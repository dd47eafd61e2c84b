# SPDX-License-Identifier: MIT
"""Copies the next batch on a side stream while a step runs, with record_stream()."""
import torch
from torch import nn
from recorder import Recorder

recorder = Recorder()
torch.backends.cudnn.enabled = False  # the model of cuDNN has no convolutions
copies = torch.cuda.Stream()
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                      nn.Flatten(), nn.LazyLinear(10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batches = [(torch.zeros(8 + 4 * (number % 3), 3, 64, 64).pin_memory(),
            torch.zeros(8 + 4 * (number % 3), dtype=torch.long).pin_memory()) for number in range(10)]


def fetch(index):
    if index == len(batches):
        return None
    with torch.cuda.stream(copies):
        return [tensor.cuda(non_blocking=True) for tensor in batches[index]]


batch = fetch(0)
for number in range(len(batches)):
    main = torch.cuda.current_stream()
    main.wait_stream(copies)
    images, labels = batch
    images.record_stream(main)
    labels.record_stream(main)
    batch = fetch(number + 1)
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    recorder.step(f"step {number}", images, loss)
    if number % 4 == 3:
        torch.cuda.synchronize()
recorder.record("on the side stream", copies.query())
del images, labels, loss, batch
torch.cuda.synchronize()
torch.cuda.empty_cache()
recorder.step("emptied")
recorder.print()
