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
# The most telling first.  What two processes take part in, or what only xseg does, is left to tests/torch.
NAMES = ("train_step", "generate", "graphs", "prefetch", "autocast", "callables")
BACKENDS = ("native", "xseg")
SKIPPED = 77
ABSENT = ("PyTorch with CUDA is not here: install it for python3, or name a Python environment that has it, "
          "XSEG_REFERENCE=FOLDER")


class Failed(Exception):
    """A program did not come to its end; the text says how it ended."""


class Late(Failed):
    """The step's time was over first."""


def flat(value, name=""):
    """Each figure of a report, by where it stands."""
    if isinstance(value, dict):
        return {key: figure for member in value for key, figure in flat(value[member], f"{name}/{member}").items()}
    if isinstance(value, list):
        names = [str(member["step"]) if isinstance(member, dict) and "step" in member else str(index)
                 for index, member in enumerate(value)]
        return {key: figure for member, part in zip(names, value) for key, figure in flat(part, f"{name}/{member}").items()}
    return {name: value}


def differences(own, ours):
    own, ours = flat(own), flat(ours)
    return [f"{name[1:]}: {own.get(name, 'nothing')} on PyTorch's own allocator, {ours.get(name, 'nothing')} on xseg"
            for name in sorted(own.keys() | ours.keys()) if own.get(name) != ours.get(name)]


class Machine:
    def __init__(self, options):
        self.options, self.deadline = options, time.monotonic() + options.seconds
        if options.driver == "cuda":
            self.command = [self.python()]
        else:
            self.command = [sys.executable, ENVIRONMENT, "--offline", "--driver", options.driver, "run", "python"]
        self.must_have_torch()

    @staticmethod
    def python():
        named = os.environ.get("XSEG_REFERENCE")
        for path in (pathlib.Path(named, "bin/python"), pathlib.Path(named, "v/bin/python")) if named else ():
            if path.exists():
                return str(path)
        return shutil.which("python3") or sys.executable

    def environment(self, backend):
        # The folder of libraries that the command brought along is not meant for Python.
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
        first = "import xseg.torch; " if backend == "xseg" else ""
        left = max(5, self.deadline - time.monotonic())
        try:
            done = subprocess.run([*self.command, "-c", f"import torch; {first}{code}", *map(str, arguments)],
                                  env=self.environment(backend), check=False, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=left)
        except subprocess.TimeoutExpired as late:
            raise Late("it did not end in time") from late
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise Failed(f"status {done.returncode}, {lines[-1]}")
        return done.stdout

    def must_have_torch(self):
        """Leave with a sentence where there is no PyTorch that finds a device."""
        try:
            self.about = self.start("native", "print(torch.__version__, 'on', torch.cuda.get_device_name(0))").strip()
        except Failed as why:
            print(f"{ABSENT} ({why})")
            sys.exit(SKIPPED)
        try:
            self.start("xseg", "pass")
        except Failed as why:
            # What xseg lacks on this machine it says itself: a compiler, or headers.
            if "Refused:" in str(why) and "does not compile" not in str(why):
                print(why)
                sys.exit(SKIPPED)

    def run(self, program, backend):
        began = time.monotonic()
        text = self.start(backend, "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')", program)
        result = json.loads(text.splitlines()[-1])
        if result["backend"] != backend:
            raise Failed(f"it ran on the allocator {result['backend']}, not on {backend}")
        result["seconds"] = time.monotonic() - began
        return result


class Report:
    """What was found, on disk after each program."""

    def __init__(self, machine):
        self.machine, self.out = machine, machine.options.out
        self.rows, self.differs, self.training, self.not_reached, self.failed = [], [], [], [], False

    def compare(self, program):
        name = program.stem
        if time.monotonic() > self.machine.deadline:
            self.not_reached.append(name)
            return
        try:
            own, ours = (self.machine.run(program, backend) for backend in BACKENDS)
        except Late:
            self.not_reached.append(name)
            return
        except Failed as why:
            self.failed = True
            self.differs.append(f"{name}: {why}")
            self.rows.append(f"| {name} | - | - | failed |")
            return
        asked = ("steps", "notes") + (("computed",) if self.machine.options.driver == "cuda" else ())
        found = differences(*({part: report.get(part, {}) for part in asked} for report in (own, ours)))
        self.differs += [f"{name}: {text}" for text in found[:5]]
        if len(found) > 5:
            self.differs.append(f"{name}: {len(found) - 5} further figures")
        self.rows.append(f"| {name} | {own['seconds']:.1f} | {ours['seconds']:.1f} | "
                         f"{f'{len(found)} figures differ' if found else 'the same'} |")
        if "step_ms" in own:
            self.training = [f"| {kind} | {own[key]:.3f} | {ours[key]:.3f} | {own[key] / ours[key]:.2f} |"
                             for kind, key in (("median of the clock", "step_ms"), ("least processor time", "processor_ms"))]

    def write(self):
        lines = [f"PyTorch {self.machine.about}, {'classic' if self.machine.options.classic else 'expandable'} segments. "
                 "Counts are those of `memory_stats()` after each step."]
        if self.machine.options.driver != "cuda":
            lines += ["**The driver is the simulator: kernels compute nothing, so what they compute is not compared, and times "
                      "say nothing about a GPU.**"]
        lines += ["", "| program | own, s | xseg, s | what it counts and computes |", "|---|---|---|---|", *self.rows, ""]
        if self.training:
            lines += ["A step of the training run, in ms:", "", "| | own | xseg | own / xseg |", "|---|---|---|---|",
                      *self.training, ""]
        if self.not_reached:
            lines += [f"- not reached in {self.machine.options.seconds:.0f} s: {', '.join(self.not_reached)}"]
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
    report = Report(Machine(parse()))
    names = () if report.machine.options.quick else NAMES
    programs = [TRAINING, *(PROGRAMS / f"{name}.py" for name in names if (PROGRAMS / f"{name}.py").exists())]
    for program in programs:
        report.compare(program)
        report.write()
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
