# SPDX-License-Identifier: MIT
"""Tests that snapshots agree with other reports of the library, and that PyTorch's tools can read them."""
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
import simulation
import xseg
from cases import MIB, ROOT
from xseg import _library

sys.path.insert(0, str(ROOT / "tests/support"))
import rewind_snapshot  # noqa: E402  pylint: disable=wrong-import-position

STATES = {xseg.BlockState.ALLOCATED: "active_allocated", xseg.BlockState.PENDING_FREE: "active_pending_free",
          xseg.BlockState.CACHED: "inactive"}
FULL_HISTORY = "expandable_segments:True,history:all,history_stacks:all"


def read(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def sum_of_segments(snapshot, key):
    """Returns the sum of a value over all segments."""
    return sum(segment[key] for segment in snapshot["segments"])


class Case(simulation.Case):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def open(self, config=FULL_HISTORY):
        allocator = xseg.open(config, log=lambda level, line: None)
        self.addCleanup(allocator.close)
        return allocator

    def write_and_check(self, allocator, **options):
        """Writes a snapshot, checks that undoing its events from the last to the first is consistent, and returns it."""
        path = self.folder / "snapshot.pickle"
        allocator.snapshot(path, **options)
        self.assertEqual(list(self.folder.iterdir()), [path])
        snapshot = read(path)
        path.unlink()
        rewind_snapshot.check(snapshot)
        return snapshot

    def expect_equal(self, actual, expected, path):
        """Compares nested values; the message has the path of the first difference."""
        if isinstance(actual, (dict, list)) and type(actual) is type(expected) and len(actual) == len(expected):
            for key in actual if isinstance(actual, dict) else range(len(actual)):
                self.expect_equal(actual[key], expected[key], f"{path}[{key!r}]")
        elif path.endswith("['time_us']"):
            self.assertAlmostEqual(actual, expected, delta=1000, msg=path)  # two clock reads
        else:
            self.assertEqual(actual, expected, path)


class Contents(Case):
    def fill(self, allocator):
        """Creates small and large blocks of all states in two pools."""
        stream, pool = simulation.Stream(), allocator.pool(name="second")
        blocks = [allocator.allocate(size) for size in (100, 600, 3 * MIB, 30 * MIB, 41 * MIB)]
        blocks += [pool.allocate(5 * MIB), allocator.allocate(7 * MIB, stream=stream)]
        for index in (4, 1):
            blocks.pop(index).free()
        pending_block = allocator.allocate(9 * MIB)
        stream.launch()
        pending_block.record_stream(stream)
        pending_block.free()
        return blocks, pool, stream

    def expect_state(self, allocator, snapshot):
        expected = [(block.base, block.bytes, STATES[block.state]) for block in allocator.blocks() if block.state in STATES]
        blocks = [(block["address"], block["size"], block["state"])
                  for segment in snapshot["segments"] for block in segment["blocks"]]
        self.assertEqual(sorted(blocks), sorted(expected))
        stats, report = allocator.statistics(), allocator.explain()
        self.assertEqual(sum_of_segments(snapshot, "total_size"), stats.reserved_bytes.all.current)
        self.assertEqual(sum_of_segments(snapshot, "allocated_size"), stats.allocated_bytes.all.current)
        self.assertEqual(sum_of_segments(snapshot, "active_size"), stats.active_bytes.all.current)
        self.assertEqual(sum_of_segments(snapshot, "requested_size"), stats.requested_bytes.all.current)
        device, = snapshot["xseg"]["devices"]
        self.assertEqual(device["reserved"], report.reserved)
        self.assertEqual(sum(page[1] for page in device["pages"]), report.reserved)
        self.assertEqual(sorted((page[0], page[1], page[2]) for page in device["pages"]),
                         sorted((reason.base, reason.bytes, reason.kind.name.lower()) for reason in report.reasons))

    def test_settings_have_the_keys_of_pytorch(self):
        """Keys without an effect are in the settings of PyTorch, but not in the configuration."""
        ignored = {"backend": "native", "pinned_num_register_threads": "8", "pinned_max_cached_size_mb": "7",
                   "pinned_use_cuda_host_register": "True", "release_lock_on_cudamalloc": "True"}
        allocator = self.open(",".join(f"{key}:{value}" for key, value in ignored.items()) + ",max_split_size_mb:64")
        allocator.configure("pinned_num_register_threads:4")
        snapshot = self.write_and_check(allocator)
        settings = snapshot["allocator_settings"]
        self.assertEqual(dict(item.split(":") for item in settings.pop("PYTORCH_CUDA_ALLOC_CONF").split(",")),
                         {**ignored, "pinned_num_register_threads": "4", "max_split_size_mb": "64"})
        self.assertEqual(settings, {
            "max_split_size": 64 << 20, "max_round_threshold": -1, "max_cached_size": 7 << 20, "garbage_collection_threshold": 0,
            "expandable_segments": True, "release_lock_on_cudamalloc": True, "pinned_use_cuda_host_register": True,
            "graph_capture_record_stream_reuse": False, "pinned_num_register_threads": 4,
            "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)}})
        self.assertFalse(any(key in snapshot["xseg"]["configuration"] for key in ignored))

    def test_state_equals_other_reports(self):
        for config in (FULL_HISTORY, "expandable_segments:False", "history:state", "expandable_segments:True,history:all"):
            with self.subTest(config=config):
                allocator = self.open(config)
                blocks, pool, stream = self.fill(allocator)
                snapshot = self.write_and_check(allocator)
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

    def test_history_can_be_omitted(self):
        allocator = self.open()
        with allocator.allocate(MIB):
            snapshot = self.write_and_check(allocator, events=False)
            self.assertFalse(any(snapshot["device_traces"]))
            self.expect_state(allocator, snapshot)

    def test_oldest_events_beyond_the_limit_are_omitted_and_counted(self):
        allocator = self.open()
        for _ in range(2000):
            allocator.allocate(MIB).free()
        complete = self.write_and_check(allocator)
        self.assertEqual(complete["xseg"]["devices"][0]["left_out"], 0)
        entries = complete["device_traces"][0]
        snapshot = self.write_and_check(allocator, host_bytes=64 * 1000)
        truncated, left_out = snapshot["device_traces"][0], snapshot["xseg"]["devices"][0]["left_out"]
        self.assertTrue(0 < len(truncated) <= 1000)
        self.expect_equal([dict(entry, frames=[]) for entry in truncated],
                          [dict(entry, frames=[]) for entry in entries[-len(truncated):]], "")
        self.assertEqual((left_out + len(truncated), snapshot["xseg"]["devices"][0]["lost"]), (len(entries), 0))

    def test_events_have_labels_and_stacks(self):
        allocator = self.open()
        with allocator.label("activations \u2713"):
            block = allocator.allocate(3 * MIB)
        _library.call("xseg_history_annotate", allocator.handle, 0, "step 7".encode())
        snapshot = self.write_and_check(allocator)
        event = [entry for entry in snapshot["device_traces"][0] if entry["action"] == "alloc"][-1]
        self.assertEqual((event["addr"], event["size"], event["user_metadata"]), (block.pointer, 3 * MIB, "activations \u2713"))
        self.assertTrue(event["frames"] and all(set(frame) >= {"name", "filename", "line"} for frame in event["frames"]))
        self.assertEqual([(annotation["stage"], annotation["name"]) for annotation in snapshot["external_annotations"]],
                         [("START", "step 7"), ("END", "step 7")])
        state, = (entry for segment in snapshot["segments"] for entry in segment["blocks"] if entry["address"] == block.pointer)
        self.assertIs(state["frames"], event["frames"])
        block.free()

    def test_unmapped_memory_has_a_cause(self):
        allocator = self.open()
        allocator.allocate(30 * MIB).free()
        allocator.trim(wait=True)
        pool = allocator.pool()
        block = pool.allocate(20 * MIB)
        pool.pause(keep="nothing")
        paused_snapshot = self.write_and_check(allocator)
        self.assertEqual([segment["total_size"] for segment in paused_snapshot["xseg"]["paused"]], [20 * MIB])
        self.assertEqual(paused_snapshot["segments"], [])
        pool.resume()
        snapshot = self.write_and_check(allocator)
        trace, causes = snapshot["device_traces"][0], snapshot["xseg"]["devices"][0]["causes"]
        self.assertEqual([(cause, trace[entry]["action"]) for entry, cause in causes],
                         [("trim", "segment_unmap"), ("pause", "segment_unmap"), ("resume", "segment_map")])
        self.assertEqual(snapshot["xseg"]["paused"], [])
        block.free()

    def fail_request(self, allocator, max_bytes=None):
        """Makes a request that fails, and returns its out-of-memory snapshot."""
        self.assertRaises(MemoryError, allocator.allocate, 1 << 45)
        path, = self.folder.iterdir()
        snapshot = read(path)
        if max_bytes is not None:
            self.assertLessEqual(path.stat().st_size, max_bytes)
        path.unlink()
        return snapshot

    def test_failed_request_is_the_last_event(self):
        allocator = self.open(f"{FULL_HISTORY},oom_snapshot:{self.folder}")
        block = allocator.allocate(30 * MIB)
        snapshot = self.fail_request(allocator)
        rewind_snapshot.check(snapshot)
        last = snapshot["device_traces"][0][-1]
        self.assertEqual((last["action"], last["size"]), ("oom", 1 << 45))
        self.assertEqual(last["device_free"], allocator.statistics().device_bytes - simulation.simulator.xseg_sim_used(0))
        self.assertEqual(sum_of_segments(snapshot, "allocated_size"), 30 * MIB)
        block.free()

    def test_snapshot_of_a_failed_request_without_history_has_the_state(self):
        allocator = self.open(f"oom_snapshot:{self.folder}")
        block = allocator.allocate(30 * MIB)
        snapshot = self.fail_request(allocator)
        self.assertEqual(sum_of_segments(snapshot, "allocated_size"), 30 * MIB)
        self.assertFalse(any(snapshot["device_traces"]))
        block.free()

    def test_limits_of_out_of_memory_snapshots_omit_the_oldest_events(self):
        for keys in ("oom_snapshot_ms:1", "oom_snapshot_mb:1"):
            allocator = self.open(f"{FULL_HISTORY},{keys},oom_snapshot:{self.folder}")
            for _ in range(8000):
                allocator.allocate(MIB).free()
            snapshot = self.fail_request(allocator, max_bytes=MIB)
            rewind_snapshot.check(snapshot)
            self.assertGreater(snapshot["xseg"]["devices"][0]["left_out"], 1000, keys)
            # Three events per block; mapping and unmapping of the segment, with its cause; and the failed request.
            self.assertIn(snapshot["xseg"]["devices"][0]["left_out"] + len(snapshot["device_traces"][0]),
                          range(24002, 24005), keys)
            allocator.close()

    def test_unwritable_path_is_reported(self):
        with self.assertRaisesRegex(xseg.FileError, r'cannot be written, ".*/none/file" \(No such file or directory\)'):
            self.open().snapshot(self.folder / "none/file")


class Replay(Case):
    def replay_json(self, path):
        tool = pathlib.Path(os.environ["XSEG_LIBRARY"]).parent / "xseg"
        completed = subprocess.run([tool, "replay", "--json", path], capture_output=True, text=True, check=False, timeout=100)
        self.assertEqual(completed.returncode, 0, completed.stderr)
        return json.loads(completed.stdout)

    def compare_peaks(self, allocator):
        """Compares the peaks of a replay with those of the allocator, and returns the replay and the snapshot."""
        path, stats = self.folder / "snapshot.pickle", allocator.statistics()
        allocator.snapshot(path)
        result = self.replay_json(path)
        self.assertEqual([result[f"peak_{name}"] for name in ("requested", "allocated", "reserved")],
                         [stats.requested_bytes.all.peak, stats.allocated_bytes.all.peak, stats.reserved_bytes.all.peak])
        return result, read(path)

    def expect_peaks(self, config, streams=()):
        allocator, rng, blocks = self.open(f"{config},history:all"), random.Random(5), []
        for _ in range(1500):
            if blocks and rng.random() < 0.5:
                blocks.pop(rng.randrange(len(blocks))).free()
            else:
                size = rng.choice([1000, 70000, MIB, 5 * MIB, 33 * MIB, rng.randrange(1, 90 * MIB)])
                blocks.append(allocator.allocate(size, stream=rng.choice(streams) if streams else None))
        result, snapshot = self.compare_peaks(allocator)
        rewind_snapshot.check(snapshot)
        self.assertIn(config, result["config"])
        for block in blocks:
            block.free()

    def expect_peaks_with_failures(self, config, seed, streams, trims):
        """As expect_peaks(), with requests that fail at the hard limit; returns the number of failures and the causes."""
        allocator, rng, blocks, failed_requests = self.open(f"{config},history:all"), random.Random(seed), [], 0
        for step in range(600):
            if trims and step % 50 == 49:
                allocator.trim(wait=True)
            if blocks and rng.random() < 0.52:
                blocks.pop(rng.randrange(len(blocks))).free()
                continue
            size = rng.choice([1000, 70000, MIB, 5 * MIB, 33 * MIB, rng.randrange(1, 90 * MIB)])
            try:
                blocks.append(allocator.allocate(size, stream=rng.choice(streams)))
            except MemoryError:
                failed_requests += 1
                blocks.pop(0).free()
        result, snapshot = self.compare_peaks(allocator)
        causes = {cause for _, cause in snapshot["xseg"]["devices"][0]["causes"]}
        self.assertEqual((result["oom_at"], result.get("failed_served", 0)), (-1, 0))
        for block in blocks:
            block.free()
        blocks.clear()
        block = None  # release the reference of the loop
        allocator.close()
        return failed_requests, causes

    def test_replay_of_a_program_with_failed_requests_has_its_peaks(self):
        """Remapping and unmapping by the out-of-memory fallback chain must not be replayed as trims of the program."""
        streams = [simulation.Stream() for _ in range(2)]
        self.addCleanup(lambda: [stream.destroy() for stream in streams])
        for config, trims in (("expandable_segments:True", False), ("expandable_segments:False", False),
                              ("expandable_segments:True,history_stacks:all", False),
                              ("expandable_segments:True,history_stacks:all", True)):
            failed_requests, all_causes = 0, set()
            for seed in range(8):
                with self.subTest(config=config, trims=trims, seed=seed):
                    failures, causes = self.expect_peaks_with_failures(f"{config},hard_limit_mb:700", seed, streams, trims)
                    failed_requests, all_causes = failed_requests + failures, all_causes | causes
            self.assertGreater(failed_requests, 0)
            self.assertIn("remap" if "True" in config else "trim", all_causes)

    def test_replay_has_the_peaks_with_expandable_segments(self):
        self.expect_peaks("expandable_segments:True")

    def test_replay_has_the_peaks_with_several_streams(self):
        streams = [simulation.Stream() for _ in range(3)]
        self.addCleanup(lambda: [stream.destroy() for stream in streams])
        self.expect_peaks("expandable_segments:True", streams)


def find_torch_tool():
    """Returns the path of PyTorch's command for snapshots, which imports only the standard library, or None."""
    candidates = [pathlib.Path(folder) / "torch/cuda/_memory_viz.py" for folder in sys.path]
    for environment_root in (os.environ.get("XSEG_REFERENCE"), pathlib.Path.home() / ".cache/xseg/torch-2.15.0"):
        if environment_root:
            candidates += sorted(pathlib.Path(environment_root).glob("**/site-packages/torch/cuda/_memory_viz.py"))
    return next((path for path in candidates if path.is_file()), None)


class PyTorchTools(Case):
    def setUp(self):
        super().setUp()
        self.tool = find_torch_tool()
        if self.tool is None:
            self.skipTest("PyTorch is not installed; run python3 tests/support/torch_environment.py python")
        self.allocator = self.open()
        self.blocks = [self.allocator.allocate(size) for size in (MIB, 5 * MIB, 70 * MIB)]
        self.blocks.pop(1).free()
        self.addCleanup(self.blocks.clear)
        self.path = self.folder / "snapshot.pickle"
        self.allocator.snapshot(self.path)

    def run_tool(self, *arguments, **variables):
        completed = subprocess.run([sys.executable, self.tool, *arguments], capture_output=True, text=True, check=False,
                                   timeout=60, env={**os.environ, **variables})
        self.assertEqual(completed.returncode, 0, completed.stderr)
        return completed.stdout

    def module(self):
        spec = importlib.util.spec_from_file_location("memory_viz", self.tool)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_command_trace_reads_the_snapshot(self):
        output = self.run_tool("trace", self.path)
        self.assertIn(f"{len(read(self.path)['device_traces'][0])} entries", output)
        self.assertIn("a = seg_0[0:1.0MiB]", output)
        self.assertIn("del b # 5.0MiB", output)

    def test_command_stats_reads_the_snapshot(self):
        stats, output = self.allocator.statistics(), self.run_tool("stats", self.path)
        self.assertIn(f"segments: {len(read(self.path)['segments'])}\n", output)
        self.assertIn(f"total_reserved: {stats.reserved_bytes.all.current / MIB:.1f}MiB\n", output)
        self.assertIn(f"total_allocated: {stats.requested_bytes.all.current / MIB:.1f}MiB\n", output)

    def test_flame_graphs_have_the_reserved_and_requested_bytes(self):
        """Each line has a stack and its bytes: of all segments, or of all allocated blocks."""
        module, snapshot = self.module(), read(self.path)
        lines = module.segments(snapshot, format_flamegraph=lambda text: text).splitlines()
        self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in lines),
                         self.allocator.statistics().reserved_bytes.all.current)
        lines = module.memory(snapshot, format_flamegraph=lambda text: text).splitlines()
        self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in lines if "active_allocated" in line),
                         self.allocator.statistics().requested_bytes.all.current)

    def test_commands_draw_flame_graphs(self):
        """Uses the script of Debian's package in place of the one that PyTorch would download."""
        candidates = [pathlib.Path.home() / ".cache/flamegraph.pl", *pathlib.Path("/usr").glob("**/flamegraph.pl")]
        script = next((path for path in candidates if path.is_file()), None)
        if script is None:
            self.skipTest("flamegraph.pl is not installed; run .ci/setup libdevel-nytprof-perl")
        (self.folder / ".cache").mkdir()
        shutil.copy(script, self.folder / ".cache/flamegraph.pl")
        for command in ("segments", "memory"):
            image = self.folder / f"{command}.svg"
            self.run_tool(command, self.path, "-o", image, HOME=str(self.folder))
            self.assertIn("<svg", image.read_text(encoding="utf-8"))

    def test_two_snapshots_can_be_compared(self):
        before = read(self.path)
        self.blocks.append(self.allocator.allocate(200 * MIB))
        self.allocator.snapshot(self.path)
        after = read(self.path)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            text = self.module().compare(before["segments"], after["segments"], format_flamegraph=lambda lines: lines)
        self.assertIn("only_after", text + output.getvalue())
        self.assertEqual(sum_of_segments(after, "total_size"), self.allocator.statistics().reserved_bytes.all.current)


if __name__ == "__main__":
    cases.main()
