# SPDX-License-Identifier: MIT
"""Tests of `xseg advise` with a folder: advise_ranks.py TOOL SOURCE_ROOT."""
import json
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv[2]) / "tests/support"))
from advise_case import BASE, AdviseTest, out_of_memory_snapshot, entry  # pylint: disable=wrong-import-position
from folder_case import MIB  # pylint: disable=wrong-import-position


def many_streams():
    """A snapshot of one block on each of 36 streams: with pages of 20 MiB, one per stream, they exceed the device."""
    starts = [BASE + stream * 64 * MIB for stream in range(36)]
    return {"segments": [{"device": 0, "address": start, "total_size": 12 * MIB, "stream": stream, "segment_type": "large",
                          "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
                          "blocks": [{"address": start, "size": 12 * MIB, "requested_size": 12 * MIB,
                                      "state": "active_allocated", "frames": []}]} for stream, start in enumerate(starts)],
            "device_traces": [[{**entry(action, start, 12 * MIB), "stream": stream}
                               for stream, start in enumerate(starts) for action in ("segment_alloc", "alloc")]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}}


def rank_of_job(growth_per_step=0, permanent_bytes=0, settings=""):
    """A snapshot of a rank: permanent blocks, and blocks of 400 MiB that outgrow the segments of the previous step."""
    events, segments, starts, address = [], {}, [], BASE + permanent_bytes
    for start in range(BASE, address, 40 * MIB):
        events += [entry(action, start, 40 * MIB) for action in ("segment_alloc", "alloc")]
        segments[start] = (40 * MIB, "active_allocated")
    for step in range(9):
        size = 400 * MIB + step * growth_per_step
        if step == 0 or growth_per_step:
            starts, address = [address + index * size for index in range(3)], address + 3 * size
            events += [entry("segment_alloc", start, size) for start in starts]
            segments.update({start: (size, "inactive") for start in starts})
        events += [entry("alloc", start, size) for start in starts]
        events += [entry(action, start, size) for start in starts for action in ("free_requested", "free_completed")]
    return {"segments": [{"device": 0, "address": start, "total_size": size, "stream": 0, "segment_type": "large",
                          "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
                          "blocks": [{"address": start, "size": size, "requested_size": size, "state": state, "frames": []}]}
                         for start, (size, state) in segments.items()], "device_traces": [events],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": settings, "expandable_segments": False}}


class Ranks(AdviseTest):
    def job(self, count=8, **outlier_options):
        for rank in range(count):
            self.file(rank_of_job(**outlier_options) if rank == min(5, count - 1) else rank_of_job(),
                      f"oom-rank{rank}-pid{rank}-1.pickle")
        return self.folder

    def advice_for_folder(self, folder, *options, status=0):
        """Returns the JSON, and checks the values of each rank against a replay of its file, and totals against maxima."""
        report = json.loads(self.tool("advise", "--json", *options, folder, status=status).stdout)
        self.assertLessEqual(len(report["ranks"]), 4)
        self.assertEqual(len({rank["rank"] for rank in report["ranks"]}), len(report["ranks"]))
        for name in filter(report.get, ("current", "advised", "runner_up")):
            for rank in report["ranks"]:
                string = rank[name]
                self.assertEqual(string["config"], report[name]["config"])
                self.expect_replay(rank["trace"], string)
                if report["out_of_memory"]:
                    self.assertEqual(string["completes"], self.completes(rank["trace"], string["config"], rank["target_bytes"]))
            for row in ("peak_reserved", "min_device"):
                self.assertEqual(report[name][row], max(rank[name][row] for rank in report["ranks"]))
        return report

    def test_advice_uses_the_outlier(self):
        report = self.advice_for_folder(self.job(growth_per_step=46 * MIB))
        self.assertEqual(report["outlier"], "rank 5")
        self.assertEqual([rank["rank"] for rank in report["ranks"]], ["rank 5", "rank 0", "rank 4", "rank 2"])
        self.assertEqual([(rank["outlier"], rank["typical"]) for rank in report["ranks"]],
                         [(True, False), (False, True)] + 2 * [(False, False)])
        self.assertEqual(report["advised"]["config"], "expandable_segments:True")
        self.assertLess(report["advised"]["peak_reserved"], report["current"]["peak_reserved"] // 2)
        self.assertRegex(report["reason"], r"^the largest peak of these ranks falls from .* to .*, since segments that grow")
        self.assertNotEqual(report["runner_up"]["config"], report["advised"]["config"])

    def test_text_report_has_the_results_of_each_rank(self):
        folder = self.job(growth_per_step=46 * MIB)
        report, lines = self.advice_for_folder(folder), self.tool("advise", folder).stdout.splitlines()
        self.assertTrue(lines[0].startswith("rank 5 is the outlier of 8: "), lines[0])
        self.assertEqual(lines[1], f"{folder}, 8 files")
        self.assertEqual(lines[2].split(), ["set", "expandable_segments:True"])
        for rank, row in zip(report["ranks"], lines[-2 - len(report["ranks"]):-2]):
            cells = re.split("  +", row.strip())
            self.assertEqual(cells[-1], rank["rank"] + {"rank 5": ", outlier", "rank 0": ", most typical"}.get(rank["rank"], ""))
            for index, name in enumerate(("current", "advised", "runner_up")):
                replay = self.tool("replay", "--min-device", "--config", rank[name]["config"], rank["trace"]).stdout
                expected = [re.search(rf"^  {title} +(.*)$", replay, re.MULTILINE)[1]
                            for title in ("peak reserved", "smallest device")]
                self.assertEqual(cells[2 * index:2 * index + 2], expected, (rank["rank"], name))
        self.assertEqual(lines[-1], f"{report['replayed']} configurations replayed")

    def test_no_advice_without_improvement(self):
        report = self.advice_for_folder(self.job(count=2, permanent_bytes=80 * MIB))
        self.assertEqual([report["outlier"], report["advised"], report["runner_up"], report["least_change"]], 4 * [None])
        self.assertEqual([rank["rank"] for rank in report["ranks"]], ["rank 1", "rank 0"])
        self.assertIn("configurations lowers the largest peak of 1.25 GiB by more than", report["reason"])
        self.assertIn("\nno configuration helps\n", self.tool("advise", self.folder).stdout)

    def test_folder_with_one_rank_gets_advice(self):
        report = self.advice_for_folder(self.job(count=1, growth_per_step=46 * MIB))
        self.assertEqual((report["outlier"], report["advised"]["config"]), (None, "expandable_segments:True"))

    def test_rank_that_ran_out_of_memory_completes_with_the_advice(self):
        folder = self.job()
        self.file(out_of_memory_snapshot(100 * MIB), "oom-rank5-pid5-1.pickle")
        report = self.advice_for_folder(folder)
        self.assertTrue(report["out_of_memory"])
        self.assertEqual([rank["current"]["completes"] for rank in report["ranks"]], [False, True, True, True])
        self.assertTrue(all(rank["advised"]["completes"] for rank in report["ranks"]))
        self.assertEqual(report["least_change"], report["advised"]["config"])
        self.assertTrue(report["reason"].startswith("4 of these 4 ranks complete instead of 3"), report["reason"])
        self.assertIn("out of memory  rank 5 with the current string; none with the advised string\n"
                      "least change   the advised string; or, ",
                      self.tool("advise", folder).stdout)

    def test_completing_ranks_complete_with_the_advice(self):
        """The runner-up on a larger device exceeds the smaller device in ranks that complete with the current string."""
        folder = self.job(growth_per_step=46 * MIB)
        runner_up = self.advice_for_folder(folder)["runner_up"]["config"]
        report = self.advice_for_folder(folder, "--device-memory=1400MiB")
        self.assertEqual([rank["current"]["completes"] for rank in report["ranks"]], [False, True, True, True])
        self.assertFalse(self.completes(report["ranks"][1]["trace"], runner_up, 1400 * MIB))
        for name in filter(report.get, ("advised", "runner_up")):
            self.assertTrue(all(rank[name]["completes"] for rank in report["ranks"][1:]), report[name])

    def test_advice_for_one_rank_alone_is_omitted(self):
        for rank in range(4):
            self.file(out_of_memory_snapshot(100 * MIB) if rank == 3 else many_streams(), f"rank{rank}.pickle")
        single_rank_string = json.loads(self.tool("advise", "--json", self.folder / "rank3.pickle").stdout)["advised"]["config"]
        self.assertFalse(self.completes(self.folder / "rank0.pickle", single_rank_string, 450 * MIB))
        report = self.advice_for_folder(self.folder, "--device-memory=450MiB")
        self.assertEqual([rank["current"]["completes"] for rank in report["ranks"]], [False, True, True, True])
        self.assertNotEqual(report["advised"]["config"], single_rank_string)
        self.assertTrue(all(rank["advised"]["completes"] for rank in report["ranks"]))

    def test_unreplayable_files_are_omitted(self):
        folder = self.job(growth_per_step=46 * MIB)
        self.file(b"no pickle", "oom-rank8-pid8-1.pickle")
        self.file(out_of_memory_snapshot(MIB, history=False), "oom-rank0-pid0-1.pickle")
        report = self.advice_for_folder(folder, status=2)
        self.assertEqual(report["advised"]["config"], "expandable_segments:True")
        self.assertEqual(len(report["ranks"]), 4)
        self.assertNotIn("rank 0", [rank["rank"] for rank in report["ranks"]])
        self.assertIn("oom-rank8-pid8-1.pickle: ", self.tool("advise", folder, status=2).stderr)

    def test_folder_without_a_replayable_file_is_rejected(self):
        for rank in range(2):
            self.file(out_of_memory_snapshot(MIB, history=False), f"rank{rank}.pickle")
        completed = self.tool("advise", self.folder, status=2)
        self.assertEqual(completed.stdout, "")
        self.assertEqual(completed.stderr.count("no history was recorded"), 2)

    def test_different_configurations_of_ranks_are_rejected(self):
        completed = self.tool("advise", self.job(growth_per_step=46 * MIB, settings="max_split_size_mb:64"), status=2)
        self.assertEqual(completed.stdout, "")
        self.assertRegex(completed.stderr, r"has the configuration '[^']*', but \S*rank5-pid5-1.pickle has "
                                           r"'[^']*max_split_size_mb:64[^']*'")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
