# SPDX-License-Identifier: MIT
"""Measures the commands of the tool that read a snapshot, and Python's pickle.load of it in the same rounds.

commands.py TOOL [--events N] [--rounds N] [FILE...]

The files are memory snapshots; without files, a snapshot of a training job with N events is created.  The row of a command
contains the median CPU time, also relative to pickle.load and per event; the peak host memory, also relative to the file; and
the size of the output.
`xseg compare` reads the file twice, so its ratio is to two loads.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import job

# Prints the number of events, and exits without freeing the objects.
LOAD = """
import os, pickle, sys
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
print(sum(map(len, snapshot["device_traces"])), flush=True)
os._exit(0)
"""
# Options, output file, and number of reads of the snapshot.
COMMANDS = {"blame": ([], None, 1), "view": (["-o", "page.html"], "page.html", 1),
            "compare": ([], None, 2), "export": (["--perfetto", "-o", "job.perfetto"], "job.perfetto", 1)}


def run(command, folder):
    """Run a command; returns CPU seconds and bytes of host memory.  The output is in the file `output`."""
    with open(folder / "output", "wb") as output, subprocess.Popen(command, cwd=folder, stdout=output) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"commands.py: command failed, {command[:2]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def measure(tool, path, rounds, folder):
    """Print the rows of a file.  Each command runs once per round."""
    size = os.path.getsize(path)
    commands = {"pickle.load": [sys.executable, "-c", LOAD, path]}
    commands |= {f"xseg {name}": [tool, name, *options, *[path] * reads] for name, (options, _, reads) in COMMANDS.items()}
    results, output_bytes, events = {name: [] for name in commands}, {}, 0
    for _ in range(rounds):
        for name, command in commands.items():
            results[name].append(run(command, folder))
            events = int((folder / "output").read_text()) if name == "pickle.load" else events
            output_bytes[name] = (folder / ((COMMANDS.get(name[5:]) or ("", None))[1] or "output")).stat().st_size
    print(f"{os.path.basename(path)}: {events} events, {size / 1e6:.0f} MB, {rounds} round{'s' * (rounds > 1)}")
    print(f"{'':14}{'seconds':>9}{'/ load':>9}{'us/event':>10}{'MiB':>7}{'/ file':>9}{'MB written':>12}")
    load = statistics.median(seconds for seconds, _ in results["pickle.load"])
    for name, runs in results.items():
        seconds, memory = statistics.median(cpu for cpu, _ in runs), max(peak for _, peak in runs)
        reads = COMMANDS[name[5:]][2] if name != "pickle.load" else 1
        print(f"{name:14}{seconds:9.2f}{seconds / (reads * load):9.2f}{seconds / events * 1e6:10.2f}"
              f"{memory / (1 << 20):7.0f}{memory / size:9.2f}"
              + (f"{output_bytes[name] / 1e6:12.1f}" if name != "pickle.load" else ""), flush=True)


def main():
    """Measure all files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool", type=os.path.abspath)
    parser.add_argument("--events", type=lambda text: int(float(text)), default=1000000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("files", metavar="FILE", nargs="*", type=os.path.abspath)
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if not arguments.files:
            arguments.files = [folder / "job.pickle"]
            job.write(arguments.files[0], arguments.events)
        for path in arguments.files:
            measure(arguments.tool, path, arguments.rounds, folder)


if __name__ == "__main__":
    sys.exit(main())
