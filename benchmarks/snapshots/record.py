# SPDX-License-Identifier: MIT
"""A memory snapshot by PyTorch, with a history of at least EVENTS: record.py EVENTS python|all FILE.

The programme trains a small language model and lets it write, in turn.  As in programmes that wrap their model for data
parallelism, precision and checkpoints, a module lies in four others.  Each event has its stack: of Python's frames, or of
those and C++'s.  Printed is how much host memory PyTorch took.
"""
import pathlib
import resource
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "pytorch"))
import work  # pylint: disable=wrong-import-position

WRAPPERS = 4


class Wrapper(torch.nn.Module):
    """Another module, and three frames more in each stack."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *arguments):
        """What the other one answers."""
        return self.module(*arguments)


def wrapped(module):
    """A module within wrappers."""
    for _ in range(WRAPPERS):
        module = Wrapper(module)
    return module.cuda()


def train(model, optimiser, tokens):
    """A step."""
    scores, _ = model(tokens)
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


@torch.inference_mode()
def write(model, tokens, cache):
    """Eight sequences become longer by a token."""
    return model(tokens, cache)[1]


def run(events):
    """Go on until there are so many events."""
    model, writer = wrapped(work.Model(6, 256, 1024)), wrapped(work.Model(4, 256, 1024).eval())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tokens = torch.zeros(8, 128, dtype=torch.long, device="cuda")
    cache = None
    # An allocation is three events: it, its free, and the end of the free.
    while 3 * torch.cuda.memory_stats()["allocation.all.freed"] < events:
        train(model, optimiser, tokens)
        cache = write(writer, tokens[:, :1], cache if cache and cache[0][0].shape[1] < 64 else None)


def main():
    """All of it."""
    events, stacks, path = int(float(sys.argv[1])), sys.argv[2], sys.argv[3]
    torch.cuda.memory._record_memory_history("all", context="all", stacks=stacks)
    run(events)
    torch.cuda.memory._dump_snapshot(path)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB of host memory")


if __name__ == "__main__":
    main()
