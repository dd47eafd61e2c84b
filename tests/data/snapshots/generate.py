# SPDX-License-Identifier: MIT
"""Creates snapshots of this folder: generate.py FOLDER, which requires PyTorch with a CUDA device.

A random program runs on PyTorch's own allocator, once for each kind of recording.  The output of a run is its memory
snapshot, the program as a trace, and the peaks of PyTorch's statistics.
"""
import ctypes
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys

# Name: configuration, recorded context, maximum number of entries.
KINDS = {
    "classic": ("expandable_segments:False", None, 1 << 20),
    "expandable": ("expandable_segments:True", "all", 1 << 20),
    "ring": ("expandable_segments:True", None, 150),
}
OPERATIONS = 400


class Program:
    """Allocates and frees at random, and records its operations as a trace."""

    def __init__(self, torch):
        self.torch, self.random = torch, random.Random(20261122)
        self.lines = ["xtrace 1", "c " + os.environ["PYTORCH_CUDA_ALLOC_CONF"]]
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.blocks, self.count, self.pool = {}, 0, None
        # A stand-in for CUDA executes no kernels, but has a function that keeps a stream busy.
        self.set_busy = getattr(ctypes.CDLL(None), "fakecuda_set_busy", None)

    def record(self, *words):
        self.lines.append(" ".join(map(str, words)))

    def alloc(self, stream, size, pool=0):
        with self.torch.cuda.stream(self.streams[stream]):
            block = self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
        self.count += 1
        self.blocks[self.count] = (block, stream)
        self.record("a", self.count, size, stream, *([pool] if pool else []))

    def free(self, name):
        del self.blocks[name]
        self.record("f", name)

    def size(self):
        return int(2 ** self.random.uniform(5, 25))

    def use(self, name):
        """Free a block while work on another stream uses it."""
        block, stream = self.blocks[name]
        other = self.streams[(stream + 1) % 3]
        with self.torch.cuda.stream(other):
            if self.set_busy:
                self.set_busy(ctypes.c_void_p(other.cuda_stream), 1)
            else:
                self.torch.cuda._sleep(100_000_000)
        block.record_stream(other)
        self.record("u", name, (stream + 1) % 3)
        del block
        self.free(name)
        for _ in range(3):
            self.alloc(stream, self.size())
        self.torch.cuda.synchronize()
        if self.set_busy:
            self.set_busy(ctypes.c_void_p(other.cuda_stream), 0)
        self.record("y", "*")

    def pools(self):
        """Release a private pool after its blocks were freed, and its memory."""
        pool = self.torch.cuda.MemPool()
        with self.torch.cuda.use_mem_pool(pool):
            for _ in range(5):
                self.alloc(0, self.size(), pool=7)
        for name in range(self.count - 4, self.count + 1):
            self.free(name)
        del pool
        self.record("pr", 7)
        self.empty()

    def empty(self):
        self.torch.cuda.empty_cache()
        self.record("e")

    def fail(self):
        try:
            self.torch.empty(1 << 42, dtype=self.torch.uint8, device="cuda")
            raise SystemExit("the device has more than 4 TiB")
        except self.torch.OutOfMemoryError:
            self.count += 1
            self.record("a", self.count, 1 << 42, 0)
            self.record("!", "oom")

    def step(self, number):
        if number % 100 == 60:
            self.empty()
        elif number == 150:
            self.pools()
        elif number == 250:
            self.fail()
        elif number % 20 == 10 and self.blocks:
            self.use(self.random.choice(list(self.blocks)))
        elif self.blocks and self.random.random() < len(self.blocks) / 60:
            self.free(self.random.choice(list(self.blocks)))
        else:
            self.alloc(self.random.choice((0, 0, 1, 2)), self.size())


def without_folders(snapshot):
    """Remove the folders from the file names of frames."""
    for entries in snapshot["device_traces"] + [snapshot["segments"]]:
        for entry in entries:
            for frame in entry.get("frames", []):
                frame["filename"] = pathlib.PurePath(frame["filename"]).name
    return snapshot


def write_compressed(path, contents):
    path.write_bytes(subprocess.run(["zstd", "-19", "-q"], input=contents, capture_output=True, check=True).stdout)


def record_program(name, folder):
    """Record a program; returns its peaks.  Each program runs in a separate process."""
    import torch  # pylint: disable=import-outside-toplevel

    _, context, entries = KINDS[name]
    program = Program(torch)
    torch.cuda.memory._record_memory_history("all", context, "python", entries)
    for number in range(OPERATIONS):
        program.step(number)
    torch.cuda.memory._dump_snapshot(str(folder / "raw"))
    snapshot = without_folders(pickle.loads((folder / "raw").read_bytes()))
    (folder / "raw").unlink()
    stats = torch.cuda.memory_stats()
    peaks = {key: stats[f"{key}_bytes.all.peak"] for key in ("requested", "allocated", "active", "reserved")}
    write_compressed(folder / f"{name}.pickle.zst", pickle.dumps(snapshot))
    if entries > len(snapshot["device_traces"][0]):
        write_compressed(folder / f"{name}.xtrace.zst", ("\n".join(program.lines) + "\n").encode())
    return peaks


if __name__ == "__main__":
    FOLDER = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        print(json.dumps(record_program(sys.argv[2], FOLDER)))
        sys.exit()
    PEAKS = {}
    for kind, (config, _, _) in KINDS.items():
        run = subprocess.run([sys.executable, __file__, str(FOLDER), kind], check=True,
                             env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": config}, stdout=subprocess.PIPE)
        PEAKS[kind] = json.loads(run.stdout)
    (FOLDER / "peaks.json").write_text(json.dumps(PEAKS, indent=2) + "\n")
