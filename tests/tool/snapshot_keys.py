# SPDX-License-Identifier: MIT
"""Keys of snapshots that only newer releases of PyTorch write, in all commands that read them: snapshot_keys.py TOOL SOURCE_ROOT.

Labels of an allocation (compiled region, step, stage), synthetic entries, and pinned host memory.
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
    """A snapshot that is written entry by entry, of memory in one classic segment."""

    def __init__(self):
        self.time, self.entries, self.blocks, self.notes = 1_000_000, [], {}, []
        self.size = 64 * MIB
        self.add("segment_alloc", 0, self.size)

    def add(self, action, offset, size, **more):
        self.time += 10
        self.entries.append({"action": action, "addr": BASE + offset, "size": size, "stream": 0, "time_us": self.time,
                             "pool_id": (0, 0), "user_metadata": "", "compile_context": "N/A",
                             "frames": [{"name": "f", "filename": "model.py", "line": 1}], **more})

    def alloc(self, offset, size, **more):
        self.blocks[offset] = size
        self.add("alloc", offset, size, **more)

    def free(self, offset, **more):
        size = self.blocks.pop(offset)
        self.add("free_requested", offset, size, **more)
        self.add("free_completed", offset, size, **more)

    def note(self, stage, name, device=0, time=None):
        if time is None:
            self.time += 10
        self.notes.append({"stage": stage, "name": name, "device": device, "time_us": self.time if time is None else time})

    def prefix(self, offset, size, real, **more):
        """What PyTorch's mallocWithAddress() records: a prefix block, the real block behind it, and the free of the prefix."""
        tag = {"internal_metadata": "mallocWithAddress", **more}
        self.alloc(offset, size, **tag)
        self.alloc(offset + size, real, **tag)
        self.free(offset, **tag)

    def snapshot(self, **more):
        blocks, at = [], 0
        for offset, size in [*sorted(self.blocks.items()), (self.size, 0)]:
            for start, length, state in ((at, offset - at, "inactive"), (offset, size, "active_allocated")):
                if length:
                    blocks.append({"address": BASE + start, "size": length, "requested_size": length, "state": state, "frames": []})
            at = offset + size
        return {"segments": [{"device": 0, "address": BASE, "total_size": self.size, "stream": 0, "segment_type": "large",
                              "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}],
                "device_traces": [copy.deepcopy(self.entries)], "external_annotations": copy.deepcopy(self.notes),
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}, **more}


class KeysTest(ToolCase):
    def json(self, *arguments, status=0):
        return json.loads(self.tool(*arguments, status=status).stdout)

    def sites(self, kind, path):
        return {site["site"]: site for site in self.json("blame", f"--label={kind}", "--json", path)["sites"]}

    def model(self, path, *options):
        page = self.tool("view", path, *options, "-o", "-").stdout
        model = view_program.Model(page)
        self.assertTrue(model.whole)
        return model

    def view_labels(self, path):
        """Of each block in the page: the texts of its label, region, step and stage."""
        model = self.model(path)
        return [[model.facts["texts"][text] for text in model.contexts[life["context"]]] for life in model.lives]


def active(notes, time):
    """The step and the stage at a time, by the definition: of the annotations that cover it, the last started one."""
    spans, opened = [], []
    for order, note in sorted(enumerate(notes), key=lambda one: (one[1]["time_us"], one[0])):
        if note["stage"] == "START":
            opened.append((order, note))
        else:
            start = next((one for one in reversed(opened) if one[1]["name"] == note["name"]), None)
            if start:
                opened.remove(start)
                spans.append((start[1]["time_us"], start[0], note["time_us"], note["name"]))
            else:
                spans.append((-1, -note["time_us"] * 10000 - order, note["time_us"], note["name"]))
    spans += [(note["time_us"], order, float("inf"), note["name"]) for order, note in opened]
    covering = [span for span in sorted(spans) if span[0] <= time < span[2]]

    def last(wanted):
        return next((name for *_, name in reversed(covering) if wanted(name)), "")

    def is_step(name):
        return re.search(r"step", name, re.IGNORECASE) is not None and name[-1].isdigit()

    return last(is_step), last(lambda name: not is_step(name))


class Labels(KeysTest):
    def test_allocations_belong_to_the_step_and_stage_of_their_time(self):
        program = Program()
        for step in range(3):
            program.note("START", f"ProfilerStep#{step}")
            for at, stage in enumerate(("forward", "backward")):
                program.note("START", stage)
                program.alloc((2 * step + at) * 8 * MIB, (at + 1) * MIB)
                program.note("END", stage)
            program.note("END", f"ProfilerStep#{step}")
        program.alloc(60 * MIB, MIB)
        path = self.file(program.snapshot())
        self.assertEqual({name: site["peak"] for name, site in self.sites("step", path).items()},
                         {"ProfilerStep#0": 3 * MIB, "ProfilerStep#1": 3 * MIB, "ProfilerStep#2": 3 * MIB, "(no step)": MIB})
        self.assertEqual({name: site["peak"] for name, site in self.sites("stage", path).items()},
                         {"forward": 3 * MIB, "backward": 6 * MIB, "(no stage)": MIB})
        self.assertEqual(list(self.sites("user", path)), ["(no label)"])
        self.assertEqual(self.sites("user", path), {site["site"]: site for site in self.json("blame", "--label", "--json", path)["sites"]})
        text = self.tool("blame", "--label=stage", "--by", "peak", path).stdout
        self.assertRegex(text, r"at the peak  stage\n.*  backward\n.*  forward\n.*  \(no stage\)\n")
        self.assertEqual(self.view_labels(path)[0], ["", "", "ProfilerStep#0", "forward"])
        self.assertEqual(self.view_labels(path)[-1], ["", "", "", ""])
        self.assertEqual({row["site_a"] for row in self.json("compare", "--label=stage", "--json", path, path)["rows"]} & {"forward", "backward"},
                         {"forward", "backward"})

    def test_random_annotations_agree_with_the_definition(self):
        names = ("train_step 1", "STEP2", "forward", "backward", "step", "layer 3")
        for seed in range(20):
            choose = random.Random(seed)
            program = Program()
            program.size = 4096 * MIB
            program.entries[0]["size"] = program.size
            for at in range(150):
                if choose.random() < 0.6:
                    time = None if choose.random() < 0.8 else choose.randrange(1_000_000, program.time + 50)
                    program.note(choose.choice(("START", "END")), choose.choice(names), choose.choice((0, 0, 0, 1)), time)
                else:
                    program.alloc(at * MIB, 512, user_metadata=str(at))
            ours = [note for note in program.notes if note["device"] == 0]
            expected = [list(active(ours, entry["time_us"])) for entry in program.entries[1:]]
            self.assertEqual([labels[2:] for labels in self.view_labels(self.file(program.snapshot()))], expected, f"seed {seed}")

    def test_compiled_regions_come_from_entries_or_annotations(self):
        program = Program()
        region = "Torch-Compiled Region: {}/0"
        program.alloc(0, MIB, compile_context=region.format(0))
        program.note("START", "forward")
        program.note("START", region.format(1))
        program.alloc(8 * MIB, 2 * MIB)
        program.alloc(16 * MIB, 3 * MIB, compile_context=region.format(2))
        program.note("END", region.format(1))
        program.alloc(24 * MIB, 4 * MIB, compile_context="")
        path = self.file(program.snapshot())
        self.assertEqual({name: site["peak"] for name, site in self.sites("region", path).items()},
                         {region.format(0): MIB, region.format(1): 2 * MIB, region.format(2): 3 * MIB, "(no compiled region)": 4 * MIB})
        self.assertEqual({name: site["peak"] for name, site in self.sites("stage", path).items()},
                         {"forward": 9 * MIB, "(no stage)": MIB})

    def test_the_free_of_an_older_block_does_not_label_it(self):
        program = Program()
        program.blocks[0] = MIB
        program.note("START", "backward")
        program.free(0, compile_context="Torch-Compiled Region: 0/0")
        program.alloc(8 * MIB, MIB)
        path = self.file(program.snapshot())
        self.assertEqual(self.view_labels(path), [["", "", "", ""], ["", "", "", "backward"]])

    def test_unknown_kinds_are_rejected(self):
        done = self.tool("blame", "--label=steps", self.file(Program().snapshot()), status=2)
        self.assertIn("--label takes user, region, step or stage; did you mean step?", done.stderr)

    def test_malformed_annotations_are_rejected(self):
        note = {"stage": "START", "name": "forward", "device": 0, "time_us": 5}
        for change, words in (({"stage": "BEGIN"}, "annotation 2: `stage` is neither START nor END"), ({"stage": 1}, "annotation 2: `stage` is neither START nor END"),
                              ({"time_us": "5"}, "annotation 2: `time_us` is missing or not a number"),
                              ({"time_us": -1}, "annotation 2: `time_us` is missing or not a number"),
                              ({"device": -1}, "annotation 2: `device` is not a number")):
            path = self.file(Program().snapshot(external_annotations=[note, {**note, **change}]))
            for command in ("blame", "replay", "compare"):
                self.assertIn(words, self.tool(command, path, *[path] * (command == "compare"), status=2).stderr)
        for value in ({}, "text", 5, None, []):
            self.tool("blame", self.file(Program().snapshot(external_annotations=value)))
        self.tool("blame", self.file(Program().snapshot(external_annotations=[{**note, "name": 7, "device": 4000}])))


class Synthetic(KeysTest):
    def programs(self):
        """The same program twice: with an allocation at an address, and with a plain allocation of the same block."""
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
            blame = self.json("blame", "--json", path)
            replay = self.json("replay", "--json", path)
            model = self.model(path)
            self.assertEqual(blame.pop("synthetic"), 3 if path == paths[0] else 0)
            for key in ("file", "trace", "ns_per_event"):
                blame.pop(key, None)
                replay.pop(key, None)
            reports[path] = blame, replay, model.lives, model.spans, model.facts["events"]
        self.assertEqual(reports[paths[0]], reports[paths[1]])
        self.assertEqual(reports[paths[0]][0]["peak"]["allocated"], 7 * MIB)
        self.assertEqual(reports[paths[0]][1]["peak_allocated"], 7 * MIB)
        compared = self.json("compare", "--json", *paths)
        self.assertEqual(compared["verdict"], "A and B do not differ")
        self.assertEqual([compared[side]["synthetic"] for side in "ab"], [3, 0])
        self.assertIn("\n3 synthetic entries of the allocator are not counted\n", self.tool("blame", paths[0]).stdout)
        self.assertIn("device 0, 7 entries; not replayed: 3 synthetic entries\n", self.tool("replay", paths[0]).stderr)
        advised = [self.json("advise", "--json", path)["current"] for path in paths]
        self.assertEqual(advised[0], advised[1])

    def test_a_ring_can_begin_within_an_allocation_at_an_address(self):
        tagged, plain = self.programs()
        for lost in range(1, 6):
            whole = tagged.snapshot()
            whole["device_traces"][0] = whole["device_traces"][0][lost:]
            blame = self.json("blame", "--json", self.file(whole))
            self.assertEqual(blame["omitted"], 0)
            self.assertNotIn(30 * MIB, [life["bytes"] for life in self.model(self.file(whole)).lives])

    def test_a_tagged_allocation_without_a_tagged_free_is_real(self):
        program = Program()
        program.alloc(0, MIB, internal_metadata="mallocWithAddress")
        program.free(0)
        program.alloc(0, 2 * MIB, internal_metadata="mallocWithAddress")
        report = self.json("blame", "--json", self.file(program.snapshot()))
        self.assertEqual((report["entries"], report["synthetic"]), (5, 0))

    def test_a_tag_that_is_no_string_is_none(self):
        for tag in ("", 5, None, []):
            program = Program()
            program.prefix(0, MIB, MIB, internal_metadata=tag)
            report = self.json("blame", "--json", self.file(program.snapshot()))
            self.assertEqual((report["entries"], report["synthetic"]), (5, 0))


class Host:
    """Pinned host memory, which is not divided into blocks: entries of a program, and the segments at its end."""

    def __init__(self, seed=1, events=200):
        choose = random.Random(seed)
        self.entries, self.segments, self.allocated, self.states = [], {}, set(), [(0, 0)]
        self.time = 1_000_000
        while len(self.entries) < events:
            cached = sorted(set(self.segments) - self.allocated)
            if choose.random() < 0.5:
                address = choose.choice(cached) if cached and choose.random() < 0.5 else self.grow(choose.choice((MIB, 2 * MIB, 4 * MIB)))
                self.allocated.add(address)
                self.add("alloc", address)
            elif self.allocated and choose.random() < 0.8:
                address = choose.choice(sorted(self.allocated))
                self.add("free_requested", address)
                self.allocated.discard(address)
                self.add("free_completed", address)
            elif cached:
                address = choose.choice(cached)
                self.add("segment_free", address, self.segments.pop(address))

    def grow(self, size):
        address = BASE + (len(self.entries) << 24)
        self.segments[address] = size
        self.add("segment_alloc", address)
        return address

    def add(self, action, address, size=None):
        self.time += 100
        self.entries.append({"action": action, "addr": address, "size": size or self.segments[address], "stream": 0, "time_us": self.time,
                             "compile_context": "", "user_metadata": "", "pool_id": (0, 0),
                             "frames": [{"name": "load", "filename": "data.py", "line": 7}]})
        self.states.append((sum(self.segments.values()), sum(self.segments[one] for one in self.allocated)))

    def keys(self):
        return {"host_traces": copy.deepcopy(self.entries), "host_segments": [
            {"device": -1, "address": address, "total_size": size, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
             "is_expandable": False, "frames": [], "blocks": [{"address": address, "size": size, "requested_size": size, "frames": [],
                                                               "state": "active_allocated" if address in self.allocated else "inactive"}]}
            for address, size in self.segments.items()]}


class PinnedMemory(KeysTest):
    def test_pinned_memory_has_its_own_figures_and_changes_no_others(self):
        program = Program()
        program.alloc(0, MIB)
        plain = self.file(program.snapshot(), "plain.pickle")
        for seed in range(5):
            host = Host(seed)
            path = self.file(program.snapshot(**host.keys()), "pinned.pickle")
            blame, other = self.json("blame", "--json", path), self.json("blame", "--json", plain)
            found = blame.pop("host")
            self.assertIsNone(other.pop("host"))
            self.assertEqual({**blame, "file": ""}, {**other, "file": ""})
            passed = [100] * (len(host.entries) - 1)
            self.assertEqual((found["device"], found["entries"], found["omitted"], found["duration_us"]), (-1, len(host.entries), 0, sum(passed)))
            self.assertEqual(int(found["reserved"]), sum(reserved * 100 for reserved, _ in host.states[1:-1]))
            # A free and its completion are at different times, so a block between them is pending.
            pending = sum(entry["size"] * 100 for entry in host.entries[:-1] if entry["action"] == "free_requested")
            self.assertEqual(int(found["allocated"]), sum(allocated * 100 for _, allocated in host.states[1:-1]) - pending)
            self.assertEqual(found["peak"]["reserved"], max(reserved for reserved, _ in host.states))
            self.assertEqual([site["site"] for site in found["sites"]], ["data.py:7 load"])
            compared = self.json("compare", "--json", plain, path)
            self.assertEqual((compared["verdict"], compared["a"]["host"]), ("A and B do not differ", None))
            self.assertEqual(compared["b"]["host"], {"entries": len(host.entries), "reserved": host.states[-1][0], "allocated": host.states[-1][1],
                                                     "peak_reserved": max(state[0] for state in host.states),
                                                     "peak_allocated": max(state[1] for state in host.states)})

    def test_reports_have_separate_lines(self):
        program = Program()
        program.alloc(0, MIB)
        program.alloc(8 * MIB, MIB)
        path = self.file(program.snapshot(**Host().keys()))
        text = self.tool("blame", path).stdout
        self.assertEqual(len(re.findall(r"^\S+: device 0, 3 entries", text, re.MULTILINE)), 1)
        self.assertEqual(len(re.findall(r"^\S+: pinned host memory, 200 entries", text, re.MULTILINE)), 1)
        self.assertRegex(self.tool("blame", "--flame", "--by", "allocated", path).stdout,
                         r"\Amodel.py:1 f \d+\n\(pinned host memory\);data.py:7 load \d+\n\Z")
        self.assertIn("; not replayed: pinned host memory, 200 entries\n", self.tool("replay", path).stderr)
        self.assertRegex(self.tool("compare", path, path).stdout, r"   pinned host memory at the end: reserved \S+ MiB, allocated")
        self.assertRegex(self.model(path).facts["host"], r"^pinned host memory at the end: reserved \S+ MiB, allocated")
        self.assertIsNone(self.model(self.file(program.snapshot())).facts["host"])

    def test_a_file_of_pinned_memory_alone(self):
        empty = {"segments": [], "device_traces": [[]]}
        path = self.file(Program().snapshot(**Host().keys(), **empty))
        report = self.json("blame", "--json", path)
        self.assertEqual((report["device"], report["entries"], report["host"]), (-1, 200, None))
        self.assertIn("it has neither entries nor segments of any device", self.tool("blame", "--device", 0, path, status=2).stderr)
        self.tool("compare", path, path, status=2)

    def test_pinned_memory_of_the_end_alone(self):
        path = self.file(Program().snapshot(host_segments=Host().keys()["host_segments"]))
        host = Host()
        report = self.json("blame", "--json", path)["host"]
        self.assertEqual((int(report["reserved"]), int(report["allocated"])), host.states[-1])

    def test_steps_and_stages_of_pinned_memory(self):
        program, host = Program(), Host()
        program.notes = [{"stage": "START", "name": "load", "device": 3, "time_us": 1_000_000}]
        path = self.file(program.snapshot(**host.keys()))
        self.assertEqual([site["site"] for site in self.json("blame", "--label=stage", "--json", path)["host"]["sites"]], ["load"])

    def test_malformed_pinned_memory_is_rejected(self):
        host = Host().keys()
        entry, segment = host["host_traces"][0], host["host_segments"][0]
        shared = Program().snapshot()
        shared["host_traces"] = shared["device_traces"][0]
        for contents, words in ((Program().snapshot(host_traces=[entry, {**entry, "addr": "x"}]), "pinned host memory, entry 2: `addr` is missing or not a number"),
                                (Program().snapshot(host_traces=[[entry]]), "pinned host memory, entry 1: it has no `action`"),
                                (Program().snapshot(host_segments=[segment, {"device": -1}]), "host segment 2: `address` is missing or not a number"),
                                (Program().snapshot(host_segments=[{**segment, "total_size": -1}]), "host segment 1: `total_size` is missing or not a number"),
                                (shared, "the list is shared with another device")):
            self.assertIn(words, self.tool("blame", self.file(contents), status=2).stderr)
        for value in (None, 5, "text", {}, []):
            path = self.file(Program().snapshot(host_traces=value, host_segments=value))
            self.assertIsNone(self.json("blame", "--json", path)["host"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
