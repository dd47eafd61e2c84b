# SPDX-License-Identifier: MIT
"""`xseg replay` of PyTorch's memory snapshots, as a user runs it: snapshot.py TOOL SOURCE_ROOT."""
import collections
import json
import pickle
import re
import subprocess
import sys
import unittest

from folder_case import MIB, SNAPSHOTS, ToolCase

PEAKS = ("peak_requested", "peak_allocated", "peak_active", "peak_reserved")


def entry(action, addr=0, size=512, **more):
    return {"action": action, "addr": (1 << 40) + addr, "size": size, "stream": 0,
            "compile_context": "N/A", "user_metadata": "", **more}


def segment(addr, size, *blocks, device=0):
    made, at = [], (1 << 40) + addr
    for bytes_, state in blocks:
        made.append({"address": at, "size": bytes_, "requested_size": bytes_, "state": state, "frames": []})
        at += bytes_
    return {"device": device, "address": (1 << 40) + addr, "total_size": size, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": True, "frames": [], "blocks": made}


def snapshot(*traces, segments=(), config="expandable_segments:True"):
    return {"segments": list(segments), "device_traces": [list(trace) for trace in traces],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": config,
                                   "expandable_segments": "True" in config}, "external_annotations": []}


class SnapshotTest(ToolCase):
    def file(self, contents, protocol=4):  # pylint: disable=arguments-renamed
        return super().file(contents if isinstance(contents, bytes) else pickle.dumps(contents, protocol),
                            "snapshot.pickle")

    def replay(self, *arguments, status=0):
        return self.tool("replay", *arguments, status=status)

    def figures(self, path, *options, status=0, note=None):
        """The JSON that a file gives; `note`: what standard error says of it."""
        done = self.replay("--json", *options, path, status=status)
        if note:
            self.assertEqual(done.stderr, f"{path}: {note}\n")
        return json.loads(done.stdout)


class FromPyTorch(SnapshotTest):
    def test_peaks_are_those_of_pytorch_and_of_the_trace(self):
        counted = json.loads((SNAPSHOTS / "peaks.json").read_text())
        for name in ("classic", "expandable"):
            one = self.figures(SNAPSHOTS / f"{name}.pickle.zst")
            trace = self.figures(SNAPSHOTS / f"{name}.xtrace.zst")
            with self.subTest(name):
                for peak in PEAKS:
                    self.assertEqual(one[peak], counted[name][peak.removeprefix("peak_")], peak)
                    self.assertEqual(one[peak], trace[peak], peak)
                self.assertEqual((one["events"], one["config"]), (trace["events"], trace["config"]))
                self.assertEqual((one["failed"], one["failed_served"]), (1, 0))

    def test_a_ring_ends_as_the_whole_history_does(self):
        whole = self.figures(SNAPSHOTS / "expandable.pickle.zst", "--explain")
        ring = self.figures(SNAPSHOTS / "ring.pickle.zst", "--explain",
                            note="device 0, 150 entries; allocated before the first: 33 blocks, "
                                 "69.47 MiB")
        self.assertEqual(ring["explained"]["in_allocated_blocks"], whole["explained"]["in_allocated_blocks"])
        self.assertLess(ring["events"], whole["events"] / 2)
        self.assertLess(ring["peak_requested"], whole["peak_requested"])

    def test_the_clock_is_there(self):
        path = self.folder / "timeline"
        self.assertGreater(self.figures(SNAPSHOTS / "expandable.pickle.zst", "--timeline", path)["allocated_time_avg"], 0)
        self.assertTrue(path.read_text().startswith("# usec"))

    def test_other_configurations(self):
        done = self.replay("--json", "--compare", "expandable_segments:False", SNAPSHOTS / "expandable.pickle.zst")
        expandable, classic = json.loads(done.stdout)
        self.assertEqual(expandable["peak_requested"], classic["peak_requested"])
        self.assertGreater(expandable["driver_calls"]["cuMemMap"], 0)
        self.assertGreater(classic["driver_calls"]["cuMemAlloc"], 0)
        self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_cut_anywhere(self):
        whole = (SNAPSHOTS / "ring.pickle.zst").read_bytes()
        for cut in (5, 100, len(whole) - 1):
            done = self.replay(self.file(whole[:cut]), status=2)
            self.assertRegex(done.stderr, r"pickle:(1| cannot be read as a memory snapshot: byte \d+): .*is truncated\n\Z")


