# SPDX-License-Identifier: MIT
"""Shared code of the tests of `xseg view`: random snapshots with the state after each event, and the model of a page.

The states are those of the program that creates the snapshot; they are not read from the snapshot.
"""
import base64
import copy
import json
import random
import re

PAGE = 2 << 20
LARGE = 20 << 20
UNIT = 512
BASE = 0x7f0000000000
LARGE_BASE = BASE + (1 << 39) + 3 * PAGE


def rounded(size):
    """The bytes that a block occupies."""
    return max(1, -(-size // UNIT)) * UNIT


class Program:
    """A random program on one device: classic segments, expandable segments with small and large pages, pending frees.

    The snapshot has the last `events` events; `omitted` events precede them.
    """

    def __init__(self, seed, events, omitted=0):
        self.random = random.Random(seed)
        self.trace, self.time = [], 10 ** 15
        self.pages, self.classic = {}, {}  # pages of expandable segments, and classic segments: size by address
        self.blocks, self.free = {}, {}
        self.states = [self.amounts()]
        self.stacks = [[{"name": f"inner{i}", "filename": "/lib/site-packages/torch/nn.py", "line": i},
                        {"name": f"layer{i}", "filename": f"model{i % 3}.py", "line": 10 * i}] for i in range(9)]
        while len(self.trace) < events + omitted:
            self.step()
        self.trace, self.states = self.trace[omitted:], self.states[omitted:]

    def record(self, action, address, size, stack=None):
        """Append an entry and the state after it."""
        self.time += self.random.randrange(100)
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time,
                 "pool_id": (0, 0), "user_metadata": "", "compile_context": "N/A"}
        if stack is not None:
            entry["frames"] = self.stacks[stack]
        self.trace.append(entry)
        self.states.append(self.amounts())

    def amounts(self):
        """The current statistics."""
        allocated = sum(size for size, _, state in self.blocks.values() if state == "allocated")
        pending = sum(size for size, _, state in self.blocks.values() if state == "pending")
        used, occupied = {}, 0
        for address, (size, _, _) in self.blocks.items():
            occupied += rounded(size)
            for units in (self.classic, self.pages):
                used |= {a: n for a, n in units.items() if a < address + rounded(size) and address < a + n}
        reserved = sum(self.pages.values()) + sum(self.classic.values())
        return {"allocated": allocated, "pending": pending, "reserved": reserved, "cached": reserved - occupied,
                "stranded": sum(used.values()) - occupied, "blocks": len(self.blocks)}

    def mapped_ranges(self):
        """The ranges of mapped memory."""
        ranges = [(a, n) for a, n in self.classic.items()]
        for page, size in sorted(self.pages.items()):
            if ranges and ranges[-1][0] + ranges[-1][1] == page and ranges[-1][0] not in self.classic:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
            else:
                ranges.append((page, size))
        return ranges

    def alloc(self):
        """Allocate a block at a random address, if the addresses are unused."""
        start, length = self.random.choice(self.mapped_ranges() or [(0, 0)])
        size = self.random.choice([100, 512, 5000, 1 << 20, 3 << 20, (5 << 20) + 1])
        address = start + self.random.randrange(0, max(1, length - rounded(size) + 1), UNIT)
        is_occupied = any(a < address + rounded(size) and address < a + rounded(n) for a, (n, _, _) in self.blocks.items())
        if is_occupied or rounded(size) > length:
            return
        stack = self.random.randrange(9)
        self.blocks[address] = (size, stack, "allocated")
        self.record("alloc", address, size, stack)

    def change_memory(self):
        """Map pages or a segment, or unmap them if they contain no blocks."""
        if self.random.random() < 0.4:
            address = BASE + (1 << 40) + self.random.randrange(4) * 64 * PAGE
            if address not in self.classic:
                self.classic[address] = self.random.choice([2 << 20, 20 << 20])
                self.record("segment_alloc", address, self.classic[address])
            elif not any(address <= a < address + self.classic[address] for a in self.blocks):
                self.record("segment_free", address, self.classic.pop(address))
            return
        base, size, max_pages = self.random.choice([(BASE, PAGE, 40), (LARGE_BASE, LARGE, 6)])
        first, count = base + self.random.randrange(max_pages) * size, self.random.randrange(1, min(max_pages, 8))
        end, run = first + count * size, set(range(first, first + count * size, size))
        if not run & self.pages.keys():
            self.pages |= dict.fromkeys(run, size)
            self.record("segment_map", first, end - first)
        elif run <= self.pages.keys() and not any(a < end and first < a + rounded(n) for a, (n, _, _) in self.blocks.items()):
            for page in run:
                del self.pages[page]
            self.record("segment_unmap", first, end - first)

    def step(self):
        """Execute a random operation."""
        if self.random.random() < 0.15:
            self.change_memory()
        elif self.random.random() < 0.5 or not self.blocks:
            self.alloc()
        else:
            address = self.random.choice(sorted(self.blocks))
            size, stack, state = self.blocks[address]
            if state == "allocated":
                self.blocks[address] = (size, stack, "pending")
                self.record("free_requested", address, size, stack)
            if state == "pending" or self.random.random() < 0.6:
                del self.blocks[address]
                self.record("free_completed", address, size, stack)

    def snapshot(self):
        """The current contents of a file of _dump_snapshot()."""
        def inactive(start, end):
            return {"address": start, "size": end - start, "requested_size": 0, "state": "inactive", "frames": []}

        segments = []
        for start, length in sorted(self.mapped_ranges()):
            blocks, end = [], start
            for address, (size, stack, state) in sorted(self.blocks.items()):
                if not start <= address < start + length:
                    continue
                if end < address:
                    blocks.append(inactive(end, address))
                blocks.append({"address": address, "size": rounded(size), "requested_size": size,
                             "state": "active_allocated" if state == "allocated" else "active_pending_free",
                             "frames": self.stacks[stack]})
                end = address + rounded(size)
            if end < start + length:
                blocks.append(inactive(end, start + length))
            segments.append({"device": 0, "address": start, "total_size": length, "stream": 0,
                             "segment_type": "small" if self.pages.get(start) == PAGE else "large",
                             "segment_pool_id": (0, 0), "is_expandable": start not in self.classic, "frames": [],
                             "blocks": blocks})
        return {"segments": segments, "device_traces": [copy.copy(self.trace)], "external_annotations": [],
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": True}}


class Model:
    """The data of a file in a page: the columns of src/tools/commands/view/view_model.h."""

    LIFE = ("allocated_at", "free_requested_at", "freed_at", "address", "bytes", "stream", "stack", "free_stack", "pool", "context")
    SPAN = ("mapped_at", "unmapped_at", "address", "bytes", "stream", "pool", "page")

    def __init__(self, page, number=0):
        self.summary = json.loads(re.search(rf'id="summary-{number}">(.*?)</script>', page, re.S)[1])
        self.bytes = base64.b64decode(re.search(rf'id="columns-{number}">(.*?)</script>', page, re.S)[1], validate=True)
        self.at = 0
        summary, self.end = self.summary, self.summary["events"] + 1
        self.times = self.steps(summary["events"])
        self.summed = self.steps(summary["events"] + 1) if summary["summed"] else [0] * (summary["events"] + 1)
        self.frames = [self.column(summary["frames"]) for _ in range(4)]  # name, file, line, whether the file is a module
        self.stacks = [self.column(self.next()) for _ in range(summary["stacks"])]
        self.sites = self.column(summary["stacks"])  # 0: none, n + 1: frame n
        self.pools = self.column(2 * summary["pools"])
        self.contexts = [self.column(4) for _ in range(summary["contexts"])]  # label, region, step, stage
        signed = {"address"}
        lives = [self.steps(summary["lives"]) if name in signed else self.column(summary["lives"]) for name in self.LIFE]
        self.lives = [dict(zip(self.LIFE, row)) for row in zip(*lives)]
        spans = [self.steps(summary["spans"]) if name in {"mapped_at", "address"} else self.column(summary["spans"]) for name in self.SPAN]
        self.spans = [dict(zip(self.SPAN, row)) for row in zip(*spans)]
        self.ooms = [self.column(3) for _ in range(summary["ooms"])]
        self.pages = [self.column(4) for _ in range(summary["pages"])]
        self.is_complete = self.at == len(self.bytes)
        allocated_at = 0
        for life in self.lives:
            allocated_at = life["allocated_at"] = allocated_at + life["allocated_at"]
            life["free_requested_at"] = allocated_at + life["free_requested_at"] - 1 if life["free_requested_at"] else self.end
            life["freed_at"] = life["free_requested_at"] + life["freed_at"] - 1 if life["freed_at"] else self.end
        for span in self.spans:
            span["unmapped_at"] += span["mapped_at"]

    def next(self):
        """Decode a number."""
        number = shift = 0
        while True:
            byte = self.bytes[self.at]
            self.at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    def column(self, count):
        """Decode several numbers."""
        return [self.next() for _ in range(count)]

    def steps(self, count):
        """Decode signed differences; returns their running sums."""
        sums, total = [], 0
        for number in self.column(count):
            total += -(number + 1) // 2 if number & 1 else number // 2
            sums.append(total)
        return sums

    def amounts(self, moment):
        """The statistics after an event."""
        blocks = [life for life in self.lives if life["allocated_at"] <= moment < life["freed_at"]]
        return {"allocated": sum(life["bytes"] for life in blocks if moment < life["free_requested_at"]),
                "pending": sum(life["bytes"] for life in blocks if moment >= life["free_requested_at"]),
                "reserved": sum(span["bytes"] for span in self.spans if span["mapped_at"] <= moment < span["unmapped_at"]),
                "blocks": len(blocks)}
