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
        done = subprocess.run([PROGRAM, *arguments], text=True, check=False, cwd=self.folder, timeout=500,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, "XSEG_SIM_MEMORY_MB": "1024", **environment})
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.said = done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]

    def run_short(self, section, *more, **others):
        """A section of a few operations in a little memory: sanitizers make the simulated kernels slow."""
        operations, memory = ("600", "160") if section == "random" else ("200", "64")
        return self.run_section(section, "--operations", operations, "--seed", "20", "--memory-mb", memory, *more, **others)

    def counts(self, lines):
        found = {}
        for _, what, count, _, _ in lines:
            found[what] = found.get(what, 0) + int(count)
        return found

    def assert_right(self, lines):
        self.assertEqual({line[3] for line in lines}, {"ok", "note"}, lines)
        self.assertEqual(lines[-1][1:4], ["end", "0", "ok"])
        counts = self.counts(lines)
        self.assertEqual((counts["mismatches"], counts["memory_before"]), (0, counts["memory_after"]))
        for what in ("operations", "blocks", "bytes_written", "bytes_checked", "kernels"):
            self.assertGreater(counts[what], 0, what)
        return counts


class Right(Contents):
    def test_the_sections_are_listed(self):
        self.assertEqual(tuple(line[0] for line in self.run_section("--list")), SECTIONS)

    def test_selftest(self):
        self.assertGreater(self.assert_right(self.run_short("selftest"))["sizes"], 10)

    def test_random(self):
        counts = self.assert_right(self.run_short("random"))
        for what in ("memory_taken", "memory_given_back", "memory_short", "frees_under_running_work",
                     "trims_under_running_work"):
            self.assertGreater(counts[what], 0, what)

    def test_pause(self):
        counts = self.assert_right(self.run_short("pause"))
        for what in ("kept_in_host_memory", "kept_in_a_file", "kept_nowhere"):
            self.assertGreater(counts[what], 0, what)
        self.assertEqual(os.listdir(self.folder), [])

    def test_capture(self):
        counts = self.assert_right(self.run_short("capture"))
        self.assertGreater(counts["replays"], 0)
        self.assertEqual(counts["replays_after_a_pause"], 2 * counts["replays"])

    def test_share(self):
        self.assertGreater(self.assert_right(self.run_short("share"))["shared"], 0)

    def test_seconds(self):
        # A capture after the other until a second is over, and to the end of the last one.
        lines = self.run_section("capture", "--seconds", "1", "--seed", "20", "--memory-mb", "64")
        self.assert_right(lines)
        self.assertIn("1 seconds, seed 20", lines[0][4])

    def test_classic(self):
        lines = self.run_short("random", "--classic")
        self.assert_right(lines)
        self.assertIn("expandable_segments:False", str(lines))
        self.assertNotIn("expandable_segments:True", str(lines))


