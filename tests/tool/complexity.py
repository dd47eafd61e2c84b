# SPDX-License-Identifier: MIT
"""Instructions that create one more object when 10, 10^3 and 10^4 objects exist; or, for objects that are created and
destroyed, after 10^4 of them, which leave no host memory allocated.  A destroyed pool keeps its handle.

complexity.py PROGRAM HAS_CALLGRIND BUILDTYPE SANITIZER [--case CASE | --full | --drawn-by NUMBER].  With --full the last
count is 10^5, but 10^6 for streams that are created and destroyed, and 30,000 for ranges; --drawn-by does the same for one
case.  `tests/campaign complexity` uses these options.  callgrind counts the instructions of each of the 64 objects after a
count.  Their mean at the last count must be at most twice that at the count before.  The maximum is also printed: it is the object for which a
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

COUNTS, LAST_COUNT = (10, 1000), 10000
RANGES = 30000  # a device has 32 TiB of addresses for ranges, and each range reserves 1 GiB
FULL_COUNT, FULL_COUNTS = 100000, {"transient_stream": 1000000, "transient_stream_classic": 1000000, "prepared_range": RANGES,
                                   "released_range": RANGES}
LIVE, LIVE_KIB, LIVE_COUNT_LOW_MEMORY = "live", 60, 20000  # host memory of each object; the count with less memory
HANDLE_BYTES, HANDLE_CHUNK_BYTES = 16, 65536  # bytes of a pool's handle, and of an allocation of handles
WINDOW = 64
# MALLOC_PERTURB_, which meson sets, fills memory.  Under valgrind the heap has many small mappings, between which the
# kernel cannot merge those of the library; 10^5 streams would exceed the limit of 65530 mappings per process.
ENVIRONMENT = {"MALLOC_PERTURB_": "0", "MALLOC_TOP_PAD_": str(256 << 20)}
CASES = ("transient_stream", "transient_stream_classic", "live_stream", "live_stream_classic", "transient_pool",
         "live_pool", "segment", "small_block", "small_block_classic", "large_block", "large_block_classic", "pin",
         "observer", "export", "pending_granule", "granule_of_range", "held_granule", "prepared_range", "released_range",
         "registration", "registration_of_one_page", "granule_with_registrations")


def measure(case, counts):
    with tempfile.TemporaryDirectory() as folder:
        dump = pathlib.Path(folder) / "dump"
        completed = subprocess.run(["valgrind", "--tool=callgrind", "--instr-atstart=no", "--combine-dumps=yes",
                                    "--compress-strings=yes", f"--callgrind-out-file={dump}", PROGRAM, case,
                                    *map(str, counts)], check=False, text=True, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **ENVIRONMENT})
        if completed.returncode != 0:
            print(f"{case} ended with {completed.returncode}: {completed.stdout}", flush=True)
            os._exit(99)  # no verdict, also where a failure is expected
        instructions = {count: [] for count in counts}
        for part in re.finditer(r"^desc: Trigger: Client Request: \S+:(\d+)$.*?^summary: (\d+)$",
                                dump.read_text(), re.DOTALL | re.MULTILINE):
            instructions[int(part[1])].append(int(part[2]))
    return instructions, {int(count): int(host_bytes) for count, host_bytes in
                          re.findall(rf"^{case} (\d+) (\d+)$", completed.stdout, re.MULTILINE)}


def last_count(case):
    """Returns the last count of a case, which is lower if live objects would exceed the memory of the host."""
    count = FULL_COUNTS.get(case, FULL_COUNT) if IS_FULL else LAST_COUNT
    available = re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text())
    if case.startswith(LIVE) and int(available[1]) < 2 * LIVE_KIB * count:
        print(f"# {case}: {LIVE_COUNT_LOW_MEMORY} objects instead of {count}: {available[0]}", flush=True)
        return LIVE_COUNT_LOW_MEMORY
    return count


class Complexity(unittest.TestCase):
    def test_cost_of_one_more_does_not_grow_with_the_count(self):
        for case in CASES:
            with self.subTest(case=case):
                counts = COUNTS + (last_count(case),)
                instructions, host_bytes = measure(case, counts)
                means = [sum(instructions[count]) / WINDOW for count in counts]
                for count, mean in zip(counts, means):
                    self.assertEqual(len(instructions[count]), WINDOW)
                    print(f"# {case}: {mean:.0f} instructions at {count}, the largest {max(instructions[count])}", flush=True)
                self.assertGreater(means[0], 100, "nothing was measured")
                self.assertLessEqual(means[2], 2 * means[1], f"{case}: the cost grows with the count")
                if case == "transient_pool":
                    self.assertLessEqual(host_bytes[counts[2]] - host_bytes[counts[1]],
                                         HANDLE_BYTES * (counts[2] - counts[1]) + HANDLE_CHUNK_BYTES, f"{case}: memory grows")
                elif case.startswith("transient"):
                    self.assertEqual(host_bytes[counts[2]], host_bytes[counts[1]], f"{case}: memory grows")


def skip_reason(has_callgrind, buildtype, sanitizer):
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
    reason = skip_reason(*sys.argv[2:5])
    if reason:
        print(f"complexity.py: skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
