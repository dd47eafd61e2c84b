# SPDX-License-Identifier: MIT
"""Replays every trace, classic and expandable, and prints one table: table.py [--quick] TOOL."""
import json
import pathlib
import subprocess
import sys

TRACES = pathlib.Path(__file__).parent / "traces"
GIB, MIB = 1 << 30, 1 << 20
MODES = (("classic", "expandable_segments:False"), ("expandable", "expandable_segments:True"))
# Calls that make, change or end device memory, by the names that reference.json gives them.
CALLS = {"cudaMalloc": "cuMemAlloc", "cudaFree": "cuMemFree", "reserve": "cuMemAddressReserve",
         "create": "cuMemCreate", "map": "cuMemMap", "access": "cuMemSetAccess",
         "unmap": "cuMemUnmap", "release": "cuMemRelease"}

NOTES = """
  live             highest sum of the bytes that the programme asked for and had not freed
  reserved         highest amount of device memory held; waste is reserved / live
  driver calls     that make, map, unmap or free device memory
  driver time      what all driver calls would have cost: MODELLED after an A100, not measured
  smallest device  on which the programme completes, found by bisection to 0.1 % or 2 MiB
  time per event   MEASURED here, one core, per allocation or free; the simulated driver's own
                   work is in it
  PyTorch          recorded from the allocator of PyTorch 2.15 on the same programmes
  *                misses the aim, which is PyTorch's figure at most
"""


def replay(tool, trace, config, quick):
    """One trace under one configuration, as the tool's JSON."""
    command = [tool, "replay", "--json", "--config", config, trace]
    if not quick:
        command.insert(2, "--min-device")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"table.py: {' '.join(map(str, command))} ended with status {done.returncode}")
    return json.loads(done.stdout)


def groups(quick):
    """What stands over the columns, and heading and width of each column below it."""
    yield "", (("trace", 18), ("memory", 10))
    yield "GiB", (("live", 7), ("reserved", 10))
    yield "waste", (("xseg", 9), ("PyTorch", 9))
    yield "driver calls", (("xseg", 10), ("PyTorch", 9))
    yield "driver", (("time ms", 10),)
    if not quick:
        yield "smallest device, GiB", (("xseg", 12), ("PyTorch", 10))
    yield "time per", (("event ns", 11),)


def line(cells, widths):
    """Text to the left in the first two columns, to the right in the others."""
    return "".join(f"{cell:<{width}}" if i < 2 else f"{cell:>{width}}"
                   for i, (cell, width) in enumerate(zip(cells, widths))).rstrip()


def print_head(quick):
    """Two lines of headings and a rule; returns the widths of the columns."""
    over, heads, widths = "", [], []
    for title, columns in groups(quick):
        over += f"{title:>{sum(width for _, width in columns)}}"
        heads += [heading for heading, _ in columns]
        widths += [width for _, width in columns]
    print(f"\n{over}\n{line(heads, widths)}\n{'-' * sum(widths)}")
    return widths


def mark(text, is_missed):
    """A figure, with a star where it misses its aim."""
    return text + ("*" if is_missed else " ")


def device(ours, theirs):
    """The smallest device, which a search finds to 0.1 % or 2 MiB."""
    if not ours:
        return mark("none", True)
    least = theirs * MIB
    return mark(f"{ours / GIB:.2f}", ours > least + max(least / 1000, 2 * MIB))


def row(name, mode, ours, theirs, quick):
    """The cells of one replay."""
    live = ours["peak_requested"]
    calls = sum(ours["driver_calls"].get(call, 0) for call in CALLS.values())
    yield from (name, mode, f"{live / GIB:.2f}", f"{ours['peak_reserved'] / GIB:.2f}",
                mark(f"{ours['peak_reserved'] / live:.3f}",
                     ours["peak_reserved"] > theirs["peak_reserved"]),
                f"{theirs['peak_reserved'] / theirs['peak_requested']:.3f}",
                f"{calls:,}", f"{sum(theirs['driver_calls'][call] for call in CALLS):,}",
                f"{ours['driver_us'] / 1000:.1f}")
    if not quick:
        yield device(ours["min_device"], theirs["min_device_mib"])
        yield f"{theirs['min_device_mib'] / 1024:.2f}"
    yield f"{ours['ns_per_event']:.0f}"


def main(arguments):
    quick = "--quick" in arguments
    tool = arguments[-1]
    reference = json.loads((TRACES / "reference.json").read_text())
    widths = print_head(quick)
    for name in sorted(reference):
        for mode, config in MODES:
            ours = replay(tool, TRACES / f"{name}.xtrace.zst", config, quick)
            print(line(row(name if mode == "classic" else "", mode, ours, reference[name][mode],
                           quick), widths), flush=True)
    print(NOTES)


if __name__ == "__main__":
    main(sys.argv[1:])
