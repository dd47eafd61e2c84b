# SPDX-License-Identifier: MIT
"""For the tests of `xseg advise`, which are given TOOL SOURCE_ROOT: files, and figures that are those of replays."""
import json
import pathlib

from folder_case import MIB, TOOL, ToolCase

BASE = 0x7f0000000000
KEYS = ["trace", "device_bytes", "replayed", "why", "certain", "notes", "omitted", "current", "advised", "runner_up", "out_of_memory",
        "transient_peak", "engine_margin"]
# There a search takes ten times as long.
IS_SANITIZED = b"__asan_init" in pathlib.Path(TOOL).read_bytes()


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


def smallest_pair(pairs, units):
    """By the definition, of pairs of allocated and reserved bytes: e of some units of 0.001, and c."""
    least = None
    total, distinct = sum(allocated for allocated, _ in pairs), set(pairs)
    for unit in sorted(units):
        c = max(0, *(1000 * (reserved - allocated) - unit * allocated for allocated, reserved in distinct))
        average = unit * total + c * len(pairs)
        if least is None or average < least[0]:
            least = average, unit, -(-c // 1000)
    return least[1:]


class AdviseTest(ToolCase):
    def file(self, contents, name="job"):
        """Bytes, a trace without its first line, or a snapshot."""
        return super().file("xtrace 1\n" + contents if isinstance(contents, str) else contents, name)

    def replayed(self, path, config, *options, status=0):
        done = self.tool("replay", "--json", "--config", config, *options, path, status=status)
        return json.loads(done.stdout)

    def holds(self, path, string, *options):
        """Each figure is what a replay with that string prints, as JSON and as text."""
        found = self.replayed(path, string["config"], "--min-device", *options, status=3 if string["oom_at"] >= 0 else 0)
        for name in ("oom_at", "peak_requested", "peak_reserved", "min_device", "driver_us"):
            self.assertEqual(string[name], found[name], (name, string["config"]))

    def points(self, path, config, *options):
        """Allocated and reserved bytes after each event; None: the timeline has not a row for each."""
        timeline = self.folder / "timeline"
        self.tool("replay", "--config", config, "--timeline", timeline, *options, path, status=None)
        head, *rows = (line.split("\t") for line in timeline.read_text().splitlines() if not line.startswith("# mark"))
        if head[0] != "# event" or any(int(row[0]) != number for number, row in enumerate(rows, 1)):
            return None
        return [(int(row[2]), int(row[3])) for row in rows]

    def headroom_is_smallest(self, path, string, *options):
        points = self.points(path, string["config"], *options)
        if points is None:
            return
        headroom = string["headroom"]
        peaks = [(max(allocated for allocated, _ in points[:at + 1]), reserved) for at, (_, reserved) in enumerate(points)] \
            if len(points) < 3000 else []
        for e, c, pairs in ((headroom["e"], headroom["c"], points), (headroom["peak_e"], headroom["peak_c"], peaks)):
            unit = round(e * 1000)
            tried = {*range(60), *range(60, 5000, 50), *range(max(0, unit - 3), unit + 4)}
            self.assertEqual((unit, c), smallest_pair(pairs, tried), string["config"])

    def advice(self, path, *options):
        """The JSON, of which each figure is what a replay says."""
        found = json.loads(self.tool("advise", "--json", *options, path).stdout)
        self.assertEqual(list(found), KEYS)
        larger = found["device_bytes"] != 80 << 30
        devices = [f"--device-memory={found['device_bytes']}"] if larger else []
        for name in ("current", "advised", "runner_up"):
            if found[name]:
                self.holds(path, found[name], *devices)
                self.headroom_is_smallest(path, found[name], *devices)
        if found["out_of_memory"]:
            self.completes_as_told(path, found)
        return found

    def completes(self, path, config, device):
        """Whether a replay on such a device serves all, also what failed in the file."""
        done = self.tool("replay", "--json", "--config", config, "--device-memory", device, path, status=None)
        self.assertIn(done.returncode, (0, 3), done.stderr)
        found = json.loads(done.stdout)
        return found["oom_at"] < 0 and found.get("failed", 0) == found.get("failed_served", 0)

    def completes_as_told(self, path, found):
        """And what is needed is enough, and little less is not."""
        device = found["out_of_memory"]["device_bytes"]
        for string in filter(None, (found["current"], found["advised"])):
            self.assertEqual(string["completes"], self.completes(path, string["config"], device))
            needed = string["device_needed"]
            self.assertTrue(self.completes(path, string["config"], needed))
            self.assertFalse(self.completes(path, string["config"], needed - needed // 400 - 4 * MIB))
        least = found["out_of_memory"]["least_change"]
        if least is not None:
            self.assertTrue(self.completes(path, least, device))
