# SPDX-License-Identifier: MIT
"""Tests of `xseg replay` with PyTorch's memory snapshots: snapshot.py TOOL SOURCE_ROOT."""
import collections
import json
import pickle
import re
import subprocess
import sys
import unittest

from folder_case import MIB, SNAPSHOTS, ToolCase

PEAKS = ("peak_requested", "peak_allocated", "peak_active", "peak_reserved")


def entry(action, addr=0, size=512, **fields):
    return {"action": action, "addr": (1 << 40) + addr, "size": size, "stream": 0,
            "compile_context": "N/A", "user_metadata": "", **fields}


def segment(addr, size, *sizes_and_states, device=0):
    blocks, block_address = [], (1 << 40) + addr
    for block_size, state in sizes_and_states:
        blocks.append({"address": block_address, "size": block_size, "requested_size": block_size, "state": state,
                       "frames": []})
        block_address += block_size
    return {"device": device, "address": (1 << 40) + addr, "total_size": size, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": True, "frames": [], "blocks": blocks}


def snapshot(*traces, segments=(), config="expandable_segments:True"):
    return {"segments": list(segments), "device_traces": [list(trace) for trace in traces],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": config,
                                   "expandable_segments": "True" in config}, "external_annotations": []}


class SnapshotTest(ToolCase):
    def file(self, contents, protocol=4):  # pylint: disable=arguments-renamed
        return super().file(contents if isinstance(contents, bytes) else pickle.dumps(contents, protocol), "snapshot.pickle")

    def replay(self, *arguments, status=0):
        return self.tool("replay", *arguments, status=status)

    def replay_json(self, path, *options, status=0, note=None):
        """Returns the JSON of a replay; `note` is the message about the file that standard error must contain."""
        completed = self.replay("--json", *options, path, status=status)
        if note:
            self.assertEqual(completed.stderr, f"{path}: {note}\n")
        return json.loads(completed.stdout)


class PyTorchFiles(SnapshotTest):
    def test_peaks_equal_those_of_pytorch_and_of_the_trace(self):
        expected = json.loads((SNAPSHOTS / "peaks.json").read_text())
        for name in ("classic", "expandable"):
            result = self.replay_json(SNAPSHOTS / f"{name}.pickle.zst")
            trace = self.replay_json(SNAPSHOTS / f"{name}.xtrace.zst")
            with self.subTest(name):
                for peak in PEAKS:
                    self.assertEqual(result[peak], expected[name][peak.removeprefix("peak_")], peak)
                    self.assertEqual(result[peak], trace[peak], peak)
                self.assertEqual((result["events"], result["config"]), (trace["events"], trace["config"]))
                self.assertEqual((result["failed"], result["failed_served"]), (1, 0))

    def test_ring_ends_in_the_state_of_the_complete_history(self):
        complete = self.replay_json(SNAPSHOTS / "expandable.pickle.zst", "--explain")
        ring = self.replay_json(SNAPSHOTS / "ring.pickle.zst", "--explain",
                                note="device 0, 150 entries; allocated before the first: 33 blocks, 69.47 MiB")
        self.assertEqual(ring["explained"]["in_allocated_blocks"], complete["explained"]["in_allocated_blocks"])
        self.assertLess(ring["events"], complete["events"] / 2)
        self.assertLess(ring["peak_requested"], complete["peak_requested"])

    def test_entries_have_times(self):
        path = self.folder / "timeline"
        self.assertGreater(self.replay_json(SNAPSHOTS / "expandable.pickle.zst", "--timeline", path)["allocated_time_avg"], 0)
        self.assertTrue(path.read_text().startswith("# usec"))

    def test_snapshot_is_compared_with_another_configuration(self):
        completed = self.replay("--json", "--compare", "expandable_segments:False", SNAPSHOTS / "expandable.pickle.zst")
        expandable, classic = json.loads(completed.stdout)
        self.assertEqual(expandable["peak_requested"], classic["peak_requested"])
        self.assertGreater(expandable["driver_calls"]["cuMemMap"], 0)
        self.assertGreater(classic["driver_calls"]["cuMemAlloc"], 0)
        self.assertEqual(len(completed.stderr.splitlines()), 1)

    def test_truncated_compressed_file_is_rejected(self):
        complete = (SNAPSHOTS / "ring.pickle.zst").read_bytes()
        for size in (5, 100, len(complete) - 1):
            completed = self.replay(self.file(complete[:size]), status=2)
            self.assertRegex(completed.stderr, r"pickle:(1| cannot be read as a memory snapshot: byte \d+): .*is truncated\n\Z")


