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
# Only what was allocated with expandable segments can be paused.
MODES_OF = {"rl_round": MODES[:1]}
SECONDS = 400
# What starts a program, where that is not Python alone; and the machine that it needs.
STARTED_BY = {"ranks": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}
MACHINES = {"ranks": {"XSEG_SIM_DEVICES": "2", "OMP_NUM_THREADS": "1"}}
# To restore a checkpoint, PyTorch's allocator allocates the cached blocks, too, and frees them again.
CHECKPOINTS = r"\.(peak|allocated|freed)$"
# The thread of backward() frees while the main thread allocates: how often a cached block is cut, and into how many
# pieces memory is cut when it goes back, differs from run to run on PyTorch's own allocator, too.
BACKWARD = r"/(inactive_split(_bytes)?\.\w+\.(peak|allocated|freed)|num_device_free)$"
# Figures that are not compared, by how their names end.
IGNORED = {
    "autocast": BACKWARD,
    "callables": BACKWARD,
    "compiled": CHECKPOINTS,
    "graph_trees": CHECKPOINTS,
    # Threads of gloo drop small tensors when they come to it: segments and what is reserved are compared.
    "ranks": r"/(allocation|active|inactive_split|allocated_bytes|active_bytes|inactive_split_bytes|requested_bytes)\.",
    "graphs": BACKWARD,
    "loader": BACKWARD,
    "prefetch": BACKWARD,
    "train_step": BACKWARD,
    # A pause gives memory back, and a resume asks for it.
    "rl_round": r"/(reserved_bytes\.\w+\.(allocated|freed)|num_device_(alloc|free))$",
}


class Failed(Exception):
    """A program did not come to its end."""


def reference(driver):
    """PyTorch's Python, and what the environment of its programs needs."""
    command = [sys.executable, backends.ENVIRONMENT, "--offline", "--driver", driver]
    said = [subprocess.run([*command, what], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            for what in ("python", "print")]
    for done in said:
        if done.returncode == backends.SKIPPED:
            print("1..0 # SKIP " + done.stderr.strip().splitlines()[-1])
            sys.exit(0)
        done.check_returncode()
    return said[0].stdout.strip(), dict(re.findall(r"^export (\w+)='(.*)'$", said[1].stdout, re.MULTILINE))


def run(name, mode, python, variables):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTORCH_", "XSEG_"))}
    environment |= {"XSEG_SIM_BYTES": "1", "XSEG_SIM_MEMORY_MB": "8192",
                    "PYTHONDONTWRITEBYTECODE": "1", "PYTORCH_ALLOC_CONF": mode}
    environment |= MACHINES.get(name, {}) | variables
    done = subprocess.run([python, *STARTED_BY.get(name, []), PROGRAMS / f"{name}.py"], env=environment,
                          check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
    if done.returncode != 0:
        raise Failed(f"it ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def flat(value, name=""):
    if isinstance(value, dict):
        return {key: each for member in value for key, each in flat(value[member], f"{name}/{member}").items()}
    if isinstance(value, list):
        names = [member["step"] if isinstance(member, dict) and "step" in member else str(index)
                 for index, member in enumerate(value)]
        return {key: each for member, part in zip(names, value) for key, each in flat(part, f"{name}/{member}").items()}
    return {name: value}


def served_by(report):
    """The names of the allocators, taken out of a report: of the process, and of those it reports on."""
    found = {report.pop("backend")}
    for note in report["notes"].values():
        if isinstance(note, dict) and isinstance(note.get("said", note), dict):
            inner = note.get("said", note)
            if "backend" in inner:
                found |= served_by(inner)
    return found


def figures_of(name, mode, python, variables, seen):
    ignored = re.compile(IGNORED.get(name, "(?!)"))
    for backend, switch in backends.BACKENDS.items():
        report = run(name, mode, python, {**variables, **switch, "PYTHONPATH": str(PROGRAMS)})
        served = served_by(report)
        if served != {backend}:
            raise Failed(f"its allocator was to be {backend}, and was {', '.join(sorted(served))}")
        for where, each in flat(report).items():
            if not ignored.search(where):
                seen[backend].setdefault(where, []).append(each)


def compare(name, mode, python, variables):
    """What is wrong in one mode, as lines.  Threads of PyTorch's own may end a little sooner or later. A figure that differs
    is asked for twice more, and is wrong if no run on one allocator shows what a run on the other does."""
    seen = {backend: {} for backend in backends.BACKENDS}
    own, other = [seen[backend] for backend in (list(seen)[0], list(seen)[-1])]
    for _ in range(3):
        figures_of(name, mode, python, variables, seen)
        if len(own) < 20:
            return [f"only {len(own)} figures were printed"]
        wrong = [where for where in own | other if not any(each in other.get(where, []) for each in own.get(where, []))]
        if not wrong:
            break
    return [f"{where}: {own.get(where)} natively, {other.get(where)} on xseg" for where in wrong]


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
        except (Failed, subprocess.TimeoutExpired, ValueError) as why:
            wrong = str(why).splitlines()
        alone = "" if wrong or len(backends.BACKENDS) > 1 else " # SKIP it ran natively; xseg.torch is not in this tree"
        print(f"{'not ok' if wrong else 'ok'} {number} - {name} counts the same with {mode}{alone}", flush=True)
        for line in [*wrong[:40], *([f"and {len(wrong) - 40} more"] if len(wrong) > 40 else [])]:
            print("# " + line, flush=True)
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
