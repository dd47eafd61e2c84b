# SPDX-License-Identifier: MIT
"""`xseg replay --history`: history.py TOOL SOURCE_ROOT."""
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

CLOCKED = """xtrace 1
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
# Line, action, stream and pool of its events.
CLOCKED_EVENTS = [
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


def holes(blocks):
    """A trace whose last operation gives back so many pages that lie apart."""
    lines = [f"a {i} {20 * MIB} 0" for i in range(2 * blocks)]
    lines += [f"f {i}" for i in range(0, 2 * blocks, 2)]
    return "\n".join(["xtrace 1", "c expandable_segments:True", *lines, "e", ""])


def version():
    return subprocess.run([TOOL, "--version"], capture_output=True, text=True, check=True).stdout


class HistoryTest(ToolCase):
    def replay(self, *arguments, **how):
        return self.tool("replay", *arguments, **how)

    def history(self, trace, *options, **how):
        out = self.folder / "history.json"
        path = trace if isinstance(trace, pathlib.Path) else self.file(trace)
        self.replay("--history", out, *options, path, **how)
        text = out.read_text()
        self.assertTrue(text.endswith("\n"))
        *events, last = map(json.loads, text.splitlines())
        self.assertEqual(list(last), ["events", "lost", "stacks", "stacks_lost"])
        self.assertEqual(last["events"], len(events))
        self.assertEqual([event["number"] for event in events], list(range(1, len(events) + 1)))
        for event in events:
            self.assertEqual(list(event), KEYS)
        return events, last


class Events(HistoryTest):
    def test_each_event_has_its_line_stream_and_pool(self):
        events, last = self.history(CLOCKED)
        self.assertEqual([(event["line"], event["action"], event["stream"], event["pool"])
                          for event in events], CLOCKED_EVENTS)
        self.assertEqual(last["lost"], 0)
        self.assertTrue(all(event["stack"] == [] and not event["fallback"] for event in events))

    def test_sizes_and_addresses(self):
        events, _ = self.history(CLOCKED)
        sizes = {event["line"]: (event["bytes"], event["requested"]) for event in events if event["action"] == "alloc"}
        self.assertEqual(sizes, {5: (3000320, 3000000), 6: (512, 500), 7: (30208, 30000)})
        base = {event["line"]: event["base"] for event in events if event["action"] == "alloc"}
        freed = {event["line"]: event["base"] for event in events if event["action"] == "free_requested"}
        self.assertEqual([freed[line] for line in (11, 12, 14)], [base[line] for line in (5, 6, 7)])
        mapped = [event for event in events if event["action"] == "segment_map"]
        self.assertTrue(all(event["bytes"] % (2 * MIB) == 0 for event in mapped))

    def test_with_the_key_a_block_has_the_line_of_its_allocation(self):
        out = self.folder / "history.json"
        self.replay("--history", out, "--config", "expandable_segments:True,block_user:True", self.file(CLOCKED))
        *events, _ = map(json.loads, out.read_text().splitlines())
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

    def test_sequence_numbers_rise_with_memory_events(self):
        events, _ = self.history(CLOCKED)
        orders = [event["order"] for event in events if event["order"]]
        self.assertEqual(orders, sorted(set(orders)))
        for event in events:
            has_order = event["action"] in ("annotation", "trim", "segment_map", "segment_unmap")
            self.assertEqual(event["order"] > 0, has_order, event)

    def test_marks_are_annotations_and_labels(self):
        events, _ = self.history(CLOCKED)
        self.assertEqual({event["label"] for event in events[:7]}, {"load"})
        self.assertEqual({event["label"] for event in events[7:]}, {"request 1"})
        unmarked, _ = self.history(CLOCKED.replace("m load\n", "").replace("m request 1\n", ""))
        self.assertEqual({event["label"] for event in unmarked}, {None})

    def test_marks_may_have_any_byte(self):
        events, _ = self.history(b"xtrace 1\nm " + b"x" * 300 + b"\nm \xff\xfe\nm \xc3\xa4\n")
        self.assertEqual([event["label"] for event in events], ["x" * 80, r"\xff\xfe", "\u00e4"])

    def test_a_refused_request(self):
        events, _ = self.history("xtrace 1\nc expandable_segments:True\nd 64\na 0 100000000 0\n", status=3)
        self.assertEqual([(event["line"], event["action"], event["base"], event["requested"])
                          for event in events], [(4, "oom", 0, 100000000)])

    def test_a_replay_is_repeatable(self):
        trace = ROOT / "tests/data/tapes/tight-expandable-streams.tape.zst"
        first, second = (self.history(trace)[0] for _ in range(2))
        for event in first + second:
            del event["thread"]
        self.assertEqual(first, second)
        self.assertLessEqual({"remap", "segment_unmap", "free_completed"}, {event["action"] for event in first})

    def test_played_back_it_gives_the_live_blocks(self):
        trace = ROOT / "tests/data/tapes/expandable-mixed.tape.zst"
        done = self.replay("--json", trace)
        events, last = self.history(trace)
        live, most, bytes_live = {}, 0, 0
        for event in events:
            if event["action"] == "alloc":
                self.assertNotIn(event["base"], live)
                live[event["base"]] = event["bytes"]
                bytes_live += event["bytes"]
            elif event["action"] == "free_requested":
                bytes_live -= live.pop(event["base"])
            most = max(most, bytes_live)
        self.assertEqual(last["lost"], 0)
        self.assertEqual(most, json.loads(done.stdout)["peak_allocated"])


class Clock(HistoryTest):
    def test_times_are_those_of_the_trace(self):
        events, _ = self.history(CLOCKED, "--costs", "none")
        by_line = {event["line"]: event["time_ns"] for event in events}
        for line, usec in ((3, 5000000), (5, 5000000), (9, 6000000), (14, 6000000), (16, 6000100)):
            self.assertEqual(by_line[line], usec * 1000, line)

    def test_driver_calls_take_time(self):
        times = [event["time_ns"] for event in self.history(CLOCKED)[0]]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[1], 5000000000)
        self.assertLess(times[6], 6000000000)

    def test_before_the_first_reading_the_clock_stands(self):
        events, _ = self.history("xtrace 1\na 0 3000000 0\n@ 70\nf 0\n")
        self.assertEqual({event["time_ns"] for event in events if event["line"] == 2}, {70000})

    def test_without_a_clock_it_begins_at_0(self):
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

    def test_a_snapshot_has_its_own_times(self):
        events, last = self.history(ROOT / "tests/data/snapshots/ring.pickle.zst")
        self.assertEqual(last["lost"], 0)
        self.assertGreater(events[0]["time_ns"], 10**18)


class Keys(HistoryTest):
    def test_actions_are_left_out(self):
        config = "expandable_segments:True,history:all,history_skip:[free_completed,trim]"
        events, _ = self.history(CLOCKED, "--config", config)
        self.assertEqual([(event["line"], event["action"]) for event in events],
                         [(line, action) for line, action, *_ in CLOCKED_EVENTS
                          if action not in ("free_completed", "trim")])

    def test_named_actions_are_kept(self):
        for config in ("history:nothing", "history:state"):
            events, last = self.history(CLOCKED, "--config", config)
            self.assertEqual((events, last["lost"]), ([], 0))

    def test_overwritten_events_are_reported(self):
        trace = holes(40)
        whole, last = self.history(trace)
        self.assertEqual(last["lost"], 0)
        events, last = self.history(trace, "--config", "expandable_segments:True,history_events:16")
        self.assertGreater(last["lost"], 0)
        self.assertEqual(len(events) + last["lost"], len(whole))
        self.assertEqual([event["action"] for event in events[-16:]], [event["action"] for event in whole[-16:]])

    def test_of_two_configurations_the_first(self):
        events, _ = self.history(CLOCKED, "--compare", "expandable_segments:False")
        self.assertIn("segment_map", {event["action"] for event in events})
        events, _ = self.history(CLOCKED, "--config", "expandable_segments:False", "--compare",
                                 "expandable_segments:True")
        self.assertLessEqual({"segment_alloc", "segment_free"}, {event["action"] for event in events})

    def test_the_background_thread_does_not_interfere(self):
        events, _ = self.history("xtrace 1\na 0 3000000 0\nf 0\n", "--config",
                                 "expandable_segments:True,background_thread:True,idle_ms:1")
        self.assertEqual([event["action"] for event in events],
                         ["segment_map", "alloc", "free_requested", "free_completed"])


class Output(HistoryTest):
    def test_standard_output(self):
        done = self.replay("--history", "-", "--json", self.file(CLOCKED))
        self.assertEqual(len([json.loads(line) for line in done.stdout.splitlines()]), len(CLOCKED_EVENTS) + 1)
        self.assertEqual(json.loads(done.stderr)["events"], 6)

    def test_only_one_goes_to_standard_output(self):
        self.assertIn("--history and --timeline cannot both write to standard output",
                      self.replay("--history", "-", "--timeline", "-", self.file(CLOCKED), status=2).stderr)
        timeline = self.folder / "timeline"
        done = self.replay("--history", "-", "--timeline", timeline, self.file(CLOCKED))
        self.assertIn("# usec", timeline.read_text())
        self.assertEqual(len(done.stdout.splitlines()), len(CLOCKED_EVENTS) + 1)

    def test_one_trace_at_a_time(self):
        trace = self.file(CLOCKED)
        done = self.replay("--history", self.folder / "h", trace, trace, status=2)
        self.assertIn("--history requires a single FILE", done.stderr)

    def test_a_folder_that_is_not_there(self):
        path = self.folder / "none" / "history"
        done = self.replay("--history", path, self.file(CLOCKED), status=2)
        self.assertEqual(done.stdout, "")
        self.assertIn(f"{path} cannot be written: No such file or directory", done.stderr)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full")
    def test_a_full_disk(self):
        full = pathlib.Path("/dev/full")
        for trace in (self.file(CLOCKED), ROOT / "tests/data/tapes/expandable-mixed.tape.zst"):
            done = self.replay("--history", full, trace, status=2)
            self.assertEqual(done.stdout, "")
            self.assertEqual(done.stderr.splitlines()[-1:],
                             [f"xseg replay: {full} cannot be written: No space left on device"])


class Names(HistoryTest):
    def stacks(self, **how):
        events, last = self.history(CLOCKED, "--config", "history_stacks:all", **how)
        stacks = [event["stack"] for event in events if event["action"] == "alloc"]
        self.assertGreater(last["stacks"], 0)
        self.assertEqual(last["stacks_lost"], 0)
        for stack in stacks:
            self.assertGreater(len(stack), 3)
            for frame in stack:
                self.assertEqual(list(frame), FRAME_KEYS)
        return stacks

    def test_functions_are_named(self):
        if " with libdw" not in version():
            self.skipTest("the tool was built without libdw")
        for stack in self.stacks():
            self.assertLessEqual({"replay_run", "main"}, {frame["function"] for frame in stack})

    def test_lines_are_named_where_there_is_debug_information(self):
        if " with libdw" not in version() or "debug" not in version():
            self.skipTest("the tool was built without libdw or without debug information")
        for stack in self.stacks():
            frame = next(frame for frame in stack if frame["function"] == "replay_run")
            path = ROOT / "src/tools/replay/replay.c"
            self.assertEqual(pathlib.Path(frame["file"]).name, "replay.c")
            self.assertIn("play", path.read_text().splitlines()[frame["line"] - 1])

    def test_without_symbols_there_is_a_place(self):
        if shutil.which("strip") is None:
            self.skipTest("strip is not installed")
        copy = self.folder / "xseg"
        shutil.copy(TOOL, copy)
        subprocess.run(["strip", copy], check=True)
        libraries = str(pathlib.Path(TOOL).parent)
        for stack in self.stacks(program=copy, environment={"LD_LIBRARY_PATH": libraries}):
            own = [frame for frame in stack if frame["module"] and os.path.samefile(frame["module"], copy)]
            self.assertGreater(len(own), 2)
            for frame in own:
                self.assertNotIn(frame["function"], ("replay_run", "main"))
                self.assertIsNone(frame["line"])
                self.assertGreater(frame["offset"], 0)
                self.assertRegex(frame["build_id"] or "", r"\A([0-9a-f]{2})*\Z")

    def test_allocations_alone(self):
        events, _ = self.history(CLOCKED, "--config", "history_stacks:alloc")
        for event in events:
            takes = event["action"] in ("alloc", "segment_map")
            self.assertEqual(event["stack"] != [], takes, event["action"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
