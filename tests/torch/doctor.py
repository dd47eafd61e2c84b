# SPDX-License-Identifier: MIT
"""`python -m xseg doctor` and xseg.torch.doctor(): what is in effect, what conflicts, and the exit status.  doctor.py DRIVER."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import backends

if backends.IS_CASE:
    import torch
    import xseg.torch
    from tensors import expect

PROGRAMS = backends.HERE / "programs"  # its sitecustomize.py reads the .pth file of the wheel
LEVELS = ("ok", "note", "warning", "fail")


def command(*arguments, **variables):
    """Returns the exit status, the levels and texts of the lines by subject, and the errors."""
    environment = {**backends.plain_environment(), "XSEG_DRIVER": sys.argv[1], "XSEG_TORCH": "1", "PYTHONPATH": str(PROGRAMS),
                   **variables}
    process = subprocess.run([sys.executable, backends.ENVIRONMENT, "--offline", "--driver", sys.argv[1], "--xseg", "run",
                              *(arguments or ("python",)), "-m", "xseg", "doctor"], env=environment, capture_output=True,
                             text=True, check=False)
    lines = {}
    for line in process.stdout.splitlines():
        level, subject, text = re.fullmatch(r"(\w+) +(\S.{12}) (.*)", line).groups()
        assert level in LEVELS, line
        lines.setdefault(subject.strip(), []).append((level, text))
    return process.returncode, lines, process.stderr


def case_in_process():
    expect(xseg.torch.doctor(), "nothing fails before CUDA is initialized")
    torch.cuda.init()
    expect(not xseg.torch.doctor(), "the CUDA runtime was loaded before libxseg-ipc.so")


class Doctor(backends.CaseTest):
    def expect_line(self, report, subject, level, words):
        self.assertTrue(any(line[0] == level and words in line[1] for line in report[1].get(subject, ())), report)

    def test_nothing_fails_with_the_hook(self):
        report = command(NCCL_GRAPH_REGISTER="0")
        self.assertEqual(report[0], 0, report)
        for subject, words in (("allocator", "runs on xseg"), ("segments", "expandable, configuration from default"),
                               ("legacy IPC", "is served"), ("guards", "engines disable no feature"), ("NCCL", "is 0"),
                               ("memory saver", "finds the implementation by tags")):
            self.expect_line(report, subject, "ok", words)
        self.expect_line(report, "toggles", "note", "--keep-expandable")
        self.assertFalse({"fail", "warning"} & {level for lines in report[1].values() for level, _ in lines}, report)

    def test_doctor_of_a_program_that_xseg_run_starts(self):
        """The command is `xseg run python -m xseg doctor`."""
        tool = pathlib.Path(sys.argv[1]).parent / "xseg"
        python = subprocess.run([sys.executable, backends.ENVIRONMENT, "--offline", "python"], check=True, capture_output=True,
                                text=True).stdout.strip()
        report = command(str(tool), "run", "--keep-expandable", python, XSEG_TORCH="0")
        self.assertEqual(report[0], 0, report)
        self.expect_line(report, "toggles", "ok", "is ignored")
        self.expect_line(report, "NCCL", "warning", "set NCCL_GRAPH_REGISTER=0")

    def test_native_allocator_is_a_note(self):
        report = command(XSEG_TORCH="0")
        self.assertEqual((report[0], list(report[1])), (0, ["allocator"]))
        self.expect_line(report, "allocator", "note", "start the program by `xseg run`")

    def test_failures_set_the_exit_status(self):
        for variables, subject, words in (
                ({"PYTHONPATH": ""}, "allocator", "the hook of the wheel did not run"),
                ({"XSEG_DRIVER": "libno-such.so"}, "allocator", "XSEG_DRIVER: cannot load the driver"),
                ({"XSEG_ALLOC_CONF": "exportable:False"}, "legacy IPC", "memory is not exportable"),
                ({"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, "allocator", "remove backend:cudaMallocAsync"),
                ({"XSEG_SIM_FAIL": "cuDevicePrimaryCtxRetain:1+1:100"}, "segments", "CUDA cannot be initialized")):
            report = command(**variables)
            self.assertEqual(report[0], 1, (variables, report))
            self.expect_line(report, subject, "fail", words)

    def test_conflicts_are_warnings(self):
        report = command(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", PYTORCH_ALLOC_CONF="max_split_size_mb:64")
        self.expect_line(report, "guards", "warning", "PYTORCH_CUDA_ALLOC_CONF names expandable_segments:True")
        self.expect_line(report, "guards", "warning", "differ in expandable_segments")
        report = command(XSEG_SIM_VMM="0")
        self.expect_line(report, "segments", "note", "the driver does not support virtual memory management")
        report = command(XSEG_ALLOC_CONF="expandable_segments:False")
        self.assertEqual(report[0], 0, report)
        self.expect_line(report, "segments", "note", "set expandable_segments:True in XSEG_ALLOC_CONF")
        self.expect_line(report, "legacy IPC", "ok", "the driver serves")

    def test_installed_engines_are_listed(self):
        """The versions of engines are read from the metadata of installed packages."""
        sys.path.insert(0, str(backends.ADAPTER))
        import backend
        with tempfile.TemporaryDirectory() as folder:
            for name, version in (("vllm", "0.33.0"), ("sglang", "0.5.1")):
                metadata = pathlib.Path(folder, f"{name}-{version}.dist-info")
                metadata.mkdir()
                (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
            path = f"{PROGRAMS}:{folder}"
            report = command(PYTHONPATH=path)
            self.assertEqual(report[0], 0, report)
            self.expect_line(report, "vLLM", "warning", "entry point not found in vllm.general_plugins")
            backend.prepare_metadata_for_build_wheel(folder)
            report = command(PYTHONPATH=path, VLLM_PLUGINS="xseg,other", SGLANG_PLUGINS="other")
            self.expect_line(report, "vLLM", "ok", "version 0.33.0: the plug-in is loaded")
            self.expect_line(report, "SGLang", "note", "version 0.5.1 is installed, and modules of 0.5.23 were tested")
            self.expect_line(report, "SGLang", "warning", "SGLANG_PLUGINS excludes the plug-in, 'other'")

    def test_doctor_of_the_current_process(self):
        text = self.run_case("in_process")
        self.assertIn("call torch.cuda.init() first", text)
        self.assertIn("libxseg-ipc.so was not loaded before the CUDA runtime; start the program by `xseg run`", text)


if __name__ == "__main__":
    backends.main(globals())