class PickleFiles(SnapshotTest):
    def test_all_protocols_from_2_are_read(self):
        contents = snapshot([entry("alloc", 0, 3 * MIB), entry("free_completed", 0, 3 * MIB), entry("alloc", 0, 40000 * MIB)])
        for protocol in (2, 3, 4, 5):
            result = self.replay_json(self.file(contents, protocol), note="device 0, 3 entries")
            self.assertEqual((result["events"], result["peak_requested"]), (3, 40000 * MIB))

    def expect_error(self, contents, message, protocol=4):
        completed = self.replay(self.file(contents, protocol), status=2)
        self.assertEqual(completed.stdout, "")
        self.assertRegex(completed.stderr, rf"\A{re.escape(str(self.folder))}[^\n]*{message}[^\n]*\n\Z")

    def test_unreplayable_snapshots_are_rejected(self):
        for protocol in (2, 3, 4, 5):
            self.expect_error(collections.OrderedDict(segments=[]), r"byte \d+: .* class or a function", protocol)
        for protocol in (0, 1):
            self.expect_error(snapshot([]), "unsupported file, a (pickle of protocol 0 or 1|text file)", protocol)
        self.expect_error({"a": 1}, "no memory snapshot")
        self.expect_error(snapshot([]), "nothing to replay, device 0")
        self.expect_error(snapshot([entry("alloc"), entry("alloc", size="x")]),
                          "pickle: device 0, entry 2: `size` is missing or not a number")
        self.expect_error(snapshot([entry("alloc")], segments=[{}]), "segment 1: `device` is missing")
        completed = self.replay(self.file(snapshot([entry("alloc")], config="a:b")), status=2)
        self.assertIn("no allocator can be opened with the configuration 'a:b,", completed.stderr)

    def test_every_truncated_pickle_is_rejected(self):
        complete = pickle.dumps(snapshot([entry("alloc"), entry("oom", device_free=0)]), 2)
        for size in range(1, len(complete)):
            self.expect_error(complete[:size], "is truncated")


class Histories(SnapshotTest):
    def test_recorded_failure_is_counted_and_may_be_served(self):
        contents = snapshot([entry("alloc", 0, 60 * MIB), entry("free_completed", 0, 60 * MIB),
                             entry("oom", 0, 80 * MIB, device_free=0)])
        sufficient = self.replay_json(self.file(contents))
        self.assertEqual((sufficient["failed"], sufficient["failed_served"], sufficient["oom_at"]), (1, 1, -1))
        limited = self.replay_json(self.file(contents), "--device-memory", "70MiB")
        self.assertEqual((limited["failed"], limited["failed_served"]), (1, 0))
        self.assertIn("recorded failures           1 of 1 succeed", self.replay(self.file(contents)).stdout)
        self.assertNotIn("failed", self.replay_json(self.file(snapshot([entry("alloc")]))))

    def test_new_out_of_memory_error_names_the_entry(self):
        path = self.file(snapshot([entry("alloc", 0, MIB), entry("alloc", MIB, 90 * MIB)]))
        self.assertIn(f"{path}:2: out of memory", self.replay("--device-memory", "70MiB", path, status=3).stderr)

    def test_unmapping_by_xseg_itself_releases_no_other_memory(self):
        """An unmapping by the program is an event `e`, which unmaps all idle memory, so the last block maps it again.
        `steal` is the former name of the cause `remap`."""
        events = [entry("alloc", 0, 40 * MIB), entry("alloc", 40 * MIB, 40 * MIB), entry("free_completed", 0, 40 * MIB),
                  entry("segment_unmap", 0, 20 * MIB), entry("segment_map", 0, 20 * MIB), entry("alloc", 0, 40 * MIB)]

        def unmap_calls(*causes):
            contents = snapshot(events)
            contents["device_traces"].append([dict(event) for event in events[:5]])
            contents["xseg"] = {"format": 1, "devices": [{"device": 1, "causes": [[3, "trim"]]},
                                                         {"device": 0, "causes": list(causes)}]}
            return self.replay_json(self.file(contents))["driver_calls"]["cuMemUnmap"]

        self.assertGreater(unmap_calls(), unmap_calls([3, "steal"]))
        self.assertEqual(unmap_calls([3, "trim"]), unmap_calls())
        for cause in ("decay", "pause", "of a later release"):
            self.assertEqual(unmap_calls([3, cause]), unmap_calls([3, "steal"]))
        for malformed in ([6, "steal"], [3], [3, 3], 3):
            contents = snapshot(events)
            contents["xseg"] = {"devices": [{"device": 0, "causes": [malformed]}]}
            self.assertIn("xseg: a cause is not a list of an entry and a name", self.replay(self.file(contents), status=2).stderr)

    def test_option_selects_the_device(self):
        path = self.file(snapshot([entry("alloc", 0, 100)], [entry("alloc", 0, 200), entry("alloc", 512, 300)]))
        self.assertEqual(self.replay_json(path, note="device 1 of 2, 2 entries")["peak_requested"], 500)
        self.assertEqual(self.replay_json(path, "--device", 0, note="device 0 of 2, 1 entry")["peak_requested"], 100)
        self.assertIn("nothing to replay, device 2", self.replay("--device", 2, path, status=2).stderr)
        for text in ("-1", "x", "1024", ""):
            self.assertIn("--device takes a device ordinal", self.replay("--device", text, path, status=2).stderr)

    def test_segments_without_history_are_replayed(self):
        path = self.file([segment(0, 20 * MIB, (3 * MIB, "active_allocated"),
                                  (4 * MIB, "inactive"), (5 * MIB, "active_pending_free"))])
        result = self.replay_json(path, note="device 0, 0 entries; allocated before the first: 2 blocks, 8.00 MiB")
        self.assertEqual(result["peak_requested"], 8 * MIB)

    def test_missing_settings_imply_the_default_configuration(self):
        contents = snapshot([entry("alloc")])
        del contents["allocator_settings"]
        result = self.replay_json(self.file(contents))
        self.assertEqual(result["config"], "expandable_segments:False")
        self.assertIn("configuration: the file has neither a setting expandable_segments nor segments; PyTorch's "
                      "default is assumed, expandable_segments:False", result["notes"])
        contents = snapshot([entry("alloc")], config="")
        self.assertEqual(self.replay_json(self.file(contents))["config"], "expandable_segments:False")


