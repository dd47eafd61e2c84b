# SPDX-License-Identifier: MIT
"""Tests of `xseg advise` with one file: advise.py TOOL SOURCE_ROOT."""
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(sys.argv[2]) / "tests/support"))
from advise_case import BASE, IS_SANITIZED, AdviseTest, out_of_memory_snapshot, entry  # pylint: disable=wrong-import-position
from folder_case import MIB, ROOT, SNAPSHOTS, TOOL  # pylint: disable=wrong-import-position

PYTORCH = {"expandable_segments", "large_segment_size_mb", "max_split_size_mb", "roundup_power2_divisions",
           "graph_capture_record_stream_reuse"}
CLASSIC = "c expandable_segments:False\n"


def trace(*lines):
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def growing_blocks():
    """Batches of growing blocks: each freed segment is slightly too small for the next block."""
    lines, index = [], 0
    for step in range(12):
        for _ in range(3):
            index += 1
            lines.append(("a", index, (800 + 20 * step) * MIB, 0))
        lines += [("f", index - block) for block in range(3)]
    return CLASSIC + trace(*lines)


def similar_sizes():
    """Blocks of similar sizes: each cached block, between two allocated blocks, is slightly too small for the next request."""
    lines, index, allocated = [], 0, []
    for step in range(12):
        for slot in range(8):
            if step > 0:
                lines.append(("f", allocated[slot]))
            index += 2
            lines.append(("a", index - 1, 17 * MIB // 4 + step * 64 * 1024, 0))
            lines.append(("a", index, 6 * MIB, 0))
            allocated[slot:slot + 1] = [index - 1]
    return "c expandable_segments:True\n" + trace(*lines)


def two_phases():
    """20 s of work on each of three streams, one after the other."""
    lines, index = [], 0
    for stream in (1, 2, 3):
        for second in range(20):
            lines.append(("@", (stream * 20 + second) * 1_000_000))
            index += 1
            lines.append(("a", index, 200 * MIB, stream))
            lines.append(("f", index))
    return "c expandable_segments:True\n" + trace(*lines)


def costly_remapping():
    """Cached blocks that only expandable segments coalesce, and a large block that is mapped again in each step."""
    lines = [("a", index, 40 * MIB, 0) for index in range(1, 11)] + [("f", index) for index in range(1, 11)]
    lines += [("a", index, 24 * MIB, 0) for index in range(11, 21)]
    for index in range(21, 81):
        lines += [("a", index, 600 * MIB, 0), ("f", index), ("e",)]
    return CLASSIC + trace(*lines)


def incompressible():
    return trace(*[("a", index, 40 * MIB, 0) for index in range(1, 31)])


def larger_device_needed():
    """Expandable segments reserve more on a large device, where cached blocks remain mapped, but need a smaller device."""
    sizes = {2: 65, 7: 64, 10: 33, 11: 46, 12: 45, 13: 54, 15: 48, 16: 36, 17: 50, 19: 59, 22: 65}
    lines = [("a", index, size * MIB, int(index in (2, 10, 12, 13, 22))) for index, size in sizes.items()]
    for index, position in ((11, 9), (7, 2), (2, 1)):
        lines.insert(position, ("f", index))
    return "c expandable_segments:True\n" + trace(*lines)


def tape(name, count=None):
    """Returns the first `count` lines of a tape, and the following lines up to the end of their step."""
    path = ROOT / f"tests/data/tapes/{name}.tape.zst"
    lines = subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout.splitlines(keepends=True)
    while count is not None and lines[count][:1] not in b"af":
        count += 1
    return b"".join(lines[:count])


def keys_of(config):
    return set(re.findall(r"(?:^|,)\s*([a-z_0-9]+)\s*:", re.sub(r"\[[^]]*\]", "", config)))


class Advice(AdviseTest):
    def test_expandable_segments_help_growing_blocks(self):
        report = self.advice(self.file(growing_blocks()))
        self.assertEqual(report["advised"]["config"], "expandable_segments:True")
        self.assertLess(report["advised"]["peak_reserved"], report["current"]["peak_reserved"] // 2)
        self.assertIn("segments that grow in place", report["reason"])
        self.assertNotIn("expandable_segments:True", report["runner_up"]["config"])
        self.assertGreaterEqual(report["replayed"], 50)

    def test_rounding_helps_slightly_different_sizes(self):
        report = self.advice(self.file(similar_sizes()))
        self.assertRegex(report["advised"]["config"], r"roundup_power2_divisions:\S+$")
        self.assertLess(report["advised"]["peak_reserved"], report["current"]["peak_reserved"] * 3 // 4)
        self.assertIn("requests of similar sizes are rounded to one size", report["reason"])

    def test_idle_ms_helps_phases_on_different_streams(self):
        report = self.advice(self.file(two_phases()))
        self.assertRegex(report["advised"]["config"], r"^expandable_segments:True,idle_ms:\d+$")
        self.assertIn("idle memory is released before another stream or pool grows", report["reason"])
        self.assertTrue(report["reason"].endswith("; the smallest device stays at 202.00 MiB"), report["reason"])

    def test_value_with_a_cost_is_not_advised(self):
        config = "c garbage_collection_threshold:0.9 ,roundup_power2_divisions:[64:2,>:2] , expandable_segments:True\n"
        report = self.advice(self.file(config + incompressible()))
        self.assertEqual(report["advised"]["config"], "garbage_collection_threshold:0.9,expandable_segments:True")
        self.assertIn("its current value prevents the reuse of memory", report["reason"])

    def test_key_that_only_saves_time_is_not_the_reason(self):
        """Expandable segments alone increase the driver time too much; a second key reduces it."""
        path = self.file(costly_remapping())
        report = self.advice(path)
        self.assertGreater(self.replay_json(path, "expandable_segments:True")["driver_us"],
                           report["current"]["driver_us"] + 100_000)
        self.assertLess(report["advised"]["driver_us"], report["current"]["driver_us"] + 100_000)
        self.assertEqual(report["advised"]["changes"], 2)
        self.assertIn("mostly because of expandable_segments: segments that grow", report["reason"])

    def test_no_advice_without_improvement(self):
        path = self.file(incompressible())
        report = self.advice(path)
        self.assertIsNone(report["advised"])
        self.assertIsNone(report["runner_up"])
        self.assertIsNone(report["out_of_memory"])
        self.assertIn("at its peak, the program requests 1.17 GiB", report["reason"])
        self.assertIn("\nno configuration helps\n", self.tool("advise", path).stdout)

    def test_string_that_needs_a_larger_device_is_not_advised(self):
        path = self.file(larger_device_needed())
        report = self.advice(path)
        self.assertIsNone(report["advised"])
        self.assertIn(" and without a larger device; ", report["reason"])
        classic = self.replay_json(path, "expandable_segments:False", "--min-device")
        self.assertLess(classic["peak_reserved"], 0.99 * report["current"]["peak_reserved"])
        self.assertGreater(classic["min_device"], 1.01 * report["current"]["min_device"])

    @unittest.skipIf(IS_SANITIZED, "tested only without sanitizers")
    def test_string_that_needs_a_larger_device_is_no_runner_up(self):
        path = self.file(tape("classic-maxsplit", 150))
        text = self.tool("advise", path).stdout
        self.assertIn("\nrunner-up      none: other strings lower the peak, but need a larger device\n", text)
        baseline = self.replay_json(path, "expandable_segments:False,max_split_size_mb:24", "--min-device")
        expandable = self.replay_json(path, "expandable_segments:True", "--min-device")
        self.assertLess(expandable["peak_reserved"], 0.99 * baseline["peak_reserved"])
        self.assertGreater(expandable["min_device"], 1.01 * baseline["min_device"])

    @unittest.skipIf(IS_SANITIZED, "tested only without sanitizers")
    def test_peaks_are_those_of_a_device_with_free_memory(self):
        """The reported peaks, by which strings are compared, are those on a device with enough free memory."""
        path = self.file(re.sub(rb"(?m)^d \d+$", b"d 80", tape("expandable-small")))
        text = self.tool("advise", path).stdout
        string = re.search(r"^set +(\S+)$", text, re.MULTILINE)[1]
        peaks = [self.replay_json(path, config, "--device-memory=80GiB")["peak_reserved"] / MIB
                 for config in ("expandable_segments:True", string)]
        self.assertIn(f"on a device of 80.00 GiB, the peak falls from {peaks[0]:.2f} MiB to {peaks[1]:.2f} MiB, since ", text)

    def test_keys_unknown_to_pytorch_are_omitted_from_its_string(self):
        path = self.file("c history:state,page_size:small,max_split_size_mb:64\n" + incompressible())
        report = self.advice(path, "--pytorch")
        self.assertEqual((report["omitted"], report["current"]["config"]),
                         ("history:state,page_size:small", "max_split_size_mb:64,expandable_segments:False"))
        self.assertRegex(self.tool("advise", "--pytorch", path).stdout, r"\nomitted +history:state,page_size:small\n")
        self.assertIsNone(self.advice(path)["omitted"])

    def test_pytorch_string_has_only_keys_of_pytorch(self):
        path = SNAPSHOTS / "ring.pickle.zst"
        self.assertIn("page_size", keys_of(self.advice(path)["advised"]["config"]))
        report = self.advice(path, "--pytorch")
        for name in ("advised", "runner_up"):
            if report[name]:
                self.assertLessEqual(keys_of(report[name]["config"]), PYTORCH)


class OutOfMemory(AdviseTest):
    def test_completing_configuration_is_advised(self):
        path = self.file(out_of_memory_snapshot(100 * MIB))
        report = self.advice(path)
        out_of_memory = report["out_of_memory"]
        self.assertEqual((out_of_memory["device_bytes"], out_of_memory["failed"], out_of_memory["completes"]),
                         (450 * MIB, 1, True))
        self.assertEqual(out_of_memory["least_change"], "expandable_segments:True")
        self.assertFalse(report["current"]["completes"])
        self.assertTrue(report["reason"].startswith("the program completes on 450.00 MiB, "), report["reason"])
        text = self.tool("advise", path).stdout
        self.assertIn("1 request failed in the file; the program completes on 450.00 MiB with the advised string\n", text)
        self.assertRegex(text, r"least change +the advised string; or, with the current string, "
                               r"a device of 50\d\.00 MiB \(5\d\.00 MiB more\)\n")

    def test_impossible_request_is_reported(self):
        """10 blocks of 24 MiB and a request of 300 MiB need 540 MiB; the 10 classic segments of 40 MiB, 700 MiB."""
        path = self.file(out_of_memory_snapshot(300 * MIB))
        report = self.advice(path)
        out_of_memory = report["out_of_memory"]
        self.assertEqual((out_of_memory["completes"], out_of_memory["least_change"]), (False, None))
        self.assertLess(540 * MIB, report["advised"]["device_needed"] + 2 * MIB)
        self.assertLess(report["advised"]["device_needed"], report["current"]["device_needed"])
        text = self.tool("advise", path).stdout
        self.assertRegex(text, r"the program completes on 450\.00 MiB with none of \d+ configurations\n")
        self.assertRegex(text, r"least change +a device of 5\d\d\.00 MiB \(\d+\.00 MiB more\) with the advised string; with the "
                               r"current string, a device of 7\d\d\.00 MiB \(2\d\d\.00 MiB more\)\n")

    def test_option_selects_a_smaller_device(self):
        path = self.file(growing_blocks())
        report = self.advice(path, "--device-memory=3100MiB")
        self.assertEqual((report["device_bytes"], report["out_of_memory"]), (80 << 30, None))
        out_of_memory = self.advice(path, "--device-memory=2000MiB")["out_of_memory"]
        self.assertEqual((out_of_memory["device_bytes"], out_of_memory["failed"], out_of_memory["completes"]),
                         (2000 * MIB, 0, False))
        report = self.advice(self.file(similar_sizes(), "uneven"), "--device-memory=800MiB")
        self.assertFalse(report["current"]["completes"])
        self.assertTrue(report["out_of_memory"]["completes"])

    def test_option_selects_a_larger_device(self):
        report = self.advice(self.file("a 1 96636764160 0\nf 1\n"), "--device-memory=100GiB")
        self.assertEqual((report["device_bytes"], report["out_of_memory"]), (100 << 30, None))
        self.assertEqual(report["current"]["peak_reserved"], 90 << 30)

    def test_tape_is_replayed_on_its_own_device(self):
        """A tape is replayed on a device of its own size, and must complete on that size."""
        path = self.file(tape("tight-classic", 1200))
        report = json.loads(self.tool("advise", "--json", path).stdout)
        out_of_memory = report["out_of_memory"]
        self.assertEqual((report["device_bytes"], out_of_memory["device_bytes"]), (950 * MIB, 950 * MIB))
        self.assertEqual((out_of_memory["failed"], out_of_memory["completes"]), (1, True))
        self.expect_replay(path, report["advised"])
        self.expect_completion(path, report)

    def test_advise_writes_no_snapshot(self):
        path, folder = self.file(out_of_memory_snapshot(300 * MIB)), self.folder / "oom"
        folder.mkdir()
        self.tool("advise", path, environment={"XSEG_OOM_SNAPSHOT": str(folder)})
        self.assertEqual(list(folder.iterdir()), [])


class Report(AdviseTest):
    def test_text_report_equals_replays_of_the_strings(self):
        path = self.file(growing_blocks())
        text = self.tool("advise", path).stdout
        lines = text.splitlines()
        self.assertEqual(lines[0], str(path))
        self.assertEqual(lines[1].split(), ["set", "expandable_segments:True"])
        columns = {line.split(None, 1)[0]: line.split(None, 1)[1] for line in lines[1:] if line and line[0] != " "}
        for column, string in enumerate([columns["current"], columns["set"], columns["runner-up"]]):
            replay = self.tool("replay", "--min-device", "--config", string, path).stdout
            for row in ("peak reserved", "smallest device", "driver time, modeled"):
                expected = re.search(rf"^  {row} +(.*)$", replay, re.MULTILINE)[1]
                printed = re.search(rf"^  {row} +(.*)$", text, re.MULTILINE)[1]
                self.assertEqual(re.split(r"  +", printed)[column], expected, (row, string))

    def test_headroom_is_in_text_and_json(self):
        """At most 3 GiB are allocated, and 1 GiB at the end, when the classic segment of 2 GiB remains reserved."""
        path = self.file(CLASSIC + trace(("a", 1, 1024 * MIB, 0), ("a", 2, 2048 * MIB, 0), ("f", 2)))
        report = self.advice(path)
        self.assertEqual(report["current"]["headroom"], {"e": 0, "c": 2048 * MIB, "peak_e": 0, "peak_c": 0})
        self.assertEqual((report["transient_peak"], report["engine_margin"]), (2048 * MIB, 1536 * MIB))
        text = self.tool("advise", path).stdout
        for row, cell in (("headroom: e", "0.000"), ("headroom: c", "2.00 GiB"), ("peak headroom: e", "0.000"),
                          ("peak headroom: c", "0 bytes")):
            self.assertRegex(text, rf"(?m)^  {row} +{cell}$")
        self.assertIn("\nengines keep   1.50 GiB today: 0.75 x the transient peak of 2.00 GiB, at least 1.00 GiB\n", text)
        small = self.advice(self.file(CLASSIC + trace(("a", 1, 4 * MIB, 0), ("f", 1)), "small"))
        self.assertEqual((small["transient_peak"], small["engine_margin"]), (4 * MIB, 1024 * MIB))

    def test_output_is_repeatable(self):
        path = self.file(growing_blocks())
        single_cpu = self.tool("advise", path, preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))
        self.assertEqual(self.tool("advise", path).stdout, single_cpu.stdout)

    def test_trace_is_read_from_standard_input(self):
        completed = self.tool("advise", "-", stdin_data=b"xtrace 1\n" + incompressible().encode())
        self.assertTrue(completed.stdout.startswith("standard input\nno configuration helps\n"), completed.stdout)

    def test_progress_is_drawn_on_a_terminal(self):
        path = self.file(incompressible())
        with open(self.folder / "out", "wb") as output:
            progress = self.on_terminal("advise", path, stream="stderr", stdout=output)
        self.assertIn(b"no configuration helps", (self.folder / "out").read_bytes())
        self.assertRegex(progress, rb"\r\[#* *\] \d+ configurations, ")
        self.assertTrue(progress.endswith(b"\r\x1b[K"), progress[-80:])

    def test_control_characters_are_escaped(self):
        path = self.file(incompressible(), "a\x1b\n")
        for options in ((), ("--json",)):
            text = self.tool("advise", *options, path).stdout
            self.assertTrue(all(byte == "\n" or " " <= byte <= "~" for byte in text), text)


class IncompleteHistory(AdviseTest):
    """Files with an incomplete history: the advice reports the missing bytes, and is not certain."""

    def test_state_without_its_history_has_no_certain_advice(self):
        """A replay ends with 30 MiB: 5 small segments for the 10 blocks of 1 MiB, and 20 MiB for the freed block of 5 MiB."""
        snapshot = out_of_memory_snapshot(300 * MIB)
        state = {**snapshot, "device_traces": [[entry("free_completed", BASE + (1 << 40), 5 * MIB)]]}
        for segment in state["segments"]:
            segment["blocks"] = [{"address": segment["address"], "size": MIB, "requested_size": MIB, "state": "active_allocated",
                                  "frames": []},
                                 {"address": segment["address"] + MIB, "size": 39 * MIB, "requested_size": 0,
                                  "state": "inactive", "frames": []}]
        path = self.file(state)
        report = self.advice(path)
        self.assertFalse(report["certain"])
        self.assertRegex(report["notes"][0], r"^history: 370.00 MiB of the 400.00 MiB that are reserved at its "
                                             r"end are missing, since a replay with the file's configuration ends with 30.00 MiB: peaks are "
                                             r"too low, and the effect of a")
        self.assertRegex(report["reason"], "^as far as the recording shows, ")
        text = self.tool("advise", path).stdout
        self.assertNotIn("no configuration helps", text)
        verdict = "\nthe file does not show whether a configuration helps\n" if report["advised"] is None else "\ntry            "
        self.assertIn(verdict, text)
        self.assertIn("\nnote           history: 370.00 MiB", text)
        self.assertIn("\nout of memory  as far as the recording shows, " if report["out_of_memory"] else "\ncurrent", text)

    def test_complete_history_is_certain(self):
        report = self.advice(self.file(out_of_memory_snapshot(50 * MIB)))
        self.assertEqual((report["certain"], report["notes"]), (True, []))

    def test_segment_kind_is_inferred_without_settings(self):
        snapshot = out_of_memory_snapshot(50 * MIB)
        original = self.advice(self.file(snapshot))
        del snapshot["allocator_settings"]
        for segment in snapshot["segments"]:
            del segment["is_expandable"]
        report = self.advice(self.file(snapshot))
        self.assertEqual([report[name] for name in ("current", "advised", "runner_up")],
                         [original[name] for name in ("current", "advised", "runner_up")])
        self.assertEqual(report["notes"], ["configuration: the file has no setting expandable_segments; inferred from its "
                                           "segments: expandable_segments:False"])
        self.assertTrue(report["certain"])


class BadInput(AdviseTest):
    def expect_error(self, message, *arguments, **options):
        completed = self.tool("advise", *arguments, status=2, **options)
        self.assertEqual(completed.stdout, "")
        self.assertIn(message, completed.stderr)
        return completed.stderr

    def test_bad_files_are_rejected(self):
        data = pickle.dumps(out_of_memory_snapshot(MIB), 4)
        self.expect_error("unsupported file, a text file that begins with 'no trace'", self.file(b"no trace\n"))
        self.expect_error("is truncated", self.file(data[:-100]))
        self.expect_error("a dictionary without `segments`", self.file({"a": 1}))
        self.expect_error("cannot be opened", self.folder / "absent")
        empty = self.folder / "empty"
        empty.mkdir()
        self.expect_error("no snapshot in this folder", empty)
        self.expect_error("needs a file")
        self.expect_error("--device selects a history", "--device", 0, self.file(incompressible()))

    def test_missing_history_is_reported(self):
        error = self.expect_error("torch.cuda.memory._record_memory_history()",
                                  self.file(out_of_memory_snapshot(MIB, history=False)))
        self.assertIn("no history was recorded", error)

    def test_configuration_with_an_error_is_rejected(self):
        self.expect_error("did you mean expandable_segments?", self.file("c expandable_segment:True\n" + incompressible()))

    def test_unwritable_output_is_reported(self):
        with open("/dev/full", "wb") as full_device:
            completed = self.tool("advise", self.file(incompressible()), status=2, stdout=full_device)
        self.assertIn("No space left on device", completed.stderr)


def child_of(process):
    """Returns the ID of a running child of a process, or None after the process exited."""
    while process.poll() is None:
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[:2]
            except OSError:  # the process exited
                continue
            if int(parent) == process.pid and state != "Z":
                return int(path.parent.name)
    return None


class KilledProcess(AdviseTest):
    def test_killed_process_is_reported(self):
        path = self.file("".join(f"a {i} 512 0\nf {i}\n" for i in range(300_000)))
        for _ in range(20):  # until a child is found before it exits
            with subprocess.Popen([TOOL, "advise", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
                child = child_of(tool)
                if child is not None:
                    os.kill(child, signal.SIGKILL)
                output, error = tool.communicate()
            if tool.returncode != 0:
                break
        self.assertEqual((tool.returncode, output), (2, b""))
        self.assertIn(b"was killed, for example because the host ran out of memory\n", error)


class PyTorchFiles(AdviseTest):
    @unittest.skipIf(IS_SANITIZED, "tested only without sanitizers")
    def test_pytorch_snapshots_get_advice(self):
        """In tests/data/snapshots, `classic` requests 4 TiB once, which fails with any configuration on 80 GiB."""
        short = self.advice(SNAPSHOTS / "short.pickle.zst")
        classic = json.loads(self.tool("advise", "--json", SNAPSHOTS / "classic.pickle.zst").stdout)
        for report, completes in ((short, True), (classic, False)):
            self.assertLess(report["advised"]["peak_reserved"], report["current"]["peak_reserved"])
            self.assertEqual((report["out_of_memory"]["failed"], report["out_of_memory"]["completes"]), (1, completes))
        self.assertGreater(classic["advised"]["device_needed"], 1 << 42)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
