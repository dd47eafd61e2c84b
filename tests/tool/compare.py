# SPDX-License-Identifier: MIT
"""`xseg compare`, and `xseg blame` of folders, as a user runs them: compare.py TOOL SOURCE_ROOT."""
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


def job(plant="", base=BASE, pace=1000, line=0, steps=10):
    """A training job; `plant` is what is different in it, `line` by how much its lines have moved."""
    program = Program(start=1_000_000 + 17 * pace)
    draw = {"weights": frames("__init__", 31 + line), "activations": frames("forward", 112 + line),
            "cache": frames("cache", 212 + line), "scratch": frames("scratch", 300 + line)}
    if plant == "another site":
        draw["activations"] = frames("attention", 400)
    program.map(base, SIZE)
    if plant == "reserved":
        program.map(base + SIZE, SIZE)
        program.alloc(base + SIZE, SIZE, draw["cache"])
    if plant == "idle":
        program.map(base + 4 * SIZE, SIZE // 2)
    program.alloc(base, 8 * MIB, draw["weights"], "setup")
    activations = (20 if plant == "live" else 16) * MIB
    for step in range(steps):
        program.time += pace
        program.alloc(base + 8 * MIB, activations, draw["activations"], "step")
        program.time += pace
        if plant != "lives longer":
            program.free(base + 8 * MIB, pending=plant == "pending")
        for at in range(4):
            place = base + 30 * MIB + 2 * at * MIB
            program.time += pace // 10
            if place not in program.blocks:
                program.alloc(place, 512, draw["scratch"], "step")
            if plant == "one more" and step == at == 0:
                program.alloc(place + 512, 512, frames("tiny", 9))
                program.free(place + 512)
            program.time += pace // 10
            if plant != "stranded":
                program.free(place)
        if plant in ("lives longer", "pending"):
            program.free(base + 8 * MIB)
    program.event("snapshot", 0, 0)
    return program


def one_site(line, blocks=1):
    program = Program()
    program.map(BASE, SIZE)
    for block in range(blocks):
        program.alloc(BASE + 8 * MIB // blocks * block, 8 * MIB // blocks, frames("model", line))
    return program.snapshot() | {"device_traces": [[]]}


class CompareTest(BlameTest):
    command = "compare"

    def said(self, *arguments, **how):
        out, error = self.run_tool(*arguments, **how)
        self.assertEqual(error, "")
        return out

    def read(self, *arguments, **how):
        return json.loads(self.said("--json", *arguments, **how))

    def compared(self, a, b, *arguments, status):
        """The JSON of two files; that rows add up to the whole on each side."""
        files = (self.file(a, "a.pickle"), self.file(b, "b.pickle"))
        found = self.read(*arguments, *files, status=status)
        self.assertEqual(found["differs"], status == 1)
        self.assertTrue(self.said(*arguments, *files, status=status).startswith(found["verdict"] + "\n"))
        for side in "ab":
            rows = [row[side] for row in found["rows"]]
            self.assertEqual(found[side]["peak"]["reserved"], sum(row["peak_allocated"] + row["peak_cached"] for row in rows))
            self.assertEqual(found[side]["peak"]["allocated"], sum(row["peak_allocated"] for row in rows))
            self.assertEqual(found[side]["average"]["reserved"], sum(row["allocated"] + row["cached"] for row in rows))
        return found


class TwoFiles(CompareTest):
    def test_same_program_at_other_addresses_has_no_difference(self):
        for base, pace in ((BASE + (1 << 40), 1000), (4 * MIB, 7777), (BASE, 3)):
            found = self.compared(job(), job(base=base, pace=pace), status=0)
            self.assertEqual(found["verdict"], "A and B do not differ")
            self.assertFalse(any(row["differs"] for row in found["rows"]))
            self.assertEqual(len(found["rows"]), 5)  # three sites, pending, idle
            self.assertEqual(json_keys.paths(found), json_keys.documented(PAGE, "Two files", "Rows"))

    def test_text(self):
        text = self.said(self.file(job(), "a.pickle"), self.file(job("reserved"), "b.pickle"), status=1)
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

    def test_a_difference_of_each_kind_is_in_the_verdict(self):
        for plant, more, less in (
                ("reserved", "B reserves 64.00 MiB more at the peak, all of it at model.py:212 cache, where A allocates nothing",
                 "B reserves 64.00 MiB less at the peak, all of it at model.py:212 cache, where B allocates nothing"),
                ("live", "B has 4.00 MiB more allocated at the peak, all of it at model.py:112 forward",
                 "B has 4.00 MiB less allocated at the peak, all of it at model.py:112 forward"),
                ("stranded", "all of it at model.py:300 scratch", "all of it at model.py:300 scratch"),
                ("lives longer", "all of it at model.py:112 forward, where a block lives for 9 events, not 1",
                 "all of it at model.py:112 forward, where a block lives for 1 event, not 9"),
                ("idle", "B reserves 32.00 MiB more at the peak, all of it in idle pages",
                 "B reserves 32.00 MiB less at the peak, all of it in idle pages")):
            with self.subTest(plant=plant):
                for (a, b), verdict in ((("", plant), more), ((plant, ""), less)):
                    self.assertIn(verdict, self.compared(job(a), job(b), status=1)["verdict"])
        self.assertRegex(self.compared(job(), job("stranded"), status=1)["verdict"], r"^B has \d.\d\d MiB more fragmented on average")
        self.assertRegex(self.compared(job(), job("lives longer"), status=1)["verdict"], r"^B has \d+.\d\d MiB more allocated on average")

    def test_memory_that_is_released_later(self):
        def shrinking(late):
            program = job()
            program.map(BASE + 4 * SIZE, SIZE)
            for back in (False, True):
                if back == late:
                    program.unmap(BASE + 4 * SIZE)
                for _ in range(50):
                    program.event("snapshot", 0, 0)
            return program
        verdict = self.compared(shrinking(False), shrinking(True), status=1)["verdict"]
        self.assertRegex(verdict, r"^B reserves \d+.\d\d MiB more on average, all of it in idle pages$")

    def test_memory_moved_to_another_site(self):
        verdict = self.compared(job(), job("another site"), status=1)["verdict"]
        self.assertEqual(verdict, "B reserves as much as A at the peak, but 16.00 MiB more at model.py:400 attention, where A "
                                  "allocates nothing, and 16.00 MiB less at model.py:112 forward")

    def test_pending_blocks_are_no_sites(self):
        found = self.compared(job(), job("pending"), status=1)
        rows = {row["site_b"]: row for row in found["rows"]}
        self.assertGreater(rows["(pending)"]["b"]["cached"], 0)
        self.assertEqual(rows["(pending)"]["a"]["cached"], 0)

    def test_small_change_is_no_difference(self):
        found = self.compared(job(), job("one more"), status=0)
        self.assertEqual(found["verdict"], "A and B differ by less than 1 % of the reserved bytes")
        self.assertIn("model.py:9 tiny", [row["site_b"] for row in found["rows"] if row["differs"]])

    def test_lines_that_have_moved_are_the_same_sites(self):
        found = self.compared(job(), job(line=7), status=0)
        self.assertEqual(found["verdict"], "A and B do not differ")
        self.assertIn(("model.py:112 forward", "model.py:119 forward"), [(row["site_a"], row["site_b"]) for row in found["rows"]])
        # With one more site in the function nobody can tell which is which.
        other = job(line=7)
        other.alloc(BASE + 40 * MIB, MIB, frames("forward", 120))
        rows = self.compared(job(), other, status=1)["rows"]
        self.assertIn(("model.py:112 forward", None), [(row["site_a"], row["site_b"]) for row in rows])

    def test_labels_and_depth(self):
        rows = self.compared(job(), job(), "--label", status=0)["rows"]
        self.assertEqual({row["site_a"] for row in rows}, {"setup", "step", "(pending)", "(idle)"})
        rows = self.compared(job(), job(), "--depth", "2", status=0)["rows"]
        self.assertIn("model.py:112 forward < main.py:1 main", [row["site_a"] for row in rows])
        self.refused("cannot be combined with", "--label", "--depth", "2", "x", "y")

    def test_rows(self):
        text = self.said("--rows", "1", self.file(job(), "a.pickle"), self.file(job("reserved"), "b.pickle"), status=1)
        self.assertIn("\nmore rows that differ: 2\n", text)
        self.assertNotIn("scratch", text)

    def test_devices(self):
        both = job().snapshot()
        both["device_traces"].append(job("reserved").snapshot()["device_traces"][0][:20])
        path, other = self.file(both, "both.pickle"), self.file(job(), "one.pickle")
        self.assertEqual(self.read(path, other, status=0)["a"]["device"], 0)
        self.refused("both.pickle: it has nothing of device 7; there is something of 0, 1", "--device", "7", path, other)
        self.refused("one.pickle: it has nothing of device 1; there is something of 0", "--device", "1", path, other)

    def test_standard_input(self):
        path = self.file(job())
        for files in (("-", path), (path, "-")):
            self.assertIn("standard input, device 0", self.said(*files, given=path.read_bytes(), status=0))
        self.refused("standard input cannot be both files", "-", "-")

    def test_names_are_untrusted(self):
        program = job()
        program.map(BASE + SIZE, SIZE)
        program.alloc(BASE + SIZE, SIZE, frames("f\x1b[31m\n"))
        files = (self.file(job()), self.file(program, "b\x1b\n.pickle"))
        for how in ((), ("--json",)):
            text = self.said(*how, *files, status=1)
            self.assertTrue(all(byte == "\n" or " " <= byte <= "~" for byte in text), text)

    def test_snapshots_that_pytorch_has_written(self):
        peaks = json.loads((SNAPSHOTS / "peaks.json").read_text(encoding="utf-8"))
        classic, expandable = (SNAPSHOTS / f"{name}.pickle.zst" for name in ("classic", "expandable"))
        for path in (classic, expandable, SNAPSHOTS / "ring.pickle.zst"):
            self.assertTrue(self.said(path, path, status=0).startswith("A and B do not differ\n"))
        found = self.read(classic, expandable, status=1)
        self.assertEqual([found[side]["peak"]["reserved"] for side in "ab"],
                         [peaks[name]["reserved"] for name in ("classic", "expandable")])
        self.assertEqual([found[side]["omitted"] for side in "ab"], [0, 0])

    def test_a_leak_that_pytorch_has_recorded_is_in_the_verdict(self):
        text = self.said(SNAPSHOTS / "early.pickle.zst", SNAPSHOTS / "late.pickle.zst", status=1)
        self.assertRegex(text, r"\AB reserves 120.00 MiB more at the peak, all of it at leak.py:16 <module>\n")

    def test_pytorch_snapshots_with_other_addresses_and_more_memory(self):
        for path in sorted(SNAPSHOTS.glob("*.pickle.zst")):
            with self.subTest(path=path.name):
                data = subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE, check=True).stdout
                moved = pickle.loads(data)
                self.move(moved, 1 << 40)
                found = self.compared(pickle.loads(data), moved, status=0)
                self.assertEqual(found["verdict"], "A and B do not differ")
                self.assertGreater(found["a"]["average"]["fragmented"], 0)
                stack = frames("keep", 7, "leak.py")
                moved["segments"].append({**moved["segments"][0], "address": BASE - SIZE, "total_size": SIZE, "is_expandable": False,
                                          "blocks": [{"address": BASE - SIZE, "size": SIZE, "requested_size": SIZE,
                                                      "state": "active_allocated", "frames": stack}]})
                moved["device_traces"][0][:0] = [
                    {"action": action, "addr": BASE - SIZE, "size": SIZE, "stream": 0, "frames": stack,
                     "time_us": moved["device_traces"][0][0]["time_us"]} for action in ("segment_alloc", "alloc")]
                self.assertEqual(self.compared(pickle.loads(data), moved, status=1)["verdict"],
                                 "B reserves 64.00 MiB more at the peak, all of it at leak.py:7 keep, where A allocates nothing")

    @staticmethod
    def move(snapshot, by):
        for segment in snapshot["segments"]:
            segment["address"] += by
            for block in segment["blocks"]:
                block["address"] += by
        for number, entry in enumerate(entry for trace in snapshot["device_traces"] for entry in trace):
            entry["time_us"] += by + number * number
            if "addr" in entry and entry["action"] != "snapshot":
                entry["addr"] += by


class BadFiles(CompareTest):
    def test_each_is_a_sentence(self):
        good, data = self.file(job(), "good.pickle"), pickle.dumps(job().snapshot(), 4)
        newer = job().snapshot()
        newer["xseg"] = {"format": 2, "devices": []}
        for contents, words in ((b"no pickle", "it is a text file that begins with 'no pickle'"), (data[:-100], "is truncated"), (b"", "the file is empty"),
                                (b"\x80\x09" + data[2:], "unsupported protocol, 9"),
                                (newer, "format 2 of xseg's own facts is not known"),
                                ({"a": 1}, "a dictionary without `segments`"),
                                ({"segments": [], "device_traces": []}, "neither entries nor segments")):
            bad = self.file(contents, "bad.pickle")
            self.refused(words, good, bad)
            self.refused(words, bad, good)
            self.refused(words, bad, command="blame")
        self.refused("cannot be opened: No such file", good, self.folder / "absent")
        self.refused("absent: cannot be opened: No such file", self.folder / "absent")
        self.refused("good.pickle is not a folder; the command takes two files", good)
        self.refused("but not a file and a folder", good, self.folder)

    def test_without_a_history_their_ends_are_compared(self):
        end = job()
        end.alloc(BASE + 32 * MIB, 4 * MIB, frames("leak", 5))
        bare = end.snapshot() | {"device_traces": [[]]}
        text = self.said(self.file(job(), "a.pickle"), self.file(bare, "b.pickle"), status=1)
        self.assertTrue(text.startswith("B has 4.00 MiB more allocated at the peak, all of it at model.py:5 leak"), text)
        self.assertIn("_record_memory_history()", text)
        self.assertIn("history:all", text)
        self.assertFalse(self.read(self.folder / "b.pickle", self.folder / "b.pickle", status=0)["over_events"])


class Ranks(CompareTest):
    def ranks(self, odd=None, count=8, plant="reserved", folder="job", name="oom-rank{}-pid{}-1.pickle"):
        for rank in range(count):
            program = job(plant if rank == odd else "", base=BASE + (rank << 32), pace=1000 + rank)
            self.file(program, f"{folder}/{name.format(rank, 4711 + rank)}")
        return self.folder / folder

    def test_outlier_is_named_with_its_site(self):
        for plant, why in (("reserved", "it reserves 64.00 MiB more at the peak, all of it at model.py:212 cache"),
                           ("live", "it has 4.00 MiB more allocated at the peak, all of it at model.py:112 forward"),
                           ("stranded", "MiB more fragmented on average, all of it at model.py:300 scratch"),
                           ("lives longer", "all of it at model.py:112 forward, where a block lives for 9 events, not 1"),
                           ("another site", "it reserves as much as rank 0 at the peak, but 16.00 MiB more at model.py:400 attention")):
            for odd, count in ((5, 8), (0, 3)):
                with self.subTest(plant=plant, odd=odd), tempfile.TemporaryDirectory(dir=self.folder) as name:
                    folder = self.ranks(odd, count, plant, pathlib.Path(name).name)
                    found = self.read(folder, status=1)
                    self.assertEqual((found["outlier"], found["ranks"][0]["rank"]), (f"rank {odd}", odd))
                    self.assertTrue(found["verdict"].startswith(f"rank {odd} is the outlier of {count}: "), found["verdict"])
                    self.assertIn(why.replace("rank 0", found["typical"]), found["verdict"])
                    self.assertEqual(self.read(folder, command="blame", status=0)["outlier"], f"rank {odd}")

    def test_equal_ranks(self):
        folder = self.ranks()
        self.assertTrue(self.said(folder, status=0).startswith(
            f"no rank of 8 is an outlier: they do not differ\n{folder}, 8 files; rank 0 is the most typical\n"))
        self.assertIsNone(self.read(folder, status=0)["outlier"])

    def test_the_page_has_the_keys(self):
        outputs = [self.read(*folders, status=1)
                   for folders in ([self.ranks(1, 3)], [self.ranks(1, 2), self.ranks(count=2, folder="after")])]
        keys = json_keys.documented(PAGE, "Folders", "Rows")
        self.assertEqual(json_keys.paths(outputs), keys)
        blamed = self.read(self.ranks(1, 3), command="blame", status=0)
        sites = json_keys.documented(PAGE, "JSON of blame")
        self.assertEqual(json_keys.paths(blamed), json_keys.paths(outputs[0]) | {key for key in sites if key.startswith("sites")})

    def test_each_site_counts_by_itself(self):
        """Of so many sites some are like the usual one by any short hash of their names."""
        for rank in range(600):
            self.file(one_site(1 + rank if rank < 290 else 5000), f"job/rank{rank}.pickle")
        ranks = self.read(self.folder / "job", status=1)["ranks"]
        # 8 MiB are at another site, at the peak and on average.
        self.assertEqual({rank["rank"]: rank["distance"] for rank in ranks},
                         {rank: 4 * 8 * MIB if rank < 290 else 0 for rank in range(600)})

    def test_ranks_that_have_equal_bytes_in_other_blocks(self):
        for rank in range(3):
            self.file(one_site(7, blocks=1 + (rank == 2)), f"job/rank{rank}.pickle")
        found = self.read(self.folder / "job", status=0)
        self.assertEqual(found["ranks"][0]["distance"], 0)
        self.assertEqual(found["verdict"], "no rank of 3 is an outlier: they differ by less than 1 % of the reserved bytes")

    def test_several_different_ranks_have_no_outlier(self):
        folder = self.ranks()
        for rank in (2, 6):
            self.file(job("reserved"), f"job/oom-rank{rank}-pid{4711 + rank}-1.pickle")
        found = self.read(folder, status=1)
        self.assertIsNone(found["outlier"])
        self.assertTrue(found["verdict"].startswith("2 ranks of 8 are outliers, rank 6 most of all: it reserves 64.00 MiB more"))

    def test_two_ranks_and_one(self):
        text = self.said(self.ranks(1, 2), status=1)
        self.assertTrue(text.startswith("rank 1 reserves 64.00 MiB more at the peak"))
        self.assertEqual(text.splitlines()[1], f"{self.folder}/job, 2 files")
        # Of two ranks neither is more like all.
        self.assertIsNone(self.read(self.folder / "job", status=1)["typical"])
        os.remove(self.folder / "job/oom-rank1-pid4712-1.pickle")
        for command in ("compare", "blame"):
            text = self.said(self.folder / "job", command=command, status=0)
            self.assertTrue(text.startswith("there is only rank 0, so no rank is an outlier"))
            self.assertEqual(text.splitlines()[1], f"{self.folder}/job, 1 file")
            self.assertIsNone(self.read(self.folder / "job", command=command, status=0)["typical"])

    def test_blame_sums_all_ranks(self):
        text = self.said(self.ranks(3, 4), command="blame", status=0)
        self.assertRegex(text, r"\n +\d.\d\d % +\S+ MiB +\S+ bytes +0 bytes  model.py:300 scratch\n")
        found = self.read(self.folder / "job", command="blame", status=0)
        sites = {site["site"]: site for site in found["sites"]}
        self.assertEqual((sites["model.py:31 __init__"]["peak"], sites["model.py:31 __init__"]["blocks"]), (4 * 8 * MIB, 4))
        self.assertEqual(sites["model.py:212 cache"]["peak"], SIZE)
        self.refused("requires a file", "--flame", self.folder / "job", command="blame")

    def test_names_of_files(self):
        """A rank is the number behind `rank`; of a rank's files the latest counts; the others are by name."""
        names = ["oom-rank1-pid5-1.pickle", "oom-rank1-pid5-2.pickle", "snapshot_rank_2.pkl", "rank10.pickle", "rank=3.pickle", "host.pickle"]
        for second, name in enumerate(names):
            path = self.file(job("reserved" if name.endswith("-2.pickle") else ""), f"job/{name}")
            os.utime(path, (1000 + second, 1000 + second))
        self.file(b"something else", "job/log.txt")
        self.file(b"hidden", "job/.rank7.pickle")
        (self.folder / "job/rank8.pickle").mkdir()
        found = self.read(self.folder / "job", status=1)
        self.assertEqual(sorted(rank["name"] for rank in found["ranks"]), ["host.pickle", "rank 1", "rank 10", "rank 2", "rank 3"])
        self.assertEqual(found["outlier"], "rank 1")
        self.assertIn("\nomitted: 1 file, of whose rank there is a newer file\n", self.said(self.folder / "job", status=1))

    def test_equal_ranks_of_two_hosts_are_two(self):
        for host in ("node0", "node1"):
            self.ranks(0 if host == "node1" else None, 2, name=host + "-rank{}.pickle")
        found = self.read(self.folder / "job", status=1)
        self.assertEqual(found["outlier"], "node1-rank0.pickle")
        self.assertEqual(len(found["ranks"]), 4)

    def kinds(self, *names, command="compare", status=0):
        out, error = self.run_tool("--json", self.folder / "job", command=command, status=status)
        for name in names:
            self.assertIn(name, error)
        return json.loads(out), error

    def test_of_several_dumps_of_each_rank_one_kind_is_read(self):
        """Eight files of four ranks are four ranks; the kind that was written last counts, and is named with the others."""
        for kinds in (("snapshot_stop_step_rank{}.pickle", "snapshot_train_end_rank{}.pickle"), ("rank{}_before.pickle", "rank{}_after.pickle"),
                      ("Rank{}-a-{}.pickle", "Rank{}-b-{}.pickle")):
            with self.subTest(kinds):
                shutil.rmtree(self.folder / "job", ignore_errors=True)
                self.ranks(count=4, name=kinds[0])
                self.ranks(3, count=4, name=kinds[1])
                for time, kind in enumerate(kinds):
                    for path in (self.folder / "job").glob(kind.replace("{}", "*")):
                        os.utime(path, (time, time))
                stem = [re.sub(r"[.]pickle$", "", kind.replace("{}", "#")) for kind in kinds]
                for command in ("compare", "blame"):
                    found, error = self.kinds(f"'{stem[0]}' (4 files)", f"'{stem[1]}' (4 files)", f"only '{stem[1]}' is read", command=command,
                                              status=command == "compare")
                    self.assertEqual((found["outlier"], len(found["ranks"])), ("rank 3", 4))
                    self.assertEqual(len(error.splitlines()), 1)
                self.assertIn("\nomitted: 4 files, of another kind\n", self.run_tool(self.folder / "job", status=1)[0])

    def test_the_kind_of_most_ranks_is_read(self):
        self.ranks(count=1, name="oom-rank{}.pickle")
        self.ranks(1, count=4, name="snapshot_rank{}.pickle")
        (self.folder / "job/whole.pickle").write_bytes((self.folder / "job/oom-rank0.pickle").read_bytes())
        found, _ = self.kinds("'oom-rank#' (1 file)", "only 'snapshot_rank#' is read", status=1)
        self.assertEqual((found["outlier"], len(found["ranks"])), ("rank 1", 4))

    def test_kinds_are_found_without_the_word_rank(self):
        """The last number of a name is that of the process, if no name has a rank and it may be one."""
        for time, kind in enumerate(("stop_{}.pickle", "end_{}.pickle")):
            for path in self.ranks(3 if time else None, count=4, name=kind).glob(kind.replace("{}", "*")):
                os.utime(path, (time, time))
        found, _ = self.kinds("'stop_#' (4 files)", "only 'end_#' is read", status=1)
        self.assertEqual((found["outlier"], len(found["ranks"])), ("end_3.pickle", 4))

    def test_files_of_several_hosts_without_a_rank_are_all_read(self):
        for host in ("alpha", "beta", "gamma"):
            self.ranks(count=1, name=host + "_Nov_28_10_05_{}7.pickle")
        self.ranks(1, count=2, name="alpha_Nov_28_11_00_{}1.pickle")
        self.assertEqual(len(self.read(self.folder / "job", status=1)["ranks"]), 5)

    def test_dumps_of_several_steps_are_one_kind_of_which_the_latest_counts(self):
        for step, odd in ((100, None), (2000, 2)):
            self.ranks(odd, 4, name=f"step{step}_rank{{}}.pickle")
            for path in (self.folder / "job").glob(f"step{step}_*"):
                os.utime(path, (step, step))
        found = self.read(self.folder / "job", status=1)
        self.assertEqual((found["outlier"], len(found["ranks"])), ("rank 2", 4))
        self.assertIn("\nomitted: 4 files, of whose rank there is a newer file\n", self.said(self.folder / "job", status=1))

    def test_two_folders_are_compared_by_the_kind_that_both_have(self):
        for folder in ("before", "after"):
            self.ranks(count=2, folder=folder, name="end_rank{}.pickle")
        self.ranks(count=3, folder="after", name="stop_rank{}.pickle")
        out, error = self.run_tool("--json", self.folder / "before", self.folder / "after")
        self.assertIn("only 'end_rank#' is read", error)
        self.assertEqual([rank["b"]["file"].rsplit("/", 1)[1] for rank in json.loads(out)["ranks"]],
                         ["end_rank1.pickle", "end_rank0.pickle"])

    def test_the_rank_of_a_job_counts_and_not_that_on_its_host(self):
        for name in ("rank{}_local_rank0.pickle", "local-rank0-RANK{}.pickle"):
            shutil.rmtree(self.folder / "job", ignore_errors=True)
            self.ranks(1, count=4, name=name)
            found = self.read(self.folder / "job", status=1)
            self.assertEqual((found["outlier"], len(found["ranks"])), ("rank 1", 4))

    def test_files_of_another_compression_are_reported(self):
        folder = self.ranks(count=3, name="rank{}.pickle")
        for path in sorted(folder.iterdir())[1:]:
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        self.assertIn(f"{folder}: 2 compressed files are not read, such as rank1.pickle.gz; decompress them, or compress them "
                      "with zstd\n",
                      self.run_tool(folder)[1])
        (folder / "rank0.pickle").unlink()
        for command in ("compare", "blame", "advise"):
            self.refused("no snapshot in this folder: 2 compressed files are not read, such as rank1.pickle.gz; decompress them", folder, command=command)

    def test_compressed_files(self):
        for rank, name in enumerate(("classic", "expandable", "ring")):
            (self.folder / f"job-rank{rank}.pickle.zst").write_bytes((SNAPSHOTS / f"{name}.pickle.zst").read_bytes())
        found = self.read(self.folder, status=0)
        self.assertEqual(len(found["ranks"]), 3)
        # Three jobs that have nothing in common.
        self.assertEqual(found["verdict"], "no rank of 3 is an outlier: each differs from the others as they do from each other")

    def test_two_folders_rank_by_rank(self):
        before, after = self.ranks(count=4, folder="before"), self.ranks(2, 5, folder="after", name="other-rank{}-{}.pickle")
        text = self.said(before, after, status=1)
        self.assertTrue(text.startswith("B reserves 64.00 MiB more at the peak, all of it at model.py:212 cache"), text)
        self.assertIn("\nomitted: 1 file, whose rank is in only one folder\n", text)
        found = self.read(before, after, status=1)
        self.assertEqual(found["ranks"][0]["name"], "rank 2")
        self.assertEqual([rank["distance"] for rank in found["ranks"][1:]], [0, 0, 0])
        self.assertTrue(self.said(before, before, status=0).startswith("A and B do not differ\n"))
        self.ranks(count=1, folder="none", name="x{}-{}.pickle")
        self.refused("it has no rank in common with the other folder", before, self.folder / "none")

    def test_bad_file_is_named_and_the_others_are_compared(self):
        folder = self.ranks(5)
        bad = self.file(b"\x80\x04no", "job/oom-rank3-pid4714-1.pickle")
        for command in ("compare", "blame"):
            out, error = self.run_tool(folder, command=command, status=2)
            self.assertTrue(out.startswith("rank 5 is the outlier of 7: it reserves 64.00 MiB more"), out)
            self.assertIn("/job, 7 files; rank 0 is the most typical\nomitted: 1 file, which could not be read\n", out)
            self.assertEqual(len(error.splitlines()), 1)
            self.assertTrue(error.startswith(f"{bad}: cannot be read as a memory snapshot"), error)
        out, _ = self.run_tool("--json", folder, status=2)
        self.assertIn(str(bad), json.loads(out)["unread"][0])
        # The other folder's file of that rank is left out, too.
        out, error = self.run_tool(self.ranks(folder="other"), folder, status=2)
        self.assertIn("\nomitted: 1 file, which could not be read\n", out)
        self.assertTrue(out.startswith("B reserves 64.00 MiB more at the peak, all of it at model.py:212"), out)

    def test_folders_with_nothing_to_read(self):
        (self.folder / "empty").mkdir()
        for command in ("compare", "blame"):
            self.refused("no snapshot in this folder", self.folder / "empty", command=command)
        self.refused("absent: cannot be opened: No such file", self.folder / "absent", command="blame")
        self.refused("cannot be opened", self.folder / "empty2", self.folder / "absent")
        self.file(b"bad", "all/rank0.pickle")
        self.refused("all/rank0.pickle: it is a text file", self.folder / "all")

    def test_ranks_without_a_history(self):
        folder = self.ranks(count=3)
        self.file(job().snapshot() | {"device_traces": [[]]}, "job/oom-rank1-pid4712-1.pickle")
        out = self.said(folder, command="blame", status=0)
        self.assertIn("\nwithout a history: 1, of which the state at the end counts", out)
        self.assertIn("_record_memory_history", out)

    def test_memory_does_not_grow_with_the_number_of_files(self):
        def most(folder):
            # What is freed is free, also to a sanitizer.
            none = "quarantine_size_mb=0:thread_local_quarantine_size_kb=0:" + os.environ.get("ASAN_OPTIONS", "")
            with subprocess.Popen([TOOL, "compare", folder], stdout=subprocess.DEVNULL, env=os.environ | {"ASAN_OPTIONS": none}) as process:
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            return usage.ru_maxrss
        data = pickle.dumps(job(steps=600).snapshot(), 4)
        for folder, count in (("few", 8), ("many", 80)):
            for rank in range(count):
                self.file(data, f"{folder}/rank{rank}.pickle")
        # 9000 events take 3 MiB and more of each file that is held.
        self.assertLess(most(self.folder / "many"), most(self.folder / "few") + (6 << 10))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
