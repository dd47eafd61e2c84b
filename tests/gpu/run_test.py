# SPDX-License-Identifier: MIT
"""tests/gpu/run as its users meet it: packed, in an empty place, without a network, on the simulated driver.

run_test.py SOURCE_ROOT BUILD_ROOT OLD_DRIVER BAD_DRIVER SANITIZERS
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

HEAD = "# SPDX-License-Identifier: MIT\n# title: {title}\n# seconds: {seconds}\n{text}\n"
ALONE = ["unshare", "-rn"]


def may_be_alone():
    """Whether a process may be cut off from the network here."""
    try:
        return subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


class Packed(unittest.TestCase):
    """Everything below starts from a copy of the packed folder."""

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.packed = pathlib.Path(cls.scratch.name) / "packed"
        subprocess.run([SOURCE / "tests/gpu/pack", "--builddir", BUILD, cls.packed], check=True,
                       stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "xseg-gpu"
        shutil.copytree(self.packed, self.folder, symlinks=True)
        self.out = pathlib.Path(folder.name) / "out"

    def steps(self, **steps):
        """These steps and no others: (seconds, text) by name, in this order."""
        shutil.rmtree(self.folder / "steps")
        (self.folder / "steps").mkdir()
        for number, (name, (seconds, text)) in enumerate(steps.items(), 1):
            (self.folder / f"steps/{number}-{name}").write_text(
                HEAD.format(title=f"The step {name}", seconds=seconds, text=text))

    def run_all(self, *options, status=0, before=(), **environment):
        """What the command prints; in an environment that has nothing but a path."""
        done = subprocess.run([*before, "bash", self.folder / "run", *options], text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, cwd="/", timeout=1100,
                              env={"PATH": "/usr/bin:/bin", **environment})
        self.assertEqual(done.returncode, status, done.stdout)
        return done.stdout

    def run_sim(self, *options, **more):
        """The command on the simulated driver, with its results in a known place."""
        return self.run_all("--driver", "sim", "--out", str(self.out), *options, **more)

    def report(self):
        """The report, as it is on disk."""
        return (self.out / "report.md").read_text()


class Whole(Packed):
    def test_from_a_packed_folder_without_a_network(self):
        said = self.run_sim("--minutes", "4", before=ALONE if may_be_alone() else ())
        report = self.report()
        for step in sorted((self.folder / "steps").iterdir()):
            self.assertIn(f"\n| {step.name.partition('-')[2]} | ", report)
        self.assertNotIn("not begun", report)
        self.assertNotIn("killed after", report)
        self.assertIn("Nothing that was asked.", report, said)


class Costs(Packed):
    """The step that measures calls."""

    def setUp(self):
        super().setUp()
        self.results = self.out / "costs"

    def table(self):
        """The figures, as lists of columns."""
        return [line.split("\t") for line in (self.results / "costs.tsv").read_text().splitlines()]

    def costs(self):
        """The keys of the file of costs."""
        file, = self.results.glob("*.costs")
        lines = [line.partition(" = ") for line in file.read_text().splitlines() if line[0] != "#"]
        return file, {key: value for key, _, value in lines}

    def test_a_preset_comes_out_as_itself(self):
        self.run_sim("--only", "costs", "--minutes", "1", XSEG_SIM_COSTS="consumer")
        file, costs = self.costs()
        self.assertEqual(file.name, "simulated-device-0.costs")
        self.assertEqual((costs["name"], costs["create"], costs["unmap_mapping"], costs["alloc"]),
                         ("Simulated device 0", "7600 150 0", "11500 0 0", "40000 180 60000"))
        self.assertFalse((self.results / "differs.md").exists())
        report = self.report()
        self.assertIn("All times are **modelled**, by the simulator's costs `consumer`", report)
        self.assertIn("; nearest is `consumer`", report)
        self.assertIn("| cuMemCreate of 2 MiB | 7.9 | 7.3 | 1.08 | 7.9 | 1.00 |", report)
        self.assertIn("| cuMemSetAccess | 128 | 4940.8 (4940.8 to 4940.8) | 38.6 |", report)
        self.assertIn("{.name = \"simulated_device_0\", .reserve = 9000, ", report)
        self.assertIn("<summary>costs/simulated-device-0.costs</summary>", report)
        pairs = [row for row in self.table() if row[4] == "2"]
        self.assertEqual(len(pairs), 12)
        self.assertTrue(all(int(row[10]) > 0 for row in pairs))
        done = subprocess.run([self.folder / "bin/xseg", "probe", "--costs", file], check=True, text=True,
                              capture_output=True, env={"LD_LIBRARY_PATH": str(self.folder / "lib")})
        self.assertIn(f"modelled ({file})", done.stdout)

    def test_what_there_is_no_memory_for_and_what_fails_is_named(self):
        said = self.run_sim("--only", "costs", "--minutes", "1", status=1, XSEG_SIM_MEMORY_MB="64",
                            XSEG_SIM_FAIL="cuMemAlloc:2+1:2")
        self.assertIn("done, with failures", said)
        report = self.report()
        self.assertIn("- no memory for sizes from 40 MiB on", report)
        self.assertIn("- **failed**: cuMemAlloc with CUDA_ERROR_OUT_OF_MEMORY (2), costs of 64 KiB", report)
        self.assertIn("- cuMemAlloc was not measured", report)
        self.assertIn("| cuMemCreate | 64 | - | there is no memory for it | - | - | - |", report)
        self.assertIn("| cuMemMap of 20 MiB | 2.0 | 2.0 | 1.00 |", report)
        for words in ("| cuMemMap of 512 MiB", "| cuMemAlloc of", "each of 128 pages"):
            self.assertNotIn(words, report)
        self.assertEqual(self.costs()[1]["create"], "7000 150 0")

    def test_another_driver_is_measured_and_disagrees(self):
        driver = self.folder.parent / "libcuda.so.1"
        shutil.copy(self.folder / "lib/libxseg-sim.so.0", driver)
        self.run_all("--driver", str(driver), "--out", str(self.out), "--only", "costs", "--minutes", "1",
                     status=1)
        report = self.report()
        self.assertIn("All times are **measured** on Simulated device 0", report)
        self.assertRegex(report.partition("## Steps")[0],
                         r"- cuMemAlloc of 512 MiB takes \d+\.\d us, and 132.2 us by the preset `a100`")

    def test_without_a_driver_it_says_why(self):
        self.run_all("--only", "costs", "--minutes", "1", "--out", str(self.out), status=2)
        self.assertIn("skipped: xseg probe: the driver cannot be loaded: libcuda.so.1", self.report())
        self.assertFalse((self.results / "costs.tsv").exists())


class Contents(Packed):
    """The step that checks what memory contains."""

    def only_contents(self, minutes, **environment):
        """What the step left in its folder."""
        self.run_sim("--only", "contents", "--minutes", minutes, **environment)
        return [line.split("\t") for line in (self.out / "contents/contents.tsv").read_text().splitlines()]

    def test_every_section_is_done_and_right(self):
        lines = self.only_contents("2")
        self.assertEqual([line[0] for line in lines if line[1:4] == ["end", "0", "ok"]],
                         ["selftest", "random", "pause", "capture", "share"])
        self.assertEqual({line[2] for line in lines if line[1] == "mismatches"}, {"0"})
        report = self.report()
        self.assertIn("Nothing that was asked.", report)
        self.assertIn("modelled: functions of the host stood for kernels", report)
        for section in ("selftest", "random", "pause", "capture", "share"):
            self.assertRegex(report, rf"\n\| {section} (\| [1-9]\d* ){{5}}\| 0 \|.*\| right \|\n")
        self.assertEqual([path.name for path in (self.out / "contents").glob("paused-*")], [])

    def test_a_card_without_virtual_memory_management(self):
        lines = self.only_contents("1", XSEG_SIM_VMM="0")
        self.assertEqual([line[0] for line in lines if line[1:4] == ["end", "0", "ok"]],
                         ["selftest", "random", "capture"])
        self.assertRegex(self.report(), r"\| pause .*\| skipped: the device has no virtual memory management \|")

    def test_little_memory(self):
        self.assertIn("skipped: 48 MiB of the device's memory are free, and the patterns need 64",
                      self.run_sim("--only", "contents", status=2, XSEG_SIM_MEMORY_MB="48"))

    def test_what_is_wrong_is_told_and_the_other_sections_are_there(self):
        program = self.folder / "bin/gpu-contents"
        program.rename(program.with_name("right"))
        program.write_text('#!/usr/bin/env bash\ncase $1 in\n'
                           'random) exec "${0%/*}/right" "$@" --corrupt ;;\n'
                           'pause) kill -SEGV $$ ;;\ncapture) trap "" ALRM; sleep 100 ;;\n'
                           '*) exec "${0%/*}/right" "$@" ;;\nesac\n')
        program.chmod(0o755)
        said = self.run_sim("--only", "contents", "--minutes", "2", status=1)
        self.assertIn("done, with failures", said)
        differs = (self.out / "contents/differs.md").read_text()
        self.assertRegex(differs, r"(?m)^- random: block \d+ of .* expected [0-9a-f]{16}, got [0-9a-f]{16}; last operations: ")
        self.assertIn("- pause: the section ended with status 139 and told nothing\n", differs)
        self.assertIn("- capture: the section ended with status 137 and told nothing\n", differs)
        for section in ("selftest", "share"):
            self.assertRegex(self.report(), rf"\n\| {section} .*\| right \|\n")


class Steps(Packed):
    GOOD = (45, "echo fine >$GPU_OUT/report.md; printf 'a\\t1\\n' >$GPU_OUT/raw.tsv")

    def test_a_step_that_hangs_is_killed_and_the_others_are_there(self):
        self.steps(first=self.GOOD, hangs=(9, "trap '' TERM; sleep 1000 & while :; do sleep 1; done"),
                   last=self.GOOD)
        began = time.monotonic()
        said = self.run_sim("--minutes", "1", status=1)
        self.assertLess(time.monotonic() - began, 30)
        self.assertIn("killed after 1 s", said)
        self.assert_both_are_there("the step did not end: killed after 1 s")

    def test_a_step_that_crashes_does_not_stop_the_others(self):
        self.steps(first=self.GOOD, crashes=(45, "echo half >$GPU_OUT/report.md; kill -SEGV $$"),
                   last=self.GOOD)
        self.run_sim(status=1)
        self.assert_both_are_there("the step did not end: failed with status 139")
        self.assertIn("\nhalf\n", self.report())

    def test_a_step_that_loses_the_device_does_not_stop_the_others(self):
        driver = self.folder.parent / "libcuda.so.1"
        shutil.copy(self.folder / "lib/libxseg-sim.so.0", driver)
        self.steps(first=self.GOOD, loses=(45, f"rm {driver}; exit 1"), last=self.GOOD)
        self.run_all("--driver", str(driver), "--out", str(self.out), status=1)
        self.assert_both_are_there("afterwards the device does not answer")

    def assert_both_are_there(self, complaint):
        report = self.report()
        self.assertIn(complaint, report.partition("## Steps")[0])
        for step in ("first", "last"):
            self.assertIn(f"## The step {step}\n\nfine\n", report)
            self.assertIn(f"<summary>{step}/raw.tsv</summary>", report)
            self.assertRegex(report, rf"\| {step} \| The step {step} \| \d+ \| done \|")

    def test_each_result_is_on_disk_before_the_next_step_begins(self):
        self.steps(first=self.GOOD, last=(45, "cp $GPU_OUT/../report.md $GPU_OUT/seen.tsv"))
        self.run_sim()
        seen = (self.out / "last/seen.tsv").read_text()
        self.assertIn("## The step first\n\nfine\n", seen)
        self.assertIn("| last | The step last | not begun |", seen.replace("| | not", "| not"))

    def test_what_disagrees_comes_first_and_shows_in_the_exit_status(self):
        self.steps(first=(45, "echo '- water is wet' >$GPU_OUT/differs.md"), last=self.GOOD)
        self.run_sim(status=1)
        self.assertRegex(self.report(), r"(?s)disagrees with the simulator\n\n\*\*first\*\*\n\n- water is wet\n.*## Steps")

    def test_a_step_that_cannot_run_says_why(self):
        self.steps(first=(45, "echo 'no kernels here'; exit 77"), last=self.GOOD)
        self.run_sim()
        self.assertIn("skipped: no kernels here", self.report())

    def test_a_step_finds_what_the_page_promises(self):
        self.steps(first=(90, "env | grep ^GPU_ >$GPU_OUT/env.tsv; ls $GPU_ROOT >>$GPU_OUT/env.tsv; "
                              "[ -f $XSEG_DRIVER ] && [ -z \"$XSEG_ALLOC_CONF\" ] && [ -f $GPU_SIMULATOR ]"))
        self.run_sim("--minutes", "3", XSEG_ALLOC_CONF="x", XSEG_SIM_MEMORY_MB="64")
        seen = (self.out / "first/env.tsv").read_text()
        for line in (f"GPU_OUT={self.out}/first", "GPU_SECONDS=30", "GPU_DRIVER=sim", "GPU_FREE_MIB=64",
                     "GPU_HAS_VMM=yes", f"GPU_ROOT={self.folder}", "traces", "bin", "lib"):
            self.assertIn(line + "\n", seen)


class Options(Packed):
    def test_list_names_each_step_and_its_time(self):
        self.steps(first=(45, "true"), last=(90, "true"))
        self.assertEqual(self.run_all("--list", "--minutes", "3"),
                         "first              15 s  The step first\n"
                         "last               30 s  The step last\n")

    def test_only_runs_what_is_named(self):
        self.steps(first=(45, "false"), last=(45, "true"))
        said = self.run_sim("--only", "last")
        self.assertNotIn("The step first", said + self.report())
        self.assertIn("no such step: other", self.run_sim("--only", "other", status=2))

    def test_a_wrong_option_is_named(self):
        for options, words in ((["--minutes", "0"], "from 1 to 60"), (["--minutes", "x"], "from 1 to 60"),
                               (["--minutes"], "needs a value"), (["--fast"], "no such option: --fast"),
                               (["--driver", "/none"], 'not "/none"')):
            with self.subTest(options):
                self.assertIn(words, self.run_all(*options, status=2))

    def test_help_is_the_header(self):
        self.assertIn("--minutes N", self.run_all("--help"))


class Machines(Packed):
    """What is wrong with a machine is said in a sentence, and what can run runs."""

    RUNS = (45, "echo fine >$GPU_OUT/report.md")

    def setUp(self):
        super().setUp()
        self.steps(first=self.RUNS)

    def test_no_driver(self):
        said = self.run_all("--out", str(self.out), status=1)
        self.assertIn("there is no driver: ", said)
        self.assertIn("there is no driver: ", self.report())
        self.assertIn("# xseg on no GPU\n", self.report())
        self.assertIn("\nfine\n", self.report())

    def test_a_driver_that_is_too_old(self):
        said = self.run_all("--driver", OLD_DRIVER, "--out", str(self.out), status=1,
                            XSEG_OLD_DRIVER="11080")
        self.assertRegex(said, "older than CUDA 11.0|CUDA 11.8, and the library needs 12.0")
        self.assertIn("\nfine\n", self.report())

    def test_a_card_without_virtual_memory_management(self):
        self.run_sim(XSEG_SIM_VMM="0")
        self.assertIn("| virtual memory management | no |", self.report())

    def test_another_process_holds_nearly_all_memory(self):
        self.run_sim(XSEG_SIM_MEMORY_MB="2")
        self.assertIn("0.00 GiB free", self.report())

    def test_a_folder_that_cannot_be_written_to(self):
        if os.geteuid() == 0:
            results = self.folder / "results"
            results.write_text("a file where a folder should be")
            said = self.run_all("--driver", "sim", "--out", str(results), status=2)
            self.assertIn("results cannot be written to", said)
            self.skipTest("root may write to every folder: only --out was tried")
        self.folder.chmod(0o555)
        self.addCleanup(self.folder.chmod, 0o755)
        said = self.run_all("--driver", "sim", TMPDIR=str(self.out.parent))
        self.assertIn("cannot be written to: the results go to", said)

    def test_programmes_that_are_missing_are_named(self):
        shutil.rmtree(self.folder / "bin")
        self.assertIn("make the folder anew with tests/gpu/pack", self.run_all(status=2))


class Replays(Packed):
    """The steps that replay: what they say where the driver is the simulator, and where it is another one."""

    SHORT = ("decode_graphs", "moe_train", "prefetch_train")

    def setUp(self):
        super().setUp()
        for trace in (self.folder / "traces").glob("*.xtrace.zst"):
            if not trace.name.startswith(self.SHORT):
                trace.unlink()

    def rows(self, name):
        """The lines of a raw table, by column."""
        head, *lines = (self.out / name).read_text().splitlines()
        return [dict(zip(head.split("\t"), line.split("\t"))) for line in lines]

    def differences(self, step):
        """What a step found to differ."""
        path = self.out / step / "differs.md"
        return path.read_text() if path.exists() else ""

    def test_peaks_and_calls_agree_on_the_simulator(self):
        self.run_sim("--only", "traces")
        self.assertEqual(self.differences("traces"), "")
        rows = self.rows("traces/traces.tsv")
        self.assertEqual([(row["trace"], row["segments"]) for row in rows],
                         [(trace, mode) for mode in ("expandable", "classic") for trace in self.SHORT])
        for row in rows:
            self.assertGreater(int(row["reserved_driver"]), 512 << 20)
            self.assertEqual(row["reserved_driver"], row["reserved_simulator"])
            self.assertEqual(row["calls_driver"], row["calls_simulator"])
            self.assertGreater(float(row["modelled_ms"]), 1)
        calls = {(row["call"], row["bytes"]): row for row in self.rows("traces/calls.tsv")}
        self.assertEqual(calls["cuMemMap", "all"]["calls"], calls["cuMemCreate", "all"]["calls"])
        self.assertEqual(int(calls["cuMemMap", "20971520"]["modelled_ns"]),
                         2000 * int(calls["cuMemMap", "20971520"]["calls"]))
        self.assertIn("The driver is a simulator", self.report())

    def test_a_timed_replay_counts_what_the_library_counts(self):
        out = self.folder / "timed.tsv"
        said = subprocess.run(
            [self.folder / "bin/xseg", "replay", "--json", "--driver", self.folder / "lib/libgpu-timed.so",
             self.folder / "traces/moe_train.xtrace.zst"], check=True, text=True, stdout=subprocess.PIPE,
            env={"LD_LIBRARY_PATH": str(self.folder / "lib"), "GPU_TIMED_OUT": str(out),
                 "GPU_TIMED_DRIVER": str(self.folder / "lib/libxseg-sim.so.0")}).stdout
        counted = json.loads(said)["driver_calls"]
        lines = [line.split("\t") for line in out.read_text().splitlines()]
        timed = {call: int(calls) for call, size, calls, *_ in lines if size == "all"}
        # Opening maps a page or two, and clearing up gives everything back: a few more calls, never less.
        for call, most in (("cuMemCreate", 4), ("cuMemMap", 4), ("cuMemSetAccess", 4)):
            with self.subTest(call=call):
                self.assertGreater(counted[call], 50)
                self.assertLessEqual(counted[call], timed[call])
                self.assertLessEqual(timed[call], counted[call] + most)

    def test_a_driver_that_differs_is_told_by_its_calls(self):
        self.run_sim("--only", "traces", status=1, XSEG_SIM_BATCH="0")
        found = self.differences("traces")
        self.assertRegex(found, r"(?m)^- cuMemSetAccess: \d+ calls on the driver, \d+ on the simulator, in "
                                r"decode_graphs-expandable, prefetch_train-expandable$")
        self.assertNotIn("peak of", found)
        self.assertIn(found, self.report())

    def test_a_driver_that_runs_out_of_memory_is_told_by_its_peaks(self):
        self.run_sim("--only", "traces", status=1, XSEG_SIM_FAIL="cuMemCreate:40+1")
        found = self.differences("traces")
        self.assertRegex(found, r"(?m)^- moe_train-expandable: memory runs out at event \(-1: never\) \d+ on the "
                                r"driver, -1 on the simulator$")
        self.assertRegex(found, r"moe_train-expandable: peak of the reserved bytes \d+ on the driver")

    def test_what_a_small_device_has_no_memory_for_is_left_out(self):
        self.run_sim("--only", "traces", "--only", "service", "--only", "speed", XSEG_SIM_MEMORY_MB="2048")
        report = self.report()
        self.assertIn("- left out, because they take more than 1638 MiB on the simulator: moe_train-expandable "
                      "moe_train-classic\n", report)
        self.assertIn("| prefetch_train | expandable |", report)
        self.assertIn("skipped: the day was not replayed, with a limit of 1638 MiB", report)
        self.assertIn("- large, 10^3: left out, because it takes 13.2 GiB and 2.0 GiB are free (driver)\n", report)

    def test_without_memory_nothing_is_replayed(self):
        said = self.run_sim("--only", "traces", "--only", "speed", status=2, XSEG_SIM_MEMORY_MB="2")
        self.assertIn("skipped: no memory to replay in: 2 MiB are free on the device", said)
        self.assertIn("skipped: no memory to measure in: 2 MiB are free on the device", said)

    def test_a_driver_that_refuses_is_asked_once(self):
        self.run_sim("--only", "traces", status=1, XSEG_SIM_FAIL="cuDeviceTotalMem:1+1:999")
        found = self.differences("traces")
        self.assertEqual(found.count("\n"), 1, found)
        self.assertRegex(found, "^- decode_graphs-expandable: the replay ends with status 2: .*cuDeviceTotalMem")

    def test_traces_that_are_not_reached_are_named(self):
        shared = self.folder / "lib/replays.sh"
        shared.write_text(shared.read_text().replace("GPU_SECONDS * 3 / 4", "GPU_SECONDS * 0 / 4"))
        self.run_sim("--only", "traces", "--only", "service")
        self.assertIn("- not reached in 120 s: decode_graphs-expandable moe_train-expandable ", self.report())
        self.assertIn("Not reached in 45 s: kept.", self.report())

    def test_a_card_without_virtual_memory_has_classic_segments(self):
        self.run_sim("--only", "traces", XSEG_SIM_VMM="0")
        self.assertNotIn("| expandable |", self.report())
        self.assertIn("- left out: expandable segments, because", self.report())
        self.assertEqual(len(self.rows("traces/traces.tsv")), 3)

    def test_a_day_of_the_service_agrees(self):
        self.run_sim("--only", "service")
        rows = {(row["way"], row["key"]): row for row in self.rows("service/service.tsv")}
        for key in ("peak_reserved", "request_path_syncs"):
            for way in ("kept", "decayed"):
                self.assertEqual(rows[way, key]["driver"], rows[way, key]["simulator"])
        self.assertLess(2 * int(rows["decayed", "reserved_time_avg"]["driver"]),
                        int(rows["kept", "reserved_time_avg"]["driver"]))
        self.assertEqual(rows["kept", "requests"]["driver"], "222")

    def test_speed_has_a_row_for_each_case_of_both_sides(self):
        self.run_sim("--only", "speed", "--minutes", "20")
        rows = self.rows("speed/speed.tsv")
        sides = {side: [(row["question"], row["case"]) for row in rows if row["side"] == side]
                 for side in ("driver", "simulator")}
        self.assertEqual(sides["driver"], sides["simulator"])
        for question in ("hit", "threads", "replay", "cross", "churn", "streams", "large"):
            self.assertIn(question, {question for question, _ in sides["driver"]})
        pairs = self.rows("speed/pairs.tsv")
        self.assertEqual(len(pairs), 2 * 5)
        self.assertTrue(all(float(row["ns"]) > 0 for row in pairs))
        self.assertRegex(self.report(), r"\| same_block \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \| ")


    def test_instructions_are_counted_where_perf_can(self):
        # A stand-in: starting takes five million instructions, and a pair 300.
        programs = self.folder.parent / "programs"
        programs.mkdir()
        (programs / "perf").write_text(
            "#!/bin/bash\nfor last; do :; done\n[ $last = true ] && last=0\n"
            "echo \"$((5000000 + 300 * 10#$last)),,instructions:u,1,100.00,,\" >\"${@:6:1}\"\n")
        (programs / "perf").chmod(0o755)
        self.run_sim("--only", "speed", "--minutes", "20", PATH=f"{programs}:/usr/bin:/bin")
        rows = self.rows("speed/pairs.tsv")
        self.assertEqual({row["instructions"] for row in rows if row["side"] == "driver"}, {"300.0"})
        self.assertIn("Instructions are counted by perf", self.report())

    def test_a_programme_that_fails_is_named(self):
        (self.folder / "bin/bench-hit").write_text("#!/bin/bash\necho 'no such thing' >&2\nexit 3\n")
        self.run_sim("--only", "speed", status=1)
        self.assertIn("- hit ends with status 3 on the driver: no such thing\n", self.differences("speed"))
        self.assertIn("| threads | 1 thread | ns |", self.report())


class Facts(Packed):
    """The first step, on drivers that are not as the simulator is by itself."""

    def ask(self, *options, status, **environment):
        """Verdict and answer of the driver by fact; the simulator's are checked to hold."""
        self.run_sim("--only", "facts", "--minutes", "4", *options, status=status, **environment)
        return self.answers()

    def ask_bad(self, bad, *options, status=1):
        """The same of the driver with one bad entry point."""
        self.run_all("--only", "facts", "--minutes", "4", "--driver", BAD_DRIVER, "--out", str(self.out), *options,
                     status=status, BAD_DRIVER=bad)
        return self.answers()

    def answers(self):
        rows = [line.split("\t") for line in self.read("facts.tsv").splitlines()[1:]]
        self.assertEqual({row[4] for row in rows}, {"holds"})
        listed = subprocess.run([self.folder / "bin/gpu-facts", "--list"], check=True, text=True, capture_output=True)
        self.assertEqual([row[0] for row in rows], [line.split("\t")[0] for line in listed.stdout.splitlines()])
        return {row[0]: (row[1], row[2]) for row in rows}

    def read(self, name):
        return (self.out / "facts" / name).read_text()

    def assert_others_hold(self, answers, *others):
        """All but these; what does not hold is named first in the report, and only that."""
        self.assertEqual({fact for fact, (verdict, _) in answers.items() if verdict != "holds"}, set(others))
        self.assertEqual(re.findall(r"(?m)^- (FACT-[A-Z]+-\d+)", self.read("differs.md")),
                         [fact for fact in others if answers[fact][0] != "skipped"])

    def page(self):
        """What the page has in the column GPU, by fact."""
        return dict(re.findall(r"(?m)^\| (FACT-[A-Z]+-\d+) \|.* \| yes \| ([^|]*) \|$", self.read("driver-facts.md")))

    def test_a_driver_that_agrees(self):
        answers = self.ask(status=0)
        self.assert_others_hold(answers)
        self.assertEqual(answers["FACT-GRAN-1"], ("holds", "2048 KiB"))
        self.assertEqual(self.page(), {fact: "modelled: yes" for fact in answers})
        self.assertIn("\nAsked so far: Simulated device 0, driver CUDA ", self.read("driver-facts.md"))
        self.assertIn("Modelled answers of Simulated device 0", self.read("report.md"))

    def test_a_driver_without_batches(self):
        answers = self.ask(status=1, XSEG_SIM_BATCH="0")
        self.assert_others_hold(answers, "FACT-ACC-1", "FACT-UNM-2")
        said = "cuMemSetAccess(base, 4 * GRANULE): CUDA_ERROR_INVALID_VALUE, expected CUDA_SUCCESS"
        self.assertEqual(answers["FACT-ACC-1"], ("differs", said))
        self.assertEqual(self.page()["FACT-ACC-1"], "modelled: no: " + said)
        for line in self.read("differs.md").splitlines():
            self.assertIn("`XSEG_SIM_BATCH=0` makes the simulator answer so.", line)
        self.assert_settings("XSEG_SIM_BATCH=0")

    def test_settings_of_other_machines(self):
        self.ask(status=1, XSEG_SIM_PEERS="0", XSEG_SIM_RECYCLE="1", XSEG_SIM_ADDRESSES_MB="4096",
                 XSEG_SIM_DEVICES="3", XSEG_SIM_MEMORY_MB="768")
        self.assertRegex(self.read("differs.md"), r"^- FACT-RES-7 .*`XSEG_SIM_ADDRESSES_MB=4096` makes the simulator")
        self.assert_settings("XSEG_SIM_PEERS=0", "XSEG_SIM_RECYCLE=1", "XSEG_SIM_ADDRESSES_MB=4096",
                             "XSEG_SIM_DEVICES=3", "XSEG_SIM_MEMORY_MB=768")

    def assert_settings(self, *settings):
        """These are proposed, no other that is not everywhere, and the simulator agrees with them."""
        proposed = {line.split("\t")[0] for line in self.read("settings.tsv").splitlines()}
        everywhere = {"XSEG_SIM_DEVICES=2", "XSEG_SIM_MEMORY_MB=1024"}
        self.assertEqual(proposed - everywhere, set(settings))
        same, asked = re.search(r"the simulator answers (\d+) of (\d+) facts", self.read("report.md")).groups()
        self.assertEqual(same, asked)
        self.assertIn("export XSEG_SIM_", self.read("report.md"))

    def test_a_card_without_virtual_memory_management(self):
        answers = self.ask(status=0, XSEG_SIM_VMM="0")
        self.assertEqual(answers["FACT-MAP-1"], ("skipped", "the device has no virtual memory management"))
        for fact in ("FACT-OPEN-6", "FACT-ALC-1", "FACT-STR-10", "FACT-EVT-6", "FACT-CAP-18"):
            self.assertEqual(answers[fact][0], "holds")
        self.assertEqual(self.page()["FACT-MAP-1"], "skipped: the device has no virtual memory management")
        self.assert_settings("XSEG_SIM_VMM=0")

    def test_one_device_and_little_memory(self):
        answers = self.ask(status=0, XSEG_SIM_DEVICES="1", XSEG_SIM_MEMORY_MB="2")
        self.assertEqual(answers["FACT-EVT-6"], ("skipped", "there is one device only"))
        self.assertEqual(answers["FACT-CRE-3"], ("skipped", "only 2 MiB are free, and 64 are needed"))
        self.assertIn("too little memory is free, 2 MiB: cuMemCreate", answers["FACT-MAP-3"][1])
        self.assertEqual(answers["FACT-MAP-5"][0], "holds")
        self.assertIn("XSEG_SIM_MEMORY_MB=2\t", self.read("settings.tsv"))

    def test_an_error_spoils_nothing_behind_it(self):
        # FACT-CTX-5 fails while no context is current: in the same process, all behind it would.
        answers = self.ask(status=1, XSEG_SIM_FAIL="cuEventCreate:1:700")
        failed = [fact for fact, (_, said) in answers.items()
                  if "cuEventCreate(&event, CU_EVENT_DISABLE_TIMING): CUDA_ERROR_ILLEGAL_ADDRESS, expected" in said]
        self.assert_others_hold(answers, *failed)
        self.assertIn("FACT-CTX-5", failed)
        self.assertEqual(answers["FACT-CTX-6"][0], "holds")
        self.assertIn("No setting: the simulator is to be changed.", self.read("differs.md"))

    def test_a_fact_that_crashes(self):
        answers = self.ask_bad("crash:cuStreamGetCtx")
        self.assert_others_hold(answers, "FACT-STR-4", "FACT-CAP-14")
        self.assertEqual(answers["FACT-STR-4"],
                         ("crashed", "the process was ended by signal 11, Segmentation fault"))

    def test_a_fact_that_hangs(self):
        for bad in ("hang:cuDevicePrimaryCtxGetState", "deaf:cuDevicePrimaryCtxGetState"):
            with self.subTest(bad):
                answers = self.ask_bad(bad, "--minutes", "2")
                self.assert_others_hold(answers, "FACT-CTX-1")
                self.assertEqual(answers["FACT-CTX-1"], ("hung", "it did not end within 3 s"))

    def test_a_driver_that_is_too_old(self):
        answers = self.ask_bad("missing:cuStreamGetId")
        self.assertEqual(answers["FACT-OPEN-1"], ("differs", "the driver has no cuStreamGetId"))
        lacking = [fact for fact, answer in answers.items() if answer == ("skipped", "the driver has no cuStreamGetId")]
        self.assertEqual(lacking, ["FACT-OPEN-3", "FACT-STR-1", "FACT-STR-2", "FACT-STR-3", "FACT-CAP-14"])
        self.assert_others_hold(answers, "FACT-OPEN-1", *lacking)

    def test_a_driver_that_cannot_be_opened(self):
        for bad, why in (("crash:cuInit", "the process was ended by signal 11, Segmentation fault"),
                         ("hang:cuInit", "it did not end within 5 s")):
            with self.subTest(bad):
                answers = self.ask_bad(bad, "--minutes", "2")
                self.assertEqual(set(answers.values()), {("skipped", "the driver cannot be opened: " + why)})
                self.assertEqual(self.read("differs.md"), f"- the driver cannot be opened: {why}\n")
                self.assertFalse((self.out / "facts/driver-facts.md").exists())

    def test_three_quarters_of_the_time(self):
        answers = self.ask_bad("hang:cuEventQuery", "--minutes", "2")
        late = [fact for fact, (_, said) in answers.items() if said.startswith("there was no time left")]
        self.assertEqual(late, list(answers)[-len(late):])
        self.assertGreater(len(late), 1)
        self.assertGreater([verdict for verdict, _ in answers.values()].count("hung"), 1)
        self.assertIn("done, with failures", self.report())
        self.assertIn(f"{', '.join(late)}\n", self.read("report.md"))

    def test_no_driver(self):
        said = self.run_all("--only", "facts", "--out", str(self.out), status=2)
        self.assertIn("skipped: there is no driver: libcuda.so.1", said)
        self.assertEqual({verdict for verdict, _ in self.answers().values()}, {"skipped"})


class Pack(Packed):
    def test_a_folder_of_somebody_else_is_left_alone(self):
        folder = self.folder.parent / "mine"
        folder.mkdir()
        (folder / "thesis").write_text("the only copy")
        done = subprocess.run([SOURCE / "tests/gpu/pack", "--builddir", BUILD, folder], check=False,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("name another one", done.stderr)
        self.assertTrue((folder / "thesis").is_file())

    def test_an_archive_holds_one_folder(self):
        archive = self.folder.parent / "card.tar.gz"
        subprocess.run([SOURCE / "tests/gpu/pack", "--builddir", BUILD, archive], check=True,
                       stdout=subprocess.DEVNULL)
        names = subprocess.run(["tar", "-tf", archive], check=True, capture_output=True, text=True).stdout
        self.assertTrue(all(name.startswith("card/") for name in names.split()))
        self.assertIn("card/run\n", names)


if __name__ == "__main__":
    SOURCE, BUILD, OLD_DRIVER, BAD_DRIVER, SANITIZERS = pathlib.Path(sys.argv[1]), *sys.argv[2:]
    if SANITIZERS != "none":
        print("skipped: a build with sanitizers is not packed")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=1)
