# SPDX-License-Identifier: MIT
"""Tests of `xseg export --perfetto`: export.py TOOL SOURCE_ROOT.

Traces are read with the Python package perfetto, which .ci/setup --perfetto installs in .deps/perfetto.  Without the
package, these cases are skipped.
"""
import collections
import json
import os
import pathlib
import pickle
import re
import sys
import unittest

import folder_case
from folder_case import MIB, ROOT, ToolCase

sys.path.insert(0, str(ROOT / "tests/support"))
sys.path.append(str(ROOT / ".deps/perfetto" / sys.implementation.cache_tag))
import view_program  # pylint: disable=wrong-import-position
try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos
except ImportError:
    protos = None

SNAPSHOTS = sorted(folder_case.SNAPSHOTS.glob("*.pickle.zst"))
BASE = 0x7f0000000000
COUNTERS = ("reserved", "allocated", "pending", "cached")
EXIT_SKIPPED = 77


class Trace:
    """A parsed Perfetto trace: tracks with their events, and interned strings by ID."""

    def __init__(self, data):
        trace = protos.Trace()
        trace.ParseFromString(data)
        self.tracks, self.children, self.events = {}, collections.defaultdict(list), collections.defaultdict(list)
        self.names, self.keys, self.strings = {}, {}, {}
        self.clock, self.packets = None, len(trace.packet)
        for index, packet in enumerate(trace.packet):
            assert packet.trusted_packet_sequence_id == 1
            assert packet.sequence_flags == (1 if index == 0 else 2)
            self.add(packet)

    def add(self, packet):
        if packet.HasField("clock_snapshot"):
            self.clock = packet.clock_snapshot.primary_trace_clock
            assert packet.trace_packet_defaults.timestamp_clock_id == self.clock
            assert packet.clock_snapshot.clocks[0].clock_id == self.clock
        for field, interned_strings in (("event_names", self.names), ("debug_annotation_names", self.keys),
                                        ("debug_annotation_string_values", self.strings)):
            for interned in getattr(packet.interned_data, field):
                assert interned.iid not in interned_strings
                interned_strings[interned.iid] = interned.str.decode() if interned_strings is self.strings else interned.name
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in self.tracks and (not track.parent_uuid or track.parent_uuid in self.tracks)
            self.tracks[track.uuid] = track
            self.children[track.parent_uuid].append(track.uuid)
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.timestamp % 1000 == 0
            assert event.HasField("counter_value") == self.tracks[event.track_uuid].HasField("counter")
            self.events[event.track_uuid].append((packet.timestamp // 1000, event))

    def find(self, *names):
        """Returns the UUIDs of the tracks with a path of names, which begins with a device."""
        uuids = [uuid for uuid in self.children[0] if self.tracks[uuid].name.endswith(names[0])]
        for name in names[1:]:
            uuids = [child for uuid in uuids for child in self.children[uuid] if self.tracks[child].name == name]
        return uuids

    def counter(self, *names):
        uuid, = self.find(*names)
        assert all(event.type == protos.TrackEvent.TYPE_COUNTER for _, event in self.events[uuid])
        return [(time, event.counter_value) for time, event in self.events[uuid]]

    def annotations(self, event):
        values = {}
        for annotation in event.debug_annotations:
            field = annotation.WhichOneof("value")
            value = getattr(annotation, field)
            values[self.keys[annotation.name_iid]] = self.strings[value] if field == "string_value_iid" else value
        return values

    def instants(self, *names):
        uuid, = self.find(*names)
        assert all(event.type == protos.TrackEvent.TYPE_INSTANT for _, event in self.events[uuid])
        return [(time, self.names[event.name_iid], self.annotations(event)) for time, event in self.events[uuid]]

    def slices(self, *names):
        """Returns (begin, end, name, annotations) of each slice in the tracks of a name; `end` is None without an end."""
        slices = []
        for uuid in self.find(*names):
            is_open = False
            for time, event in sorted(self.events[uuid], key=lambda event: event[0]):
                if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
                    assert not is_open, "slices of a track overlap"
                    slices.append([time, None, self.names[event.name_iid], self.annotations(event)])
                else:
                    assert event.type == protos.TrackEvent.TYPE_SLICE_END and is_open
                    slices[-1][1] = time
                is_open = not is_open
        return sorted(slices, key=lambda event: event[0])


def integrate(values, end):
    return sum(value * (next_time - time) for (time, value), (next_time, _) in zip(values, [*values[1:], (end, 0)]))


class ExportTest(ToolCase):
    def run_tool(self, *arguments, status=0, **options):
        completed = self.tool(*arguments, status=status, cwd=self.folder, text=False, **options)
        return completed.stdout, completed.stderr

    def export(self, *arguments, status=0, **options):
        return self.run_tool("export", "--perfetto", *arguments, status=status, **options)[1]

    def file(self, contents, name="job.pickle"):
        return super().file(contents, name)

    def trace(self, snapshot, *options):
        path = snapshot if isinstance(snapshot, pathlib.Path) else self.file(snapshot)
        self.assertEqual(self.export(path, "-o", "out.perfetto", *options), "")
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("out.perfetto.")], [])
        return Trace((self.folder / "out.perfetto").read_bytes())

    def read_report(self, path):
        return json.loads(self.run_tool("blame", "--json", path)[0])


