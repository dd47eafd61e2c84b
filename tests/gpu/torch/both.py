# SPDX-License-Identifier: MIT
"""Programs with PyTorch on its own allocator and on xseg: their results, statistics and step times.

    both.py --driver cuda|FILE --library FILE --out FOLDER --seconds N [--classic] [--quick]

--driver: the host's driver, or the file of a simulated one.  On a simulated driver, PyTorch runs with the runtime of
tests/support/cudart, in which kernels compute nothing, so only statistics are compared.  Writes report.md, differs.md and
torch.tsv in FOLDER, and starts no program after N seconds; with --quick, only the training run.

Exit status: 1 if a program failed; 77 with a message without PyTorch."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
ENVIRONMENT = ROOT / "tests/support/torch_environment.py"
PACKAGE = ROOT / "src/adapters/python"
PROGRAMS = ROOT / "tests/torch/programs"
TRAINING = pathlib.Path(__file__).resolve().parent / "training.py"
# The most significant program is the first.  Programs of tests/torch with two processes or with features of xseg are omitted.
NAMES = ("train_step", "generate", "graphs", "prefetch", "autocast", "callables")
BACKENDS = ("native", "xseg")
SKIPPED = 77
ABSENT = ("PyTorch with CUDA not found; install it for python3, or specify the Python environment that has it by "
          "XSEG_REFERENCE=FOLDER")


class Failed(Exception):
    """A program failed, with the reason."""


class TimedOut(Failed):
    """The time limit of the step expired before the program ended."""


def flatten(value, name=""):
    """The values of a report, by path."""
    if isinstance(value, dict):
        return {path: leaf for key in value for path, leaf in flatten(value[key], f"{name}/{key}").items()}
    if isinstance(value, list):
        keys = [str(member["step"]) if isinstance(member, dict) and "step" in member else str(index)
                for index, member in enumerate(value)]
        return {path: leaf for key, member in zip(keys, value) for path, leaf in flatten(member, f"{name}/{key}").items()}
    return {name: value}


def differences(native, xseg):
    native, xseg = flatten(native), flatten(xseg)
    return [f"{name[1:]}: {native.get(name, 'absent')} on PyTorch's own allocator, {xseg.get(name, 'absent')} on xseg"
            for name in sorted(native.keys() | xseg.keys()) if native.get(name) != xseg.get(name)]


class Runner:
    def __init__(self, options):
        self.options, self.deadline = options, time.monotonic() + options.seconds
        if options.driver == "cuda":
            self.command = [self.python()]
        else:
            self.command = [sys.executable, ENVIRONMENT, "--offline", "--driver", options.driver, "run", "python"]
        self.require_torch()

    @staticmethod
    def python():
        folder = os.environ.get("XSEG_REFERENCE")
        for path in (pathlib.Path(folder, "bin/python"), pathlib.Path(folder, "v/bin/python")) if folder else ():
            if path.exists():
                return str(path)
        return shutil.which("python3") or sys.executable

    def environment(self, backend):
        # The libraries of the packed folder are not for Python, so that folder is removed from the path.
        libraries = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":")
                     if folder and pathlib.Path(folder) != pathlib.Path(self.options.library).parent]
        result = {name: value for name, value in os.environ.items()
                  if not name.startswith(("PYTORCH_", "XSEG_TORCH", "XSEG_ALLOC")) and name != "LD_LIBRARY_PATH"}
        if libraries:
            result["LD_LIBRARY_PATH"] = ":".join(libraries)
        result["PYTORCH_CUDA_ALLOC_CONF"] = f"expandable_segments:{not self.options.classic}"
        result["PYTHONPATH"] = str(PROGRAMS)
        result["PYTHONDONTWRITEBYTECODE"] = "1"
        if self.options.driver != "cuda":
            result["XSEG_SIM_BYTES"] = "1"
        if backend == "xseg":
            result["XSEG_LIBRARY"] = self.options.library
            result["PYTHONPATH"] += f":{PACKAGE}"
        return result

    def start(self, backend, code, *arguments):
        adapter_import = "import xseg.torch; " if backend == "xseg" else ""
        seconds = max(5, self.deadline - time.monotonic())
        try:
            process = subprocess.run([*self.command, "-c", f"import torch; {adapter_import}{code}", *map(str, arguments)],
                                     env=self.environment(backend), check=False, capture_output=True, text=True,
                                     stdin=subprocess.DEVNULL, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise TimedOut("timeout") from error
        if process.returncode != 0:
            lines = process.stderr.strip().splitlines() or ["no message"]
            raise Failed(f"status {process.returncode}, {lines[-1]}")
        return process.stdout

    def require_torch(self):
        """Exits with a message if there is no PyTorch that finds a device."""
        try:
            self.about = self.start("native", "print(torch.__version__, 'on', torch.cuda.get_device_name(0))").strip()
        except Failed as error:
            print(f"{ABSENT} ({error})")
            sys.exit(SKIPPED)
        try:
            self.start("xseg", "pass")
        except Failed as error:
            # The message of xseg contains the missing requirement: a compiler, or headers.
            if "LoadError:" in str(error) and "does not compile" not in str(error):
                print(error)
                sys.exit(SKIPPED)

    def run(self, program, backend):
        start = time.monotonic()
        output = self.start(backend, "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", program)
        result = json.loads(output.splitlines()[-1])
        if result["backend"] != backend:
            raise Failed(f"expected the allocator {backend}, not {result['backend']}")
        result["seconds"] = time.monotonic() - start
        return result


class Report:
    """The results, which are written after each program."""

    def __init__(self, runner):
        self.runner, self.out = runner, runner.options.out
        self.rows, self.differs, self.training, self.not_reached, self.failed = [], [], [], [], False

    def compare(self, program):
        name = program.stem
        if time.monotonic() > self.runner.deadline:
            self.not_reached.append(name)
            return
        try:
            native, xseg = (self.runner.run(program, backend) for backend in BACKENDS)
        except TimedOut:
            self.not_reached.append(name)
            return
        except Failed as error:
            self.failed = True
            self.differs.append(f"{name}: {error}")
            self.rows.append(f"| {name} | - | - | failed |")
            return
        parts = ("steps", "notes") + (("computed",) if self.runner.options.driver == "cuda" else ())
        lines = differences(*({part: report.get(part, {}) for part in parts} for report in (native, xseg)))
        self.differs += [f"{name}: {text}" for text in lines[:5]]
        if len(lines) > 5:
            self.differs.append(f"{name}: {len(lines) - 5} further values")
        self.rows.append(f"| {name} | {native['seconds']:.1f} | {xseg['seconds']:.1f} | "
                         f"{f'{len(lines)} values differ' if lines else 'equal'} |")
        if "step_ms" in native:
            self.training = [f"| {kind} | {native[key]:.3f} | {xseg[key]:.3f} | {native[key] / xseg[key]:.2f} |"
                             for kind, key in (("median wall-clock time", "step_ms"), ("minimum CPU time", "cpu_ms"))]

    def write(self):
        lines = [f"PyTorch {self.runner.about}, {'classic' if self.runner.options.classic else 'expandable'} segments. "
                 "Counts are those of `memory_stats()` after each step."]
        if self.runner.options.driver != "cuda":
            lines += ["**The driver is the simulator: kernels do not compute values, so computed values are not compared, and "
                      "times are not those of a GPU.**"]
        lines += ["", "| program | native, s | xseg, s | counts and computed values |", "|---|---|---|---|", *self.rows, ""]
        if self.training:
            lines += ["A step of the training run, in ms:", "", "| | native | xseg | native / xseg |", "|---|---|---|---|",
                      *self.training, ""]
        if self.not_reached:
            lines += [f"- not reached in {self.runner.options.seconds:.0f} s: {', '.join(self.not_reached)}"]
        (self.out / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        rows = [row.strip("| ").replace(" | ", "\t") for row in (*self.rows, *self.training)]
        (self.out / "torch.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        if self.differs:
            (self.out / "differs.md").write_text("".join(f"- {text}\n" for text in self.differs), encoding="utf-8")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", required=True, type=float)
    parser.add_argument("--classic", action="store_true")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main():
    report = Report(Runner(parse()))
    names = () if report.runner.options.quick else NAMES
    programs = [TRAINING, *(PROGRAMS / f"{name}.py" for name in names if (PROGRAMS / f"{name}.py").exists())]
    for program in programs:
        report.compare(program)
        report.write()
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