class Pickles(SnapshotTest):
    def test_protocols(self):
        said = snapshot([entry("alloc", 0, 3 * MIB), entry("free_completed", 0, 3 * MIB),
                         entry("alloc", 0, 40000 * MIB)])
        for protocol in (2, 3, 4, 5):
            one = self.figures(self.file(said, protocol), note="device 0, 3 entries")
            self.assertEqual((one["events"], one["peak_requested"]), (3, 40000 * MIB))

    def refused(self, contents, words, protocol=4):
        done = self.replay(self.file(contents, protocol), status=2)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, rf"\A{re.escape(str(self.folder))}[^\n]*{words}[^\n]*\n\Z")

    def test_unreplayable_snapshots_are_rejected(self):
        for protocol in (2, 3, 4, 5):
            self.refused(collections.OrderedDict(segments=[]), r"byte \d+: .* class or a function", protocol)
        for protocol in (0, 1):
            self.refused(snapshot([]), "it is a (pickle of protocol 0 or 1|text file)", protocol)
        self.refused({"a": 1}, "no memory snapshot")
        self.refused(snapshot([]), "nothing to replay, device 0")
        self.refused(snapshot([entry("alloc"), entry("alloc", size="x")]),
                     "pickle: device 0, entry 2: `size` is missing or not a number")
        self.refused(snapshot([entry("alloc")], segments=[{}]), "segment 1: `device` is missing")
        done = self.replay(self.file(snapshot([entry("alloc")], config="a:b")), status=2)
        self.assertIn("no allocator can be opened with the configuration 'a:b,", done.stderr)

    def test_every_cut(self):
        whole = pickle.dumps(snapshot([entry("alloc"), entry("oom", device_free=0)]), 2)
        for cut in range(1, len(whole)):
            self.refused(whole[:cut], "is truncated")


class Histories(SnapshotTest):
    def test_a_request_that_failed(self):
        said = snapshot([entry("alloc", 0, 60 * MIB), entry("free_completed", 0, 60 * MIB),
                         entry("oom", 0, 80 * MIB, device_free=0)])
        served = self.figures(self.file(said))
        self.assertEqual((served["failed"], served["failed_served"], served["oom_at"]), (1, 1, -1))
        refused = self.figures(self.file(said), "--device-memory", "70MiB")
        self.assertEqual((refused["failed"], refused["failed_served"]), (1, 0))
        self.assertIn("recorded failures           1 of 1 succeed", self.replay(self.file(said)).stdout)
        self.assertNotIn("failed", self.figures(self.file(snapshot([entry("alloc")]))))

    def test_an_out_of_memory_that_is_new_names_the_entry(self):
        path = self.file(snapshot([entry("alloc", 0, MIB), entry("alloc", MIB, 90 * MIB)]))
        self.assertIn(f"{path}:2: out of memory", self.replay("--device-memory", "70MiB", path, status=3).stderr)

    def test_causes(self):
        """What xseg did by itself is no `e`, which would unmap the rest: it is mapped anew for the last block then."""
        gone = [entry("alloc", 0, 40 * MIB), entry("alloc", 40 * MIB, 40 * MIB), entry("free_completed", 0, 40 * MIB),
                entry("segment_unmap", 0, 20 * MIB), entry("segment_map", 0, 20 * MIB), entry("alloc", 0, 40 * MIB)]

        def maps(*causes):
            said = snapshot(gone)
            said["device_traces"].append([dict(one) for one in gone[:5]])
            said["xseg"] = {"format": 1, "devices": [{"device": 1, "causes": [[3, "trim"]]},
                                                     {"device": 0, "causes": list(causes)}]}
            return self.figures(self.file(said))["driver_calls"]["cuMemUnmap"]

        self.assertGreater(maps(), maps([3, "steal"]))
        self.assertEqual(maps([3, "trim"]), maps())
        for cause in ("decay", "pause", "of a later release"):
            self.assertEqual(maps([3, cause]), maps([3, "steal"]))
        for wrong in ([6, "steal"], [3], [3, 3], 3):
            said = snapshot(gone)
            said["xseg"] = {"devices": [{"device": 0, "causes": [wrong]}]}
            done = self.replay(self.file(said), status=2)
            self.assertIn("xseg: a cause is not a list of an entry and a name", done.stderr)

    def test_devices(self):
        path = self.file(snapshot([entry("alloc", 0, 100)], [entry("alloc", 0, 200), entry("alloc", 512, 300)]))
        self.assertEqual(self.figures(path, note="device 1 of 2, 2 entries")["peak_requested"], 500)
        self.assertEqual(self.figures(path, "--device", 0, note="device 0 of 2, 1 entry")["peak_requested"], 100)
        done = self.replay("--device", 2, path, status=2)
        self.assertIn("nothing to replay, device 2", done.stderr)
        for text in ("-1", "x", "1024", ""):
            done = self.replay("--device", text, path, status=2)
            self.assertIn("--device takes a device ordinal", done.stderr)

    def test_segments_alone(self):
        path = self.file([segment(0, 20 * MIB, (3 * MIB, "active_allocated"),
                                  (4 * MIB, "inactive"), (5 * MIB, "active_pending_free"))])
        one = self.figures(path, note="device 0, 0 entries; allocated before the first: 2 blocks, "
                                      "8.00 MiB")
        self.assertEqual(one["peak_requested"], 8 * MIB)

    def test_the_default_configuration_without_settings(self):
        said = snapshot([entry("alloc")])
        del said["allocator_settings"]
        one = self.figures(self.file(said))
        self.assertEqual(one["config"], "expandable_segments:False")
        self.assertIn("configuration: the file has neither a setting expandable_segments nor segments; assumed is PyTorch's default, "
                      "expandable_segments:False", one["notes"])
        said = snapshot([entry("alloc")], config="")
        self.assertEqual(self.figures(self.file(said))["config"], "expandable_segments:False")


