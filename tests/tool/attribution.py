# SPDX-License-Identifier: MIT
"""Tests that `xseg blame` attributes fragmentation to its call site: attribution.py TOOL SOURCE_ROOT LIBRARY.

Twenty programs use the library and the simulated driver, in steps with a pause after each step, as between requests of a
service.  Each program has sites that allocate much and fragment little, and one site whose small blocks outlive the large
blocks around them.  Half of the programs identify sites by label, half by call stack.
"""
import ctypes
import json
import os
import pathlib
import pickle
import random
import re
import subprocess
import sys
import unittest

from folder_case import FolderCase

KIB, MIB = 1 << 10, 1 << 20
LARGE = 20 * MIB
PROGRAMS, REQUIRED_FIRST = 20, 19


class Program:
    """Steps of a training job or a service; `fragmenting_blocks` are the blocks of the fragmenting site, oldest first."""

    def __init__(self, allocator, seed):
        self.allocator, self.rng, self.seed = allocator, random.Random(seed), seed
        self.fragmenting_blocks, self.permanent_blocks = [], []
        # Blocks of the fragmenting site belong to small segments (up to 1 MiB) or to large ones.
        self.block_size = self.rng.choice((512, 4 * KIB, 60 * KIB, 1200 * KIB, 1900 * KIB))
        self.lifetime_steps = self.rng.choice((16, 30, 1000))
        self.interval_steps = self.rng.choice((1, 2))

    def alloc(self, site, size):
        with self.allocator.label(site):
            return self.allocator.allocate(size)

    def begin(self):
        """Allocates permanent blocks: weights, each a multiple of the page size of a large segment, and then optimizer states."""
        for _ in range(self.rng.randrange(4, 12)):
            self.permanent_blocks.append(self.alloc("weights", self.rng.randrange(1, 4) * LARGE))
        for _ in range(self.rng.randrange(20, 80)):
            self.permanent_blocks.append(self.alloc("optimizer", self.rng.randrange(1, 200) * KIB))

    def step(self, step_index):
        temporary = []
        count = self.rng.randrange(10, 40)
        for index in range(count):
            if index == count // 2 and step_index % self.interval_steps == 0:
                self.fragmenting_blocks.append((step_index, self.alloc("fragmenting", self.block_size)))
            if self.block_size < MIB:
                temporary.append(self.alloc("scratch", self.rng.randrange(100, 900) * KIB))
            if self.block_size > MIB or index % 8 == 0:
                temporary.append(self.alloc("activations", self.rng.randrange(2, 24) * MIB))
        if self.rng.random() < 0.5:
            self.rng.shuffle(temporary)
        for block in temporary:
            block.free()
        self.alloc("pause", 512).free()
        while self.fragmenting_blocks and self.fragmenting_blocks[0][0] <= step_index - self.lifetime_steps:
            self.fragmenting_blocks.pop(0)[1].free()

    def run(self):
        self.begin()
        for step_index in range(40):
            self.step(step_index)

    def free_all(self):
        for block in [block for _, block in self.fragmenting_blocks] + self.permanent_blocks:
            block.free()


def snapshot_of(seed, folder):
    path = folder / f"{seed}.pickle"
    config = "expandable_segments:" + ("False" if seed % 3 == 0 else "True") + ",history:all"
    with xseg.Allocator(config) as allocator:
        program = Program(allocator, seed)
        program.run()
        write_snapshot(allocator, path)
        program.free_all()
    return path


def write_snapshot(allocator, path):
    write = xseg._library.load().xseg_snapshot
    write.argtypes, write.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.c_int
    if write(allocator.handle, os.fsencode(path), None) != 0:
        raise AssertionError(xseg._library.error_text())


def trim_random_program(config, seed, path):
    """Allocates and frees random blocks, writes a snapshot, and returns the result of a trim."""
    rng, blocks = random.Random(seed), []
    with xseg.open(config, log=lambda *_: None) as allocator:
        for _ in range(300):
            blocks.append(allocator.allocate(rng.choice((512, 100 * KIB, 2 * MIB, 4 * MIB, 9 * MIB, 33 * MIB))))
            while len(blocks) > 60:
                blocks.pop(rng.randrange(len(blocks))).free()
            if rng.random() < 0.03:
                allocator.trim(wait=True)
        for block in rng.sample(blocks, 45):
            block.free()
        write_snapshot(allocator, path)
        result = allocator.trim(wait=True)
        for block in blocks:
            block.free()
    return result


