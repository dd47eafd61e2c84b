# SPDX-License-Identifier: MIT
"""The steps that replay traces and run benchmarks."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gpu_pack  # pylint: disable=wrong-import-position


class Replays(gpu_pack.Packed):
    SHORT = ("decode_graphs", "moe_train", "prefetch_train")

    def rows(self, name):
        head, *lines = (self.out / name).read_text().splitlines()
        return [dict(zip(head.split("\t"), line.split("\t"))) for line in lines]

    def differences(self, step):
        path = self.out / step / "differs.md"
        return path.read_text() if path.exists() else ""

    def test_peaks_and_calls_are_equal_on_the_simulator(self):
        self.run_sim("--only", "traces", *gpu_pack.QUICK)
        self.assertEqual(self.differences("traces"), "")
        rows = self.rows("traces/traces.tsv")
        self.assertEqual([(row["trace"], row["segments"]) for row in rows],
                         [(trace, mode) for mode in ("expandable", "classic") for trace in self.SHORT])
        for row in rows:
            self.assertGreater(int(row["reserved_driver"]), 512 << 20)
            self.assertEqual(row["reserved_driver"], row["reserved_simulator"])
            self.assertEqual(row["calls_driver"], row["calls_simulator"])
            self.assertGreater(float(row["modeled_ms"]), 1)
        calls = {(row["call"], row["bytes"]): row for row in self.rows("traces/calls.tsv")}
        self.assertEqual(calls["cuMemMap", "all"]["calls"], calls["cuMemCreate", "all"]["calls"])
        self.assertEqual(int(calls["cuMemMap", "20971520"]["modeled_ns"]),
                         2000 * int(calls["cuMemMap", "20971520"]["calls"]))
        self.assertIn("The driver is a simulator", self.report())

    def test_timed_driver_and_library_count_the_same_calls(self):
        out = self.folder / "timed.tsv"
        output = subprocess.run(
            [self.folder / "bin/xseg", "replay", "--json", "--driver", self.folder / "lib/libgpu-timed.so",
             self.folder / "traces/moe_train.xtrace.zst"], check=True, text=True, stdout=subprocess.PIPE,
            env={"LD_LIBRARY_PATH": str(self.folder / "lib"), "GPU_TIMED_OUT": str(out),
                 "GPU_TIMED_DRIVER": str(self.folder / "lib/libxseg-sim.so.0")}).stdout
        counted = json.loads(output)["driver_calls"]
        lines = [line.split("\t") for line in out.read_text().splitlines()]
        timed = {call: int(calls) for call, size, calls, *_ in lines if size == "all"}
        # The library does not count the calls at its start and end, at most 4 of each.
        for call, max_calls in (("cuMemCreate", 4), ("cuMemMap", 4), ("cuMemSetAccess", 4)):
            with self.subTest(call=call):
                self.assertGreater(counted[call], 50)
                self.assertLessEqual(counted[call], timed[call])
                self.assertLessEqual(timed[call], counted[call] + max_calls)

    def test_different_driver_is_detected_by_its_calls(self):
        self.run_sim("--only", "traces", *gpu_pack.QUICK, status=1, XSEG_SIM_BATCH="0")
        differences = self.differences("traces")
        self.assertRegex(differences, r"(?m)^- cuMemSetAccess: \d+ calls on the driver, \d+ on the simulator, in "
                                      r"decode_graphs-expandable, prefetch_train-expandable$")
        self.assertNotIn("peak of", differences)
        self.assertIn(differences, self.report())

    def test_driver_out_of_memory_is_detected_by_its_peaks(self):
        # If only cuMemCreate failed, the library would use classic segments.
        self.run_sim("--only", "traces", *gpu_pack.QUICK, status=1, XSEG_SIM_FAIL="cuMemCreate:40+1,cuMemAlloc:1+1")
        differences = self.differences("traces")
        self.assertRegex(differences, r"(?m)^- moe_train-expandable: memory runs out at event \(-1: never\) \d+ on the "
                                      r"driver, -1 on the simulator$")
        self.assertRegex(differences, r"moe_train-expandable: peak of the reserved bytes \d+ on the driver")

    def test_traces_that_exceed_a_small_device_are_omitted(self):
        self.disable("replay", "cross", "churn", "streams")
        self.run_sim("--only", "traces", "--only", "service", "--only", "speed", *gpu_pack.QUICK, XSEG_SIM_MEMORY_MB="2048")
        report = self.report()
        self.assertIn("- omitted, because they need more than 1638 MiB on the simulator: moe_train-expandable "
                      "moe_train-classic\n", report)
        self.assertIn("| prefetch_train | expandable |", report)
        self.assertIn("skipped: the day was not replayed, with a limit of 1638 MiB", report)
        self.assertIn("- large, 10^3: left out, it takes 13.2 GiB and 2.0 GiB are free (driver)\n", report)

    def test_steps_are_skipped_with_low_memory(self):
        output = self.run_sim("--only", "traces", "--only", "speed", status=2, XSEG_SIM_MEMORY_MB="2")
        self.assertIn("skipped: low device memory, 2 MiB free; replays require 80 MiB", output)
        self.assertIn("skipped: low device memory, 2 MiB free; the benchmarks require 1024 MiB", output)

    def test_failing_driver_is_tried_once(self):
        self.run_sim("--only", "traces", *gpu_pack.QUICK, status=1, XSEG_SIM_FAIL="cuDeviceTotalMem:1+1:999")
        differences = self.differences("traces")
        self.assertEqual(differences.count("\n"), 1, differences)
        self.assertRegex(differences, "^- decode_graphs-expandable: the replay exited with status 2: .*cuDeviceTotalMem")

    def test_traces_after_the_time_limit_are_reported(self):
        functions = (self.folder / "lib/replays.sh").read_text()
        self.replace("lib/replays.sh", functions.replace("GPU_SECONDS * 3 / 4", "GPU_SECONDS * 0 / 4"))
        self.run_sim("--only", "traces", "--only", "service", "--quick")
        self.assertIn("- not reached in 100 s: decode_graphs-expandable moe_train-expandable ", self.report())
        self.assertIn("Not reached in 45 s: kept.", self.report())

    def test_device_without_virtual_memory_has_classic_segments(self):
        self.run_sim("--only", "traces", *gpu_pack.QUICK, XSEG_SIM_VMM="0")
        self.assertNotIn("| expandable |", self.report())
        self.assertIn("- omitted: expandable segments, because", self.report())
        self.assertEqual(len(self.rows("traces/traces.tsv")), 3)

    def test_results_of_the_service_are_equal(self):
        self.run_sim("--only", "service", *gpu_pack.QUICK)
        rows = {(row["way"], row["key"]): row for row in self.rows("service/service.tsv")}
        for key in ("peak_reserved", "request_path_syncs"):
            for way in ("kept", "decayed"):
                self.assertEqual(rows[way, key]["driver"], rows[way, key]["simulator"])
        self.assertLess(2 * int(rows["decayed", "reserved_time_avg"]["driver"]),
                        int(rows["kept", "reserved_time_avg"]["driver"]))
        self.assertEqual(rows["kept", "requests"]["driver"], "42")

    def test_speed_has_a_row_for_each_case_of_both_sides(self):
        # A model of perf: the start of a process has five million instructions, and a pair 300.
        programs = self.folder.parent / "programs"
        programs.mkdir()
        (programs / "perf").write_text("#!/bin/bash\nfor last; do :; done\n[ $last = true ] && last=0\n"
            "echo \"$((5000000 + 300 * 10#$last)),,instructions:u,1,100.00,,\" >\"${@:6:1}\"\n")
        (programs / "perf").chmod(0o755)
        self.run_sim("--only", "speed", *gpu_pack.QUICK, PATH=f"{programs}:/usr/bin:/bin")
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
        self.assertEqual({row["instructions"] for row in pairs if row["side"] == "driver"}, {"300.0"})
        self.assertIn("perf counts instructions", self.report())

    def disable(self, *questions):
        """Replaces slow programs of the step `speed` by empty ones."""
        for question in questions:
            self.replace(f"bin/bench-{question}", "#!/bin/bash\n")

    def test_failed_program_is_reported(self):
        self.disable("replay", "cross", "churn", "streams", "large")
        self.replace("bin/bench-hit", "#!/bin/bash\necho 'no such thing' >&2\nexit 3\n")
        self.run_sim("--only", "speed", *gpu_pack.QUICK, status=1)
        self.assertIn("- hit exited with status 3 on the driver: no such thing\n", self.differences("speed"))
        self.assertIn("| threads | 1 thread | ns |", self.report())


if __name__ == "__main__":
    gpu_pack.main()
