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

    def test_all_sections_are_correct(self):
        lines = self.only_contents()
        self.assertEqual([line[0] for line in lines if line[1:4] == ["end", "0", "ok"]],
                         ["selftest", "random", "pause", "capture", "share"])
        self.assertEqual({line[2] for line in lines if line[1] == "mismatches"}, {"0"})
        report = self.report()
        self.assertIn("No differences.", report)
        self.assertIn("modeled: host functions replaced kernels", report)
        for section in ("selftest", "random", "pause", "capture", "share"):
            self.assertRegex(report, rf"\n\| {section} (\| [1-9]\d* ){{5}}\| 0 \|.*\| correct \|\n")
        self.assertEqual([path.name for path in (self.out / "contents").glob("paused-*")], [])

    def test_device_without_virtual_memory_management(self):
        lines = self.only_contents(XSEG_SIM_VMM="0")
        self.assertEqual([line[0] for line in lines if line[1:4] == ["end", "0", "ok"]],
                         ["selftest", "random", "capture"])
        self.assertRegex(self.report(), r"\| pause .*\| skipped: the device has no virtual memory management \|")

    def test_little_memory(self):
        self.assertIn("skipped: low device memory, 48 MiB free; the patterns require 64 MiB",
                      self.run_sim("--only", "contents", status=2, XSEG_SIM_MEMORY_MB="48"))

    def test_error_is_reported_and_the_other_sections_run(self):
        program = self.folder / "bin/gpu-contents"
        program.rename(program.with_name("original"))
        program.write_text('#!/usr/bin/env bash\ncase $1 in\n'
                           'random) exec "${0%/*}/original" "$@" --corrupt ;;\n'
                           'pause) kill -SEGV $$ ;;\ncapture) trap "" ALRM; sleep 100 ;;\n'
                           '*) exec "${0%/*}/original" "$@" ;;\nesac\n')
        program.chmod(0o755)
        # The wrapper sets the time limit of the hanging section, the sixth argument of timeout, to one second.
        programs = self.folder.parent / "programs"
        programs.mkdir()
        timeout = programs / "timeout"
        timeout.write_text('#!/bin/bash\n[[ " $* " != *" capture "* ]] || set -- "${@:1:5}" 1 "${@:7}"\n'
                           'exec /usr/bin/timeout "$@"\n')
        timeout.chmod(0o755)
        output = self.run_sim("--only", "contents", *gpu_pack.QUICK, status=1, PATH=f"{programs}:/usr/bin:/bin")
        self.assertIn("done, with failures", output)
        differs = (self.out / "contents/differs.md").read_text()
        self.assertRegex(differs, r"(?m)^- random: block \d+ of .* expected [0-9a-f]{16}, got [0-9a-f]{16}; last operations: ")
        self.assertIn("- pause: the section exited with status 139, without a message\n", differs)
        self.assertIn("- capture: the section exited with status 137, without a message\n", differs)
        for section in ("selftest", "share"):
            self.assertRegex(self.report(), rf"\n\| {section} .*\| correct \|\n")


if __name__ == "__main__":
    gpu_pack.main()
