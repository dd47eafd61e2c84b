# SPDX-License-Identifier: MIT
"""Rounds of reinforcement learning: a rollout in graphs, then a step of the trainer, during which the rollout's memory is paused on xseg.
PyTorch's own allocator has no pause, so a pool replaces the tag there."""
import contextlib

import torch
from torch import nn
from figures import Figures

PAUSES = torch.cuda.get_allocator_backend() == "xseg"
if PAUSES:
    from xseg.torch.memory_saver import torch_memory_saver


@contextlib.contextmanager
def rollout_memory():
    """Allocations within the context can be paused."""
    if PAUSES:
        with torch_memory_saver.region(tag="rollout"):
            yield
    else:
        with torch.cuda.use_mem_pool(POOL):
            yield


POOL = None if PAUSES else torch.cuda.MemPool()
WORDS, WIDTH, BATCH, LENGTH = 6000, 384, 16, 64
figures = Figures()


def policy():
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                         nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)).cuda()


trained = policy()
optimizer = torch.optim.AdamW(trained.parameters())
with rollout_memory(), torch.no_grad():
    acting = policy()
    history = torch.zeros(BATCH, LENGTH, WIDTH, 8, device="cuda")
figures.step("both models", history)
word = torch.zeros(BATCH, dtype=torch.long, device="cuda")
with torch.no_grad():
    acting(word)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chosen = acting(word).argmax(-1)
figures.step("captured", chosen)
addresses = [parameter.data_ptr() for parameter in acting.parameters()]
is_same, freed = [], []
for number in range(3):
    words = []
    for _ in range(LENGTH):
        graph.replay()
        words.append(chosen.clone())
    words = torch.stack(words, 1)
    figures.step(f"round {number}, rollout", words)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    if PAUSES:
        torch_memory_saver.pause("rollout")
        freed.append(torch.cuda.mem_get_info()[0] - before)
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(trained(words).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    if PAUSES:
        torch_memory_saver.resume("rollout")
    with torch.no_grad():
        for to, source in zip(acting.parameters(), trained.parameters()):
            to.copy_(source)
    is_same.append(addresses == [parameter.data_ptr() for parameter in acting.parameters()])
    figures.step(f"round {number}, step", loss)
figures.note("same addresses", is_same)
size = sum(tensor.nbytes for tensor in (*acting.parameters(), history))
figures.note("pause freed all rollout memory", all(bytes >= size for bytes in freed) if PAUSES else True)
figures.print()
