# SPDX-License-Identifier: MIT
"""Replays all traces with classic and expandable segments, and prints one table: table.py [--quick] TOOL."""
import json
import pathlib
import subprocess
import sys

TRACES = pathlib.Path(__file__).parent / "traces"
GIB, MIB = 1 << 30, 1 << 20
MODES = (("classic", "expandable_segments:False"), ("expandable", "expandable_segments:True"))
# Driver calls that change device memory, by their names in reference.json.
CALLS = {"cudaMalloc": "cuMemAlloc", "cudaFree": "cuMemFree", "reserve": "cuMemAddressReserve",
         "create": "cuMemCreate", "map": "cuMemMap", "access": "cuMemSetAccess",
         "unmap": "cuMemUnmap", "release": "cuMemRelease"}

NOTES = """
  requested        peak of the bytes that the program has requested and not freed
  reserved         peak of the device memory that the allocator holds
  overhead         reserved / requested
  driver calls     that allocate, map, unmap or free device memory
  driver time      of all driver calls: MODELED after an A100, not measured
  smallest device  memory of the smallest device on which the trace completes (bisection to 0.1 % or 2 MiB)
  time per event   of one allocation or free: MEASURED on one CPU, including the work of the simulated driver
  PyTorch          the allocator of PyTorch 2.15 on the same trace, recorded
  *                higher than PyTorch's value
"""


def replay(tool, trace, config, quick):
    """Replay a trace with a configuration; returns the JSON of the tool."""
    command = [tool, "replay", "--json", "--config", config, trace]
    if not quick:
        command.insert(2, "--min-device")
    result = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if result.returncode != 0:
        sys.exit(f"table.py: replay failed, status {result.returncode}: {' '.join(map(str, command))}")
    return json.loads(result.stdout)


def groups(quick):
    """Groups of columns: title of the group, heading and width of each column."""
    yield "", (("trace", 18), ("segments", 11))
    yield "GiB", (("requested", 11), ("reserved", 10))
    yield "overhead", (("xseg", 9), ("PyTorch", 9))
    yield "driver calls", (("xseg", 10), ("PyTorch", 9))
    yield "driver", (("time, ms", 10),)
    if not quick:
        yield "smallest device, GiB", (("xseg", 12), ("PyTorch", 10))
    yield "time per", (("event, ns", 11),)


def line(cells, widths):
    """Align the first two columns to the left, and the others to the right."""
    return "".join(f"{cell:<{width}}" if i < 2 else f"{cell:>{width}}"
                   for i, (cell, width) in enumerate(zip(cells, widths))).rstrip()


def print_headings(quick):
    """Print the headings and a rule; returns the widths of the columns."""
    titles, headings, widths = "", [], []
    for title, columns in groups(quick):
        titles += f"{title:>{sum(width for _, width in columns)}}"
        headings += [heading for heading, _ in columns]
        widths += [width for _, width in columns]
    print(f"\n{titles}\n{line(headings, widths)}\n{'-' * sum(widths)}")
    return widths


def mark(text, is_worse):
    """A value, with a star if it is worse than PyTorch's."""
    return text + ("*" if is_worse else " ")


def device(xseg, pytorch):
    """The cell of the smallest device, which the search finds to 0.1 % or 2 MiB."""
    if not xseg:
        return mark("none", True)
    pytorch *= MIB
    return mark(f"{xseg / GIB:.2f}", xseg > pytorch + max(pytorch / 1000, 2 * MIB))


def row(name, mode, xseg, pytorch, quick):
    """The cells of a replay."""
    requested = xseg["peak_requested"]
    calls = sum(xseg["driver_calls"].get(call, 0) for call in CALLS.values())
    yield from (name, mode, f"{requested / GIB:.2f}", f"{xseg['peak_reserved'] / GIB:.2f}",
                mark(f"{xseg['peak_reserved'] / requested:.3f}",
                     xseg["peak_reserved"] > pytorch["peak_reserved"]),
                f"{pytorch['peak_reserved'] / pytorch['peak_requested']:.3f}",
                f"{calls:,}", f"{sum(pytorch['driver_calls'][call] for call in CALLS):,}",
                f"{xseg['driver_us'] / 1000:.1f}")
    if not quick:
        yield device(xseg["min_device"], pytorch["min_device_mib"])
        yield f"{pytorch['min_device_mib'] / 1024:.2f}"
    yield f"{xseg['ns_per_event']:.0f}"


def main(arguments):
    quick = "--quick" in arguments
    tool = arguments[-1]
    reference = json.loads((TRACES / "reference.json").read_text())
    widths = print_headings(quick)
    for name in sorted(reference):
        for mode, config in MODES:
            xseg = replay(tool, TRACES / f"{name}.xtrace.zst", config, quick)
            print(line(row(name if mode == "classic" else "", mode, xseg, reference[name][mode],
                           quick), widths), flush=True)
    print("".join(line for line in NOTES.splitlines(keepends=True) if not quick or "smallest device" not in line))


if __name__ == "__main__":
    main(sys.argv[1:])
