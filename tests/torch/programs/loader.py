# SPDX-License-Identifier: MIT
"""Trains from a DataLoader with two worker processes and pinned memory; workers start after CUDA is in use."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from recorder import Recorder


class Images(Dataset):
    def __len__(self):
        return 70

    def __getitem__(self, index):
        return torch.zeros(3, 32, 32), index % 10


recorder = Recorder()
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 500), nn.ReLU(), nn.Linear(500, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Images(), batch_size=16, num_workers=2, pin_memory=True, persistent_workers=True)
pinned = []
for epoch in range(2):
    for images, labels in loader:
        pinned.append(images.is_pinned() and labels.is_pinned())
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    recorder.step(f"epoch {epoch}", images, loss)
recorder.record("pinned", pinned)
recorder.print()
