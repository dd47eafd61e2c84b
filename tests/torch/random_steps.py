# SPDX-License-Identifier: MIT
"""Runs random steps on the allocator of PyTorch, and prints memory_stats() after each.

    random_steps.py SEED STEPS KINDS EVERY

KINDS consists of letters: s several streams and record_stream, p pools, g graphs, r resets, e empty_cache, n annotations of
the history.  Every EVERY steps, a snapshot is printed with the events since the last one.  The seed determines the steps,
so two processes with different allocators run the same steps.  XSEG_TORCH=1 in the environment selects xseg.
"""
import json
import os
import random
import sys

import torch

import normalized_snapshots

if os.environ.get("XSEG_TORCH") == "1":
    import xseg.torch  # noqa: F401 pylint: disable=unused-import

MIB = 1 << 20


class Program:
    """The state of a program: allocated tensors, streams, pools and graphs."""

    def __init__(self, seed, kinds):
        self.random = random.Random(seed)
        self.kinds = kinds
        self.allocated = []
        self.streams = [torch.cuda.current_stream()]
        if "s" in kinds:
            self.streams += [torch.cuda.Stream() for _ in range(3)]
        self.pools = [torch.cuda.MemPool() for _ in range(2)] if "p" in kinds else []
        self.graphs = []

    def size(self):
        choice = self.random.random()
        if choice < 0.6:
            return self.random.randint(1, 64 << 10)
        if choice < 0.95:
            return self.random.randint(64 << 10, 30 * MIB)
        return self.random.randint(30 * MIB, 300 * MIB)

    def allocate(self):
        return torch.empty(self.size(), dtype=torch.uint8, device="cuda")

    def step_allocate(self):
        with torch.cuda.stream(self.random.choice(self.streams)):
            self.allocated.append(self.allocate())

    def step_free(self):
        if self.allocated:
            self.allocated.pop(self.random.randrange(len(self.allocated)))

    def step_use(self):
        if self.allocated:
            self.random.choice(self.allocated).record_stream(self.random.choice(self.streams))

    def step_pool(self):
        with torch.cuda.use_mem_pool(self.random.choice(self.pools)):
            self.allocated += [self.allocate() for _ in range(self.random.randint(1, 3))]

    def step_graph(self):
        """Captures a graph that frees some of its memory; half of the captures share the pool of an existing graph."""
        graph = torch.cuda.CUDAGraph()
        shared = self.random.choice(self.graphs)[0].pool() if self.graphs and self.random.random() < 0.5 else None
        sizes = [self.size() for _ in range(self.random.randint(1, 5))]
        index = self.random.randrange(len(sizes))
        with torch.cuda.graph(graph, pool=shared):
            tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
            output = tensors[index]
            del tensors
        self.graphs.append((graph, output))

    def step_drop_graph(self):
        if self.graphs:
            self.graphs.pop(self.random.randrange(len(self.graphs)))

    def step_reset(self):
        self.random.choice((torch.cuda.reset_peak_memory_stats, torch.cuda.reset_accumulated_memory_stats))()

    def step_annotate(self):
        torch.cuda.memory._set_memory_metadata(self.random.choice(("", "first", "second")))
        with torch.profiler.record_function(self.random.choice(("part", "Torch-Compiled Region: 0/1"))):
            self.step_allocate()
        torch.cuda.memory._annotate_tensor(self.random.choice(self.allocated), "a note")

    def tensors(self):
        tensors = self.allocated + [output for _, output in self.graphs]
        return {tensor.data_ptr(): index for index, tensor in enumerate(tensors)}

    def steps(self):
        weights = (("", "allocate", 40), ("", "free", 36), ("s", "use", 12), ("p", "pool", 4), ("g", "graph", 1),
                   ("g", "drop_graph", 1), ("n", "annotate", 1), ("r", "reset", 1), ("e", "empty", 1))
        return [(name, weight) for kind, name, weight in weights if kind in self.kinds]

    def step(self):
        names, weights = zip(*self.steps())
        name = self.random.choices(names, weights)[0]
        getattr(self, "step_" + name, torch.cuda.empty_cache)()
        if len(self.allocated) > 200:
            del self.allocated[:100]
        return name


def main():
    program = Program(int(sys.argv[1]), sys.argv[3])
    every = int(sys.argv[4])
    print(torch.cuda.get_allocator_backend(), file=sys.stderr)
    snapshots = normalized_snapshots.NormalizedSnapshots(program.streams)
    for step in range(int(sys.argv[2])):
        name = program.step()
        snapshot = snapshots.collect(program.tensors()) if step % every == every - 1 else None
        print(json.dumps([name, torch.cuda.memory_stats(), snapshot]))


main()
