# SPDX-License-Identifier: MIT
"""Generates tokens with a cache of keys and values that grows by one entry per token, a pattern that fragments memory."""
import torch
from torch import nn
from recorder import Recorder

BATCH, PROMPT, STEPS, WIDTH, HEADS, LAYERS, VOCABULARY = 8, 200, 48, 512, 8, 4, 8000


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cache):
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        if cache is not None:
            key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        weights = torch.softmax(query @ key.transpose(2, 3) / 8, -1)
        return x + self.out((weights @ value).transpose(1, 2).flatten(2)), (key, value)


recorder = Recorder()
with torch.no_grad():
    embedding, head = nn.Embedding(VOCABULARY, WIDTH).cuda(), nn.Linear(WIDTH, VOCABULARY).cuda()
    layers = [Attention().cuda() for _ in range(LAYERS)]
    for request in range(3):
        tokens = torch.zeros(BATCH, PROMPT + 40 * request, dtype=torch.long, device="cuda")
        caches = [None] * LAYERS
        generated = []
        for number in range(STEPS):
            x = embedding(tokens)
            for index, layer in enumerate(layers):
                x, caches[index] = layer(x, caches[index])
            tokens = head(x[:, -1:]).argmax(-1)
            generated.append(tokens)
            if number % 16 == 0:
                recorder.step(f"request {request}, token {number}", x, tokens, caches[0][0])
        output = torch.cat(generated, 1)
        recorder.step(f"request {request}", output)
    del caches, x, tokens, generated
    torch.cuda.empty_cache()
recorder.step("emptied")
recorder.print()
