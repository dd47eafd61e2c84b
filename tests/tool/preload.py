# SPDX-License-Identifier: MIT
"""A program with a CUDA runtime that is a shared library has its memory from xseg, by LD_PRELOAD, and nothing else changes.

preload.py PROGRAM LIBRARY SANITIZER; PROGRAM is preloaded.c, whose runtime is tests/support/runtime.c.
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/preload.md"


def start(case, **variables):
    """What the program prints, on both streams, and its status."""
    done = subprocess.run([PROGRAM, case], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          timeout=120, env={**os.environ, **variables})
    return done.returncode, done.stdout, done.stderr


class Preload(unittest.TestCase):
    def expect(self, case, without, with_it, **variables):
        self.assertEqual(start(case, **variables), (0, without, ""))
        status, said, complaint = start(case, LD_PRELOAD=LIBRARY, **variables)
        self.assertEqual((status, said), (0, with_it), complaint)
        return complaint

    def test_freed_memory_is_there_for_the_next_and_nobody_uses_it(self):
        self.expect("again", "other memory\ncuMemAlloc 2, cuMemCreate none\n",
                    "the same memory\ncuMemAlloc 0, cuMemCreate some\n")

    def test_memory_of_streams_is_ordered_by_them(self):
        self.expect("async", "refused with 801, last error 801\n",
                    "waited for the other stream\ncuMemAlloc 0, cuMemCreate some\n")

    def test_a_capture_goes_to_the_runtime(self):
        self.expect("capture", "freeing within the capture: 801\n", "freeing within the capture: 900\n")

    def test_what_xseg_refuses_the_runtime_refuses(self):
        self.expect("much", *["too much: 2, last error 2\nnot mine: 1\n"] * 2)

    def test_cached_memory_counts_as_free(self):
        self.expect("info", "cuMemAlloc 1, cuMemCreate none\n", "cuMemAlloc 0, cuMemCreate some\n")

    def test_the_driver_is_preceded_too(self):
        self.expect("driver", "other memory\ncuMemAlloc 3, cuMemCreate none\n",
                    "the same memory\ncuMemAlloc 1, cuMemCreate some\n")

    def test_a_free_by_the_driver_waits_for_the_device(self):
        self.assertEqual(start("busy", LD_PRELOAD=LIBRARY)[:2], (0, "the same memory\n"))

    def test_a_child_goes_to_the_runtime(self):
        self.expect("child", *["the child went on\n"] * 2)

    def test_the_classic_path_serves_as_well(self):
        said = start("again", LD_PRELOAD=LIBRARY, XSEG_ALLOC_CONF="expandable_segments:False")[1]
        self.assertEqual(said, "the same memory\ncuMemAlloc 1, cuMemCreate none\n")

    def test_without_an_allocator_everything_is_as_before(self):
        status, said, complaint = start("again", LD_PRELOAD=LIBRARY, XSEG_ALLOC_CONF="nonsense")
        self.assertEqual((status, said), (0, "other memory\ncuMemAlloc 2, cuMemCreate none\n"))
        self.assertIn("xseg: memory comes from CUDA itself", complaint)
        self.assertIn("'nonsense' at column 1", complaint)

    def test_the_lines_of_the_page_run_as_they_stand(self):
        text = PAGE.read_text(encoding="utf-8")
        lines = re.search(r"```\n(.*?)```", text, re.DOTALL)[1].splitlines()
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertIn("libxseg-preload.so ./program", line)
            command = line.replace("libxseg-preload.so", LIBRARY).replace("./program", f"{PROGRAM} again")
            done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True, timeout=120)
            self.assertEqual((done.returncode, done.stdout), (0, "the same memory\ncuMemAlloc 0, cuMemCreate some\n"), done.stderr)

    def test_a_program_without_cuda_notices_nothing(self):
        done = subprocess.run(["true"], env={**os.environ, "LD_PRELOAD": LIBRARY}, check=False, capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    PROGRAM, LIBRARY, SANITIZER = sys.argv[1:]
    if SANITIZER not in ("none", "coverage"):
        print(f"preload.py: skipped: built with {SANITIZER}, whose library has to be the first that is loaded")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
