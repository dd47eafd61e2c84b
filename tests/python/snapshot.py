# SPDX-License-Identifier: MIT
"""Snapshots agree with the other reports of the library, and PyTorch's tools can read them."""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import sys
import tempfile

import cases
import machine
import xseg
from cases import MIB, ROOT
from xseg import _library

sys.path.insert(0, str(ROOT / "tests/support"))
import rewind_snapshot  # noqa: E402  pylint: disable=wrong-import-position

STATES = {xseg.BlockState.ALLOCATED: "active_allocated", xseg.BlockState.PENDING_FREE: "active_pending_free",
          xseg.BlockState.CACHED: "inactive"}
ALL = "expandable_segments:True,history:all,history_stacks:all"


def read(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def summed(snapshot, key):
    """A figure of all segments."""
    return sum(segment[key] for segment in snapshot["segments"])


class Case(machine.Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def open(self, config=ALL):
        allocator = xseg.open(config, log=lambda level, line: None)
        self.addCleanup(allocator.close)
        return allocator

    def write(self, allocator, **options):
        """A snapshot, taken back from its end."""
        path = self.folder / "snapshot.pickle"
        allocator.snapshot(path, **options)
        self.assertEqual(list(self.folder.iterdir()), [path])
        snapshot = read(path)
        path.unlink()
        rewind_snapshot.check(snapshot)
        return snapshot

    def equal(self, one, other, where):
        """As assertEqual(), of deep values; the first difference is named."""
        if isinstance(one, (dict, list)) and type(one) is type(other) and len(one) == len(other):
            for key in one if isinstance(one, dict) else range(len(one)):
                self.equal(one[key], other[key], f"{where}[{key!r}]")
        elif where.endswith("['time_us']"):
            self.assertAlmostEqual(one, other, delta=1000, msg=where)  # two readings of the clock
        else:
            self.assertEqual(one, other, where)


class Contents(Case):
    def fill(self, allocator):
        """Blocks of all states, small and large, in two pools."""
        stream = machine.Stream()
        pool = allocator.pool(name="second")
        blocks = [allocator.allocate(size) for size in (100, 600, 3 * MIB, 30 * MIB, 41 * MIB)]
        blocks += [pool.allocate(5 * MIB), allocator.allocate(7 * MIB, stream=stream)]
        for at in (4, 1):
            blocks.pop(at).free()
        waits = allocator.allocate(9 * MIB)
        stream.launch()
        waits.record_stream(stream)
        waits.free()
        return blocks, pool, stream

    def expect_state(self, allocator, snapshot):
        walked = [(one.base, one.bytes, STATES[one.state]) for one in allocator.blocks() if one.state in STATES]
        blocks = [(block["address"], block["size"], block["state"])
                  for segment in snapshot["segments"] for block in segment["blocks"]]
        self.assertEqual(sorted(blocks), sorted(walked))
        stats, explained = allocator.statistics(), allocator.explain()
        self.assertEqual(summed(snapshot, "total_size"), stats.reserved_bytes.all.current)
        self.assertEqual(summed(snapshot, "allocated_size"), stats.allocated_bytes.all.current)
        self.assertEqual(summed(snapshot, "active_size"), stats.active_bytes.all.current)
        self.assertEqual(summed(snapshot, "requested_size"), stats.requested_bytes.all.current)
        device, = snapshot["xseg"]["devices"]
        self.assertEqual(device["reserved"], explained.reserved)
        self.assertEqual(sum(page[1] for page in device["pages"]), explained.reserved)
        self.assertEqual(sorted((page[0], page[1], page[2]) for page in device["pages"]),
                         sorted((one.base, one.bytes, one.kind.name.lower()) for one in explained.reasons))

    def test_settings_of_pytorch(self):
        """Keys without an effect are in the settings as they were named, and not in the configuration."""
        ignored = {"backend": "native", "pinned_num_register_threads": "8", "pinned_max_cached_size_mb": "7",
                   "pinned_use_cuda_host_register": "True", "release_lock_on_cudamalloc": "True"}
        text = ",".join(f"{key}:{value}" for key, value in ignored.items())
        allocator = self.open(text + ",max_split_size_mb:64")
        allocator.configure("pinned_num_register_threads:4")
        snapshot = self.write(allocator)
        settings = snapshot["allocator_settings"]
        self.assertEqual(dict(item.split(":") for item in settings.pop("PYTORCH_CUDA_ALLOC_CONF").split(",")),
                         {**ignored, "pinned_num_register_threads": "4", "max_split_size_mb": "64"})
        self.assertEqual(settings, {
            "max_split_size": 64 << 20, "max_round_threshold": -1, "max_cached_size": 7 << 20, "garbage_collection_threshold": 0,
            "expandable_segments": True, "release_lock_on_cudamalloc": True, "pinned_use_cuda_host_register": True,
            "graph_capture_record_stream_reuse": False, "pinned_num_register_threads": 4,
            "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)}})
        self.assertFalse(any(key in snapshot["xseg"]["configuration"] for key in ignored))

    def test_state_is_what_the_other_reports_say(self):
        for config in (ALL, "expandable_segments:False", "history:state", "expandable_segments:True,history:all"):
            with self.subTest(config=config):
                allocator = self.open(config)
                blocks, pool, stream = self.fill(allocator)
                snapshot = self.write(allocator)
                self.expect_state(allocator, snapshot)
                self.assertEqual(any(snapshot["device_traces"]), "history:all" in config)
                self.assertIn("history:", snapshot["xseg"]["configuration"])
                self.assertEqual(snapshot["xseg"]["configuration_source"], "argument")
                for block in blocks:
                    block.free()
                del block, blocks, pool
                stream.finish()
                allocator.close()
                stream.destroy()

    def test_history_can_be_left_out(self):
        allocator = self.open()
        with allocator.allocate(MIB):
            snapshot = self.write(allocator, events=False)
            self.assertFalse(any(snapshot["device_traces"]))
            self.expect_state(allocator, snapshot)

    def test_the_oldest_events_are_left_out_and_counted(self):
        allocator = self.open()
        for _ in range(2000):
            allocator.allocate(MIB).free()
        whole = self.write(allocator)
        self.assertEqual(whole["xseg"]["devices"][0]["left_out"], 0)
        entries = whole["device_traces"][0]
        snapshot = self.write(allocator, host_bytes=64 * 1000)
        fewer, left_out = snapshot["device_traces"][0], snapshot["xseg"]["devices"][0]["left_out"]
        self.assertTrue(0 < len(fewer) <= 1000)
        self.equal([dict(entry, frames=[]) for entry in fewer],
                   [dict(entry, frames=[]) for entry in entries[-len(fewer):]], "")
        self.assertEqual((left_out + len(fewer), snapshot["xseg"]["devices"][0]["lost"]), (len(entries), 0))

    def test_events_say_who_and_where(self):
        allocator = self.open()
        with allocator.label("activations \u2713"):
            block = allocator.allocate(3 * MIB)
        _library.call("xseg_history_annotate", allocator.handle, 0, "step 7".encode())
        snapshot = self.write(allocator)
        event = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"][-1]
        self.assertEqual((event["addr"], event["size"], event["user_metadata"]),
                         (block.pointer, 3 * MIB, "activations \u2713"))
        self.assertTrue(event["frames"] and all(set(frame) >= {"name", "filename", "line"} for frame in event["frames"]))
        self.assertEqual([(one["stage"], one["name"]) for one in snapshot["external_annotations"]],
                         [("START", "step 7"), ("END", "step 7")])
        state, = (one for segment in snapshot["segments"] for one in segment["blocks"] if one["address"] == block.pointer)
        self.assertIs(state["frames"], event["frames"])
        block.free()

    def test_unmapped_memory_has_a_cause(self):
        allocator = self.open()
        allocator.allocate(30 * MIB).free()
        allocator.trim(wait=True)
        pool = allocator.pool()
        block = pool.allocate(20 * MIB)
        pool.pause(keep="nothing")
        away = self.write(allocator)
        self.assertEqual([segment["total_size"] for segment in away["xseg"]["paused"]], [20 * MIB])
        self.assertEqual(away["segments"], [])
        pool.resume()
        snapshot = self.write(allocator)
        trace, causes = snapshot["device_traces"][0], snapshot["xseg"]["devices"][0]["causes"]
        self.assertEqual([(cause, trace[entry]["action"]) for entry, cause in causes],
                         [("trim", "segment_unmap"), ("pause", "segment_unmap"), ("resume", "segment_map")])
        self.assertEqual(snapshot["xseg"]["paused"], [])
        block.free()

    def refuse(self, allocator, most_bytes=None):
        """Let a request be refused; returns the snapshot of that."""
        self.assertRaises(MemoryError, allocator.allocate, 1 << 45)
        written, = self.folder.iterdir()
        snapshot = read(written)
        if most_bytes is not None:
            self.assertLessEqual(written.stat().st_size, most_bytes)
        written.unlink()
        return snapshot

    def test_failed_request_is_the_last_event(self):
        allocator = self.open(f"{ALL},oom_snapshot:{self.folder}")
        block = allocator.allocate(30 * MIB)
        snapshot = self.refuse(allocator)
        rewind_snapshot.check(snapshot)
        last = snapshot["device_traces"][0][-1]
        self.assertEqual((last["action"], last["size"]), ("oom", 1 << 45))
        self.assertEqual(last["device_free"], allocator.statistics().device_bytes - machine.simulator.xseg_sim_used(0))
        self.assertEqual(summed(snapshot, "allocated_size"), 30 * MIB)
        block.free()

    def test_a_refusal_without_history_has_the_state(self):
        allocator = self.open(f"oom_snapshot:{self.folder}")
        block = allocator.allocate(30 * MIB)
        snapshot = self.refuse(allocator)
        self.assertEqual(summed(snapshot, "allocated_size"), 30 * MIB)
        self.assertFalse(any(snapshot["device_traces"]))
        block.free()

    def test_bounds_of_a_refusal_leave_the_oldest_out(self):
        for keys in ("oom_snapshot_ms:1", "oom_snapshot_mb:1"):
            allocator = self.open(f"{ALL},{keys},oom_snapshot:{self.folder}")
            for _ in range(8000):
                allocator.allocate(MIB).free()
            snapshot = self.refuse(allocator, most_bytes=MIB)
            rewind_snapshot.check(snapshot)
            self.assertGreater(snapshot["xseg"]["devices"][0]["left_out"], 1000, keys)
            # Three events of each block; those around them: the segment comes and goes, with its cause, and the refusal.
            self.assertIn(snapshot["xseg"]["devices"][0]["left_out"] + len(snapshot["device_traces"][0]),
                          range(24002, 24005), keys)
            allocator.close()

    def test_a_place_that_cannot_be_written(self):
        with self.assertRaisesRegex(xseg.FileError, r'cannot be written, ".*/none/file" \(No such file or directory\)'):
            self.open().snapshot(self.folder / "none/file")


class Replayed(Case):
    def replayed(self, path):
        tool = pathlib.Path(os.environ["XSEG_LIBRARY"]).parent / "xseg"
        done = subprocess.run([tool, "replay", "--json", path], capture_output=True, text=True, check=False, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def compare_peaks(self, allocator):
        """The replay of a snapshot has the peaks of the allocator; returns the replay and the snapshot."""
        path, stats = self.folder / "snapshot.pickle", allocator.statistics()
        allocator.snapshot(path)
        said = self.replayed(path)
        self.assertEqual([said[f"peak_{name}"] for name in ("requested", "allocated", "reserved")],
                         [stats.requested_bytes.all.peak, stats.allocated_bytes.all.peak,
                          stats.reserved_bytes.all.peak])
        return said, read(path)

    def expect_peaks(self, config, streams=()):
        allocator, draw, held = self.open(f"{config},history:all"), random.Random(5), []
        for _ in range(1500):
            if held and draw.random() < 0.5:
                held.pop(draw.randrange(len(held))).free()
            else:
                size = draw.choice([1000, 70000, MIB, 5 * MIB, 33 * MIB, draw.randrange(1, 90 * MIB)])
                held.append(allocator.allocate(size, stream=draw.choice(streams) if streams else None))
        said, snapshot = self.compare_peaks(allocator)
        rewind_snapshot.check(snapshot)
        self.assertIn(config, said["config"])
        for block in held:
            block.free()

    def expect_short(self, config, seed, streams, trims):
        """As expect_peaks(), of a program that its hard limit leaves short of memory, and that goes on to its end."""
        allocator, draw, held, short = self.open(f"{config},history:all"), random.Random(seed), [], 0
        for number in range(600):
            if trims and number % 50 == 49:
                allocator.trim(wait=True)
            if held and draw.random() < 0.52:
                held.pop(draw.randrange(len(held))).free()
                continue
            size = draw.choice([1000, 70000, MIB, 5 * MIB, 33 * MIB, draw.randrange(1, 90 * MIB)])
            try:
                held.append(allocator.allocate(size, stream=draw.choice(streams)))
            except MemoryError:
                short += 1
                held.pop(0).free()
        said, snapshot = self.compare_peaks(allocator)
        causes = {cause for _, cause in snapshot["xseg"]["devices"][0]["causes"]}
        self.assertEqual((said["oom_at"], said.get("failed_served", 0)), (-1, 0))
        for block in held:
            block.free()
        held.clear()
        block = None  # the last of the loop
        allocator.close()
        return short, causes

    def test_short_of_memory(self):
        """What the allocator takes from other streams, or gives back to have room, no trim of the program is."""
        streams = [machine.Stream() for _ in range(2)]
        self.addCleanup(lambda: [stream.destroy() for stream in streams])
        for config, trims in (("expandable_segments:True", False), ("expandable_segments:False", False),
                              ("expandable_segments:True,history_stacks:all", False),
                              ("expandable_segments:True,history_stacks:all", True)):
            refusals, seen = 0, set()
            for seed in range(8):
                with self.subTest(config=config, trims=trims, seed=seed):
                    short, causes = self.expect_short(f"{config},hard_limit_mb:700", seed, streams, trims)
                    refusals, seen = refusals + short, seen | causes
            self.assertGreater(refusals, 0)
            self.assertIn("remap" if "True" in config else "trim", seen)

    def test_expandable(self):
        self.expect_peaks("expandable_segments:True")

    def test_several_streams(self):
        streams = [machine.Stream() for _ in range(3)]
        self.addCleanup(lambda: [stream.destroy() for stream in streams])
        self.expect_peaks("expandable_segments:True", streams)


def torch_tool():
    """PyTorch's command for snapshots, from where torch is installed; it imports the standard library alone."""
    found = [pathlib.Path(place) / "torch/cuda/_memory_viz.py" for place in sys.path]
    for root in (os.environ.get("XSEG_REFERENCE"), pathlib.Path.home() / ".cache/xseg/torch-2.15.0"):
        if root:
            found += sorted(pathlib.Path(root).glob("**/site-packages/torch/cuda/_memory_viz.py"))
    return next((path for path in found if path.is_file()), None)


class PyTorch(Case):
    def setUp(self):
        super().setUp()
        self.tool = torch_tool()
        if self.tool is None:
            self.skipTest("PyTorch is not installed; run python3 tests/support/torch_environment.py python")
        self.allocator = self.open()
        self.blocks = [self.allocator.allocate(size) for size in (MIB, 5 * MIB, 70 * MIB)]
        self.blocks.pop(1).free()
        self.addCleanup(self.blocks.clear)
        self.path = self.folder / "snapshot.pickle"
        self.allocator.snapshot(self.path)

    def run_tool(self, *arguments, **variables):
        done = subprocess.run([sys.executable, self.tool, *arguments], capture_output=True, text=True, check=False, timeout=60,
                              env={**os.environ, **variables})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def module(self):
        spec = importlib.util.spec_from_file_location("memory_viz", self.tool)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_trace(self):
        said = self.run_tool("trace", self.path)
        self.assertIn(f"{len(read(self.path)['device_traces'][0])} entries", said)
        self.assertIn("a = seg_0[0:1.0MiB]", said)
        self.assertIn("del b # 5.0MiB", said)

    def test_stats(self):
        stats = self.allocator.statistics()
        said = self.run_tool("stats", self.path)
        self.assertIn(f"segments: {len(read(self.path)['segments'])}\n", said)
        self.assertIn(f"total_reserved: {stats.reserved_bytes.all.current / MIB:.1f}MiB\n", said)
        self.assertIn(f"total_allocated: {stats.requested_bytes.all.current / MIB:.1f}MiB\n", said)

    def test_segments_and_memory(self):
        """Each line has a stack and its bytes: all segments, and all that is live."""
        module, snapshot = self.module(), read(self.path)
        lines = module.segments(snapshot, format_flamegraph=lambda text: text).splitlines()
        self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in lines),
                         self.allocator.statistics().reserved_bytes.all.current)
        lines = module.memory(snapshot, format_flamegraph=lambda text: text).splitlines()
        self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in lines if "active_allocated" in line),
                         self.allocator.statistics().requested_bytes.all.current)

    def test_pictures(self):
        """As Debian's package has the script that PyTorch would fetch."""
        places = [pathlib.Path.home() / ".cache/flamegraph.pl", *pathlib.Path("/usr").glob("**/flamegraph.pl")]
        script = next((path for path in places if path.is_file()), None)
        if script is None:
            self.skipTest("flamegraph.pl is not installed; run .ci/setup libdevel-nytprof-perl")
        (self.folder / ".cache").mkdir()
        shutil.copy(script, self.folder / ".cache/flamegraph.pl")
        for command in ("segments", "memory"):
            picture = self.folder / f"{command}.svg"
            self.run_tool(command, self.path, "-o", picture, HOME=str(self.folder))
            self.assertIn("<svg", picture.read_text(encoding="utf-8"))

    def test_comparison(self):
        before = read(self.path)
        self.blocks.append(self.allocator.allocate(200 * MIB))
        self.allocator.snapshot(self.path)
        after = read(self.path)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            text = self.module().compare(before["segments"], after["segments"], format_flamegraph=lambda lines: lines)
        self.assertIn("only_after", text + said.getvalue())
        self.assertEqual(summed(after, "total_size"), self.allocator.statistics().reserved_bytes.all.current)


if __name__ == "__main__":
    cases.main()
