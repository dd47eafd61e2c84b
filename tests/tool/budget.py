# SPDX-License-Identifier: MIT
"""Instructions of a cache hit, counted by callgrind, compared with benchmarks/budget.txt.

budget.py BENCH_PAIRS SOURCE_ROOT BUILDTYPE COMPILER SANITIZER.  A program runs with two numbers of pairs; the difference of
the runs is the exact number of instructions of the additional pairs, independent of the host and its load.  Skipped in
builds other than release builds, and without valgrind.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

PAIRS = (2000, 12000)


def budget(text):
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {case: int(number) for case, number in lines}


def count(program, case, pairs):
    """Instructions of a whole run.  All numbers of pairs have as many digits: starting takes some instructions more or less
    with arguments of another length."""
    done = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program,
                           case, f"{pairs:05}"], check=False, text=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    found = re.search(r"Collected : (\d+)", done.stdout)
    if done.returncode != 0 or not found:
        raise AssertionError(f"callgrind on {case} ended with {done.returncode}: {done.stdout}")
    return int(found[1])


class Budget(unittest.TestCase):
    def test_a_pair_takes_no_more_instructions_than_its_budget(self):
        budgets = budget((ROOT / "benchmarks/budget.txt").read_text())
        self.assertGreaterEqual(len(budgets), 4, "a case is missing from benchmarks/budget.txt")
        for case, most in budgets.items():
            with self.subTest(case=case):
                few, many = (count(PROGRAM, case, pairs) for pairs in PAIRS)
                spent = (many - few) / (PAIRS[1] - PAIRS[0])
                print(f"# {case}: {spent:.1f} instructions a pair, budget {most}", flush=True)
                self.assertGreater(spent, 20, "nothing was measured")
                self.assertLessEqual(spent, most, f"{case}: over the budget of benchmarks/budget.txt")


def why_not(buildtype, compiler, sanitizer):
    if buildtype != "release" or sanitizer != "none" or compiler != "gcc":
        return "only in release builds by gcc; run tests/run --release"
    if shutil.which("valgrind") is None:
        return "valgrind is not installed; run .ci/setup valgrind"
    return ""


if __name__ == "__main__":
    PROGRAM, ROOT = map(pathlib.Path, sys.argv[1:3])
    reason = why_not(*sys.argv[3:6])
    if reason:
        print(f"budget.py: skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