@unittest.skipUnless(protos, "the Python package perfetto is not installed; run .ci/setup --perfetto")
class Counters(ExportTest):
    def test_counters_match_the_program_at_every_event(self):
        for seed, skipped in ((1, 0), (2, 150), (3, 400)):
            program = view_program.Program(seed, 600, skipped)
            # Times are distinct, so that a state can be found by its time.
            for index, entry in enumerate(program.trace):
                entry["time_us"] = 10 ** 15 + 10 * index
            trace = self.trace(program.snapshot())
            counters, current = {name: dict(trace.counter("device 0", name)) for name in COUNTERS}, {}
            for index, state in enumerate(program.states[1:]):
                current.update({name: values[10 ** 15 + 10 * index] for name, values in counters.items()
                                if 10 ** 15 + 10 * index in values})
                self.assertEqual((current["reserved"], current["cached"]), (state["reserved"], state["cached"]))
                self.assertEqual(current["reserved"], current["allocated"] + current["pending"] + current["cached"])

    def test_totals_equal_those_of_blame_and_replay(self):
        program, compared = view_program.Program(4, 900, 100), set()
        for path in [*SNAPSHOTS, self.file(program.snapshot())]:
            with self.subTest(path=path.name):
                blame, trace = self.read_report(path), self.trace(path)
                device = f"device {blame['device']}"
                values = {name: trace.counter(device, name) for name in COUNTERS}
                start_time = min(counter[0][0] for counter in values.values())
                for name in ("reserved", "allocated"):
                    self.assertEqual(integrate(values[name], start_time + blame["duration_us"]), int(blame[name]), name)
                self.assertEqual(max(value for _, value in values["reserved"]), blame["peak"]["reserved"])
                if path.name == "job.pickle":
                    continue
                replay = json.loads(self.run_tool("replay", "--json", path)[0])
                used, current = 0, {}
                steps = sorted([(event, name) for name in ("allocated", "pending") for event in values[name]],
                               key=lambda item: item[0][0])
                for (_, value), name in steps:
                    current[name] = value
                    used = max(used, current.get("allocated", 0) + current.get("pending", 0))
                # The rounding of a freed block in a classic segment is not in the file.
                names = {name for _, name, _ in trace.instants(device, "segments")}
                if "segment_alloc" in names:
                    self.assertTrue(replay["peak_requested"] <= used <= replay["peak_active"])
                else:
                    self.assertEqual(used, replay["peak_active"])
                compared.add("segment_alloc" in names)
        self.assertEqual(compared, {False, True})

    def test_pools_have_counters_if_there_are_several(self):
        self.assertEqual(self.trace(view_program.Program(5, 80).snapshot()).find("device 0", "pool default"), [])
        trace = self.trace(two_pools())
        for name in COUNTERS:
            end = [trace.counter("device 0", pool, name)[-1][1] for pool in ("pool default", "pool (0, 3)")]
            self.assertEqual(sum(end), trace.counter("device 0", name)[-1][1])
        self.assertEqual(trace.counter("device 0", "pool default", "reserved"), [(1_000_000, 2 * MIB)])
        self.assertEqual(trace.counter("device 0", "pool (0, 3)", "allocated"), [(1_000_000, 0), (1_000_007, MIB)])

    def test_entries_without_pool_belong_to_the_pool_of_their_segment(self):
        trace = self.trace(snapshot_without_pool_ids())
        for pool in ("pool default", "pool (0, 3)"):
            counters = [dict(trace.counter("device 0", pool, name)) for name in COUNTERS]
            for reserved, allocated, pending, cached in iterate_states(counters):
                self.assertEqual(reserved, allocated + pending + cached)
                self.assertLessEqual(cached, reserved)
        self.assertEqual(trace.counter("device 0", "pool (0, 3)", "reserved"), [(1_000_005, 2 * MIB), (1_000_010, 4 * MIB)])
        self.assertEqual(trace.counter("device 0", "pool (0, 3)", "cached")[-1], (1_000_011, 0))
        self.assertEqual({event[2]["pool"] for event in trace.instants("device 0", "segments")}, {"(0, 3)"})

    def test_block_of_an_unmapped_segment_counts_for_the_default_pool(self):
        snapshot = snapshot_without_pool_ids()
        snapshot["device_traces"][0][:0] = [
            entry_without_pool_id(action, BASE + (2 << 30), size, time) for action, size, time in (
                ("alloc", MIB, 1), ("free_requested", MIB, 2), ("free_completed", MIB, 2), ("segment_free", 2 * MIB, 3),
                ("segment_alloc", 2 * MIB, 4), ("alloc", 2 * MIB, 5))]
        snapshot["segments"].append({"device": 0, "address": BASE + (2 << 30), "total_size": 2 * MIB, "stream": 16,
                                     "segment_type": "large", "segment_pool_id": (0, 7),
                                     "blocks": [{"address": BASE + (2 << 30), "size": 2 * MIB, "state": "active_allocated"}]})
        pools = [(begin, values["pool"]) for begin, _, _, values in self.trace(snapshot).slices("device 0", "blocks")
                 if values["address"] == BASE + (2 << 30)]
        self.assertEqual(pools, [(1_000_001, "default"), (1_000_005, "(0, 7)")])

    def test_block_in_segments_of_several_pools_counts_for_each_pool(self):
        # Memory that was unmapped is in no segment at the end, so it belongs to the default pool.
        snapshot = snapshot_without_pool_ids()
        snapshot["device_traces"][0][:] = [
            entry_without_pool_id("alloc", BASE + MIB, 2 * MIB, 5),
            entry_without_pool_id("free_requested", BASE + MIB, 2 * MIB, 6),
            entry_without_pool_id("free_completed", BASE + MIB, 2 * MIB, 8),
            entry_without_pool_id("segment_unmap", BASE + 2 * MIB, 2 * MIB, 9)]
        snapshot["segments"][0].update(total_size=2 * MIB, blocks=[])
        trace = self.trace(snapshot)
        for pool in ("pool default", "pool (0, 3)"):
            self.assertEqual([value for _, value in trace.counter("device 0", pool, "allocated")], [0, MIB, 0])
            self.assertEqual([value for _, value in trace.counter("device 0", pool, "pending")], [0, MIB, 0])
            counters = [dict(trace.counter("device 0", pool, name)) for name in COUNTERS]
            for reserved, allocated, pending, cached in iterate_states(counters):
                self.assertEqual(reserved, allocated + pending + cached)

    def test_each_device_has_separate_tracks(self):
        snapshot = view_program.Program(6, 100).snapshot()
        snapshot["device_traces"].append([dict(snapshot["device_traces"][0][0])])
        trace = self.trace(snapshot)
        self.assertEqual([trace.tracks[uuid].name for uuid in trace.children[0]],
                         [f"{self.folder}/job.pickle, device {index}" for index in (0, 1)])
        self.assertEqual(len(self.trace(snapshot, "--device", "1").children[0]), 1)

    def test_clock_follows_the_times_of_the_entries(self):
        snapshot = view_program.Program(7, 50).snapshot()
        self.assertEqual(self.trace(snapshot).clock, protos.BUILTIN_CLOCK_REALTIME)
        for entry in snapshot["device_traces"][0]:
            entry["time_us"] -= 10 ** 15 - 5
        self.assertEqual(self.trace(snapshot).clock, protos.BUILTIN_CLOCK_BOOTTIME)
        for entry in snapshot["device_traces"][0]:
            entry["time_us"] = 0
        self.assertLessEqual(max([time for time, _ in self.trace(snapshot).counter("device 0", "cached")]), 50)

    def test_missing_data_is_reported(self):
        snapshot = view_program.Program(8, 60).snapshot()
        snapshot["xseg"] = {"devices": [{"device": 0, "lost": 1234, "left_out": 5}]}
        self.assertEqual(self.trace(snapshot).tracks[1].description,
                         f"{len(snapshot['device_traces'][0])} entries; 1,234 earlier entries were overwritten, 5 did not fit in "
                         "the file; 0 inconsistent entries or blocks are omitted")


