# SPDX-License-Identifier: MIT
"""Tests of benchmarks/service, which replays a week of a service: service_benchmark.py TOOL SOURCE_ROOT.

The tests compare counted and modeled values only, which are deterministic.
"""
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

HOUR = 3600 * 1_000_000


class ServiceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        path = ROOT / "benchmarks/service/service.py"
        spec = importlib.util.spec_from_file_location("service", path)
        cls.service = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cls.service)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.timeline = pathlib.Path(cls.folder.name) / "timeline"
        cls.decayed = cls.service.replay(TOOL, cls.service.WEEK, cls.service.CONFIG, cls.timeline)

    def test_reserved_memory_follows_allocated_memory(self):
        result = self.decayed
        self.assertLessEqual(result["reserved_time_avg"], 1.10 * result["allocated_time_avg"])
        self.assertGreaterEqual(result["reserved_time_avg"], result["allocated_time_avg"])

    def test_requests_do_not_wait(self):
        self.assertEqual(self.decayed["request_path_syncs"], 0)
        self.assertEqual(self.service.waits(self.decayed), 0)

    def test_driver_time_is_a_fifth_of_that_with_explicit_trims(self):
        trace_path = pathlib.Path(self.folder.name) / "emptied.xtrace"
        with trace_path.open("w") as file:
            self.service.write_emptied(file)
        emptied_result = self.service.replay(TOOL, trace_path, self.service.EXPANDABLE)
        self.assertLessEqual(self.decayed["driver_us"], emptied_result["driver_us"] / 5)
        self.assertEqual(emptied_result["requests"], self.decayed["requests"])

    def test_memory_does_not_grow_from_day_to_day(self):
        # Time in us; requested, allocated and reserved bytes; bytes of addresses and of host memory; objects of the driver.
        rows = [list(map(int, line.split("\t"))) for line in self.timeline.read_text().splitlines() if not line.startswith("#")]
        second_day, last_day = (next(row for row in rows if row[0] >= (24 * day + 3) * HOUR) for day in (2, 6))
        self.assertEqual((last_day[3], last_day[4]), (0, second_day[4]))
        # Cached objects of the host (slabs of records, events) may still grow slightly.
        self.assertLess(last_day[5], 1.05 * second_day[5])
        self.assertLess(last_day[6], second_day[6] + 5)

    def test_stored_trace_is_the_output_of_the_generator(self):
        generated = subprocess.run([sys.executable, ROOT / "benchmarks/service/generate.py"],
                                   stdout=subprocess.PIPE, check=True).stdout
        stored = subprocess.run(["zstd", "-dcq", self.service.WEEK], stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(generated, stored)


if __name__ == "__main__":
    TOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    del sys.argv[1:]
    unittest.main()