def unpacked(path):
    return pickle.loads(subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout)


def of_an_older_release(said):
    """The same snapshot without what PyTorch 2.0 did not write, and with the frames where 2.0 had them."""
    old = {key: said[key] for key in ("segments", "device_traces")}
    for segment_ in old["segments"]:
        for key in ("is_expandable", "segment_pool_id", "requested_size", "frames"):
            segment_.pop(key, None)
        for block in segment_["blocks"]:
            requested, frames, address = (block.pop(key) for key in ("requested_size", "frames", "address"))
            block["history"] = [{"addr": address, "real_size": requested, "frames": frames}] if block["state"] != "inactive" else []
    for trace in old["device_traces"]:
        for one in trace:
            for key in ("time_us", "pool_id", "user_metadata", "compile_context"):
                one.pop(key, None)
    return old


class OlderReleases(SnapshotTest):
    DATA = "tests/data/snapshots"
    INFERRED = "configuration: the file has no setting expandable_segments; inferred from its segments: expandable_segments:{}"

    def test_inferred_kind_of_segments_is_reported(self):
        for name, kind in (("classic", False), ("expandable", True), ("train", False), ("early", True)):
            whole, settings = unpacked(SNAPSHOTS / f"{name}.pickle.zst"), {"max_split_size": -1}
            known = self.figures(self.file(whole))
            for left in ({**whole, "allocator_settings": settings}, {key: whole[key] for key in ("segments", "device_traces")}):
                with self.subTest(name):
                    path = self.file(left)
                    one = self.figures(path)
                    self.assertEqual(one["config"], f"expandable_segments:{kind}")
                    self.assertEqual([one[peak] for peak in PEAKS], [known[peak] for peak in PEAKS])
                    self.assertEqual(one["notes"], [self.INFERRED.format(kind)])
                    self.assertIn(self.INFERRED.format(kind) + "\n", self.replay(path).stdout)
                    self.assertNotIn("notes", self.figures(path, "--config", f"expandable_segments:{kind}"))

    def test_a_file_of_2_0_is_replayed_as_the_newer_one(self):
        whole = unpacked(SNAPSHOTS / "classic.pickle.zst")
        known = self.figures(self.file(whole))
        one = self.figures(self.file(of_an_older_release(whole)))
        self.assertEqual([one[peak] for peak in PEAKS], [known[peak] for peak in PEAKS])
        self.assertEqual(one["notes"], [self.INFERRED.format(False)])

    def test_requested_size_comes_from_the_history_of_a_block(self):
        said = [segment(0, 4 * MIB, (MIB, "active_allocated"), (3 * MIB, "inactive"))]
        del said[0]["blocks"][0]["requested_size"]
        said[0]["blocks"][0]["history"] = [{"addr": 1 << 40, "real_size": 1000, "frames": []}]
        self.assertEqual(self.figures(self.file(said))["peak_requested"], 1000)

    def test_contradictory_settings_are_reported(self):
        whole = unpacked(SNAPSHOTS / "classic.pickle.zst")
        whole["allocator_settings"] |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": True}
        self.assertRegex(self.figures(self.file(whole))["notes"][0], "mean expandable_segments:True, and all its segments are classic")


