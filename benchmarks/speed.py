# SPDX-License-Identifier: MIT
"""Runs the benchmarks on xseg, and on PyTorch's allocator if it is built, and prints the table.

    speed.py --programs FOLDER [--torch FOLDER] [--rounds N] [--seconds S] [--config STRING]
             [--out FOLDER] [--without REASON] [--record FILE] [BENCHMARK...]

Each round runs a benchmark on one allocator and then on the other, so other load on the host affects both.  Ratios are
computed within a round, and the table has the median of the rounds.  With --record the table also replaces the text between
the two lines RECORD of FILE.
"""
import argparse
import datetime
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
BENCHMARKS = ("hit", "churn", "large", "mid", "threads", "cross", "streams", "replay", "metadata",
             "growth", "trim", "history")
MODES = ("expandable_segments:True", "expandable_segments:False")

# Targets of the project: minimum of PyTorch's time / xseg's time.
TARGETS = {("hit", "4 KiB"): 11, ("churn", "10^3"): 8, ("churn", "10^4"): 8, ("churn", "10^5"): 5,
        ("churn", "10^6"): 3, ("mid", "10^3"): 8, ("mid", "10^4"): 8, ("large", "10^2"): 11,
        ("large", "10^3"): 11, ("large", "10^4"): 10, ("cross", "batches of 256"): 8,
        ("cross", "one by one"): 8}
# Targets for values of xseg: a maximum (-1) or a minimum (1).
OWN_TARGETS = {("threads", "throughput of 2 threads"): (1, 1.9), ("streams", "8 streams / 1 stream"): (-1, 1.3),
            ("metadata", "10^6 live"): (-1, 3),
            ("history", "event, without clock read"): (-1, 15),
            ("history", "event with 32 frames"): (-1, 600),
            ("history", "2 threads / 1 thread"): (-1, 1.1)}
# These times are dominated by the simulated drivers, which differ.
NOT_COMPARED = {"growth", "trim"}

RECORD = ("<!-- Measured: benchmarks/run --vs-torch --record writes it. -->",
          "<!-- End of what was measured. -->")

NOTES = """
  %         metadata: host memory in percent of the mapped memory
  ns        per pair of one allocation and its free; replay: per allocation or free; growth: per growth; trim: per
            trim; history: per pair, which records three events.  Measured on the host, including the work of the
            simulated driver
  counted   by the allocator; modeled: by the simulator, after an A100
  spread    difference between the quartiles of the rounds' medians, in percent of the median
  target    of the project; * marks a missed target"""
RATIO_NOTES = """  ratio     PyTorch's time / xseg's time within a round: the median of all rounds; range: lowest, highest
"""


def machine():
    """The host, the compiler, the commit and the load, as one line."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", text)
    load = os.getloadavg()[0]
    compiler = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True,
                              check=False).stdout.strip()
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short=10", "HEAD"],
                            capture_output=True, text=True, check=False).stdout.strip()
    return (f"{model[1] if model else os.uname().machine}, {os.cpu_count()} cores, "
            f"{os.uname().sysname} {os.uname().release.split('-')[0]}, gcc {compiler}, "
            f"commit {commit or 'unknown'}, load {load:.1f}, {datetime.date.today()}")


def unpack_traces(folder):
    """Unpack the traces as plain text into a folder; returns their paths."""
    paths = []
    for trace in sorted((HERE / "traces").glob("*.xtrace.zst")):
        path = pathlib.Path(folder) / trace.name.removesuffix(".zst")
        with path.open("wb") as file:
            subprocess.run(["zstd", "-dcq", trace], stdout=file, check=True)
        paths.append(str(path))
    return paths


def commands(benchmark, options, traces):
    """The argument lists of a benchmark, without the program."""
    common = ["--seconds", str(options.seconds)]
    if benchmark != "replay":
        return [common + ["--config", options.config]]
    if options.torch and not os.environ.get("XSEG_REFERENCE_BUSY"):
        common.append("--at-once")
    return [common + ["--config", mode] + traces for mode in MODES]


def show_progress(text):
    """Show the progress: on a terminal by overwriting a line, otherwise as one line each."""
    if sys.stderr.isatty():
        print(f"\r{text:<40}\r", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


class Table:
    """Rows by (benchmark, case, unit): the medians of the rounds for each allocator."""

    def __init__(self):
        self.values = {}
        self.notes = {}
        self.failed = []

    def run(self, name, command, log):
        """Run a benchmark on an allocator, and add its rows."""
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                check=False)
        for line in result.stdout.splitlines():
            log.write(line + "\n")
            benchmark, case, allocator, unit, median, *fields = line.split("\t")
            self.values.setdefault((benchmark, case, unit), {}).setdefault(allocator, []).append(
                float(median))
            if len(fields) > 3:
                self.notes[benchmark, case] = fields[3]
        for benchmark, case, reason in re.findall(r"^(\w+), (.*): left out, (.*)$", result.stderr, re.M):
            self.notes[benchmark, case] = f"{name} is left out: {reason}"
        if result.returncode != 0:
            error = result.stderr.strip().splitlines()[-1:] or ["no message"]
            self.failed.append(f"{' '.join(map(str, command))}: status {result.returncode}: {error[0]}")

    def lines(self, without):
        """The lines of the table.  without: the reason why there are no columns of PyTorch, or ""."""
        columns = "" if without else f" {'PyTorch':>7} {'ratio':>5} {'range':>10}"
        head = f"{'benchmark':<9} {'case':<29} {'xseg':>6} {'spread':>6}{columns} {'target':>6} unit"
        yield head
        yield "-" * (len(head) + 10)
        for (benchmark, case, unit), by_allocator in self.values.items():
            yield self.line(benchmark, case, unit, by_allocator, not without)
        yield from (f"  {benchmark}, {case}: {note}" for (benchmark, case), note in self.notes.items() if note)
        if without:
            yield f"\n  no ratios to PyTorch: {without}"

    def print(self, without):
        """Print the table, its notes, and failures."""
        print("", *self.lines(without), NOTES, sep="\n")
        print("" if without else RATIO_NOTES)
        for failure in self.failed:
            print(f"  FAILED  {failure}")

    def line(self, benchmark, case, unit, by_allocator, has_torch):
        """One row."""
        xseg, pytorch = by_allocator.get("xseg", []), by_allocator.get("PyTorch", [])
        cells, ratios, target = "", [], find_target(benchmark, case)
        cells += f" {format_value(statistics.median(xseg)) if xseg else '-':>6} {spread(xseg):>6}"
        if has_torch:
            cells += f" {format_value(statistics.median(pytorch)) if pytorch else '-':>7}"
        if xseg and pytorch and unit == "ns" and benchmark not in NOT_COMPARED:
            ratios = [b / a for a, b in zip(xseg, pytorch)]
            cells += f" {statistics.median(ratios):>5.1f} {f'{min(ratios):.1f}, {max(ratios):.1f}':>10}"
        elif has_torch:
            cells += " " * 17
        if not has_torch and target and not target[0]:
            target = None
        return f"{benchmark:<9} {case:<29}{cells} {format_target(target, xseg, ratios):>6} {unit}".rstrip()


def find_target(benchmark, case):
    """The target of a row: whether it is for a value of xseg, its sign (-1 maximum, 1 minimum) and its value; or None."""
    if (benchmark, case) in OWN_TARGETS:
        return (True, *OWN_TARGETS[benchmark, case])
    minimum = TARGETS.get((benchmark, case), 7 if benchmark == "replay" else None)
    return (False, 1, minimum) if minimum else None


def format_target(target, xseg, ratios):
    """A target as a cell of the table: with a star if it was missed, otherwise with a blank."""
    if not target:
        return " "
    is_own, sign, limit = target
    values = xseg if is_own else ratios
    is_missed = bool(values) and sign * statistics.median(values) < sign * limit
    text = f"{'<>'[sign > 0]}={limit}" if is_own else f"{limit} x"
    return text + ("*" if is_missed else " ")


def format_value(value):
    """A value in few characters."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values):
    """The difference between the quartiles, in percent of the median."""
    if len(values) < 3 or not statistics.median(values):
        return "-"
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{100 * (high - low) / statistics.median(values):.1f}%"


