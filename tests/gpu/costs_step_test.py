# SPDX-License-Identifier: MIT
"""The step that measures the costs of driver calls."""
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gpu_pack  # pylint: disable=wrong-import-position


class Costs(gpu_pack.Packed):
    def setUp(self):
        super().setUp()
        self.results = self.out / "costs"

    def table(self):
        return [line.split("\t") for line in (self.results / "costs.tsv").read_text().splitlines()]

    def costs(self):
        file, = self.results.glob("*.costs")
        lines = [line.partition(" = ") for line in file.read_text().splitlines() if line[0] != "#"]
        return file, {key: value for key, _, value in lines}

    def test_measured_preset_equals_itself(self):
        self.run_sim("--only", "costs", *gpu_pack.QUICK, XSEG_SIM_COSTS="consumer")
        file, costs = self.costs()
        self.assertEqual(file.name, "simulated-device-0.costs")
        self.assertEqual((costs["name"], costs["create"], costs["unmap_mapping"], costs["alloc"]),
                         ("Simulated device 0", "7600 150 0", "11500 0 0", "40000 180 60000"))
        self.assertFalse((self.results / "differs.md").exists())
        report = self.report()
        self.assertIn("All times are **modeled**, by the simulator's costs `consumer`", report)
        self.assertIn("; nearest is `consumer`", report)
        self.assertIn("| cuMemCreate of 2 MiB | 7.9 | 7.3 | 1.08 | 7.9 | 1.00 |", report)
        self.assertIn("| cuMemSetAccess | 128 | 4940.8 (4940.8 to 4940.8) | 38.6 |", report)
        self.assertIn("{.name = \"simulated_device_0\", .reserve = 9000, ", report)
        self.assertIn("<summary>costs/simulated-device-0.costs</summary>", report)
        pairs = [row for row in self.table() if row[4] == "2"]
        self.assertEqual(len(pairs), 12)
        self.assertTrue(all(int(row[10]) > 0 for row in pairs))
        process = subprocess.run([self.folder / "bin/xseg", "probe", "--costs", file], check=True, text=True,
                                 capture_output=True, env={"LD_LIBRARY_PATH": str(self.folder / "lib")})
        self.assertIn(f"modeled ({file})", process.stdout)

    def test_low_memory_and_failures_are_reported(self):
        output = self.run_sim("--only", "costs", *gpu_pack.QUICK, status=1, XSEG_SIM_MEMORY_MB="64",
                              XSEG_SIM_FAIL="cuMemAlloc:2+1:2")
        self.assertIn("done, with failures", output)
        report = self.report()
        self.assertIn("- not enough free memory for sizes of 40.00 MiB and more", report)
        self.assertIn("- **failed**: cuMemAlloc with CUDA_ERROR_OUT_OF_MEMORY (2), costs of 64 KiB", report)
        self.assertIn("- cuMemAlloc was not measured", report)
        self.assertIn("| cuMemCreate | 64 | - | not enough free memory | - | - | - |", report)
        self.assertIn("| cuMemMap of 20 MiB | 2.0 | 2.0 | 1.00 |", report)
        for words in ("| cuMemMap of 512 MiB", "| cuMemAlloc of", "each of 128 pages"):
            self.assertNotIn(words, report)
        self.assertEqual(self.costs()[1]["create"], "7000 150 0")

    def test_another_driver_is_measured_and_differs(self):
        driver = self.folder.parent / "libcuda.so.1"
        shutil.copy(self.folder / "lib/libxseg-sim.so.0", driver)
        self.run_all("--driver", str(driver), "--out", str(self.out), "--only", "costs", "--minutes", "60", status=1)
        report = self.report()
        self.assertIn("All times are **measured** on Simulated device 0", report)
        self.assertRegex(report.partition("## Steps")[0],
                         r"- cuMemAlloc of 512 MiB takes \d+\.\d us, and 132.2 us by the preset `a100`")

    def test_missing_driver_is_reported(self):
        self.run_all("--driver", self.no_driver(), "--only", "costs", *gpu_pack.QUICK, "--out", str(self.out), status=2)
        self.assertIn("skipped: xseg probe: the driver cannot be loaded: ", self.report())
        self.assertFalse((self.results / "costs.tsv").exists())


if __name__ == "__main__":
    gpu_pack.main()