def fragmented(blocks=40, free=20):
    """The end of a program: segments with a small block that stays and much that is free, of which no history is there."""
    return [{**segment(at * 64 * MIB, (1 + free) * MIB, (MIB, "active_allocated"), (free * MIB, "inactive")), "is_expandable": False}
            for at in range(blocks)]


class Incomplete(SnapshotTest):
    MISSING = (r"history: it does not show (.*) of the (.*) that are reserved at its end, since a replay with the file's configuration "
               r"ends with (.*): peaks are too low, and the effect of a configuration is not known; record all entries from the start")

    def notes(self, said, *options):
        return self.figures(self.file(said), *options).get("notes", [])

    def test_state_without_its_history_reports_the_missing_bytes(self):
        at = [entry("free_completed", 1 << 35, 5 * MIB)]
        said = snapshot(at, segments=fragmented(), config="")
        one, other = json.loads(self.replay("--json", "--compare", "expandable_segments:True", self.file(said)).stdout)
        self.assertRegex(one["notes"][0], self.MISSING)
        shown, reserved, ends = re.match(self.MISSING, one["notes"][0]).groups()
        self.assertEqual((reserved, one["notes"]), ("840.00 MiB", other["notes"]))
        self.assertAlmostEqual(float(shown.split()[0]) + float(ends.split()[0]), 840, 1)
        text = self.replay("--compare", "expandable_segments:True", self.file(said)).stdout
        self.assertEqual(len(re.findall(self.MISSING, text)), 1)

    def test_with_another_configuration_the_state_before_the_first_entry_counts(self):
        said = snapshot([entry("free_completed", 1 << 35, 5 * MIB)], segments=fragmented(), config="")
        self.assertRegex(self.notes(said, "--config", "expandable_segments:True")[0],
                         r"history: 840.00 MiB were reserved before its first entry, of which the replay has 45.00 MiB in allocated blocks")

    def test_a_state_without_any_history_is_reported(self):
        said = snapshot([], segments=fragmented(), config="")
        text = self.replay("--compare", "expandable_segments:True", self.file(said)).stdout
        self.assertEqual(len(re.findall("^history: the file has none, and the replay allocates only the blocks that are allocated at its end, 40.00 MiB of the "
                                        "840.00 MiB that are reserved: peaks may be too low, and the effect of a", text, re.MULTILINE)), 1, text)

    def test_a_history_that_shows_all_has_no_note(self):
        for path in sorted((SNAPSHOTS).glob("*.pickle.zst")):
            with self.subTest(path.name):
                self.assertNotIn("notes", self.figures(path))
        grown = snapshot([entry("segment_alloc", 0, 20 * MIB), entry("alloc", 0, 3 * MIB)], config="",
                         segments=[{**segment(0, 20 * MIB, (3 * MIB, "active_allocated"), (17 * MIB, "inactive")), "is_expandable": False}])
        self.assertEqual(self.notes(grown), [])

    def test_blocks_that_no_segment_contains_are_counted(self):
        self.assertEqual(self.notes(snapshot([entry("alloc"), entry("alloc", 512)])),
                         ["history: it ends with 2 allocated blocks that no segment of the file contains: their frees are missing, and peaks "
                          "may be too high"])

    def test_frees_that_are_missing_are_counted(self):
        said = snapshot([entry("alloc"), entry("alloc"), entry("free_requested"), entry("free_completed")])
        self.assertEqual(self.notes(said), ["history: 1 free is missing: the replay frees a block when its address is allocated again, and peaks may be too high"])

    def test_allocations_that_are_missing_are_counted(self):
        said = snapshot([entry("segment_map", 0, 2 * MIB), entry("alloc", 0, MIB), entry("free_completed", 0, MIB)],
                        segments=[segment(0, 2 * MIB, (MIB, "active_allocated"), (MIB, "inactive"))])
        self.assertEqual(self.notes(said), ["history: it lacks the allocation of 1 block (1.00 MiB) in the segments of the file: peaks may be "
                                            "too low"])

    def test_garbage_collection_without_a_fraction_is_reported(self):
        for config, count in (("garbage_collection_threshold:0.8", 1), ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", 0)):
            trace = self.folder / "job.xtrace"
            trace.write_text(f"xtrace 1\nc {config}\na 1 512 0\nf 1\n")
            done = self.replay("--json", trace)
            self.assertEqual(len(json.loads(done.stdout).get("notes", [])), count)
            self.assertEqual(done.stderr.count("garbage_collection_threshold has no effect"), count)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