def load_compressed(path):
    return pickle.loads(subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout)


def convert_to_2_0(contents):
    """Converts a snapshot to the format of PyTorch 2.0, which has fewer keys, and has the frames of a block in its history."""
    older = {key: contents[key] for key in ("segments", "device_traces")}
    for segment_ in older["segments"]:
        for key in ("is_expandable", "segment_pool_id", "requested_size", "frames"):
            segment_.pop(key, None)
        for block in segment_["blocks"]:
            requested, frames, address = (block.pop(key) for key in ("requested_size", "frames", "address"))
            block["history"] = [{"addr": address, "real_size": requested,
                                 "frames": frames}] if block["state"] != "inactive" else []
    for trace in older["device_traces"]:
        for entry_ in trace:
            for key in ("time_us", "pool_id", "user_metadata", "compile_context"):
                entry_.pop(key, None)
    return older


class OlderReleases(SnapshotTest):
    INFERRED = "configuration: the file has no setting expandable_segments; inferred from its segments: expandable_segments:{}"

    def test_inferred_segment_kind_is_reported(self):
        for name, kind in (("classic", False), ("expandable", True), ("train", False), ("early", True)):
            complete, settings = load_compressed(SNAPSHOTS / f"{name}.pickle.zst"), {"max_split_size": -1}
            original = self.replay_json(self.file(complete))
            for reduced in ({**complete, "allocator_settings": settings},
                            {key: complete[key] for key in ("segments", "device_traces")}):
                with self.subTest(name):
                    path = self.file(reduced)
                    result = self.replay_json(path)
                    self.assertEqual(result["config"], f"expandable_segments:{kind}")
                    self.assertEqual([result[peak] for peak in PEAKS], [original[peak] for peak in PEAKS])
                    self.assertEqual(result["notes"], [self.INFERRED.format(kind)])
                    self.assertIn(self.INFERRED.format(kind) + "\n", self.replay(path).stdout)
                    self.assertNotIn("notes", self.replay_json(path, "--config", f"expandable_segments:{kind}"))

    def test_file_of_2_0_is_replayed_like_a_newer_one(self):
        complete = load_compressed(SNAPSHOTS / "classic.pickle.zst")
        original = self.replay_json(self.file(complete))
        result = self.replay_json(self.file(convert_to_2_0(complete)))
        self.assertEqual([result[peak] for peak in PEAKS], [original[peak] for peak in PEAKS])
        self.assertEqual(result["notes"], [self.INFERRED.format(False)])

    def test_requested_size_is_read_from_the_history_of_a_block(self):
        contents = [segment(0, 4 * MIB, (MIB, "active_allocated"), (3 * MIB, "inactive"))]
        del contents[0]["blocks"][0]["requested_size"]
        contents[0]["blocks"][0]["history"] = [{"addr": 1 << 40, "real_size": 1000, "frames": []}]
        self.assertEqual(self.replay_json(self.file(contents))["peak_requested"], 1000)

    def test_contradictory_settings_are_reported(self):
        complete = load_compressed(SNAPSHOTS / "classic.pickle.zst")
        complete["allocator_settings"] |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": True}
        self.assertRegex(self.replay_json(self.file(complete))["notes"][0],
                         "mean expandable_segments:True, and all its segments are classic")


