# SPDX-License-Identifier: MIT
"""Replays the week of a service in three modes, prints a table, and writes memory over time: service.py TOOL FOLDER.

  kept       PyTorch's expandable segments: reserved memory is never released
  emptied    the same, with empty_cache() from a timer every 10 seconds
  decayed    the configuration below, with xseg_trim() with due_only every second
"""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
WEEK = HERE / "week.xtrace.zst"
CONFIG = "expandable_segments:True,idle_ms:180000"
EXPANDABLE = "expandable_segments:True"
EMPTY_US = 10_000_000
GIB, MIB = 1 << 30, 1 << 20
HOUR_US = 3600 * 1_000_000

NOTES = """
  live, reserved   averages over the week; keep_mb is 0
  driver           time of driver calls: MODELED after an A100, not measured
  longest call     the longest allocation or free; longest request: all allocations and frees of one
                   request.  MODELED.  No request is charged for the calls of the timer
  waits            calls in which the allocator waits for the device: in a request, and elsewhere
  PyTorch          has the same values as `kept` with this string, except more driver calls
"""


def write_emptied(out):
    """Write the week with an `e` line every ten seconds."""
    lines = subprocess.run(["zstd", "-dc", WEEK], check=True, stdout=subprocess.PIPE)
    next_us = EMPTY_US
    for line in lines.stdout.decode().splitlines(keepends=True):
        if line.startswith("@"):
            while next_us <= int(line[2:]):
                out.write(f"@ {next_us}\nm empty\ne\n")
                next_us += EMPTY_US
        out.write(line)


def replay(tool, trace, config, timeline=None):
    """Replay a trace; returns the JSON of the tool.  timeline: file for memory over time, or None."""
    command = [tool, "replay", "--json", "--config", config, trace]
    if timeline is not None:
        command += ["--timeline", timeline]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if result.returncode != 0:
        sys.exit(f"service.py: replay failed, status {result.returncode}: {' '.join(map(str, command))}")
    return json.loads(result.stdout)


def waits(run):
    """All waits of a replay."""
    return sum(run["driver_calls"][name] for name in
               ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemFree"))


def print_runs(runs):
    headings = ("", "live", "reserved", "", "peak", "driver", "us per", "longest call", "longest request",
             "waits on", "waits")
    units = ("", "GiB", "GiB", "/ live", "GiB", "s", "request", "us", "us", "requests", "elsewhere")
    widths = (9, 7, 10, 8, 8, 9, 9, 14, 17, 10, 11)
    for cells in (headings, units):
        print("".join(f"{cell:>{width}}" if i else f"{cell:<{width}}"
                      for i, (cell, width) in enumerate(zip(cells, widths))).rstrip())
    print("-" * sum(widths))
    for name, run in runs.items():
        cells = (f"{run['allocated_time_avg'] / GIB:.2f}", f"{run['reserved_time_avg'] / GIB:.2f}",
                 f"{run['reserved_time_avg'] / run['allocated_time_avg']:.3f}",
                 f"{run['peak_reserved'] / GIB:.2f}", f"{run['driver_us'] / 1e6:.2f}",
                 f"{run['driver_us'] / run['requests']:.0f}", f"{run['max_operation_us']:.0f}",
                 f"{run['max_request_us']:.0f}", f"{run['request_path_syncs']}",
                 f"{waits(run) - run['request_path_syncs']}")
        print(f"{name:<{widths[0]}}" + "".join(f"{cell:>{width}}"
                                               for cell, width in zip(cells, widths[1:])))


def print_drift(timeline):
    """Print the state at three o'clock in each night, when no model is loaded."""
    rows = [list(map(int, line.split("\t"))) for line in timeline.read_text().splitlines()
            if not line.startswith("#")]
    print("\nat 3 o'clock        " + "".join(f"{'night ' + str(night):>10}" for night in range(2, 8)))
    nights = [next(row for row in rows if row[0] >= (24 * night + 3) * HOUR_US)
              for night in range(1, 7)]
    for heading, column, unit in (("reserved MiB", 3, MIB), ("addresses GiB", 4, GIB),
                               ("host memory KiB", 5, 1024), ("driver objects", 6, 1)):
        print(f"  {heading:<18}" + "".join(f"{row[column] / unit:>10.0f}" for row in nights))


def print_targets(runs):
    kept, emptied, decayed = (runs[name] for name in ("kept", "emptied", "decayed"))
    print("\n  reserved / live      "
          f"{decayed['reserved_time_avg'] / decayed['allocated_time_avg']:.3f}, target: 1.10\n"
          f"  driver time          {decayed['driver_us'] / emptied['driver_us']:.3f} of emptying, "
          "target: 0.20\n"
          f"  waits on requests    {decayed['request_path_syncs']}, target: 0\n"
          f"  kept: reserved       {kept['reserved_time_avg'] / decayed['reserved_time_avg']:.1f} "
          "times that of decayed")


def main(tool, folder):
    folder = pathlib.Path(folder)
    with tempfile.NamedTemporaryFile("w", suffix=".xtrace") as file:
        write_emptied(file)
        file.flush()
        runs = {name: replay(tool, trace, config, folder / f"service-{name}.tsv")
                for name, trace, config in (("kept", WEEK, EXPANDABLE),
                                            ("emptied", file.name, EXPANDABLE),
                                            ("decayed", WEEK, CONFIG))}
    print(f"\nweek of a service: {runs['kept']['requests']} requests, "
          f"{runs['kept']['events']:,} allocations and frees\n  decayed is {CONFIG}\n")
    print_runs(runs)
    print_drift(folder / "service-decayed.tsv")
    print_targets(runs)
    print(NOTES)


if __name__ == "__main__":
    main(*sys.argv[1:])
