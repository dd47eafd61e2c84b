# SPDX-License-Identifier: MIT
"""Trains a small transformer: forward, backward, clipped gradients, AdamW."""
import torch
from torch import nn
from recorder import Recorder

BATCH, LENGTH, WIDTH, VOCABULARY = 4, 128, 256, 4096


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


recorder = Recorder()
model = Model().cuda()
recorder.step("model")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for number in range(6):
    # Batches of text have different lengths.
    tokens = torch.zeros(BATCH, LENGTH + 32 * (number % 3), dtype=torch.long, device="cuda")
    optimizer.zero_grad(set_to_none=True)
    output = model(tokens)
    loss = nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.detach())
    recorder.step(f"step {number}", output, loss)
    if number == 3:
        torch.cuda.reset_peak_memory_stats()
del output, loss, tokens
optimizer.zero_grad(set_to_none=True)
recorder.step("gradients freed")
torch.cuda.empty_cache()
recorder.step("emptied")
recorder.print()
