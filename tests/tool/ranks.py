# SPDX-License-Identifier: MIT
"""Tests of the tool with out-of-memory snapshots of the library: ranks.py TOOL SOURCE_ROOT LIBRARY.

The name of each snapshot contains the rank of its process.  `xseg compare` finds the outlier, and `xseg advise` finds a
configuration with which the request succeeds.
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
RANKS, OUTLIER = 4, 2
# A rank of a job: weights, steps, and in the outlier a cache that grows in each step; then a request that exceeds any device.
RANK = """
import sys
import xseg
with xseg.Allocator("expandable_segments:True,history:all,oom_snapshot:" + sys.argv[1]) as allocator:
    def alloc(label, size):
        with allocator.label(label):
            return allocator.allocate(size)
    permanent_blocks = [alloc("weights", 40 << 20)]
    for step in range(30):
        activations = [alloc("activations", 8 << 20) for _ in range(4)]
        if sys.argv[2] == "outlier":
            permanent_blocks.append(alloc("cache", 3 << 20))
        for block in activations:
            block.free()
    try:
        alloc("batch", 1 << 40)
    except xseg.NoMemoryError:
        pass
    else:
        sys.exit("a request of 1 TiB was served")
    for block in permanent_blocks:
        block.free()
"""
LAUNCHERS = ("RANK", "SLURM_PROCID", "LOCAL_RANK")


class RanksTest(ToolCase):
    def run_job(self, variable):
        environment = {name: value for name, value in os.environ.items() if name not in (*LAUNCHERS, "XSEG_SIM_MEMORY_MB")}
        for rank in range(RANKS):
            completed = subprocess.run([sys.executable, "-c", RANK, self.folder, "outlier" if rank == OUTLIER else ""],
                                       check=False, env=environment | {variable: str(rank)}, capture_output=True)
            self.assertEqual(completed.returncode, 0, completed.stderr)

    def test_outlier_is_found_by_the_rank_in_file_names(self):
        for variable in LAUNCHERS:
            with self.subTest(variable=variable):
                self.run_job(variable)
                names = sorted(path.name for path in self.folder.iterdir())
                self.assertEqual([re.sub(r"pid\d+", "pid", name) for name in names],
                                 [f"oom-rank{rank}-pid-1.pickle" for rank in range(RANKS)])
                for command, status in (("compare", 1), ("blame", 0)):
                    completed = self.tool(command, "--label", "--json", self.folder, status=status)
                    self.assertEqual(completed.stderr, "")
                    report = json.loads(completed.stdout)
                    self.assertEqual(report["outlier"], f"rank {OUTLIER}")
                    self.assertRegex(report["verdict"], r"^rank 2 is the outlier of 4: it reserves \d+.\d\d MiB more at the "
                                                        r"peak[,:] .*at cache")
                for name in names:
                    (self.folder / name).unlink()

    def test_newer_snapshots_replace_those_of_an_earlier_run(self):
        self.run_job("RANK")
        self.run_job("RANK")
        self.assertIn("\nomitted: 4 files, of whose rank there is a newer file\n",
                      self.tool("compare", "--label", self.folder, status=1).stdout)


class FailedRequest(ToolCase):
    def write_oom_snapshot(self, request, config):
        """Returns the snapshot of a failed request with ten classic segments, each of which has a cached block."""
        with xseg.Allocator(f"{config},oom_snapshot:{self.folder}") as allocator:
            for block in [allocator.allocate(40 * MIB) for _ in range(10)]:
                block.free()
            allocated = [allocator.allocate(24 * MIB) for _ in range(10)]
            with self.assertRaises(xseg.NoMemoryError):
                allocator.allocate(request)
            for block in allocated:
                block.free()
        path, = self.folder.iterdir()
        return path

    def advise(self, path, status=0):
        completed = self.tool("advise", "--json", path, status=status)
        return json.loads(completed.stdout) if status == 0 else completed.stderr

    def test_completing_configuration_is_advised(self):
        report = self.advise(self.write_oom_snapshot(100 * MIB, "expandable_segments:False,history:all"))
        out_of_memory = report["out_of_memory"]
        self.assertEqual((out_of_memory["device_bytes"], out_of_memory["failed"], out_of_memory["completes"]),
                         (DEVICE_MIB * MIB, 1, True))
        self.assertEqual(out_of_memory["least_change"], report["advised"]["config"])
        self.assertTrue(out_of_memory["least_change"].startswith("expandable_segments:True"), out_of_memory)
        self.assertFalse(report["current"]["completes"])

    def test_impossible_request_is_reported(self):
        report = self.advise(self.write_oom_snapshot(300 * MIB, "expandable_segments:False,history:all"))
        out_of_memory = report["out_of_memory"]
        self.assertEqual((out_of_memory["completes"], out_of_memory["least_change"]), (False, None))
        self.assertGreaterEqual(report["advised"]["device_needed"], 540 * MIB)

    def test_advice_requires_a_history(self):
        error = self.advise(self.write_oom_snapshot(100 * MIB, "expandable_segments:False"), status=2)
        self.assertIn("or with the key history:all of xseg", error)


if __name__ == "__main__":
    if re.search(rb"__[at]san_init", pathlib.Path(sys.argv[3]).read_bytes()):
        print("Python cannot load a library that is built with a sanitizer")
        sys.exit(77)
    sys.path.insert(0, str(ROOT / "src/adapters/python"))
    os.environ.update(XSEG_LIBRARY=sys.argv[3], XSEG_SIM_MEMORY_MB=str(DEVICE_MIB), PYTHONPATH=sys.path[0])
    import xseg
    unittest.main(argv=sys.argv[:1])