class Wrong(Contents):
    def test_a_corrupted_byte_is_found_and_nothing_else(self):
        lines = self.run_short("random", "--corrupt", status=1)
        [block, offset] = [re.fullmatch(r"byte (\d+) of block \d+", line[4])[1] if i else line[2]
                           for line in lines if line[1] == "corrupted" for i in (0, 1)]
        [told] = [line[4] for line in lines if line[1] == "wrong"]
        word = int(offset) // 8 * 8
        self.assertRegex(told, rf"^block {block} of \d+ bytes at 0x[0-9a-f]+: 1 of \d+ words differ, the lowest at "
                               rf"offset {word}; at offset {word} expected [0-9a-f]{{16}}, got [0-9a-f]{{16}}; "
                               r"last operations: thread \d: .*; repeat with: gpu-contents random --operations 600 "
                               r"--seed 20 --memory-mb 160 --corrupt$")
        self.assertEqual(self.counts(lines)["mismatches"], 1)
        self.assertEqual(lines[-1][1:4], ["end", "1", "wrong"])

    def test_an_error_of_the_driver_ends_the_section(self):
        lines = self.run_short("selftest", status=1, XSEG_SIM_FAIL="cuMemcpyDtoHAsync:5:700")
        self.assertEqual(lines[-1][1:4], ["stopped", "1", "wrong"])
        self.assertRegex(lines[-1][4], "^cuMemcpyDtoHAsync returned CUDA_ERROR_ILLEGAL_ADDRESS .*; last operations: ")

    def test_an_error_that_the_library_meets_ends_the_section(self):
        lines = self.run_short("random", status=1, XSEG_SIM_FAIL="cuMemMap:9:700")
        self.assertEqual(lines[-1][1:4], ["stopped", "1", "wrong"])
        self.assertRegex(lines[-1][4], "^xseg_.*CUDA_ERROR_ILLEGAL_ADDRESS.*; last operations: ")

    def test_leaked_memory_is_reported(self):
        lines = self.run_short("capture", status=1, XSEG_SIM_FAIL="cuMemRelease:1+1:1")
        self.assertIn("wrong", [line[3] for line in lines])

    def test_hanging_section_prints_its_last_operations(self):
        self.assertEqual(self.last_words(signal.SIGALRM)[1:4], ["hangs", "1", "wrong"])

    def test_crashing_section_prints_its_last_operations(self):
        self.assertEqual(self.last_words(signal.SIGBUS)[1:4], ["crashes", "1", "wrong"])

    def last_words(self, number):
        """The last line of a section that gets a signal while it works, and again while it handles it.  timeout(1) sends its
        signal twice."""
        # A sanitizer that has a handler of its own keeps it; this is the signal that it is told to leave.
        options = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "handle_sigbus=0")))
        with subprocess.Popen([PROGRAM, "random", "--seconds", "500", "--corrupt"], text=True, stdout=subprocess.PIPE,
                              env={**os.environ, "XSEG_SIM_MEMORY_MB": "256", "ASAN_OPTIONS": options}) as section:
            self.addCleanup(section.kill)
            lines = iter(section.stdout.readline, "")
            # It works when it has found the byte that it overwrote.
            self.assertIn("wrong", (line.split("\t")[1] for line in lines))
            self.fill_pipe(section.stdout)
            section.send_signal(number)
            self.wait_until_handled(section)
            section.send_signal(number)
            *_, last = lines
        self.assertEqual(section.returncode, 1 if number == signal.SIGALRM else -number)
        line = last.split("\t")
        self.assertRegex(line[4], "; last operations: thread ")
        self.assertIn(" repeat with: gpu-contents random --seconds 500 ", line[4])
        return line

    def fill_pipe(self, pipe):
        """With empty lines, so that whoever writes to it waits."""
        end = os.open(f"/proc/self/fd/{pipe.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            while True:
                os.write(end, bytes([ord("\n")]) * (1 << 20))
        except BlockingIOError:
            pass
        finally:
            os.close(end)

    def wait_until_handled(self, process):
        """Until no signal to the process waits for a thread that takes it."""
        pending = "ShdPnd:\t" + "0" * 16
        while pending not in pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8"):
            time.sleep(0.01)


class Machines(Contents):
    def assert_skipped(self, why, *arguments, **environment):
        lines = self.run_section(*arguments, status=77, **environment)
        self.assertEqual(lines[-1][1:4], ["end", "0", "skipped"])
        self.assertIn(why, lines[-1][4])

    def test_no_driver(self):
        for section in SECTIONS:
            self.assert_skipped("there is no driver: ", section, XSEG_DRIVER="/none")

    def test_little_memory(self):
        self.assert_skipped("60 MiB of the device's memory are free, and 64 are needed", "random",
                            XSEG_SIM_MEMORY_MB="64")

    def test_no_virtual_memory_management(self):
        for section in ("pause", "share"):
            self.assert_skipped("no virtual memory management", section, XSEG_SIM_VMM="0")
        for section in ("selftest", "random"):
            self.assert_right(self.run_short(section, XSEG_SIM_VMM="0"))
        lines = self.run_short("capture", XSEG_SIM_VMM="0")
        self.assertEqual([line[1] for line in lines if line[3] == "skipped"], ["replays_after_a_pause"])

    def test_a_folder_without_room(self):
        lines = self.run_short("pause", "--folder", "none")
        self.assertEqual({line[1] for line in lines if line[3] == "skipped"}, {"kept_in_a_file"})

    def test_wrong_options_are_named(self):
        for arguments, words in ((["none"], "no such section: none"), (["random", "--fast"], "--fast"),
                                 (["random", "--seconds", "0"], "--seconds"),
                                 (["random", "--operations", "0"], "--operations"), ([], "no section")):
            self.run_section(*arguments, status=2)
            self.assertIn(words, self.said)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1], verbosity=1)
