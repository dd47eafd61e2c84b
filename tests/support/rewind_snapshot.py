# SPDX-License-Identifier: MIT
"""Rewinds snapshots: undoes the entries of the history from the last to the first, as PyTorch's viewer does.

rewind_snapshot.py [--streams] FILE...

The rules are those of "Allocator State History" in PyTorch's page for snapshots: each entry must match the state of the
segments that its undo changes.
"""
import bisect
import pickle
import sys


class Inconsistent(Exception):
    """An entry or a segment that is inconsistent with the state."""


class Ranges:
    """Mapped addresses, as sorted ranges that are not adjacent."""

    def __init__(self):
        self.starts, self.ends = [], []

    def contains(self, start, end):
        """Whether a range is completely mapped."""
        at = bisect.bisect_right(self.starts, start) - 1
        return at >= 0 and self.ends[at] >= end

    def overlaps(self, start, end):
        """Whether any part of a range is mapped."""
        at = bisect.bisect_left(self.ends, start + 1)
        return at < len(self.starts) and self.starts[at] < end

    def add(self, start, end):
        """Add an unmapped range, and join it with adjacent ranges."""
        at = bisect.bisect_left(self.starts, start)
        self.starts.insert(at, start)
        self.ends.insert(at, end)
        if at + 1 < len(self.starts) and self.starts[at + 1] == end:
            self.ends[at] = self.ends.pop(at + 1)
            self.starts.pop(at + 1)
        if at > 0 and self.ends[at - 1] == start:
            self.ends[at - 1] = self.ends.pop(at)
            self.starts.pop(at)

    def remove(self, start, end):
        """Remove a range that is completely mapped."""
        at = bisect.bisect_right(self.starts, start) - 1
        first, last = self.starts.pop(at), self.ends.pop(at)
        if end < last:
            self.starts.insert(at, end)
            self.ends.insert(at, last)
        if first < start:
            self.starts.insert(at, first)
            self.ends.insert(at, start)


class Segments:
    """Ranges of several streams: adjacent ranges are one segment if they have the same stream.

    Streams are distinguished only with --streams: docs/history.md describes snapshots whose segments have several streams.
    """

    distinguishes_streams = False

    def __init__(self):
        self.streams = {}

    def owner(self, start, end):
        """The ranges that contain a range in one segment, or None."""
        return next((ranges for ranges in self.streams.values() if ranges.contains(start, end)), None)

    def overlaps(self, start, end):
        """Whether any part of a range is mapped."""
        return any(ranges.overlaps(start, end) for ranges in self.streams.values())

    def add(self, stream, start, end):
        """Add an unmapped range."""
        self.streams.setdefault(stream if self.distinguishes_streams else 0, Ranges()).add(start, end)


class State:
    """The segments and blocks of a device at one point of its history."""

    def __init__(self, segments):
        self.ranges = Segments()
        self.allocated, self.pending = {}, {}
        for segment in sorted(segments, key=lambda s: s["address"]):
            start, end = segment["address"], segment["address"] + segment["total_size"]
            if self.ranges.overlaps(start, end):
                raise Inconsistent(f"segments overlap at {start:#x}")
            self.ranges.add(segment["stream"], start, end)
            position = start
            for block in segment["blocks"]:
                if block["address"] != position:
                    raise Inconsistent(f"gap between blocks at {position:#x}")
                position += block["size"]
                if block["state"] == "active_allocated":
                    self.allocated[block["address"]] = block["size"]
                elif block["state"] == "active_pending_free":
                    self.pending[block["address"]] = block["size"]
            if position != end:
                raise Inconsistent(f"the blocks of the segment at {start:#x} end at {position:#x}")

    def blocks_in(self, start, end):
        """The allocated and pending blocks that begin in a range."""
        return [a for a in (*self.allocated, *self.pending) if start <= a < end]

    def require(self, condition, message):
        if not condition:
            raise Inconsistent(message)

    def undo(self, entry):
        action, address, size = entry["action"], entry.get("addr"), entry["size"]
        if action == "alloc":
            self.require(address in self.allocated, "block is not allocated")
            del self.allocated[address]
        elif action == "free_requested":
            self.require(address in self.pending, "block is not pending free")
            self.allocated[address] = self.pending.pop(address)
        elif action == "free_completed":
            self.require(address not in self.allocated and address not in self.pending, "block exists")
            self.require(self.ranges.owner(address, address + 1), "address is in no segment")
            self.pending[address] = size
        elif action in ("segment_map", "segment_alloc"):
            owner = self.ranges.owner(address, address + size)
            self.require(owner, "range is not completely mapped")
            owner.remove(address, address + size)
            self.require(not self.blocks_in(address, address + size), "range contains an active block")
        elif action in ("segment_unmap", "segment_free"):
            self.require(not self.ranges.overlaps(address, address + size), "part of the range is mapped")
            self.ranges.add(entry["stream"], address, address + size)
        else:
            self.require(action in ("oom", "snapshot", "annotate"), f"unknown action, {action}")


def check(snapshot):
    """Undo all entries of a snapshot.  Returns the number of entries; raises Inconsistent."""
    undone = 0
    for device, trace in enumerate(snapshot["device_traces"]):
        state = State([s for s in snapshot["segments"] if s["device"] == device])
        for number in range(len(trace) - 1, -1, -1):
            try:
                state.undo(trace[number])
            except Inconsistent as error:
                context = trace[max(0, number - 3):number + 4]
                shown = "\n".join(str({k: v for k, v in e.items() if k != "frames"}) for e in context)
                raise Inconsistent(f"device {device}, entry {number} of {len(trace)}: {error}\n{shown}") from None
            undone += 1
    return undone


def main(files):
    """Check files; returns the exit status."""
    status = 0
    Segments.distinguishes_streams = files[:1] == ["--streams"]
    files = files[Segments.distinguishes_streams:]
    for name in files:
        with open(name, "rb") as file:
            try:
                print(name, check(pickle.load(file)))
            except Inconsistent as error:
                print(f"{name}: {error}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