def entry(action, addr, size, time, pool=(0, 0), **fields):
    return {"action": action, "addr": addr, "size": size, "stream": 16, "time_us": time, "pool_id": pool, **fields}


def entry_without_pool_id(action, addr, size, time):
    """Returns an entry in the format of releases without `pool_id`."""
    return {"action": action, "addr": addr, "size": size, "stream": 16, "time_us": 1_000_000 + time, "frames": []}


def snapshot_without_pool_ids():
    """Returns a growing expandable segment of a private pool, and a segment of the default pool, without `pool_id` in entries."""
    trace = [entry_without_pool_id("alloc", BASE, 2 * MIB, 5), entry_without_pool_id("free_requested", BASE, 2 * MIB, 6),
             entry_without_pool_id("free_completed", BASE, 2 * MIB, 6),
             entry_without_pool_id("segment_map", BASE + 2 * MIB, 2 * MIB, 10), entry_without_pool_id("alloc", BASE, 4 * MIB, 11)]
    segments = [{"device": 0, "address": BASE, "total_size": 4 * MIB, "stream": 16, "is_expandable": True,
                 "segment_type": "large", "segment_pool_id": (0, 3),
                 "blocks": [{"address": BASE, "size": 4 * MIB, "requested_size": 4 * MIB, "state": "active_allocated",
                             "frames": []}]},
                {"device": 0, "address": BASE + (1 << 30), "total_size": 2 * MIB, "stream": 0, "is_expandable": True,
                 "segment_type": "large", "segment_pool_id": (0, 0),
                 "blocks": [{"address": BASE + (1 << 30), "size": 2 * MIB, "requested_size": 0, "state": "inactive"}]}]
    return {"segments": segments, "device_traces": [trace]}


