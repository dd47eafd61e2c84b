# SPDX-License-Identifier: MIT
"""Tests of `xseg replay --history`: history.py TOOL SOURCE_ROOT."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from folder_case import MIB, ROOT, TOOL, ToolCase

KEYS = ["number", "line", "action", "device", "stream", "pool", "fallback", "base", "bytes",
        "requested", "time_ns", "order", "thread", "label", "stack"]
FRAME_KEYS = ["function", "function_offset", "file", "line", "module", "build_id", "offset"]

TRACE_WITH_TIMES = """xtrace 1
c expandable_segments:True
m load
@ 5000000
a 0 3000000 0
a 1 500 7
a 2 30000 0 42
@ 6000000
m request 1
u 0 7
f 0
f 1
y *
f 2
@ 6000100
e
"""
# Line, action, stream and pool of each event.
EXPECTED_EVENTS = [
    (3, "annotation", 0, 0),
    (5, "segment_map", 0, 0), (5, "alloc", 0, 0),
    (6, "segment_map", 7, 0), (6, "alloc", 7, 0),
    (7, "segment_map", 0, 42), (7, "alloc", 0, 42),
    (9, "annotation", 0, 0),
    (11, "free_requested", 0, 0),
    (12, "free_requested", 7, 0), (12, "free_completed", 7, 0),
    (14, "free_requested", 0, 42), (14, "free_completed", 0, 42),
    (16, "free_completed", 0, 0),
    (16, "trim", 7, 0), (16, "segment_unmap", 7, 0),
    (16, "trim", 0, 0), (16, "segment_unmap", 0, 0)]


def trace_with_separate_pages(blocks):
    """Returns a trace whose last operation releases separate pages, one per block."""
    lines = [f"a {i} {20 * MIB} 0" for i in range(2 * blocks)]
    lines += [f"f {i}" for i in range(0, 2 * blocks, 2)]
    return "\n".join(["xtrace 1", "c expandable_segments:True", *lines, "e", ""])


def version():
    return subprocess.run([TOOL, "--version"], capture_output=True, text=True, check=True).stdout


class HistoryTest(ToolCase):
    def replay(self, *arguments, **options):
        return self.tool("replay", *arguments, **options)

    def history(self, trace, *options, **settings):
        output_path = self.folder / "history.json"
        path = trace if isinstance(trace, pathlib.Path) else self.file(trace)
        self.replay("--history", output_path, *options, path, **settings)
        text = output_path.read_text()
        self.assertTrue(text.endswith("\n"))
        *events, summary = map(json.loads, text.splitlines())
        self.assertEqual(list(summary), ["events", "lost", "stacks", "stacks_lost"])
        self.assertEqual(summary["events"], len(events))
        self.assertEqual([event["number"] for event in events], list(range(1, len(events) + 1)))
        for event in events:
            self.assertEqual(list(event), KEYS)
        return events, summary


class Events(HistoryTest):
    def test_each_event_has_its_line_stream_and_pool(self):
        events, summary = self.history(TRACE_WITH_TIMES)
        self.assertEqual([(event["line"], event["action"], event["stream"], event["pool"]) for event in events], EXPECTED_EVENTS)
        self.assertEqual(summary["lost"], 0)
        self.assertTrue(all(event["stack"] == [] and not event["fallback"] for event in events))

    def test_events_have_sizes_and_addresses(self):
        events, _ = self.history(TRACE_WITH_TIMES)
        sizes = {event["line"]: (event["bytes"], event["requested"]) for event in events if event["action"] == "alloc"}
        # Sizes are rounded up to a multiple of 512 bytes.
        self.assertEqual(sizes, {5: (3000320, 3000000), 6: (512, 500), 7: (30208, 30000)})
        base = {event["line"]: event["base"] for event in events if event["action"] == "alloc"}
        freed = {event["line"]: event["base"] for event in events if event["action"] == "free_requested"}
        self.assertEqual([freed[line] for line in (11, 12, 14)], [base[line] for line in (5, 6, 7)])
        mapped = [event for event in events if event["action"] == "segment_map"]
        self.assertTrue(all(event["bytes"] % (2 * MIB) == 0 for event in mapped))

    def test_block_user_is_the_line_of_the_allocation(self):
        output_path = self.folder / "history.json"
        self.replay("--history", output_path, "--config", "expandable_segments:True,block_user:True", self.file(TRACE_WITH_TIMES))
        *events, _ = map(json.loads, output_path.read_text().splitlines())
        allocated = {}
        for event in events:
            if event["action"] == "alloc":
                allocated[event["base"]] = event["line"]
            if event["action"] in ("alloc", "free_requested", "free_completed"):
                self.assertEqual(list(event), [*KEYS, "user"])
                self.assertEqual(event["user"], allocated[event["base"]])
            else:
                self.assertEqual(list(event), KEYS)
        self.assertEqual(sorted(allocated.values()), [5, 6, 7])

    def test_sequence_numbers_increase_with_memory_events(self):
        events, _ = self.history(TRACE_WITH_TIMES)
        sequence_numbers = [event["order"] for event in events if event["order"]]
        self.assertEqual(sequence_numbers, sorted(set(sequence_numbers)))
        for event in events:
            has_order = event["action"] in ("annotation", "trim", "segment_map", "segment_unmap")
            self.assertEqual(event["order"] > 0, has_order, event)

    def test_marks_are_annotations_and_labels(self):
        events, _ = self.history(TRACE_WITH_TIMES)
        self.assertEqual({event["label"] for event in events[:7]}, {"load"})
        self.assertEqual({event["label"] for event in events[7:]}, {"request 1"})
        events_without_marks, _ = self.history(TRACE_WITH_TIMES.replace("m load\n", "").replace("m request 1\n", ""))
        self.assertEqual({event["label"] for event in events_without_marks}, {None})

    def test_marks_may_have_any_byte(self):
        events, _ = self.history(b"xtrace 1\nm " + b"x" * 300 + b"\nm \xff\xfe\nm \xc3\xa4\n")
        self.assertEqual([event["label"] for event in events], ["x" * 80, r"\xff\xfe", "\u00e4"])

    def test_failed_request_is_an_event(self):
        events, _ = self.history("xtrace 1\nc expandable_segments:True\nd 64\na 0 100000000 0\n", status=3)
        self.assertEqual([(event["line"], event["action"], event["base"], event["requested"])
                          for event in events], [(4, "oom", 0, 100000000)])

    def test_history_is_repeatable(self):
        trace = ROOT / "tests/data/tapes/tight-expandable-streams.tape.zst"
        first, second = (self.history(trace)[0] for _ in range(2))
        for event in first + second:
            del event["thread"]
        self.assertEqual(first, second)
        self.assertLessEqual({"remap", "segment_unmap", "free_completed"}, {event["action"] for event in first})

    def test_peak_of_the_events_equals_that_of_the_replay(self):
        trace = ROOT / "tests/data/tapes/expandable-mixed.tape.zst"
        completed = self.replay("--json", trace)
        events, summary = self.history(trace)
        allocated, peak_bytes, allocated_bytes = {}, 0, 0
        for event in events:
            if event["action"] == "alloc":
                self.assertNotIn(event["base"], allocated)
                allocated[event["base"]] = event["bytes"]
                allocated_bytes += event["bytes"]
            elif event["action"] == "free_requested":
                allocated_bytes -= allocated.pop(event["base"])
            peak_bytes = max(peak_bytes, allocated_bytes)
        self.assertEqual(summary["lost"], 0)
        self.assertEqual(peak_bytes, json.loads(completed.stdout)["peak_allocated"])


class Clock(HistoryTest):
    def test_times_are_those_of_the_trace(self):
        events, _ = self.history(TRACE_WITH_TIMES, "--costs", "none")
        by_line = {event["line"]: event["time_ns"] for event in events}
        for line, time_us in ((3, 5000000), (5, 5000000), (9, 6000000), (14, 6000000), (16, 6000100)):
            self.assertEqual(by_line[line], time_us * 1000, line)

    def test_driver_calls_take_time(self):
        times = [event["time_ns"] for event in self.history(TRACE_WITH_TIMES)[0]]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[1], 5000000000)
        self.assertLess(times[6], 6000000000)

    def test_clock_is_constant_before_the_first_time_of_the_trace(self):
        events, _ = self.history("xtrace 1\na 0 3000000 0\n@ 70\nf 0\n")
        self.assertEqual({event["time_ns"] for event in events if event["line"] == 2}, {70000})

    def test_clock_begins_at_0_without_times(self):
        self.assertEqual({event["time_ns"] for event in self.history("xtrace 1\na 0 3000000 0\nf 0\n", "--costs",
                                                                     "none")[0]}, {0})

    def test_decay_happens_between_events(self):
        events, _ = self.history("xtrace 1\n@ 0\na 0 3000000 0\nf 0\n@ 60000000\n", "--config",
                                 "expandable_segments:True,idle_ms:10000", "--tick", 1000)
        decayed = [event for event in events if event["action"] == "decay"]
        self.assertEqual({event["line"] for event in decayed}, {5})
        self.assertGreater(decayed[0]["time_ns"], 10**9)
        self.assertLess(decayed[-1]["time_ns"], 60 * 10**9)
        self.assertEqual([event["action"] for event in events][-1], "segment_unmap")

    def test_snapshot_has_recorded_times(self):
        events, summary = self.history(ROOT / "tests/data/snapshots/ring.pickle.zst")
        self.assertEqual(summary["lost"], 0)
        self.assertGreater(events[0]["time_ns"], 10**18)


class Keys(HistoryTest):
    def test_skipped_actions_are_omitted(self):
        config = "expandable_segments:True,history:all,history_skip:[free_completed,trim]"
        events, _ = self.history(TRACE_WITH_TIMES, "--config", config)
        self.assertEqual([(event["line"], event["action"]) for event in events],
                         [(line, action) for line, action, *_ in EXPECTED_EVENTS
                          if action not in ("free_completed", "trim")])

    def test_history_without_actions_is_empty(self):
        for config in ("history:nothing", "history:state"):
            events, summary = self.history(TRACE_WITH_TIMES, "--config", config)
            self.assertEqual((events, summary["lost"]), ([], 0))

    def test_overwritten_events_are_reported(self):
        trace = trace_with_separate_pages(40)
        complete, summary = self.history(trace)
        self.assertEqual(summary["lost"], 0)
        events, summary = self.history(trace, "--config", "expandable_segments:True,history_events:16")
        self.assertGreater(summary["lost"], 0)
        self.assertEqual(len(events) + summary["lost"], len(complete))
        self.assertEqual([event["action"] for event in events[-16:]], [event["action"] for event in complete[-16:]])

    def test_history_is_that_of_the_first_configuration(self):
        events, _ = self.history(TRACE_WITH_TIMES, "--compare", "expandable_segments:False")
        self.assertIn("segment_map", {event["action"] for event in events})
        events, _ = self.history(TRACE_WITH_TIMES, "--config", "expandable_segments:False", "--compare",
                                 "expandable_segments:True")
        self.assertLessEqual({"segment_alloc", "segment_free"}, {event["action"] for event in events})

    def test_background_thread_adds_no_events(self):
        events, _ = self.history("xtrace 1\na 0 3000000 0\nf 0\n", "--config",
                                 "expandable_segments:True,background_thread:True,idle_ms:1")
        self.assertEqual([event["action"] for event in events], ["segment_map", "alloc", "free_requested", "free_completed"])


class Output(HistoryTest):
    def test_history_can_use_standard_output(self):
        completed = self.replay("--history", "-", "--json", self.file(TRACE_WITH_TIMES))
        self.assertEqual(len([json.loads(line) for line in completed.stdout.splitlines()]), len(EXPECTED_EVENTS) + 1)
        self.assertEqual(json.loads(completed.stderr)["events"], 6)  # 3 allocations and 3 frees

    def test_only_one_output_can_use_standard_output(self):
        self.assertIn("--history and --timeline cannot both write to standard output",
                      self.replay("--history", "-", "--timeline", "-", self.file(TRACE_WITH_TIMES), status=2).stderr)
        timeline = self.folder / "timeline"
        completed = self.replay("--history", "-", "--timeline", timeline, self.file(TRACE_WITH_TIMES))
        self.assertIn("# usec", timeline.read_text())
        self.assertEqual(len(completed.stdout.splitlines()), len(EXPECTED_EVENTS) + 1)

    def test_history_of_several_traces_is_rejected(self):
        trace = self.file(TRACE_WITH_TIMES)
        completed = self.replay("--history", self.folder / "h", trace, trace, status=2)
        self.assertIn("--history requires a single FILE", completed.stderr)

    def test_missing_folder_is_reported(self):
        path = self.folder / "none" / "history"
        completed = self.replay("--history", path, self.file(TRACE_WITH_TIMES), status=2)
        self.assertEqual(completed.stdout, "")
        self.assertIn(f"{path} cannot be written: No such file or directory", completed.stderr)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_full_disk_is_reported(self):
        full_device = pathlib.Path("/dev/full")
        for trace in (self.file(TRACE_WITH_TIMES), ROOT / "tests/data/tapes/expandable-mixed.tape.zst"):
            completed = self.replay("--history", full_device, trace, status=2)
            self.assertEqual(completed.stdout, "")
            self.assertEqual(completed.stderr.splitlines()[-1:],
                             [f"xseg replay: {full_device} cannot be written: No space left on device"])


class Stacks(HistoryTest):
    def stacks(self, **options):
        events, summary = self.history(TRACE_WITH_TIMES, "--config", "history_stacks:all", **options)
        stacks = [event["stack"] for event in events if event["action"] == "alloc"]
        self.assertGreater(summary["stacks"], 0)
        self.assertEqual(summary["stacks_lost"], 0)
        for stack in stacks:
            self.assertGreater(len(stack), 3)
            for frame in stack:
                self.assertEqual(list(frame), FRAME_KEYS)
        return stacks

    def test_frames_have_function_names(self):
        if " with libdw" not in version():
            self.skipTest("the tool was built without libdw")
        for stack in self.stacks():
            self.assertLessEqual({"replay_run", "main"}, {frame["function"] for frame in stack})

    def test_frames_have_lines_with_debug_information(self):
        if " with libdw" not in version() or "debug" not in version():
            self.skipTest("the tool was built without libdw or without debug information")
        for stack in self.stacks():
            frame = next(frame for frame in stack if frame["function"] == "replay_run")
            path = ROOT / "src/tools/replay/replay.c"
            self.assertEqual(pathlib.Path(frame["file"]).name, "replay.c")
            self.assertIn("play", path.read_text().splitlines()[frame["line"] - 1])

    def test_frames_have_module_offsets_without_symbols(self):
        if shutil.which("strip") is None:
            self.skipTest("strip is not installed")
        copy = self.folder / "xseg"
        shutil.copy(TOOL, copy)
        subprocess.run(["strip", copy], check=True)
        for stack in self.stacks(program=copy, environment={"LD_LIBRARY_PATH": str(pathlib.Path(TOOL).parent)}):
            tool_frames = [frame for frame in stack if frame["module"] and os.path.samefile(frame["module"], copy)]
            self.assertGreater(len(tool_frames), 2)
            for frame in tool_frames:
                self.assertNotIn(frame["function"], ("replay_run", "main"))
                self.assertIsNone(frame["line"])
                self.assertGreater(frame["offset"], 0)
                self.assertRegex(frame["build_id"] or "", r"\A([0-9a-f]{2})*\Z")

    def test_only_selected_events_have_stacks(self):
        events, _ = self.history(TRACE_WITH_TIMES, "--config", "history_stacks:alloc")
        for event in events:
            has_stack = event["action"] in ("alloc", "segment_map")
            self.assertEqual(event["stack"] != [], has_stack, event["action"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
