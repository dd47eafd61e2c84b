# SPDX-License-Identifier: MIT
"""With libxseg-preload.so in LD_PRELOAD, a program with a shared CUDA runtime gets its memory from xseg, without other
changes.

preload.py PROGRAM RANDOM LIBRARY SANITIZER [SEED SEEDS STEPS]; PROGRAM is preloaded.c and RANDOM preloaded_random.c, with
the runtime tests/support/runtime.c.  With SEED, only RANDOM runs, with SEEDS seeds, as in tests/campaign.
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/getting-started.md"
# Two devices that keep contents, and handles of streams that are reused.
TWO = {"XSEG_SIM_DEVICES": "2", "XSEG_SIM_BYTES": "1", "XSEG_SIM_REUSE_HANDLES": "1"}
SEGMENTS = ("expandable_segments:True", "expandable_segments:False")


def start(*command, **variables):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env={**os.environ, **variables})
    return done.returncode, done.stdout, done.stderr


def sanitizers():
    done = subprocess.run(["ldd", PROGRAM], check=True, capture_output=True, text=True)
    return re.findall(r"=> (\S*/lib[atu]\w*san\.so\S*)", done.stdout)


class Preload(unittest.TestCase):
    def expect(self, case, without, with_it, **variables):
        self.assertEqual(start(PROGRAM, case, **variables), (0, without, ""))
        status, said, complaint = start(PROGRAM, case, LD_PRELOAD=PRELOADED, **variables)
        self.assertEqual((status, said), (0, with_it), complaint)
        return complaint

    def expect_same(self, case, said, alone=True):
        """The program sees no difference, on two devices, whichever segments xseg has.  alone: it runs without xseg, too."""
        if alone:
            self.assertEqual(start(PROGRAM, case, **TWO)[:2], (0, said))
        for segments in SEGMENTS:
            with self.subTest(segments=segments):
                status, printed, complaint = start(PROGRAM, case, LD_PRELOAD=PRELOADED, XSEG_ALLOC_CONF=segments, **TWO)
                self.assertEqual((status, printed), (0, said), complaint)

    def test_memory_comes_from_xseg_and_errors_are_those_of_the_runtime(self):
        for behavior, case, without, with_it in (
                ("freed memory is reused once it is idle", "again", "other memory\ncuMemAlloc 2, cuMemCreate none\n",
                 "the same memory\ncuMemAlloc 0, cuMemCreate some\n"),
                ("memory of streams is ordered by them", "async",
                 "other memory after the wait\ncuMemAlloc 3, cuMemCreate none\n",
                 "the same memory after the wait\ncuMemAlloc 0, cuMemCreate some\n"),
                ("a capture allocates from the runtime", "capture", "freeing within the capture: 1, last error 1\n",
                 None),
                ("errors of xseg are errors of the runtime", "much", "too much: 2, last error 2\nnot mine: 1\n", None),
                ("cached memory counts as free", "info", "cuMemAlloc 1, cuMemCreate none\n",
                 "cuMemAlloc 0, cuMemCreate some\n"),
                ("functions of the driver are interposed", "driver", "other memory\ncuMemAlloc 3, cuMemCreate none\n",
                 "the same memory\ncuMemAlloc 1, cuMemCreate some\n"),
                ("a forked child allocates from the runtime", "child", "the child went on\n", None)):
            with self.subTest(behavior):
                self.expect(case, without, with_it or without)

    def test_a_free_by_the_driver_waits_for_the_device(self):
        self.assertEqual(start(PROGRAM, "busy", LD_PRELOAD=PRELOADED)[:2], (0, "the same memory\n"))

    def test_program_sees_no_difference_on_two_devices(self):
        # Without xseg, the simulated cuMemFree does not wait, and other calls are counted.
        for behavior, case, said, alone in (
                ("a free waits for the device of the memory", "other_device", "the work has finished\n", False),
                ("a reset frees the memory of its device", "reset", "nothing in use was handed out\n", True),
                ("a reset repairs a device after a sticky error", "sticky", "the device is usable again\n", True),
                ("every function frees the memory of every other", "mixed",
                 "every function has freed the memory of every other\n", True),
                ("a call queries the context of its device once", "queries",
                 "cudaMalloc, cudaFree 2, cudaMallocAsync, cudaFreeAsync 2\n", False),
                ("a reset frees the memory of busy threads", "reset_under_load", "all memory is free\n", True),
                ("threads keep their memory during resets of another device", "threads",
                 "free memory was at most the total\n", True),
                ("a child of busy threads allocates from the runtime", "forks", "no child was stopped\n", True)):
            with self.subTest(behavior):
                self.expect_same(case, said, alone)

    def test_a_child_that_is_forked_while_the_allocator_opens_goes_to_the_runtime(self):
        # A key without effect is a warning, on which the opening thread waits.
        status, said, complaint = start(PROGRAM, "opening", LD_PRELOAD=PRELOADED,
                                        XSEG_ALLOC_CONF="expandable_segments:True,pinned_num_register_threads:2", **TWO)
        self.assertEqual((status, said), (0, "no child was stopped\n"), complaint)

    def test_random_calls_keep_the_promises_of_cuda(self):
        machine = {**TWO, "XSEG_SIM_MEMORY_MB": "2048"}
        for seed in range(SEED, SEED + SEEDS):
            with self.subTest(seed=seed, preloaded=False):
                self.assertEqual(start(RANDOM, str(seed), str(STEPS), **machine)[:2], (0, ""))
            for segments in SEGMENTS:
                with self.subTest(seed=seed, segments=segments):
                    status, said, complaint = start(RANDOM, str(seed), str(STEPS), LD_PRELOAD=PRELOADED,
                                                    XSEG_ALLOC_CONF=segments, **machine)
                    self.assertEqual((status, said), (0, ""), complaint)

    def test_the_classic_path_serves_as_well(self):
        said = start(PROGRAM, "again", LD_PRELOAD=PRELOADED, XSEG_ALLOC_CONF="expandable_segments:False")[1]
        self.assertEqual(said, "the same memory\ncuMemAlloc 1, cuMemCreate none\n")

    def test_without_an_allocator_everything_is_as_before(self):
        status, said, complaint = start(PROGRAM, "again", LD_PRELOAD=PRELOADED, XSEG_ALLOC_CONF="nonsense")
        self.assertEqual((status, said), (0, "other memory\ncuMemAlloc 2, cuMemCreate none\n"))
        self.assertIn("xseg-preload: cannot open an allocator, CUDA serves all requests: xseg_open: ", complaint)
        self.assertIn("'nonsense' at column 1", complaint)

    def test_the_lines_of_the_page_run_as_they_stand(self):
        text = PAGE.read_text(encoding="utf-8")
        lines = re.search(r"```\n(LD_PRELOAD=.*?)```", text, re.DOTALL)[1].splitlines()
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertIn("libxseg-preload.so ./program", line)
            command = line.replace("libxseg-preload.so", f"'{PRELOADED}'").replace("./program", f"{PROGRAM} again")
            done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (0, "the same memory\ncuMemAlloc 0, cuMemCreate some\n"), done.stderr)

    def test_a_program_without_cuda_notices_nothing(self):
        if SANITIZER not in ("none", "coverage") and not sanitizers():
            self.skipTest(f"the program lacks {SANITIZER}, which the preloaded library needs")
        done = subprocess.run(["true"], env={**os.environ, "LD_PRELOAD": PRELOADED}, check=False, capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    PROGRAM, RANDOM, LIBRARY, SANITIZER, *numbers = sys.argv[1:]
    SEED, SEEDS, STEPS = map(int, numbers or (1, 4, 1500))
    PRELOADED = " ".join([*sanitizers(), LIBRARY])
    names = ["Preload.test_random_calls_keep_the_promises_of_cuda"] if numbers else []
    unittest.main(argv=[sys.argv[0], *names], verbosity=2)
