# SPDX-License-Identifier: MIT
"""Tests of `xseg blame`: blame.py TOOL SOURCE_ROOT."""
import fractions
import json
import pickle
import random
import sys
import unittest

from folder_case import MIB, ROOT, SNAPSHOTS, ToolCase

sys.path.insert(0, str(ROOT / "tests/support"))
import json_keys  # pylint: disable=wrong-import-position

PAGE = 2 * MIB
LARGE = 20 * MIB
BASE = 0x7f0000000000


def frames(name, line=1, file="model.py"):
    """Returns a stack in PyTorch's format: the named frame between a function of PyTorch and main()."""
    return [{"name": "empty", "filename": "/x/site-packages/torch/nn/functional.py", "line": 9},
            {"name": name, "filename": file, "line": line}, {"name": "main", "filename": "main.py", "line": 1}]


def torch_frame(name, line=256):
    """Returns the frame of a function of PyTorch without source: the path of the library, and an offset as line."""
    return {"name": name, "filename": "/v/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", "line": line}


class Program:
    """Builds a snapshot event by event, and records the mapped ranges and the blocks after each event."""

    def __init__(self, start=1_000_000):
        self.time, self.trace, self.states = start, [], []
        self.ranges, self.blocks = {}, {}  # start: (end, expandable, page); address: [bytes, state, frames, label]
        self.label = ""

    def event(self, action, addr, size, stack=None, **fields):
        entry = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": self.time,
                 "user_metadata": self.label, "compile_context": "N/A", "pool_id": (0, 0), **fields}
        if stack:
            entry["frames"] = stack
        self.trace.append(entry)
        self.states.append((self.time, dict(self.ranges), {address: tuple(block) for address, block in self.blocks.items()}))

    def map(self, start, size, expandable=True, page=PAGE):
        self.ranges[start] = (start + size, expandable, page if expandable else size)
        self.event("segment_map" if expandable else "segment_alloc", start, size)

    def unmap(self, start):
        end, expandable, _ = self.ranges.pop(start)
        self.event("segment_unmap" if expandable else "segment_free", start, end - start)

    def alloc(self, address, size, stack=None, label=""):
        self.blocks[address] = [-(-size // 512) * 512, "active_allocated", stack or [], label]
        self.label = label
        self.event("alloc", address, size, stack)

    def free(self, address, pending=False):
        block = self.blocks[address]
        if block[1] == "active_allocated":
            block[1] = "active_pending_free"
            self.event("free_requested", address, block[0])
        if not pending:
            del self.blocks[address]
            self.event("free_completed", address, block[0])

    def segments(self):
        runs = []
        for start, (end, expandable, _) in sorted(self.ranges.items()):
            if runs and expandable and runs[-1][2] and runs[-1][1] == start:
                runs[-1][1] = end
            else:
                runs.append([start, end, expandable])
        segments = []
        for start, end, expandable in runs:
            blocks, at = [], start
            for address, (size, state, stack, _) in sorted(self.blocks.items()):
                if start <= address < end:
                    if at < address:
                        blocks.append((at, address - at, "inactive", []))
                    blocks.append((address, size, state, stack))
                    at = address + size
            if at < end:
                blocks.append((at, end - at, "inactive", []))
            segments.append({"device": 0, "address": start, "total_size": end - start, "stream": 0,
                             "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": expandable, "frames": [],
                             "blocks": [{"address": address, "size": size, "requested_size": size, "state": state,
                                         "frames": stack} for address, size, state, stack in blocks]})
        return segments

    def snapshot(self, skip=0):
        """Returns the snapshot without the first `skip` events, which a ring buffer would have overwritten."""
        return {"segments": self.segments(), "device_traces": [self.trace[skip:]],
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": True}, "external_annotations": []}


class ReferenceSums:
    """The sums of the tool, computed page by page for each event."""

    def __init__(self):
        self.reserved = self.allocated = self.pending = self.idle = self.fragmented = 0
        self.site = {}  # name: [fragmented, allocated]

    def add(self, ranges, blocks, duration, name_of):
        pages = {}  # (start, end): [blocks, mapped]
        for start, (end, _, step) in ranges.items():
            for page in range(start, end, step):
                pages[page, page + step] = ([], step)
        for (start, end), (page_blocks, mapped) in pages.items():
            page_blocks += [b for a, b in blocks.items() if a < end and a + b[0] > start]
            used = {state: sum(min(end, a + b[0]) - max(start, a) for a, b in blocks.items()
                               if a < end and a + b[0] > start and b[1] == state)
                    for state in ("active_allocated", "active_pending_free")}
            cached = (mapped - sum(used.values())) * duration
            allocated = [b for b in page_blocks if b[1] == "active_allocated"]
            self.reserved += mapped * duration
            self.allocated += used["active_allocated"] * duration
            self.pending += used["active_pending_free"] * duration
            if allocated:
                self.fragmented += cached
            elif page_blocks:
                self.pending += cached
            else:
                self.idle += cached
            for block in allocated:
                self.site.setdefault(name_of(block), [0, 0])[0] += fractions.Fraction(cached, len(allocated))
        for block in blocks.values():
            if block[1] == "active_allocated":
                self.site.setdefault(name_of(block), [0, 0])[1] += block[0] * duration


class BlameTest(ToolCase):
    command = "blame"

    def file(self, contents, name="job.pickle"):
        return super().file(contents.snapshot() if isinstance(contents, Program) else contents, name)

    def run_tool(self, *arguments, command=None, **options):
        completed = self.tool(command or self.command, *arguments, **options)
        return completed.stdout, completed.stderr

    def read_output(self, *arguments, **options):
        output, error = self.run_tool(*arguments, **options)
        self.assertRegex(error, r"\A[^\n]*no segment of the file contains [^\n]*\n\Z" if options.get("status") else r"\A\Z")
        return output

    def read_report(self, *arguments, **options):
        """Returns the JSON with sums as integers, and checks that they add up.  Status 1: blocks are omitted."""
        report = json.loads(self.read_output("--json", *arguments, **options))
        for name in ("reserved", "allocated", "fragmented", "pending", "idle"):
            report[name] = int(report[name])
        for site in report["sites"]:
            site["fragmented"], site["allocated"] = int(site["fragmented"]), int(site["allocated"])
        self.assertEqual(report["reserved"] - report["allocated"], report["fragmented"] + report["pending"] + report["idle"])
        self.assertEqual(report["fragmented"], sum(site["fragmented"] for site in report["sites"]))
        self.assertEqual(report["allocated"], sum(site["allocated"] for site in report["sites"]))
        self.assertEqual(report["peak"]["allocated"], sum(site["peak"] for site in report["sites"]))
        return report

    def expect_error(self, message, *arguments, **options):
        output, error = self.run_tool(*arguments, status=2, **options)
        self.assertEqual(output, "")
        self.assertEqual(len(error.splitlines()), 1, error)
        self.assertIn(message, error)


def small_program():
    """Returns a program with two blocks in one page and a third block in another page."""
    program = Program()
    program.map(BASE, 6 * MIB)
    program.alloc(BASE, MIB, frames("forward", 212), "step")
    program.alloc(BASE + MIB, MIB // 2, frames("cache", 7), "cache")
    program.time += 1_000_000
    program.free(BASE)
    program.alloc(BASE + 4 * MIB, 2 * MIB, frames("backward", 300), "step")
    program.time += 1_000_000
    program.free(BASE + 4 * MIB)
    return program


class Report(BlameTest):
    def test_text_report_lists_sites_and_totals(self):
        path = self.file(small_program())
        self.assertEqual(self.read_output(path).replace(str(path), "job.pickle"), """\
job.pickle: device 0, 8 entries in 2.00 s
averages over time: reserved 6.00 MiB, allocated 2.00 MiB; at the peak of reserved memory: reserved 6.00 MiB, allocated 2.50 MiB

   share    fragmented     allocated   at the peak  site
 21.88 %    896.00 KiB    512.00 KiB    512.00 KiB  model.py:7 cache
  3.12 %    128.00 KiB    512.00 KiB       0 bytes  model.py:212 forward
  0.00 %       0 bytes      1.00 MiB      2.00 MiB  model.py:300 backward
  0.00 %       0 bytes                              pending: freed, but another stream may still use it
 75.00 %      3.00 MiB                              idle: whole pages without a block
100.00 %      4.00 MiB      2.00 MiB      2.50 MiB  total of fragmented, pending and idle bytes
""")

    def test_option_limits_the_rows_of_the_text_report(self):
        text = self.read_output("--rows", "1", self.file(small_program()))
        self.assertIn("model.py:7 cache\n", text)
        self.assertIn("  3.12 %    128.00 KiB      1.50 MiB      2.00 MiB  2 more\n", text)

    def test_option_selects_the_sort_order(self):
        path = self.file(small_program())
        for order, first in (("fragmented", "model.py:7 cache"), ("allocated", "model.py:300 backward"),
                             ("peak", "model.py:300 backward")):
            self.assertEqual(self.read_report("--by", order, path)["sites"][0]["site"], first)
        self.assertIn("100.00 %      1.00 MiB      2.00 MiB      2.50 MiB  total\n",
                      self.read_output("--by", "peak", path))

    def test_option_groups_sites_by_label(self):
        sites = self.read_report("--label", self.file(small_program()))["sites"]
        self.assertEqual([(site["site"], site["blocks"]) for site in sites], [("cache", 1), ("step", 2)])

    def test_option_adds_callers_to_the_site(self):
        sites = self.read_report("--depth", "2", self.file(small_program()))["sites"]
        self.assertEqual(sites[0]["site"], "model.py:7 cache < main.py:1 main")

    def test_flame_output_has_folded_stacks(self):
        lines = self.read_output("--flame", self.file(small_program())).splitlines()
        torch = "/x/site-packages/torch/nn/functional.py:9 empty"
        self.assertEqual(lines, [f"main.py:1 main;model.py:7 cache;{torch} {896 << 10}",
                                 f"main.py:1 main;model.py:212 forward;{torch} {128 << 10}", "(pending) 0", f"(idle) {3 * MIB}"])

    def sites_of_stacks(self, *stacks, options=()):
        """Returns the sites of one block per stack."""
        program = Program()
        program.map(BASE, 2 * MIB)
        for number, stack in enumerate(stacks):
            program.alloc(BASE + number * 512, 512, stack)
        program.time += 1
        program.event("snapshot", 0, 0)
        return [site["site"] for site in self.read_report(*options, self.file(program))["sites"]]

    def test_site_is_the_innermost_frame_of_the_program(self):
        python = {"name": "run", "filename": "/lib/python3.11/threading.py", "line": 3}
        torch_python = {"name": "linear", "filename": "/v/lib/python3.11/site-packages/torch/f.py", "line": 4}
        user_frame = {"name": "f", "filename": "/v/lib/python3.11/site-packages/other/g.py", "line": 5}
        torch_native = {"name": "at::empty", "filename": "/v/libtorch_cpu.so", "line": 256}
        foreign_native = {"name": "decode", "filename": "/v/libdecode.so", "line": 512}
        for stack, site in (([torch_native, torch_python, user_frame, python], "/v/lib/python3.11/site-packages/other/g.py:5 f"),
                            ([torch_native, torch_python, python], "/v/lib/python3.11/site-packages/torch/f.py:4 linear"),
                            ([torch_native, foreign_native, torch_native], "decode (/v/libdecode.so+0x200)"),
                            ([torch_native, torch_native], "at::empty"), ([], "(no stack)")):
            self.assertEqual(self.sites_of_stacks(stack), [site])

    def test_backward_pass_is_named_by_its_node(self):
        """Stacks of PyTorch with stacks="all": the thread of the backward pass has no Python frame."""
        inner = [torch_frame("torch::unwind::unwind()"), torch_frame("torch::CapturedTraceback::gather(bool, bool, bool)"),
                 torch_frame("??"), torch_frame("void at::native::copy<int, (anonymous namespace)::X>(at::Tensor const&)")]
        outer = [torch_frame("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"),
                 {"name": "execute_native_thread_routine", "filename": "/src/libstdc++-v3/src/c++11/thread.cc", "line": 82},
                 {"name": "start_thread", "filename": "./nptl/pthread_create.c", "line": 442},
                 {"name": "clone3", "filename": "../sysdeps/unix/sysv/linux/x86_64/clone3.S", "line": 81}]
        apply = "torch::autograd::generated::%s::apply(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)"
        for middle, site in (([apply % "MmBackward0"], "backward pass: MmBackward0"),
                             (["non-virtual thunk to " + apply % "MmBackward0"], "backward pass: MmBackward0"),
                             (["torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)"],
                              "backward pass: AccumulateGrad"),
                             (["torch::autograd::CppNode<my::Op>::apply(int)"], "backward pass: CppNode<my::Op>"),
                             (["at::Tensor at::sum(at::Tensor const&)",
                               "torch::autograd::InputMetadata::reduce_grad(at::Tensor&) const"],
                              "torch::autograd::InputMetadata::reduce_grad"),
                             ([], "at::native::copy<int, (anonymous namespace)::X>")):
            stack = inner + [torch_frame(name) for name in middle] + outer
            self.assertEqual(self.sites_of_stacks(stack), [site])
        # Calls in one function differ in their offsets; without source the file is unknown.
        moved = [dict(frame, line=frame["line"] + 8) for frame in inner + [torch_frame(apply % "MmBackward0")]] + outer
        unknown = [dict(frame, filename="??", line=0) for frame in moved]
        self.assertEqual(self.sites_of_stacks(inner + [torch_frame(apply % "MmBackward0")] + outer, moved, unknown),
                         ["backward pass: MmBackward0"])
        self.assertEqual(self.sites_of_stacks(inner[:3] + outer), ["(no stack)"])

    def test_names_of_the_program_that_resemble_library_names_are_sites(self):
        for name in ("PyramidNet::forward(int)", "cloned_copy", "attach(void)", "my::at::f()",
                     "bool operator<(A const&, B const&)", "my::Wrapper::operator at::Tensor() const",
                     "my::cooperator<int> my::f(int)", "operator new(unsigned long, my::Pool&)"):
            self.assertEqual(self.sites_of_stacks([torch_frame("at::empty()"),
                                                   {"name": name, "filename": "/me/x.cpp", "line": 1}]), [f"/me/x.cpp:1 {name}"])

    def test_stack_of_cpp_frames_is_named_by_its_operation(self):
        """Stacks of PyTorch with stacks="cpp": Python with and without debug information, as a library, and unknown."""
        operation = [torch_frame("at::empty()"), torch_frame("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)")]
        names = ("cfunction_call", "_PyObject_MakeTpCall", "_PyEval_EvalFrameDefault", "method_vectorcall", "slot_tp_call",
                 "run_mod", "pymain_run_python.constprop.0", "Py_BytesMain", "main", "__libc_start_main_impl", "_start")
        for file in ("/src/Python-3.11.7/Objects/call.c", "/v/bin/python3.11", "/v/lib/libpython3.11.so.1.0", "??"):
            callers = [{"name": name, "filename": file, "line": 0}
                       for name in ("pybind11::cpp_function::dispatcher(_object*)", *names)]
            self.assertEqual(self.sites_of_stacks(operation + callers), ["at::_ops::mm::call"])

    def test_python_library_is_recognized_by_its_folder(self):
        user_frame = {"name": "step", "filename": "/me/train.py", "line": 2}
        for file, is_library in (("C:\\Python310\\Lib\\site-packages\\torch\\nn\\modules\\module.py", True),
                                 ("/usr/lib64/python3.9/contextlib.py", True),
                                 ("/me/lib/python/model.py", False), ("C:\\me\\torch_model.py", False)):
            inner = {"name": "f", "filename": file, "line": 1}
            self.assertEqual(self.sites_of_stacks([torch_frame("at::empty()"), inner, user_frame]),
                             ["/me/train.py:2 step" if is_library else f"{file}:1 f"])

    def test_callers_of_a_python_frame_are_python_frames(self):
        """With stacks="all" frames of the interpreter are between the Python frames."""
        interpreter = [{"name": "_PyEval_EvalFrameDefault", "filename": "/v/bin/python3.11", "line": 77},
                       {"name": "method_vectorcall", "filename": "/src/python-3.11.7/Objects/classobject.c", "line": 59}]
        call = {"name": "_call_impl", "filename": "/v/lib/python3.11/site-packages/torch/nn/modules/module.py", "line": 4}
        layer, model, main = ({"name": name, "filename": "model.py", "line": line}
                              for line, name in enumerate(("layer", "model", "main")))
        stack = [torch_frame("at::empty()"), layer, *interpreter, call, *interpreter, model, *interpreter, main]
        self.assertEqual(self.sites_of_stacks(stack, options=("--depth", "3")),
                         ["model.py:0 layer < model.py:1 model < model.py:2 main"])

    def test_control_characters_are_escaped(self):
        program = Program()
        program.map(BASE, 2 * MIB)
        program.alloc(BASE, 512, frames("f;\x1b[31m\n"))
        snapshot = program.snapshot()
        snapshot["xseg"] = {"devices": [{"device": 0, "pages": [[BASE, 0, "\ud800\n", 0, 0]]}]}
        path = self.folder / "a\x1b\n.pickle"
        for options in ((), ("--flame",), ("--json",)):
            text = self.read_output(*options, self.file(snapshot, path.name))
            self.assertTrue(all(byte == "\n" or " " <= byte <= "~" for byte in text), text)
        self.assertIn("f,\\x1b[31m\\x0a", self.read_output("--flame", path))

    def test_option_selects_the_device(self):
        snapshot = small_program().snapshot()
        snapshot["device_traces"].append([dict(entry) for entry in snapshot["device_traces"][0][:3]])
        path = self.file(snapshot)
        self.assertEqual(self.read_report(path)["device"], 0)
        self.assertEqual(self.read_report("--device", "1", path, status=1)["device"], 1)
        self.expect_error("no entries or segments of device 7; devices of the file: 0, 1", "--device", "7", path)

    def test_device_with_the_largest_segment_is_the_default_without_events(self):
        program = small_program()
        segments = program.segments() + [{**program.segments()[0], "device": 1, "total_size": 8 * MIB}]
        self.assertEqual(self.read_report(self.file(segments))["device"], 1)

    def test_snapshot_is_read_from_standard_input(self):
        data = pickle.dumps(small_program().snapshot(), 4)
        self.assertTrue(self.read_output("-", stdin_data=data).startswith("standard input: device 0, 8 entries"))


class Pages(BlameTest):
    def report_idle_memory(self, size, **settings):
        """Returns fragmented and idle MiB of `size` mapped MiB with a block of 4 MiB in each 20 MiB, with and without history."""
        program = Program()
        program.map(BASE + 6 * MIB, size * MIB)
        for at in range(6, size + 6, 20):
            program.alloc(BASE + (at + 2) * MIB, 4 * MIB, frames("keep"))
        snapshot = program.snapshot()
        snapshot["allocator_settings"] |= settings.pop("settings", {})
        for segment in snapshot["segments"]:
            segment |= settings
        with_history = self.read_report(self.file(snapshot))
        snapshot["device_traces"] = []
        sums = [(report["fragmented"] // MIB, report["idle"] // MIB)
                for report in (with_history, self.read_report(self.file(snapshot)))]
        self.assertEqual(*sums)
        return sums[0]

    def test_page_size_follows_the_segment_and_the_configuration(self):
        for settings, expected in (
                ({}, (160, 0)), ({"segment_type": "small"}, (0, 160)), ("large_segment_size_mb:40", (160, 0)),
                ("garbage_collection_threshold:0.8,large_segment_size_mb: 10", (60, 100)), ("page_size:small", (0, 160)),
                ("page_size:auto", (160, 0))):
            with self.subTest(settings):
                settings = {"settings": {"PYTORCH_CUDA_ALLOC_CONF": settings}} if isinstance(settings, str) else settings
                self.assertEqual(self.report_idle_memory(200, **settings), expected)
        for value in ("13", "0", "-1", "x", "99999999999999999999", ""):
            self.assertIn(self.report_idle_memory(200, settings={"PYTORCH_CUDA_ALLOC_CONF": f"large_segment_size_mb:{value}"}),
                          ((160, 0), (0, 160)), value)

    def test_odd_multiple_of_small_pages_has_small_pages(self):
        self.assertEqual(self.report_idle_memory(206)[0], 0)

    def test_unmapped_range_implies_page_boundaries(self):
        program = Program()
        program.map(BASE, LARGE)
        program.map(BASE + LARGE, LARGE)
        for at in range(10):
            program.alloc(BASE + at * 4 * MIB, 4 * MIB if at % 5 else 512, frames("keep" if at % 5 == 0 else "scratch"))
        for at in range(10):
            if at % 5:
                program.free(BASE + at * 4 * MIB)
        program.ranges = {BASE: (BASE + 2 * MIB, True, PAGE), BASE + 2 * MIB: (BASE + LARGE, True, PAGE),
                          BASE + LARGE: (BASE + 2 * LARGE, True, LARGE)}
        program.unmap(BASE + 2 * MIB)
        report = self.read_report(self.file(program))
        self.assertEqual((report["fragmented"], report["idle"]), (2 * MIB - 512 + LARGE - 512, 0))
        self.assertEqual(report["peak"]["reserved"], 2 * LARGE)


class Limits(BlameTest):
    def test_snapshot_without_history_reports_the_final_state(self):
        path = self.file(small_program().segments())
        text = self.read_output(path)
        self.assertIn("_record_memory_history()", text)
        self.assertIn("history:all", text)
        report = self.read_report(path)
        self.assertEqual((report["duration_us"], report["reserved"], report["allocated"], report["fragmented"], report["idle"]),
                         (0, 6 * MIB, MIB // 2, 3 * MIB // 2, 4 * MIB))
        self.assertEqual(report["sites"][0]["site"], "model.py:7 cache")

    def test_events_with_equal_times_have_no_duration(self):
        program = Program()
        program.map(BASE, 2 * MIB)
        program.alloc(BASE, MIB, frames("f"))
        report = self.read_report(self.file(program))
        self.assertEqual((report["duration_us"], report["fragmented"]), (0, MIB))

    def test_missing_events_are_reported(self):
        snapshot = small_program().snapshot()
        snapshot["device_traces"][0].insert(1, {**snapshot["device_traces"][0][1], "addr": 64})
        for lost, left_out, notes in (
                (1234, 5, ("1,234 earlier entries were overwritten\n", "5 earlier entries did not fit in the file\n",
                           "1 inconsistent entry or block is omitted\n")),
                (1, 1, ("1 earlier entry was overwritten\n", "1 earlier entry did not fit in the file\n"))):
            snapshot["xseg"] = {"devices": [{"device": 0, "lost": lost, "left_out": left_out}]}
            text = self.read_output(self.file(snapshot), status=1)
            for note in notes:
                self.assertIn(note, text)

    def test_events_without_times_have_no_duration(self):
        program = Program()
        program.map(BASE, 2 * MIB)
        for address in (BASE, BASE + MIB):
            program.time += 1000
            program.alloc(address, MIB // 2, frames("f"))
        snapshot = program.snapshot()
        for entry in snapshot["device_traces"][0]:
            del entry["time_us"]
        text, report = self.read_output(self.file(snapshot)), self.read_report(self.file(snapshot))
        self.assertIn(": device 0, 3 entries without times\naverages over events: ", text)
        self.assertEqual((report["duration_us"], report["duration_events"]), (0, 3))
        self.assertNotIn(" s\n", text)

    def test_single_entry_is_reported_in_the_singular(self):
        program = Program()
        program.map(BASE, 2 * MIB)
        self.assertIn(": device 0, 1 entry; values at the end\n", self.read_output(self.file(program)))

    def test_blocks_outside_segments_exit_with_1(self):
        outside, overlapping = small_program().snapshot(), small_program().snapshot()
        next(block for block in outside["segments"][0]["blocks"] if block["state"] != "inactive")["address"] -= 64 * MIB
        overlapping["segments"].append(dict(overlapping["segments"][0]))
        never_freed = {"segments": [], "device_traces": small_program().snapshot()["device_traces"][:1]}
        for snapshot in (outside, overlapping, never_freed):
            path = self.file(snapshot)
            for command, options, status in (("blame", (), 1), ("blame", ("--json",), 1), ("view", ("-o", "-"), 1),
                                             ("export", ("--perfetto", "-o", "-"), 1), ("compare", (path,), 2)):
                completed = self.tool(command, path, *options, status=status, text=False)
                self.assertRegex(completed.stderr, r"job.pickle: no segment of the file contains \d+ allocated blocks? of .*, "
                                                   r"which the report omits; the file is inconsistent, or entries are "
                                                   r"missing\n")
                self.assertTrue(completed.stdout)
            for rank, contents in enumerate((small_program().snapshot(), snapshot)):
                self.file(contents, f"ranks/rank{rank}.pickle")
            self.assertIn("which the report omits", self.tool("blame", self.folder / "ranks", status=1).stderr)

    def test_repeated_entry_is_rejected(self):
        snapshot = small_program().snapshot()
        snapshot["device_traces"].append(list(snapshot["device_traces"][0]))
        self.expect_error("each entry must be a separate dictionary", self.file(snapshot))

    def test_invalid_entry_is_named(self):
        for at, entry, message in ((4, {"action": "alloc", "addr": 1 << 40, "size": -1},
                                    "entry 5: `size` is missing or not a number"),
                                   (0, {"addr": 5}, "entry 1: no `action`"), (7, 17, "entry 8: no `action`")):
            snapshot = small_program().snapshot()
            snapshot["device_traces"][0].insert(at, entry)
            self.expect_error("device 0, " + message, self.file(snapshot))
        snapshot = small_program().snapshot()
        snapshot["device_traces"].append(snapshot["device_traces"][0])
        self.expect_error("the list is shared with another device", self.file(snapshot))

    def test_blocks_older_than_the_history_have_a_site(self):
        report = self.read_report(self.file(small_program().snapshot(skip=3)))
        self.assertEqual({site["site"] for site in report["sites"]},
                         {"model.py:7 cache", "model.py:300 backward", "(allocated before the recording began)"})

    def test_idle_memory_is_reported_by_reason(self):
        snapshot = small_program().snapshot()
        snapshot["xseg"] = {"devices": [{"device": 0, "single_page_rest": 3 * MIB, "pages": [  # reasons of versions before 0.9.0
            [BASE, 4 * MIB, "live", MIB // 2, 7 * MIB // 2], [BASE + 4 * MIB, 2 * MIB, "decay", 0, 2 * MIB]]}]}
        path = self.file(snapshot)
        report = self.read_report(path)
        self.assertEqual(report["idle_at_end"], {"decay": 2 * MIB, "in_use": 2 * MIB})
        self.assertEqual(json_keys.paths(report, maps=["idle_at_end"]),
                         json_keys.documented(ROOT / "docs/blame.md", "JSON of blame"))
        self.assertIn("              2.00 MiB  decay\n", self.read_output(path))
        self.assertEqual(report["single_page_padding"], 3 * MIB)
        self.assertTrue(self.read_output(path).endswith("\npadding of single-page blocks (key single_page) at the end: 3.00 "
                                                        "MiB\n"))

    def test_bad_files_are_rejected(self):
        data = pickle.dumps(small_program().snapshot(), 4)
        for message, contents in (("unsupported file, a text file that begins with 'no pickle'", b"no pickle"), ("is truncated", data[:-100]),
                                  ("the file is empty", b""), ("unsupported protocol, 9", b"\x80\x09" + data[2:]),
                                  ("a dictionary without `segments`", {"a": 1}),
                                  ("no entries or segments", {"segments": [], "device_traces": []})):
            self.expect_error(message, self.file(contents))
        self.expect_error("cannot be opened", self.folder / "absent")
        (self.folder / "empty").mkdir()
        self.expect_error("no snapshot in this folder", self.folder / "empty")
        snapshot = small_program().snapshot()
        del snapshot["device_traces"][0][4]["addr"]
        self.expect_error("device 0, entry 5: `addr` is missing", self.file(snapshot))
        snapshot = small_program().snapshot()
        blocks = snapshot["segments"][0]["blocks"]
        blocks[:] = [{**blocks[0], "frames": blocks}, dict(blocks[0])]
        self.expect_error("segment 1: its list of blocks is also a stack", self.file(snapshot))

    def test_shared_lists_are_rejected(self):
        entries = [{"action": "alloc", "addr": BASE, "size": 512} for _ in range(1000)]
        self.expect_error("the list is shared with another device", self.file({"segments": [], "device_traces": [entries] * 900}))
        self.expect_error("device number out of range, 1024",
                          self.file({"segments": [], "device_traces": [[]] * 1024 + [entries]}))

    def test_conflicting_options_are_rejected(self):
        for arguments in (("--flame", "--json"), ("--flame", "--label"), ("--depth", "2", "--label")):
            self.expect_error("cannot be combined with", *arguments, "x")


def random_program(seed):
    rng, program = random.Random(seed), Program()
    for _ in range(200):
        program.time += rng.choice((0, 1, 7, 1000))
        action, slot = rng.randrange(10), rng.randrange(15)
        size = PAGE if slot < 12 else LARGE
        start = BASE + slot * PAGE if slot < 12 else BASE + (1 << 30) + slot * LARGE
        mapped = [r for r in program.ranges.items() if r[0] <= start < r[1][0]]
        expandable = slot < 6 or slot >= 12
        if action == 0 and not mapped:
            program.map(start, size, expandable, size)
        elif action == 1 and mapped:
            if not any(a < start + size and a + b[0] > start for a, b in program.blocks.items()):
                program.unmap(start)
        elif action < 6 and mapped:
            allocate_at_random(program, rng, start, mapped)
        elif program.blocks:
            program.free(rng.choice(sorted(program.blocks)), rng.random() < 0.3)
    program.time += 5
    program.event("snapshot", 0, 0)
    return program


def allocate_at_random(program, rng, start, mapped):
    """Allocates a block at a random address; in expandable segments it may extend into the next pages."""
    end, expandable, page = mapped[0][1]
    while expandable and end in program.ranges and program.ranges[end][1]:
        end = program.ranges[end][0]
    address = start + 512 * rng.randrange(page // 512)
    size = min(512 * rng.randrange(1, 3 * page // 512), end - address)
    if not any(a < address + size and a + b[0] > address for a, b in program.blocks.items()):
        line = rng.randrange(4)
        program.alloc(address, size, frames("f", line), f"label {line}")


class PyTorchFiles(BlameTest):
    def test_pytorch_snapshots_have_the_recorded_peaks(self):
        peaks = json.loads((SNAPSHOTS / "peaks.json").read_text(encoding="utf-8"))
        for name in ("classic", "expandable", "ring", "train", "generate"):
            report = self.read_report(SNAPSHOTS / f"{name}.pickle.zst")
            self.assertEqual(report["omitted"], 0)
            self.assertGreater(report["fragmented"], 0)
            if name != "ring":
                self.assertEqual(report["peak"]["reserved"], peaks[name]["reserved"])


class Malformed(BlameTest):
    def change(self, rng, value):
        container, key = None, None
        while isinstance(value, (dict, list)) and value:
            container, key = value, rng.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
            value = container[key]
        if container is not None:
            container[key] = rng.choice((0, 1, 3, 512, BASE, BASE + MIB, 2**63, 2**64 - 1, -1, None, "alloc", "inactive", []))

    def test_sums_are_consistent_for_any_input(self):
        rejected_count = 0
        for seed in range(60):
            rng = random.Random(seed)
            snapshot = pickle.loads(pickle.dumps(random_program(seed).snapshot(), 4))
            for _ in range(rng.choice((1, 3, 20))):
                self.change(rng, snapshot[rng.choice(("segments", "device_traces"))])
            path = self.file(snapshot)
            completed = self.tool("blame", path, status=None)
            self.assertIn(completed.returncode, (0, 1, 2), completed.stderr)
            rejected_count += completed.returncode == 2
            if completed.returncode < 2:
                self.read_report(path, status=completed.returncode)
        self.assertTrue(5 < rejected_count < 55, rejected_count)


class Sums(BlameTest):
    def test_sums_of_random_programs_equal_the_reference(self):
        for seed in range(30):
            program, skip = random_program(seed), seed % 3 * 20
            expected = ReferenceSums()
            states = program.states[max(skip - 1, 0):]
            previous_time = program.trace[skip]["time_us"]
            for (_, ranges, blocks), (time, _, _) in zip(states, states[1:]):
                expected.add(ranges, blocks, max(time - previous_time, 0), lambda block: block[3] if skip == 0 else "")
                previous_time = max(previous_time, time)
            with self.subTest(seed=seed):
                report = self.read_report("--label", self.file(program.snapshot(skip)))
                self.assertEqual(report["omitted"], 0)
                for name in ("reserved", "allocated", "pending", "idle", "fragmented"):
                    self.assertEqual(report[name], getattr(expected, name), name)
                if skip == 0:
                    for site in report["sites"]:
                        fragmented, allocated = expected.site.get(site["site"], (0, 0))
                        self.assertEqual(site["allocated"], allocated)
                        self.assertLess(abs(site["fragmented"] - fragmented), 1000)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
