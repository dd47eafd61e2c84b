# SPDX-License-Identifier: MIT
"""Trains a small compiled model for three steps, each with named stages; batches are in pinned host memory.

record.py executes this program with the function `snapshot`, which is called at the end.
"""
import torch
from torch import nn
from torch.profiler import record_function

model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.GELU()))).cuda()
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    with record_function(f"train_step {step}"):
        with record_function("load"):
            batch = torch.ones(1024 * (step + 1), 512, pin_memory=True).cuda(non_blocking=True)
        with record_function("forward"):
            loss = compiled(batch).square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
snapshot("steps")  # noqa: F821