def iterate_states(counters):
    current = [0] * len(counters)
    for time in sorted(set().union(*counters)):
        current = [counter.get(time, value) for counter, value in zip(counters, current)]
        yield current


def two_pools():
    blocks = [[{"address": BASE, "size": 2 * MIB, "requested_size": 0, "state": "inactive", "frames": []}],
              [{"address": BASE + 2 * MIB, "size": MIB, "requested_size": MIB, "state": "active_allocated", "frames": []},
               {"address": BASE + 3 * MIB, "size": MIB, "requested_size": 0, "state": "inactive", "frames": []}]]
    segments = [{"device": 0, "address": BASE + index * 2 * MIB, "total_size": 2 * MIB, "stream": 16, "is_expandable": True,
                 "segment_type": "large", "segment_pool_id": pool, "blocks": blocks[index]}
                for index, pool in enumerate([(0, 0), (0, 3)])]
    return {"segments": segments, "device_traces": [[entry("snapshot", 0, 0, 1_000_000),
                                                     entry("alloc", BASE + 2 * MIB, MIB, 1_000_007, (0, 3))]]}


@unittest.skipUnless(protos, "the Python package perfetto is not installed; run .ci/setup --perfetto")
class Events(ExportTest):
    frames = [{"name": "empty", "filename": "/x/site-packages/torch/f.py", "line": 9},
              {"name": "forward", "filename": "model.py", "line": 212}]

    def snapshot_with_causes(self):
        """Returns a snapshot with causes: a pause and its resume, and a remapped page."""
        trace = [entry("segment_map", BASE, 4 * MIB, 10, (0, 3)), entry("segment_unmap", BASE, 2 * MIB, 20, (0, 3)),
                 entry("segment_unmap", BASE + 2 * MIB, 2 * MIB, 21, (0, 3)), entry("segment_map", BASE, 2 * MIB, 30, (0, 3)),
                 entry("segment_map", BASE + 2 * MIB, 2 * MIB, 31, (0, 3)), entry("segment_unmap", BASE, 4 * MIB, 40, (0, 3)),
                 {"action": "oom", "size": 1 << 30, "device_free": 77, "stream": 16, "time_us": 50, "pool_id": (0, 0),
                  "frames": self.frames}]
        causes = [[1, "pause"], [2, "pause"], [3, "resume"], [4, "resume"], [5, "remap"], [6, "unknown"]]
        return {"segments": [], "device_traces": [trace], "xseg": {"devices": [{"device": 0, "causes": causes}]}}

    def test_segment_events_have_a_cause(self):
        events = self.trace(self.snapshot_with_causes()).instants("device 0", "segments")
        self.assertEqual([(time, name) for time, name, _ in events],
                         [(10, "segment_map"), (20, "segment_unmap: pause"), (21, "segment_unmap: pause"),
                          (30, "segment_map: resume"), (31, "segment_map: resume"), (40, "segment_unmap: remap")])
        self.assertEqual(events[2][2], {"bytes": 2 * MIB, "address": BASE + 2 * MIB, "stream": 16, "pool": "(0, 3)"})

    def test_pause_ends_when_all_memory_is_mapped_again(self):
        snapshot = self.snapshot_with_causes()
        events = self.trace(snapshot).slices("device 0", "paused: pool (0, 3)")
        self.assertEqual([event[:3] for event in events], [[20, 31, "paused"]])
        snapshot["device_traces"][0] = snapshot["device_traces"][0][:4]
        snapshot["segments"] = [{"device": 0, "address": BASE, "total_size": 2 * MIB, "stream": 16, "is_expandable": True,
                                 "segment_pool_id": (0, 3), "blocks": []}]
        snapshot["xseg"]["devices"][0]["causes"] = snapshot["xseg"]["devices"][0]["causes"][:3]
        events = self.trace(snapshot).slices("device 0", "paused: pool (0, 3)")
        self.assertEqual([event[:3] for event in events], [[20, None, "paused"]])

    def test_failed_request_is_an_instant(self):
        self.assertEqual(self.trace(self.snapshot_with_causes()).instants("device 0", "out of memory"),
                         [(50, "out of memory", {"bytes": 1 << 30, "device_free": 77, "stream": 16, "pool": "default",
                                                 "site": "model.py:212 forward"})])

    def test_blocks_are_slices(self):
        for seed, skipped in ((9, 0), (10, 120)):
            program = view_program.Program(seed, 500, skipped)
            trace = self.trace(program.snapshot(), "--blocks", "100000")
            expected, allocated, start_time = [], {}, program.trace[0]["time_us"]
            for event in program.trace:
                if event["action"] == "alloc":
                    allocated[event["addr"]] = (event["time_us"], view_program.rounded(event["size"]))
                elif event["action"] == "free_completed":
                    begin, size = allocated.pop(event["addr"], (start_time, view_program.rounded(event["size"])))
                    expected.append((begin, event["time_us"], size, event["addr"]))
            for address, (size, _, _) in program.blocks.items():
                begin, _ = allocated.get(address, (start_time, 0))
                expected.append((begin, None, view_program.rounded(size), address))
            events = [(begin, end, values["bytes"], values["address"])
                      for begin, end, _, values in trace.slices("device 0", "blocks")]
            order = lambda block: (block[0], block[3], block[1] or 0)  # pylint: disable=unnecessary-lambda-assignment
            self.assertEqual(sorted(events, key=order), sorted(expected, key=order))
            names = {name for _, _, name, _ in trace.slices("device 0", "blocks")}
            self.assertTrue(all(re.fullmatch(r"model\d\.py:\d+ layer\d|\(allocated before the recording began\)", name)
                                for name in names), names)

    def test_largest_blocks_are_exported(self):
        program = view_program.Program(11, 500)
        complete = self.trace(program.snapshot(), "--blocks", "100000").slices("device 0", "blocks")
        end = program.trace[-1]["time_us"]
        weights = sorted((values["bytes"] * ((block_end or end) - begin + 1) for begin, block_end, _, values in complete),
                         reverse=True)
        for count in (0, 1, 7):
            trace = self.trace(program.snapshot(), "--blocks", count)
            exported = trace.slices("device 0", "blocks")
            self.assertEqual(sorted((values["bytes"] * ((block_end or end) - begin + 1)
                                     for begin, block_end, _, values in exported), reverse=True), weights[:count])
            for uuid in trace.find("device 0", "blocks"):
                self.assertEqual(trace.tracks[uuid].description, f"the {count} blocks with the largest product of size and "
                                                                 f"lifetime; {len(complete) - count} others are omitted")

    def test_block_has_the_time_of_its_pending_free(self):
        snapshot = two_pools()
        snapshot["device_traces"][0] += [entry("free_requested", BASE + 2 * MIB, MIB, 1_000_010, (0, 3)),
                                         entry("free_completed", BASE + 2 * MIB, MIB, 1_000_015, (0, 3))]
        snapshot["segments"][1]["blocks"][0]["state"] = "inactive"
        (begin, end, name, values), = self.trace(snapshot).slices("device 0", "blocks")
        self.assertEqual((begin, end, name, values["waited_us"], values["pool"]),
                         (1_000_007, 1_000_015, "(no stack)", 5, "(0, 3)"))

    def test_immediate_free_is_never_pending(self):
        for duration, pending in ((0, [0]), (1, [0, MIB, 0])):
            snapshot = two_pools()
            snapshot["device_traces"][0] += [entry("free_requested", BASE + 2 * MIB, MIB, 1_000_010, (0, 3)),
                                             entry("free_completed", BASE + 2 * MIB, MIB, 1_000_010 + duration, (0, 3))]
            snapshot["segments"][1]["blocks"][0]["state"] = "inactive"
            trace = self.trace(snapshot)
            self.assertEqual([value for _, value in trace.counter("device 0", "pending")], pending)
            self.assertEqual([value for _, value in trace.counter("device 0", "allocated")], [0, MIB, 0])

    def test_names_are_valid_utf_8_for_any_file(self):
        snapshot = self.snapshot_with_causes()
        snapshot["device_traces"][0][6]["frames"] = [{"name": "f\ud800ü", "filename": "m\n.py", "line": 1}]
        path = self.file(pickle.dumps(snapshot, 4).replace(b"m\n.py", b"m\xff.py"))
        self.assertIn("m\\xff.py:1 f", self.trace(path).instants("device 0", "out of memory")[0][2]["site"])


