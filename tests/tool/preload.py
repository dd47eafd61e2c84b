# SPDX-License-Identifier: MIT
"""Tests of libxseg-preload.so in LD_PRELOAD, with which a program with a shared CUDA runtime allocates from xseg.

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
# Two devices with memory contents, and reused stream handles.
TWO_DEVICES = {"XSEG_SIM_DEVICES": "2", "XSEG_SIM_BYTES": "1", "XSEG_SIM_REUSE_HANDLES": "1"}
SEGMENTS = ("expandable_segments:True", "expandable_segments:False")


def run_program(*command, **variables):
    completed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                               env={**os.environ, **variables})
    return completed.returncode, completed.stdout, completed.stderr


def sanitizers():
    completed = subprocess.run(["ldd", PROGRAM], check=True, capture_output=True, text=True)
    return re.findall(r"=> (\S*/lib[atu]\w*san\.so\S*)", completed.stdout)


class Preload(unittest.TestCase):
    def expect_difference(self, case, expected_without, expected_with, **variables):
        self.assertEqual(run_program(PROGRAM, case, **variables), (0, expected_without, ""))
        status, output, error = run_program(PROGRAM, case, LD_PRELOAD=PRELOADED, **variables)
        self.assertEqual((status, output), (0, expected_with), error)
        return error

    def expect_same(self, case, expected, runs_without_xseg=True):
        """Expects equal output with both kinds of segments on two devices, and without xseg if `runs_without_xseg`."""
        if runs_without_xseg:
            self.assertEqual(run_program(PROGRAM, case, **TWO_DEVICES)[:2], (0, expected))
        for segments in SEGMENTS:
            with self.subTest(segments=segments):
                status, output, error = run_program(PROGRAM, case, LD_PRELOAD=PRELOADED, XSEG_ALLOC_CONF=segments, **TWO_DEVICES)
                self.assertEqual((status, output), (0, expected), error)

    def test_xseg_serves_requests_and_reports_errors_of_the_runtime(self):
        for behavior, case, expected_without, expected_with in (
                ("freed memory is reused once it is idle", "reuse_freed_memory",
                 "other memory\ncuMemAlloc 2, cuMemCreate none\n",
                 "the same memory\ncuMemAlloc 0, cuMemCreate some\n"),
                ("memory of streams is ordered by them", "stream_ordered",
                 "other memory after the wait\ncuMemAlloc 3, cuMemCreate none\n",
                 "the same memory after the wait\ncuMemAlloc 0, cuMemCreate some\n"),
                ("a capture allocates from the runtime", "allocate_in_capture",
                 "freeing within the capture: 1, last error 1\n", None),
                ("errors of xseg are errors of the runtime", "excessive_request",
                 "excessive request: 2, last error 2\nforeign pointer: 1\n", None),
                ("cached memory counts as free", "memory_info", "cuMemAlloc 1, cuMemCreate none\n",
                 "cuMemAlloc 0, cuMemCreate some\n"),
                ("functions of the driver are interposed", "driver_functions", "other memory\ncuMemAlloc 3, cuMemCreate none\n",
                 "the same memory\ncuMemAlloc 1, cuMemCreate some\n"),
                ("a forked child allocates from the runtime", "fork_child", "the child exited\n", None)):
            with self.subTest(behavior):
                self.expect_difference(case, expected_without, expected_with or expected_without)

    def test_driver_free_waits_for_the_device(self):
        self.assertEqual(run_program(PROGRAM, "free_of_busy_memory", LD_PRELOAD=PRELOADED)[:2], (0, "the same memory\n"))

    def test_program_behaves_identically_on_two_devices(self):
        # Without xseg, cuMemFree of the simulator does not wait, and the counts of calls differ.
        for behavior, case, output, runs_without_xseg in (
                ("a free waits for the device of the memory", "free_from_other_device", "the work has finished\n", False),
                ("a reset frees the memory of its device", "device_reset", "no block was in use\n", True),
                ("a reset repairs a device after a sticky error", "sticky_error", "the device is usable again\n", True),
                ("every function frees the memory of every other", "cross_free",
                 "each function has freed memory of each other function\n", True),
                ("a call queries the context of its device once", "context_queries",
                 "cudaMalloc, cudaFree 2, cudaMallocAsync, cudaFreeAsync 2\n", False),
                ("a reset frees the memory of busy threads", "reset_under_load", "all memory is free\n", True),
                ("threads keep their memory during resets of another device", "exchange_during_resets",
                 "free memory was at most the total\n", True),
                ("a child of busy threads allocates from the runtime", "fork_under_load", "no child was killed\n", True)):
            with self.subTest(behavior):
                self.expect_same(case, output, runs_without_xseg)

    def test_child_forked_during_open_allocates_from_the_runtime(self):
        # The configuration has a key without effect, whose warning blocks the thread that opens the allocator.
        status, output, error = run_program(PROGRAM, "fork_during_open", LD_PRELOAD=PRELOADED,
                                            XSEG_ALLOC_CONF="expandable_segments:True,pinned_num_register_threads:2",
                                            **TWO_DEVICES)
        self.assertEqual((status, output), (0, "no child was killed\n"), error)

    def test_random_calls_have_the_documented_behavior_of_cuda(self):
        environment = {**TWO_DEVICES, "XSEG_SIM_MEMORY_MB": "2048"}
        for seed in range(SEED, SEED + SEEDS):
            with self.subTest(seed=seed, preloaded=False):
                self.assertEqual(run_program(RANDOM, str(seed), str(STEPS), **environment)[:2], (0, ""))
            for segments in SEGMENTS:
                with self.subTest(seed=seed, segments=segments):
                    status, output, error = run_program(RANDOM, str(seed), str(STEPS), LD_PRELOAD=PRELOADED,
                                                        XSEG_ALLOC_CONF=segments, **environment)
                    self.assertEqual((status, output), (0, ""), error)

    def test_classic_segments_reuse_freed_memory(self):
        _, output, _ = run_program(PROGRAM, "reuse_freed_memory", LD_PRELOAD=PRELOADED,
                                   XSEG_ALLOC_CONF="expandable_segments:False")
        self.assertEqual(output, "the same memory\ncuMemAlloc 1, cuMemCreate none\n")

    def test_invalid_configuration_leaves_requests_to_the_runtime(self):
        status, output, error = run_program(PROGRAM, "reuse_freed_memory", LD_PRELOAD=PRELOADED, XSEG_ALLOC_CONF="nonsense")
        self.assertEqual((status, output), (0, "other memory\ncuMemAlloc 2, cuMemCreate none\n"))
        self.assertIn("xseg-preload: cannot open an allocator, CUDA serves all requests: xseg_open: ", error)
        self.assertIn("'nonsense' at column 1", error)

    def test_commands_of_the_documentation_run_unchanged(self):
        lines = re.search(r"```\n(LD_PRELOAD=.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1].splitlines()
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertIn("libxseg-preload.so ./program", line)
            command = line.replace("libxseg-preload.so", f"'{PRELOADED}'").replace("./program", f"{PROGRAM} reuse_freed_memory")
            completed = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
            self.assertEqual((completed.returncode, completed.stdout), (0, "the same memory\ncuMemAlloc 0, cuMemCreate some\n"),
                             completed.stderr)

    def test_program_without_cuda_is_unaffected(self):
        if SANITIZER not in ("none", "coverage") and not sanitizers():
            self.skipTest(f"the program lacks {SANITIZER}, which the preloaded library needs")
        completed = subprocess.run(["true"], env={**os.environ, "LD_PRELOAD": PRELOADED}, check=False, capture_output=True)
        self.assertEqual((completed.returncode, completed.stderr), (0, b""))


if __name__ == "__main__":
    PROGRAM, RANDOM, LIBRARY, SANITIZER, *random_arguments = sys.argv[1:]
    SEED, SEEDS, STEPS = map(int, random_arguments or (1, 4, 1500))
    PRELOADED = " ".join([*sanitizers(), LIBRARY])
    names = ["Preload.test_random_calls_have_the_documented_behavior_of_cuda"] if random_arguments else []
    unittest.main(argv=[sys.argv[0], *names], verbosity=2)
