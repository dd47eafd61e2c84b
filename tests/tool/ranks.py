# SPDX-License-Identifier: MIT
"""Snapshots that the library writes when memory runs out, read by the tool: ranks.py TOOL SOURCE_ROOT LIBRARY.

Each process of a job names its own snapshot.  `xseg compare` finds the outlier, and `xseg advise` finds a configuration
with which the request succeeds.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from folder_case import MIB, ROOT, ToolCase

DEVICE_MIB = 450
RANKS, ODD = 4, 2
# A rank of a job: weights, steps, and in the odd one a cache that nobody empties; then a request that no device has.
RANK = """
import sys
import xseg
with xseg.Allocator("expandable_segments:True,history:all,oom_snapshot:" + sys.argv[1]) as allocator:
    def alloc(label, size):
        with allocator.label(label):
            return allocator.allocate(size)
    kept = [alloc("weights", 40 << 20)]
    for step in range(30):
        activations = [alloc("activations", 8 << 20) for _ in range(4)]
        if sys.argv[2] == "odd":
            kept.append(alloc("cache", 3 << 20))
        for block in activations:
            block.free()
    try:
        alloc("batch", 1 << 40)
    except xseg.NoMemoryError:
        pass
    else:
        sys.exit("a request of 1 TiB was served")
    for block in kept:
        block.free()
"""
LAUNCHERS = ("RANK", "SLURM_PROCID", "LOCAL_RANK")


class RanksTest(ToolCase):
    def run_job(self, variable):
        clean = {name: value for name, value in os.environ.items() if name not in (*LAUNCHERS, "XSEG_SIM_MEMORY_MB")}
        for rank in range(RANKS):
            done = subprocess.run([sys.executable, "-c", RANK, self.folder, "odd" if rank == ODD else ""], check=False,
                                  env=clean | {variable: str(rank)}, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_outlier_is_found_by_the_names_of_processes(self):
        for variable in LAUNCHERS:
            with self.subTest(variable=variable):
                self.run_job(variable)
                names = sorted(path.name for path in self.folder.iterdir())
                self.assertEqual([re.sub(r"pid\d+", "pid", name) for name in names],
                                 [f"oom-rank{rank}-pid-1.pickle" for rank in range(RANKS)])
                for command, status in (("compare", 1), ("blame", 0)):
                    done = self.tool(command, "--label", "--json", self.folder, status=status)
                    self.assertEqual(done.stderr, "")
                    found = json.loads(done.stdout)
                    self.assertEqual(found["outlier"], f"rank {ODD}")
                    self.assertRegex(found["verdict"], r"^rank 2 is the outlier of 4: it reserves \d+.\d\d MiB more at the peak[,:] "
                                                       r".*at cache")
                for name in names:
                    (self.folder / name).unlink()

    def test_second_run_equals_the_first(self):
        self.run_job("RANK")
        self.run_job("RANK")
        self.assertIn("\nomitted: 4 files, of whose rank there is a newer file\n",
                      self.tool("compare", "--label", self.folder, status=1).stdout)


class Refused(ToolCase):
    def refuse(self, request, config):
        """Ten classic segments, of which a part is cached in pieces, and a request that fails: the snapshot."""
        with xseg.Allocator(f"{config},oom_snapshot:{self.folder}") as allocator:
            for block in [allocator.allocate(40 * MIB) for _ in range(10)]:
                block.free()
            live = [allocator.allocate(24 * MIB) for _ in range(10)]
            with self.assertRaises(xseg.NoMemoryError):
                allocator.allocate(request)
            for block in live:
                block.free()
        path, = self.folder.iterdir()
        return path

    def advise(self, path, status=0):
        done = self.tool("advise", "--json", path, status=status)
        return json.loads(done.stdout) if status == 0 else done.stderr

    def test_completing_configuration_is_advised(self):
        found = self.advise(self.refuse(100 * MIB, "expandable_segments:False,history:all"))
        short = found["out_of_memory"]
        self.assertEqual((short["device_bytes"], short["failed"], short["completes"]), (DEVICE_MIB * MIB, 1, True))
        self.assertEqual(short["least_change"], found["advised"]["config"])
        self.assertTrue(short["least_change"].startswith("expandable_segments:True"), short)
        self.assertFalse(found["current"]["completes"])

    def test_impossible_request_is_reported(self):
        found = self.advise(self.refuse(300 * MIB, "expandable_segments:False,history:all"))
        short = found["out_of_memory"]
        self.assertEqual((short["completes"], short["least_change"]), (False, None))
        self.assertGreaterEqual(found["advised"]["device_needed"], 540 * MIB)

    def test_a_snapshot_without_a_history(self):
        said = self.advise(self.refuse(100 * MIB, "expandable_segments:False"), status=2)
        self.assertIn("or with the key history:all of xseg", said)


if __name__ == "__main__":
    if re.search(rb"__[at]san_init", pathlib.Path(sys.argv[3]).read_bytes()):
        print("Python cannot load a library that is built with a sanitizer")
        sys.exit(77)
    sys.path.insert(0, str(ROOT / "src/adapters/python"))
    os.environ.update(XSEG_LIBRARY=sys.argv[3], XSEG_SIM_MEMORY_MB=str(DEVICE_MIB), PYTHONPATH=sys.path[0])
    import xseg
    unittest.main(argv=sys.argv[:1])
