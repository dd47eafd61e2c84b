# SPDX-License-Identifier: MIT
"""Measures the CPU time of PyTorch's operations on its own allocator and on xseg, and prints one table.

    compare.py --driver FILE|cuda [--library FILE] [--rounds N] [--out FOLDER] [--record FILE] [--alone REASON] [ROW...]

A round starts both processes (work.py) and measures each row several times in turn, so other load on the host affects both.
The value of a round is the minimum of its turns, and the value of the table is the minimum of the rounds.  Both processes
have the same configuration: first expandable segments, then classic ones.  --driver is the library of the simulated driver, or
`cuda` for the driver of the host.  --library is the libxseg.so to measure, by default that of the Python package.  With --alone
only PyTorch's own allocator is measured, and the table contains the reason.

Writes pytorch.json and pytorch-bars.tsv; with --record the table replaces the text between the two lines RECORD of FILE.
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
# Names of the allocators in PyTorch.
BACKENDS = {"own": "native", "xseg": "xseg"}
MODES = {"expandable": "expandable_segments:True", "classic": "expandable_segments:False"}
NOTHING = "empty(0)"
TURNS = 3  # of each row in a round
# Targets: minimum of PyTorch's time / xseg's.  All other rows must not be slower.
TARGETS = {"empty and del, 256 B": 1.2, "empty and del, 4 KiB": 1.2, "empty and del, 64 KiB": 1.2,
        "empty and del, 1 MiB": 1.2, "raw allocate and free": 2, "training step": 1.08, "inference step": 1.04}
ROWS = (NOTHING, "empty and del, 256 B", "empty and del, 4 KiB", "empty and del, 64 KiB", "empty and del, 1 MiB",
        "empty and del, 20 MiB", "empty and del, 100 MiB", "raw allocate and free", "caching_allocator_alloc",
        "record_stream, 1 MiB", "training step", "inference step", "empty_cache")
RECORD = ("<!-- Measured: benchmarks/run --pytorch --record writes it. -->",
          "<!-- End of what was measured with PyTorch. -->")

NOTES = """
  own, xseg  CPU TIME of one operation in us, the minimum of all rounds, including Python, PyTorch, the allocator
             and the simulated driver
  spread     difference between the quartiles of the rounds, in percent of their median
  ratio      own / xseg
  target     of the project; * marks a missed target.  Other rows must not be slower by more than the larger
             spread of empty(0), which allocates nothing
  blocks     blocks that one operation allocates, counted by PyTorch
"""


class Failed(Exception):
    """A measuring process failed; the text is the error message."""


class Worker:
    """A process that measures PyTorch on one of the allocators (work.py)."""

    def __init__(self, name, mode, options):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("PYTORCH_") and (key.startswith("XSEG_REFERENCE") or not key.startswith("XSEG_"))}
        environment["PYTORCH_CUDA_ALLOC_CONF"] = MODES[mode]
        command = [sys.executable, ENVIRONMENT]
        if options.driver == "cuda":
            result = subprocess.run([*command, "python"], stdout=subprocess.PIPE, text=True, check=False)
            if result.returncode != 0:
                raise Failed("PyTorch is not installed")
            command = [result.stdout.strip()]
        else:
            # As in the other benchmarks: a large device, without the checks for tests.
            environment |= {"XSEG_SIM_STRICT": "0", "XSEG_SIM_MEMORY_MB": "65536"}
            command += ["--driver", options.driver, "run", "python"]
        if name == "xseg" and options.library:
            environment |= {"XSEG_LIBRARY": options.library, "PYTHONPATH": str(PACKAGE)}
        self.name = name
        self.process = subprocess.Popen([*command, str(HERE / "work.py"), name], env=environment, text=True,  # pylint: disable=consider-using-with
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.about = self.receive()
        if self.about["backend"] != BACKENDS[name]:
            raise Failed(f"unexpected allocator backend of PyTorch, {self.about['backend']} instead of {BACKENDS[name]}")

    def receive(self):
        """The next output line of the process, an object in JSON."""
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"process with the allocator {self.name} failed, status {self.process.wait()}")
        return json.loads(line)

    def measure(self, row):
        """Measure a row."""
        self.process.stdin.write(row + "\n")
        self.process.stdin.flush()
        return self.receive()

    def close(self):
        """Wait for the end of the process."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def run_round(round_number, mode, options, values):
    """Run a round: each row on both allocators in turn, with alternating order."""
    workers = [Worker(name, mode, options) for name in (["own"] if options.alone else ["own", "xseg"])]
    try:
        for row in options.rows:
            results = {worker.name: [] for worker in workers}
            for turn in range(TURNS):
                for worker in workers if (round_number + turn) % 2 == 0 else reversed(workers):
                    results[worker.name].append(worker.measure(row))
            for name, turns in results.items():
                entry = values.setdefault(row, {}).setdefault(name, {"ns": [], "blocks": turns[0]["blocks"]})
                entry["ns"].append(min(turn["ns"] for turn in turns))
        return {worker.name: worker.about for worker in workers}
    finally:
        for worker in workers:
            worker.close()


