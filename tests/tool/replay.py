# SPDX-License-Identifier: MIT
"""Tests of the command `xseg replay`: replay.py TOOL SOURCE_ROOT."""
import json
import random
import re
import sys
import unittest

from folder_case import MIB, ROOT, ToolCase

KEYS = ["trace", "config", "events", "oom_at", "peak_requested", "peak_allocated", "peak_active",
        "peak_reserved", "driver_calls", "driver_us", "ns_per_event", "checked", "mismatches", "min_device"]
CLOCK_KEYS = ["allocated_time_avg", "reserved_time_avg", "request_path_syncs", "max_operation_us", "requests", "max_request_us"]
EXPANDABLE = "c expandable_segments:True\n"


class ReplayTest(ToolCase):
    def file(self, text, name="t.xtrace"):  # pylint: disable=arguments-renamed
        return super().file(text if isinstance(text, bytes) else "xtrace 1\n" + text, name)

    def replay(self, *arguments, **options):
        return self.tool("replay", *arguments, **options)

    def json(self, *arguments, **options):
        return json.loads(self.replay("--json", *arguments, **options).stdout)

    def replay_json(self, text, *options, status=0):
        return self.json(*options, self.file(text), status=status)

    def expect_agreement(self, text):
        completed = self.replay("--check", self.file(text))
        steps = sum(line.startswith("=") for line in text.splitlines())
        self.assertIn(f"\n{steps:,} of {steps:,} "
                      f"{'recorded result agrees' if steps == 1 else 'recorded results agree'}\n", completed.stdout)


