# SPDX-License-Identifier: MIT
"""Rounds of reinforcement learning: a rollout in graphs, then a step of the trainer.  On xseg, the memory of the rollout is
paused during the step.  PyTorch's own allocator has no pause, so a pool replaces the tag there."""
import contextlib

import torch
from torch import nn
from recorder import Recorder

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
VOCABULARY, WIDTH, BATCH, LENGTH = 6000, 384, 16, 64
recorder = Recorder()


def policy():
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                         nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)).cuda()


trained = policy()
optimizer = torch.optim.AdamW(trained.parameters())
with rollout_memory(), torch.no_grad():
    acting = policy()
    history = torch.zeros(BATCH, LENGTH, WIDTH, 8, device="cuda")
recorder.step("both models", history)
token = torch.zeros(BATCH, dtype=torch.long, device="cuda")
with torch.no_grad():
    acting(token)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chosen = acting(token).argmax(-1)
recorder.step("captured", chosen)
addresses = [parameter.data_ptr() for parameter in acting.parameters()]
has_same_addresses, freed = [], []
for number in range(3):
    tokens = []
    for _ in range(LENGTH):
        graph.replay()
        tokens.append(chosen.clone())
    tokens = torch.stack(tokens, 1)
    recorder.step(f"round {number}, rollout", tokens)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    if PAUSES:
        torch_memory_saver.pause("rollout")
        freed.append(torch.cuda.mem_get_info()[0] - before)
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(trained(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    if PAUSES:
        torch_memory_saver.resume("rollout")
    with torch.no_grad():
        for target, source in zip(acting.parameters(), trained.parameters()):
            target.copy_(source)
    has_same_addresses.append(addresses == [parameter.data_ptr() for parameter in acting.parameters()])
    recorder.step(f"round {number}, step", loss)
recorder.record("same addresses", has_same_addresses)
size = sum(tensor.nbytes for tensor in (*acting.parameters(), history))
recorder.record("pause freed all rollout memory", all(freed_bytes >= size for freed_bytes in freed) if PAUSES else True)
recorder.print()
