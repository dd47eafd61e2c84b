# SPDX-License-Identifier: MIT
"""Writes a memory snapshot of a simulated training job in PyTorch's format: job.py EVENTS FILE.

The snapshot is written as a stream, so it can have 10^7 events (some minutes, 1 GB).  As in PyTorch's files, frames, stacks and
keys are written once and then referenced by the pickle's memo, and each event has a separate pool ID and string.
"""
import bisect
import random
import struct
import sys

BASE, PAGE, ALIGNMENT = 0x7f0000000000, 2 << 20, 512
MIB = 1 << 20
LAYERS = 24


class Pickle:
    """Writes values as Python's pickler does in protocol 4, without framing."""

    def __init__(self, file):
        self.file, self.memo, self.count, self.retained, self.batch = file, {}, 0, [], 0
        file.write(b"\x80\x04")

    def memoized(self, data, key=None):
        """Encode a new value, which later values can reference by `key`."""
        if key is not None:
            self.memo[key] = self.count
        self.count += 1
        return data + b"\x94"

    def reference(self, key):
        """Encode a reference to an earlier value."""
        index = self.memo[key]
        return b"h%c" % index if index < 256 else b"j" + struct.pack("<I", index)

    def text(self, text):
        """Encode a string, which is written once."""
        if text in self.memo:
            return self.reference(text)
        data = text.encode()
        head = b"\x8c%c" % len(data) if len(data) < 256 else b"X" + struct.pack("<I", len(data))
        return self.memoized(head + data, text)

    @staticmethod
    def number(number):
        """An integer."""
        if 0 <= number < 256:
            return b"K%c" % number
        if -1 << 31 <= number < 1 << 31:
            return b"J" + struct.pack("<i", number)
        return b"\x8a\x08" + struct.pack("<Q", number)

    def value(self, value):
        """Encode any value; the same list or dictionary is written once."""
        if value is None or isinstance(value, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[value]
        if isinstance(value, int):
            return self.number(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, tuple):
            return self.memoized(b"".join(map(self.value, value)) + b"\x86")
        if id(value) in self.memo:
            return self.reference(id(value))
        self.retained.append(value)
        if isinstance(value, dict):
            head = self.memoized(b"}", id(value))
            return head + b"(" + b"".join(self.text(key) + self.value(member) for key, member in value.items()) + b"u"
        head = self.memoized(b"]", id(value))
        return head + b"".join(b"(" + b"".join(map(self.value, value[start:start + 1000])) + b"e"
                               for start in range(0, len(value), 1000))

    def entry(self, action, address, size, now, frames):
        """Write an event of the history."""
        if self.batch == 1000:
            self.file.write(b"e(")
            self.batch = 0
        self.batch += 1
        text, number = self.text, self.number
        self.file.write(b"".join((
            self.memoized(b"}"), b"(", text("action"), text(action), text("addr"), number(address), text("size"), number(size),
            text("stream"), b"K\0", text("time_us"), number(now), text("pool_id"), self.memoized(b"K\0K\0\x86"),
            text("user_metadata"), text(""), text("compile_context"), self.memoized(b"\x8c\x03N/A"),
            text("frames"), self.value(frames) if frames else b"]", b"u")))

    def begin(self):
        """Begin a dictionary with a history of one device."""
        self.batch = 0
        self.file.write(self.memoized(b"}") + b"(" + self.text("device_traces") + self.memoized(b"]") + self.memoized(b"]") + b"(")

    def end(self, members):
        """End the history, and add the other keys of the dictionary."""
        self.file.write(b"ea")
        for key, value in members.items():
            self.file.write(self.text(key) + self.value(value))
        self.file.write(b"u.")


class Memory:
    """An expandable segment with first fit, whose events are written to a pickle."""

    def __init__(self, out):
        self.starts, self.sizes = [], []  # of free ranges
        self.end = BASE
        self.out, self.events, self.time, self.blocks, self.stacks = out, 0, 10 ** 15, {}, {}

    def record(self, action, address, size, frames=()):
        """Write an event."""
        self.time += 7
        self.events += 1
        self.out.entry(action, address, size, self.time, frames)

    def stack(self, *sites):
        """A list of frames, the innermost first; equal stacks share a list."""
        if sites not in self.stacks:
            innermost = [("empty", "torch/utils/_device.py", 109), ("__torch_function__", "torch/overrides.py", 1727)]
            self.stacks[sites] = [{"name": name, "filename": file, "line": line} for name, file, line in [*innermost, *sites]]
        return self.stacks[sites]

    def alloc(self, size, *sites):
        """Allocate; returns the address."""
        rounded, frames = -(-size // ALIGNMENT) * ALIGNMENT, self.stack(*sites)
        index = next((i for i, free in enumerate(self.sizes) if free >= rounded), None)
        if index is None:
            growth = -(-rounded // PAGE) * PAGE
            self.record("segment_map", self.end, growth)
            self.add_free(self.end, growth)
            self.end += growth
            index = next(i for i, free in enumerate(self.sizes) if free >= rounded)
        address = self.starts[index]
        self.starts[index] += rounded
        self.sizes[index] -= rounded
        if self.sizes[index] == 0:
            del self.starts[index], self.sizes[index]
        self.blocks[address] = (size, rounded, frames)
        self.record("alloc", address, size, frames)
        return address

    def add_free(self, start, size):
        """Add a free range, coalesced with its neighbors."""
        index = bisect.bisect_left(self.starts, start)
        if index < len(self.starts) and start + size == self.starts[index]:
            size += self.sizes[index]
            del self.starts[index], self.sizes[index]
        if index > 0 and self.starts[index - 1] + self.sizes[index - 1] == start:
            self.sizes[index - 1] += size
        else:
            self.starts.insert(index, start)
            self.sizes.insert(index, size)

    def free(self, address):
        size, rounded, frames = self.blocks.pop(address)
        self.record("free_requested", address, size, frames)
        self.record("free_completed", address, size, frames)
        self.add_free(address, rounded)

    def state(self):
        """The other keys of the dictionary that _dump_snapshot() writes."""
        ranges = [(a, t, s, "active_allocated", f) for a, (s, t, f) in self.blocks.items()]
        ranges += [(a, s, 0, "inactive", []) for a, s in zip(self.starts, self.sizes)]
        blocks = [{"address": address, "size": rounded, "requested_size": size, "state": state, "frames": frames}
                  for address, rounded, size, state, frames in sorted(ranges, key=lambda block: block[0])]
        segment = {"device": 0, "address": BASE, "total_size": self.end - BASE, "stream": 0, "segment_type": "large",
                   "segment_pool_id": (0, 0), "is_expandable": True, "frames": [], "blocks": blocks}
        return {"segments": [segment], "external_annotations": [],
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": True}}


def train(out, events, seed=1, leaked=0.05):
    """Training steps of a transformer with sequences of different lengths; in the fraction `leaked` of the steps, a metric leaks a
    block.  Returns the memory at the end."""
    rng, memory = random.Random(seed), Memory(out)
    main = ("main", "train.py", 188)
    weights = [memory.alloc(size, ("__init__", "model.py", 31), main) for size in [9 * MIB, 3 * MIB] * LAYERS]
    states, gradients = [], {}
    while memory.events < events:
        step = ("step", "train.py", 142)
        tokens = rng.randrange(200, 1024)
        batch = memory.alloc(tokens * 4096, ("collate", "data.py", 77), step, main)
        saved = []
        for layer in range(LAYERS):
            workspace = memory.alloc(rng.choice([1, 2, 4]) * MIB + 4096, ("matmul", "model.py", 88), step, main)
            saved.append(memory.alloc(tokens * tokens * 8, ("attention", "model.py", 112), ("forward", "model.py", 140), step, main))
            saved.append(memory.alloc(tokens * 9000, ("mlp", "model.py", 127), ("forward", "model.py", 143), step, main))
            memory.free(workspace)
            if layer % 6 == 0:
                memory.free(memory.alloc(rng.randrange(100, 9000), ("norm", "model.py", 64), step, main))
        loss = memory.alloc(tokens * 50304, ("cross_entropy", "loss.py", 19), step, main)
        for index in reversed(range(2 * LAYERS)):
            if index not in gradients:
                gradients[index] = memory.alloc((9 if index % 2 == 0 else 3) * MIB, ("backward", "train.py", 151), main)
            memory.free(saved[index])
        memory.free(loss)
        if not states:
            states = [memory.alloc(size, ("init_state", "optimizer.py", 58), ("step", "train.py", 155), main)
                      for size in [9 * MIB, 3 * MIB] * LAYERS]
        if rng.random() < 0.2:
            for index in list(gradients):
                memory.free(gradients.pop(index))
        memory.free(batch)
        if rng.random() < leaked and len(weights) < 400:
            weights.append(memory.alloc(rng.randrange(20, 300) * 1000, ("append", "metrics.py", 23), step, main))
    return memory


def write(path, events, **options):
    """Write the snapshot."""
    with open(path, "wb") as file:
        out = Pickle(file)
        out.begin()
        out.end(train(out, events, **options).state())


if __name__ == "__main__":
    write(sys.argv[2], int(float(sys.argv[1])))
