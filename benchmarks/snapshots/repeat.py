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
        self.stacks = {}  # by frames: the encoded items of the list of these frames
        self.lists = {}   # memo index by the ID of a list that was written in this repetition

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
        items = b"(" + b"".join(map(self.value, frames)) + b"e"
        self.stacks[key] = b"(" + b"".join(map(self.value, frames)) + b"e"
        return head + items

    def write_shifted(self, entry, shift_us):
        """Write an event of the other pickle with its time increased by `shift_us` microseconds."""
        if self.batch == 1000:
            self.file.write(b"e(")
            self.batch = 0
        self.batch += 1
        encoded = [self.memoized(b"}"), b"("]
        for key, value in entry.items():
            encoded.append(self.text(key))
            if key == "frames":
                encoded.append(self.stack(value))
            else:
                encoded.append(self.value(value + shift_us if key == "time_us" else value))
        self.file.write(b"".join(encoded) + b"u")


def free_events(entries):
    """Events that free all blocks and segments at the end of a history without expandable segments."""
    blocks, segments = {}, {}
    for entry in entries:
        kind, _, operation = entry["action"].rpartition("_")
        allocated = segments if kind == "segment" else blocks
        if operation == "alloc":
            allocated[entry["addr"]] = entry
        elif entry["action"] in ("free_completed", "segment_free"):
            allocated.pop(entry["addr"], None)
    last_time = {"time_us": entries[-1]["time_us"]}
    return [{**entry, **last_time, "action": action}
            for allocated, actions in ((blocks, ("free_requested", "free_completed")), (segments, ("segment_free",)))
            for entry in allocated.values() for action in actions]


def main():
    """Read, repeat and write."""
    with open(sys.argv[1], "rb") as file:
        snapshot = pickle.load(file)
    entries = max(snapshot.pop("device_traces"), key=len)
    repetitions, final_events = int(sys.argv[2]), free_events(entries)
    duration = entries[-1]["time_us"] - entries[0]["time_us"] + 1
    with open(sys.argv[3], "wb") as file:
        out = Repeater(file)
        out.begin()
        for repetition in range(repetitions):
            out.lists.clear()
            for entry in entries + (final_events if repetition < repetitions - 1 else []):
                out.write_shifted(entry, repetition * duration)
        out.end(snapshot)


if __name__ == "__main__":
    main()
