# SPDX-License-Identifier: MIT
"""Measures the CPU time of PyTorch's memory operations on one allocator.

    work.py own|xseg

Reads the names of rows from standard input, one per line.  For each it prints a line of JSON: the minimum CPU time of an
operation in ns, and the number of blocks that an operation allocates.

The process is pinned to one CPU.  PyTorch runs the backward pass in a separate thread, and a step takes up to a third more CPU
time if the two threads run on different CPUs.
"""
import gc
import json
import os
import sys
import time

import torch

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"256 B": 256, "4 KiB": 4 * KIB, "64 KiB": 64 * KIB, "1 MiB": MIB, "20 MiB": 20 * MIB, "100 MiB": 100 * MIB}
# A batch is long compared with the clock's resolution, and short compared with the time slices of other processes.
BATCH_NS, BATCHES = 10_000_000, 12


class Layer(torch.nn.Module):
    """Attention and two linear layers, with operators that each allocate their result."""

    def __init__(self, width):
        super().__init__()
        self.attention_norm, self.mlp_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.query_key_value = torch.nn.Linear(width, 3 * width)
        self.project = torch.nn.Linear(width, width)
        self.widen, self.narrow = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, cached=None):
        """The output, and the keys and values: the cached ones, followed by those of x."""
        query, key, value = self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1)
        if cached is not None:
            key, value = torch.cat((cached[0], key), dim=1), torch.cat((cached[1], value), dim=1)
        weights = torch.softmax(query @ key.transpose(1, 2) / key.shape[-1] ** 0.5, dim=-1)
        x = x + self.project(weights @ value)
        return x + self.narrow(torch.nn.functional.gelu(self.widen(self.mlp_norm(x)))), (key, value)


class Model(torch.nn.Module):
    """An embedding, the layers, and the scores of the next token."""

    def __init__(self, layers, width, vocabulary):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(layers))
        self.score = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens, cached=None):
        """Scores, and the keys and values of each layer."""
        x, cache = self.embed(tokens), []
        for index, layer in enumerate(self.layers):
            x, pair = layer(x, cached[index] if cached else None)
            cache.append(pair)
        return self.score(x), cache


def empty(size):
    """Create and delete a tensor of `size` bytes."""
    device = torch.device("cuda")

    def operation():
        torch.empty(size, dtype=torch.uint8, device=device)
    return operation


def raw():
    """Allocate and free a block by the allocator's entry point, without a tensor and without a query of device and stream."""
    # pylint: disable=protected-access
    allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream

    def operation():
        free(allocate(4 * KIB, stream))
    return operation


def public_raw():
    """The same by PyTorch's public functions, which query device and stream in Python."""
    allocate, free = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete

    def operation():
        free(allocate(4 * KIB))
    return operation


def record_stream():
    """A tensor that a second stream also uses: its free waits for an event."""
    device, second_stream = torch.device("cuda"), torch.cuda.Stream()

    def operation():
        torch.empty(MIB, dtype=torch.uint8, device=device).record_stream(second_stream)
    return operation


def empty_cache():
    """Create and delete ten large and ten small tensors, and release their memory to the driver."""
    device = torch.device("cuda")

    def operation():
        for _ in range(2):
            tensors = [torch.empty(size, dtype=torch.uint8, device=device) for size in (4 * KIB, 30 * MIB) for _ in range(5)]
            del tensors
        torch.cuda.empty_cache()
    return operation


def training_step():
    """Forward pass, backward pass and optimizer step of a small language model."""
    model = Model(layers=6, width=256, vocabulary=1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tokens = torch.zeros(8, 128, dtype=torch.long, device="cuda")

    def operation():
        scores, _ = model(tokens)
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return operation


def inference_step():
    """Generate one token of eight sequences, whose keys and values are reset after 64 tokens."""
    model = Model(layers=4, width=256, vocabulary=1024).cuda().eval()
    token = torch.zeros(8, 1, dtype=torch.long, device="cuda")
    cache = None

    @torch.inference_mode()
    def operation():
        nonlocal cache
        if cache is not None and cache[0][0].shape[1] == 64:
            cache = None
        _, cache = model(token, cache)
    return operation


ROWS = {"empty(0)": lambda: empty(0),
        **{f"empty and del, {name}": lambda size=size: empty(size) for name, size in SIZES.items()},
        "raw allocate and free": raw,
        "caching_allocator_alloc": public_raw,
        "record_stream, 1 MiB": record_stream,
        "training step": training_step,
        "inference step": inference_step,
        "empty_cache": empty_cache}


def batch(operation, count):
    """CPU time of `count` operations in ns."""
    start = time.process_time_ns()
    for _ in range(count):
        operation()
    return time.process_time_ns() - start


def measure(operation):
    """Minimum CPU time of an operation in ns, and the number of blocks that it allocates."""
    for _ in range(3):
        operation()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    operation()
    blocks = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    count = 1
    while (elapsed := batch(operation, count)) < BATCH_NS // 4:
        count *= 2
    count = max(1, round(count * BATCH_NS / elapsed))
    return min(batch(operation, count) for _ in range(BATCHES)) / count, blocks


def main(allocator):
    """Measure the rows of standard input."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if allocator == "xseg":
        import xseg.torch  # pylint: disable=import-outside-toplevel,unused-import
    torch.set_num_threads(1)
    torch.zeros(1, device="cuda")
    print(json.dumps({"backend": torch.cuda.get_allocator_backend(), "torch": torch.__version__,
                      "device": torch.cuda.get_device_name()}), flush=True)
    operations = {}
    for line in sys.stdin:
        name = line.rstrip("\n")
        gc.collect()
        gc.disable()
        operation = operations.get(name) or operations.setdefault(name, ROWS[name]())
        nanoseconds, blocks = measure(operation)
        torch.cuda.synchronize()
        gc.enable()
        print(json.dumps({"ns": nanoseconds, "blocks": blocks}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
