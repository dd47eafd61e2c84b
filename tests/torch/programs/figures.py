# SPDX-License-Identifier: MIT
"""The output of a program for the comparison: memory statistics of each step, as one JSON object."""
import json

import torch

GROUPS = ("allocation", "segment", "active", "inactive_split",
          "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
POOLS = ("all", "small_pool", "large_pool")
KINDS = ("current", "peak", "allocated", "freed")
COUNTS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free",
          "oversize_allocations.current", "oversize_segments.current")


def statistics(device=None):
    measured = torch.cuda.memory_stats(device)
    names = [f"{group}.{pool}.{kind}" for group in GROUPS for pool in POOLS for kind in KINDS]
    return {name: measured[name] for name in (*names, *COUNTS) if measured[name]}


class Figures:
    def __init__(self):
        self.steps = []
        self.notes = {}

    def step(self, name, *tensors, device=None):
        """Records the statistics of a device, and the shapes of tensors."""
        self.steps.append({"step": name, "statistics": statistics(device),
                           "shapes": [list(tensor.shape) for tensor in tensors]})

    def note(self, name, value):
        """Records another value that must be equal on each allocator."""
        self.notes[name] = value

    def report(self):
        return {"backend": torch.cuda.get_allocator_backend(), "steps": self.steps, "notes": self.notes}

    def print(self):
        print(json.dumps(self.report()), flush=True)
