# SPDX-License-Identifier: MIT
"""The output of a program for the comparison of two allocators: memory statistics of each step, as one JSON object."""
import json

import torch

GROUPS = ("allocation", "segment", "active", "inactive_split",
          "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
POOLS = ("all", "small_pool", "large_pool")
KINDS = ("current", "peak", "allocated", "freed")
COUNTS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free",
          "oversize_allocations.current", "oversize_segments.current")


def statistics(device=None):
    """The statistics that are compared, without those that are 0."""
    stats = torch.cuda.memory_stats(device)
    names = [f"{group}.{pool}.{kind}" for group in GROUPS for pool in POOLS for kind in KINDS]
    return {name: stats[name] for name in (*names, *COUNTS) if stats[name]}


class Recorder:
    def __init__(self):
        self.steps = []
        self.values = {}

    def step(self, name, *tensors, device=None):
        """Records the statistics of a device, and the shapes of tensors."""
        self.steps.append({"step": name, "statistics": statistics(device),
                           "shapes": [list(tensor.shape) for tensor in tensors]})

    def record(self, name, value):
        """Records a value, other than statistics, that must be equal on each allocator."""
        self.values[name] = value

    def report(self):
        return {"backend": torch.cuda.get_allocator_backend(), "steps": self.steps, "values": self.values}

    def print(self):
        print(json.dumps(self.report()), flush=True)