def rewrite(path, by_stack):
    """Replaces the times of events: 100 us for each event, 100 ms for a pause; by_stack: replaces labels with call stacks."""
    snapshot = pickle.loads(path.read_bytes())
    stacks, time_us = {}, 1_000_000
    for trace in snapshot["device_traces"]:
        for entry in trace:
            site = entry["user_metadata"]
            time_us += 100_000 if (entry["action"], site) == ("alloc", "pause") else 100
            entry["time_us"] = time_us
            if by_stack:
                entry["user_metadata"] = ""
                entry["frames"] = stacks.setdefault(site, [
                    {"name": "empty", "filename": "/x/site-packages/torch/functional.py", "line": 12},
                    {"name": site, "filename": "train.py", "line": 7 + len(stacks)},
                    {"name": "main", "filename": "train.py", "line": 1}])
    path.write_bytes(pickle.dumps(snapshot, 4))


class Attribution(FolderCase):
    def read_report(self, path, *arguments):
        completed = subprocess.run([sys.argv[1], "blame", "--json", *arguments, path], capture_output=True, check=False)
        self.assertEqual((completed.returncode, completed.stderr), (0, b""))
        return json.loads(completed.stdout)

    def test_fragmenting_site_is_listed_first(self):
        missed, first_count = [], 0
        for seed in range(1, PROGRAMS + 1):
            by_stack, path = seed % 2 == 0, snapshot_of(seed, self.folder)
            rewrite(path, by_stack)
            blame = self.read_report(path, *([] if by_stack else ["--label"]))
            self.assertEqual(blame["omitted"], 0)
            self.assertEqual(int(blame["reserved"]) - int(blame["allocated"]), int(blame["pending"]) + int(blame["idle"]) +
                             sum(int(site["fragmented"]) for site in blame["sites"]))
            first = [(site["site"], int(site["fragmented"])) for site in blame["sites"][:3]]
            first_count += "fragmenting" in first[0][0]
            missed += [(seed, first)] if "fragmenting" not in first[0][0] else []
            # Sorted by allocated bytes it is not the first site.
            self.assertNotIn("fragmenting", max(blame["sites"], key=lambda site: int(site["allocated"]))["site"])
        self.assertGreaterEqual(first_count, REQUIRED_FIRST, missed)
        print(f"the fragmenting site is first in {first_count} of {PROGRAMS}")

    def test_idle_pages_have_the_reasons_of_the_library(self):
        self.assertIn("policy", self.read_report(snapshot_of(2, self.folder), "--label")["idle_at_end"])

    def test_report_at_the_end_equals_the_trim_result(self):
        path = self.folder / "end.pickle"
        for seed, pages in enumerate(("", "large_segment_size_mb:32", "large_segment_size_mb:12", "page_size:small") * 3):
            trim_result = trim_random_program(f"expandable_segments:True,history:all,{pages}", seed, path)
            self.assertGreater(min(trim_result.released, trim_result.kept_fragmented), MIB)
            snapshot = pickle.loads(path.read_bytes())
            for trace in snapshot["device_traces"]:
                for entry in trace:
                    entry["time_us"] = 1  # only the final state has a weight
            snapshot["xseg"]["devices"][0]["causes"] = []
            for device_traces in (snapshot["device_traces"], []):
                path.write_bytes(pickle.dumps(snapshot | {"device_traces": device_traces}, 4))
                blame = self.read_report(path)
                self.assertEqual(blame["omitted"], 0)
                self.assertEqual((int(blame["fragmented"]), int(blame["idle"])),
                                 (trim_result.kept_fragmented, trim_result.released), (pages, seed))


if __name__ == "__main__":
    if re.search(rb"__[at]san_init", pathlib.Path(sys.argv[3]).read_bytes()):
        print("Python cannot load a library that is built with a sanitizer")
        sys.exit(77)
    os.environ["XSEG_LIBRARY"] = sys.argv[3]
    sys.path.insert(0, os.path.join(sys.argv[2], "src/adapters/python"))
    import xseg
    unittest.main(argv=sys.argv[:1])
