# SPDX-License-Identifier: MIT
"""A program of tests/torch/programs on PyTorch's own allocator and on xseg: their statistics are equal.

programs_test.py DRIVER NAME [MODE...]; libxseg.so is in the folder of the driver.  Prints TAP: one line for each mode.
Skipped without PyTorch; see tests/support/torch_environment.py.

Kernels compute nothing on the simulator, so the test compares the output of programs/figures.py: counts and shapes.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

import backends

PROGRAMS = backends.HERE / "programs"
MODES = ("expandable_segments:True", "expandable_segments:False")
# Only memory of expandable segments can be paused.
MODES_OF = {"rl_round": MODES[:1]}
SECONDS = 400
# Arguments of Python before a program, and variables of the machine that a program needs.
LAUNCHERS = {"ranks": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}
MACHINES = {"ranks": {"XSEG_SIM_DEVICES": "2", "OMP_NUM_THREADS": "1"}}
# When PyTorch's allocator restores a checkpoint, it also allocates the cached blocks and frees them.
CHECKPOINTS = r"\.(peak|allocated|freed)$"
# The thread of backward() frees while the main thread allocates.  So the numbers of splits and of released parts differ
# between runs, on PyTorch's allocator, too.
BACKWARD = r"/(inactive_split(_bytes)?\.\w+\.(peak|allocated|freed)|num_device_free)$"
# Patterns of the figures that are not compared.
IGNORED = {
    "autocast": BACKWARD,
    "callables": BACKWARD,
    "compiled": CHECKPOINTS,
    "graph_trees": CHECKPOINTS,
    # Threads of gloo free small tensors at an undefined time: segments and reserved bytes are compared.
    "ranks": r"/(allocation|active|inactive_split|allocated_bytes|active_bytes|inactive_split_bytes|requested_bytes)\.",
    "graphs": BACKWARD,
    "loader": BACKWARD,
    "prefetch": BACKWARD,
    "train_step": BACKWARD,
    # A pause releases memory, and a resume allocates it again.
    "rl_round": r"/(reserved_bytes\.\w+\.(allocated|freed)|num_device_(alloc|free))$",
}


class Failed(Exception):
    """A program failed, or used the wrong allocator."""


def reference(driver):
    """The Python of PyTorch's environment, and the variables that its programs need."""
    command = [sys.executable, backends.ENVIRONMENT, "--offline", "--driver", driver]
    processes = [subprocess.run([*command, action], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
                 for action in ("python", "print")]
    for process in processes:
        if process.returncode == backends.SKIPPED:
            print("1..0 # SKIP " + process.stderr.strip().splitlines()[-1])
            sys.exit(0)
        process.check_returncode()
    return processes[0].stdout.strip(), dict(re.findall(r"^export (\w+)='(.*)'$", processes[1].stdout, re.MULTILINE))


def run(name, mode, python, variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTORCH_", "XSEG_"))}
    environment |= {"XSEG_SIM_BYTES": "1", "XSEG_SIM_MEMORY_MB": "8192",
                    "PYTHONDONTWRITEBYTECODE": "1", "PYTORCH_ALLOC_CONF": mode}
    environment |= MACHINES.get(name, {}) | variables
    process = subprocess.run([python, *LAUNCHERS.get(name, []), PROGRAMS / f"{name}.py"], env=environment,
                             check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
    if process.returncode != 0:
        raise Failed(f"exit status {process.returncode}:\n{process.stderr[-4000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def flat(value, name=""):
    if isinstance(value, dict):
        return {key: leaf for member in value for key, leaf in flat(value[member], f"{name}/{member}").items()}
    if isinstance(value, list):
        names = [member["step"] if isinstance(member, dict) and "step" in member else str(index)
                 for index, member in enumerate(value)]
        return {key: leaf for member, part in zip(names, value) for key, leaf in flat(part, f"{name}/{member}").items()}
    return {name: value}


def remove_backends(report):
    """Removes the names of the allocators from a report, those of child processes included, and returns the names."""
    backend_names = {report.pop("backend")}
    for note in report["notes"].values():
        if isinstance(note, dict) and isinstance(note.get("result", note), dict):
            inner = note.get("result", note)
            if "backend" in inner:
                backend_names |= remove_backends(inner)
    return backend_names


def figures_of(name, mode, python, variables, values):
    ignored = re.compile(IGNORED.get(name, "(?!)"))
    for backend, switch in backends.BACKENDS.items():
        report = run(name, mode, python, {**variables, **switch, "PYTHONPATH": str(PROGRAMS)})
        actual = remove_backends(report)
        if actual != {backend}:
            raise Failed(f"expected the allocator {backend}, not {', '.join(sorted(actual))}")
        for key, value in flat(report).items():
            if not ignored.search(key):
                values[backend].setdefault(key, []).append(value)


def compare(name, mode, python, variables):
    """Returns a line for each difference in one mode.  The end of PyTorch's threads is not synchronized with the program, so
    the program runs up to three times, and a figure differs if the values of all runs on one allocator differ from those on
    the other."""
    values = {backend: {} for backend in backends.BACKENDS}
    native, other = [values[backend] for backend in (list(values)[0], list(values)[-1])]
    for _ in range(3):
        figures_of(name, mode, python, variables, values)
        if len(native) < 20:
            return [f"expected at least 20 figures, not {len(native)}"]
        wrong = [key for key in native | other if not any(value in other.get(key, []) for value in native.get(key, []))]
        if not wrong:
            break
    return [f"{key}: {native.get(key)} natively, {other.get(key)} on xseg" for key in wrong]


def main():
    driver, name = pathlib.Path(sys.argv[1]).resolve(), pathlib.PurePath(sys.argv[2]).name
    modes = sys.argv[3:] or MODES_OF.get(name, MODES)
    python, variables = reference(driver)
    variables["XSEG_LIBRARY"] = str(driver.parent / "libxseg.so")
    print(f"1..{len(modes)}", flush=True)
    failed = 0
    for number, mode in enumerate(modes, 1):
        try:
            wrong = compare(name, mode, python, variables)
        except (Failed, subprocess.TimeoutExpired, ValueError) as error:
            wrong = str(error).splitlines()
        skip = "" if wrong or len(backends.BACKENDS) > 1 else " # SKIP no comparison: xseg.torch is not in this tree"
        print(f"{'not ok' if wrong else 'ok'} {number} - {name} has equal figures with {mode}{skip}", flush=True)
        for line in [*wrong[:40], *([f"and {len(wrong) - 40} more"] if len(wrong) > 40 else [])]:
            print("# " + line, flush=True)
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
