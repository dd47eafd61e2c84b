# SPDX-License-Identifier: MIT
"""The step that verifies facts: its report for drivers that agree, differ, crash and hang."""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gpu_pack  # pylint: disable=wrong-import-position


class Facts(gpu_pack.Packed):
    # Faults of an entry point, with the options of the program.  These programs wait for seconds, so they run during other tests.
    WAITING = {"deaf:cuDevicePrimaryCtxGetState": ("--from", "FACT-CTX-1", "--limit", "2"),
        "slow:cuEventQuery": ("--from", "FACT-EVT-1", "--limit", "20", "--seconds", "4"),}

    @classmethod
    def setUpClass(cls):
        cls.waiting = {}
        for fault, options in cls.WAITING.items():
            process = subprocess.Popen(  # pylint: disable=consider-using-with
                [gpu_pack.PATHS.packed / "bin/gpu-facts", "--table", *options], text=True, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env={"XSEG_DRIVER": gpu_pack.PATHS.bad_driver, "BAD_DRIVER": fault,
                                                "XSEG_SIM_BYTES": "1", "XSEG_SIM_DEVICES": "2"})
            cls.addClassCleanup(process.__exit__, None, None, None)
            cls.waiting[fault] = process

    def answers_of(self, fault):
        rows = [line.split("\t") for line in self.waiting[fault].communicate()[0].splitlines()]
        return {row[0]: (row[1], row[2]) for row in rows}

    def verify(self, *options, status, **environment):
        self.run_sim("--only", "facts", *gpu_pack.QUICK, *options, status=status, **environment)
        return self.answers()

    def verify_fault(self, fault, status=1):
        self.run_all("--only", "facts", *gpu_pack.QUICK, "--driver", gpu_pack.PATHS.bad_driver, "--out", str(self.out),
                     status=status, BAD_DRIVER=fault)
        return self.answers()

    def answers(self):
        rows = [line.split("\t") for line in self.read("facts.tsv").splitlines()[1:]]
        self.assertEqual({row[4] for row in rows}, {"holds"})
        listed = subprocess.run([self.folder / "bin/gpu-facts", "--list"], check=True, text=True, capture_output=True)
        self.assertEqual([row[0] for row in rows], [line.split("\t")[0] for line in listed.stdout.splitlines()])
        return {row[0]: (row[1], row[2]) for row in rows}

    def read(self, name):
        return (self.out / "facts" / name).read_text()

    def assert_all_hold_except(self, answers, *exceptions):
        """All facts except the exceptions hold; the list of differences contains the exceptions that were not skipped."""
        self.assertEqual({fact for fact, (verdict, _) in answers.items() if verdict != "holds"}, set(exceptions))
        self.assertEqual(re.findall(r"(?m)^- (FACT-[A-Z]+-\d+)", self.read("differs.md")),
                         [fact for fact in exceptions if answers[fact][0] != "skipped"])

    def page(self):
        return dict(re.findall(r"(?m)^\| (FACT-[A-Z]+-\d+) \|.* \| ([^|]*) \|$", self.read("driver-facts.md")))

    def test_driver_with_equal_answers(self):
        answers = self.verify(status=0)
        self.assert_all_hold_except(answers)
        self.assertEqual(answers["FACT-GRAN-1"], ("holds", "2048 KiB"))
        self.assertEqual(self.page(), {fact: "modeled: yes" for fact in answers})
        self.assertIn("\nGPUs checked so far: Simulated device 0, driver CUDA ", self.read("driver-facts.md"))
        self.assertIn("Modeled answers of Simulated device 0", self.read("report.md"))

    def test_driver_without_batches(self):
        answers = self.verify(status=1, XSEG_SIM_BATCH="0")
        self.assert_all_hold_except(answers, "FACT-ACC-1", "FACT-UNM-2")
        answer = "cuMemSetAccess(base, 4 * GRANULE): CUDA_ERROR_INVALID_VALUE, expected CUDA_SUCCESS"
        self.assertEqual(answers["FACT-ACC-1"], ("differs", answer))
        self.assertEqual(self.page()["FACT-ACC-1"], "modeled: no: " + answer)
        for line in self.read("differs.md").splitlines():
            self.assertIn("With `XSEG_SIM_BATCH=0`, the simulator has the same answer.", line)
        self.assert_settings("XSEG_SIM_BATCH=0")

    def test_settings_of_other_machines(self):
        self.verify(status=1, XSEG_SIM_PEERS="0", XSEG_SIM_REUSE_HANDLES="1", XSEG_SIM_ADDRESSES_MB="4096",
                    XSEG_SIM_DEVICES="3", XSEG_SIM_MEMORY_MB="768", XSEG_SIM_RDMA="absent", XSEG_SIM_DMA_BUF="0",
                    XSEG_SIM_ADDRESS_RANGE="0")
        self.assertRegex(self.read("differs.md"), r"^- FACT-RES-7 .*With `XSEG_SIM_ADDRESSES_MB=4096`, the simulator has the same")
        self.assert_settings("XSEG_SIM_PEERS=0", "XSEG_SIM_REUSE_HANDLES=1", "XSEG_SIM_ADDRESSES_MB=4096",
                             "XSEG_SIM_DEVICES=3", "XSEG_SIM_MEMORY_MB=768", "XSEG_SIM_RDMA=absent",
                             "XSEG_SIM_DMA_BUF=0", "XSEG_SIM_ADDRESS_RANGE=0")

    def assert_settings(self, *settings):
        """These settings are proposed, with those of this test's machine, and all answers with them equal the driver's."""
        proposed = {line.split("\t")[0] for line in self.read("settings.tsv").splitlines()}
        self.assertEqual(proposed - {"XSEG_SIM_DEVICES=2", "XSEG_SIM_MEMORY_MB=1024"}, set(settings))
        same, count = re.search(r"answers of the simulator to (\d+) of (\d+) facts equal", self.read("report.md")).groups()
        self.assertEqual(same, count)
        self.assertIn("export XSEG_SIM_", self.read("report.md"))

    def test_device_without_virtual_memory_management(self):
        answers = self.verify(status=0, XSEG_SIM_VMM="0")
        self.assertEqual(answers["FACT-MAP-1"], ("skipped", "the device has no virtual memory management"))
        for fact in ("FACT-OPEN-6", "FACT-ALC-1", "FACT-STR-10", "FACT-EVT-6", "FACT-CAP-18"):
            self.assertEqual(answers[fact][0], "holds")
        self.assertEqual(self.page()["FACT-MAP-1"], "skipped: the device has no virtual memory management")
        self.assert_settings("XSEG_SIM_VMM=0")

    def test_one_device_and_little_memory(self):
        answers = self.verify(status=0, XSEG_SIM_DEVICES="1", XSEG_SIM_MEMORY_MB="2")
        self.assertEqual(answers["FACT-EVT-6"], ("skipped", "there is one device only"))
        self.assertEqual(answers["FACT-CRE-3"], ("skipped", "2 MiB of free memory, 64 MiB required"))
        self.assertIn("low memory, 2 MiB free: cuMemCreate", answers["FACT-MAP-3"][1])
        self.assertEqual(answers["FACT-MAP-5"][0], "holds")
        self.assertIn("XSEG_SIM_MEMORY_MB=2\t", self.read("settings.tsv"))

    def test_error_does_not_affect_later_facts(self):
        # FACT-CTX-5 fails while no context is current, so later facts in the same process would fail, too.
        answers = self.verify(status=1, XSEG_SIM_FAIL="cuEventCreate:1:700")
        failed = [fact for fact, (_, answer) in answers.items()
                  if "cuEventCreate(&event, CU_EVENT_DISABLE_TIMING): CUDA_ERROR_ILLEGAL_ADDRESS, expected" in answer]
        self.assert_all_hold_except(answers, *failed)
        self.assertIn("FACT-CTX-5", failed)
        self.assertEqual(answers["FACT-CTX-6"][0], "holds")
        self.assertIn("No setting explains the difference: change the simulator.", self.read("differs.md"))

    def test_check_that_crashes(self):
        answers = self.verify_fault("crash:cuStreamGetCtx")
        self.assert_all_hold_except(answers, "FACT-STR-4", "FACT-CAP-14")
        self.assertEqual(answers["FACT-STR-4"], ("crashed", "signal 11 ended the process, Segmentation fault"))

    def test_check_that_hangs(self):
        answers = self.verify_fault("hang:cuDevicePrimaryCtxGetState")
        self.assert_all_hold_except(answers, "FACT-CTX-1")
        self.assertEqual(answers["FACT-CTX-1"], ("hung", "no result within 20 s"))

    def test_old_driver(self):
        answers = self.verify_fault("missing:cuStreamGetId")
        self.assertEqual(answers["FACT-OPEN-1"], ("differs", "the driver has no cuStreamGetId"))
        lacking = [fact for fact, answer in answers.items() if answer == ("skipped", "the driver has no cuStreamGetId")]
        self.assertEqual(lacking, ["FACT-OPEN-3", "FACT-STR-1", "FACT-STR-2", "FACT-STR-3", "FACT-CAP-14"])
        self.assert_all_hold_except(answers, "FACT-OPEN-1", *lacking)

    def test_driver_that_cannot_be_opened(self):
        for fault, reason in (("crash:cuInit", "signal 11 ended the process, Segmentation fault"),
                              ("hang:cuInit", "no result within 30 s")):
            with self.subTest(fault):
                self.assertEqual(set(self.verify_fault(fault).values()), {("skipped", "the driver cannot be opened: " + reason)})
                self.assertEqual(self.read("differs.md"), f"- the driver cannot be opened: {reason}\n")
                self.assertFalse((self.out / "facts/driver-facts.md").exists())

    def test_report_lists_facts_after_the_time_limit(self):
        # A wrapper of the program replaces its last three answers by those after the time limit.
        program = self.folder / "bin/gpu-facts"
        program.rename(program.with_name("in-time"))
        program.write_text('#!/bin/bash\n[ "$1" = --table ] && [ "$XSEG_DRIVER" != "$GPU_SIMULATOR" ] || '
                           'exec "${0%/*}/in-time" "$@"\n"${0%/*}/in-time" "$@" | tac | '
                           "sed -E '1,3s/\\t.*/\\tskipped\\tno time left: three quarters of 9 s\\t0.00\\t/' | tac\n")
        program.chmod(0o755)
        answers = self.verify_fault("", status=1)
        unreached = list(answers)[-3:]
        self.assert_all_hold_except(answers, *unreached)
        self.assertIn("done, with failures", self.report())
        self.assertIn(f"- no time left: three quarters of 9 s: {', '.join(unreached)}\n", self.read("report.md"))

    def test_check_that_ignores_its_alarm(self):
        answers = self.answers_of("deaf:cuDevicePrimaryCtxGetState")
        self.assertEqual(answers["FACT-CTX-1"], ("hung", "no result within 2 s"))
        # Another process verifies the other facts; on a busy host, two seconds may be too short for some of them.
        self.assertEqual({verdict for verdict, _ in answers.values()} - {"hung", "holds"}, set())

    def test_no_check_begins_after_three_quarters_of_the_time(self):
        answers = self.answers_of("slow:cuEventQuery")
        verified = [fact for fact, (verdict, _) in answers.items() if verdict != "skipped"]
        # The first check uses all of the time.  A busy host may delay its start past the limit.
        self.assertLessEqual(set(verified), {"FACT-EVT-1"})
        unreached = [answer for fact, (_, answer) in answers.items() if fact not in verified]
        self.assertEqual(set(unreached), {"no time left: three quarters of 4 s"})

    def test_no_driver(self):
        output = self.run_all("--driver", self.no_driver(), "--only", "facts", "--out", str(self.out), status=2)
        self.assertIn("skipped: there is no driver: ", output)
        self.assertEqual({verdict for verdict, _ in self.answers().values()}, {"skipped"})


if __name__ == "__main__":
    gpu_pack.main()
