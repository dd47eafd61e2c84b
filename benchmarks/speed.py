# SPDX-License-Identifier: MIT
"""Runs the benchmark programmes, PyTorch's allocator beside xseg where it is built, and prints the table.

    speed.py --programs FOLDER [--torch FOLDER] [--rounds N] [--seconds S] [--config STRING]
             [--out FOLDER] [--without WHY] [--record FILE] [QUESTION...]

Subjects take turns: each round runs a programme with one and then with the other, so what the machine
does meanwhile hits both.  A ratio is taken within a round; the table has the median of the rounds.
With --record the machine and the table also replace what FILE has between the two lines RECORD.
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
QUESTIONS = ("hit", "churn", "large", "mid", "threads", "cross", "streams", "replay", "books",
             "growth", "trim", "history")
MODES = ("expandable_segments:True", "expandable_segments:False")

# What the project aims at: PyTorch's time / xseg's, at least.
AIMS = {("hit", "4 KiB"): 11, ("churn", "10^3"): 8, ("churn", "10^4"): 8, ("churn", "10^5"): 5,
        ("churn", "10^6"): 3, ("mid", "10^3"): 8, ("mid", "10^4"): 8, ("large", "10^2"): 11,
        ("large", "10^3"): 11, ("large", "10^4"): 10, ("cross", "batches of 256"): 8,
        ("cross", "one by one"): 8}
# A figure of xseg's own, and whether it is to be at most (-1) or at least (1) that.
OWN_AIMS = {("threads", "work of 2 threads"): (1, 1.9), ("streams", "8 streams cost"): (-1, 1.3),
            ("books", "10^6 live"): (-1, 3),
            ("history", "an event, clock aside"): (-1, 15),
            ("history", "an event with 32 frames"): (-1, 600),
            ("history", "2 threads cost"): (-1, 1.1)}
# Different stand-in drivers do this work, so PyTorch's figure and xseg's are not of one thing.
NOT_COMPARED = {"growth", "trim"}

RECORD = ("<!-- Measured: benchmarks/run --vs-torch --record writes it. -->",
          "<!-- End of what was measured. -->")

NOTES = """
  ns        for one allocation and its free; replay: for one of the two; growth: for one growth;
            trim: for one trim; history: an event is a third of a pair.  MEASURED on the host; the simulated driver's own work is in it
  counted   by the subject itself; modelled: after an A100, by the simulator
  spread    of xseg and PyTorch: between the quartiles of the rounds' medians, in % of the median
  ratio     PyTorch / xseg within a round: the median of all rounds, and the lowest and highest
  aim       what the project wants to reach; a star marks what misses it
"""


def machine():
    """What the figures were taken on, as one line."""
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


def unpacked(folder):
    """The traces as plain text in a folder; returns their paths."""
    paths = []
    for trace in sorted((HERE / "traces").glob("*.xtrace.zst")):
        path = pathlib.Path(folder) / trace.name.removesuffix(".zst")
        with path.open("wb") as file:
            subprocess.run(["zstd", "-dcq", trace], stdout=file, check=True)
        paths.append(str(path))
    return paths


def commands(question, options, traces):
    """The argument lists of one question, without the programme."""
    tail = ["--seconds", str(options.seconds)]
    if question != "replay":
        return [tail + ["--config", options.config]]
    if options.torch and not os.environ.get("XSEG_REFERENCE_BUSY"):
        tail.append("--at-once")
    return [tail + ["--config", mode] + traces for mode in MODES]


def tell(text):
    """Where the run is: on a terminal over itself, in a log a line."""
    if sys.stderr.isatty():
        print(f"\r{text:<40}\r", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


class Table:
    """Rows by (question, case, unit): for each subject, the medians of the rounds."""

    def __init__(self):
        self.figures = {}
        self.notes = {}
        self.failed = []

    def run(self, name, command, log):
        """Run a subject's programme and take up its rows."""
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)
        for line in done.stdout.splitlines():
            log.write(line + "\n")
            question, case, subject, unit, median, *rest = line.split("\t")
            self.figures.setdefault((question, case, unit), {}).setdefault(subject, []).append(
                float(median))
            if len(rest) > 3:
                self.notes[question, case] = rest[3]
        for question, case, why in re.findall(r"^(\w+), (.*): left out, because (.*)$", done.stderr, re.M):
            self.notes[question, case] = f"{name} is left out: {why}"
        if done.returncode != 0:
            why = done.stderr.strip().splitlines()[-1:] or ["no word"]
            self.failed.append(f"{' '.join(map(str, command))}: status {done.returncode}: {why[0]}")

    def lines(self, without):
        """The table, line by line."""
        theirs = "PyTorch" if not without else ""
        yield (f"{'question':<9} {'case':<32} {'xseg':>9} {'spread':>7} "
               f"{theirs:>9} {'spread' if theirs else '':>7} {'ratio' if theirs else '':>7} "
               f"{'lowest, highest' if theirs else '':>17} {'aim':>6}  unit".rstrip())
        yield "-" * 112
        for (question, case, unit), by_subject in self.figures.items():
            yield self.line(question, case, unit, by_subject)
        if without:
            yield f"\n  no ratios: {without}"

    def print(self, without):
        """The table, and what it means."""
        print("", *self.lines(without), NOTES, sep="\n")
        for failure in self.failed:
            print(f"  FAILED  {failure}")

    def line(self, question, case, unit, by_subject):
        """One row."""
        ours, theirs = by_subject.get("xseg", []), by_subject.get("PyTorch", [])
        cells = ratio = ""
        ratios = []
        for figures in (ours, theirs):
            cells += f" {short(statistics.median(figures)) if figures else '-':>9} {spread(figures):>7}"
        if ours and theirs and unit == "ns" and question not in NOT_COMPARED:
            ratios = [b / a for a, b in zip(ours, theirs)]
            ratio = (f" {statistics.median(ratios):>7.1f} "
                     f"{f'{min(ratios):.1f}, {max(ratios):.1f}':>17}")
        aim = mark(aim_of(question, case), ours, ratios)
        note = f", {self.notes[question, case]}" if (question, case) in self.notes else ""
        return f"{question:<9} {case:<32}{cells}{ratio or ' ' * 26} {aim:>7} {unit}{note}".rstrip()


