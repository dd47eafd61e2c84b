# SPDX-License-Identifier: MIT
"""Tests the number of instructions of a cache hit, counted by callgrind, against benchmarks/budget.txt.

budget.py BENCH_PAIRS SOURCE_ROOT BUILDTYPE COMPILER SANITIZER.  A program runs with two numbers of pairs; the difference of
the runs is the exact number of instructions of the additional pairs, independent of the host and its load.  The test is
skipped in builds other than release builds, and without valgrind.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

PAIRS = (2000, 12000)


def read_budgets(text):
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {case: int(instructions) for case, instructions in lines}


def count(program, case, pairs):
    """Returns the instructions of a run.  `pairs` has five digits, since the startup depends on the length of arguments."""
    completed = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program,
                                case, f"{pairs:05}"], check=False, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT)
    match = re.search(r"Collected : (\d+)", completed.stdout)
    if completed.returncode != 0 or not match:
        raise AssertionError(f"callgrind on {case} ended with {completed.returncode}: {completed.stdout}")
    return int(match[1])


class Budget(unittest.TestCase):
    def test_instructions_per_pair_are_within_the_budget(self):
        budgets = read_budgets((ROOT / "benchmarks/budget.txt").read_text())
        self.assertGreaterEqual(len(budgets), 4, "a case is missing from benchmarks/budget.txt")
        for case, limit in budgets.items():
            with self.subTest(case=case):
                first, second = (count(PROGRAM, case, pairs) for pairs in PAIRS)
                instructions = (second - first) / (PAIRS[1] - PAIRS[0])
                print(f"# {case}: {instructions:.1f} instructions per pair, budget {limit}", flush=True)
                self.assertGreater(instructions, 20, "nothing was measured")
                self.assertLessEqual(instructions, limit, f"{case}: over the budget of benchmarks/budget.txt")


def skip_reason(buildtype, compiler, sanitizer):
    if buildtype != "release" or sanitizer != "none" or compiler != "gcc":
        return "only in release builds by gcc; run tests/run --release"
    if shutil.which("valgrind") is None:
        return "valgrind is not installed; run .ci/setup valgrind"
    return ""


if __name__ == "__main__":
    PROGRAM, ROOT = map(pathlib.Path, sys.argv[1:3])
    reason = skip_reason(*sys.argv[3:6])
    if reason:
        print(f"budget.py: skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
