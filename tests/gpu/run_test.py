# SPDX-License-Identifier: MIT
"""tests/gpu/run on the simulated driver: from a packed folder, without a network, as a user runs it."""
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gpu_pack  # pylint: disable=wrong-import-position

WITHOUT_NETWORK = ["unshare", "-rn"]


def has_namespaces():
    try:
        return subprocess.run([*WITHOUT_NETWORK, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


class Whole(gpu_pack.Packed):
    def test_from_a_packed_folder_without_a_network(self):
        # With this home, PyTorch is not found in the user's cache; torch_step_test.py tests the step that needs PyTorch.
        home = str(self.folder.parent)
        output = self.run_sim(*gpu_pack.QUICK, before=WITHOUT_NETWORK if has_namespaces() else (), HOME=home, XDG_CACHE_HOME=home)
        report = self.report()
        self.assertIn("minimum of each step |", report)
        for step in sorted((self.folder / "steps").iterdir()):
            self.assertIn(f"\n| {step.name.partition('-')[2]} | ", report)
        self.assertNotIn("not started", report)
        self.assertNotIn("killed after", report)
        self.assertIn("No differences.", report, output)


class Steps(gpu_pack.Packed):
    GOOD = (45, "echo fine >$GPU_OUT/report.md; printf 'a\\t1\\n' >$GPU_OUT/raw.tsv")

    def test_hanging_step_is_killed_and_the_others_run(self):
        self.steps(first=self.GOOD, hangs=(1, "trap '' TERM; sleep 1000 & while :; do sleep 1; done"), last=self.GOOD)
        self.assertIn("killed after 1 s", self.run_sim(status=1))
        self.assert_both_ran("the step did not complete: killed after 1 s")

    def test_crashing_step_does_not_stop_the_others(self):
        self.steps(first=self.GOOD, crashes=(45, "echo half >$GPU_OUT/report.md; kill -SEGV $$"), last=self.GOOD)
        self.run_sim(status=1)
        self.assert_both_ran("the step did not complete: failed with status 139")
        self.assertIn("\nhalf\n", self.report())

    def test_step_that_loses_the_device_does_not_stop_the_others(self):
        driver = self.folder.parent / "libcuda.so.1"
        shutil.copy(self.folder / "lib/libxseg-sim.so.0", driver)
        self.steps(first=self.GOOD, loses=(45, f"rm {driver}; exit 1"), last=self.GOOD)
        self.run_all("--driver", str(driver), "--out", str(self.out), status=1)
        self.assert_both_ran("the device after the step: fails")

    def test_device_with_other_contents_fails(self):
        """Without XSEG_SIM_BYTES, the simulated driver copies no bytes."""
        for has_contents in (1, 0):
            result = subprocess.run([self.folder / "bin/gpu-info", "--alive"], check=False, text=True, stdout=subprocess.PIPE,
                                    env={"XSEG_DRIVER": self.folder / "lib/libxseg-sim.so.0", "XSEG_SIM_BYTES": str(has_contents)})
            self.assertEqual((result.returncode, "device memory contains" in result.stdout),
                             (0, False) if has_contents else (1, True), result.stdout)

    def assert_both_ran(self, difference):
        report = self.report()
        self.assertIn(difference, report.partition("## Steps")[0])
        for step in ("first", "last"):
            self.assertIn(f"## The step {step}\n\nfine\n", report)
            self.assertIn(f"<summary>{step}/raw.tsv</summary>", report)
            self.assertRegex(report, rf"\| {step} \| The step {step} \| \d+ \| done \|")

    def test_each_result_is_on_disk_before_the_next_step_begins(self):
        self.steps(first=self.GOOD, last=(45, "cp $GPU_OUT/../report.md $GPU_OUT/seen.tsv"))
        self.run_sim()
        report = (self.out / "last/seen.tsv").read_text()
        self.assertIn("## The step first\n\nfine\n", report)
        self.assertIn("| last | The step last | not started |", report.replace("| | not", "| not"))

    def test_differences_begin_the_report_and_set_the_exit_status(self):
        self.steps(first=(45, "echo '- water is wet' >$GPU_OUT/differs.md"), last=self.GOOD)
        self.run_sim(status=1)
        self.assertRegex(self.report(), r"(?s)Differences from the simulator\n\n\*\*first\*\*\n\n- water is wet\n.*## Steps")

    def test_skipped_step_has_a_reason(self):
        self.steps(first=(45, "echo 'no kernels here'; exit 77"), last=self.GOOD)
        self.run_sim()
        self.assertIn("skipped: no kernels here", self.report())

    def test_step_gets_the_documented_environment(self):
        self.steps(first=(90, "env | grep ^GPU_ >$GPU_OUT/env.tsv; ls $GPU_ROOT >>$GPU_OUT/env.tsv; "
                              "[ -f $XSEG_DRIVER ] && [ -z \"$XSEG_ALLOC_CONF\" ] && [ -f $GPU_SIMULATOR ]"))
        self.run_sim("--quick", "--minutes", "3", XSEG_ALLOC_CONF="x", XSEG_SIM_MEMORY_MB="64")
        environment = (self.out / "first/env.tsv").read_text()
        for line in (f"GPU_OUT={self.out}/first", "GPU_SECONDS=30", "GPU_DRIVER=sim", "GPU_QUICK=yes",
                     "GPU_FREE_MIB=64", "GPU_HAS_VMM=yes", f"GPU_ROOT={self.folder}", "traces", "bin", "lib"):
            self.assertIn(line + "\n", environment)


class Options(gpu_pack.Packed):
    def test_list_names_each_step_and_its_time(self):
        self.steps(first=(45, "true"), last=(90, "true"))
        self.assertEqual(self.run_all("--list", "--minutes", "3"), "first              15 s  The step first\n"
                         "last               30 s  The step last\n")

    def test_option_only_runs_the_named_steps(self):
        self.steps(first=(45, "false"), last=(45, "true"))
        self.assertNotIn("The step first", self.run_sim("--only", "last") + self.report())
        self.assertIn("unknown step, other", self.run_sim("--only", "other", status=2))

    def test_error_message_contains_the_invalid_option(self):
        for options, words in ((["--minutes", "0"], "from 1 to 60"), (["--minutes", "x"], "from 1 to 60"),
                               (["--minutes"], "needs a value"), (["--fast"], "unknown option, --fast"),
                               (["--driver", "/none"], 'invalid value, "/none"')):
            with self.subTest(options):
                self.assertIn(words, self.run_all(*options, status=2))

    def test_help_is_the_header(self):
        self.assertIn("--minutes N", self.run_all("--help"))


class Hosts(gpu_pack.Packed):
    RUNS = (45, "echo fine >$GPU_OUT/report.md")

    def setUp(self):
        super().setUp()
        self.steps(first=self.RUNS)

    def test_no_driver(self):
        output = self.run_all("--driver", self.no_driver(), "--out", str(self.out), status=1)
        self.assertIn("there is no driver: ", output)
        self.assertIn("there is no driver: ", self.report())
        self.assertIn("# xseg on no GPU\n", self.report())
        self.assertIn("\nfine\n", self.report())

    def test_old_driver(self):
        output = self.run_all("--driver", gpu_pack.PATHS.old_driver, "--out", str(self.out), status=1,
                              XSEG_OLD_DRIVER="11080")
        self.assertRegex(output, "older than CUDA 11.0|CUDA 11.8, and the library requires 12.0")
        self.assertIn("\nfine\n", self.report())

    def test_device_without_virtual_memory_management(self):
        self.run_sim(XSEG_SIM_VMM="0")
        self.assertIn("| virtual memory management | no |", self.report())

    def test_another_process_uses_nearly_all_memory(self):
        self.run_sim(XSEG_SIM_MEMORY_MB="2")
        self.assertIn("0.00 GiB free", self.report())

    def test_read_only_folder(self):
        if not has_namespaces():
            self.skipTest("user namespaces are not available, and root can write to every folder")
        read_only = ["unshare", "-rm", "sh", "-c", f"mount --bind {self.folder} {self.folder} && "
                     f"mount -o remount,bind,ro {self.folder} && exec \"$@\"", "sh"]
        output = self.run_all("--driver", "sim", before=read_only, TMPDIR=str(self.out.parent))
        self.assertRegex(output, "cannot write to .*; results are written to ")
        output = self.run_all("--driver", "sim", "--out", str(self.folder / "out"), status=2, before=read_only)
        self.assertIn("specify another folder with --out", output)

    def test_instance_of_a_gpu_is_named(self):
        self.run_all("--driver", gpu_pack.PATHS.bad_driver, "--out", str(self.out), BAD_DRIVER="mig")
        self.assertIn("# xseg on NVIDIA H100 80GB HBM3 MIG 1g.10gb\n", self.report())
        self.assertIn("| MIG | an instance: it shares its GPU with others |", self.report())
        self.assertIn("\nfine\n", self.report())

    def test_missing_programs_are_reported(self):
        shutil.rmtree(self.folder / "bin")
        self.assertIn("create the folder again with tests/gpu/pack", self.run_all(status=2))


class Pack(gpu_pack.Packed):
    def test_folder_of_another_user_is_not_changed(self):
        folder = self.folder.parent / "mine"
        folder.mkdir()
        (folder / "thesis").write_text("the only copy")
        process = subprocess.run([gpu_pack.PATHS.source / "tests/gpu/pack", "--builddir", gpu_pack.PATHS.build, folder],
                                 check=False, capture_output=True, text=True)
        self.assertEqual(process.returncode, 1)
        self.assertIn("specify another folder", process.stderr)
        self.assertTrue((folder / "thesis").is_file())

    def test_archive_contains_one_folder(self):
        archive = self.folder.parent / "pack.tar.gz"
        subprocess.run([gpu_pack.PATHS.source / "tests/gpu/pack", "--builddir", gpu_pack.PATHS.build, archive], check=True,
                       stdout=subprocess.DEVNULL)
        names = subprocess.run(["tar", "-tf", archive], check=True, capture_output=True, text=True).stdout
        self.assertTrue(all(name.startswith("pack/") for name in names.split()))
        self.assertIn("pack/run\n", names)


if __name__ == "__main__":
    gpu_pack.main()