def spread(times):
    """The difference between the quartiles, relative to the median."""
    if len(times) < 2:
        return 0
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return (high - low) / middle


def noise(values):
    """The measurement error of a mode: the larger spread of the row that allocates nothing."""
    return max((spread(entry["ns"]) for entry in values.get(NOTHING, {}).values()), default=0)


def ratio(entry):
    """PyTorch's time divided by xseg's; None without xseg."""
    return min(entry["own"]["ns"]) / min(entry["xseg"]["ns"]) if "xseg" in entry else None


def misses_target(row, entry, tolerance):
    """Whether a row misses its target."""
    quotient = ratio(entry)
    if quotient is None:
        return False
    return quotient < TARGETS[row] if row in TARGETS else quotient < 1 - tolerance


def lines(measured):
    """The lines of the table."""
    yield (f"{'segments':<11}{'operation':<26}{'own':>10}{'spread':>8}{'xseg':>10}{'spread':>8}"
           f"{'ratio':>8}{'target':>9}{'blocks':>8}")
    yield "-" * 98
    for mode, values in measured.items():
        tolerance = noise(values)
        for row, entry in values.items():
            cells = ""
            for name in ("own", "xseg"):
                times = entry[name]["ns"] if name in entry else []
                cells += (f"{speed.format_value(min(times) / 1000):>10}{100 * spread(times):>7.1f}%" if times
                          else f"{'-':>10}{'-':>8}")
            quotient = ratio(entry)
            target = f"{TARGETS[row]} x" if row in TARGETS else "1 x"
            mark = "*" if misses_target(row, entry, tolerance) else ""
            yield (f"{mode:<11}{row:<26}{cells}{f'{quotient:.2f}' if quotient else '-':>8}{target:>8}{mark:<1}"
                   f"{entry['own']['blocks']:>8}").rstrip()
        yield f"{mode}: rows slower by more than {100 * tolerance:.1f} % miss the target"


def write_bars(measured, path):
    """Write the bars of the picture: index, row, and the ratios with expandable and with classic segments."""
    with path.open("w", encoding="utf-8") as file:
        for index, row in enumerate(measured["expandable"]):
            ratios = [ratio(measured[mode][row]) or 0 for mode in MODES]
            file.write(f'{index}\t"{row}"\t{ratios[0]:.3f}\t{ratios[1]:.3f}\n')


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--library")
    parser.add_argument("--alone", metavar="REASON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "out")
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("rows", nargs="*", default=ROWS)
    options = parser.parse_args()
    for row in options.rows:
        if row not in ROWS:
            parser.error(f'unknown row, "{row}"; choose from {"; ".join(ROWS)}')
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {options.rounds}")
    return options


def main():
    """Run the rounds, and print the table."""
    options, measured, about = parse(), {}, {}
    line = speed.machine()
    print(line, flush=True)
    try:
        for mode in MODES:
            for round_number in range(options.rounds):
                speed.show_progress(f"{mode}: round {round_number + 1} of {options.rounds}")
                about = run_round(round_number, mode, options, measured.setdefault(mode, {}))
    except Failed as error:
        sys.exit(f"compare.py: {error}")
    speed.show_progress("")
    software = f"PyTorch {about['own']['torch']}, {about['own']['device']}"
    table = list(lines(measured))
    print("", *table, NOTES, sep="\n")
    if options.alone:
        print(f"  without xseg: {options.alone}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "pytorch.json").write_text(json.dumps(
        {"machine": f"{line}, {software}", "rounds": options.rounds, "about": about, "modes": measured}, indent=1) + "\n", encoding="utf-8")
    write_bars(measured, options.out / "pytorch-bars.tsv")
    if options.record and not options.alone:
        speed.record(options.record, [line, software, "", *table], RECORD)


if __name__ == "__main__":
    main()
