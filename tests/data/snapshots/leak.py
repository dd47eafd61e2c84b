# SPDX-License-Identifier: MIT
"""Trains a small model, and retains the loss of each validation with its autograd graph, because no_grad() is missing.

record.py executes this program with the function `snapshot`, which is called after the third and the ninth step.
"""
import torch
from torch import nn

model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU()))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for step in range(9):
    optimizer.zero_grad()
    model(torch.zeros(256, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    validation = model(torch.zeros(1024, 512, device="cuda")).square().mean()
    history.append(validation)
    if step in (2, 8):
        snapshot("early" if step == 2 else "late")  # noqa: F821