def fragmented_state(segments=40, free_mib=20):
    """The state at the end of a program without its history: in each segment, 1 MiB is allocated and `free_mib` are cached."""
    return [{**segment(index * 64 * MIB, (1 + free_mib) * MIB, (MIB, "active_allocated"), (free_mib * MIB, "inactive")),
             "is_expandable": False}
            for index in range(segments)]


class IncompleteHistory(SnapshotTest):
    MISSING = (r"history: (.*) of the (.*) that are reserved at its end are missing, since a replay with the file's "
               r"configuration ends with (.*): peaks are too low, and the effect of a configuration is not known; record all "
               r"entries from the start")

    def notes(self, contents, *options):
        return self.replay_json(self.file(contents), *options).get("notes", [])

    def test_state_without_its_history_reports_the_missing_bytes(self):
        contents = snapshot([entry("free_completed", 1 << 35, 5 * MIB)], segments=fragmented_state(), config="")
        output = self.replay("--json", "--compare", "expandable_segments:True", self.file(contents)).stdout
        result, compared = json.loads(output)
        self.assertRegex(result["notes"][0], self.MISSING)
        missing, reserved, end = re.match(self.MISSING, result["notes"][0]).groups()
        self.assertEqual((reserved, result["notes"]), ("840.00 MiB", compared["notes"]))
        self.assertAlmostEqual(float(missing.split()[0]) + float(end.split()[0]), 840, 1)
        text = self.replay("--compare", "expandable_segments:True", self.file(contents)).stdout
        self.assertEqual(len(re.findall(self.MISSING, text)), 1)

    def test_other_configuration_compares_with_the_state_before_the_first_entry(self):
        contents = snapshot([entry("free_completed", 1 << 35, 5 * MIB)], segments=fragmented_state(), config="")
        self.assertRegex(self.notes(contents, "--config", "expandable_segments:True")[0],
                         r"history: 840.00 MiB were reserved before its first entry, of which the replay has 45.00 MiB in "
                         r"allocated blocks")

    def test_state_without_any_history_is_reported(self):
        contents = snapshot([], segments=fragmented_state(), config="")
        text = self.replay("--compare", "expandable_segments:True", self.file(contents)).stdout
        self.assertEqual(len(re.findall("^history: the file has none, and the replay allocates only the blocks that are "
                                        "allocated at its end, 40.00 MiB of the 840.00 MiB that are reserved: peaks may be too "
                                        "low, and the effect of a", text, re.MULTILINE)), 1, text)

    def test_complete_history_has_no_note(self):
        for path in sorted((SNAPSHOTS).glob("*.pickle.zst")):
            with self.subTest(path.name):
                self.assertNotIn("notes", self.replay_json(path))
        grown = snapshot([entry("segment_alloc", 0, 20 * MIB), entry("alloc", 0, 3 * MIB)], config="",
                         segments=[{**segment(0, 20 * MIB, (3 * MIB, "active_allocated"), (17 * MIB, "inactive")),
                                    "is_expandable": False}])
        self.assertEqual(self.notes(grown), [])

    def test_blocks_outside_all_segments_are_counted(self):
        self.assertEqual(self.notes(snapshot([entry("alloc"), entry("alloc", 512)])),
                         ["history: its end has 2 allocated blocks that no segment of the file contains: their frees are "
                          "missing, and peaks may be too high"])

    def test_missing_frees_are_counted(self):
        contents = snapshot([entry("alloc"), entry("alloc"), entry("free_requested"), entry("free_completed")])
        self.assertEqual(self.notes(contents), ["history: 1 free is missing: the replay frees a block when its address is "
                                                "allocated again, and peaks may be too high"])

    def test_missing_allocations_are_counted(self):
        contents = snapshot([entry("segment_map", 0, 2 * MIB), entry("alloc", 0, MIB), entry("free_completed", 0, MIB)],
                            segments=[segment(0, 2 * MIB, (MIB, "active_allocated"), (MIB, "inactive"))])
        self.assertEqual(self.notes(contents), ["history: no allocation of 1 block (1.00 MiB) in the segments of the "
                                                "file: peaks may be too low"])

    def test_garbage_collection_without_a_fraction_is_reported(self):
        for config, count in (("garbage_collection_threshold:0.8", 1),
                              ("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", 0)):
            trace = self.folder / "job.xtrace"
            trace.write_text(f"xtrace 1\nc {config}\na 1 512 0\nf 1\n")
            completed = self.replay("--json", trace)
            self.assertEqual(len(json.loads(completed.stdout).get("notes", [])), count)
            self.assertEqual(completed.stderr.count("garbage_collection_threshold has no effect"), count)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
