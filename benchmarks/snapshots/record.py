# SPDX-License-Identifier: MIT
"""Writes a memory snapshot of PyTorch with a history of at least EVENTS events: record.py EVENTS python|all FILE.

The program alternates training steps and decode steps of small language models.  The models have four wrappers, as in
programs that wrap them for data parallelism, precision and checkpoints.  Each event has a call stack of Python frames, or of
Python and C++ frames.  Prints the host memory of the process.
"""
import pathlib
import resource
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "pytorch"))
import work  # pylint: disable=wrong-import-position

WRAPPERS = 4


class Wrapper(torch.nn.Module):
    """A wrapper of a module, which adds three frames to each stack."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *arguments):
        """The output of the module."""
        return self.module(*arguments)


def wrap(module):
    """A module with wrappers, on the GPU."""
    for _ in range(WRAPPERS):
        module = Wrapper(module)
    return module.cuda()


def train(model, optimizer, tokens):
    """A training step."""
    scores, _ = model(tokens)
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@torch.inference_mode()
def generate(model, tokens, cache):
    """Generate one token of eight sequences."""
    return model(tokens, cache)[1]


def run_steps(events):
    """Run steps until the history has `events` events."""
    model, generator = wrap(work.Model(6, 256, 1024)), wrap(work.Model(4, 256, 1024).eval())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tokens = torch.zeros(8, 128, dtype=torch.long, device="cuda")
    cache = None
    # An allocation and its free are three events.
    while 3 * torch.cuda.memory_stats()["allocation.all.freed"] < events:
        train(model, optimizer, tokens)
        cache = generate(generator, tokens[:, :1], cache if cache and cache[0][0].shape[1] < 64 else None)


def main():
    """Record and write the snapshot."""
    events, stacks, path = int(float(sys.argv[1])), sys.argv[2], sys.argv[3]
    torch.cuda.memory._record_memory_history("all", context="all", stacks=stacks)
    run_steps(events)
    torch.cuda.memory._dump_snapshot(path)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB of host memory")


if __name__ == "__main__":
    main()
