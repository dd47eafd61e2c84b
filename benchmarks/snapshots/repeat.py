# SPDX-License-Identifier: MIT
"""Writes a memory snapshot that repeats the history of a snapshot of PyTorch: repeat.py FILE TIMES OUT.

The history of FILE is written TIMES times with increasing timestamps.  As in PyTorch's files, frames are written once, and each
event has a separate list of frames.  Before each repetition all blocks and segments are freed, because the history begins
without any.
"""
import pathlib
import pickle
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import job  # pylint: disable=wrong-import-position


class Repeater(job.Pickle):
    """A pickle with the events of another one."""

    def __init__(self, file):
        super().__init__(file)
        self.stacks = {}  # by frames: the encoded items of a list of them
        self.lists = {}   # lists that were written in this repetition

    def stack(self, frames):
        """A list of frames; free_requested and free_completed share a list."""
        if id(frames) in self.lists:
            return b"j" + self.lists[id(frames)].to_bytes(4, "little")
        self.lists[id(frames)] = self.count
        head, key = self.memoized(b"]"), tuple(map(id, frames))
        if not frames:
            return head
        if key in self.stacks:
            return head + self.stacks[key]
        written = b"(" + b"".join(map(self.value, frames)) + b"e"
        self.stacks[key] = b"(" + b"".join(map(self.value, frames)) + b"e"
        return head + written

    def entry_of(self, entry, later):
        """Write an event of the other pickle, `later` microseconds later."""
        if self.batch == 1000:
            self.file.write(b"e(")
            self.batch = 0
        self.batch += 1
        parts = [self.memoized(b"}"), b"("]
        for key, value in entry.items():
            parts.append(self.text(key))
            if key == "frames":
                parts.append(self.stack(value))
            else:
                parts.append(self.value(value + later if key == "time_us" else value))
        self.file.write(b"".join(parts) + b"u")


def frees(entries):
    """Events that free all blocks and segments at the end of a history without expandable segments."""
    blocks, segments = {}, {}
    for entry in entries:
        kind, _, operation = entry["action"].rpartition("_")
        live = segments if kind == "segment" else blocks
        if operation == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] in ("free_completed", "segment_free"):
            live.pop(entry["addr"], None)
    last_time = {"time_us": entries[-1]["time_us"]}
    return [{**entry, **last_time, "action": action}
            for live, actions in ((blocks, ("free_requested", "free_completed")), (segments, ("segment_free",)))
            for entry in live.values() for action in actions]


def main():
    """Read, repeat and write."""
    with open(sys.argv[1], "rb") as file:
        snapshot = pickle.load(file)
    entries = max(snapshot.pop("device_traces"), key=len)
    times, end = int(sys.argv[2]), frees(entries)
    duration = entries[-1]["time_us"] - entries[0]["time_us"] + 1
    with open(sys.argv[3], "wb") as file:
        out = Repeater(file)
        out.begin()
        for number in range(times):
            out.lists.clear()
            for entry in entries + (end if number < times - 1 else []):
                out.entry_of(entry, number * duration)
        out.end(snapshot)


if __name__ == "__main__":
    main()
