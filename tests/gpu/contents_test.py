# SPDX-License-Identifier: MIT
"""gpu-contents on the simulated driver: all sections pass, and errors are detected and reported.

contents_test.py PROGRAM"""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SECTIONS = ("selftest", "random", "pause", "capture", "share")


class Contents(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_section(self, *arguments, status=0, **environment):
        process = subprocess.run([PROGRAM, *arguments], text=True, check=False, cwd=self.folder, timeout=500,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 env={**os.environ, "XSEG_SIM_MEMORY_MB": "1024", **environment})
        self.assertEqual(process.returncode, status, process.stdout + process.stderr)
        self.errors = process.stderr
        return [line.split("\t") for line in process.stdout.splitlines()]

    def run_short(self, section, *options, **keywords):
        """Runs a section with few operations and little memory, because sanitizers make the simulated kernels slow."""
        operations, memory = ("600", "160") if section == "random" else ("200", "64")
        return self.run_section(section, "--operations", operations, "--seed", "20", "--memory-mb", memory, *options, **keywords)

    def counts(self, lines):
        counts = {}
        for _, subject, count, _, _ in lines:
            counts[subject] = counts.get(subject, 0) + int(count)
        return counts

    def assert_correct(self, lines):
        self.assertEqual({line[3] for line in lines}, {"ok", "note"}, lines)
        self.assertEqual(lines[-1][1:4], ["end", "0", "ok"])
        counts = self.counts(lines)
        self.assertEqual((counts["mismatches"], counts["memory_before"]), (0, counts["memory_after"]))
        for subject in ("operations", "blocks", "bytes_written", "bytes_checked", "kernels"):
            self.assertGreater(counts[subject], 0, subject)
        return counts


class Correct(Contents):
    def test_sections_are_listed(self):
        self.assertEqual(tuple(line[0] for line in self.run_section("--list")), SECTIONS)

    def test_selftest(self):
        self.assertGreater(self.assert_correct(self.run_short("selftest"))["sizes"], 10)

    def test_random(self):
        counts = self.assert_correct(self.run_short("random"))
        for subject in ("memory_taken", "memory_given_back", "memory_short", "frees_under_running_work",
                        "trims_under_running_work"):
            self.assertGreater(counts[subject], 0, subject)

    def test_pause(self):
        counts = self.assert_correct(self.run_short("pause"))
        for subject in ("kept_in_host_memory", "kept_in_a_file", "kept_nowhere"):
            self.assertGreater(counts[subject], 0, subject)
        self.assertEqual(os.listdir(self.folder), [])

    def test_capture(self):
        counts = self.assert_correct(self.run_short("capture"))
        self.assertGreater(counts["replays"], 0)
        self.assertEqual(counts["replays_after_a_pause"], 2 * counts["replays"])

    def test_share(self):
        self.assertGreater(self.assert_correct(self.run_short("share"))["shared"], 0)

    def test_seconds(self):
        # Captures start until one second has elapsed; the last capture runs to its end.
        lines = self.run_section("capture", "--seconds", "1", "--seed", "20", "--memory-mb", "64")
        self.assert_correct(lines)
        self.assertIn("1 seconds, seed 20", lines[0][4])

    def test_classic(self):
        lines = self.run_short("random", "--classic")
        self.assert_correct(lines)
        self.assertIn("expandable_segments:False", str(lines))
        self.assertNotIn("expandable_segments:True", str(lines))


class Errors(Contents):
    def test_only_the_corrupted_byte_is_reported(self):
        lines = self.run_short("random", "--corrupt", status=1)
        [corrupted] = [line for line in lines if line[1] == "corrupted"]
        block, offset = corrupted[2], re.fullmatch(r"byte (\d+) of block \d+", corrupted[4])[1]
        [message] = [line[4] for line in lines if line[1] == "wrong"]
        word = int(offset) // 8 * 8
        self.assertRegex(message, rf"^block {block} of \d+ bytes at 0x[0-9a-f]+: 1 of \d+ words differ, the lowest at "
                                  rf"offset {word}; at offset {word} expected [0-9a-f]{{16}}, got [0-9a-f]{{16}}; "
                                  r"last operations: thread \d: .*; repeat with: gpu-contents random --operations 600 "
                                  r"--seed 20 --memory-mb 160 --corrupt$")
        self.assertEqual(self.counts(lines)["mismatches"], 1)
        self.assertEqual(lines[-1][1:4], ["end", "1", "wrong"])

    def test_error_of_the_driver_ends_the_section(self):
        lines = self.run_short("selftest", status=1, XSEG_SIM_FAIL="cuMemcpyDtoHAsync:5:700")
        self.assertEqual(lines[-1][1:4], ["stopped", "1", "wrong"])
        self.assertRegex(lines[-1][4], "^cuMemcpyDtoHAsync returned CUDA_ERROR_ILLEGAL_ADDRESS .*; last operations: ")

    def test_error_in_the_library_ends_the_section(self):
        lines = self.run_short("random", status=1, XSEG_SIM_FAIL="cuMemMap:9:700")
        self.assertEqual(lines[-1][1:4], ["stopped", "1", "wrong"])
        self.assertRegex(lines[-1][4], "^xseg_.*CUDA_ERROR_ILLEGAL_ADDRESS.*; last operations: ")

    def test_leaked_memory_is_reported(self):
        lines = self.run_short("capture", status=1, XSEG_SIM_FAIL="cuMemRelease:1+1:1")
        self.assertIn("wrong", [line[3] for line in lines])

    def test_hanging_section_prints_its_last_operations(self):
        self.assertEqual(self.last_line(signal.SIGALRM)[1:4], ["hangs", "1", "wrong"])

    def test_crashing_section_prints_its_last_operations(self):
        self.assertEqual(self.last_line(signal.SIGBUS)[1:4], ["crashes", "1", "wrong"])

    def last_line(self, signal_number):
        """The last line of a section that receives a signal during its operations, and again in the handler, because timeout(1)
        sends its signal twice."""
        # AddressSanitizer would install its own handler of SIGBUS.
        options = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "handle_sigbus=0")))
        with subprocess.Popen([PROGRAM, "random", "--seconds", "500", "--corrupt"], text=True, stdout=subprocess.PIPE,
                              env={**os.environ, "XSEG_SIM_MEMORY_MB": "256", "ASAN_OPTIONS": options}) as section:
            self.addCleanup(section.kill)
            lines = iter(section.stdout.readline, "")
            # The section is running its operations once it has reported the corrupted byte.
            self.assertIn("wrong", (line.split("\t")[1] for line in lines))
            self.fill_pipe(section.stdout)
            section.send_signal(signal_number)
            self.wait_until_handled(section)
            section.send_signal(signal_number)
            *_, last = lines
        self.assertEqual(section.returncode, 1 if signal_number == signal.SIGALRM else -signal_number)
        line = last.split("\t")
        self.assertRegex(line[4], "; last operations: thread ")
        self.assertIn(" repeat with: gpu-contents random --seconds 500 ", line[4])
        return line

    def fill_pipe(self, pipe):
        """Fills the pipe with empty lines, so that writers block."""
        write_fd = os.open(f"/proc/self/fd/{pipe.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            while True:
                os.write(write_fd, bytes([ord("\n")]) * (1 << 20))
        except BlockingIOError:
            pass
        finally:
            os.close(write_fd)

    def wait_until_handled(self, process):
        """Waits until the process has no pending signal."""
        pending = "ShdPnd:\t" + "0" * 16
        while pending not in pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"):
            time.sleep(0.01)


class Hosts(Contents):
    def assert_skipped(self, reason, *arguments, **environment):
        lines = self.run_section(*arguments, status=77, **environment)
        self.assertEqual(lines[-1][1:4], ["end", "0", "skipped"])
        self.assertIn(reason, lines[-1][4])

    def test_no_driver(self):
        for section in SECTIONS:
            self.assert_skipped("there is no driver: ", section, XSEG_DRIVER="/none")

    def test_little_memory(self):
        self.assert_skipped("low device memory, 60 MiB free; the section requires 64 MiB", "random",
                            XSEG_SIM_MEMORY_MB="64")

    def test_no_virtual_memory_management(self):
        for section in ("pause", "share"):
            self.assert_skipped("no virtual memory management", section, XSEG_SIM_VMM="0")
        for section in ("selftest", "random"):
            self.assert_correct(self.run_short(section, XSEG_SIM_VMM="0"))
        lines = self.run_short("capture", XSEG_SIM_VMM="0")
        self.assertEqual([line[1] for line in lines if line[3] == "skipped"], ["replays_after_a_pause"])

    def test_missing_folder_skips_the_file_mode(self):
        lines = self.run_short("pause", "--folder", "none")
        self.assertEqual({line[1] for line in lines if line[3] == "skipped"}, {"kept_in_a_file"})

    def test_error_message_contains_the_invalid_option(self):
        for arguments, words in ((["none"], "unknown section, none"), (["random", "--fast"], "--fast"),
                                 (["random", "--seconds", "0"], "--seconds"),
                                 (["random", "--operations", "0"], "--operations"), ([], "missing section")):
            self.run_section(*arguments, status=2)
            self.assertIn(words, self.errors)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1], verbosity=1)
