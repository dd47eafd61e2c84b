# SPDX-License-Identifier: MIT
"""The step that verifies memory contents."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import gpu_pack  # pylint: disable=wrong-import-position


class Contents(gpu_pack.Packed):
    def only_contents(self, **environment):
        self.run_sim("--only", "contents", *gpu_pack.QUICK, **environment)
        return [line.split("\t") for line in (self.out / "contents/contents.tsv").read_text().splitlines()]

    def test_every_section_is_done_and_right(self):
        lines = self.only_contents()
        self.assertEqual([line[0] for line in lines if line[1:4] == ["end", "0", "ok"]],
                         ["selftest", "random", "pause", "capture", "share"])
        self.assertEqual({line[2] for line in lines if line[1] == "mismatches"}, {"0"})
        report = self.report()
        self.assertIn("Nothing that was asked.", report)
        self.assertIn("modeled: functions of the host stood for kernels", report)
        for section in ("selftest", "random", "pause", "capture", "share"):
            self.assertRegex(report, rf"\n\| {section} (\| [1-9]\d* ){{5}}\| 0 \|.*\| right \|\n")
        self.assertEqual([path.name for path in (self.out / "contents").glob("paused-*")], [])

    def test_device_without_virtual_memory_management(self):
        lines = self.only_contents(XSEG_SIM_VMM="0")
        self.assertEqual([line[0] for line in lines if line[1:4] == ["end", "0", "ok"]],
                         ["selftest", "random", "capture"])
        self.assertRegex(self.report(), r"\| pause .*\| skipped: the device has no virtual memory management \|")

    def test_little_memory(self):
        self.assertIn("skipped: 48 MiB of the device's memory are free, and the patterns need 64",
                      self.run_sim("--only", "contents", status=2, XSEG_SIM_MEMORY_MB="48"))

    def test_error_is_reported_and_the_other_sections_run(self):
        program = self.folder / "bin/gpu-contents"
        program.rename(program.with_name("right"))
        program.write_text('#!/usr/bin/env bash\ncase $1 in\n'
                           'random) exec "${0%/*}/right" "$@" --corrupt ;;\n'
                           'pause) kill -SEGV $$ ;;\ncapture) trap "" ALRM; sleep 100 ;;\n'
                           '*) exec "${0%/*}/right" "$@" ;;\nesac\n')
        program.chmod(0o755)
        # The time of the section that hangs is over after a second; the number stands behind five other arguments.
        programs = self.folder.parent / "programs"
        programs.mkdir()
        timeout = programs / "timeout"
        timeout.write_text('#!/bin/bash\n[[ " $* " != *" capture "* ]] || set -- "${@:1:5}" 1 "${@:7}"\n'
                           'exec /usr/bin/timeout "$@"\n')
        timeout.chmod(0o755)
        said = self.run_sim("--only", "contents", *gpu_pack.QUICK, status=1, PATH=f"{programs}:/usr/bin:/bin")
        self.assertIn("done, with failures", said)
        differs = (self.out / "contents/differs.md").read_text()
        self.assertRegex(differs, r"(?m)^- random: block \d+ of .* expected [0-9a-f]{16}, got [0-9a-f]{16}; last operations: ")
        self.assertIn("- pause: the section ended with status 139 and told nothing\n", differs)
        self.assertIn("- capture: the section ended with status 137 and told nothing\n", differs)
        for section in ("selftest", "share"):
            self.assertRegex(self.report(), rf"\n\| {section} .*\| right \|\n")


if __name__ == "__main__":
    gpu_pack.main()
