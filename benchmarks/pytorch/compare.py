# SPDX-License-Identifier: MIT
"""PyTorch on its own allocator beside PyTorch on xseg: processor time of operations, rounds in turn, one table.

    compare.py --driver FILE|cuda [--library FILE] [--rounds N] [--out FOLDER] [--record FILE] [--alone WHY] [ROW...]

A round starts both processes (work.py) and asks them for each row several times in turn, so what the machine does
meanwhile hits both.  A round's figure is the least of its turns.  Both have the same configuration: first expandable
segments, then classic ones.  Figures are the least of all rounds.  --driver is the simulated driver's library, or
`cuda` for this machine's; --library the libxseg.so that is measured, by default the one of the Python package.  With
--alone PyTorch's own allocator is measured by itself, and the table says why.

Writes pytorch.json and pytorch-bars.tsv; with --record the table goes into FILE, between the two lines RECORD.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import speed  # pylint: disable=wrong-import-position

ENVIRONMENT = HERE.parent.parent / "tests/support/torch_environment.py"
PACKAGE = HERE.parent.parent / "src/adapters/python"
# What PyTorch calls them.
BACKENDS = {"own": "native", "xseg": "xseg"}
MODES = {"expandable": "expandable_segments:True", "classic": "expandable_segments:False"}
NOTHING = "empty(0)"
TURNS = 3  # of each row in a round
# What the project aims at: PyTorch's time / xseg's, at least.  All other rows: not slower.
AIMS = {"empty and del, 256 B": 1.2, "empty and del, 4 KiB": 1.2, "empty and del, 64 KiB": 1.2,
        "empty and del, 1 MiB": 1.2, "raw allocate and free": 2, "training step": 1.08, "inference step": 1.04}
ROWS = (NOTHING, "empty and del, 256 B", "empty and del, 4 KiB", "empty and del, 64 KiB", "empty and del, 1 MiB",
        "empty and del, 20 MiB", "empty and del, 100 MiB", "raw allocate and free", "caching_allocator_alloc",
        "record_stream, 1 MiB", "training step", "inference step", "empty_cache")
RECORD = ("<!-- Measured: benchmarks/run --pytorch --record writes it. -->",
          "<!-- End of what was measured with PyTorch. -->")

NOTES = """
  own, xseg  PROCESSOR TIME of one operation in us, the least of all rounds: Python, PyTorch, the allocator and
             the simulated driver's own work, if it is one, are in it
  spread     between the quartiles of the rounds, in % of their median
  ratio      own / xseg
  aim        what the project wants to reach; others are not to be slower.  A star marks what misses it: a row is
             slower only beyond the larger spread of empty(0), which allocates nothing
  blocks     that one operation allocates, as PyTorch counts them
"""


class Failed(Exception):
    """A process that measures did not answer; the text says why."""


class Subject:
    """A process that measures."""

    def __init__(self, name, mode, options):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("PYTORCH_") and (key.startswith("XSEG_REFERENCE") or not key.startswith("XSEG_"))}
        environment["PYTORCH_CUDA_ALLOC_CONF"] = MODES[mode]
        command = [sys.executable, ENVIRONMENT]
        if options.driver == "cuda":
            found = subprocess.run([*command, "python"], stdout=subprocess.PIPE, text=True, check=False)
            if found.returncode != 0:
                raise Failed("PyTorch is not there")
            command = [found.stdout.strip()]
        else:
            # As the other programmes that measure: a large device, without checks that only tests need.
            environment |= {"XSEG_SIM_STRICT": "0", "XSEG_SIM_MEMORY_MB": "65536"}
            command += ["--driver", options.driver, "run", "python"]
        if name == "xseg" and options.library:
            environment |= {"XSEG_LIBRARY": options.library, "PYTHONPATH": str(PACKAGE)}
        self.name = name
        self.process = subprocess.Popen([*command, str(HERE / "work.py"), name], env=environment, text=True,  # pylint: disable=consider-using-with
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.about = self.answer()
        if self.about["backend"] != BACKENDS[name]:
            raise Failed(f"PyTorch was to run on {BACKENDS[name]}, and runs on {self.about['backend']}")

    def answer(self):
        """The next line of the process, which is an object in JSON."""
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the process with PyTorch's allocator {self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, row):
        """Measure a row."""
        self.process.stdin.write(row + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        """Let the process end by itself."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def run_round(number, mode, options, figures):
    """One round: each row of each subject, in turn; who begins changes from turn to turn."""
    subjects = [Subject(name, mode, options) for name in (["own"] if options.alone else ["own", "xseg"])]
    try:
        for row in options.rows:
            answers = {subject.name: [] for subject in subjects}
            for turn in range(TURNS):
                for subject in subjects if (number + turn) % 2 == 0 else reversed(subjects):
                    answers[subject.name].append(subject.ask(row))
            for name, turns in answers.items():
                entry = figures.setdefault(row, {}).setdefault(name, {"ns": [], "blocks": turns[0]["blocks"]})
                entry["ns"].append(min(turn["ns"] for turn in turns))
        return {subject.name: subject.about for subject in subjects}
    finally:
        for subject in subjects:
            subject.end()