def record(path, lines, marks):
    """Replace the text between two lines of a document by the table."""
    text = path.read_text()
    before, begin, old_table = text.partition(marks[0] + "\n")
    _, end, after = old_table.partition(marks[1])
    if not begin or not end:
        sys.exit(f"speed.py: lines for the table are missing, {path}; add {marks[0]} and {marks[1]}")
    body = "\n".join(["```", *lines, "```\n"])
    path.write_text(before + begin + body + end + after)


def write_picture(table, path):
    """Write the bars of the picture: number, label, xseg, PyTorch (0 if it was not measured)."""
    rows = [((benchmark, case), values) for (benchmark, case, unit), values in table.values.items()
            if unit == "ns" and benchmark not in NOT_COMPARED | {"replay", "history"} and "xseg" in values]
    with path.open("w") as file:
        for number, ((benchmark, case), values) in enumerate(rows):
            # Short lines, so that neighboring labels do not overlap.
            label = "\\n".join([benchmark, *textwrap.wrap(case, 7)])
            pytorch = statistics.median(values["PyTorch"]) if "PyTorch" in values else 0
            file.write(f'{number}\t"{label}"\t'
                       f'{statistics.median(values["xseg"]):.1f}\t{pytorch:.1f}\n')


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", required=True)
    parser.add_argument("--torch")
    parser.add_argument("--without", default="", help="reason why the table has no column of PyTorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case and round")
    parser.add_argument("--config", default=MODES[0])
    parser.add_argument("--out", default=str(HERE / "out"))
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS)
    return parser.parse_args()


def main():
    """Run the rounds, and print the table."""
    options, table = parse(), Table()
    for benchmark in options.benchmarks:
        if benchmark not in BENCHMARKS:
            sys.exit(f"speed.py: unknown benchmark, {benchmark}; choose from {', '.join(BENCHMARKS)}")
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    line = machine()
    print(line, flush=True)
    with tempfile.TemporaryDirectory() as folder, (out / "speed.tsv").open("w") as log:
        traces = unpack_traces(folder) if "replay" in options.benchmarks else []
        log.write(f"# {line}\n# benchmark\tcase\tallocator\tunit\tmedian\tlower\tupper\tbatches\n")
        for round_number in range(options.rounds):
            for benchmark in options.benchmarks:
                show_progress(f"round {round_number + 1} of {options.rounds}: {benchmark}")
                for command in commands(benchmark, options, traces):
                    table.run("xseg", [f"{options.programs}/bench-{benchmark}", *command], log)
                    if options.torch:
                        table.run("PyTorch", [HERE / "torch", "run", options.torch, benchmark, *command], log)
    show_progress("")
    table.print(options.without if not options.torch else "")
    write_picture(table, out / "speed-bars.tsv")
    if options.record and not table.failed:
        # Another table of the document contains the counted driver calls.
        rows = [row for row in table.lines("") if not row.endswith("calls, counted")]
        record(options.record, [line, "", *rows], RECORD)
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
