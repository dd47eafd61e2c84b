# SPDX-License-Identifier: MIT
"""What `xseg advise` takes for a snapshot of a training job of N events: advise.py TOOL [--events N] [--rounds N].

Prints configurations, seconds by the clock and of processors, and the host memory of the largest of its processes: the
median of the rounds.
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


def used():
    """Seconds of processors that children have taken so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def advise(tool, path):
    """One round: configurations, seconds, seconds of processors."""
    before, begin = used(), time.monotonic()
    done = subprocess.run([tool, "advise", "--json", path], capture_output=True, check=True)
    return json.loads(done.stdout)["replayed"], time.monotonic() - begin, used() - before


def main():
    """Make the snapshot, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.pickle"
        job.write(path, arguments.events)
        rounds = [advise(arguments.tool, path) for _ in range(arguments.rounds)]
    replayed, seconds, processors = map(statistics.median, zip(*rounds))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{arguments.events} events: {replayed:.0f} configurations, {seconds:.1f} s, {processors:.1f} s of processors, "
          f"{peak:.0f} MiB")


if __name__ == "__main__":
    main()
