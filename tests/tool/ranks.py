# SPDX-License-Identifier: MIT
"""Processes of a job name their own snapshots, and `xseg compare` finds the outlier: ranks.py TOOL SOURCE_ROOT LIBRARY.

Each process is started as a launcher starts it, and runs out of memory on the simulated driver.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from folder_case import FolderCase

MIB = 1 << 20
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


class RanksTest(FolderCase):
    def run_job(self, variable):
        """Each rank writes its snapshot into the folder."""
        clean = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
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
                    done = subprocess.run([sys.argv[1], command, "--label", "--json", self.folder], capture_output=True,
                                          check=False)
                    self.assertEqual((done.returncode, done.stderr), (status, b""))
                    found = json.loads(done.stdout)
                    self.assertEqual(found["odd"], f"rank {ODD}")
                    self.assertRegex(found["verdict"], r"^rank 2 is the outlier of 4: it reserves \d+.\d\d MiB more at the peak[,:] "
                                                       r".*at cache")
                for name in names:
                    (self.folder / name).unlink()

    def test_second_run_equals_the_first(self):
        self.run_job("RANK")
        self.run_job("RANK")
        done = subprocess.run([sys.argv[1], "compare", "--label", self.folder], capture_output=True, check=False)
        self.assertIn(b"\nomitted: 4, of whose rank there is a newer file\n", done.stdout)
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    if re.search(rb"__[at]san_init", pathlib.Path(sys.argv[3]).read_bytes()):
        print("Python cannot load a library that is built with a sanitizer")
        sys.exit(77)
    os.environ["XSEG_LIBRARY"] = sys.argv[3]
    os.environ["PYTHONPATH"] = os.path.join(sys.argv[2], "src/adapters/python")
    unittest.main(argv=sys.argv[:1])
