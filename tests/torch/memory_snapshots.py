# SPDX-License-Identifier: MIT
"""The examples of PyTorch's post "Debugging PyTorch memory use with snapshots", on both allocators: memory_snapshots.py DRIVER.

The programs are those of the post, with a small model in place of torchvision's.
"""
import contextlib
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

import backends

MIB = 1 << 20
HERE = os.path.abspath(__file__)
STATES = {"active_allocated", "active_awaiting_free", "active_pending_free", "inactive"}


def observe_out_of_memory(torch, path):
    """The observer writes a snapshot before the error is raised."""

    def oom_observer(device, alloc, device_alloc, device_free):
        print("saving allocated state during OOM", device, alloc > 0, device_alloc > 0, device_free >= 0)
        with open(path, "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)

    torch._C._cuda_attach_out_of_memory_observer(oom_observer)
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        print("raised")


def program(folder):
    import torch  # pylint: disable=import-outside-toplevel
    from torch import nn  # pylint: disable=import-outside-toplevel

    torch.cuda.memory._record_memory_history()
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).cuda()
    output = model(torch.rand(64, 1024).cuda())
    with open(folder / "snapshot.pickle", "wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)
    stats = torch.cuda.memory_stats()
    print("before", stats["requested_bytes.all.current"], stats["reserved_bytes.all.current"])
    output = model(torch.rand(8 * 1024, 1024).cuda())
    with open(folder / "snapshot2.pickle", "wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)
    print("after", torch.cuda.memory_stats()["reserved_bytes.all.current"])
    observe_out_of_memory(torch, folder / "oom_snapshot.pickle")
    del output


def training(path):
    """Two training steps whose history has C++ frames, which is PyTorch's default."""
    import torch  # pylint: disable=import-outside-toplevel
    from torch import nn  # pylint: disable=import-outside-toplevel

    torch.cuda.memory._record_memory_history(stacks="all")
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(64, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.memory._dump_snapshot(str(path))


def annotated(path):
    """Two training steps whose history has all optional keys of PyTorch."""
    import torch  # pylint: disable=import-outside-toplevel
    from torch.profiler import record_function  # pylint: disable=import-outside-toplevel

    model = torch.nn.Linear(1024, 1024).cuda()
    compiled = torch.compile(model, backend="eager")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        used, free, moved = (torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3))
    storage = moved.untyped_storage()
    address = storage.data_ptr()
    storage.resize_(0)
    del free
    torch.cuda.memory._record_memory_history(stacks="python", compile_context=True, global_record_annotations=True,
                                             record_pinned_host_memory=True)
    with torch.cuda.use_mem_pool(pool):
        storage._resize_with_addr_(2 * MIB, address)
    for step in range(2):
        with record_function(f"train_step {step}"):
            with record_function("load"):
                batch = torch.ones(64, 1024, pin_memory=True).cuda()
            with record_function("forward"):
                output = compiled(batch)
            with record_function("backward"):
                output.sum().backward()
    torch.cuda.memory._dump_snapshot(str(path))
    del used


class Example(unittest.TestCase):
    outputs, folders = {}, {}

    @classmethod
    def setUpClass(cls):
        started = {}
        for backend in ("native", "xseg"):
            folder = tempfile.TemporaryDirectory()
            cls.addClassCleanup(folder.cleanup)
            cls.folders[backend] = pathlib.Path(folder.name)
            started[backend] = backends.start(sys.argv[1], backend, HERE, "program", cls.folders[backend],
                                              PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        for backend, process in started.items():
            cls.outputs[backend] = backends.finish(process, backend).splitlines()

    def read(self, backend, name):
        return pickle.loads((self.folders[backend] / name).read_bytes())

    def printed_values(self, backend, word):
        line = next(line for line in self.outputs[backend] if line.startswith(word + " "))
        return [int(number) for number in line.split()[1:]]

    def tool(self, command, *files):
        process = subprocess.run([pathlib.Path(sys.argv[1]).parent / "xseg", command, *files], capture_output=True, text=True,
                                 check=False)
        self.assertEqual(process.returncode, 0, process.stderr)
        return process.stdout

    def memory_viz(self):
        import importlib.util  # pylint: disable=import-outside-toplevel

        path = next((pathlib.Path.home() / ".cache/xseg").glob("torch-*/lib/python3*/site-packages/torch/cuda/_memory_viz.py"),
                    None)
        if path is None:
            self.skipTest("file not found, torch/cuda/_memory_viz.py")
        spec = importlib.util.spec_from_file_location("memory_viz", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_output_is_equal_on_both_allocators(self):
        self.maxDiff = None
        # The name of the allocator, and the line that a library with self-checks prints.
        ignored = ("backend", "xseg: self-checks: ")
        native, xseg = ([line for line in self.outputs[name] if not line.startswith(ignored)] for name in ("native", "xseg"))
        self.assertEqual(native, xseg)
        self.assertEqual(self.outputs["xseg"][-2:], ["saving allocated state during OOM 0 True True True", "raised"])

    def test_segments_and_blocks_have_the_documented_structure(self):
        for backend in self.folders:
            snapshot = self.read(backend, "snapshot.pickle")
            for segment in snapshot["segments"]:
                self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"])
                self.assertLessEqual({block["state"] for block in segment["blocks"]}, STATES)
                self.assertIn(segment["segment_type"], ("small", "large"))
            stacks = [block["frames"] for segment in snapshot["segments"] for block in segment["blocks"]
                      if block["state"] == "active_allocated"]
            self.assertTrue(any(frame["name"] == "_apply" for frame in stacks[0]), stacks[0])

    def test_command_stats_prints_the_sums(self):
        for backend in self.folders:
            snapshot = self.read(backend, "snapshot.pickle")
            text = self.memory_viz().segsum(snapshot)
            requested, reserved = self.printed_values(backend, "before")
            self.assertIn(f"segments: {len(snapshot['segments'])}\n", text)
            self.assertIn(f"total_reserved: {reserved / MIB:.1f}MiB\n", text)
            self.assertIn(f"total_allocated: {requested / MIB:.1f}MiB\n", text)

    def test_flame_graphs_have_the_reserved_and_requested_bytes(self):
        for backend in self.folders:
            snapshot = self.read(backend, "snapshot.pickle")
            requested, reserved = self.printed_values(backend, "before")
            for command, total in (("segments", reserved), ("memory", reserved)):
                lines = getattr(self.memory_viz(), command)(snapshot, format_flamegraph=lambda text: text).splitlines()
                self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in lines), total, (backend, command))
            allocated_lines = [line for line in lines if "active_allocated" in line]
            self.assertEqual(sum(int(line.rsplit(" ", 1)[1]) for line in allocated_lines), requested)

    def test_two_snapshots_are_compared(self):
        for backend in self.folders:
            before, after = (self.read(backend, name)["segments"] for name in ("snapshot.pickle", "snapshot2.pickle"))
            with contextlib.redirect_stdout(io.StringIO()):
                text = self.memory_viz().compare(before, after, format_flamegraph=lambda lines: lines)
            self.assertIn("only_after", text)
            self.assertEqual(sum(segment["total_size"] for segment in after), self.printed_values(backend, "after")[0])

    def test_failed_request_is_the_last_event(self):
        for backend in self.folders:
            last = self.read(backend, "oom_snapshot.pickle")["device_traces"][0][-1]
            self.assertEqual((last["action"], last["size"]), ("oom", 1 << 40))

    def test_commands_of_the_tool_read_the_snapshots(self):
        for backend, folder in self.folders.items():
            for name in ("snapshot.pickle", "snapshot2.pickle", "oom_snapshot.pickle"):
                self.assertRegex(self.tool("blame", folder / name), re.escape(pathlib.Path(HERE).name) + r":\d+ program")
                self.tool("replay", folder / name)
                self.tool("view", folder / name, "-o", folder / "page.html")
                self.assertIn('id="summary-0"', (folder / "page.html").read_text(encoding="utf-8"))

    def test_sites_of_a_backward_pass_are_autograd_nodes(self):
        with tempfile.TemporaryDirectory() as folder:
            for backend in self.folders:
                path = pathlib.Path(folder) / f"{backend}.pickle"
                backends.finish(backends.start(sys.argv[1], backend, HERE, "training", str(path)), backend)
                for depth in "1", "3":
                    sites = {site["site"]: site["blocks"]
                             for site in json.loads(self.tool("blame", "--json", "--depth", depth, path))["sites"]}
                    native = {name: blocks for name, blocks in sites.items() if ".py:" not in name and not name.startswith("(")}
                    nodes = {name: blocks for name, blocks in native.items() if name.startswith("backward pass: ")}
                    self.assertIn("backward pass: GeluBackward0", nodes)
                    self.assertGreaterEqual(sum(nodes.values()), 0.7 * sum(native.values()), native)
                    for name in sites:
                        self.assertNotRegex(name, r"_PyEval|\?\?|unwind|execute_native|no stack")
                self.assertTrue(any(" < " in name for name in sites), sites)

    def test_labels_synthetic_entries_and_pinned_memory_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            for backend in self.folders:
                path = pathlib.Path(folder) / f"{backend}.pickle"
                backends.finish(backends.start(sys.argv[1], backend, HERE, "annotated", str(path)), backend)

                def blame(kind):
                    return json.loads(self.tool("blame", "--json", f"--label={kind}", path))  # pylint: disable=cell-var-from-loop

                def blocks(report):
                    return {site["site"]: site["blocks"] for site in report["sites"]}

                steps, stages = blame("step"), blame("stage")
                trace = pickle.loads(path.read_bytes())["device_traces"][0]
                tagged = [entry for entry in trace if entry.get("internal_metadata")]
                # PyTorch also allocates and frees the memory before the address, xseg allocates only the block.
                sizes = [4 * MIB, 2 * MIB, 4 * MIB, 4 * MIB] if backend == "native" else [2 * MIB]
                self.assertEqual([entry["size"] for entry in tagged], sizes)
                self.assertEqual((steps["synthetic"], steps["omitted"]), (len(sizes) - 1, 0))
                counts_of_steps = {name: count for name, count in blocks(steps).items() if not name.startswith("(")}
                self.assertEqual(set(counts_of_steps), {"train_step 0", "train_step 1"})
                self.assertEqual(set(blocks(stages)) - set(blocks(steps)), {"load", "forward", "backward", "(no stage)"})
                counts_of_stages = [count for name, count in blocks(stages).items() if not name.startswith("(")]
                self.assertEqual(sum(counts_of_stages), sum(counts_of_steps.values()))
                regions = blocks(blame("region"))
                self.assertEqual(regions["Torch-Compiled Region: 0/0"], blocks(stages)["forward"])
                self.assertEqual({**blocks(steps["host"]), **blocks(stages["host"])},
                                 {"train_step 0": 1, "train_step 1": 1, "load": 2})


if __name__ == "__main__":
    if sys.argv[1] in ("program", "training", "annotated"):
        globals()[sys.argv[1]](pathlib.Path(sys.argv[2]))
        sys.exit()
    backends.require(sys.argv[1], needs_adapter=True)
    unittest.main(argv=sys.argv[:1])
