# SPDX-License-Identifier: MIT
"""Generates words with a cache of keys and values that grows by one entry per word, a pattern that fragments memory."""
import torch
from torch import nn
from figures import Figures

BATCH, PROMPT, STEPS, WIDTH, HEADS, LAYERS, WORDS = 8, 200, 48, 512, 8, 4, 8000


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


figures = Figures()
with torch.no_grad():
    embedding, head = nn.Embedding(WORDS, WIDTH).cuda(), nn.Linear(WIDTH, WORDS).cuda()
    layers = [Attention().cuda() for _ in range(LAYERS)]
    for request in range(3):
        words = torch.zeros(BATCH, PROMPT + 40 * request, dtype=torch.long, device="cuda")
        caches = [None] * LAYERS
        generated = []
        for number in range(STEPS):
            x = embedding(words)
            for index, layer in enumerate(layers):
                x, caches[index] = layer(x, caches[index])
            words = head(x[:, -1:]).argmax(-1)
            generated.append(words)
            if number % 16 == 0:
                figures.step(f"request {request}, word {number}", x, words, caches[0][0])
        output = torch.cat(generated, 1)
        figures.step(f"request {request}", output)
    del caches, x, words, generated
    torch.cuda.empty_cache()
figures.step("emptied")
figures.print()
