# SPDX-License-Identifier: MIT
"""Measures `xseg blame` and `xseg compare` on the snapshots of a job's ranks.

ranks.py TOOL [--ranks N] [--distinct N] [--events N] [--keep FOLDER]

Each rank is a training job (job.py) with different sequences; one rank leaks twenty times as many blocks.  With --distinct,
several ranks share a file by hard links, so that a thousand ranks need less disk space.  Prints elapsed time, CPU time
and peak resident memory.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import job


def write(folder, rank, events, outlier):
    """Write the snapshot of a rank."""
    job.BASE = 0x7f0000000000 + rank * (1 << 36)
    job.write(folder / f"train-rank{rank}.pickle", events, seed=rank, leaked=1 if rank == outlier else 0.05)


def measure(*command):
    """Run a command; returns the first line, elapsed seconds, CPU seconds and peak resident bytes."""
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        sys.exit(f"ranks.py: command failed, status {process.returncode}: {command}")
    return text.splitlines()[0], time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("tool")
    options.add_argument("--ranks", type=int, default=64)
    options.add_argument("--distinct", type=int, default=64)
    options.add_argument("--events", type=int, default=10 ** 5)
    options.add_argument("--keep", type=pathlib.Path)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.keep or pathlib.Path(name)
        folder.mkdir(exist_ok=True)
        distinct = min(arguments.distinct, arguments.ranks)
        with concurrent.futures.ProcessPoolExecutor() as workers:
            list(workers.map(write, [folder] * distinct, range(distinct), [arguments.events] * distinct,
                             [distinct // 2] * distinct))
        for rank in range(distinct, arguments.ranks):
            source = rank % distinct
            os.link(folder / f"train-rank{source - (source == distinct // 2)}.pickle", folder / f"train-rank{rank}.pickle")
        size = sum(path.stat().st_size for path in folder.iterdir()) / arguments.ranks
        print(f"{arguments.ranks} files of {arguments.events} events, {size / 1e6:.1f} MB each, "
              f"{len(os.sched_getaffinity(0))} CPUs")
        for command in ("blame", "compare"):
            line, seconds, cpu_seconds, resident = measure(arguments.tool, command, str(folder))
            print(f"xseg {command}: {seconds:.1f} s, {cpu_seconds:.1f} s of CPU time, {resident >> 20} MiB: {line}")


if __name__ == "__main__":
    main()
