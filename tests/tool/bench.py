# SPDX-License-Identifier: MIT
"""Tests that the benchmark programs run and print the rows of the table.

bench.py FOLDER SOURCE_ROOT; FOLDER contains the programs.  Measured times are not compared."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

TRACE = ("xtrace 1\n# made up\nc\na 0 1000 0\na 1 30000000 1\nu 1 0\nm step\na 2 4096 0 1\nf 1\n"
         "a 3 512 0\ny 0\nf 0\nf 2\ny *\ne\nf 3\n")


def run(*command, exit_status=0):
    completed = subprocess.run([str(argument) for argument in command], check=False, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if completed.returncode != exit_status:
        raise AssertionError(f"{command}: {completed.returncode}\n{completed.stdout}{completed.stderr}")
    return completed.stdout


def rows(name, *arguments):
    output = run(FOLDER / f"bench-{name}", "--seconds", "0.01", "--warm", "100", *arguments)
    fields = [line.split("\t") for line in output.splitlines()]
    for row in fields:
        if len(row) not in (8, 9) or row[0] != name or row[2] != "xseg":
            raise AssertionError(f"no row of {name}: {row}")
    return {(row[1], row[3]): float(row[4]) for row in fields}


def tables_of(text):
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
            for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]


class Benchmarks(unittest.TestCase):
    def test_programs_measure_each_of_their_cases(self):
        for name, cases in (("hit", 2), ("cross", 2), ("streams", 3)):
            with self.subTest(name=name):
                self.assertEqual(len(rows(name)), cases)

    def test_recording_is_measured_with_and_without_stacks(self):
        measured = rows("history")
        for row in (("off", "ns"), ("clock read", "ns, minimum"), ("events", "ns"), ("event, without clock read", "ns per event"),
                    ("events with 32 frames", "ns"), ("event with 32 frames", "ns per event")):
            self.assertIn(row, measured)

    def test_row_names_the_unwinder(self):
        output = run(FOLDER / "bench-history", "--seconds", "0.01", "--warm", "100").splitlines()
        notes = {row[1]: row[8] for row in (line.split("\t") for line in output) if len(row) > 8}
        self.assertEqual(list(notes), ["event with 32 frames"])
        self.assertRegex(notes["event with 32 frames"], "^by (libunwind$|the C library; install libunwind8$)")

    def test_driver_calls_are_counted(self):
        measured = rows("growth")
        self.assertEqual(measured["8 GiB: cuMemCreate", "calls, counted"], 410)  # 8 GiB / 20 MiB, rounded up
        self.assertEqual(measured["8 GiB: cuMemSetAccess", "calls, counted"], 1)

    def test_ranges_of_two_caches_share_a_device(self):
        output = run(FOLDER / "bench-ranges", "--seconds", "20")
        self.assertEqual(output, run(FOLDER / "bench-ranges", "--seconds", "20"))
        tables = tables_of(output)
        self.assertEqual(len(tables), 4)
        memory, calls = ({row[0]: dict(zip(table[0], row)) for row in table[2:]} for table in (tables[0], tables[3]))
        for mode, row in memory.items():
            if mode != "halves":
                self.assertLessEqual(float(row["physical / committed"]), 1.1, mode)
            self.assertEqual(calls[mode]["waits"], "0")
        self.assertGreater(int(calls["share"]["shared"]), 0)

    def test_two_services_share_a_device(self):
        output = run(FOLDER / "bench-budget", "--hours", "6")
        tables = tables_of(output)
        self.assertEqual([len(table) for table in tables], [7, 7, 7])
        sessions = {row[0]: dict(zip(tables[0][0], row)) for row in tables[0][2:]}
        self.assertGreater(int(sessions["together"]["rejected"]), 0)
        for policy, row in sessions.items():
            # A cell is "SERVED of ARRIVED".
            arrived = [int(row[name].split()[2]) for name in ("served of text", "of images")]
            served = [int(row[name].split()[0]) for name in ("served of text", "of images")]
            self.assertEqual(sum(arrived) - sum(served), int(row["rejected"]), policy)
            self.assertEqual(int(row["after release"]) > 0, policy.startswith("budget"), policy)
        repeated = run(FOLDER / "bench-budget", "--hours", "6")
        for policy in ("together", "halves", "decayed"):
            rows_of_runs = [[line for line in text.splitlines() if line.startswith(f"| {policy} |")]
                            for text in (output, repeated)]
            self.assertEqual(*rows_of_runs)

    def test_recommit_makes_no_driver_calls(self):
        with unittest.mock.patch.dict(os.environ, XSEG_SIM_MEMORY_MB="524288"):
            measured = rows("granules")
        self.assertEqual(measured["recommit one: driver calls", "calls, counted"], 0)

    def test_programs_run_on_the_named_driver(self):
        environment = {**os.environ, "XSEG_DRIVER": str(FOLDER.parent / "libxseg-sim.so"), "XSEG_SIM_MEMORY_MB": "4096"}
        completed = subprocess.run([FOLDER / "bench-large", "--seconds", "0.01", "--warm", "100"], check=True,
                                   capture_output=True, text=True, env=environment)
        self.assertEqual([line.split("\t")[1] for line in completed.stdout.splitlines()], ["10^2"])
        self.assertIn("large, 10^3: left out, it takes 13.2 GiB and 4.0 GiB are free", completed.stderr)
        completed = subprocess.run([FOLDER / "bench-pairs", "large_churn", "10", "time"], check=False,
                                   capture_output=True, text=True, env=environment)
        self.assertEqual((completed.returncode, completed.stdout), (3, ""))
        completed = subprocess.run([FOLDER / "bench-hit"], check=False, capture_output=True, text=True,
                                   env={**environment, "XSEG_DRIVER": "/no/such/driver"})
        self.assertEqual(completed.returncode, 3)
        self.assertIn("driver: cannot be loaded, /no/such/driver", completed.stderr)

    def test_pairs_are_timed_on_request(self):
        self.assertEqual(run(FOLDER / "bench-pairs", "same_block", "1000"), "")
        self.assertGreater(float(run(FOLDER / "bench-pairs", "same_block", "1000", "time")), 0)

    def test_trace_is_replayed_to_its_end(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "small.xtrace")
            path.write_text(TRACE)
            self.assertEqual(list(rows("replay", path)), [("small, expandable", "ns")])
            self.assertEqual(list(rows("replay", "--at-once", "--config", "expandable_segments:False", path)),
                             [("small, classic", "ns")])
            path.write_text(TRACE + "a 9 600000000000 0\n")
            self.assertEqual(rows("replay", path), {})
            path.write_text(TRACE + "cb 1 0\n")
            run(FOLDER / "bench-replay", path, exit_status=2)

    def test_table_explains_missing_ratios(self):
        with tempfile.TemporaryDirectory() as folder:
            output = run(sys.executable, ROOT / "benchmarks/speed.py", "--programs", FOLDER, "--out",
                         folder, "--rounds", "1", "--seconds", "0.01", "--without", "not requested", "hit")
            self.assertIn("no ratios to PyTorch: not requested", output)
            self.assertIn("hit       4 KiB", output)
            self.assertIn("\txseg\tns\t", pathlib.Path(folder, "speed.tsv").read_text())

    def test_log_file_has_no_carriage_returns(self):
        with tempfile.TemporaryDirectory() as folder:
            completed = subprocess.run([sys.executable, ROOT / "benchmarks/speed.py", "--programs", FOLDER,
                                        "--out", folder, "--rounds", "2", "--seconds", "0.01", "hit"],
                                       stdin=subprocess.DEVNULL, capture_output=True, check=True)
            self.assertNotIn(b"\r", completed.stdout + completed.stderr)
            self.assertEqual(completed.stderr.count(b" of 2: hit\n"), 2)

    def test_missed_target_is_marked_with_a_star(self):
        sys.path[:0] = [str(ROOT / "benchmarks")]
        import speed  # pylint: disable=import-error,import-outside-toplevel
        import table  # pylint: disable=import-error,import-outside-toplevel
        minimum, maximum = ("threads", "throughput of 2 threads"), ("streams", "8 streams / 1 stream")
        for target, value, ratios, expected in (
                (("hit", "4 KiB"), 9, [10, 13, 10.9], "11 x*"), (("hit", "4 KiB"), 9, [10, 13, 11], "11 x "),
                (("hit", "4 KiB"), 9, (), "11 x "), (minimum, 1.8, (), ">=1.9*"), (minimum, 1.9, (), ">=1.9 "),
                (maximum, 1.4, (), "<=1.3*"), (maximum, 1.2, (), "<=1.3 "), (("growth", "8 GiB"), 1, (), " ")):
            self.assertEqual(speed.format_target(speed.find_target(*target), [value], ratios), expected)
        self.assertEqual(table.device(4 << 30, 4096), "4.00 ")
        self.assertEqual(table.device((4 << 30) + (5 << 20), 4096), "4.00*")
        self.assertEqual(table.device(None, 4096), "none*")


if __name__ == "__main__":
    FOLDER, ROOT = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1], verbosity=1)
