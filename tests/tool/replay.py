# SPDX-License-Identifier: MIT
"""The command `xseg replay` as a user runs it: replay.py TOOL SOURCE_ROOT."""
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

    def replay(self, *arguments, **more):
        return self.tool("replay", *arguments, **more)

    def json(self, *arguments, **more):
        return json.loads(self.replay("--json", *arguments, **more).stdout)

    def figures(self, text, *options, status=0):
        return self.json(*options, self.file(text), status=status)

    def agrees(self, text):
        done = self.replay("--check", self.file(text))
        steps = sum(line.startswith("=") for line in text.splitlines())
        self.assertIn(f"\n{steps:,} of {steps:,} {'recorded result agrees' if steps == 1 else 'recorded results agree'}\n", done.stdout)


class BadInput(ReplayTest):
    def refused(self, path, line, words):
        done = self.replay(path, status=2)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, rf"\A{re.escape(str(path))}{line and f':{line}'}: [^\n]*{words}[^\n]*\n\Z")

    def test_files(self):
        for contents, line, words in (
                (b"", "", "the file is empty"),
                (b"\0" * 100, "", "binary data of no known format"),
                (b"xtrace 1\n\0\n", 2, "NUL"),
                (b"xtrace 1\na 0 512 0\nf 0\nf 0\n", 4, "block 0 was freed on line 3"),
                (b"xtrace 1\na 0 512 0\nf 0\nu 0 1\n", 4, "block 0 was freed on line 3"),
                (b"xtrace 1\na 0 512 0\na 0 512 0\n", 3, "never used twice"),
                (b"xtrace 1\na 0 99999999999999999999 0\n", 2, "64 bits"),
                (b"xtrace 1\na 0 512 0\n! oom\nf 0\n", 4, "failed"),
                (b"xtrace 1\n#" + b"x" * 100000 + b"\n", 2, "longer"),
                (b"xtrace 1\nf 184467440737095516\n", 2, "never allocated"),
                (b"xtrace 1\na 0 51", 2, "middle of a line"),
                (b"xtrace 1\n" + b"\xff" * 30 + b"\n", 2, "unknown operation, "),
                (b"\x28\xb5\x2f\xfd" + b"\xff" * 50, 1, "compressed data is damaged"),
                (b"\x28\xb5\x2f\xfd", 1, "is truncated")):
            with self.subTest(contents[:60]):
                self.refused(self.file(contents), line, words)

    def test_bytes_at_random(self):
        dice = random.Random(7)
        for size in (1, 10, 1000, 100000):
            for head in (b"", b"xtrace 1\n", b"\x28\xb5\x2f\xfd"):
                self.refused(self.file(head + dice.randbytes(size)), r"\d+" if head else "", "")

    def test_truncated_and_damaged_traces(self):
        whole = (ROOT / "benchmarks/traces/decode_graphs.xtrace.zst").read_bytes()
        for cut in (5, 100, len(whole) // 2, len(whole) - 1):
            self.refused(self.file(whole[:cut], "cut.zst"), r"\d+", "is truncated")
        middle = len(whole) // 2
        damaged = whole[:middle] + bytes(64) + whole[middle + 64:]
        self.refused(self.file(damaged, "damaged.zst"), r"\d+", "")

    def test_files_that_cannot_be_read(self):
        self.assertIn("nowhere: cannot be opened: No such file", self.replay(self.folder / "nowhere", status=2).stderr)
        self.refused(self.folder, "", "it is a folder")

    def test_a_bad_file_does_not_stop_the_others(self):
        good, bad = self.file("a 0 512 0\n"), self.file("x\n", "bad")
        done = self.replay("--json", bad, good, status=2)
        self.assertEqual([one["trace"] for one in json.loads(done.stdout)], [str(good)])

    def test_arguments(self):
        good = self.file("a 0 512 0\n")
        for arguments, words in (
                ((), "needs a file"),
                (("--nothing", good), "unrecognized option"),
                (("--check=maybe", good), "exact or floor"),
                (("--check", good), "no `=` line"),
                (("--driver", "metal", good), "sim or cuda"),
                (("--costs", "./none.costs", good), "xseg_sim_reset: costs: ./none.costs, cannot open the file"),
                (("--driver", "cuda", "--min-device", good), "cannot be combined"),
                (("--driver", "cuda", "--costs", "none", good), "cannot be combined"),
                (("--device-memory", "much", good), "such as 900MiB"),
                (("--device-memory", "-5", good), "such as 900MiB"),
                (("--device-memory", "1MB", good), "such as 900MiB"),
                (("--device-memory", "900", good), "less than 2MiB"),
                (("--device-memory", "99999999999999999999", good), "exceeds the memory of any"),
                (("--costs", "free", good), "takes none, a100"),
                (("--config", "max_split_size_mb:19", good), "max_split_size_mb"),
                (("--config", "nonsense", good), "nonsense"),
                (("--check", "--compare", "", good), "--compare"),
                (("--timeline", self.folder / "no/where", good), "cannot be written"),
                (("--device", "0", good), "this file is a trace"),
                (("--device", "1024", good), "from 0 to 1023"),
                (("--timeline", self.folder / "out", good, good), "requires a single FILE")):
            with self.subTest(arguments):
                done = self.replay(*arguments, status=2)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_a_bad_configuration_in_the_file(self):
        self.assertIn("max_split_size_mb",
                      self.replay(self.file("c max_split_size_mb:x\na 0 512 0\n"), status=2).stderr)

    def test_the_tool_itself(self):
        for arguments, status, words in (((), 2, "usage"), (("--help",), 0, "usage"),
                                         (("replay", "--help"), 0, "--min-device"),
                                         (("--version",), 0, "xseg 0."), (("fly",), 2, "'fly'")):
            done = self.tool(*arguments, status=status)
            self.assertIn(words, done.stdout + done.stderr)


class Figures(ReplayTest):
    def test_keys(self):
        one = self.figures("a 0 1000 0\na 1 30000000 0\nf 0\nf 1\na 2 5 0\n")
        self.assertEqual(list(one), KEYS)
        self.assertEqual(one, one | {
            "events": 5, "oom_at": -1, "peak_requested": 30001000, "peak_allocated": 30000128 + 1024,
            "peak_active": 30000128 + 1024, "peak_reserved": 42 * MIB, "checked": 0, "mismatches": 0,
            "min_device": None})
        self.assertEqual(one["driver_calls"]["cuMemCreate"], 3)
        self.assertGreater(min(one["driver_us"], one["ns_per_event"]), 0)

    def test_running_out_of_memory_writes_no_snapshot(self):
        folder = self.folder / "oom"
        folder.mkdir()
        path = self.file(f"c expandable_segments:True,oom_snapshot:{folder}\nd 20\na 1 {40 * MIB} 0\n")
        for environment in ({}, {"XSEG_OOM_SNAPSHOT": str(folder)}):
            self.replay(path, status=3, environment=environment)
            self.assertEqual(list(folder.iterdir()), [])

    def test_empty_trace(self):
        one = self.figures("")
        self.assertEqual((one["events"], one["peak_reserved"], one["driver_us"]), (0, 0, 0))
        self.assertFalse(any(one["driver_calls"].values()))

    def test_sizes_that_no_device_has(self):
        self.assertEqual(self.figures("a 0 0 0\na 1 18446744073709551615 0\n", status=3)["oom_at"], 1)

    def test_repeatable(self):
        path = ROOT / "benchmarks/traces/decode_graphs.xtrace.zst"
        runs = [self.json(path) for _ in range(2)]
        for run in runs:
            del run["ns_per_event"]
        self.assertEqual(*runs)

    def test_costs(self):
        text = "a 0 1000000000 0\n"
        self.assertEqual(self.figures(text, "--costs", "none")["driver_us"], 0)
        self.assertNotEqual(self.figures(text, "--costs", "a100")["driver_us"],
                            self.figures(text, "--costs", "rocm_slow")["driver_us"])

    def test_several_files(self):
        paths = [self.file("a 0 512 0\n", name) for name in ("one", "two")]
        both = self.json(*paths)
        self.assertEqual([one["trace"] for one in both], list(map(str, paths)))

    def test_compare(self):
        path = self.file("a 0 30000000 0\n")
        both = self.json("--compare", "expandable_segments:False", path)
        self.assertEqual([one["peak_reserved"] // MIB for one in both], [40, 30])
        text = self.replay("--compare", "expandable_segments:False", path).stdout
        self.assertRegex(text, r"peak reserved +40.00 MiB +30.00 MiB\n")

    def verdict(self, text, *options, status=0):
        return self.replay(*options, self.file(text), status=status).stdout.splitlines()[-1]

    def test_verdicts(self):
        text = "a 0 30000000 0\nf 0\n"
        same = r"\AB reserves the same amount and makes the same number of driver calls\Z"
        for trace, other, verdict in (
                (text, "False",
                 r"\AB reserves 10\.00 MiB less and makes [\d,]+ driver calls? instead of [\d,]+\Z"),
                ("c \n" + text, "True", r"\AB reserves 10\.00 MiB more and makes "), (text, "True", same),
                ("", "False", same)):
            self.assertRegex(self.verdict(trace, "--compare", "expandable_segments:" + other), verdict)

    def test_verdicts_count_driver_calls(self):
        grow = "".join(f"a {i} 30000000 0\n" for i in range(40))
        both = self.json("--compare", "expandable_segments:False", self.file(grow))
        sums = [sum(one["driver_calls"].values()) for one in both]
        self.assertGreater(max(sums), 1.05 * min(sums))
        self.assertTrue(self.verdict(grow, "--compare", "expandable_segments:False").endswith(
            f" and makes {sums[1]:,} driver calls instead of {sums[0]:,}"))

    def test_verdicts_under_shortage(self):
        text = "d 44\na 0 31457280 0\na 1 10485760 0\n"
        for one, other, verdict in (
                ("", "hard_limit_mb:34", "B runs out of memory at event 1, A does not"),
                ("hard_limit_mb:34", "expandable_segments:False", "A runs out of memory at event 1, B does not"),
                ("hard_limit_mb:34", "hard_limit_mb:20", "both run out of memory: A at event 1, B at event 0")):
            self.assertEqual(self.verdict(text, "--config", one, "--compare", other, status=3), verdict)

    def test_one_unit_a_row(self):
        path = self.file("a 0 1000 0\nf 0\na 1 100000000000 0\n")
        text = self.replay("--device-memory", "200GiB", "--compare", "hard_limit_mb:100", path, status=3).stdout
        self.assertRegex(text, r"peak reserved +93\.\d\d GiB +< 0\.01 GiB\n")
        units = re.findall(r"^  peak \w+ +[\d.]+ (\w+) +(?:< )?[\d.]+ (\w+)$", text, re.MULTILINE)
        self.assertEqual(len(units), 4)
        for first, second in units:
            self.assertEqual(first, second)

    def test_driver_calls_by_name_only_when_asked_for(self):
        path = self.file("a 0 30000000 0\n")
        few, all_ = (self.replay(*option, path).stdout for option in ((), ("-v",)))
        self.assertNotIn("cuMem", few)
        self.assertRegex(few, r"\n  driver calls +\d+\n")
        self.assertEqual(self.replay("--verbose", path).stdout.count("\n    cu"), all_.count("\n    cu"))
        named = dict(re.findall(r"^    (cu\w+) +([\d,]+)$", all_, re.MULTILINE))
        total = int(re.search(r"  driver calls +(\d+)", few)[1])
        self.assertEqual(sum(map(int, named.values())), total)
        # Figures end in one column, whatever the names are.
        figures = [line for line in all_.splitlines() if re.search(r"  \d+$", line)]
        self.assertGreater(len(figures), 5)
        self.assertEqual(len(set(map(len, figures))), 1)

    def test_standard_input(self):
        one = self.json("-", stdin_data=b"xtrace 1\na 0 512 0\n")
        self.assertEqual((one["trace"], one["events"]), ("standard input", 1))
        packed = (ROOT / "benchmarks/traces/moe_train.xtrace.zst").read_bytes()
        self.assertGreater(self.json("-", stdin_data=packed)["events"], 1000)
        done = self.replay("-", stdin_data=b"xtrace 1\nx\n", status=2)
        self.assertTrue(done.stderr.startswith("standard input:2: "), done.stderr)
        done = self.replay("-", "-", stdin_data=b"xtrace 1\na 0 512 0\n", status=2)
        self.assertIn("standard input can be read only once", done.stderr)

    def test_the_timeline_on_standard_output(self):
        path, out = self.file("a 0 512 0\nf 0\n"), self.folder / "timeline"
        table = self.replay("--timeline", out, path).stdout
        done = self.replay("--timeline", "-", path)
        self.assertEqual(done.stdout, out.read_text())
        self.assertEqual(done.stderr.splitlines()[:5], table.splitlines()[:5])
        done = self.replay("--json", "--timeline", "-", path)
        self.assertEqual(json.loads(done.stderr)["events"], 2)
        self.assertEqual(done.stdout, out.read_text())

    def test_timeline(self):
        out = self.folder / "timeline"
        trace = ROOT / "benchmarks/traces/moe_train.xtrace.zst"
        one = self.json("--timeline", out, trace)
        rows = [list(map(int, line.split("\t"))) for line in out.read_text().splitlines() if not line.startswith("#")]
        self.assertLessEqual(len(rows), 2000)
        self.assertGreater(len(rows), 1000)
        self.assertEqual(rows[-1][0], one["events"])
        self.assertEqual([max(column) for column in zip(*rows)][1:],
                         [one["peak_requested"], one["peak_allocated"], one["peak_reserved"]])

    def test_marks(self):
        out = self.folder / "timeline"
        self.replay("--timeline", out, self.file("a 0 512 0\nm a step\nf 0\n"))
        self.assertEqual(out.read_text().splitlines(),
                         ["# event\trequested\tallocated\treserved", f"1\t512\t512\t{2 * MIB}",
                          "# mark\t1\ta step", f"2\t0\t0\t{2 * MIB}"])

    def test_peaks_are_pytorchs(self):
        reference = json.loads((ROOT / "benchmarks/traces/reference.json").read_text())
        for name, modes in reference.items():
            path = ROOT / f"benchmarks/traces/{name}.xtrace.zst"
            for mode, switch in (("classic", "False"), ("expandable", "True")):
                with self.subTest(name, mode=mode):
                    one = self.json("--config", "expandable_segments:" + switch, path)
                    for key in ("events", "peak_requested", "peak_allocated", "peak_reserved"):
                        self.assertEqual(one[key], modes[mode][key], key)


class Configuration(ReplayTest):
    """An explicit switch, then the file's lines, then the defaults."""

    def config(self, text, *options):
        one = self.figures(text + "a 0 30000000 0\n", *options)
        return one["config"], one["driver_calls"]["cuMemAlloc"] == 0

    def test_precedence(self):
        for text, options, config in (
                ("", (), ("", True)),
                ("c expandable_segments:True\n", (), ("expandable_segments:True", True)),
                ("c \n", (), ("expandable_segments:False", False)),
                ("c max_split_size_mb:64\n", (), ("max_split_size_mb:64,expandable_segments:False", False)),
                ("c \n", ("--config", "max_split_size_mb:64"), ("max_split_size_mb:64", True)),
                ("c \n", ("--config", ""), ("", True))):
            self.assertEqual(self.config(text, *options), config)

    def test_the_environment_does_not_count(self):
        path = self.file("a 0 30000000 0\n")
        one = self.json(path, environment={"XSEG_ALLOC_CONF": "expandable_segments:False", "XSEG_SIM_MEMORY_MB": "2"})
        self.assertEqual(one["driver_calls"]["cuMemAlloc"], 0)
        for options, config, message in (((), "idle_ms:5", "xseg replay: XSEG_ALLOC_CONF is ignored; set the configuration with --config\n"),
                                         (("--config", "idle_ms:6"), "idle_ms:5", ""), ((), "", "")):
            self.assertEqual(self.tool("replay", *options, path, environment={"XSEG_ALLOC_CONF": config}).stderr, message)

    def test_device_memory(self):
        text, large = "a 0 30000000 0\n", "a 0 90000000000 0\n"
        for trace, options, status in (
                ("d 40\n" + text, (), 0), ("d 20\n" + text, (), 3), ("d 20\n" + text, ("40MiB",), 0),
                ("d 40\n" + text, ("20M",), 3),
                (text, (40 * MIB,), 0), ("a 0 80000000000 0\n", (), 0), (large, (), 3), (large, ("1T",), 0)):
            with self.subTest(trace, options=options):
                self.figures(trace, *(("--device-memory",) if options else ()), *options, status=status)


class OutOfMemory(ReplayTest):
    def test_not_in_the_file(self):
        path = self.file("d 100\na 0 50000000 0\nf 0\na 1 900000000 0\na 2 512 0\n")
        done = self.replay("--json", path, status=3)
        one = json.loads(done.stdout)
        self.assertIn(f"{path}:5: out of memory", done.stderr)
        self.assertEqual((one["oom_at"], one["events"]), (2, 3))

    def test_in_the_file(self):
        one = self.figures("d 100\na 1 900000000 0\n! oom\na 2 512 0\nf 2\n")
        self.assertEqual((one["oom_at"], one["events"], one["failed"], one["failed_served"]), (-1, 3, 1, 0))

    def test_only_in_the_file(self):
        # The block is served and freed at once: the program never had it.
        text = "d 100\na 1 900 0\n! oom\na 2 60000000 0\nf 2\n"
        one = self.figures(text, "--config", "expandable_segments:False")
        self.assertEqual((one["oom_at"], one["peak_requested"]), (-1, 60000000))
        self.assertEqual((one["failed"], one["failed_served"]), (1, 1))
        self.assertIn("failed requests served              1 of 1\n", self.replay(self.file(text)).stdout)


class Checks(ReplayTest):
    TAPE = EXPANDABLE + ("a 0 1000 0\n= 1024 1024 0 2097152 1000 1 1 0 0\n"
                         "f 0\n= 0 0 0 2097152 0 0 0 0 0\n"
                         "s reserved_bytes 2097152 2097152 2097152 0"
                         " 2097152 2097152 2097152 0 0 0 0 0\n"
                         "s num_device_alloc 1\n")

    def test_all_steps_agree(self):
        self.agrees(self.TAPE)
        one = self.figures(self.TAPE, "--check=exact")
        self.assertEqual((one["checked"], one["mismatches"]), (2, 0))
        self.figures(self.TAPE, "--check", "--config", "expandable_segments:True")

    def test_differences_are_named(self):
        path = self.file(self.TAPE.replace("= 1024 1024 0 2097152 1000 1", "= 1024 1024 0 2097153 1000 7"))
        done = self.replay("--check", path, status=1)
        self.assertIn("\n1 of 2 recorded results agree\n", done.stdout)
        self.assertEqual(done.stderr, f"{path}:4: reserved_bytes is 2097152, expected 2097153\n"
                         f"{path}:4: allocation is 1, expected 7\n")

    def test_statistics_count(self):
        for old, new, name in (("s num_device_alloc 1", "s num_device_alloc 2", "num_device_alloc"),
                               ("2097152 0 0 0 0 0\n", "2097152 0 0 5 0 0\n", "reserved_bytes.large.peak"),
                               ("2097152 0 0 0 0 0\n", "2097152 9 0 0 0 0\n", "reserved_bytes.small.freed")):
            path = self.file(self.TAPE.replace(old, new))
            done = self.replay("--check", path, status=1)
            self.assertIn(f": {name} is ", done.stderr)
            self.assertIn("\n1 of 2 recorded results agree\n", done.stdout)

    def test_many_differences_are_truncated(self):
        tape = EXPANDABLE + "= 1 1 1 1 1 1 1 1 1\n" * 5
        done = self.replay("--check", self.file(tape), status=1)
        self.assertEqual(len(done.stderr.splitlines()), 11)
        self.assertIn(": 35 more differences", done.stderr)

    def test_another_configuration_is_refused(self):
        for options in (("--config", "expandable_segments:False"), ("--config", "")):
            done = self.replay("--check", *options, self.file(self.TAPE), status=2)
            self.assertIn("expandable_segments:True", done.stderr)

    def test_memory_that_the_tape_did_not_have(self):
        path = self.file(EXPANDABLE + "a 0 1000 0\n! oom\n= 0 0 0 2097152 0 0 0 0 0\n")
        done = self.replay("--check", path, status=1)
        self.assertIn(":3: allocated 1,000 bytes, expected out of memory", done.stderr)
        self.assertIn("\n0 of 1 recorded result agrees\n", done.stdout)

    def test_floor(self):
        # Numbers do not count; where only xseg finds memory the comparison ends.
        wrong = "= 1 1 1 1 1 1 1 1 1\n"
        text = EXPANDABLE + "d 100\na 0 1000 0\n" + wrong + "f 0\n" + wrong
        done = self.replay("--check=floor", self.file(text))
        self.assertIn("\n1 of 1 recorded result agrees\n", done.stdout)
        parted = text + "a 1 1000 0\n! oom\n" + wrong + "a 2 900000000 0\na 3 512 0\nf 3\n"
        done = self.replay("--check=floor", self.file(parted))
        self.assertIn("\n1 of 1 recorded result agrees up to line 8, the first request that succeeds only in xseg\n", done.stdout)
        failing = text + "a 2 900000000 0\n" + wrong
        done = self.replay("--check=floor", self.file(failing), status=3)
        self.assertIn("\n1 of 2 recorded results agree\n", done.stdout)


class Behaviour(ReplayTest):
    # What block 1 of 512 bytes finds after block 0 was used on stream 1 and freed: an allocation
    # looks whether the stream has finished.
    FREE = "a 1 512 0\n= 512 512 0 2097152 512 1 1 0 0\n"
    PENDING = "a 1 512 0\n= 512 1024 0 2097152 1024 1 2 0 0\n"

    def test_a_used_block_waits_for_its_stream(self):
        begin = EXPANDABLE + "a 0 512 0\nu 0 1\nf 0\n= 0 512 0 2097152 512 0 1 0 0\n"
        for wait, found in (("", self.PENDING), ("y 2\n", self.PENDING), ("y 1\n", self.FREE), ("y *\n", self.FREE)):
            self.agrees(begin + wait + found)

    def test_work_and_waits_keep_a_stream_busy(self):
        begin = EXPANDABLE + "a 0 512 0\nu 0 1\ny 1\n"
        for queued, found in (("f 0\n", self.FREE), ("k 1\nf 0\n", self.PENDING), ("w 1 2\nf 0\n", self.FREE),
                              ("k 2\nw 1 2\nf 0\n", self.PENDING), ("k 2\nw 1 2\nf 0\ny 2\n", self.PENDING),
                              ("k 2\nw 1 2\nf 0\ny 1\n", self.FREE)):
            self.agrees(begin + queued + found)

    def test_work_of_a_capture_keeps_no_stream_busy(self):
        begin = EXPANDABLE + "a 0 512 0\nu 0 1\ny 1\ncb 7 3\n"
        for queued in ("k 1\n", "u 0 1\n", "k 2\nw 1 2\n"):
            self.agrees(begin + queued + "ce 7\nf 0\n" + self.FREE)

    def test_a_flush_ends_work(self):
        # `e` waits for the pending block and gives its page back.
        self.agrees(EXPANDABLE + "a 0 512 0\nu 0 1\nf 0\ne\n= 0 0 0 0 0 0 0 0 0\n")

    def test_pools(self):
        two = "= 1024 1024 0 4194304 1024 2 2 0 0\n"
        one = "= 1024 1024 0 2097152 1024 2 2 0 0\n"
        for begin, end in (("pb 7 1", "pe 7"), ("cb 7 1", "ce 7")):
            self.agrees(EXPANDABLE + f"a 0 512 1\n{begin}\na 1 512 1\n{two}{end}\n")
            self.agrees(EXPANDABLE + f"a 0 512 1\n{begin}\n{end}\na 1 512 1\n{one}")
            # Other streams stay where they are, unless they join a capture.
            self.agrees(EXPANDABLE + f"a 0 512 2\n{begin}\na 1 512 2\n{one}{end}\n")
        self.agrees(EXPANDABLE + f"a 0 512 2\ncb 7 1\nw 2 1\na 1 512 2\n{two}ce 7\n")
        self.agrees(EXPANDABLE + f"a 0 512 2\npb 7 1\nw 2 1\na 1 512 2\n{one}pe 7\n")
        self.agrees(EXPANDABLE + f"a 0 512 1\na 1 512 1 7\n{two}")

    def test_a_pool_is_held_until_it_is_released(self):
        begin = EXPANDABLE + "a 0 512 0 7\nf 0\ny *\ne\n= 0 0 0 2097152 0 0 0 0 0\n"
        self.agrees(begin + "pr 7\ny *\ne\n= 0 0 0 0 0 0 0 0 0\n")

    def test_the_clock(self):
        self.figures("@ 1000\na 0 512 0\n@ 5000000\nf 0\n@ 9000000000000000\n")


class Clock(ReplayTest):
    # 100 MiB, live for a second and then idle for nine.
    IDLE = "@ 5000000\na 0 104857600 0\n@ 6000000\nf 0\n@ 15000000\n"

    def test_keys(self):
        self.assertEqual(list(self.figures(self.IDLE)), KEYS + CLOCK_KEYS)
        self.assertEqual(list(self.figures("a 0 512 0\nm request 1\n")), KEYS)

    def test_memory_is_weighted_by_time(self):
        one = self.figures(self.IDLE)
        self.assertAlmostEqual(one["allocated_time_avg"], 10 * MIB, delta=MIB / 100)
        self.assertAlmostEqual(one["reserved_time_avg"], 100 * MIB, delta=MIB / 100)
        self.assertEqual(self.figures("@ 7\na 0 512 0\n@ 7\n")["allocated_time_avg"], 0)

    def test_idle_memory_is_released_by_the_clock_of_the_trace(self):
        config = ("--config", "idle_ms:2000")
        one = self.figures(self.IDLE, *config)
        # All of it for the second that it is live, then none after at most three more.
        self.assertLess(one["reserved_time_avg"], 40 * MIB)
        self.assertGreater(one["reserved_time_avg"], 20 * MIB)
        self.assertGreater(self.figures(self.IDLE, *config, "--tick", "0")["reserved_time_avg"], 80 * MIB)
        self.assertLess(self.figures(self.IDLE, *config, "--tick", "10")["reserved_time_avg"], one["reserved_time_avg"])
        thread = self.figures(self.IDLE, "--config", "idle_ms:2000,background_thread:True")
        for key in CLOCK_KEYS:
            self.assertEqual(thread[key], one[key])

    def test_calls_run_decay_passes_without_ticks(self):
        text = "@ 0\na 0 104857600 0\nf 0\n"
        for second in range(1, 11):
            text += f"@ {second}000000\na {second} 512 0\nf {second}\n"
        self.assertLess(self.figures(text, "--config", "idle_ms:2000", "--tick", "0")["reserved_time_avg"], 40 * MIB)

    def test_the_longest_call_and_request(self):
        text = ("@ 0\nm request 1\na 0 20971520 0\nm idle\na 1 41943040 0\n"
                "m request 2\na 2 20971520 0\nm request 1\na 3 20971520 0\n@ 1\n")
        one = self.figures(text)
        page = self.figures("@ 0\na 0 20971520 0\n")["max_operation_us"]
        self.assertEqual(one["requests"], 2)
        self.assertGreater(one["max_operation_us"], page)
        # Both pages of request 1, the second without a reservation; not what came in between.
        self.assertGreater(one["max_request_us"], 1.5 * page)
        self.assertLess(one["max_request_us"], 2 * page)
        self.assertEqual(self.figures("@ 0\na 0 512 0\n")["requests"], 0)

    def test_waits_on_the_path_of_a_request(self):
        # Device memory runs out while the pending block's stream works: the allocation waits.
        text = "d 100\n@ 0\na 0 62914560 0\nu 0 1\nf 0\na 1 62914560 0\n"
        self.assertGreaterEqual(self.figures(EXPANDABLE + text)["request_path_syncs"], 1)
        text = EXPANDABLE + "d 100\n@ 0\na 0 62914560 0\nu 0 1\nf 0\n"
        one = self.figures(text + "e\na 1 62914560 0\n")
        self.assertGreater(sum(one["driver_calls"][name] for name in ("cuStreamSynchronize", "cuEventSynchronize")), 0)
        self.assertEqual(one["request_path_syncs"], 0)

    def test_the_timeline_is_one_of_time(self):
        path = self.folder / "timeline"
        self.figures(self.IDLE, "--config", "idle_ms:2000", "--timeline", path)
        lines = path.read_text().splitlines()
        self.assertEqual(lines[0].split("\t"), ["# usec", "requested", "allocated", "reserved",
                                                "addresses", "host", "objects"])
        rows = [list(map(int, line.split("\t"))) for line in lines[1:]]
        self.assertEqual([row[0] for row in rows], [5000 * (i + 1) for i in range(2000)])
        self.assertEqual((rows[100][2], rows[100][3], rows[-1][2], rows[-1][3]), (100 * MIB, 100 * MIB, 0, 0))
        self.assertGreater(rows[-1][4], 0)
        self.assertEqual((rows[100][6], rows[-1][6]), (6, 1))

    def test_bad_ticks(self):
        for text in ("soon", "-1", "1.5", "99999999999999999999"):
            done = self.replay("--tick", text, self.file(self.IDLE), status=2)
            self.assertIn("--tick takes a whole number", done.stderr)


class Explain(ReplayTest):
    TEXT = ("@ 0\na 0 31457280 0\na 1 3000 1\na 2 5000000 0\na 3 20971520 2\nu 3 5\nf 3\n"
            "a 4 52428800 0\nf 4\na 5 20971520 0 7\nf 5\n@ 1000000\n")

    def test_json(self):
        why = self.figures(EXPANDABLE + self.TEXT, "--explain")["explained"]
        self.assertEqual(why.pop("live_itself"), 31457280 + 3072 + 5000192)
        self.assertEqual(why["reserved"] * 2, sum(why.values()))
        self.assertEqual({kind: size // MIB for kind, size in why.items() if size},
                         {"live": 42, "pending": 20, "pool": 20, "policy": 60, "reserved": 142})
        self.assertNotIn("explained", self.figures(self.TEXT))

    def test_words(self):
        text = self.replay("--explain", "--config", "idle_ms:60000", self.file(self.TEXT)).stdout
        for words in (r"29\.58 %  42.00 MiB  contains an allocated block",
                      r"20.00 MiB at 0x[0-9a-f]+, large, stream 0: 2 allocated blocks",
                      r"stream 2: a block of 20.00 MiB waits for stream 5", r"large, private pool, stream 0",
                      r"60.00 MiB  idle, released by decay", r"100.00 %  142.00 MiB  reserved"):
            self.assertRegex(text, words)

    def test_ages_of_blocks(self):
        path = self.file("@ 0\na 0 9437184 0\n@ 60000000\na 1 3145728 0\n@ 61000000\n")
        words = ": 2 allocated blocks cover 12.00 MiB; the largest has 9.00 MiB"
        self.assertIn(words + ", allocated 61.0 s ago\n",
                      self.replay("--explain", "--config", "history:state", path).stdout)
        self.assertIn(words + "\n", self.replay("--explain", path).stdout)
        both = self.replay("--explain", "--config", "history:state,idle_ms:90000", path).stdout
        self.assertRegex(both, words + r", allocated 61.0 s ago; no block freed here for 6\d.\d s\n")

    def test_out_of_memory(self):
        path = self.file("a 0 94371840 0\na 1 94371840 0\n")
        self.assertIn("contains an allocated block",
                      self.replay("--explain", "--device-memory", "100MiB", path, status=3).stdout)


class SmallestDevice(ReplayTest):
    def test_one_block(self):
        one = self.figures("a 0 104857600 0\n", "--min-device")
        self.assertLessEqual(one["min_device"], 102 * MIB)
        self.assertGreaterEqual(one["min_device"], 100 * MIB)

    def test_the_trace_fits_there_and_not_below(self):
        trace = ROOT / "benchmarks/traces/moe_train.xtrace.zst"
        for switch in ("False", "True"):
            config = ("--config", "expandable_segments:" + switch)
            report = self.json("--min-device", *config, trace)
            least, peak = report["min_device"], report["peak_requested"]
            self.replay("--device-memory", least, *config, trace)
            # A little less may do by chance; less than what is held at once never does.
            self.replay("--device-memory", peak - peak // 1000, *config, trace, status=3)

    def test_it_is_found_from_a_device_that_is_too_small(self):
        text = "a 0 104857600 0\na 1 104857600 0\n"
        one = self.figures(text, "--min-device", "--device-memory", "50MiB", status=3)
        self.assertEqual(one["oom_at"], 0)
        self.assertAlmostEqual(one["min_device"], 201 * MIB, delta=MIB)

    def test_minimum_device_may_not_exist(self):
        for text in ("a 0 18446744073709551615 0\n", "a 1 100 0\na 2 4611686018427387904 0\n"):
            self.assertIsNone(self.figures(text, "--min-device", status=3)["min_device"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
