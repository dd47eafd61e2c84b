# SPDX-License-Identifier: MIT
"""Shared code of the tests of `xseg advise`: input files, and the comparison of statistics with those of replays."""
import json
import pathlib

from folder_case import MIB, TOOL, ToolCase

BASE = 0x7f0000000000
KEYS = ["trace", "device_bytes", "replayed", "reason", "certain", "notes", "omitted", "current", "advised", "runner_up",
        "out_of_memory", "transient_peak", "engine_margin"]
# A search takes ten times as long with AddressSanitizer.
IS_SANITIZED = b"__asan_init" in pathlib.Path(TOOL).read_bytes()


def entry(action, address, size, **more):
    """An entry of a history, as PyTorch writes it."""
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "pool_id": (0, 0), "frames": [],
            **more}


def out_of_memory_snapshot(request, history=True):
    """A snapshot of 400 MiB in classic segments, of which 160 MiB are cached in 10 blocks, with 50 MiB of free device memory."""
    events, segments = [], []
    starts = [BASE + index * 64 * MIB for index in range(10)]
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


def smallest_headroom(points, candidates):
    """The headroom: of all e and c with reserved <= (1 + e) * allocated + c at each point, those with the smallest average bound.

    The points are pairs of allocated and reserved bytes.  e is one of the candidates, in units of 0.001; c is in bytes.
    """
    best = None
    total, distinct = sum(allocated for allocated, _ in points), set(points)
    for e in sorted(candidates):
        c = max(0, *(1000 * (reserved - allocated) - e * allocated for allocated, reserved in distinct))  # in 0.001 bytes
        bound = e * total + c * len(points)
        if best is None or bound < best[0]:
            best = bound, e, -(-c // 1000)
    return best[1:]


class AdviseTest(ToolCase):
    def file(self, contents, name="job"):
        """Write a file of bytes, of a trace without its first line, or of a snapshot."""
        return super().file("xtrace 1\n" + contents if isinstance(contents, str) else contents, name)

    def replay_json(self, path, config, *options, status=0):
        return json.loads(self.tool("replay", "--json", "--config", config, *options, path, status=status).stdout)

    def expect_replay(self, path, string, *options):
        """Expect the statistics of a replay with this configuration."""
        expected = self.replay_json(path, string["config"], "--min-device", *options, status=3 if string["oom_at"] >= 0 else 0)
        for name in ("oom_at", "peak_requested", "peak_reserved", "min_device", "driver_us"):
            self.assertEqual(string[name], expected[name], (name, string["config"]))

    def points(self, path, config, *options):
        """The allocated and reserved bytes after each event, or None if the timeline does not have a row for each event."""
        timeline = self.folder / "timeline"
        self.tool("replay", "--config", config, "--timeline", timeline, *options, path, status=None)
        head, *rows = (line.split("\t") for line in timeline.read_text().splitlines() if not line.startswith("# mark"))
        if head[0] != "# event" or any(int(row[0]) != number for number, row in enumerate(rows, 1)):
            return None
        return [(int(row[2]), int(row[3])) for row in rows]

    def expect_smallest_headroom(self, path, string, *options):
        points = self.points(path, string["config"], *options)
        if points is None:
            return
        headroom = string["headroom"]
        peaks = [(max(allocated for allocated, _ in points[:at + 1]), reserved) for at, (_, reserved) in enumerate(points)] \
            if len(points) < 3000 else []
        for e, c, pairs in ((headroom["e"], headroom["c"], points), (headroom["peak_e"], headroom["peak_c"], peaks)):
            e_units = round(e * 1000)
            candidates = {*range(60), *range(60, 5000, 50), *range(max(0, e_units - 3), e_units + 4)}
            self.assertEqual((e_units, c), smallest_headroom(pairs, candidates), string["config"])

    def advice(self, path, *options):
        """The JSON output, whose statistics must equal those of replays."""
        result = json.loads(self.tool("advise", "--json", *options, path).stdout)
        self.assertEqual(list(result), KEYS)
        is_default = result["device_bytes"] == 80 << 30
        devices = [] if is_default else [f"--device-memory={result['device_bytes']}"]
        for name in ("current", "advised", "runner_up"):
            if result[name]:
                self.expect_replay(path, result[name], *devices)
                self.expect_smallest_headroom(path, result[name], *devices)
        if result["out_of_memory"]:
            self.expect_completion(path, result)
        return result

    def completes(self, path, config, device):
        """Whether a replay on a device of this size serves all requests, including those that failed in the file."""
        replay = self.tool("replay", "--json", "--config", config, "--device-memory", device, path, status=None)
        self.assertIn(replay.returncode, (0, 3), replay.stderr)
        result = json.loads(replay.stdout)
        return result["oom_at"] < 0 and result.get("failed", 0) == result.get("failed_served", 0)

    def expect_completion(self, path, result):
        """Expect that a replay completes with `device_needed` bytes, and fails with 0.25 % and 4 MiB less."""
        device = result["out_of_memory"]["device_bytes"]
        for string in filter(None, (result["current"], result["advised"])):
            self.assertEqual(string["completes"], self.completes(path, string["config"], device))
            needed = string["device_needed"]
            self.assertTrue(self.completes(path, string["config"], needed))
            self.assertFalse(self.completes(path, string["config"], needed - needed // 400 - 4 * MIB))
        change = result["out_of_memory"]["least_change"]
        if change is not None:
            self.assertTrue(self.completes(path, change, device))
