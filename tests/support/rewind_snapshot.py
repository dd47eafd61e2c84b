# SPDX-License-Identifier: MIT
"""Take a snapshot back from its end, entry by entry, as PyTorch's viewer does, and say what it would miss.

take_back.py [--streams] FILE...

The rules are those of "Allocator State History" in PyTorch's page for snapshots: an entry is taken back from the state
of the segments, the last one first, and each must find what it changes.
"""
import bisect
import pickle
import sys


class Missed(Exception):
    """An entry that cannot be taken back."""


class Ranges:
    """Addresses that have memory, as sorted ranges that do not touch."""

    def __init__(self):
        self.starts, self.ends = [], []

    def holds(self, start, end):
        """Whether all of a range is there."""
        at = bisect.bisect_right(self.starts, start) - 1
        return at >= 0 and self.ends[at] >= end

    def meets(self, start, end):
        """Whether any of a range is there."""
        at = bisect.bisect_left(self.ends, start + 1)
        return at < len(self.starts) and self.starts[at] < end

    def add(self, start, end):
        """Add a range of which nothing is there; it joins what it touches."""
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
        """Remove a range that is all there."""
        at = bisect.bisect_right(self.starts, start) - 1
        first, last = self.starts.pop(at), self.ends.pop(at)
        if end < last:
            self.starts.insert(at, end)
            self.ends.insert(at, last)
        if first < start:
            self.starts.insert(at, first)
            self.ends.insert(at, start)


class Segments:
    """Ranges of several streams: what touches is one segment if its stream is the same, and two otherwise.

    Streams are told apart only with --streams: docs/history.md says where a snapshot does not keep to that.
    """

    tells_streams_apart = False

    def __init__(self):
        self.streams = {}

    def owner(self, start, end):
        """The ranges that have all of a range in one segment, or None."""
        return next((ranges for ranges in self.streams.values() if ranges.holds(start, end)), None)

    def meets(self, start, end):
        """Whether any of a range is there."""
        return any(ranges.meets(start, end) for ranges in self.streams.values())

    def add(self, stream, start, end):
        """Add a range of which nothing is there."""
        self.streams.setdefault(stream if self.tells_streams_apart else 0, Ranges()).add(start, end)


class State:
    """What one device has at a moment."""

    def __init__(self, segments):
        self.ranges = Segments()
        self.live, self.pending = {}, {}
        for segment in sorted(segments, key=lambda s: s["address"]):
            start, end = segment["address"], segment["address"] + segment["total_size"]
            if self.ranges.meets(start, end):
                raise Missed(f"segments overlap at {start:#x}")
            self.ranges.add(segment["stream"], start, end)
            place = start
            for block in segment["blocks"]:
                if block["address"] != place:
                    raise Missed(f"a gap between blocks at {place:#x}")
                place += block["size"]
                if block["state"] == "active_allocated":
                    self.live[block["address"]] = block["size"]
                elif block["state"] == "active_pending_free":
                    self.pending[block["address"]] = block["size"]
            if place != end:
                raise Missed(f"the blocks of the segment at {start:#x} end at {place:#x}")

    def blocks_in(self, start, end):
        """Blocks in use that begin in a range."""
        return [a for a in (*self.live, *self.pending) if start <= a < end]

    def need(self, holds, why):
        """Raise unless something holds."""
        if not holds:
            raise Missed(why)

    def take_back(self, entry):
        """Take one entry back."""
        action, address, size = entry["action"], entry.get("addr"), entry["size"]
        if action == "alloc":
            self.need(address in self.live, "its block is not live")
            del self.live[address]
        elif action == "free_requested":
            self.need(address in self.pending, "its block is not being freed")
            self.live[address] = self.pending.pop(address)
        elif action == "free_completed":
            self.need(address not in self.live and address not in self.pending, "a block is there already")
            self.need(self.ranges.owner(address, address + 1), "it lies in no segment")
            self.pending[address] = size
        elif action in ("segment_map", "segment_alloc"):
            owner = self.ranges.owner(address, address + size)
            self.need(owner, "its range is not all there")
            owner.remove(address, address + size)
            self.need(not self.blocks_in(address, address + size), "a live block begins in it")
        elif action in ("segment_unmap", "segment_free"):
            self.need(not self.ranges.meets(address, address + size), "some of its range is there")
            self.ranges.add(entry["stream"], address, address + size)
        else:
            self.need(action in ("oom", "snapshot", "annotate"), "the action is not known")


def check(snapshot):
    """Take all devices of a snapshot back.  Returns how many entries; raises Missed."""
    taken = 0
    for device, trace in enumerate(snapshot["device_traces"]):
        state = State([s for s in snapshot["segments"] if s["device"] == device])
        for number in range(len(trace) - 1, -1, -1):
            try:
                state.take_back(trace[number])
            except Missed as missed:
                around = trace[max(0, number - 3):number + 4]
                shown = "\n".join(str({k: v for k, v in e.items() if k != "frames"}) for e in around)
                raise Missed(f"device {device}, entry {number} of {len(trace)}: {missed}\n{shown}") from None
            taken += 1
    return taken


def main(files):
    """Check files; the exit status."""
    status = 0
    Segments.tells_streams_apart = files[:1] == ["--streams"]
    files = files[Segments.tells_streams_apart:]
    for name in files:
        with open(name, "rb") as file:
            try:
                print(name, check(pickle.load(file)))
            except Missed as missed:
                print(f"{name}: {missed}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
