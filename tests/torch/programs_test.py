# SPDX-License-Identifier: MIT
"""A program of tests/torch/programs on PyTorch's own allocator and on xseg: their statistics are equal.

programs_test.py DRIVER NAME [MODE...]; libxseg.so is in the folder of the driver.  Prints TAP: one line for each mode.
Skipped without PyTorch; see tests/support/torch_environment.py.

Kernels compute nothing on the simulator, so the test compares the output of programs/recorder.py: counts and shapes.
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
# Arguments of Python before a program, and variables that a program needs.
LAUNCHERS = {"ranks": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}
VARIABLES = {"ranks": {"XSEG_SIM_DEVICES": "2", "OMP_NUM_THREADS": "1"}}
# When PyTorch's allocator restores a checkpoint, it also allocates the cached blocks and frees them.
CHECKPOINTS = r"\.(peak|allocated|freed)$"
# The thread of backward() frees while the main thread allocates.  So the numbers of splits and of released parts differ
# between runs, on PyTorch's allocator, too.
BACKWARD = r"/(inactive_split(_bytes)?\.\w+\.(peak|allocated|freed)|num_device_free)$"
# Patterns of the values that are not compared.
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
    environment |= VARIABLES.get(name, {}) | variables
    process = subprocess.run([python, *LAUNCHERS.get(name, []), PROGRAMS / f"{name}.py"], env=environment,
                             check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
    if process.returncode != 0:
        raise Failed(f"exit status {process.returncode}:\n{process.stderr[-4000:]}")
    return json.loads(process.stdout.splitlines()[-1])


def flatten(value, name=""):
    """Returns the leaves of nested values by their paths, such as "/steps/step 0/statistics/num_ooms"."""
    if isinstance(value, dict):
        return {key: leaf for member in value for key, leaf in flatten(value[member], f"{name}/{member}").items()}
    if isinstance(value, list):
        names = [member["step"] if isinstance(member, dict) and "step" in member else str(index)
                 for index, member in enumerate(value)]
        return {key: leaf for member, part in zip(names, value) for key, leaf in flatten(part, f"{name}/{member}").items()}
    return {name: value}


def remove_backends(report):
    """Removes the names of the allocators from a report, those of child processes included, and returns the names."""
    backend_names = {report.pop("backend")}
    for value in report["values"].values():
        if isinstance(value, dict) and isinstance(value.get("result", value), dict):
            child_report = value.get("result", value)
            if "backend" in child_report:
                backend_names |= remove_backends(child_report)
    return backend_names


def collect_values(name, mode, python, variables, values):
    """Runs a program on each allocator, and appends its values by allocator and path."""
    ignored = re.compile(IGNORED.get(name, "(?!)"))
    for backend, selection in backends.BACKENDS.items():
        report = run(name, mode, python, {**variables, **selection, "PYTHONPATH": str(PROGRAMS)})
        actual = remove_backends(report)
        if actual != {backend}:
            raise Failed(f"expected the allocator {backend}, not {', '.join(sorted(actual))}")
        for key, value in flatten(report).items():
            if not ignored.search(key):
                values[backend].setdefault(key, []).append(value)


def compare(name, mode, python, variables):
    """Returns a line for each difference in one mode.  The end of PyTorch's threads is not synchronized with the program, so
    the program runs up to three times, and a value differs if the values of all runs on one allocator differ from those on
    the other."""
    values = {backend: {} for backend in backends.BACKENDS}
    native, xseg = [values[backend] for backend in (list(values)[0], list(values)[-1])]
    for _ in range(3):
        collect_values(name, mode, python, variables, values)
        if len(native) < 20:
            return [f"expected at least 20 values, not {len(native)}"]
        differing = [key for key in native | xseg if not any(value in xseg.get(key, []) for value in native.get(key, []))]
        if not differing:
            break
    return [f"{key}: {native.get(key)} natively, {xseg.get(key)} on xseg" for key in differing]


def main():
    driver, name = pathlib.Path(sys.argv[1]).resolve(), pathlib.PurePath(sys.argv[2]).name
    modes = sys.argv[3:] or MODES_OF.get(name, MODES)
    python, variables = reference(driver)
    variables["XSEG_LIBRARY"] = str(driver.parent / "libxseg.so")
    print(f"1..{len(modes)}", flush=True)
    failed = 0
    for number, mode in enumerate(modes, 1):
        try:
            errors = compare(name, mode, python, variables)
        except (Failed, subprocess.TimeoutExpired, ValueError) as error:
            errors = str(error).splitlines()
        skip = "" if errors or len(backends.BACKENDS) > 1 else " # SKIP no comparison: xseg.torch is not in this tree"
        print(f"{'not ok' if errors else 'ok'} {number} - {name} has equal statistics with {mode}{skip}", flush=True)
        for line in [*errors[:40], *([f"and {len(errors) - 40} more"] if len(errors) > 40 else [])]:
            print("# " + line, flush=True)
        failed += bool(errors)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
