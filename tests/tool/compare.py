# SPDX-License-Identifier: MIT
"""Tests of `xseg compare`, and of `xseg blame` with folders: compare.py TOOL SOURCE_ROOT."""
import gzip
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from blame import BASE, BlameTest, Program, frames, json_keys
from folder_case import MIB, ROOT, SNAPSHOTS, TOOL

SIZE = 64 * MIB
PAGE = ROOT / "docs/blame.md"


def job(variant="", base=BASE, interval=1000, line_offset=0, steps=10):
    """Returns a training job.  `variant` adds a difference, and `line_offset` is added to the line numbers of its sites."""
    program = Program(start=1_000_000 + 17 * interval)
    stacks = {"weights": frames("__init__", 31 + line_offset), "activations": frames("forward", 112 + line_offset),
              "cache": frames("cache", 212 + line_offset), "scratch": frames("scratch", 300 + line_offset)}
    if variant == "another site":
        stacks["activations"] = frames("attention", 400)
    program.map(base, SIZE)
    if variant == "reserved":
        program.map(base + SIZE, SIZE)
        program.alloc(base + SIZE, SIZE, stacks["cache"])
    if variant == "idle":
        program.map(base + 4 * SIZE, SIZE // 2)
    program.alloc(base, 8 * MIB, stacks["weights"], "setup")
    activations = (20 if variant == "more allocated" else 16) * MIB
    for step in range(steps):
        program.time += interval
        program.alloc(base + 8 * MIB, activations, stacks["activations"], "step")
        program.time += interval
        if variant != "longer lifetime":
            program.free(base + 8 * MIB, pending=variant == "pending")
        for index in range(4):
            address = base + 30 * MIB + 2 * index * MIB
            program.time += interval // 10
            if address not in program.blocks:
                program.alloc(address, 512, stacks["scratch"], "step")
            if variant == "additional block" and step == index == 0:
                program.alloc(address + 512, 512, frames("tiny", 9))
                program.free(address + 512)
            program.time += interval // 10
            if variant != "fragmented":
                program.free(address)
        if variant in ("longer lifetime", "pending"):
            program.free(base + 8 * MIB)
    program.event("snapshot", 0, 0)
    return program


def single_site_job(line, blocks=1):
    program = Program()
    program.map(BASE, SIZE)
    for block in range(blocks):
        program.alloc(BASE + 8 * MIB // blocks * block, 8 * MIB // blocks, frames("model", line))
    return program.snapshot() | {"device_traces": [[]]}


class CompareTest(BlameTest):
    command = "compare"

    def read_output(self, *arguments, **options):
        output, error = self.run_tool(*arguments, **options)
        self.assertEqual(error, "")
        return output

    def read_json(self, *arguments, **options):
        return json.loads(self.read_output("--json", *arguments, **options))

    def compare_json(self, a, b, *arguments, status):
        """Returns the JSON of two files after a check that the rows of each side add up to its totals."""
        files = (self.file(a, "a.pickle"), self.file(b, "b.pickle"))
        report = self.read_json(*arguments, *files, status=status)
        self.assertEqual(report["differs"], status == 1)
        self.assertTrue(self.read_output(*arguments, *files, status=status).startswith(report["verdict"] + "\n"))
        for side in "ab":
            rows = [row[side] for row in report["rows"]]
            self.assertEqual(report[side]["peak"]["reserved"], sum(row["peak_allocated"] + row["peak_cached"] for row in rows))
            self.assertEqual(report[side]["peak"]["allocated"], sum(row["peak_allocated"] for row in rows))
            self.assertEqual(report[side]["average"]["reserved"], sum(row["allocated"] + row["cached"] for row in rows))
        return report


class TwoFiles(CompareTest):
    def test_same_program_at_other_addresses_has_no_difference(self):
        for base, interval in ((BASE + (1 << 40), 1000), (4 * MIB, 7777), (BASE, 3)):
            report = self.compare_json(job(), job(base=base, interval=interval), status=0)
            self.assertEqual(report["verdict"], "A and B do not differ")
            self.assertFalse(any(row["differs"] for row in report["rows"]))
            self.assertEqual(len(report["rows"]), 5)  # three sites, pending, idle
            self.assertEqual(json_keys.paths(report), json_keys.documented(PAGE, "Two files", "Rows"))

    def test_text_report_lists_totals_and_differing_sites(self):
        text = self.read_output(self.file(job(), "a.pickle"), self.file(job("reserved"), "b.pickle"), status=1)
        self.assertEqual(text.replace(str(self.folder) + "/", ""), """\
B reserves 64.00 MiB more at the peak, all of it at model.py:212 cache, where A allocates nothing
A: a.pickle, device 0, 153 entries
B: b.pickle, device 0, 155 entries

           A             B     difference
   64.00 MiB    128.00 MiB     +64.00 MiB  peak reserved
   24.00 MiB     88.00 MiB     +64.00 MiB  allocated at the peak
  795.15 KiB    780.00 KiB     -15.15 KiB  fragmented, average over events
    9.48 MiB     72.08 MiB     +62.60 MiB  allocated, average over events
   64.00 MiB    127.39 MiB     +63.39 MiB  reserved, average over events
     0 bytes       0 bytes              =  pending, average over events
   53.75 MiB     54.55 MiB    +824.12 KiB  idle, average over events

peak reserved     fragmented      allocated  lifetime, events          blocks  site
   +64.00 MiB              =     +62.78 MiB          - -> 103          - -> 1  model.py:212 cache  (only in B)
            =              =    -154.52 KiB                 =               =  model.py:31 __init__
            =    +824.12 KiB              =                                    idle: whole pages without a block
rows that do not differ: 3
""")

    def test_verdict_describes_each_kind_of_difference(self):
        for variant, more_in_b, less_in_b in (
                ("reserved", "B reserves 64.00 MiB more at the peak, all of it at model.py:212 cache, where A allocates nothing",
                 "B reserves 64.00 MiB less at the peak, all of it at model.py:212 cache, where B allocates nothing"),
                ("more allocated", "B has 4.00 MiB more allocated at the peak, all of it at model.py:112 forward",
                 "B has 4.00 MiB less allocated at the peak, all of it at model.py:112 forward"),
                ("fragmented", "all of it at model.py:300 scratch", "all of it at model.py:300 scratch"),
                ("longer lifetime", "all of it at model.py:112 forward, where a block lives for 9 events, not 1",
                 "all of it at model.py:112 forward, where a block lives for 1 event, not 9"),
                ("idle", "B reserves 32.00 MiB more at the peak, all of it in idle pages",
                 "B reserves 32.00 MiB less at the peak, all of it in idle pages")):
            with self.subTest(variant=variant):
                for (a, b), verdict in ((("", variant), more_in_b), ((variant, ""), less_in_b)):
                    self.assertIn(verdict, self.compare_json(job(a), job(b), status=1)["verdict"])
        self.assertRegex(self.compare_json(job(), job("fragmented"), status=1)["verdict"],
                         r"^B has \d.\d\d MiB more fragmented on average")
        self.assertRegex(self.compare_json(job(), job("longer lifetime"), status=1)["verdict"],
                         r"^B has \d+.\d\d MiB more allocated on average")

    def test_later_unmapping_of_idle_pages_is_a_difference(self):
        def job_with_unmapping(is_late):
            program = job()
            program.map(BASE + 4 * SIZE, SIZE)
            for is_second_half in (False, True):
                if is_second_half == is_late:
                    program.unmap(BASE + 4 * SIZE)
                for _ in range(50):
                    program.event("snapshot", 0, 0)
            return program
        verdict = self.compare_json(job_with_unmapping(False), job_with_unmapping(True), status=1)["verdict"]
        self.assertRegex(verdict, r"^B reserves \d+.\d\d MiB more on average, all of it in idle pages$")

    def test_memory_at_another_site_is_a_difference(self):
        verdict = self.compare_json(job(), job("another site"), status=1)["verdict"]
        self.assertEqual(verdict, "B reserves as much as A at the peak, but 16.00 MiB more at model.py:400 attention, where A "
                                  "allocates nothing, and 16.00 MiB less at model.py:112 forward")

    def test_pending_blocks_have_a_row_of_their_own(self):
        report = self.compare_json(job(), job("pending"), status=1)
        rows = {row["site_b"]: row for row in report["rows"]}
        self.assertGreater(rows["(pending)"]["b"]["cached"], 0)
        self.assertEqual(rows["(pending)"]["a"]["cached"], 0)

    def test_change_below_one_percent_is_no_difference(self):
        report = self.compare_json(job(), job("additional block"), status=0)
        self.assertEqual(report["verdict"], "A and B differ by less than 1 % of the reserved bytes")
        self.assertIn("model.py:9 tiny", [row["site_b"] for row in report["rows"] if row["differs"]])

    def test_sites_match_despite_changed_line_numbers(self):
        report = self.compare_json(job(), job(line_offset=7), status=0)
        self.assertEqual(report["verdict"], "A and B do not differ")
        self.assertIn(("model.py:112 forward", "model.py:119 forward"),
                      [(row["site_a"], row["site_b"]) for row in report["rows"]])
        # A second site in the function makes the match ambiguous.
        ambiguous = job(line_offset=7)
        ambiguous.alloc(BASE + 40 * MIB, MIB, frames("forward", 120))
        rows = self.compare_json(job(), ambiguous, status=1)["rows"]
        self.assertIn(("model.py:112 forward", None), [(row["site_a"], row["site_b"]) for row in rows])

    def test_options_label_and_depth_select_the_sites(self):
        rows = self.compare_json(job(), job(), "--label", status=0)["rows"]
        self.assertEqual({row["site_a"] for row in rows}, {"setup", "step", "(pending)", "(idle)"})
        rows = self.compare_json(job(), job(), "--depth", "2", status=0)["rows"]
        self.assertIn("model.py:112 forward < main.py:1 main", [row["site_a"] for row in rows])
        self.expect_error("cannot be combined with", "--label", "--depth", "2", "x", "y")

    def test_option_limits_the_rows_of_the_text_report(self):
        text = self.read_output("--rows", "1", self.file(job(), "a.pickle"), self.file(job("reserved"), "b.pickle"), status=1)
        self.assertIn("\nmore rows that differ: 2\n", text)
        self.assertNotIn("scratch", text)

    def test_option_selects_the_device(self):
        two_devices = job().snapshot()
        two_devices["device_traces"].append(job("reserved").snapshot()["device_traces"][0][:20])
        two_devices_path, path = self.file(two_devices, "both.pickle"), self.file(job(), "one.pickle")
        self.assertEqual(self.read_json(two_devices_path, path, status=0)["a"]["device"], 0)
        self.expect_error("both.pickle: no entries or segments of device 7; devices of the file: 0, 1", "--device", "7",
                          two_devices_path, path)
        self.expect_error("one.pickle: no entries or segments of device 1; devices of the file: 0", "--device", "1",
                          two_devices_path, path)

    def test_one_file_may_be_standard_input(self):
        path = self.file(job())
        for files in (("-", path), (path, "-")):
            self.assertIn("standard input, device 0", self.read_output(*files, stdin_data=path.read_bytes(), status=0))
        self.expect_error("standard input cannot be both files", "-", "-")

    def test_control_characters_are_escaped(self):
        program = job()
        program.map(BASE + SIZE, SIZE)
        program.alloc(BASE + SIZE, SIZE, frames("f\x1b[31m\n"))
        files = (self.file(job()), self.file(program, "b\x1b\n.pickle"))
        for options in ((), ("--json",)):
            text = self.read_output(*options, *files, status=1)
            self.assertTrue(all(byte == "\n" or " " <= byte <= "~" for byte in text), text)

    def test_pytorch_snapshots_are_compared(self):
        peaks = json.loads((SNAPSHOTS / "peaks.json").read_text(encoding="utf-8"))
        classic, expandable = (SNAPSHOTS / f"{name}.pickle.zst" for name in ("classic", "expandable"))
        for path in (classic, expandable, SNAPSHOTS / "ring.pickle.zst"):
            self.assertTrue(self.read_output(path, path, status=0).startswith("A and B do not differ\n"))
        report = self.read_json(classic, expandable, status=1)
        self.assertEqual([report[side]["peak"]["reserved"] for side in "ab"],
                         [peaks[name]["reserved"] for name in ("classic", "expandable")])
        self.assertEqual([report[side]["omitted"] for side in "ab"], [0, 0])

    def test_verdict_names_the_leak_of_a_pytorch_snapshot(self):
        text = self.read_output(SNAPSHOTS / "early.pickle.zst", SNAPSHOTS / "late.pickle.zst", status=1)
        self.assertRegex(text, r"\AB reserves 120.00 MiB more at the peak, all of it at leak.py:16 <module>\n")

    def test_added_segment_is_found_despite_other_addresses(self):
        for path in sorted(SNAPSHOTS.glob("*.pickle.zst")):
            with self.subTest(path=path.name):
                data = subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE, check=True).stdout
                moved = pickle.loads(data)
                self.move(moved, 1 << 40)
                report = self.compare_json(pickle.loads(data), moved, status=0)
                self.assertEqual(report["verdict"], "A and B do not differ")
                self.assertGreater(report["a"]["average"]["fragmented"], 0)
                stack = frames("keep", 7, "leak.py")
                moved["segments"].append({**moved["segments"][0], "address": BASE - SIZE, "total_size": SIZE,
                                          "is_expandable": False,
                                          "blocks": [{"address": BASE - SIZE, "size": SIZE, "requested_size": SIZE,
                                                      "state": "active_allocated", "frames": stack}]})
                moved["device_traces"][0][:0] = [
                    {"action": action, "addr": BASE - SIZE, "size": SIZE, "stream": 0, "frames": stack,
                     "time_us": moved["device_traces"][0][0]["time_us"]} for action in ("segment_alloc", "alloc")]
                self.assertEqual(self.compare_json(pickle.loads(data), moved, status=1)["verdict"],
                                 "B reserves 64.00 MiB more at the peak, all of it at leak.py:7 keep, where A allocates nothing")

    @staticmethod
    def move(snapshot, offset):
        for segment in snapshot["segments"]:
            segment["address"] += offset
            for block in segment["blocks"]:
                block["address"] += offset
        for index, entry in enumerate(entry for trace in snapshot["device_traces"] for entry in trace):
            entry["time_us"] += offset + index * index
            if "addr" in entry and entry["action"] != "snapshot":
                entry["addr"] += offset


class BadFiles(CompareTest):
    def test_bad_file_is_reported_in_one_line(self):
        good_path, data = self.file(job(), "good.pickle"), pickle.dumps(job().snapshot(), 4)
        newer = job().snapshot()
        newer["xseg"] = {"format": 2, "devices": []}
        for contents, message in ((b"no pickle", "unsupported file, a text file that begins with 'no pickle'"), (data[:-100], "is truncated"),
                                  (b"", "the file is empty"), (b"\x80\x09" + data[2:], "unsupported protocol, 9"),
                                  (newer, "unknown format of xseg's data, 2, instead of 1; use a newer `xseg`"),
                                  ({"a": 1}, "a dictionary without `segments`"),
                                  ({"segments": [], "device_traces": []}, "no entries or segments")):
            bad_path = self.file(contents, "bad.pickle")
            self.expect_error(message, good_path, bad_path)
            self.expect_error(message, bad_path, good_path)
            self.expect_error(message, bad_path, command="blame")
        self.expect_error("cannot be opened: No such file", good_path, self.folder / "absent")
        self.expect_error("absent: cannot be opened: No such file", self.folder / "absent")
        self.expect_error("good.pickle is not a folder; the command takes two files", good_path)
        self.expect_error("but not a file and a folder", good_path, self.folder)

    def test_final_states_are_compared_without_history(self):
        end = job()
        end.alloc(BASE + 32 * MIB, 4 * MIB, frames("leak", 5))
        without_history = end.snapshot() | {"device_traces": [[]]}
        text = self.read_output(self.file(job(), "a.pickle"), self.file(without_history, "b.pickle"), status=1)
        self.assertTrue(text.startswith("B has 4.00 MiB more allocated at the peak, all of it at model.py:5 leak"), text)
        self.assertIn("_record_memory_history()", text)
        self.assertIn("history:all", text)
        self.assertFalse(self.read_json(self.folder / "b.pickle", self.folder / "b.pickle", status=0)["over_events"])


class Ranks(CompareTest):
    def ranks(self, outlier=None, count=8, variant="reserved", folder="job", name="oom-rank{}-pid{}-1.pickle"):
        for rank in range(count):
            program = job(variant if rank == outlier else "", base=BASE + (rank << 32), interval=1000 + rank)
            self.file(program, f"{folder}/{name.format(rank, 4711 + rank)}")
        return self.folder / folder

    def test_outlier_is_named_with_its_site(self):
        for variant, reason in (("reserved", "it reserves 64.00 MiB more at the peak, all of it at model.py:212 cache"),
                                ("more allocated",
                                 "it has 4.00 MiB more allocated at the peak, all of it at model.py:112 forward"),
                                ("fragmented", "MiB more fragmented on average, all of it at model.py:300 scratch"),
                                ("longer lifetime",
                                 "all of it at model.py:112 forward, where a block lives for 9 events, not 1"),
                                ("another site", "it reserves as much as rank 0 at the peak, but 16.00 MiB more at model.py:400 "
                                                 "attention")):
            for outlier, count in ((5, 8), (0, 3)):
                with self.subTest(variant=variant, outlier=outlier), tempfile.TemporaryDirectory(dir=self.folder) as name:
                    folder = self.ranks(outlier, count, variant, pathlib.Path(name).name)
                    report = self.read_json(folder, status=1)
                    self.assertEqual((report["outlier"], report["ranks"][0]["rank"]), (f"rank {outlier}", outlier))
                    self.assertTrue(report["verdict"].startswith(f"rank {outlier} is the outlier of {count}: "),
                                    report["verdict"])
                    self.assertIn(reason.replace("rank 0", report["typical"]), report["verdict"])
                    self.assertEqual(self.read_json(folder, command="blame", status=0)["outlier"], f"rank {outlier}")

    def test_equal_ranks_have_no_outlier(self):
        folder = self.ranks()
        self.assertTrue(self.read_output(folder, status=0).startswith(
            f"no rank of 8 is an outlier: they do not differ\n{folder}, 8 files; rank 0 is the most typical\n"))
        self.assertIsNone(self.read_json(folder, status=0)["outlier"])

    def test_documentation_lists_all_json_keys(self):
        outputs = [self.read_json(*folders, status=1)
                   for folders in ([self.ranks(1, 3)], [self.ranks(1, 2), self.ranks(count=2, folder="after")])]
        keys = json_keys.documented(PAGE, "Folders", "Rows")
        self.assertEqual(json_keys.paths(outputs), keys)
        blame_report = self.read_json(self.ranks(1, 3), command="blame", status=0)
        sites = json_keys.documented(PAGE, "JSON of blame")
        self.assertEqual(json_keys.paths(blame_report),
                         json_keys.paths(outputs[0]) | {key for key in sites if key.startswith("sites")})

    def test_distance_distinguishes_hundreds_of_sites(self):
        """With 290 sites a short hash of the names would have collisions with the site of the other ranks."""
        for rank in range(600):
            self.file(single_site_job(1 + rank if rank < 290 else 5000), f"job/rank{rank}.pickle")
        ranks = self.read_json(self.folder / "job", status=1)["ranks"]
        # 8 MiB are at another site, at the peak and on average, and differ on both sides: 4 * 8 MiB.
        self.assertEqual({rank["rank"]: rank["distance"] for rank in ranks},
                         {rank: 4 * 8 * MIB if rank < 290 else 0 for rank in range(600)})

    def test_ranks_with_equal_bytes_in_different_blocks_have_no_outlier(self):
        for rank in range(3):
            self.file(single_site_job(7, blocks=1 + (rank == 2)), f"job/rank{rank}.pickle")
        report = self.read_json(self.folder / "job", status=0)
        self.assertEqual(report["ranks"][0]["distance"], 0)
        self.assertEqual(report["verdict"], "no rank of 3 is an outlier: they differ by less than 1 % of the reserved bytes")

    def test_several_different_ranks_have_no_outlier(self):
        folder = self.ranks()
        for rank in (2, 6):
            self.file(job("reserved"), f"job/oom-rank{rank}-pid{4711 + rank}-1.pickle")
        report = self.read_json(folder, status=1)
        self.assertIsNone(report["outlier"])
        self.assertTrue(report["verdict"].startswith("2 ranks of 8 are outliers, rank 6 most of all: it reserves 64.00 MiB more"))

    def test_two_ranks_are_compared_and_one_is_reported(self):
        text = self.read_output(self.ranks(1, 2), status=1)
        self.assertTrue(text.startswith("rank 1 reserves 64.00 MiB more at the peak"))
        self.assertEqual(text.splitlines()[1], f"{self.folder}/job, 2 files")
        # Neither of two ranks is more typical.
        self.assertIsNone(self.read_json(self.folder / "job", status=1)["typical"])
        os.remove(self.folder / "job/oom-rank1-pid4712-1.pickle")
        for command in ("compare", "blame"):
            text = self.read_output(self.folder / "job", command=command, status=0)
            self.assertTrue(text.startswith("there is only rank 0, so no rank is an outlier"))
            self.assertEqual(text.splitlines()[1], f"{self.folder}/job, 1 file")
            self.assertIsNone(self.read_json(self.folder / "job", command=command, status=0)["typical"])

    def test_blame_sums_all_ranks(self):
        text = self.read_output(self.ranks(3, 4), command="blame", status=0)
        self.assertRegex(text, r"\n +\d.\d\d % +\S+ MiB +\S+ bytes +0 bytes  model.py:300 scratch\n")
        report = self.read_json(self.folder / "job", command="blame", status=0)
        sites = {site["site"]: site for site in report["sites"]}
        self.assertEqual((sites["model.py:31 __init__"]["peak"], sites["model.py:31 __init__"]["blocks"]), (4 * 8 * MIB, 4))
        self.assertEqual(sites["model.py:212 cache"]["peak"], SIZE)
        self.expect_error("requires a file", "--flame", self.folder / "job", command="blame")

    def test_rank_is_read_from_the_file_name(self):
        """The number after `rank` is the rank; the latest file of a rank is read; a file without a rank has its name."""
        names = ["oom-rank1-pid5-1.pickle", "oom-rank1-pid5-2.pickle", "snapshot_rank_2.pkl", "rank10.pickle", "rank=3.pickle",
                 "host.pickle"]
        for second, name in enumerate(names):
            path = self.file(job("reserved" if name.endswith("-2.pickle") else ""), f"job/{name}")
            os.utime(path, (1000 + second, 1000 + second))
        self.file(b"something else", "job/log.txt")
        self.file(b"hidden", "job/.rank7.pickle")
        (self.folder / "job/rank8.pickle").mkdir()
        report = self.read_json(self.folder / "job", status=1)
        self.assertEqual(sorted(rank["name"] for rank in report["ranks"]),
                         ["host.pickle", "rank 1", "rank 10", "rank 2", "rank 3"])
        self.assertEqual(report["outlier"], "rank 1")
        self.assertIn("\nomitted: 1 file, of whose rank there is a newer file\n", self.read_output(self.folder / "job", status=1))

    def test_equal_ranks_of_two_hosts_are_separate(self):
        for host in ("node0", "node1"):
            self.ranks(0 if host == "node1" else None, 2, name=host + "-rank{}.pickle")
        report = self.read_json(self.folder / "job", status=1)
        self.assertEqual(report["outlier"], "node1-rank0.pickle")
        self.assertEqual(len(report["ranks"]), 4)

    def read_kinds(self, *messages, command="compare", status=0):
        """Returns the JSON and standard error, which must contain each message about the kinds of files."""
        output, error = self.run_tool("--json", self.folder / "job", command=command, status=status)
        for message in messages:
            self.assertIn(message, error)
        return json.loads(output), error

    def test_latest_kind_of_several_dumps_per_rank_is_read(self):
        """Eight files of four ranks are four ranks; the kind that was written last is read, and all kinds are reported."""
        for kinds in (("snapshot_stop_step_rank{}.pickle", "snapshot_train_end_rank{}.pickle"),
                      ("rank{}_before.pickle", "rank{}_after.pickle"), ("Rank{}-a-{}.pickle", "Rank{}-b-{}.pickle")):
            with self.subTest(kinds):
                shutil.rmtree(self.folder / "job", ignore_errors=True)
                self.ranks(count=4, name=kinds[0])
                self.ranks(3, count=4, name=kinds[1])
                for time, kind in enumerate(kinds):
                    for path in (self.folder / "job").glob(kind.replace("{}", "*")):
                        os.utime(path, (time, time))
                stems = [re.sub(r"[.]pickle$", "", kind.replace("{}", "#")) for kind in kinds]
                for command in ("compare", "blame"):
                    report, error = self.read_kinds(f"'{stems[0]}' (4 files)", f"'{stems[1]}' (4 files)",
                                                    f"only '{stems[1]}' is read", command=command, status=command == "compare")
                    self.assertEqual((report["outlier"], len(report["ranks"])), ("rank 3", 4))
                    self.assertEqual(len(error.splitlines()), 1)
                self.assertIn("\nomitted: 4 files, of another kind\n", self.run_tool(self.folder / "job", status=1)[0])

    def test_kind_with_the_most_ranks_is_read(self):
        self.ranks(count=1, name="oom-rank{}.pickle")
        self.ranks(1, count=4, name="snapshot_rank{}.pickle")
        (self.folder / "job/whole.pickle").write_bytes((self.folder / "job/oom-rank0.pickle").read_bytes())
        report, _ = self.read_kinds("'oom-rank#' (1 file)", "only 'snapshot_rank#' is read", status=1)
        self.assertEqual((report["outlier"], len(report["ranks"])), ("rank 1", 4))

    def test_kinds_are_recognized_without_the_word_rank(self):
        """If no name contains `rank`, the last number of each name identifies the process."""
        for time, kind in enumerate(("stop_{}.pickle", "end_{}.pickle")):
            for path in self.ranks(3 if time else None, count=4, name=kind).glob(kind.replace("{}", "*")):
                os.utime(path, (time, time))
        report, _ = self.read_kinds("'stop_#' (4 files)", "only 'end_#' is read", status=1)
        self.assertEqual((report["outlier"], len(report["ranks"])), ("end_3.pickle", 4))

    def test_files_of_several_hosts_without_a_rank_are_all_read(self):
        for host in ("alpha", "beta", "gamma"):
            self.ranks(count=1, name=host + "_Nov_28_10_05_{}7.pickle")
        self.ranks(1, count=2, name="alpha_Nov_28_11_00_{}1.pickle")
        self.assertEqual(len(self.read_json(self.folder / "job", status=1)["ranks"]), 5)

    def test_latest_of_several_steps_of_one_kind_is_read(self):
        for step, outlier in ((100, None), (2000, 2)):
            self.ranks(outlier, 4, name=f"step{step}_rank{{}}.pickle")
            for path in (self.folder / "job").glob(f"step{step}_*"):
                os.utime(path, (step, step))
        report = self.read_json(self.folder / "job", status=1)
        self.assertEqual((report["outlier"], len(report["ranks"])), ("rank 2", 4))
        self.assertIn("\nomitted: 4 files, of whose rank there is a newer file\n",
                      self.read_output(self.folder / "job", status=1))

    def test_two_folders_are_compared_by_their_common_kind(self):
        for folder in ("before", "after"):
            self.ranks(count=2, folder=folder, name="end_rank{}.pickle")
        self.ranks(count=3, folder="after", name="stop_rank{}.pickle")
        output, error = self.run_tool("--json", self.folder / "before", self.folder / "after")
        self.assertIn("only 'end_rank#' is read", error)
        self.assertEqual([rank["b"]["file"].rsplit("/", 1)[1] for rank in json.loads(output)["ranks"]],
                         ["end_rank1.pickle", "end_rank0.pickle"])

    def test_global_rank_takes_precedence_over_the_local_rank(self):
        for name in ("rank{}_local_rank0.pickle", "local-rank0-RANK{}.pickle"):
            shutil.rmtree(self.folder / "job", ignore_errors=True)
            self.ranks(1, count=4, name=name)
            report = self.read_json(self.folder / "job", status=1)
            self.assertEqual((report["outlier"], len(report["ranks"])), ("rank 1", 4))

    def test_files_of_unsupported_compression_are_reported(self):
        folder = self.ranks(count=3, name="rank{}.pickle")
        for path in sorted(folder.iterdir())[1:]:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        self.assertIn(f"{folder}: 2 compressed files are not read, such as rank1.pickle.gz; decompress them, or compress them "
                      "with zstd\n", self.run_tool(folder)[1])
        (folder / "rank0.pickle").unlink()
        for command in ("compare", "blame", "advise"):
            self.expect_error("no snapshot in this folder: 2 compressed files are not read, such as rank1.pickle.gz; decompress "
                              "them", folder, command=command)

    def test_zstd_files_are_read(self):
        for rank, name in enumerate(("classic", "expandable", "ring")):
            (self.folder / f"job-rank{rank}.pickle.zst").write_bytes((SNAPSHOTS / f"{name}.pickle.zst").read_bytes())
        report = self.read_json(self.folder, status=0)
        self.assertEqual(len(report["ranks"]), 3)
        # The three jobs have no site in common.
        self.assertEqual(report["verdict"], "no rank of 3 is an outlier: each differs from the others as they do from each other")

    def test_two_folders_are_compared_rank_by_rank(self):
        before, after = self.ranks(count=4, folder="before"), self.ranks(2, 5, folder="after", name="other-rank{}-{}.pickle")
        text = self.read_output(before, after, status=1)
        self.assertTrue(text.startswith("B reserves 64.00 MiB more at the peak, all of it at model.py:212 cache"), text)
        self.assertIn("\nomitted: 1 file, whose rank is in only one folder\n", text)
        report = self.read_json(before, after, status=1)
        self.assertEqual(report["ranks"][0]["name"], "rank 2")
        self.assertEqual([rank["distance"] for rank in report["ranks"][1:]], [0, 0, 0])
        self.assertTrue(self.read_output(before, before, status=0).startswith("A and B do not differ\n"))
        self.ranks(count=1, folder="none", name="x{}-{}.pickle")
        self.expect_error("no rank in common with the other folder", before, self.folder / "none")

    def test_bad_file_is_reported_and_the_others_are_compared(self):
        folder, bad_path = self.ranks(5), self.file(b"\x80\x04no", "job/oom-rank3-pid4714-1.pickle")
        for command in ("compare", "blame"):
            output, error = self.run_tool(folder, command=command, status=2)
            self.assertTrue(output.startswith("rank 5 is the outlier of 7: it reserves 64.00 MiB more"), output)
            self.assertIn("/job, 7 files; rank 0 is the most typical\nomitted: 1 file, which could not be read\n", output)
            self.assertEqual(len(error.splitlines()), 1)
            self.assertTrue(error.startswith(f"{bad_path}: cannot be read as a memory snapshot"), error)
        output, _ = self.run_tool("--json", folder, status=2)
        self.assertIn(str(bad_path), json.loads(output)["unread"][0])
        # The file of that rank in the other folder is omitted, too.
        output, error = self.run_tool(self.ranks(folder="other"), folder, status=2)
        self.assertIn("\nomitted: 1 file, which could not be read\n", output)
        self.assertTrue(output.startswith("B reserves 64.00 MiB more at the peak, all of it at model.py:212"), output)

    def test_folder_without_a_readable_file_is_rejected(self):
        (self.folder / "empty").mkdir()
        for command in ("compare", "blame"):
            self.expect_error("no snapshot in this folder", self.folder / "empty", command=command)
        self.expect_error("absent: cannot be opened: No such file", self.folder / "absent", command="blame")
        self.expect_error("cannot be opened", self.folder / "empty2", self.folder / "absent")
        self.file(b"bad", "all/rank0.pickle")
        self.expect_error("all/rank0.pickle: unsupported file, a text file", self.folder / "all")

    def test_ranks_without_history_use_their_final_state(self):
        folder = self.ranks(count=3)
        self.file(job().snapshot() | {"device_traces": [[]]}, "job/oom-rank1-pid4712-1.pickle")
        output = self.read_output(folder, command="blame", status=0)
        self.assertIn("\nwithout a history: 1, of which the state at the end counts", output)
        self.assertIn("_record_memory_history", output)

    def test_memory_does_not_grow_with_the_number_of_files(self):
        def peak_resident(folder):
            # Without quarantine AddressSanitizer reuses freed memory.
            asan_options = "quarantine_size_mb=0:thread_local_quarantine_size_kb=0:" + os.environ.get("ASAN_OPTIONS", "")
            with subprocess.Popen([TOOL, "compare", folder], stdout=subprocess.DEVNULL,
                                  env=os.environ | {"ASAN_OPTIONS": asan_options}) as process:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            return usage.ru_maxrss
        data = pickle.dumps(job(steps=600).snapshot(), 4)
        for folder, count in (("8 files", 8), ("80 files", 80)):
            for rank in range(count):
                self.file(data, f"{folder}/rank{rank}.pickle")
        # 9000 events take at least 3 MiB for each file that remains in memory.  The unit of ru_maxrss is KiB.
        self.assertLess(peak_resident(self.folder / "80 files"), peak_resident(self.folder / "8 files") + (6 << 10))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
