# SPDX-License-Identifier: MIT
"""Instructions that create one more object when 10, 10^3 and 10^4 objects exist; or, for objects that are created and
destroyed, after 10^4 of them, which leave no host memory allocated.  A destroyed pool keeps its handle.

complexity.py ONE_MORE HAS_CALLGRIND BUILDTYPE SANITIZER [--case CASE | --full | --drawn-by NUMBER].  With --full the last
count is 10^5, and 10^6 for streams that are created and destroyed; --drawn-by does the same for one case.  `tests/campaign
complexity` uses these options. callgrind counts the instructions of each of the 64 objects after a count.  Their mean at
the last count must be at most twice that at the count before.  The maximum is also printed: it is the object for which a
table grows or a page of records is allocated.  Skipped without valgrind or its header, and in other builds than release
builds, because self-checks are not O(1).
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COUNTS, MOST = (10, 1000), 10000
FULL, FULL_OF = 100000, {"passing_stream": 1000000, "passing_stream_classic": 1000000}
LIVING, LIVING_KIB, LIVING_LESS = "living", 60, 20000  # host memory of each; how many where there is too little
HANDLE, HANDLES = 16, 65536  # bytes of a pool's handle, and of what handles are made in
WINDOW = 64
# meson sets the first, which fills memory.  Under valgrind the heap is many small mappings, between which the
# kernel cannot join the library's; 10^5 streams would be more than the 65530 that a process may have.
ENVIRONMENT = {"MALLOC_PERTURB_": "0", "MALLOC_TOP_PAD_": str(256 << 20)}
CASES = ("passing_stream", "passing_stream_classic", "living_stream", "living_stream_classic", "passing_pool",
         "living_pool", "segment", "small_block", "small_block_classic", "large_block", "large_block_classic", "pin",
         "observer", "export", "leaving_granule", "granule_of_range", "held_granule", "prepared_range", "released_range",
         "registration", "registration_of_one_page", "granule_beside_registrations")


def measure(case, counts):
    with tempfile.TemporaryDirectory() as folder:
        dump = pathlib.Path(folder) / "dump"
        done = subprocess.run(["valgrind", "--tool=callgrind", "--instr-atstart=no", "--combine-dumps=yes",
                               "--compress-strings=yes", f"--callgrind-out-file={dump}", PROGRAM, case,
                               *map(str, counts)], check=False, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT})
        if done.returncode != 0:
            print(f"{case} ended with {done.returncode}: {done.stdout}", flush=True)
            os._exit(99)  # no verdict, also where a failure is expected
        spent = {count: [] for count in counts}
        for part in re.finditer(r"^desc: Trigger: Client Request: \S+:(\d+)$.*?^summary: (\d+)$",
                                dump.read_text(), re.DOTALL | re.MULTILINE):
            spent[int(part[1])].append(int(part[2]))
    host = {int(at): int(host) for at, host in re.findall(rf"^{case} (\d+) (\d+)$", done.stdout, re.MULTILINE)}
    return spent, host


def last_count(case):
    """The last count of a case: fewer of what stays where the machine's memory would run out."""
    count = FULL_OF.get(case, FULL) if IS_FULL else MOST
    available = re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    if case.startswith(LIVING) and int(available[1]) < 2 * LIVING_KIB * count:
        print(f"# {case}: {LIVING_LESS} for {count}: {available[0]}", flush=True)
        return LIVING_LESS
    return count


class Complexity(unittest.TestCase):
    def test_cost_of_one_more_does_not_grow_with_the_count(self):
        for case in CASES:
            with self.subTest(case=case):
                counts = COUNTS + (last_count(case),)
                spent, host = measure(case, counts)
                means = [sum(spent[count]) / WINDOW for count in counts]
                for count, mean in zip(counts, means):
                    self.assertEqual(len(spent[count]), WINDOW)
                    print(f"# {case}: {mean:.0f} instructions at {count}, the largest {max(spent[count])}", flush=True)
                self.assertGreater(means[0], 100, "nothing was measured")
                self.assertLessEqual(means[2], 2 * means[1], f"{case}: is not flat")
                if case == "passing_pool":
                    self.assertLessEqual(host[counts[2]] - host[counts[1]],
                                         HANDLE * (counts[2] - counts[1]) + HANDLES, f"{case}: memory grows")
                elif case.startswith("passing"):
                    self.assertEqual(host[counts[2]], host[counts[1]], f"{case}: memory grows")


def why_not(has_callgrind, buildtype, sanitizer):
    if buildtype != "release" or sanitizer != "none":
        return "only in release builds by gcc; run tests/run --release"
    if shutil.which("valgrind") is None or has_callgrind != "true":
        return "valgrind is not installed; run .ci/setup valgrind"
    return ""


if __name__ == "__main__":
    PROGRAM, IS_FULL = sys.argv[1], sys.argv[5:6] in (["--full"], ["--drawn-by"])
    if sys.argv[5:6] == ["--case"]:
        CASES = (sys.argv[6],)
    if sys.argv[5:6] == ["--drawn-by"]:
        CASES = (CASES[int(sys.argv[6]) % len(CASES)],)
    reason = why_not(*sys.argv[2:5])
    if reason:
        print(f"complexity.py: skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
