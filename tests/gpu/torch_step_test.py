# SPDX-License-Identifier: MIT
"""The step that runs PyTorch with either allocator."""
import os
import pathlib
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gpu_pack  # pylint: disable=wrong-import-position

# A model of PyTorch's Python: prints a report that depends on the program and the allocator.
PYTHON = """#!{python}
import json, os, sys
backend = "xseg" if "import xseg.torch" in sys.argv[2] else "native"
exec(open(os.environ["MODEL_CODE"] + ".start").read())
if len(sys.argv) < 4:
    print("9.9 on a GPU")
    sys.exit()
name = os.path.basename(sys.argv[3])
report = dict(backend=backend, steps=[dict(step="first", blocks=3)], notes={{}}, step_ms=2.0, cpu_ms=1.0,
              computed=dict(losses=["0x1p0", "0x1.8p-1"], weights="abc"))
exec(open(os.environ["MODEL_CODE"]).read())
print(json.dumps(report))
"""


class Modeled(gpu_pack.Packed):
    """The output of the step for reports of a script that replaces the Python with PyTorch."""

    def run_step(self, code="", start="", status=0):
        """Runs the step; `code` changes the report of each program, and `start` runs at the start of each."""
        folder = self.folder.parent / "environment/bin"
        folder.mkdir(parents=True)
        path = folder / "python"
        path.write_text(PYTHON.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        model_code = self.folder.parent / "model_code"
        model_code.write_text(code)
        pathlib.Path(f"{model_code}.start").write_text(start)
        out = self.out / "step"
        out.mkdir(parents=True)
        process = subprocess.run(["bash", self.folder / "steps/7-torch"], check=False, text=True, capture_output=True, env={
            "PATH": os.environ["PATH"], "GPU_ROOT": str(self.folder), "GPU_OUT": str(out), "GPU_SECONDS": "100", "GPU_QUICK": "",
            "GPU_DRIVER": "cuda", "GPU_HAS_VMM": "yes", "XSEG_DRIVER": "libcuda.so.1", "MODEL_CODE": str(model_code),
            "XSEG_REFERENCE": str(folder.parent)})
        self.assertEqual(process.returncode, status, process.stdout + process.stderr)
        self.output = process.stdout
        report, differs = ((out / name).read_text() if (out / name).exists() else "" for name in ("report.md", "differs.md"))
        return report, differs

    def test_equal_reports_have_no_differences(self):
        report, differs = self.run_step()
        self.assertEqual(differs, "")
        self.assertRegex(report, r"\| training \| [\d.]+ \| [\d.]+ \| equal \|")
        self.assertIn("| minimum CPU time | 1.000 | 1.000 | 1.00 |", report)
        self.assertNotIn("simulator", report)

    def test_different_loss_is_reported(self):
        _, differs = self.run_step("if backend == 'xseg': report['computed']['losses'][1] = '0x1p-1'")
        self.assertIn("- training: computed/losses/1: 0x1.8p-1 on PyTorch's own allocator, 0x1p-1 on xseg\n", differs)

    def test_different_count_is_reported(self):
        _, differs = self.run_step("if backend == 'native': report['steps'][0]['blocks'] = 4")
        self.assertIn("- training: steps/first/blocks: 4 on PyTorch's own allocator, 3 on xseg\n", differs)

    def test_failed_program_does_not_stop_the_others(self):
        code = "if name == 'training.py': sys.exit('out of memory')"
        report, differs = self.run_step(code, status=1)
        self.assertIn("- training: status 1, out of memory\n", differs)
        programs = list((self.folder / "torch/tests/torch/programs").glob("*_step.py"))
        for program in programs:
            self.assertRegex(report, rf"\| {program.stem} \| .* equal \|")

    def test_missing_adapter_feature_skips_the_step_with_a_message(self):
        self.run_step(start="if backend == 'xseg': sys.exit('xseg.torch._build.LoadError: xseg.torch: no C++ compiler')", status=77)
        self.assertIn("no C++ compiler", self.output.splitlines()[-1])

    def test_adapter_that_does_not_compile_is_a_failure(self):
        _, differs = self.run_step(start="if backend == 'xseg': sys.exit('LoadError: the adapter does not compile')", status=1)
        self.assertIn("does not compile", differs)

    def test_wrong_allocator_is_a_failure(self):
        _, differs = self.run_step("report['backend'] = 'native'", status=1)
        self.assertIn("expected the allocator xseg, not native", differs)


class Simulated(gpu_pack.Packed):
    def test_step_is_skipped_without_pytorch(self):
        output = self.run_sim("--only", "torch", status=2, XDG_CACHE_HOME=str(self.folder.parent), HOME=str(self.folder.parent))
        self.assertIn("skipped: PyTorch with CUDA not found", output)
        self.assertIn("XSEG_REFERENCE=FOLDER", self.report())

    def test_counts_are_equal(self):
        environment = pathlib.Path(gpu_pack.PATHS.source, "tests/support/torch_environment.py")
        process = subprocess.run([sys.executable, environment, "--offline", "python"], check=False, capture_output=True,
                                 text=True)
        if process.returncode == 77:
            self.skipTest(process.stderr.strip())
        folder = pathlib.Path(process.stdout.strip()).parents[1]
        self.run_sim("--only", "torch", *gpu_pack.QUICK, XSEG_REFERENCE=str(folder), HOME=os.environ.get("HOME", "/"))
        self.assertRegex(self.report(), r"\| training \| [\d.]+ \| [\d.]+ \| equal \|")
        self.assertIn("kernels do not compute values", self.report())


if __name__ == "__main__":
    gpu_pack.main()