class InvalidInput(ReplayTest):
    def expect_error(self, path, line, message):
        completed = self.replay(path, status=2)
        self.assertEqual(completed.stdout, "")
        self.assertRegex(completed.stderr, rf"\A{re.escape(str(path))}{line and f':{line}'}: [^\n]*{message}[^\n]*\n\Z")

    def test_invalid_files_are_rejected(self):
        for contents, line, message in (
                (b"", "", "the file is empty"), (b"\0" * 100, "", "binary data of no known format"),
                (b"xtrace 1\n\0\n", 2, "NUL"), (b"xtrace 1\na 0 512 0\nf 0\nf 0\n", 4, "block 0 was freed on line 3"),
                (b"xtrace 1\na 0 512 0\nf 0\nu 0 1\n", 4, "block 0 was freed on line 3"),
                (b"xtrace 1\na 0 512 0\na 0 512 0\n", 3, "never used twice"),
                (b"xtrace 1\na 0 99999999999999999999 0\n", 2, "64 bits"), (b"xtrace 1\na 0 512 0\n! oom\nf 0\n", 4, "failed"),
                (b"xtrace 1\n#" + b"x" * 100000 + b"\n", 2, "longer"),
                (b"xtrace 1\nf 184467440737095516\n", 2, "never allocated"), (b"xtrace 1\na 0 51", 2, "middle of a line"),
                (b"xtrace 1\n" + b"\xff" * 30 + b"\n", 2, "unknown operation, "),
                (b"\x28\xb5\x2f\xfd" + b"\xff" * 50, 1, "compressed data is damaged"), (b"\x28\xb5\x2f\xfd", 1, "is truncated")):
            with self.subTest(contents[:60]):
                self.expect_error(self.file(contents), line, message)

    def test_random_bytes_are_rejected(self):
        rng = random.Random(7)
        for size in (1, 10, 1000, 100000):
            for prefix in (b"", b"xtrace 1\n", b"\x28\xb5\x2f\xfd"):
                self.expect_error(self.file(prefix + rng.randbytes(size)), r"\d+" if prefix else "", "")

    def test_truncated_and_damaged_traces_are_rejected(self):
        complete = (ROOT / "benchmarks/traces/decode_graphs.xtrace.zst").read_bytes()
        for size in (5, 100, len(complete) // 2, len(complete) - 1):
            self.expect_error(self.file(complete[:size], "truncated.zst"), r"\d+", "is truncated")
        middle = len(complete) // 2
        damaged = complete[:middle] + bytes(64) + complete[middle + 64:]
        self.expect_error(self.file(damaged, "damaged.zst"), r"\d+", "")

    def test_unreadable_files_are_rejected(self):
        self.assertIn("nowhere: cannot be opened: No such file", self.replay(self.folder / "nowhere", status=2).stderr)
        self.expect_error(self.folder, "", "unsupported file, a folder")

    def test_other_files_are_replayed_after_an_invalid_one(self):
        good, bad = self.file("a 0 512 0\n"), self.file("x\n", "bad")
        completed = self.replay("--json", bad, good, status=2)
        self.assertEqual([result["trace"] for result in json.loads(completed.stdout)], [str(good)])

    def test_invalid_arguments_are_rejected(self):
        good = self.file("a 0 512 0\n")
        for arguments, message in (
                ((), "needs a file"), (("--nothing", good), "unrecognized option"), (("--check=maybe", good), "exact or success"),
                (("--check", good), "no `=` line"), (("--driver", "metal", good), "sim or cuda"),
                (("--costs", "./none.costs", good), "xseg_sim_reset: costs: ./none.costs, cannot open the file"),
                (("--driver", "cuda", "--min-device", good), "cannot be combined"),
                (("--driver", "cuda", "--costs", "none", good), "cannot be combined"),
                (("--device-memory", "much", good), "such as 900MiB"), (("--device-memory", "-5", good), "such as 900MiB"),
                (("--device-memory", "1MB", good), "such as 900MiB"), (("--device-memory", "900", good), "less than 2MiB"),
                (("--device-memory", "99999999999999999999", good), "exceeds the memory of any"),
                (("--costs", "free", good), "takes none, a100"),
                (("--config", "max_split_size_mb:19", good), "max_split_size_mb"), (("--config", "nonsense", good), "nonsense"),
                (("--check", "--compare", "", good), "--compare"),
                (("--timeline", self.folder / "no/where", good), "cannot be written"),
                (("--device", "0", good), "this file is a trace"), (("--device", "1024", good), "from 0 to 1023"),
                (("--timeline", self.folder / "out", good, good), "requires a single FILE")):
            with self.subTest(arguments):
                completed = self.replay(*arguments, status=2)
                self.assertIn(message, completed.stderr)
                self.assertEqual(completed.stdout, "")

    def test_invalid_configuration_of_a_file_is_rejected(self):
        self.assertIn("max_split_size_mb", self.replay(self.file("c max_split_size_mb:x\na 0 512 0\n"), status=2).stderr)

    def test_tool_prints_usage_and_version(self):
        for arguments, status, message in (((), 2, "usage"), (("--help",), 0, "usage"), (("replay", "--help"), 0, "--min-device"),
                                           (("--version",), 0, "xseg 0."), (("fly",), 2, "'fly'")):
            completed = self.tool(*arguments, status=status)
            self.assertIn(message, completed.stdout + completed.stderr)


class Results(ReplayTest):
    def test_json_has_the_peaks_of_the_trace(self):
        """Blocks are rounded up to 512 bytes.  One small page of 2 MiB and two large pages of 20 MiB are created."""
        result = self.replay_json("a 0 1000 0\na 1 30000000 0\nf 0\nf 1\na 2 5 0\n")
        self.assertEqual(list(result), KEYS)
        self.assertEqual(result, result | {
            "events": 5, "oom_at": -1, "peak_requested": 30001000, "peak_allocated": 30000128 + 1024,
            "peak_active": 30000128 + 1024, "peak_reserved": 42 * MIB, "checked": 0, "mismatches": 0, "min_device": None})
        self.assertEqual(result["driver_calls"]["cuMemCreate"], 3)
        self.assertGreater(min(result["driver_us"], result["ns_per_event"]), 0)

    def test_running_out_of_memory_writes_no_snapshot(self):
        folder = self.folder / "oom"
        folder.mkdir()
        path = self.file(f"c expandable_segments:True,oom_snapshot:{folder}\nd 20\na 1 {40 * MIB} 0\n")
        for environment in ({}, {"XSEG_OOM_SNAPSHOT": str(folder)}):
            self.replay(path, status=3, environment=environment)
            self.assertEqual(list(folder.iterdir()), [])

    def test_empty_trace_calls_no_driver_function(self):
        result = self.replay_json("")
        self.assertEqual((result["events"], result["peak_reserved"], result["driver_us"]), (0, 0, 0))
        self.assertFalse(any(result["driver_calls"].values()))

    def test_excessive_size_is_out_of_memory(self):
        self.assertEqual(self.replay_json("a 0 0 0\na 1 18446744073709551615 0\n", status=3)["oom_at"], 1)

    def test_result_is_repeatable(self):
        path = ROOT / "benchmarks/traces/decode_graphs.xtrace.zst"
        runs = [self.json(path) for _ in range(2)]
        for run in runs:
            del run["ns_per_event"]
        self.assertEqual(*runs)

    def test_costs_determine_the_driver_time(self):
        text = "a 0 1000000000 0\n"
        self.assertEqual(self.replay_json(text, "--costs", "none")["driver_us"], 0)
        self.assertNotEqual(self.replay_json(text, "--costs", "a100")["driver_us"],
                            self.replay_json(text, "--costs", "rocm_slow")["driver_us"])

    def test_several_files_are_replayed(self):
        paths = [self.file("a 0 512 0\n", name) for name in ("one", "two")]
        results = self.json(*paths)
        self.assertEqual([result["trace"] for result in results], list(map(str, paths)))

    def test_two_configurations_are_compared(self):
        path = self.file("a 0 30000000 0\n")
        results = self.json("--compare", "expandable_segments:False", path)
        self.assertEqual([result["peak_reserved"] // MIB for result in results], [40, 30])
        text = self.replay("--compare", "expandable_segments:False", path).stdout
        self.assertRegex(text, r"peak reserved +40.00 MiB +30.00 MiB\n")

    def verdict(self, text, *options, status=0):
        return self.replay(*options, self.file(text), status=status).stdout.splitlines()[-1]

    def test_verdict_compares_reserved_memory(self):
        text = "a 0 30000000 0\nf 0\n"
        same_memory_and_calls = r"\AB reserves the same amount and makes the same number of driver calls\Z"
        for trace, value, verdict in (
                (text, "False", r"\AB reserves 10\.00 MiB less and makes [\d,]+ driver calls? instead of [\d,]+\Z"),
                ("c \n" + text, "True", r"\AB reserves 10\.00 MiB more and makes "), (text, "True", same_memory_and_calls),
                ("", "False", same_memory_and_calls)):
            self.assertRegex(self.verdict(trace, "--compare", "expandable_segments:" + value), verdict)

    def test_verdict_compares_driver_calls(self):
        growing_trace = "".join(f"a {i} 30000000 0\n" for i in range(40))
        results = self.json("--compare", "expandable_segments:False", self.file(growing_trace))
        sums = [sum(result["driver_calls"].values()) for result in results]
        self.assertGreater(max(sums), 1.05 * min(sums))
        self.assertTrue(self.verdict(growing_trace, "--compare", "expandable_segments:False").endswith(
            f" and makes {sums[1]:,} driver calls instead of {sums[0]:,}"))

    def test_verdict_names_the_configuration_that_runs_out_of_memory(self):
        text = "d 44\na 0 31457280 0\na 1 10485760 0\n"
        for config, compared_config, verdict in (
                ("", "hard_limit_mb:34", "B runs out of memory at event 1, A does not"),
                ("hard_limit_mb:34", "expandable_segments:False", "A runs out of memory at event 1, B does not"),
                ("hard_limit_mb:34", "hard_limit_mb:20", "both run out of memory: A at event 1, B at event 0")):
            self.assertEqual(self.verdict(text, "--config", config, "--compare", compared_config, status=3), verdict)

    def test_values_of_a_row_have_one_unit(self):
        path = self.file("a 0 1000 0\nf 0\na 1 100000000000 0\n")
        text = self.replay("--device-memory", "200GiB", "--compare", "hard_limit_mb:100", path, status=3).stdout
        self.assertRegex(text, r"peak reserved +93\.\d\d GiB +< 0\.01 GiB\n")
        units = re.findall(r"^  peak \w+ +[\d.]+ (\w+) +(?:< )?[\d.]+ (\w+)$", text, re.MULTILINE)
        self.assertEqual(len(units), 4)
        for first, second in units:
            self.assertEqual(first, second)

    def test_verbose_report_has_driver_calls_by_name(self):
        path = self.file("a 0 30000000 0\n")
        short_report, verbose_report = (self.replay(*option, path).stdout for option in ((), ("-v",)))
        self.assertNotIn("cuMem", short_report)
        self.assertRegex(short_report, r"\n  driver calls +\d+\n")
        self.assertEqual(self.replay("--verbose", path).stdout.count("\n    cu"), verbose_report.count("\n    cu"))
        calls_by_name = dict(re.findall(r"^    (cu\w+) +([\d,]+)$", verbose_report, re.MULTILINE))
        total = int(re.search(r"  driver calls +(\d+)", short_report)[1])
        self.assertEqual(sum(map(int, calls_by_name.values())), total)
        # Values are right-aligned.
        number_lines = [line for line in verbose_report.splitlines() if re.search(r"  \d+$", line)]
        self.assertGreater(len(number_lines), 5)
        self.assertEqual(len(set(map(len, number_lines))), 1)

    def test_trace_is_read_from_standard_input(self):
        result = self.json("-", stdin_data=b"xtrace 1\na 0 512 0\n")
        self.assertEqual((result["trace"], result["events"]), ("standard input", 1))
        compressed = (ROOT / "benchmarks/traces/moe_train.xtrace.zst").read_bytes()
        self.assertGreater(self.json("-", stdin_data=compressed)["events"], 1000)
        completed = self.replay("-", stdin_data=b"xtrace 1\nx\n", status=2)
        self.assertTrue(completed.stderr.startswith("standard input:2: "), completed.stderr)
        completed = self.replay("-", "-", stdin_data=b"xtrace 1\na 0 512 0\n", status=2)
        self.assertIn("standard input can be read only once", completed.stderr)

    def test_timeline_can_use_standard_output(self):
        path, timeline = self.file("a 0 512 0\nf 0\n"), self.folder / "timeline"
        table = self.replay("--timeline", timeline, path).stdout
        completed = self.replay("--timeline", "-", path)
        self.assertEqual(completed.stdout, timeline.read_text())
        self.assertEqual(completed.stderr.splitlines()[:5], table.splitlines()[:5])
        completed = self.replay("--json", "--timeline", "-", path)
        self.assertEqual(json.loads(completed.stderr)["events"], 2)
        self.assertEqual(completed.stdout, timeline.read_text())

    def test_timeline_has_the_peaks(self):
        timeline, trace = self.folder / "timeline", ROOT / "benchmarks/traces/moe_train.xtrace.zst"
        result = self.json("--timeline", timeline, trace)
        rows = [list(map(int, line.split("\t"))) for line in timeline.read_text().splitlines() if not line.startswith("#")]
        self.assertLessEqual(len(rows), 2000)
        self.assertGreater(len(rows), 1000)
        self.assertEqual(rows[-1][0], result["events"])
        self.assertEqual([max(column) for column in zip(*rows)][1:],
                         [result["peak_requested"], result["peak_allocated"], result["peak_reserved"]])

    def test_timeline_has_the_marks(self):
        timeline = self.folder / "timeline"
        self.replay("--timeline", timeline, self.file("a 0 512 0\nm a step\nf 0\n"))
        self.assertEqual(timeline.read_text().splitlines(),
                         ["# event\trequested\tallocated\treserved", f"1\t512\t512\t{2 * MIB}",
                          "# mark\t1\ta step", f"2\t0\t0\t{2 * MIB}"])

    def test_peaks_equal_those_of_pytorch(self):
        for name, modes in json.loads((ROOT / "benchmarks/traces/reference.json").read_text()).items():
            path = ROOT / f"benchmarks/traces/{name}.xtrace.zst"
            for mode, value in (("classic", "False"), ("expandable", "True")):
                with self.subTest(name, mode=mode):
                    result = self.json("--config", "expandable_segments:" + value, path)
                    for key in ("events", "peak_requested", "peak_allocated", "peak_reserved"):
                        self.assertEqual(result[key], modes[mode][key], key)


class Configuration(ReplayTest):
    """The option takes precedence over lines of the file, and these over the defaults."""

    def config(self, text, *options):
        result = self.replay_json(text + "a 0 30000000 0\n", *options)
        return result["config"], result["driver_calls"]["cuMemAlloc"] == 0

    def test_option_takes_precedence_over_the_file(self):
        for text, options, config in (
                ("", (), ("", True)), ("c expandable_segments:True\n", (), ("expandable_segments:True", True)),
                ("c \n", (), ("expandable_segments:False", False)),
                ("c max_split_size_mb:64\n", (), ("max_split_size_mb:64,expandable_segments:False", False)),
                ("c \n", ("--config", "max_split_size_mb:64"), ("max_split_size_mb:64", True)),
                ("c \n", ("--config", ""), ("", True))):
            self.assertEqual(self.config(text, *options), config)

    def test_environment_is_ignored(self):
        path = self.file("a 0 30000000 0\n")
        result = self.json(path, environment={"XSEG_ALLOC_CONF": "expandable_segments:False", "XSEG_SIM_MEMORY_MB": "2"})
        self.assertEqual(result["driver_calls"]["cuMemAlloc"], 0)
        for options, config, message in (((), "idle_ms:5", "xseg replay: XSEG_ALLOC_CONF is ignored; set the configuration with "
                                                           "--config\n"),
                                         (("--config", "idle_ms:6"), "idle_ms:5", ""), ((), "", "")):
            self.assertEqual(self.tool("replay", *options, path, environment={"XSEG_ALLOC_CONF": config}).stderr, message)

    def test_option_and_file_set_the_device_memory(self):
        text, large = "a 0 30000000 0\n", "a 0 90000000000 0\n"
        for trace, options, status in (
                ("d 40\n" + text, (), 0), ("d 20\n" + text, (), 3), ("d 20\n" + text, ("40MiB",), 0),
                ("d 40\n" + text, ("20M",), 3),
                (text, (40 * MIB,), 0), ("a 0 80000000000 0\n", (), 0), (large, (), 3), (large, ("1T",), 0)):
            with self.subTest(trace, options=options):
                self.replay_json(trace, *(("--device-memory",) if options else ()), *options, status=status)


class OutOfMemory(ReplayTest):
    def test_unrecorded_failure_ends_the_replay(self):
        path = self.file("d 100\na 0 50000000 0\nf 0\na 1 900000000 0\na 2 512 0\n")
        completed = self.replay("--json", path, status=3)
        result = json.loads(completed.stdout)
        self.assertIn(f"{path}:5: out of memory", completed.stderr)
        self.assertEqual((result["oom_at"], result["events"]), (2, 3))

    def test_recorded_failure_is_counted(self):
        result = self.replay_json("d 100\na 1 900000000 0\n! oom\na 2 512 0\nf 2\n")
        self.assertEqual((result["oom_at"], result["events"], result["failed"], result["failed_served"]), (-1, 3, 1, 0))

    def test_recorded_failure_that_succeeds_is_counted(self):
        # The request succeeds in the replay, which frees the block immediately, because the program did not receive it.
        text = "d 100\na 1 900 0\n! oom\na 2 60000000 0\nf 2\n"
        result = self.replay_json(text, "--config", "expandable_segments:False")
        self.assertEqual((result["oom_at"], result["peak_requested"]), (-1, 60000000))
        self.assertEqual((result["failed"], result["failed_served"]), (1, 1))
        self.assertIn("recorded failures           1 of 1 succeed\n", self.replay(self.file(text)).stdout)


class Checks(ReplayTest):
    TAPE = EXPANDABLE + ("a 0 1000 0\n= 1024 1024 0 2097152 1000 1 1 0 0\nf 0\n= 0 0 0 2097152 0 0 0 0 0\n"
                         "s reserved_bytes 2097152 2097152 2097152 0 2097152 2097152 2097152 0 0 0 0 0\ns num_device_alloc 1\n")

    def test_equal_results_agree(self):
        self.expect_agreement(self.TAPE)
        result = self.replay_json(self.TAPE, "--check=exact")
        self.assertEqual((result["checked"], result["mismatches"]), (2, 0))
        self.replay_json(self.TAPE, "--check", "--config", "expandable_segments:True")

    def test_differences_are_named(self):
        path = self.file(self.TAPE.replace("= 1024 1024 0 2097152 1000 1", "= 1024 1024 0 2097153 1000 7"))
        completed = self.replay("--check", path, status=1)
        self.assertIn("\n1 of 2 recorded results agree\n", completed.stdout)
        self.assertEqual(completed.stderr, f"{path}:4: reserved_bytes is 2097152, expected 2097153\n"
                         f"{path}:4: allocation is 1, expected 7\n")

    def test_statistics_are_compared(self):
        for old, new, name in (("s num_device_alloc 1", "s num_device_alloc 2", "num_device_alloc"),
                               ("2097152 0 0 0 0 0\n", "2097152 0 0 5 0 0\n", "reserved_bytes.large.peak"),
                               ("2097152 0 0 0 0 0\n", "2097152 9 0 0 0 0\n", "reserved_bytes.small.freed")):
            completed = self.replay("--check", self.file(self.TAPE.replace(old, new)), status=1)
            self.assertIn(f": {name} is ", completed.stderr)
            self.assertIn("\n1 of 2 recorded results agree\n", completed.stdout)

    def test_many_differences_are_truncated(self):
        tape = EXPANDABLE + "= 1 1 1 1 1 1 1 1 1\n" * 5
        completed = self.replay("--check", self.file(tape), status=1)
        self.assertEqual(len(completed.stderr.splitlines()), 11)
        self.assertIn(": 35 more differences", completed.stderr)

    def test_other_configuration_is_rejected(self):
        for options in (("--config", "expandable_segments:False"), ("--config", "")):
            self.assertIn("expandable_segments:True", self.replay("--check", *options, self.file(self.TAPE), status=2).stderr)

    def test_unexpected_success_of_a_request_is_a_difference(self):
        completed = self.replay("--check", self.file(EXPANDABLE + "a 0 1000 0\n! oom\n= 0 0 0 2097152 0 0 0 0 0\n"), status=1)
        self.assertIn(":3: allocated 1,000 bytes, expected out of memory", completed.stderr)
        self.assertIn("\n0 of 1 recorded result agrees\n", completed.stdout)

    def test_success_compares_failures_only(self):
        # Statistics are not compared; the comparison ends at the first request that succeeds only with xseg.
        different_results = "= 1 1 1 1 1 1 1 1 1\n"
        text = EXPANDABLE + "d 100\na 0 1000 0\n" + different_results + "f 0\n" + different_results
        self.assertIn("\n1 of 1 recorded result agrees\n", self.replay("--check=success", self.file(text)).stdout)
        diverging = text + "a 1 1000 0\n! oom\n" + different_results + "a 2 900000000 0\na 3 512 0\nf 3\n"
        completed = self.replay("--check=success", self.file(diverging))
        self.assertIn("\n1 of 1 recorded result agrees up to line 8, the first request that succeeds only in xseg\n",
                      completed.stdout)
        failing_request = text + "a 2 900000000 0\n" + different_results
        completed = self.replay("--check=success", self.file(failing_request), status=3)
        self.assertIn("\n1 of 2 recorded results agree\n", completed.stdout)


class StreamsAndPools(ReplayTest):
    # Results of the allocation of block 1 after block 0 was recorded on stream 1 and freed; the allocation polls the stream.
    FREE = "a 1 512 0\n= 512 512 0 2097152 512 1 1 0 0\n"
    PENDING = "a 1 512 0\n= 512 1024 0 2097152 1024 1 2 0 0\n"

    def test_recorded_stream_delays_the_free(self):
        prefix = EXPANDABLE + "a 0 512 0\nu 0 1\nf 0\n= 0 512 0 2097152 512 0 1 0 0\n"
        for synchronization, expected in (("", self.PENDING), ("y 2\n", self.PENDING), ("y 1\n", self.FREE),
                                          ("y *\n", self.FREE)):
            self.expect_agreement(prefix + synchronization + expected)

    def test_queued_work_and_event_waits_delay_the_free(self):
        prefix = EXPANDABLE + "a 0 512 0\nu 0 1\ny 1\n"
        for operations, expected in (("f 0\n", self.FREE), ("k 1\nf 0\n", self.PENDING), ("w 1 2\nf 0\n", self.FREE),
                                     ("k 2\nw 1 2\nf 0\n", self.PENDING), ("k 2\nw 1 2\nf 0\ny 2\n", self.PENDING),
                                     ("k 2\nw 1 2\nf 0\ny 1\n", self.FREE)):
            self.expect_agreement(prefix + operations + expected)

    def test_work_of_a_capture_does_not_delay_the_free(self):
        prefix = EXPANDABLE + "a 0 512 0\nu 0 1\ny 1\ncb 7 3\n"
        for operations in ("k 1\n", "u 0 1\n", "k 2\nw 1 2\n"):
            self.expect_agreement(prefix + operations + "ce 7\nf 0\n" + self.FREE)

    def test_trim_waits_for_pending_blocks(self):
        # `e` waits for the pending block and releases its page.
        self.expect_agreement(EXPANDABLE + "a 0 512 0\nu 0 1\nf 0\ne\n= 0 0 0 0 0 0 0 0 0\n")

    def test_pools_have_separate_pages(self):
        two_pages = "= 1024 1024 0 4194304 1024 2 2 0 0\n"
        unchanged_pages = "= 1024 1024 0 2097152 1024 2 2 0 0\n"
        for prefix, end in (("pb 7 1", "pe 7"), ("cb 7 1", "ce 7")):
            self.expect_agreement(EXPANDABLE + f"a 0 512 1\n{prefix}\na 1 512 1\n{two_pages}{end}\n")
            self.expect_agreement(EXPANDABLE + f"a 0 512 1\n{prefix}\n{end}\na 1 512 1\n{unchanged_pages}")
            # Allocations of other streams do not use the pool, unless the streams join the capture.
            self.expect_agreement(EXPANDABLE + f"a 0 512 2\n{prefix}\na 1 512 2\n{unchanged_pages}{end}\n")
        self.expect_agreement(EXPANDABLE + f"a 0 512 2\ncb 7 1\nw 2 1\na 1 512 2\n{two_pages}ce 7\n")
        self.expect_agreement(EXPANDABLE + f"a 0 512 2\npb 7 1\nw 2 1\na 1 512 2\n{unchanged_pages}pe 7\n")
        self.expect_agreement(EXPANDABLE + f"a 0 512 1\na 1 512 1 7\n{two_pages}")

    def test_pool_keeps_its_pages_until_it_is_released(self):
        prefix = EXPANDABLE + "a 0 512 0 7\nf 0\ny *\ne\n= 0 0 0 2097152 0 0 0 0 0\n"
        self.expect_agreement(prefix + "pr 7\ny *\ne\n= 0 0 0 0 0 0 0 0 0\n")

    def test_times_of_any_size_are_valid(self):
        self.replay_json("@ 1000\na 0 512 0\n@ 5000000\nf 0\n@ 9000000000000000\n")


class Clock(ReplayTest):
    # 100 MiB, allocated for one second and then idle for nine seconds.
    IDLE = "@ 5000000\na 0 104857600 0\n@ 6000000\nf 0\n@ 15000000\n"

    def test_clock_adds_keys_to_the_json(self):
        self.assertEqual(list(self.replay_json(self.IDLE)), KEYS + CLOCK_KEYS)
        self.assertEqual(list(self.replay_json("a 0 512 0\nm request 1\n")), KEYS)

    def test_memory_is_weighted_by_time(self):
        result = self.replay_json(self.IDLE)
        self.assertAlmostEqual(result["allocated_time_avg"], 10 * MIB, delta=MIB / 100)
        self.assertAlmostEqual(result["reserved_time_avg"], 100 * MIB, delta=MIB / 100)
        self.assertEqual(self.replay_json("@ 7\na 0 512 0\n@ 7\n")["allocated_time_avg"], 0)

    def test_idle_memory_is_released_by_the_clock_of_the_trace(self):
        config = ("--config", "idle_ms:2000")
        result = self.replay_json(self.IDLE, *config)
        # 100 MiB for one second, and none after at most three more seconds: at most 40 MiB on average over ten seconds.
        self.assertLess(result["reserved_time_avg"], 40 * MIB)
        self.assertGreater(result["reserved_time_avg"], 20 * MIB)
        self.assertGreater(self.replay_json(self.IDLE, *config, "--tick", "0")["reserved_time_avg"], 80 * MIB)
        self.assertLess(self.replay_json(self.IDLE, *config, "--tick", "10")["reserved_time_avg"], result["reserved_time_avg"])
        with_thread = self.replay_json(self.IDLE, "--config", "idle_ms:2000,background_thread:True")
        for key in CLOCK_KEYS:
            self.assertEqual(with_thread[key], result[key])

    def test_calls_run_decay_passes_without_ticks(self):
        text = "@ 0\na 0 104857600 0\nf 0\n"
        for second in range(1, 11):
            text += f"@ {second}000000\na {second} 512 0\nf {second}\n"
        self.assertLess(self.replay_json(text, "--config", "idle_ms:2000", "--tick", "0")["reserved_time_avg"], 40 * MIB)

    def test_longest_call_and_request_are_reported(self):
        text = ("@ 0\nm request 1\na 0 20971520 0\nm idle\na 1 41943040 0\n"
                "m request 2\na 2 20971520 0\nm request 1\na 3 20971520 0\n@ 1\n")
        result = self.replay_json(text)
        page_us = self.replay_json("@ 0\na 0 20971520 0\n")["max_operation_us"]
        self.assertEqual(result["requests"], 2)
        self.assertGreater(result["max_operation_us"], page_us)
        # Request 1 maps two pages, the second one without a reservation; operations between its parts do not count.
        self.assertGreater(result["max_request_us"], 1.5 * page_us)
        self.assertLess(result["max_request_us"], 2 * page_us)
        self.assertEqual(self.replay_json("@ 0\na 0 512 0\n")["requests"], 0)

    def test_synchronizations_of_requests_are_counted(self):
        # Device memory is exhausted while the stream of the pending block is busy, so the allocation waits.
        text = "d 100\n@ 0\na 0 62914560 0\nu 0 1\nf 0\na 1 62914560 0\n"
        self.assertGreaterEqual(self.replay_json(EXPANDABLE + text)["request_path_syncs"], 1)
        text = EXPANDABLE + "d 100\n@ 0\na 0 62914560 0\nu 0 1\nf 0\n"
        result = self.replay_json(text + "e\na 1 62914560 0\n")
        self.assertGreater(sum(result["driver_calls"][name] for name in ("cuStreamSynchronize", "cuEventSynchronize")), 0)
        self.assertEqual(result["request_path_syncs"], 0)

    def test_timeline_is_sampled_by_time(self):
        path = self.folder / "timeline"
        self.replay_json(self.IDLE, "--config", "idle_ms:2000", "--timeline", path)
        lines = path.read_text().splitlines()
        self.assertEqual(lines[0].split("\t"), ["# usec", "requested", "allocated", "reserved", "addresses", "host", "objects"])
        rows = [list(map(int, line.split("\t"))) for line in lines[1:]]
        self.assertEqual([row[0] for row in rows], [5000 * (i + 1) for i in range(2000)])
        self.assertEqual((rows[100][2], rows[100][3], rows[-1][2], rows[-1][3]), (100 * MIB, 100 * MIB, 0, 0))
        self.assertGreater(rows[-1][4], 0)
        # Five pages of 20 MiB and the reservation of the segment; only the reservation after the decay.
        self.assertEqual((rows[100][6], rows[-1][6]), (6, 1))

    def test_invalid_ticks_are_rejected(self):
        for text in ("soon", "-1", "1.5", "99999999999999999999"):
            self.assertIn("--tick takes a whole number", self.replay("--tick", text, self.file(self.IDLE), status=2).stderr)


class Explain(ReplayTest):
    TEXT = ("@ 0\na 0 31457280 0\na 1 3000 1\na 2 5000000 0\na 3 20971520 2\nu 3 5\nf 3\n"
            "a 4 52428800 0\nf 4\na 5 20971520 0 7\nf 5\n@ 1000000\n")

    def test_json_has_the_sizes_by_reason(self):
        sizes = self.replay_json(EXPANDABLE + self.TEXT, "--explain")["explained"]
        self.assertEqual(sizes.pop("in_allocated_blocks"), 31457280 + 3072 + 5000192)
        self.assertEqual(sizes["reserved"] * 2, sum(sizes.values()))
        # In MiB: pages with blocks 0, 1 and 2 (2 * 20 + 2), with block 3, with block 5, and three pages that block 4 used.
        self.assertEqual({kind: size // MIB for kind, size in sizes.items() if size},
                         {"allocated": 42, "pending": 20, "pool": 20, "policy": 60, "reserved": 142})
        self.assertNotIn("explained", self.replay_json(self.TEXT))

    def test_text_report_has_reasons_and_places(self):
        text = self.replay("--explain", "--config", "idle_ms:60000", self.file(self.TEXT)).stdout
        for message in (r"29\.58 %     42.00 MiB  contains an allocated block",
                        r"20.00 MiB at 0x[0-9a-f]+, large segment, stream 0: 2 allocated blocks",
                        r"stream 2: a block of 20.00 MiB waits for stream 5", r"large segment, private pool, stream 0",
                        r"60.00 MiB  idle, released by decay", r"100.00 %    142.00 MiB  reserved"):
            self.assertRegex(text, message)

    def test_report_has_the_ages_of_blocks(self):
        path = self.file("@ 0\na 0 9437184 0\n@ 60000000\na 1 3145728 0\n@ 61000000\n")
        message = ": 2 allocated blocks cover 12.00 MiB, the largest 9.00 MiB"
        self.assertIn(message + ", allocated 61.0 s ago\n", self.replay("--explain", "--config", "history:state", path).stdout)
        self.assertIn(message + "\n", self.replay("--explain", path).stdout)
        results = self.replay("--explain", "--config", "history:state,idle_ms:90000", path).stdout
        self.assertRegex(results, message + r", allocated 61.0 s ago; no block freed here for 6\d.\d s\n")

    def test_report_is_printed_after_an_out_of_memory_error(self):
        path = self.file("a 0 94371840 0\na 1 94371840 0\n")
        self.assertIn("contains an allocated block", self.replay("--explain", "--device-memory", "100MiB", path, status=3).stdout)


class SmallestDevice(ReplayTest):
    def test_single_block_needs_its_page_size(self):
        result = self.replay_json("a 0 104857600 0\n", "--min-device")
        self.assertLessEqual(result["min_device"], 102 * MIB)
        self.assertGreaterEqual(result["min_device"], 100 * MIB)

    def test_trace_completes_on_the_minimum_device(self):
        trace = ROOT / "benchmarks/traces/moe_train.xtrace.zst"
        for value in ("False", "True"):
            config = ("--config", "expandable_segments:" + value)
            report = self.json("--min-device", *config, trace)
            min_device, peak = report["min_device"], report["peak_requested"]
            self.replay("--device-memory", min_device, *config, trace)
            # A slightly smaller device may suffice; a device that is smaller than the peak of requested bytes cannot.
            self.replay("--device-memory", peak - peak // 1000, *config, trace, status=3)

    def test_minimum_is_found_from_a_smaller_device(self):
        result = self.replay_json("a 0 104857600 0\na 1 104857600 0\n", "--min-device", "--device-memory", "50MiB", status=3)
        self.assertEqual(result["oom_at"], 0)
        self.assertAlmostEqual(result["min_device"], 201 * MIB, delta=MIB)

    def test_minimum_device_may_not_exist(self):
        for text in ("a 0 18446744073709551615 0\n", "a 1 100 0\na 2 4611686018427387904 0\n"):
            self.assertIsNone(self.replay_json(text, "--min-device", status=3)["min_device"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
