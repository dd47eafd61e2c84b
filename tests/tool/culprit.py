# SPDX-License-Identifier: MIT
"""`xseg blame` finds the call site that fragments memory: culprit.py TOOL SOURCE_ROOT LIBRARY.

Twenty programs run on the library and the simulated driver, in steps with a pause after each, as a service between
requests.  Each program has sites that allocate much and fragment little, and one site that keeps small blocks among large
temporary ones.  Half of the programs identify sites by label, half by call stack.
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
PROGRAMS, FOUND = 20, 19


class Program:
    """Steps of a training or a service; `kept` are blocks of the culprit."""

    def __init__(self, allocator, seed):
        self.allocator, self.draw, self.seed = allocator, random.Random(seed), seed
        self.kept, self.steady = [], []
        # What the culprit keeps: small blocks, or such as come from the large pool; for how many steps.
        self.size = self.draw.choice((512, 4 * KIB, 60 * KIB, 1200 * KIB, 1900 * KIB))
        self.steps = self.draw.choice((16, 30, 1000))
        self.every = self.draw.choice((1, 2))

    def alloc(self, site, size):
        with self.allocator.label(site):
            return self.allocator.allocate(size)

    def begin(self):
        """Weights, each as large as pages of a large segment, and what an optimizer keeps: long-lived, one beside the other."""
        for _ in range(self.draw.randrange(4, 12)):
            self.steady.append(self.alloc("weights", self.draw.randrange(1, 4) * LARGE))
        for _ in range(self.draw.randrange(20, 80)):
            self.steady.append(self.alloc("optimizer", self.draw.randrange(1, 200) * KIB))

    def step(self, number):
        temporary = []
        count = self.draw.randrange(10, 40)
        for at in range(count):
            if at == count // 2 and number % self.every == 0:
                self.kept.append((number, self.alloc("culprit", self.size)))
            if self.size < MIB:
                temporary.append(self.alloc("scratch", self.draw.randrange(100, 900) * KIB))
            if self.size > MIB or at % 8 == 0:
                temporary.append(self.alloc("activations", self.draw.randrange(2, 24) * MIB))
        if self.draw.random() < 0.5:
            self.draw.shuffle(temporary)
        for block in temporary:
            block.free()
        self.alloc("pause", 512).free()
        while self.kept and self.kept[0][0] <= number - self.steps:
            self.kept.pop(0)[1].free()

    def run(self):
        self.begin()
        for number in range(40):
            self.step(number)

    def end(self):
        for block in [block for _, block in self.kept] + self.steady:
            block.free()


def snapshot_of(seed, folder):
    path = folder / f"{seed}.pickle"
    config = "expandable_segments:" + ("False" if seed % 3 == 0 else "True") + ",history:all"
    with xseg.Allocator(config) as allocator:
        program = Program(allocator, seed)
        program.run()
        write_snapshot(allocator, path)
        program.end()
    return path


def write_snapshot(allocator, path):
    write = xseg._library.load().xseg_snapshot
    write.argtypes, write.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.c_int
    if write(allocator.handle, os.fsencode(path), None) != 0:
        raise AssertionError(xseg._library.error_text())


def trimmed(config, seed, path):
    """Blocks come and go; what a trim then returned, and could not return for live blocks.  A snapshot is written before it."""
    draw, blocks = random.Random(seed), []
    with xseg.open(config, log=lambda *_: None) as allocator:
        for _ in range(300):
            blocks.append(allocator.allocate(draw.choice((512, 100 * KIB, 2 * MIB, 4 * MIB, 9 * MIB, 33 * MIB))))
            while len(blocks) > 60:
                blocks.pop(draw.randrange(len(blocks))).free()
            if draw.random() < 0.03:
                allocator.trim(wait=True)
        for block in draw.sample(blocks, 45):
            block.free()
        write_snapshot(allocator, path)
        done = allocator.trim(wait=True)
        for block in blocks:
            block.free()
    return done


def rewrite(path, by_stack):
    """An event takes 100 us, however busy the machine is, and a pause 100 ms; by_stack: labels become call stacks."""
    snapshot = pickle.loads(path.read_bytes())
    stacks, now = {}, 1_000_000
    for trace in snapshot["device_traces"]:
        for entry in trace:
            site = entry["user_metadata"]
            now += 100_000 if (entry["action"], site) == ("alloc", "pause") else 100
            entry["time_us"] = now
            if by_stack:
                entry["user_metadata"] = ""
                entry["frames"] = stacks.setdefault(site, [
                    {"name": "empty", "filename": "/x/site-packages/torch/functional.py", "line": 12},
                    {"name": site, "filename": "train.py", "line": 7 + len(stacks)},
                    {"name": "main", "filename": "train.py", "line": 1}])
    path.write_bytes(pickle.dumps(snapshot, 4))


class Culprit(FolderCase):
    def blamed(self, path, *arguments):
        done = subprocess.run([sys.argv[1], "blame", "--json", *arguments, path], capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return json.loads(done.stdout)

    def test_culprit_is_listed_first(self):
        wrong, found = [], 0
        for seed in range(1, PROGRAMS + 1):
            by_stack = seed % 2 == 0
            path = snapshot_of(seed, self.folder)
            rewrite(path, by_stack)
            blame = self.blamed(path, *([] if by_stack else ["--label"]))
            self.assertEqual(blame["omitted"], 0)
            self.assertEqual(int(blame["reserved"]) - int(blame["allocated"]),
                             int(blame["pending"]) + int(blame["idle"]) +
                             sum(int(site["fragmented"]) for site in blame["sites"]))
            first = [(site["site"], int(site["fragmented"])) for site in blame["sites"][:3]]
            found += "culprit" in first[0][0]
            wrong += [(seed, first)] if "culprit" not in first[0][0] else []
            # By allocated bytes it is not: that is another question.
            self.assertNotIn("culprit", max(blame["sites"], key=lambda site: int(site["allocated"]))["site"])
        self.assertGreaterEqual(found, FOUND, wrong)
        print(f"the culprit is first in {found} of {PROGRAMS}")

    def test_idle_pages_have_the_reasons_of_the_library(self):
        blame = self.blamed(snapshot_of(2, self.folder), "--label")
        self.assertIn("policy", blame["idle_at_end"])

    def test_report_at_the_end_equals_the_trim_result(self):
        path = self.folder / "end.pickle"
        for seed, pages in enumerate(("", "large_segment_size_mb:32", "large_segment_size_mb:12", "page_size:small") * 3):
            done = trimmed(f"expandable_segments:True,history:all,{pages}", seed, path)
            self.assertGreater(min(done.released, done.kept_fragmented), MIB)
            snapshot = pickle.loads(path.read_bytes())
            for trace in snapshot["device_traces"]:
                for entry in trace:
                    entry["time_us"] = 1  # so that it is the end that counts
            snapshot["xseg"]["devices"][0]["causes"] = []
            for device_traces in (snapshot["device_traces"], []):
                path.write_bytes(pickle.dumps(snapshot | {"device_traces": device_traces}, 4))
                blame = self.blamed(path)
                self.assertEqual(blame["omitted"], 0)
                self.assertEqual((int(blame["fragmented"]), int(blame["idle"])), (done.kept_fragmented, done.released), (pages, seed))


if __name__ == "__main__":
    if re.search(rb"__[at]san_init", pathlib.Path(sys.argv[3]).read_bytes()):
        print("Python cannot load a library that is built with a sanitizer")
        sys.exit(77)
    os.environ["XSEG_LIBRARY"] = sys.argv[3]
    sys.path.insert(0, os.path.join(sys.argv[2], "src/adapters/python"))
    import xseg
    unittest.main(argv=sys.argv[:1])
