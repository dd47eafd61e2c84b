# SPDX-License-Identifier: MIT
"""Tests of all commands with snapshot keys that only newer releases of PyTorch write: snapshot_keys.py TOOL SOURCE_ROOT.

These keys are labels of an allocation (compiled region, step, stage), synthetic entries, and pinned host memory.
"""
import copy
import json
import random
import re
import sys
import unittest

from folder_case import MIB, ROOT, ToolCase

sys.path.insert(0, str(ROOT / "tests/support"))
import view_program  # pylint: disable=wrong-import-position

BASE = 0x7f0000000000


class Program:
    """Builds a snapshot of one classic segment, entry by entry."""

    def __init__(self):
        self.time, self.entries, self.blocks, self.annotations = 1_000_000, [], {}, []
        self.size = 64 * MIB
        self.add("segment_alloc", 0, self.size)

    def add(self, action, offset, size, **fields):
        self.time += 10
        self.entries.append({"action": action, "addr": BASE + offset, "size": size, "stream": 0, "time_us": self.time,
                             "pool_id": (0, 0), "user_metadata": "", "compile_context": "N/A",
                             "frames": [{"name": "f", "filename": "model.py", "line": 1}], **fields})

    def alloc(self, offset, size, **fields):
        self.blocks[offset] = size
        self.add("alloc", offset, size, **fields)

    def free(self, offset, **fields):
        size = self.blocks.pop(offset)
        self.add("free_requested", offset, size, **fields)
        self.add("free_completed", offset, size, **fields)

    def annotate(self, stage, name, device=0, time=None):
        if time is None:
            self.time += 10
        self.annotations.append({"stage": stage, "name": name, "device": device, "time_us": self.time if time is None else time})

    def prefix(self, offset, size, block_size, **fields):
        """Adds the entries of PyTorch's mallocWithAddress(): a prefix block, the block after it, and the free of the prefix."""
        metadata = {"internal_metadata": "mallocWithAddress", **fields}
        self.alloc(offset, size, **metadata)
        self.alloc(offset + size, block_size, **metadata)
        self.free(offset, **metadata)

    def snapshot(self, **keys):
        blocks, block_end = [], 0
        for offset, size in [*sorted(self.blocks.items()), (self.size, 0)]:
            for start, length, state in ((block_end, offset - block_end, "inactive"), (offset, size, "active_allocated")):
                if length:
                    blocks.append({"address": BASE + start, "size": length, "requested_size": length, "state": state,
                                   "frames": []})
            block_end = offset + size
        return {"segments": [{"device": 0, "address": BASE, "total_size": self.size, "stream": 0, "segment_type": "large",
                              "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}],
                "device_traces": [copy.deepcopy(self.entries)], "external_annotations": copy.deepcopy(self.annotations),
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}, **keys}


class SnapshotKeysTest(ToolCase):
    def json(self, *arguments, status=0):
        return json.loads(self.tool(*arguments, status=status).stdout)

    def sites(self, kind, path):
        return {site["site"]: site for site in self.json("blame", f"--label={kind}", "--json", path)["sites"]}

    def model(self, path, *options):
        model = view_program.Model(self.tool("view", path, *options, "-o", "-").stdout)
        self.assertTrue(model.is_complete)
        return model

    def view_labels(self, path):
        """Returns the label, region, step and stage of each block in the page."""
        model = self.model(path)
        return [[model.summary["texts"][text] for text in model.contexts[life["context"]]] for life in model.lives]


def active_step_and_stage(annotations, time):
    """Returns the active step and stage by their definition: the last annotation that started among those that cover a time."""
    spans, open_annotations = [], []
    for index, annotation in sorted(enumerate(annotations), key=lambda item: (item[1]["time_us"], item[0])):
        if annotation["stage"] == "START":
            open_annotations.append((index, annotation))
        else:
            start = next((item for item in reversed(open_annotations) if item[1]["name"] == annotation["name"]), None)
            if start:
                open_annotations.remove(start)
                spans.append((start[1]["time_us"], start[0], annotation["time_us"], annotation["name"]))
            else:
                spans.append((-1, -annotation["time_us"] * 10000 - index, annotation["time_us"], annotation["name"]))
    spans += [(annotation["time_us"], index, float("inf"), annotation["name"]) for index, annotation in open_annotations]
    covering = [span for span in sorted(spans) if span[0] <= time < span[2]]

    def last(condition):
        return next((name for *_, name in reversed(covering) if condition(name)), "")

    def is_step(name):
        return re.search(r"step", name, re.IGNORECASE) is not None and name[-1].isdigit()

    return last(is_step), last(lambda name: not is_step(name))


class Labels(SnapshotKeysTest):
    def test_time_of_an_allocation_determines_its_step_and_stage(self):
        program = Program()
        for step in range(3):
            program.annotate("START", f"ProfilerStep#{step}")
            for index, stage in enumerate(("forward", "backward")):
                program.annotate("START", stage)
                program.alloc((2 * step + index) * 8 * MIB, (index + 1) * MIB)
                program.annotate("END", stage)
            program.annotate("END", f"ProfilerStep#{step}")
        program.alloc(60 * MIB, MIB)
        path = self.file(program.snapshot())
        self.assertEqual({name: site["peak"] for name, site in self.sites("step", path).items()},
                         {"ProfilerStep#0": 3 * MIB, "ProfilerStep#1": 3 * MIB, "ProfilerStep#2": 3 * MIB, "(no step)": MIB})
        self.assertEqual({name: site["peak"] for name, site in self.sites("stage", path).items()},
                         {"forward": 3 * MIB, "backward": 6 * MIB, "(no stage)": MIB})
        self.assertEqual(list(self.sites("user", path)), ["(no label)"])
        self.assertEqual(self.sites("user", path), {site["site"]: site
                                                    for site in self.json("blame", "--label", "--json", path)["sites"]})
        text = self.tool("blame", "--label=stage", "--by", "peak", path).stdout
        self.assertRegex(text, r"at the peak  stage\n.*  backward\n.*  forward\n.*  \(no stage\)\n")
        self.assertEqual(self.view_labels(path)[0], ["", "", "ProfilerStep#0", "forward"])
        self.assertEqual(self.view_labels(path)[-1], ["", "", "", ""])
        rows = self.json("compare", "--label=stage", "--json", path, path)["rows"]
        self.assertLessEqual({"forward", "backward"}, {row["site_a"] for row in rows})

    def test_random_annotations_agree_with_the_definition(self):
        names = ("train_step 1", "STEP2", "forward", "backward", "step", "layer 3")
        for seed in range(20):
            rng, program = random.Random(seed), Program()
            program.size = 4096 * MIB
            program.entries[0]["size"] = program.size
            for index in range(150):
                if rng.random() < 0.6:
                    time = None if rng.random() < 0.8 else rng.randrange(1_000_000, program.time + 50)
                    program.annotate(rng.choice(("START", "END")), rng.choice(names), rng.choice((0, 0, 0, 1)), time)
                else:
                    program.alloc(index * MIB, 512, user_metadata=str(index))
            annotations = [annotation for annotation in program.annotations if annotation["device"] == 0]
            expected = [list(active_step_and_stage(annotations, entry["time_us"])) for entry in program.entries[1:]]
            self.assertEqual([labels[2:] for labels in self.view_labels(self.file(program.snapshot()))], expected, f"seed {seed}")

    def test_compiled_regions_are_read_from_entries_or_annotations(self):
        program, region = Program(), "Torch-Compiled Region: {}/0"
        program.alloc(0, MIB, compile_context=region.format(0))
        program.annotate("START", "forward")
        program.annotate("START", region.format(1))
        program.alloc(8 * MIB, 2 * MIB)
        program.alloc(16 * MIB, 3 * MIB, compile_context=region.format(2))
        program.annotate("END", region.format(1))
        program.alloc(24 * MIB, 4 * MIB, compile_context="")
        path = self.file(program.snapshot())
        self.assertEqual({name: site["peak"] for name, site in self.sites("region", path).items()},
                         {region.format(0): MIB, region.format(1): 2 * MIB, region.format(2): 3 * MIB,
                          "(no compiled region)": 4 * MIB})
        self.assertEqual({name: site["peak"] for name, site in self.sites("stage", path).items()},
                         {"forward": 9 * MIB, "(no stage)": MIB})

    def test_free_of_an_older_block_does_not_label_the_block(self):
        program = Program()
        program.blocks[0] = MIB
        program.annotate("START", "backward")
        program.free(0, compile_context="Torch-Compiled Region: 0/0")
        program.alloc(8 * MIB, MIB)
        self.assertEqual(self.view_labels(self.file(program.snapshot())), [["", "", "", ""], ["", "", "", "backward"]])

    def test_unknown_kinds_of_labels_are_rejected(self):
        completed = self.tool("blame", "--label=steps", self.file(Program().snapshot()), status=2)
        self.assertIn("--label takes user, region, step or stage; did you mean step?", completed.stderr)

    def test_malformed_annotations_are_rejected(self):
        annotation = {"stage": "START", "name": "forward", "device": 0, "time_us": 5}
        for change, message in (({"stage": "BEGIN"}, "annotation 2: `stage` is neither START nor END"),
                                ({"stage": 1}, "annotation 2: `stage` is neither START nor END"),
                                ({"time_us": "5"}, "annotation 2: `time_us` is missing or not a number"),
                                ({"time_us": -1}, "annotation 2: `time_us` is missing or not a number"),
                                ({"device": -1}, "annotation 2: `device` is not a number")):
            path = self.file(Program().snapshot(external_annotations=[annotation, {**annotation, **change}]))
            for command in ("blame", "replay", "compare"):
                self.assertIn(message, self.tool(command, path, *[path] * (command == "compare"), status=2).stderr)
        for value in ({}, "text", 5, None, []):
            self.tool("blame", self.file(Program().snapshot(external_annotations=value)))
        self.tool("blame", self.file(Program().snapshot(external_annotations=[{**annotation, "name": 7, "device": 4000}])))


class SyntheticEntries(SnapshotKeysTest):
    def programs(self):
        """Returns two versions of a program: with an allocation at an address, and with a plain allocation of the same block."""
        tagged, plain = Program(), Program()
        for program in (tagged, plain):
            program.alloc(0, MIB)
        tagged.prefix(MIB, 30 * MIB, 2 * MIB)
        plain.time += 10
        plain.alloc(31 * MIB, 2 * MIB)
        plain.time += 20
        for program in (tagged, plain):
            program.alloc(MIB, 4 * MIB)
            program.free(31 * MIB)
            program.alloc(40 * MIB, MIB)
        return tagged, plain

    def test_all_commands_count_only_real_entries(self):
        paths = [self.file(program.snapshot(), name) for program, name in zip(self.programs(), ("tagged.pickle", "plain.pickle"))]
        reports = {}
        for path in paths:
            blame, replay = self.json("blame", "--json", path), self.json("replay", "--json", path)
            model = self.model(path)
            self.assertEqual(blame.pop("synthetic"), 3 if path == paths[0] else 0)
            for key in ("file", "trace", "ns_per_event"):
                blame.pop(key, None)
                replay.pop(key, None)
            reports[path] = blame, replay, model.lives, model.spans, model.summary["events"]
        self.assertEqual(reports[paths[0]], reports[paths[1]])
        self.assertEqual(reports[paths[0]][0]["peak"]["allocated"], 7 * MIB)
        self.assertEqual(reports[paths[0]][1]["peak_allocated"], 7 * MIB)
        comparison = self.json("compare", "--json", *paths)
        self.assertEqual(comparison["verdict"], "A and B do not differ")
        self.assertEqual([comparison[side]["synthetic"] for side in "ab"], [3, 0])
        self.assertIn("\n3 synthetic entries of the allocator are not counted\n", self.tool("blame", paths[0]).stdout)
        self.assertIn("device 0, 7 entries; not replayed: 3 synthetic entries\n", self.tool("replay", paths[0]).stderr)
        current_results = [self.json("advise", "--json", path)["current"] for path in paths]
        self.assertEqual(current_results[0], current_results[1])

    def test_ring_may_begin_within_an_allocation_at_an_address(self):
        tagged, plain = self.programs()
        for lost in range(1, 6):
            snapshot = tagged.snapshot()
            snapshot["device_traces"][0] = snapshot["device_traces"][0][lost:]
            self.assertEqual(self.json("blame", "--json", self.file(snapshot))["omitted"], 0)
            self.assertNotIn(30 * MIB, [life["bytes"] for life in self.model(self.file(snapshot)).lives])

    def test_tagged_allocation_without_a_tagged_free_is_counted(self):
        program = Program()
        program.alloc(0, MIB, internal_metadata="mallocWithAddress")
        program.free(0)
        program.alloc(0, 2 * MIB, internal_metadata="mallocWithAddress")
        report = self.json("blame", "--json", self.file(program.snapshot()))
        self.assertEqual((report["entries"], report["synthetic"]), (5, 0))

    def test_tag_that_is_no_string_is_ignored(self):
        for metadata in ("", 5, None, []):
            program = Program()
            program.prefix(0, MIB, MIB, internal_metadata=metadata)
            report = self.json("blame", "--json", self.file(program.snapshot()))
            self.assertEqual((report["entries"], report["synthetic"]), (5, 0))


class HostProgram:
    """Builds random entries of pinned host memory, whose segments are not divided into blocks, and the final segments."""

    def __init__(self, seed=1, events=200):
        rng = random.Random(seed)
        self.entries, self.segments, self.allocated, self.states = [], {}, set(), [(0, 0)]
        self.time = 1_000_000
        while len(self.entries) < events:
            cached = sorted(set(self.segments) - self.allocated)
            if rng.random() < 0.5:
                is_hit = cached and rng.random() < 0.5
                address = rng.choice(cached) if is_hit else self.grow(rng.choice((MIB, 2 * MIB, 4 * MIB)))
                self.allocated.add(address)
                self.add("alloc", address)
            elif self.allocated and rng.random() < 0.8:
                address = rng.choice(sorted(self.allocated))
                self.add("free_requested", address)
                self.allocated.discard(address)
                self.add("free_completed", address)
            elif cached:
                address = rng.choice(cached)
                self.add("segment_free", address, self.segments.pop(address))

    def grow(self, size):
        address = BASE + (len(self.entries) << 24)
        self.segments[address] = size
        self.add("segment_alloc", address)
        return address

    def add(self, action, address, size=None):
        self.time += 100
        self.entries.append({"action": action, "addr": address, "size": size or self.segments[address], "stream": 0,
                             "time_us": self.time, "compile_context": "", "user_metadata": "", "pool_id": (0, 0),
                             "frames": [{"name": "load", "filename": "data.py", "line": 7}]})
        self.states.append((sum(self.segments.values()), sum(self.segments[address] for address in self.allocated)))

    def keys(self):
        return {"host_traces": copy.deepcopy(self.entries), "host_segments": [
            {"device": -1, "address": address, "total_size": size, "stream": 0, "segment_type": "small",
             "segment_pool_id": (0, 0),
             "is_expandable": False, "frames": [], "blocks": [{"address": address, "size": size, "requested_size": size,
                                                               "frames": [], "state": "active_allocated"
                                                               if address in self.allocated else "inactive"}]}
            for address, size in self.segments.items()]}


class PinnedMemory(SnapshotKeysTest):
    def test_pinned_memory_is_reported_separately(self):
        program = Program()
        program.alloc(0, MIB)
        without_pinned = self.file(program.snapshot(), "plain.pickle")
        for seed in range(5):
            host = HostProgram(seed)
            path = self.file(program.snapshot(**host.keys()), "pinned.pickle")
            blame, report_without_pinned = self.json("blame", "--json", path), self.json("blame", "--json", without_pinned)
            host_report = blame.pop("host")
            self.assertIsNone(report_without_pinned.pop("host"))
            self.assertEqual({**blame, "file": ""}, {**report_without_pinned, "file": ""})
            durations = [100] * (len(host.entries) - 1)
            self.assertEqual((host_report["device"], host_report["entries"], host_report["omitted"], host_report["duration_us"]),
                             (-1, len(host.entries), 0, sum(durations)))
            self.assertEqual(int(host_report["reserved"]), sum(reserved * 100 for reserved, _ in host.states[1:-1]))
            # A free and its completion have different times, between which the block is pending.
            pending = sum(entry["size"] * 100 for entry in host.entries[:-1] if entry["action"] == "free_requested")
            self.assertEqual(int(host_report["allocated"]), sum(allocated * 100 for _, allocated in host.states[1:-1]) - pending)
            self.assertEqual(host_report["peak"]["reserved"], max(reserved for reserved, _ in host.states))
            self.assertEqual([site["site"] for site in host_report["sites"]], ["data.py:7 load"])
            comparison = self.json("compare", "--json", without_pinned, path)
            self.assertEqual((comparison["verdict"], comparison["a"]["host"]), ("A and B do not differ", None))
            self.assertEqual(comparison["b"]["host"], {"entries": len(host.entries), "reserved": host.states[-1][0],
                                                       "allocated": host.states[-1][1],
                                                       "peak_reserved": max(state[0] for state in host.states),
                                                       "peak_allocated": max(state[1] for state in host.states)})

    def test_text_reports_have_separate_lines(self):
        program = Program()
        program.alloc(0, MIB)
        program.alloc(8 * MIB, MIB)
        path = self.file(program.snapshot(**HostProgram().keys()))
        text = self.tool("blame", path).stdout
        self.assertEqual(len(re.findall(r"^\S+: device 0, 3 entries", text, re.MULTILINE)), 1)
        self.assertEqual(len(re.findall(r"^\S+: pinned host memory, 200 entries", text, re.MULTILINE)), 1)
        self.assertRegex(self.tool("blame", "--flame", "--by", "allocated", path).stdout,
                         r"\Amodel.py:1 f \d+\n\(pinned host memory\);data.py:7 load \d+\n\Z")
        self.assertIn("; not replayed: pinned host memory, 200 entries\n", self.tool("replay", path).stderr)
        self.assertRegex(self.tool("compare", path, path).stdout, r"   pinned host memory at the end: reserved \S+ MiB, "
                                                                  r"allocated")
        self.assertRegex(self.model(path).summary["host"], r"^pinned host memory at the end: reserved \S+ MiB, allocated")
        self.assertIsNone(self.model(self.file(program.snapshot())).summary["host"])

    def test_file_with_only_pinned_memory_is_reported(self):
        empty = {"segments": [], "device_traces": [[]]}
        path = self.file(Program().snapshot(**HostProgram().keys(), **empty))
        report = self.json("blame", "--json", path)
        self.assertEqual((report["device"], report["entries"], report["host"]), (-1, 200, None))
        self.assertIn("no entries or segments of any device",
                      self.tool("blame", "--device", 0, path, status=2).stderr)
        self.tool("compare", path, path, status=2)

    def test_pinned_memory_without_history_is_reported(self):
        path = self.file(Program().snapshot(host_segments=HostProgram().keys()["host_segments"]))
        host, report = HostProgram(), self.json("blame", "--json", path)["host"]
        self.assertEqual((int(report["reserved"]), int(report["allocated"])), host.states[-1])

    def test_pinned_memory_has_steps_and_stages(self):
        program, host = Program(), HostProgram()
        program.annotations = [{"stage": "START", "name": "load", "device": 3, "time_us": 1_000_000}]
        path = self.file(program.snapshot(**host.keys()))
        self.assertEqual([site["site"] for site in self.json("blame", "--label=stage", "--json", path)["host"]["sites"]],
                         ["load"])

    def test_malformed_pinned_memory_is_rejected(self):
        host = HostProgram().keys()
        entry, segment = host["host_traces"][0], host["host_segments"][0]
        shared_list = Program().snapshot()
        shared_list["host_traces"] = shared_list["device_traces"][0]
        for contents, message in ((Program().snapshot(host_traces=[entry, {**entry, "addr": "x"}]),
                                   "pinned host memory, entry 2: `addr` is missing or not a number"),
                                  (Program().snapshot(host_traces=[[entry]]), "pinned host memory, entry 1: no `action`"),
                                  (Program().snapshot(host_segments=[segment, {"device": -1}]),
                                   "host segment 2: `address` is missing or not a number"),
                                  (Program().snapshot(host_segments=[{**segment, "total_size": -1}]),
                                   "host segment 1: `total_size` is missing or not a number"),
                                  (shared_list, "the list is shared with another device")):
            self.assertIn(message, self.tool("blame", self.file(contents), status=2).stderr)
        for value in (None, 5, "text", {}, []):
            path = self.file(Program().snapshot(host_traces=value, host_segments=value))
            self.assertIsNone(self.json("blame", "--json", path)["host"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
