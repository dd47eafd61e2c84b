# SPDX-License-Identifier: MIT
"""The week of a service, as benchmarks/service replays it: service.py TOOL SOURCE_ROOT.

Compares counted and modeled values only, which are deterministic.
"""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

HOUR = 3600 * 1_000_000


class Week(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        where = ROOT / "benchmarks/service/service.py"
        spec = importlib.util.spec_from_file_location("service", where)
        cls.service = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.service)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.timeline = pathlib.Path(cls.folder.name) / "timeline"
        cls.decayed = cls.service.replay(TOOL, cls.service.WEEK, cls.service.CONFIG, cls.timeline)

    def test_reserved_follows_live(self):
        one = self.decayed
        self.assertLessEqual(one["reserved_time_avg"], 1.10 * one["allocated_time_avg"])
        self.assertGreaterEqual(one["reserved_time_avg"], one["allocated_time_avg"])

    def test_no_request_waits(self):
        self.assertEqual(self.decayed["request_path_syncs"], 0)
        self.assertEqual(self.service.waits(self.decayed), 0)

    def test_the_driver_has_a_fifth_of_the_work_of_emptying(self):
        emptied = pathlib.Path(self.folder.name) / "emptied.xtrace"
        with emptied.open("w") as file:
            self.service.write_emptied(file)
        other = self.service.replay(TOOL, emptied, self.service.EXPANDABLE)
        self.assertLessEqual(self.decayed["driver_us"], other["driver_us"] / 5)
        self.assertEqual(other["requests"], self.decayed["requests"])

    def test_nothing_grows_from_day_to_day(self):
        rows = [list(map(int, line.split("\t"))) for line in
                self.timeline.read_text().splitlines() if not line.startswith("#")]
        second, last = (next(row for row in rows if row[0] >= (24 * day + 3) * HOUR) for day in (2, 6))
        self.assertEqual((last[3], last[4]), (0, second[4]))
        # What is kept for reuse may still grow a little: slabs of records, events.
        self.assertLess(last[5], 1.05 * second[5])
        self.assertLess(last[6], second[6] + 5)

    def test_the_trace_is_what_the_generator_writes(self):
        written = subprocess.run([sys.executable, ROOT / "benchmarks/service/generate.py"],
                                 stdout=subprocess.PIPE, check=True).stdout
        stored = subprocess.run(["zstd", "-dcq", self.service.WEEK], stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(written, stored)


if __name__ == "__main__":
    TOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    del sys.argv[1:]
    unittest.main()