class Files(ExportTest):
    def test_standard_input_and_output(self):
        path = self.file(view_program.Program(12, 40).snapshot())
        path.rename(self.folder / "standard input")
        self.export("standard input", "-o", "out.perfetto")
        with open(self.folder / "standard input", "rb") as file:
            output, error = self.run_tool("export", "--perfetto", "-", "-o", "-", stdin=file)
        self.assertEqual(error, "")
        self.assertEqual(output, (self.folder / "out.perfetto").read_bytes())

    def test_bad_files_are_rejected_without_an_output_file(self):
        complete = pickle.dumps(view_program.Program(13, 60).snapshot(), 4)
        for contents, message in ((complete[:len(complete) // 2], "is truncated"), (b"hello", "unsupported file, a text file"),
                                  (b"\x80\x09" + complete[2:], "unsupported protocol, 9; pickle.dump(value, file, 4) writes a "
                                                               "supported one"),
                                  (pickle.dumps({"a": 1}), "no memory snapshot"),
                                  (pickle.dumps({"segments": [], "device_traces": []}), "_record_memory_history()"),
                                  (pickle.dumps(view_program.Program(13, 60).snapshot() | {"device_traces": []}),
                                   "_record_memory_history()"),
                                  (pickle.dumps(view_program.Program(13, 60).snapshot() | {"xseg": {"devices": [
                                   {"device": 0, "causes": [[60, "steal"]]}]}}), "a cause is not a list of an entry and a name")):
            error = self.export(self.file(contents, "bad"), "-o", "out.perfetto", status=2)
            self.assertIn(message, error)
            self.assertEqual(len(error.splitlines()), 1, error)
            self.assertEqual(os.listdir(self.folder), ["bad"])

    def test_bad_arguments_are_rejected(self):
        path = self.file(view_program.Program(14, 30).snapshot())
        for arguments, message in ((["missing", "-o", "out"], "missing: cannot be opened: No such file"),
                                   ([path, "--device", "7", "-o", "out"], "device 7 has no segments and no entries"),
                                   ([path, "-o", "missing/out"], "missing/out cannot be written: No such file or directory"),
                                   ([path], "needs --output"), ([path, path, "-o", "out"], "export")):
            self.assertIn(message, self.export(*arguments, status=2))
        self.assertIn("needs --perfetto", self.run_tool("export", path, "-o", "out", status=2)[1])
        self.assertEqual(os.listdir(self.folder), [path.name])

    def test_full_disk_is_reported_and_device_files_remain(self):
        path = self.file(view_program.Program(15, 4000).snapshot())
        self.assertIn("/dev/full cannot be written: No space left", self.export(path, "-o", "/dev/full", status=2))
        self.assertTrue(pathlib.Path("/dev/full").is_char_device())
        with open("/dev/full", "wb") as full_device:
            self.assertIn("cannot be written: No space left", self.export(path, "-o", "-", status=2, stdout=full_device))

    def test_output_replaces_only_its_own_file(self):
        path = self.file(view_program.Program(15, 400).snapshot())
        contents = path.read_bytes()
        (self.folder / "same").hardlink_to(path)
        for output in (path.name, "same"):
            self.assertIn(f"{output} is an input file; choose another output file", self.export(path, "-o", output, status=2))
        self.assertEqual(path.read_bytes(), contents)
        (self.folder / "out.part").write_text("existing file")
        (self.folder / "out").symlink_to("elsewhere")
        (self.folder / "elsewhere").touch(0o640)
        self.assertEqual(self.export(path, "-o", "out"), "")
        self.assertTrue((self.folder / "out").is_symlink())
        self.assertGreater((self.folder / "elsewhere").stat().st_size, 1000)
        self.assertEqual((self.folder / "out.part").read_text(), "existing file")

    def test_existing_file_remains_after_a_failed_write(self):
        """A limit on the size of files simulates a full disk."""
        path = self.file(view_program.Program(16, 4000).snapshot())
        (self.folder / "out").write_text("before", encoding="utf-8")
        error = self.run_tool("export", "--perfetto", path, "-o", "out", status=2, preexec_fn=limit_file_size)[1]
        self.assertIn("out cannot be written: File too large", error)
        self.assertEqual((self.folder / "out").read_text(encoding="utf-8"), "before")
        self.assertEqual(sorted(os.listdir(self.folder)), ["job.pickle", "out"])


def limit_file_size():
    """Limits files of the child process to 64 KiB; a write past the limit fails instead of raising SIGXFSZ."""
    import resource  # pylint: disable=import-outside-toplevel
    import signal  # pylint: disable=import-outside-toplevel
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))


if __name__ == "__main__":
    result = unittest.main(argv=sys.argv[:1], exit=False).result
    if result.wasSuccessful() and result.skipped:
        print("skipped:", result.skipped[0][1])
        sys.exit(EXIT_SKIPPED)
    sys.exit(not result.wasSuccessful())
