# SPDX-License-Identifier: MIT
"""Trains a little model, and keeps what each validation said together with its graph, since no_grad() was forgotten.

record.py runs it and gives it `snapshot`, which it calls after the third step and after the ninth.
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
