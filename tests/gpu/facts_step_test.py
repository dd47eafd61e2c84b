# SPDX-License-Identifier: MIT
"""The step that verifies facts: its report for drivers that agree, differ, crash and hang."""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gpu_pack  # pylint: disable=wrong-import-position


class Facts(gpu_pack.Packed):
    # How an entry point is bad, and what the program is asked: for some seconds nothing happens, beside the other tests.
    WAITING = {"deaf:cuDevicePrimaryCtxGetState": ("--from", "FACT-CTX-1", "--limit", "2"),
        "slow:cuEventQuery": ("--from", "FACT-EVT-1", "--limit", "20", "--seconds", "4"),}

    @classmethod
    def setUpClass(cls):
        cls.waiting = {}
        for bad, options in cls.WAITING.items():
            process = subprocess.Popen(  # pylint: disable=consider-using-with
                [gpu_pack.PLACES.packed / "bin/gpu-facts", "--table", *options], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={"XSEG_DRIVER": gpu_pack.PLACES.bad_driver, "BAD_DRIVER": bad, "XSEG_SIM_BYTES": "1", "XSEG_SIM_DEVICES": "2"})
            cls.addClassCleanup(process.__exit__, None, None, None)
            cls.waiting[bad] = process

    def waited_for(self, bad):
        rows = [line.split("\t") for line in self.waiting[bad].communicate()[0].splitlines()]
        return {row[0]: (row[1], row[2]) for row in rows}

    def ask(self, *options, status, **environment):
        self.run_sim("--only", "facts", *gpu_pack.QUICK, *options, status=status, **environment)
        return self.answers()

    def ask_bad(self, bad, status=1):
        self.run_all("--only", "facts", *gpu_pack.QUICK, "--driver", gpu_pack.PLACES.bad_driver, "--out", str(self.out),
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
        return dict(re.findall(r"(?m)^\| (FACT-[A-Z]+-\d+) \|.* \| ([^|]*) \|$", self.read("driver-facts.md")))

    def test_a_driver_that_agrees(self):
        answers = self.ask(status=0)
        self.assert_others_hold(answers)
        self.assertEqual(answers["FACT-GRAN-1"], ("holds", "2048 KiB"))
        self.assertEqual(self.page(), {fact: "modeled: yes" for fact in answers})
        self.assertIn("\nGPUs checked so far: Simulated device 0, driver CUDA ", self.read("driver-facts.md"))
        self.assertIn("Modeled answers of Simulated device 0", self.read("report.md"))

    def test_a_driver_without_batches(self):
        answers = self.ask(status=1, XSEG_SIM_BATCH="0")
        self.assert_others_hold(answers, "FACT-ACC-1", "FACT-UNM-2")
        said = "cuMemSetAccess(base, 4 * GRANULE): CUDA_ERROR_INVALID_VALUE, expected CUDA_SUCCESS"
        self.assertEqual(answers["FACT-ACC-1"], ("differs", said))
        self.assertEqual(self.page()["FACT-ACC-1"], "modeled: no: " + said)
        for line in self.read("differs.md").splitlines():
            self.assertIn("`XSEG_SIM_BATCH=0` makes the simulator answer so.", line)
        self.assert_settings("XSEG_SIM_BATCH=0")

    def test_settings_of_other_machines(self):
        self.ask(status=1, XSEG_SIM_PEERS="0", XSEG_SIM_REUSE_HANDLES="1", XSEG_SIM_ADDRESSES_MB="4096",
                 XSEG_SIM_DEVICES="3", XSEG_SIM_MEMORY_MB="768", XSEG_SIM_RDMA="absent", XSEG_SIM_DMA_BUF="0",
                 XSEG_SIM_ADDRESS_RANGE="0")
        self.assertRegex(self.read("differs.md"), r"^- FACT-RES-7 .*`XSEG_SIM_ADDRESSES_MB=4096` makes the simulator")
        self.assert_settings("XSEG_SIM_PEERS=0", "XSEG_SIM_REUSE_HANDLES=1", "XSEG_SIM_ADDRESSES_MB=4096",
                             "XSEG_SIM_DEVICES=3", "XSEG_SIM_MEMORY_MB=768", "XSEG_SIM_RDMA=absent",
                             "XSEG_SIM_DMA_BUF=0", "XSEG_SIM_ADDRESS_RANGE=0")

    def assert_settings(self, *settings):
        """These are proposed, no other that is not everywhere, and the simulator agrees with them."""
        proposed = {line.split("\t")[0] for line in self.read("settings.tsv").splitlines()}
        self.assertEqual(proposed - {"XSEG_SIM_DEVICES=2", "XSEG_SIM_MEMORY_MB=1024"}, set(settings))
        same, asked = re.search(r"the simulator answers (\d+) of (\d+) facts", self.read("report.md")).groups()
        self.assertEqual(same, asked)
        self.assertIn("export XSEG_SIM_", self.read("report.md"))

    def test_device_without_virtual_memory_management(self):
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

    def test_error_does_not_affect_later_facts(self):
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
        self.assertEqual(answers["FACT-STR-4"], ("crashed", "the process was ended by signal 11, Segmentation fault"))

    def test_a_fact_that_hangs(self):
        answers = self.ask_bad("hang:cuDevicePrimaryCtxGetState")
        self.assert_others_hold(answers, "FACT-CTX-1")
        self.assertEqual(answers["FACT-CTX-1"], ("hung", "it did not end within 20 s"))

    def test_a_driver_that_is_too_old(self):
        answers = self.ask_bad("missing:cuStreamGetId")
        self.assertEqual(answers["FACT-OPEN-1"], ("differs", "the driver has no cuStreamGetId"))
        lacking = [fact for fact, answer in answers.items() if answer == ("skipped", "the driver has no cuStreamGetId")]
        self.assertEqual(lacking, ["FACT-OPEN-3", "FACT-STR-1", "FACT-STR-2", "FACT-STR-3", "FACT-CAP-14"])
        self.assert_others_hold(answers, "FACT-OPEN-1", *lacking)

    def test_a_driver_that_cannot_be_opened(self):
        for bad, why in (("crash:cuInit", "the process was ended by signal 11, Segmentation fault"),
                         ("hang:cuInit", "it did not end within 30 s")):
            with self.subTest(bad):
                self.assertEqual(set(self.ask_bad(bad).values()), {("skipped", "the driver cannot be opened: " + why)})
                self.assertEqual(self.read("differs.md"), f"- the driver cannot be opened: {why}\n")
                self.assertFalse((self.out / "facts/driver-facts.md").exists())

    def test_facts_that_there_was_no_time_for_are_named(self):
        # A stand-in for the program: its last three answers are those of a program whose time is over.
        program = self.folder / "bin/gpu-facts"
        program.rename(program.with_name("in-time"))
        program.write_text('#!/bin/bash\n[ "$1" = --table ] && [ "$XSEG_DRIVER" != "$GPU_SIMULATOR" ] || '
                           'exec "${0%/*}/in-time" "$@"\n"${0%/*}/in-time" "$@" | tac | '
                           "sed -E '1,3s/\\t.*/\\tskipped\\tthere was no time left: three quarters of 9 s\\t0.00\\t/' | tac\n")
        program.chmod(0o755)
        answers = self.ask_bad("", status=1)
        late = list(answers)[-3:]
        self.assert_others_hold(answers, *late)
        self.assertIn("done, with failures", self.report())
        self.assertIn(f"- there was no time left: three quarters of 9 s: {', '.join(late)}\n", self.read("report.md"))

    def test_a_fact_that_no_alarm_ends(self):
        answers = self.waited_for("deaf:cuDevicePrimaryCtxGetState")
        self.assertEqual(answers["FACT-CTX-1"], ("hung", "it did not end within 2 s"))
        # Another process asks on; on a busy machine, two seconds may be too short for others as well.
        self.assertEqual({verdict for verdict, _ in answers.values()} - {"hung", "holds"}, set())

    def test_three_quarters_of_the_time(self):
        answers = self.waited_for("slow:cuEventQuery")
        asked = [fact for fact, (verdict, _) in answers.items() if verdict != "skipped"]
        # The first one takes all of it; or a busy machine has taken it before.
        self.assertLessEqual(set(asked), {"FACT-EVT-1"})
        late = [said for fact, (_, said) in answers.items() if fact not in asked]
        self.assertEqual(set(late), {"there was no time left: three quarters of 4 s"})

    def test_no_driver(self):
        said = self.run_all("--driver", self.no_driver(), "--only", "facts", "--out", str(self.out), status=2)
        self.assertIn("skipped: there is no driver: ", said)
        self.assertEqual({verdict for verdict, _ in self.answers().values()}, {"skipped"})


if __name__ == "__main__":
    gpu_pack.main()
