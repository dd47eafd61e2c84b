# SPDX-License-Identifier: MIT
"""`xseg advise` as a user meets it: advise.py TOOL SOURCE_ROOT."""
import json
import os
import pathlib
import pickle
import pty
import re
import signal
import subprocess
import sys
import tempfile
import unittest

MIB = 1 << 20
BASE = 0x7f0000000000
KEYS = ["trace", "device_bytes", "replayed", "why", "in_force", "advised", "runner_up", "out_of_memory"]
PYTORCH = {"expandable_segments", "large_segment_size_mb", "max_split_size_mb", "roundup_power2_divisions",
           "graph_capture_record_stream_reuse"}
CLASSIC = "c expandable_segments:False\n"
# What a build with self-checks says first.
CHECKED = re.compile(r"^xseg: this libxseg checks itself [^\n]*\n", re.MULTILINE)


def trace(*lines):
    """A trace; a line is its fields."""
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def growing():
    """Batches that grow: a freed segment is always a little too small for the next."""
    lines, number = [], 0
    for step in range(12):
        for _ in range(3):
            number += 1
            lines.append(("a", number, (800 + 20 * step) * MIB, 0))
        lines += [("f", number - block) for block in range(3)]
    return CLASSIC + trace(*lines)


def uneven():
    """Blocks of almost one size, each of which leaves a hole between blocks that stay."""
    lines, number, live = [], 0, []
    for step in range(12):
        for place in range(12):
            if step > 0:
                lines.append(("f", live[place]))
            number += 2
            lines.append(("a", number - 1, 17 * MIB // 4 + step * 64 * 1024, 0))
            lines.append(("a", number, 6 * MIB, 0))
            live[place:place + 1] = [number - 1]
    return "c expandable_segments:True\n" + trace(*lines)


def phases():
    """A minute of work on one stream, then a minute on another."""
    lines, number = [], 0
    for stream in (1, 2, 3):
        for moment in range(60):
            lines.append(("@", (stream * 60 + moment) * 1_000_000))
            number += 1
            lines.append(("a", number, 200 * MIB, stream))
            lines.append(("f", number))
    return "c expandable_segments:True\n" + trace(*lines)


def costly():
    """Pieces that only expandable segments put together, and a large block that is mapped anew again and again."""
    lines = [("a", number, 40 * MIB, 0) for number in range(1, 11)] + [("f", number) for number in range(1, 11)]
    lines += [("a", number, 24 * MIB, 0) for number in range(11, 21)]
    for number in range(21, 81):
        lines += [("a", number, 600 * MIB, 0), ("f", number), ("e",)]
    return CLASSIC + trace(*lines)


def full():
    """All that it asks for stays."""
    return trace(*[("a", number, 40 * MIB, 0) for number in range(1, 31)])


def entry(action, address, size, **more):
    """As PyTorch writes it."""
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "pool_id": (0, 0), "frames": [],
            **more}


def ends_short(request, history=True):
    """A snapshot of classic segments, 400 MiB of them with 160 MiB cached in pieces, that 50 MiB more could join."""
    events, segments = [], []
    starts = [BASE + place * 64 * MIB for place in range(10)]
    for start in starts:
        events += [entry("segment_alloc", start, 40 * MIB), entry("alloc", start, 40 * MIB)]
    for start in starts:
        events += [entry("free_requested", start, 40 * MIB), entry("free_completed", start, 40 * MIB)]
    for start in starts:
        events.append(entry("alloc", start, 24 * MIB))
        segments.append({"device": 0, "address": start, "total_size": 40 * MIB, "stream": 0, "segment_type": "large",
                         "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [
                             {"address": start, "size": 24 * MIB, "requested_size": 24 * MIB,
                              "state": "active_allocated", "frames": []},
                             {"address": start + 24 * MIB, "size": 16 * MIB, "requested_size": 0,
                              "state": "inactive", "frames": []}]})
    failed = entry("oom", 0, request, device_free=50 * MIB)
    del failed["addr"]
    return {"segments": segments, "device_traces": [[*events, failed] if history else []],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}}


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
                         for start, (size, state) in segments.items()],
            "device_traces": [events],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": settings, "expandable_segments": False}}


