# SPDX-License-Identifier: MIT
"""Measures `xseg advise` on a snapshot of a training job: advise.py TOOL [--events N] [--rounds N].

Prints the number of configurations, elapsed time, CPU time (medians of the rounds), and the peak host memory of the largest
process.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import job  # pylint: disable=wrong-import-position


def cpu_time():
    """CPU seconds of all children so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def advise(tool, path):
    """Run a round; returns configurations, elapsed seconds, CPU seconds."""
    before, start = cpu_time(), time.monotonic()
    output = subprocess.run([tool, "advise", "--json", path], capture_output=True, check=True).stdout
    return json.loads(output)["replayed"], time.monotonic() - start, cpu_time() - before


def main():
    """Create the snapshot and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.pickle"
        job.write(path, arguments.events)
        rounds = [advise(arguments.tool, path) for _ in range(arguments.rounds)]
    replayed, seconds, cpu_seconds = map(statistics.median, zip(*rounds))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{arguments.events} events: {replayed:.0f} configurations, {seconds:.1f} s, {cpu_seconds:.1f} s of CPU time, "
          f"{peak:.0f} MiB")


if __name__ == "__main__":
    main()
