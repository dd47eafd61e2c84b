# SPDX-License-Identifier: MIT
"""What the commands of the tool cost that read a snapshot: of a training job with N events, or of a file.

commands.py TOOL [--events N] [--file FILE] [--rounds N]

Prints a row for each command: the median of its processor times, its host memory at the most, and how much it writes.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import job

COMMANDS = {"blame": [], "view": ["-o", "page.html"], "export": ["--perfetto", "-o", "job.perfetto"]}


def run(tool, command, path, folder):
    """Seconds of a processor and bytes of host memory of one run."""
    with open(folder / "said", "wb") as said, \
            subprocess.Popen([tool, command, *COMMANDS[command], path], cwd=folder, stdout=said) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"xseg {command} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def main():
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tool", type=os.path.abspath)
    parser.add_argument("--events", type=lambda text: int(float(text)), default=1000000)
    parser.add_argument("--file", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        path = given.file or folder / "job.pickle"
        if not given.file:
            job.write(path, given.events)
        print(f"{os.path.getsize(path) / 1e6:.0f} MB of snapshot")
        for command, options in COMMANDS.items():
            rounds = [run(given.tool, command, path, folder) for _ in range(given.rounds)]
            written = folder / (options[-1] if options else "said")
            print(f"xseg {command:8} {statistics.median(seconds for seconds, _ in rounds):6.2f} s "
                  f"{max(memory for _, memory in rounds) / (1 << 20):6.0f} MiB {written.stat().st_size / 1e6:8.1f} MB written")


if __name__ == "__main__":
    sys.exit(main())