def keys_of(config):
    """The keys that a string names."""
    return set(re.findall(r"(?:^|,)\s*([a-z_0-9]+)\s*:", re.sub(r"\[[^]]*\]", "", config)))


class AdviseTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, contents, name="job"):
        """Bytes, a trace without its first line, or a snapshot."""
        path = self.folder / name
        if isinstance(contents, dict):
            contents = pickle.dumps(contents, 4)
        path.write_bytes(contents if isinstance(contents, bytes) else b"xtrace 1\n" + contents.encode())
        return path

    def run_tool(self, *arguments, status=0, **more):
        done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, timeout=300, check=False, **more)
        done.stdout, done.stderr = done.stdout.decode(), CHECKED.sub("", done.stderr.decode(errors="replace"))
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def replayed(self, path, config, *options, status=0):
        done = self.run_tool("replay", "--json", "--config", config, *options, path, status=status)
        return json.loads(done.stdout)

    def holds(self, path, string, *options):
        """Each figure is what a replay with that string prints, as JSON and as text."""
        found = self.replayed(path, string["config"], "--min-device", *options, status=3 if string["oom_at"] >= 0 else 0)
        for name in ("oom_at", "peak_requested", "peak_reserved", "min_device", "driver_us"):
            self.assertEqual(string[name], found[name], (name, string["config"]))

    def advice(self, path, *options):
        """The JSON, of which each figure is what a replay says."""
        found = json.loads(self.run_tool("advise", "--json", *options, path).stdout)
        self.assertEqual(list(found), KEYS)
        larger = found["device_bytes"] != 80 << 30
        devices = [f"--device-memory={found['device_bytes']}"] if larger else []
        for name in ("in_force", "advised", "runner_up"):
            if found[name]:
                self.holds(path, found[name], *devices)
        if found["out_of_memory"]:
            self.completes_as_told(path, found)
        return found

    def completes(self, path, config, device):
        """Whether a replay on such a device serves all, also what failed in the file."""
        done = subprocess.run([TOOL, "replay", "--json", "--config", config, "--device-memory", str(device), path],
                              capture_output=True, timeout=120, check=False)
        self.assertIn(done.returncode, (0, 3), done.stderr)
        found = json.loads(done.stdout)
        return found["oom_at"] < 0 and found.get("failed", 0) == found.get("failed_served", 0)

    def completes_as_told(self, path, found):
        """And what is needed is enough, and little less is not."""
        device = found["out_of_memory"]["device_bytes"]
        for string in filter(None, (found["in_force"], found["advised"])):
            self.assertEqual(string["completes"], self.completes(path, string["config"], device))
            needed = string["device_needed"]
            self.assertTrue(self.completes(path, string["config"], needed))
            self.assertFalse(self.completes(path, string["config"], needed - needed // 400 - 4 * MIB))
        least = found["out_of_memory"]["least_change"]
        if least is not None:
            self.assertTrue(self.completes(path, least, device))


class Planted(AdviseTest):
    """Programmes that one string cures, or none."""

    def test_expandable_segments_cure_what_grows(self):
        found = self.advice(self.file(growing()))
        self.assertEqual(found["advised"]["config"], "expandable_segments:True")
        self.assertLess(found["advised"]["peak_reserved"], found["in_force"]["peak_reserved"] // 2)
        self.assertIn("segments that grow in place", found["why"])
        self.assertNotIn("expandable_segments:True", found["runner_up"]["config"])
        self.assertGreaterEqual(found["replayed"], 50)

    def test_rounding_cures_sizes_that_differ_a_little(self):
        found = self.advice(self.file(uneven()))
        self.assertRegex(found["advised"]["config"], r"roundup_power2_divisions:\S+$")
        self.assertLess(found["advised"]["peak_reserved"], found["in_force"]["peak_reserved"] * 3 // 4)
        self.assertIn("requests of about one size become equal", found["why"])

    def test_idle_memory_that_another_stream_needs(self):
        found = self.advice(self.file(phases()))
        self.assertRegex(found["advised"]["config"], r"^expandable_segments:True,idle_ms:\d+$")
        self.assertIn("memory that is idle goes back", found["why"])

    def test_a_value_that_costs_is_left_out(self):
        config = "c garbage_collection_threshold:0.9 ,roundup_power2_divisions:[64:2,>:2] , expandable_segments:True\n"
        found = self.advice(self.file(config + full()))
        self.assertEqual(found["advised"]["config"], "garbage_collection_threshold:0.9,expandable_segments:True")
        self.assertIn("the value that the string in force gives it", found["why"])

    def test_a_key_that_saves_time_is_not_why(self):
        """Expandable segments alone take too much of the driver's time here, and another key helps that."""
        path = self.file(costly())
        found = self.advice(path)
        self.assertGreater(self.replayed(path, "expandable_segments:True")["driver_us"],
                           found["in_force"]["driver_us"] + 100_000)
        self.assertLess(found["advised"]["driver_us"], found["in_force"]["driver_us"] + 100_000)
        self.assertEqual(found["advised"]["changes"], 2)
        self.assertIn("most of it by expandable_segments: segments that grow", found["why"])

    def test_nothing_helps(self):
        path = self.file(full())
        found = self.advice(path)
        self.assertIsNone(found["advised"])
        self.assertIsNone(found["runner_up"])
        self.assertIsNone(found["out_of_memory"])
        self.assertIn("1.17 GiB of it are what the programme itself asks for", found["why"])
        self.assertIn("\nnothing helps\n", self.run_tool("advise", path).stdout)

    def test_only_keys_that_pytorch_knows(self):
        path = pathlib.Path(sys.argv[2]) / "tests/data/snapshots/ring.pickle.zst"
        found = self.advice(path)
        self.assertIn("page_mb", keys_of(found["advised"]["config"]))
        found = self.advice(path, "--pytorch")
        for name in ("advised", "runner_up"):
            if found[name]:
                self.assertLessEqual(keys_of(found[name]["config"]), PYTORCH)


class OutOfMemory(AdviseTest):
    def test_it_would_have_completed(self):
        path = self.file(ends_short(100 * MIB))
        found = self.advice(path)
        short = found["out_of_memory"]
        self.assertEqual((short["device_bytes"], short["failed"], short["completes"]), (450 * MIB, 1, True))
        self.assertEqual(short["least_change"], "expandable_segments:True")
        self.assertFalse(found["in_force"]["completes"])
        self.assertTrue(found["why"].startswith("it completes on 450.00 MiB, "), found["why"])
        text = self.run_tool("advise", path).stdout
        self.assertIn("1 request failed in the file; on 450.00 MiB it would have completed with this string\n", text)
        self.assertRegex(text, r"least change +only this string; or, with the string in force, "
                               r"a device of 50\d\.00 MiB, 5\d\.00 MiB more\n")

    def test_it_would_not(self):
        path = self.file(ends_short(300 * MIB))
        found = self.advice(path)
        short = found["out_of_memory"]
        self.assertEqual((short["completes"], short["least_change"]), (False, None))
        self.assertLess(540 * MIB, found["advised"]["device_needed"] + 2 * MIB)
        self.assertLess(found["advised"]["device_needed"], found["in_force"]["device_needed"])
        text = self.run_tool("advise", path).stdout
        self.assertRegex(text, r"on 450\.00 MiB it completes with none of \d+ configurations\n")
        self.assertRegex(text, r"least change +a device of 5\d\d\.00 MiB, \d+\.00 MiB more, with the advised string; with the "
                               r"string in force a device of 7\d\d\.00 MiB, 2\d\d\.00 MiB more\n")

    def test_a_smaller_device(self):
        path = self.file(growing())
        found = self.advice(path, "--device-memory=3100MiB")
        self.assertEqual(found["device_bytes"], 80 << 30)
        self.assertEqual(found["out_of_memory"], None)
        found = self.advice(path, "--device-memory=2000MiB")
        short = found["out_of_memory"]
        self.assertEqual((short["device_bytes"], short["failed"], short["completes"]), (2000 * MIB, 0, False))
        found = self.advice(self.file(uneven(), "uneven"), "--device-memory=1200MiB")
        self.assertFalse(found["in_force"]["completes"])
        self.assertTrue(found["out_of_memory"]["completes"])

    def test_a_larger_device(self):
        found = self.advice(self.file("a 1 96636764160 0\nf 1\n"), "--device-memory=100GiB")
        self.assertEqual((found["device_bytes"], found["out_of_memory"]), (100 << 30, None))
        self.assertEqual(found["in_force"]["peak_reserved"], 90 << 30)

    def test_a_tape_that_ran_short(self):
        """What it has as its device is what it is replayed on, and to complete on."""
        path = pathlib.Path(sys.argv[2]) / "tests/data/tapes/tight-classic.tape.zst"
        found = json.loads(self.run_tool("advise", "--json", path).stdout)
        short = found["out_of_memory"]
        self.assertEqual((found["device_bytes"], short["device_bytes"]), (950 * MIB, 950 * MIB))
        self.assertEqual((short["failed"], short["completes"]), (7, True))
        self.holds(path, found["advised"])
        self.completes_as_told(path, found)

    def test_it_leaves_no_snapshot(self):
        path = self.file(ends_short(300 * MIB))
        folder = self.folder / "oom"
        folder.mkdir()
        self.run_tool("advise", path, env={**os.environ, "XSEG_OOM_SNAPSHOT": str(folder)})
        self.assertEqual(list(folder.iterdir()), [])


class Ranks(AdviseTest):
    """Folders."""

    def job(self, count=8, **odd):
        """Ranks of which the sixth, or the last, is another."""
        for rank in range(count):
            self.file(rank_of_job(**odd) if rank == min(5, count - 1) else rank_of_job(), f"oom-rank{rank}-pid{rank}-1.pickle")
        return self.folder

    def advised(self, folder, *options, status=0):
        """The JSON: each figure of each rank is what a replay of its file says, and the largest are those of the ranks."""
        found = json.loads(self.run_tool("advise", "--json", *options, folder, status=status).stdout)
        self.assertLessEqual(len(found["ranks"]), 4)
        self.assertEqual(len({rank["rank"] for rank in found["ranks"]}), len(found["ranks"]))
        for name in filter(found.get, ("in_force", "advised", "runner_up")):
            for rank in found["ranks"]:
                string = rank[name]
                self.assertEqual(string["config"], found[name]["config"])
                self.holds(rank["trace"], string)
                if found["out_of_memory"]:
                    self.assertEqual(string["completes"], self.completes(rank["trace"], string["config"], rank["target_bytes"]))
            for figure in ("peak_reserved", "min_device"):
                self.assertEqual(found[name][figure], max(rank[name][figure] for rank in found["ranks"]))
        return found

    def test_the_odd_rank_grows(self):
        found = self.advised(self.job(grows=46 * MIB))
        self.assertEqual(found["odd"], "rank 5")
        self.assertEqual([rank["rank"] for rank in found["ranks"]], ["rank 5", "rank 0", "rank 4", "rank 2"])
        self.assertEqual([(rank["odd"], rank["typical"]) for rank in found["ranks"]], [(True, False), (False, True)] + 2 * [(False, False)])
        self.assertEqual(found["advised"]["config"], "expandable_segments:True")
        self.assertLess(found["advised"]["peak_reserved"], found["in_force"]["peak_reserved"] // 2)
        self.assertRegex(found["why"], r"^the largest peak of these ranks falls from .* to .*, since segments that grow")
        self.assertNotEqual(found["runner_up"]["config"], found["advised"]["config"])

    def test_text(self):
        """A row for each rank, of what replays print."""
        folder = self.job(grows=46 * MIB)
        found = self.advised(folder)
        lines = self.run_tool("advise", folder).stdout.splitlines()
        self.assertTrue(lines[0].startswith("rank 5 is the odd one of 8: "), lines[0])
        self.assertEqual(lines[1], f"{folder}, 8 files")
        self.assertEqual(lines[2].split(), ["set", "expandable_segments:True"])
        rows = lines[-2 - len(found["ranks"]):-2]
        for rank, row in zip(found["ranks"], rows):
            cells = re.split("  +", row.strip())
            self.assertEqual(cells[-1], rank["rank"] + {"rank 5": ", the odd one", "rank 0": ", the most typical"}.get(rank["rank"], ""))
            for at, name in enumerate(("in_force", "advised", "runner_up")):
                replay = self.run_tool("replay", "--min-device", "--config", rank[name]["config"], rank["trace"]).stdout
                told = [re.search(rf"^  {figure} +(.*)$", replay, re.MULTILINE)[1] for figure in ("peak reserved", "smallest device")]
                self.assertEqual(cells[2 * at:2 * at + 2], told, (rank["rank"], name))
        self.assertEqual(lines[-1], f"{found['replayed']} configurations replayed")

    def test_what_the_document_prints_is_printed(self):
        """Each time."""
        page = (pathlib.Path(sys.argv[2]) / "docs/advise.md").read_text(encoding="utf-8")
        told = re.search(r"^\$ xseg advise snapshots\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
        folder = self.job(grows=46 * MIB)
        for _ in range(2):
            self.assertEqual(self.run_tool("advise", folder).stdout.replace(str(folder), "snapshots"), told)

    def test_nothing_helps(self):
        """Nor is any odd: the one with the largest peak comes first."""
        found = self.advised(self.job(count=2, kept=80 * MIB))
        self.assertEqual([found["odd"], found["advised"], found["runner_up"], found["least_change"]], 4 * [None])
        self.assertEqual([rank["rank"] for rank in found["ranks"]], ["rank 1", "rank 0"])
        self.assertIn("none lowers the largest peak of 1.25 GiB by more than", found["why"])
        self.assertIn("\nnothing helps\n", self.run_tool("advise", self.folder).stdout)

    def test_one_rank(self):
        found = self.advised(self.job(count=1, grows=46 * MIB))
        self.assertEqual((found["odd"], found["advised"]["config"]), (None, "expandable_segments:True"))

    def test_one_that_ran_out_of_memory(self):
        folder = self.job()
        self.file(ends_short(100 * MIB), "oom-rank5-pid5-1.pickle")
        found = self.advised(folder)
        self.assertTrue(found["out_of_memory"])
        self.assertEqual([rank["in_force"]["completes"] for rank in found["ranks"]], [False, True, True, True])
        self.assertTrue(all(rank["advised"]["completes"] for rank in found["ranks"]))
        self.assertEqual(found["least_change"], found["advised"]["config"])
        self.assertTrue(found["why"].startswith("4 of these 4 ranks complete instead of 3"), found["why"])
        self.assertIn("out of memory  rank 5 with the string in force; none with this one\nleast change   only this string; or, ",
                      self.run_tool("advise", folder).stdout)

    def test_ranks_that_complete_go_on_to(self):
        """The runner-up of a larger device takes more than this one has, in ranks that complete with the string in force."""
        folder = self.job(grows=46 * MIB)
        best = self.advised(folder)["runner_up"]["config"]
        found = self.advised(folder, "--device-memory=1400MiB")
        self.assertEqual([rank["in_force"]["completes"] for rank in found["ranks"]], [False, True, True, True])
        self.assertFalse(self.completes(found["ranks"][1]["trace"], best, 1400 * MIB))
        for name in filter(found.get, ("advised", "runner_up")):
            self.assertTrue(all(rank[name]["completes"] for rank in found["ranks"][1:]), found[name])

    def test_what_helps_one_rank_alone_is_not_advised(self):
        for rank in range(4):
            self.file(ends_short(100 * MIB) if rank == 3 else on_streams(), f"rank{rank}.pickle")
        alone = json.loads(self.run_tool("advise", "--json", self.folder / "rank3.pickle").stdout)["advised"]["config"]
        self.assertFalse(self.completes(self.folder / "rank0.pickle", alone, 450 * MIB))
        found = self.advised(self.folder, "--device-memory=450MiB")
        self.assertEqual([rank["in_force"]["completes"] for rank in found["ranks"]], [False, True, True, True])
        self.assertNotEqual(found["advised"]["config"], alone)
        self.assertTrue(all(rank["advised"]["completes"] for rank in found["ranks"]))

    def test_bad_files_among_good_ones(self):
        """They are named, the others are looked at, and the exit status is 2."""
        folder = self.job(grows=46 * MIB)
        self.file(b"no pickle", "oom-rank8-pid8-1.pickle")
        self.file(ends_short(MIB, history=False), "oom-rank0-pid0-1.pickle")
        found = self.advised(folder, status=2)
        self.assertEqual(found["advised"]["config"], "expandable_segments:True")
        self.assertEqual(len(found["ranks"]), 4)
        self.assertNotIn("rank 0", [rank["rank"] for rank in found["ranks"]])
        self.assertIn("oom-rank8-pid8-1.pickle: ", self.run_tool("advise", folder, status=2).stderr)

    def test_no_file_can_be_replayed(self):
        for rank in range(2):
            self.file(ends_short(MIB, history=False), f"rank{rank}.pickle")
        done = self.run_tool("advise", self.folder, status=2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("there is no history in this snapshot"), 2)

    def test_ranks_of_two_configurations(self):
        folder = self.job(grows=46 * MIB, settings="max_split_size_mb:64")
        done = self.run_tool("advise", folder, status=2)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"was made under the configuration '[^']*', and \S*rank5-pid5-1.pickle under "
                                      r"'[^']*max_split_size_mb:64[^']*'")


class Report(AdviseTest):
    def test_text(self):
        """The figures of the table are those that replays print."""
        path = self.file(growing())
        text = self.run_tool("advise", path).stdout
        lines = text.splitlines()
        self.assertEqual(lines[0], str(path))
        self.assertEqual(lines[1].split(), ["set", "expandable_segments:True"])
        columns = {line.split(None, 1)[0]: line.split(None, 1)[1] for line in lines[1:] if line and line[0] != " "}
        strings = [columns["in"].removeprefix("force").strip(), columns["set"], columns["runner-up"]]
        for at, string in enumerate(strings):
            replay = self.run_tool("replay", "--min-device", "--config", string, path).stdout
            for row in ("peak reserved", "smallest device", "driver time, modelled"):
                figure = re.search(rf"^  {row} +(.*)$", replay, re.MULTILINE)[1]
                told = re.search(rf"^  {row} +(.*)$", text, re.MULTILINE)[1]
                self.assertEqual(re.split(r"  +", told)[at], figure, (row, string))

    def test_it_is_repeatable(self):
        path = self.file(uneven())
        self.assertEqual(self.run_tool("advise", path).stdout, self.run_tool("advise", path).stdout)
        self.assertEqual(self.run_tool("advise", path, preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})).stdout,
                         self.run_tool("advise", path).stdout)

    def test_standard_input(self):
        done = self.run_tool("advise", "-", input=b"xtrace 1\n" + full().encode())
        self.assertTrue(done.stdout.startswith("standard input\nnothing helps\n"), done.stdout)

    def test_progress_on_a_terminal(self):
        path = self.file(full())
        leader, follower = pty.openpty()
        with subprocess.Popen([TOOL, "advise", path], stdout=subprocess.PIPE, stderr=follower) as tool:
            os.close(follower)
            drawn = b""
            try:
                while data := os.read(leader, 4096):
                    drawn += data
            except OSError:  # the terminal's other end was closed
                pass
            self.assertIn(b"nothing helps", tool.stdout.read())
        os.close(leader)
        self.assertEqual(tool.returncode, 0)
        self.assertRegex(drawn, rb"\r\[#* *\] \d+ configurations, ")
        self.assertTrue(drawn.endswith(b"\r\x1b[K"), drawn[-80:])

    def test_names_are_untrusted(self):
        path = self.file(full(), "a\x1b\n")
        for options in ((), ("--json",)):
            text = self.run_tool("advise", *options, path).stdout
            self.assertTrue(all(byte == "\n" or " " <= byte <= "~" for byte in text), text)


class BadInput(AdviseTest):
    def refused(self, words, *arguments, **more):
        done = self.run_tool("advise", *arguments, status=2, **more)
        self.assertEqual(done.stdout, "")
        self.assertIn(words, done.stderr)
        return done.stderr

    def test_files(self):
        data = pickle.dumps(ends_short(MIB), 4)
        self.refused("the first line must be `xtrace 1`", self.file(b"no trace\n"))
        self.refused("ends too early", self.file(data[:-100]))
        self.refused("there are no `segments`", self.file({"a": 1}))
        self.refused("cannot be opened", self.folder / "absent")
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused("there is no snapshot in this folder", empty)
        self.refused("needs a file")
        self.refused("--device chooses a history", "--device", 0, self.file(full()))

    def test_no_history(self):
        said = self.refused("torch.cuda.memory._record_memory_history()", self.file(ends_short(MIB, history=False)))
        self.assertIn("there is no history in this snapshot", said)

    def test_a_configuration_with_an_error(self):
        self.refused("did you mean expandable_segments?", self.file("c expandable_segment:True\n" + full()))

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as disk:
            done = subprocess.run([TOOL, "advise", self.file(full())], stdout=disk, stderr=subprocess.PIPE, timeout=300,
                                  check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"No space left on device", done.stderr)


def child_of(process):
    """A child of a process that runs; None: it has ended."""
    while process.poll() is None:
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[:2]
            except OSError:  # ended meanwhile
                continue
            if int(parent) == process.pid and state != "Z":
                return int(path.parent.name)
    return None


class Ended(AdviseTest):
    def test_a_process_that_is_ended(self):
        """As the system does when it runs short of memory."""
        path = self.file("".join(f"a {i} 512 0\nf {i}\n" for i in range(300_000)))
        for _ in range(20):  # until a child is met before it is done
            with subprocess.Popen([TOOL, "advise", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
                child = child_of(tool)
                if child is not None:
                    os.kill(child, signal.SIGKILL)
                out, error = tool.communicate(timeout=300)
            if tool.returncode != 0:
                break
        self.assertEqual((tool.returncode, out), (2, b""))
        self.assertIn(b"was ended, as happens when the machine runs short of memory\n", error)


class Recorded(AdviseTest):
    def test_snapshots_that_pytorch_has_written(self):
        """tests/data/snapshots: each asks once for 4 TiB, which no configuration serves on 80 GiB."""
        for name in ("classic", "expandable"):
            found = self.advice(pathlib.Path(sys.argv[2]) / f"tests/data/snapshots/{name}.pickle.zst")
            self.assertLess(found["advised"]["peak_reserved"], found["in_force"]["peak_reserved"])
            self.assertEqual((found["out_of_memory"]["failed"], found["out_of_memory"]["completes"]), (1, False))
            self.assertGreater(found["advised"]["device_needed"], 1 << 42)


if __name__ == "__main__":
    TOOL = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