def aim_of(question, case):
    """(A ratio, or a figure of xseg's own; whether it is to be at most or at least that), or None."""
    if (question, case) in OWN_AIMS:
        return (True, *OWN_AIMS[question, case])
    least = AIMS.get((question, case), 7 if question == "replay" else None)
    return (False, 1, least) if least else None


def mark(aim, ours, ratios):
    """An aim as the table has it: a star behind it says that it was missed, a blank that it was not."""
    if not aim:
        return " "
    is_own, sign, limit = aim
    figures = ours if is_own else ratios
    is_missed = bool(figures) and sign * statistics.median(figures) < sign * limit
    text = f"{'<>'[sign > 0]}={limit}" if is_own else f"{limit} x"
    return text + ("*" if is_missed else " ")


def short(value):
    """A figure in few characters."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(figures):
    """Between the quartiles, in percent of the median."""
    if len(figures) < 3 or not statistics.median(figures):
        return "-"
    low, _, high = statistics.quantiles(figures, n=4, method="inclusive")
    return f"{100 * (high - low) / statistics.median(figures):.1f}%"


def record(path, lines, marks):
    """Put the machine and the table into a document, between two lines."""
    text = path.read_text()
    before, found, rest = text.partition(marks[0] + "\n")
    _, end, after = rest.partition(marks[1])
    if not found or not end:
        sys.exit(f"{path} has no place for the table: it needs the lines {marks[0]} and {marks[1]}")
    body = "\n".join(["```", *lines, "```\n"])
    path.write_text(before + found + body + end + after)


def write_picture(table, path):
    """Bars for the picture: number, label, xseg, PyTorch (0 if there is none)."""
    rows = [((question, case), figures) for (question, case, unit), figures
            in table.figures.items()
            if unit == "ns" and question not in NOT_COMPARED | {"replay", "history"}
            and "xseg" in figures]
    with path.open("w") as file:
        for number, ((question, case), figures) in enumerate(rows):
            # Short lines, so that labels lie level side by side.
            label = "\\n".join([question, *textwrap.wrap(case, 7)])
            theirs = statistics.median(figures["PyTorch"]) if "PyTorch" in figures else 0
            file.write(f'{number}\t"{label}"\t'
                       f'{statistics.median(figures["xseg"]):.1f}\t{theirs:.1f}\n')


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", required=True)
    parser.add_argument("--torch")
    parser.add_argument("--without", default="", help="why PyTorch is not in the table")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each case and round")
    parser.add_argument("--config", default=MODES[0])
    parser.add_argument("--out", default=str(HERE / "out"))
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    return parser.parse_args()


def main():
    """Rounds, then the table."""
    options, table = parse(), Table()
    for question in options.questions:
        if question not in QUESTIONS:
            sys.exit(f"speed.py: no such question: {question}; there are {', '.join(QUESTIONS)}")
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    line = machine()
    print(line, flush=True)
    with tempfile.TemporaryDirectory() as folder, (out / "speed.tsv").open("w") as log:
        traces = unpacked(folder) if "replay" in options.questions else []
        log.write(f"# {line}\n# question\tcase\tsubject\tunit\tmedian\tlower\tupper\tbatches\n")
        for number in range(options.rounds):
            for question in options.questions:
                tell(f"round {number + 1} of {options.rounds}: {question}")
                for command in commands(question, options, traces):
                    table.run("xseg", [f"{options.programs}/bench-{question}", *command], log)
                    if options.torch:
                        table.run("PyTorch", [HERE / "torch", "run", options.torch, question, *command], log)
    tell("")
    table.print(options.without if not options.torch else "")
    write_picture(table, out / "speed-bars.tsv")
    if options.record and not table.failed:
        record(options.record, [line, "", *table.lines("")], RECORD)
    sys.exit(1 if table.failed else 0)


if __name__ == "__main__":
    main()
