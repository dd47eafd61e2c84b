# SPDX-License-Identifier: MIT
"""Tests of the command `xseg probe`: probe.py TOOL SOURCE_ROOT."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

from folder_case import MIB, ROOT, TOOL, ToolCase

sys.path.insert(0, str(ROOT / "tests/support"))
import json_keys  # pylint: disable=wrong-import-position

# All driver functions that the probe calls, except cuGetErrorName.
CALLS = ("cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute",
         "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuMemGetInfo",
         "cuMemAlloc", "cuMemFree", "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate",
         "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemExportToShareableHandle", "cuStreamCreate",
         "cuStreamDestroy", "cuStreamQuery", "cuStreamSynchronize", "cuEventCreate", "cuEventDestroy", "cuEventRecord",
         "cuEventQuery", "cuStreamWaitEvent")


def run(*options, **environment):
    completed = subprocess.run([TOOL, "probe", *options], check=False, text=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    return completed.returncode, completed.stdout


class ProbeTest(ToolCase):
    def probe(self, *options, status=0, **environment):
        return self.tool("probe", *options, status=status, environment=environment, stderr=subprocess.STDOUT).stdout

    def report(self, *options, **environment):
        return json.loads(self.probe("--json", *options, **environment))

    def rows(self, report, **fields):
        return [row for row in report["costs"] if fields.items() <= row.items()]

    def cost(self, report, call, size=0, pages=1, calls=1, threads=1):
        rows = self.rows(report, call=call, bytes=size, pages=pages, calls=calls, threads=threads)
        self.assertEqual(len(rows), 1, (call, size, pages, calls))
        return rows[0]


class Capabilities(ProbeTest):
    def test_text_report_has_all_sections(self):
        output = self.probe()
        for line in (r"xseg uses +expandable segments\n", r"device +0 of 1: Simulated device 0",
                     r"memory +80.00 GiB, 80.00 GiB free\n",
                     r"granularity +minimum 2\.00 MiB, recommended 2\.00 MiB", r"cuMemUnmap +accepts several pages per call\n",
                     r"time of all calls of a row in us, modeled \(a100\): median and quartiles of 21 samples\n",
                     r"cuMemUnmap +2 MiB +34.0  34.0\.\.34.0 +34.0  34.0\.\.34.0 +no +34.0\n",
                     r"cuMemFree +2 MiB +20.0 .* yes +20.0\n", r"cuMemUnmap +10 x 2 MiB, 10 calls +340.0 ",
                     r"cuMemUnmap +128 x 2 MiB, 1 call +4,352.0 .* - +- +4,352.0\n",
                     r"cuMemCreate +20 MiB, 2 threads +10.0 .* - +- +-\n", r"cuStreamSynchronize +5.0 .* no +5.0\n",
                     r"\n  35 more rows of other sizes: --json or --table FILE\n"):
            self.assertRegex(output, line)
        self.assertNotIn("failed", output)

    def test_integrated_device_reports_host_memory(self):
        unified = {"XSEG_SIM_MEMORY_MB": "16384", "XSEG_SIM_INTEGRATED": "1", "XSEG_SIM_HOST_MB": "2048",
                   "XSEG_SIM_PAGE_CACHE_MB": "10240"}
        output = self.probe(**unified)
        self.assertRegex(output, r"memory +16\.00 GiB, 4\.00 GiB free\n +integrated: the device uses the memory of the host\n"
                                 r" +14\.00 GiB free with reclaimable page cache; xseg leaves 1\.00 GiB free "
                                 r"\(device_free_min_mb\)\n")
        report = self.report(XSEG_ALLOC_CONF="device_free_min_mb:100", **unified)
        self.assertEqual((report["integrated"], report["free_bytes"], report["available_bytes"], report["free_min_bytes"]),
                         (True, 4096 * MIB, 14336 * MIB, 100 * MIB))
        report = self.report()
        self.assertEqual((report["integrated"], report["available_bytes"], report["free_min_bytes"]), (False, None, 0))

    def test_json_has_device_and_capabilities(self):
        report = self.report(XSEG_SIM_MEMORY_MB="4096", XSEG_SIM_DEVICES="3")
        self.assertEqual((report["device"], report["devices"], report["total_bytes"]), (0, 3, 4096 * MIB))
        self.assertEqual((report["segments"], report["failures"]), ("expandable", []))
        features = report["features"]
        self.assertEqual((features["granularity"], features["granularity_recommended"]), (2 * MIB, 2 * MIB))
        for test in ("vmm_probe", "access_of_several", "unmap_of_several", "descriptor_probe", "rdma_probe"):
            self.assertEqual(features[test], "passed", test)
        self.assertEqual((features["fabric"], features["fabric_probe"]), (False, None))

    def test_documentation_lists_all_json_keys(self):
        report = json.loads(self.probe("--json", XSEG_SIM_FAIL="cuMemMap:1:801", status=1))
        complete_report = self.report()
        self.assertEqual(json_keys.paths([report, complete_report], maps=["first_us"]),
                         json_keys.documented(ROOT / "docs/top.md", "JSON of probe"))

    def test_option_selects_the_device(self):
        self.assertEqual(self.report("--device", "1", XSEG_SIM_DEVICES="2")["name"], "Simulated device 1")
        output = self.probe("--device", "2", XSEG_SIM_DEVICES="2", status=2)
        self.assertIn("cuDeviceGet of device 2 failed with CUDA_ERROR_INVALID_DEVICE (101)", output)

    def test_report_explains_classic_segments_without_virtual_memory(self):
        report = self.report(XSEG_SIM_VMM="0")
        self.assertEqual(report["segments"], "classic")
        self.assertIn("no virtual memory management", report["reason"])
        calls = {row["call"] for row in report["costs"]}
        self.assertIn("cuMemAlloc", calls)
        self.assertFalse([call for call in calls if "Map" in call or "Create" in call and "Mem" in call])

    def test_failed_driver_test_is_named(self):
        # The first two calls of cuMemMap belong to the test of virtual memory management.
        output = self.probe(XSEG_SIM_FAIL="cuMemMap:1:801", status=1)
        self.assertRegex(output, r"xseg uses +classic segments: cuMemMap failed with CUDA_ERROR_NOT_SUPPORTED \(801\)\n")
        self.assertRegex(output, r"failed: cuMemMap with CUDA_ERROR_NOT_SUPPORTED \(801\), test")

    def test_failing_page_creation_on_an_empty_device_selects_classic_segments(self):
        output = self.probe(XSEG_SIM_FAIL="cuMemCreate:1+1", status=1)
        self.assertRegex(output, r"xseg uses +classic segments: cuMemCreate failed with CUDA_ERROR_OUT_OF_MEMORY \(2\)\n")

    def test_driver_with_one_page_per_call_has_no_costs_of_batches(self):
        report = self.report(XSEG_SIM_BATCH="0")
        self.assertEqual(report["segments"], "expandable")
        self.assertEqual(report["features"]["unmap_of_several"], "CUDA_ERROR_INVALID_VALUE")
        self.assertEqual(self.cost(report, "cuMemUnmap", 2 * MIB, 10, 10)["idle"]["median_us"], 340)
        batched = [row for row in report["costs"] if row["pages"] > row["calls"]]
        self.assertEqual(len(batched), 4)
        for row in batched:
            self.assertEqual((row["idle"], row["missing"]), (None, "the driver accepts one page per call"))

    def test_full_device_is_reported_as_untested(self):
        report = json.loads(run("--json", XSEG_SIM_MEMORY_MB="2")[1])
        self.assertEqual(report["segments"], "expandable")
        self.assertIn("not tested, not enough free memory", report["reason"])
        self.assertEqual(report["features"]["vmm_probe"], "CUDA_ERROR_OUT_OF_MEMORY")


class Costs(ProbeTest):
    def test_measured_costs_equal_the_presets(self):
        for preset, create, unmap in (("a100", 7.3, 34), ("a100_cold", 193, 25.6),
                                      ("consumer", 7.9, 11.5), ("rocm_slow", 62, 1050), ("none", 0, 0)):
            with self.subTest(preset):
                report = self.report("--costs", preset)
                self.assertEqual((report["costs_source"], report["preset"]), ("modeled", preset))
                for call, median in (("cuMemCreate", create), ("cuMemUnmap", unmap)):
                    idle = self.cost(report, call, 2 * MIB)["idle"]
                    self.assertEqual(idle, {"median_us": median, "low_us": median, "high_us": median, "samples": 21})

    def test_option_overrides_the_environment(self):
        self.assertEqual(self.report(XSEG_SIM_COSTS="consumer")["preset"], "consumer")
        self.assertEqual(self.report("--costs", "none", XSEG_SIM_COSTS="consumer")["preset"], "none")

    def test_latency_tails_increase_the_spread_of_samples(self):
        idle = self.cost(self.report(XSEG_SIM_TAILS="7"), "cuMemSetAccess", 20 * MIB)["idle"]
        self.assertLess(idle["low_us"], idle["median_us"])
        self.assertLess(idle["median_us"], idle["high_us"])

    def test_only_cumemfree_waits_for_device_work(self):
        report = self.report()
        self.assertEqual({row["call"] for row in report["costs"] if row["waits_for_work"]}, {"cuMemFree"})
        self.assertEqual(self.cost(report, "cuMemFree", 20 * MIB)["busy"]["median_us"], 5000)

    def test_sizes_beyond_free_memory_are_omitted(self):
        output = self.probe(XSEG_SIM_MEMORY_MB="256")
        self.assertIn("not enough free memory for sizes of 256.00 MiB and more", output)
        self.assertNotRegex(output, r"cuMem\w+ +512 MiB")
        self.assertRegex(output, r"cuMemCreate +64 MiB")
        for row in self.report(XSEG_SIM_MEMORY_MB="64")["costs"]:
            if row["call"] == "cuMemAddressReserve" or row["call"] == "cuMemAddressFree":
                continue
            fits = row["bytes"] * row["pages"] * row["threads"] <= 32 * MIB
            self.assertEqual((row["idle"] is not None, row["missing"]), (fits, None if fits else "not enough free memory"), row)

    def test_costs_cover_sizes_batches_and_threads(self):
        report, sizes = self.report(), [mib * MIB for mib in (2, 4, 8, 20, 32, 64, 128, 256, 512)]
        for call in ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAlloc", "cuMemFree"):
            rows = self.rows(report, call=call, pages=1, threads=1)
            self.assertEqual([row["bytes"] for row in rows if row["bytes"] >= MIB], sizes)
            for row in rows:
                self.assertEqual((row["idle"]["samples"], row["busy"]["samples"]), (21, 21))
                self.assertEqual(row["first_us"], row["idle"]["median_us"])
            concurrent = self.cost(report, call, 20 * MIB, threads=2)
            self.assertEqual(concurrent["idle"]["median_us"], self.cost(report, call, 20 * MIB)["idle"]["median_us"])
            self.assertEqual((concurrent["idle"]["samples"], concurrent["busy"], concurrent["first_us"]), (42, None, None))
        for call, single in (("cuMemSetAccess", 38.6), ("cuMemUnmap", 34)):
            for pages in (10, 128):
                for calls in (1, pages):
                    row = self.cost(report, call, 2 * MIB, pages, calls)
                    self.assertAlmostEqual(row["idle"]["median_us"], pages * single)
                    self.assertEqual(row["busy"] is None, pages == 128)
        # The first calls of the process test virtual memory management; cuMemUnmap of two pages takes 2 x 34 us.
        self.assertEqual((report["first_us"]["cuMemCreate"], report["first_us"]["cuMemUnmap"]), (7.3, 68))
        self.assertNotIn("cuStreamQuery", report["first_us"])

    def test_measurement_time_is_bounded(self):
        start_time = time.monotonic()
        report = self.report("--seconds", "60")
        self.assertLess(time.monotonic() - start_time, 30)
        self.assertFalse(report["timed_out"])
        self.assertEqual(self.cost(report, "cuMemMap", 20 * MIB)["idle"]["samples"], 101)


class Files(ProbeTest):
    def read_table(self, text):
        head, *lines = [line.split("\t") for line in text.splitlines()]
        for line in lines:
            self.assertEqual(len(line), len(head), line)
        return [dict(zip(head, line)) for line in lines]

    def test_cost_file_charges_the_fitted_costs(self):
        path = self.folder / "device.costs"
        for preset in ("none", "a100", "a100_cold", "consumer", "rocm_slow"):
            with self.subTest(preset):
                first = self.report("--costs", preset, "--save-costs", str(path))
                text = path.read_text()
                self.assertIn(f"# Costs of the calls of the simulated driver, modeled by {preset}.\n", text)
                self.assertIn("\nname = Simulated device 0\n", text)
                self.assertIn('{.name = "simulated_device_0", .reserve = ', text)
                self.assertNotIn("Largest deviation", text)
                second = self.report("--costs", str(path))
                self.assertEqual(second["preset"], str(path))
                self.assertEqual(second["costs"], first["costs"])
                self.assertEqual(self.report(XSEG_SIM_COSTS=str(path))["costs"], first["costs"])
                # Costs that are loaded from a file and saved again equal that file.
                self.probe("--costs", str(path), "--save-costs", str(self.folder / "again.costs"))
                self.assertEqual([line for line in text.splitlines() if line[0] != "#"],
                                 [line for line in (self.folder / "again.costs").read_text().splitlines()
                                  if line[0] != "#"])

    def test_unmeasured_costs_are_named_in_the_file(self):
        path = self.folder / "device.costs"
        self.probe("--save-costs", str(path), XSEG_SIM_FAIL="cuMemAlloc:1+1:2", status=1)
        self.assertIn("# cuMemAlloc was not measured, so its cost is 0.\n", path.read_text())
        self.assertIn("\ncreate = 7000 150 0\n", path.read_text())

    def test_table_has_every_measured_cost(self):
        path = self.folder / "costs.tsv"
        report = self.report("--table", str(path))
        lines = self.read_table(path.read_text())
        for row in report["costs"]:
            lines_of_row = [line for line in lines if [line[key] for key in ("call", "bytes", "pages", "calls", "threads")] ==
                            [str(row[key]) for key in ("call", "bytes", "pages", "calls", "threads")]]
            repeated = {line["device"]: line for line in lines_of_row if line["when"] == "repeated"}
            for device in ("idle", "busy"):
                if row[device]:
                    self.assertEqual(float(repeated[device]["median_ns"]), round(row[device]["median_us"] * 1e3))
                    self.assertEqual(repeated[device]["samples"], str(row[device]["samples"]))
            self.assertEqual(len([line for line in lines_of_row if line["when"] == "first"]), int(row["first_us"] is not None))
        first_calls = [line["call"] for line in lines if line["when"] == "process"]
        self.assertEqual(sorted(first_calls), sorted(report["first_us"]))
        table = self.read_table(self.probe("--table", "-", XSEG_SIM_MEMORY_MB="64").partition("\n  driver ")[0])
        self.assertIn("not enough free memory", {line["note"] for line in table})

    def test_report_moves_to_standard_error_if_costs_use_standard_output(self):
        completed = subprocess.run([TOOL, "probe", "--save-costs", "-"], text=True, check=True, capture_output=True)
        self.assertTrue(completed.stdout.startswith("# Costs of the calls of the simulated driver"))
        self.assertIn("xseg uses", completed.stderr)

    def test_unwritable_output_file_is_rejected(self):
        for options, message in ((("--table", "/none/x"), "/none/x cannot be written: No such file"),
                                 (("--save-costs", "/none/x"), "/none/x cannot be written: No such"),
                                 (("--save-costs", "/dev/full"), "/dev/full cannot be written: No space"),
                                 (("--table", "-", "--save-costs", "-"), "require two different files")):
            with self.subTest(options):
                self.assertIn(message, self.probe(*options, status=2))


class Failures(ProbeTest):
    def run_with_fault(self, fault):
        """Runs the tool with a failing driver call, checks that the output names the error, and returns status and output."""
        status, output = run(XSEG_SIM_FAIL=fault, XSEG_SIM_MEMORY_MB="256")
        self.assertIn(status, (0, 1, 2), output)
        self.assertNotIn("not released", output)
        self.assertIn("CUDA_ERROR_UNKNOWN" if status else "xseg uses", output)
        return status, output

    def test_failure_of_any_call_is_reported_by_name(self):
        for call in CALLS:
            for nth in (1, 2, 3, 30):
                with self.subTest(call=call, nth=nth):
                    status, output = self.run_with_fault(f"{call}:{nth}:999")
                    if status:
                        self.assertIn(call, output)

    def test_failure_of_any_nth_call_is_reported(self):
        for nth in range(1, 2600, 53):
            with self.subTest(nth=nth):
                self.run_with_fault(f":{nth}:999")

    def test_leaked_objects_are_reported(self):
        for call in ("cuMemRelease", "cuMemAddressFree", "cuMemFree", "cuEventDestroy"):
            with self.subTest(call):
                output = self.probe(XSEG_SIM_FAIL=f"{call}:1+1:999", status=1)
                self.assertIn(f"failed: {call} with CUDA_ERROR_UNKNOWN (999)", output)
                # The probe stops after a leak: each test leaks at most its own objects, and the costs those of one size.
                for leaked in re.findall(r"^(?:physical memory|reservations|allocations): (\d+)", output, re.MULTILINE):
                    self.assertLessEqual(int(leaked), 6)
                self.assertIn("cuMemGetInfo ", output)

    def test_permanently_failing_call_does_not_prevent_other_measurements(self):
        output = self.probe(XSEG_SIM_FAIL="cuMemAlloc:1+1:2", status=1)
        self.assertRegex(output, r"cuMemAlloc +20 MiB +- +- +- +-\n")
        self.assertRegex(output, r"cuMemUnmap +20 MiB +34.0 ")
        self.assertRegex(output, r"failed: cuMemAlloc with CUDA_ERROR_OUT_OF_MEMORY \(2\), costs of 20 MiB\n")

    def test_invalid_arguments_are_rejected(self):
        for options, message in (
                (("--device", "x"), "--device takes a device ordinal"), (("--device", ""), "--device takes a device ordinal"),
                (("--device", "99999999999"), "--device takes a device ordinal"),
                (("--driver", "hip"), "--driver takes sim or cuda"), (("--costs", "cheap"), "--costs takes none, a100"),
                (("--costs", "./none"), "XSEG_SIM_COSTS: ./none, cannot open the file, No such file"),
                (("--seconds", "0"), "--seconds takes a number of seconds, from 1 to 3600"),
                (("--driver", "cuda", "--costs", "none"), "cannot be combined with"),
                (("--nonsense",), "`xseg probe --help` lists the options"),
                (("file",), "too many arguments, 'file'; the command takes none")):
            with self.subTest(options):
                self.assertIn(message, self.probe(*options, status=2))
        self.assertIn("simulator configuration: ", self.probe(XSEG_SIM_MEMORY_MB="odd", status=2))

    def test_unwritable_standard_output_is_reported(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            completed = subprocess.run([TOOL, "probe", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(completed.returncode, 2)
        self.assertIn("cannot be written", completed.stderr)


@unittest.skipIf(b"__asan_init" in pathlib.Path(sys.argv[1]).read_bytes(),
                 "AddressSanitizer cannot load a library that resolves its own symbols first")
class Driver(ProbeTest):
    """Tests with the simulated driver as libcuda.so.1, in which fills take no time."""

    def setUp(self):
        super().setUp()
        (self.folder / "libcuda.so.1").symlink_to(os.environ["XSEG_DRIVER"])
        self.paths = f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"

    def test_costs_are_measured(self):
        output = self.probe("--driver", "cuda", LD_LIBRARY_PATH=self.paths)
        self.assertIn("time of all calls of a row in us, measured: median and quartiles of 21", output)
        self.assertIn("no costs of a busy device: it could not be kept busy", output)
        self.assertRegex(output, r"driver +libcuda.so.1, CUDA \d+\.\d\n")
        report = self.report("--driver", "cuda", LD_LIBRARY_PATH=self.paths)
        self.assertEqual((report["costs_source"], report["preset"]), ("measured", None))
        create = self.cost(report, "cuMemCreate", 2 * MIB)
        self.assertEqual((create["idle"]["samples"], create["busy"]), (21, None))
        self.assertGreater(create["idle"]["median_us"], 0)
        self.assertGreater(create["first_us"], 0)
        for call in ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"):
            concurrent = self.cost(report, call, 2 * MIB, threads=2)["idle"]
            self.assertEqual(concurrent["samples"], 42)
            self.assertGreater(concurrent["median_us"], 0)

    def test_measured_costs_can_be_saved_and_loaded(self):
        path = self.folder / "device.costs"
        self.probe("--driver", os.environ["XSEG_DRIVER"], "--save-costs", path)
        self.assertRegex(path.read_text(),
                         r"^# Costs of the calls of the driver, measured on Simulated device 0 with CUDA \d+\.\d\.\n")
        self.assertEqual(self.report("--costs", path)["costs_source"], "modeled")

    def test_failing_call_of_two_threads_is_reported(self):
        for call in ("cuMemCreate", "cuMemMap", "cuMemAlloc", "cuCtxPushCurrent", "cuMemAddressReserve"):
            for nth in (30, 500, 2000, 4000):
                with self.subTest(call=call, nth=nth):
                    status, output = run("--driver", os.environ["XSEG_DRIVER"], XSEG_SIM_FAIL=f"{call}:{nth}:999")
                    self.assertIn(status, (0, 1), output)
                    self.assertEqual("CUDA_ERROR_UNKNOWN" in output, status == 1, output)

    def test_driver_can_be_selected_by_path(self):
        report = self.report("--driver", os.environ["XSEG_DRIVER"])
        self.assertEqual((report["costs_source"], report["preset"]), ("measured", None))
        self.assertEqual(report["driver"], os.environ["XSEG_DRIVER"])
        self.assertIn(r"./none\xff.so: cannot open", self.probe("--driver", "./none\udcff.so", status=2))

    def test_failing_driver_call_is_named(self):
        output = self.probe("--driver", "cuda", LD_LIBRARY_PATH=self.paths, XSEG_SIM_FAIL="cuInit:1:100", status=2)
        self.assertIn("cuInit", output)
        self.assertIn("CUDA_ERROR_NO_DEVICE (100)", output)
        output = self.probe("--driver", "cuda", LD_LIBRARY_PATH=self.paths, XSEG_SIM_FAIL="cuMemsetD8Async:1:999", status=1)
        self.assertIn("failed: cuMemsetD8Async", output)

    def test_missing_driver_is_reported(self):
        status, output = run("--driver", "cuda")
        if "loaded" in output:
            self.assertEqual(status, 2)
            self.assertTrue(re.search(r"libcuda\.so\.1", output), output)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
