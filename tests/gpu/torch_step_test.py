# SPDX-License-Identifier: MIT
"""The step that runs PyTorch with either allocator."""
import os
import pathlib
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gpu_pack  # pylint: disable=wrong-import-position

# In place of PyTorch's Python: says what a program would, by its name and by the allocator.
PYTHON = """#!{python}
import json, os, sys
backend = "xseg" if "import xseg.torch" in sys.argv[2] else "native"
exec(open(os.environ["PRETENDED"] + ".start").read())
if len(sys.argv) < 4:
    print("9.9 on a GPU")
    sys.exit()
name = os.path.basename(sys.argv[3])
report = dict(backend=backend, steps=[dict(step="first", blocks=3)], notes={{}}, step_ms=2.0, processor_ms=1.0,
              computed=dict(losses=["0x1p0", "0x1.8p-1"], weights="abc"))
exec(open(os.environ["PRETENDED"]).read())
print(json.dumps(report))
"""


class Pretended(gpu_pack.Packed):
    """What the step makes of the answers; a script stands for the Python that has PyTorch."""

    def answer(self, code="", start="", status=0):
        """What the step leaves when some code changes each program's report, and some runs at each start."""
        folder = self.folder.parent / "environment/bin"
        folder.mkdir(parents=True)
        path = folder / "python"
        path.write_text(PYTHON.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        pretended = self.folder.parent / "pretended"
        pretended.write_text(code)
        pathlib.Path(f"{pretended}.start").write_text(start)
        out = self.out / "step"
        out.mkdir(parents=True)
        done = subprocess.run(["bash", self.folder / "steps/7-torch"], check=False, text=True, capture_output=True, env={
            "PATH": os.environ["PATH"], "GPU_ROOT": str(self.folder), "GPU_OUT": str(out), "GPU_SECONDS": "100", "GPU_QUICK": "",
            "GPU_DRIVER": "cuda", "GPU_HAS_VMM": "yes", "XSEG_DRIVER": "libcuda.so.1", "PRETENDED": str(pretended),
            "XSEG_REFERENCE": str(folder.parent)})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.said = done.stdout
        report, differs = ((out / name).read_text() if (out / name).exists() else "" for name in ("report.md", "differs.md"))
        return report, differs

    def test_the_same_answers_are_the_same(self):
        report, differs = self.answer()
        self.assertEqual(differs, "")
        self.assertRegex(report, r"\| training \| [\d.]+ \| [\d.]+ \| the same \|")
        self.assertIn("| least processor time | 1.000 | 1.000 | 1.00 |", report)
        self.assertNotIn("simulator", report)

    def test_another_loss_is_seen(self):
        _, differs = self.answer("if backend == 'xseg': report['computed']['losses'][1] = '0x1p-1'")
        self.assertIn("- training: computed/losses/1: 0x1.8p-1 on PyTorch's own allocator, 0x1p-1 on xseg\n", differs)

    def test_another_count_is_seen(self):
        _, differs = self.answer("if backend == 'native': report['steps'][0]['blocks'] = 4")
        self.assertIn("- training: steps/first/blocks: 4 on PyTorch's own allocator, 3 on xseg\n", differs)

    def test_a_program_that_fails_does_not_stop_the_others(self):
        code = "if name == 'training.py': sys.exit('no memory for it')"
        report, differs = self.answer(code, status=1)
        self.assertIn("- training: status 1, no memory for it\n", differs)
        programs = list((self.folder / "torch/tests/torch/programs").glob("*_step.py"))
        for program in programs:
            self.assertRegex(report, rf"\| {program.stem} \| .* the same \|")

    def test_missing_adapter_feature_skips_the_step_with_a_message(self):
        self.answer(start="if backend == 'xseg': sys.exit('xseg.torch._build.Refused: xseg.torch: no C++ compiler')", status=77)
        self.assertIn("no C++ compiler", self.said.splitlines()[-1])

    def test_an_adapter_that_does_not_compile_is_a_failure(self):
        _, differs = self.answer(start="if backend == 'xseg': sys.exit('Refused: the adapter does not compile')", status=1)
        self.assertIn("does not compile", differs)

    def test_the_wrong_allocator_is_a_failure(self):
        _, differs = self.answer("report['backend'] = 'native'", status=1)
        self.assertIn("it ran on the allocator native, not on xseg", differs)


class Simulated(gpu_pack.Packed):
    def test_without_pytorch_it_is_skipped_in_a_sentence(self):
        said = self.run_sim("--only", "torch", status=2, XDG_CACHE_HOME=str(self.folder.parent), HOME=str(self.folder.parent))
        self.assertIn("skipped: PyTorch with CUDA is not here", said)
        self.assertIn("XSEG_REFERENCE=FOLDER", self.report())

    def test_counts_agree(self):
        environment = pathlib.Path(gpu_pack.PLACES.source, "tests/support/torch_environment.py")
        asked = subprocess.run([sys.executable, environment, "--offline", "python"], check=False, capture_output=True, text=True)
        if asked.returncode == 77:
            self.skipTest(asked.stderr.strip())
        folder = pathlib.Path(asked.stdout.strip()).parents[1]
        self.run_sim("--only", "torch", *gpu_pack.QUICK, XSEG_REFERENCE=str(folder), HOME=os.environ.get("HOME", "/"))
        self.assertRegex(self.report(), r"\| training \| [\d.]+ \| [\d.]+ \| the same \|")
        self.assertIn("kernels compute nothing", self.report())


if __name__ == "__main__":
    gpu_pack.main()