def spread(times):
    """Between the quartiles, relative to the median."""
    if len(times) < 2:
        return 0
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / middle


def noise(figures):
    """How far a figure of a mode may be off: the larger spread of the row that allocates nothing."""
    return max((spread(entry["ns"]) for entry in figures.get(NOTHING, {}).values()), default=0)


def ratio(entry):
    """PyTorch's time divided by xseg's; None without xseg."""
    return min(entry["own"]["ns"]) / min(entry["xseg"]["ns"]) if "xseg" in entry else None


def is_missed(row, entry, bound):
    """Whether a row misses its aim."""
    found = ratio(entry)
    if found is None:
        return False
    return found < AIMS[row] if row in AIMS else found < 1 - bound


def lines(measured):
    """The table, line by line."""
    yield (f"{'segments':<11}{'operation':<26}{'own':>10}{'spread':>8}{'xseg':>10}{'spread':>8}"
           f"{'ratio':>8}{'aim':>9}{'blocks':>8}")
    yield "-" * 98
    for mode, figures in measured.items():
        bound = noise(figures)
        for row, entry in figures.items():
            cells = ""
            for name in ("own", "xseg"):
                times = entry[name]["ns"] if name in entry else []
                cells += (f"{speed.short(min(times) / 1000):>10}{100 * spread(times):>7.1f}%" if times
                          else f"{'-':>10}{'-':>8}")
            found = ratio(entry)
            aim = f"{AIMS[row]} x" if row in AIMS else "1 x"
            mark = "*" if is_missed(row, entry, bound) else ""
            yield (f"{mode:<11}{row:<26}{cells}{f'{found:.2f}' if found else '-':>8}{aim:>8}{mark:<1}"
                   f"{entry['own']['blocks']:>8}").rstrip()
        yield f"{mode:<11}slower is what is beyond {100 * bound:.1f} %"


def write_bars(measured, path):
    """For the picture: number, row, and the ratio with expandable and with classic segments."""
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(measured["expandable"]):
            ratios = [ratio(measured[mode][row]) or 0 for mode in MODES]
            file.write(f'{number}\t"{row}"\t{ratios[0]:.3f}\t{ratios[1]:.3f}\n')


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--library")
    parser.add_argument("--alone", metavar="WHY")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "out")
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("rows", nargs="*", default=ROWS)
    options = parser.parse_args()
    for row in options.rows:
        if row not in ROWS:
            parser.error(f'no such row: "{row}"; there are: {"; ".join(ROWS)}')
    if options.rounds < 1:
        parser.error(f"--rounds takes a number from 1 on, not {options.rounds}")
    return options


def main():
    """Rounds, then the table."""
    options, measured, about = parse(), {}, {}
    line = speed.machine()
    print(line, flush=True)
    try:
        for mode in MODES:
            for number in range(options.rounds):
                speed.tell(f"{mode}: round {number + 1} of {options.rounds}")
                about = run_round(number, mode, options, measured.setdefault(mode, {}))
    except Failed as why:
        sys.exit(f"compare.py: {why}")
    speed.tell("")
    line += f", PyTorch {about['own']['torch']}, {about['own']['device']}"
    table = list(lines(measured))
    print("", *table, NOTES, sep="\n")
    if options.alone:
        print(f"  without xseg: {options.alone}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "pytorch.json").write_text(json.dumps(
        {"machine": line, "rounds": options.rounds, "about": about, "modes": measured}, indent=1) + "\n", encoding="utf-8")
    write_bars(measured, options.out / "pytorch-bars.tsv")
    if options.record and not options.alone:
        speed.record(options.record, [line, "", *table], RECORD)


if __name__ == "__main__":
    main()
