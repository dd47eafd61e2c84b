# SPDX-License-Identifier: MIT
"""`xseg advise` of a folder as a user runs it: advise_ranks.py TOOL SOURCE_ROOT."""
import json
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv[2]) / "tests/support"))
from advise_case import BASE, AdviseTest, ends_short, entry  # pylint: disable=wrong-import-position
from folder_case import MIB  # pylint: disable=wrong-import-position


def on_streams():
    """A snapshot of a block on each of many streams, for which a page of 20 MiB each is too much."""
    starts = [BASE + stream * 64 * MIB for stream in range(36)]
    return {"segments": [{"device": 0, "address": start, "total_size": 12 * MIB, "stream": stream, "segment_type": "large",
                          "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
                          "blocks": [{"address": start, "size": 12 * MIB, "requested_size": 12 * MIB,
                                      "state": "active_allocated", "frames": []}]} for stream, start in enumerate(starts)],
            "device_traces": [[{**entry(action, start, 12 * MIB), "stream": stream}
                               for stream, start in enumerate(starts) for action in ("segment_alloc", "alloc")]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}}


def rank_of_job(grows=0, kept=0, settings=""):
    """A snapshot of a rank: blocks that stay, and blocks of 400 MiB, each step so much larger, for which segments are then too small."""
    events, segments, starts, at = [], {}, [], BASE + kept
    for start in range(BASE, at, 40 * MIB):
        events += [entry(action, start, 40 * MIB) for action in ("segment_alloc", "alloc")]
        segments[start] = (40 * MIB, "active_allocated")
    for step in range(9):
        size = 400 * MIB + step * grows
        if step == 0 or grows:
            starts, at = [at + place * size for place in range(3)], at + 3 * size
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
    def job(self, count=8, **odd):
        for rank in range(count):
            self.file(rank_of_job(**odd) if rank == min(5, count - 1) else rank_of_job(), f"oom-rank{rank}-pid{rank}-1.pickle")
        return self.folder

    def advised(self, folder, *options, status=0):
        """The JSON: each figure of each rank is what a replay of its file says, and the largest are those of the ranks."""
        found = json.loads(self.tool("advise", "--json", *options, folder, status=status).stdout)
        self.assertLessEqual(len(found["ranks"]), 4)
        self.assertEqual(len({rank["rank"] for rank in found["ranks"]}), len(found["ranks"]))
        for name in filter(found.get, ("current", "advised", "runner_up")):
            for rank in found["ranks"]:
                string = rank[name]
                self.assertEqual(string["config"], found[name]["config"])
                self.holds(rank["trace"], string)
                if found["out_of_memory"]:
                    self.assertEqual(string["completes"], self.completes(rank["trace"], string["config"], rank["target_bytes"]))
            for figure in ("peak_reserved", "min_device"):
                self.assertEqual(found[name][figure], max(rank[name][figure] for rank in found["ranks"]))
        return found

    def test_advice_uses_the_outlier(self):
        found = self.advised(self.job(grows=46 * MIB))
        self.assertEqual(found["outlier"], "rank 5")
        self.assertEqual([rank["rank"] for rank in found["ranks"]], ["rank 5", "rank 0", "rank 4", "rank 2"])
        self.assertEqual([(rank["outlier"], rank["typical"]) for rank in found["ranks"]], [(True, False), (False, True)] + 2 * [(False, False)])
        self.assertEqual(found["advised"]["config"], "expandable_segments:True")
        self.assertLess(found["advised"]["peak_reserved"], found["current"]["peak_reserved"] // 2)
        self.assertRegex(found["why"], r"^the largest peak of these ranks falls from .* to .*, since segments that grow")
        self.assertNotEqual(found["runner_up"]["config"], found["advised"]["config"])

    def test_text(self):
        folder = self.job(grows=46 * MIB)
        found = self.advised(folder)
        lines = self.tool("advise", folder).stdout.splitlines()
        self.assertTrue(lines[0].startswith("rank 5 is the outlier of 8: "), lines[0])
        self.assertEqual(lines[1], f"{folder}, 8 files")
        self.assertEqual(lines[2].split(), ["set", "expandable_segments:True"])
        rows = lines[-2 - len(found["ranks"]):-2]
        for rank, row in zip(found["ranks"], rows):
            cells = re.split("  +", row.strip())
            self.assertEqual(cells[-1], rank["rank"] + {"rank 5": ", outlier", "rank 0": ", most typical"}.get(rank["rank"], ""))
            for at, name in enumerate(("current", "advised", "runner_up")):
                replay = self.tool("replay", "--min-device", "--config", rank[name]["config"], rank["trace"]).stdout
                told = [re.search(rf"^  {figure} +(.*)$", replay, re.MULTILINE)[1] for figure in ("peak reserved", "smallest device")]
                self.assertEqual(cells[2 * at:2 * at + 2], told, (rank["rank"], name))
        self.assertEqual(lines[-1], f"{found['replayed']} configurations replayed")

    def test_nothing_helps(self):
        found = self.advised(self.job(count=2, kept=80 * MIB))
        self.assertEqual([found["outlier"], found["advised"], found["runner_up"], found["least_change"]], 4 * [None])
        self.assertEqual([rank["rank"] for rank in found["ranks"]], ["rank 1", "rank 0"])
        self.assertIn("configurations lowers the largest peak of 1.25 GiB by more than", found["why"])
        self.assertIn("\nno configuration helps\n", self.tool("advise", self.folder).stdout)

    def test_one_rank(self):
        found = self.advised(self.job(count=1, grows=46 * MIB))
        self.assertEqual((found["outlier"], found["advised"]["config"]), (None, "expandable_segments:True"))

    def test_one_that_ran_out_of_memory(self):
        folder = self.job()
        self.file(ends_short(100 * MIB), "oom-rank5-pid5-1.pickle")
        found = self.advised(folder)
        self.assertTrue(found["out_of_memory"])
        self.assertEqual([rank["current"]["completes"] for rank in found["ranks"]], [False, True, True, True])
        self.assertTrue(all(rank["advised"]["completes"] for rank in found["ranks"]))
        self.assertEqual(found["least_change"], found["advised"]["config"])
        self.assertTrue(found["why"].startswith("4 of these 4 ranks complete instead of 3"), found["why"])
        self.assertIn("out of memory  rank 5 with the current string; none with the advised string\nleast change   the advised string; or, ",
                      self.tool("advise", folder).stdout)

    def test_ranks_that_complete_go_on_to(self):
        """The runner-up of a larger device takes more than this one has, in ranks that complete with the string in force."""
        folder = self.job(grows=46 * MIB)
        best = self.advised(folder)["runner_up"]["config"]
        found = self.advised(folder, "--device-memory=1400MiB")
        self.assertEqual([rank["current"]["completes"] for rank in found["ranks"]], [False, True, True, True])
        self.assertFalse(self.completes(found["ranks"][1]["trace"], best, 1400 * MIB))
        for name in filter(found.get, ("advised", "runner_up")):
            self.assertTrue(all(rank[name]["completes"] for rank in found["ranks"][1:]), found[name])

    def test_advice_for_one_rank_alone_is_omitted(self):
        for rank in range(4):
            self.file(ends_short(100 * MIB) if rank == 3 else on_streams(), f"rank{rank}.pickle")
        alone = json.loads(self.tool("advise", "--json", self.folder / "rank3.pickle").stdout)["advised"]["config"]
        self.assertFalse(self.completes(self.folder / "rank0.pickle", alone, 450 * MIB))
        found = self.advised(self.folder, "--device-memory=450MiB")
        self.assertEqual([rank["current"]["completes"] for rank in found["ranks"]], [False, True, True, True])
        self.assertNotEqual(found["advised"]["config"], alone)
        self.assertTrue(all(rank["advised"]["completes"] for rank in found["ranks"]))

    def test_bad_files_among_good_ones(self):
        folder = self.job(grows=46 * MIB)
        self.file(b"no pickle", "oom-rank8-pid8-1.pickle")
        self.file(ends_short(MIB, history=False), "oom-rank0-pid0-1.pickle")
        found = self.advised(folder, status=2)
        self.assertEqual(found["advised"]["config"], "expandable_segments:True")
        self.assertEqual(len(found["ranks"]), 4)
        self.assertNotIn("rank 0", [rank["rank"] for rank in found["ranks"]])
        self.assertIn("oom-rank8-pid8-1.pickle: ", self.tool("advise", folder, status=2).stderr)

    def test_no_file_can_be_replayed(self):
        for rank in range(2):
            self.file(ends_short(MIB, history=False), f"rank{rank}.pickle")
        done = self.tool("advise", self.folder, status=2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("no history was recorded"), 2)

    def test_ranks_of_two_configurations(self):
        folder = self.job(grows=46 * MIB, settings="max_split_size_mb:64")
        done = self.tool("advise", folder, status=2)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"has the configuration '[^']*', but \S*rank5-pid5-1.pickle has '[^']*max_split_size_mb:64[^']*'")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
