# SPDX-License-Identifier: MIT
"""Trains with autocast and a gradient scaler: copies of weights in half precision exist within a step only."""
import torch
from torch import nn
from recorder import Recorder

recorder = Recorder()
model = nn.Sequential(*(nn.Sequential(nn.Linear(768, 768), nn.LayerNorm(768), nn.GELU()) for _ in range(6)),
                      nn.Linear(768, 100)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for kind in (torch.bfloat16, torch.float16):
    scaler = torch.amp.GradScaler("cuda", enabled=kind == torch.float16)
    for number in range(4):
        x, target = torch.zeros(96, 768, device="cuda"), torch.zeros(96, dtype=torch.long, device="cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", kind):
            output = model(x)
            loss = nn.functional.cross_entropy(output, target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        recorder.step(f"{kind}, step {number}", output, loss)
        recorder.record(f"output is {kind}", output.dtype == kind)
recorder.print()
