# SPDX-License-Identifier: MIT
"""Tests of commands that read large snapshots: progress on a terminal, and files that remain after an interrupt."""
import os
import pickle
import pty
import re
import signal
import subprocess
import sys
import time
import unittest

from folder_case import TOOL, ToolCase

BASE = 0x7f0000000000
# Options and the output file of each command.
COMMANDS = {"blame": ((), None), "view": (("-o", "out"), "out"), "export": (("--perfetto", "-o", "out"), "out")}


def snapshot(blocks):
    """Returns a pickle of a history with an allocation and a free of each block."""
    frames = [{"name": "f", "filename": "f.py", "line": 1}]
    entries = [{"action": action, "addr": BASE + i % 4096 * 512, "size": 512, "stream": 0, "time_us": i, "frames": frames}
               for i in range(blocks) for action in ("alloc", "free_requested", "free_completed")]
    block = {"address": BASE, "size": 2 << 20, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {"device": 0, "address": BASE, "total_size": 2 << 20, "stream": 0, "segment_type": "small",
               "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [block]}
    return pickle.dumps({"segments": [segment], "device_traces": [entries]}, 4)


class ProgressTest(ToolCase):
    data = b""

    @classmethod
    def setUpClass(cls):
        cls.data = snapshot(100000)

    def start(self, command, *paths, **options):
        return subprocess.Popen([TOOL, command, *COMMANDS[command][0], *paths], cwd=self.folder, **options)

    def new_files(self, *names):
        return sorted(set(os.listdir(self.folder)) - set(names))


class Terminal(ProgressTest):
    def run_on_terminal(self, command, *paths, **options):
        return self.on_terminal(command, *COMMANDS[command][0], *paths, cwd=self.folder, statuses=(0, 1), **options)

    def test_bar_is_drawn_and_removed(self):
        (self.folder / "job.pickle").write_bytes(self.data)
        for command in COMMANDS:
            output = self.run_on_terminal(command, "job.pickle")
            self.assertRegex(output, rb"\r\[#+ *\] job\.pickle", command)
            self.assertTrue(output.endswith(b"\r\x1b[K"), output[-80:])

    def read_lines(self, *paths, **options):
        output = self.run_on_terminal("blame", *paths, **options)
        self.assertTrue(output.startswith(b"\r") and output.endswith(b"\r\x1b[K"), output[-80:])
        lines = output.decode("ascii").split("\r")[1:-1]
        self.assertGreater(len(lines), 0)
        return {line.removesuffix("\x1b[K") for line in lines} - {""}

    def test_line_is_narrower_than_the_terminal(self):
        name = "".join(f"part-{i}-" for i in range(25)) + ".pickle"
        (self.folder / name).write_bytes(self.data)
        for columns, bar in ((40, 10), (60, 10), (120, 10), (250, 40), (20, 0), (2, 0), (1, 0)):
            for line in self.read_lines(name, columns=columns):
                with self.subTest(columns=columns, line=line):
                    match = re.fullmatch(r"(?:\[(#* *)\] )?(.*)", line)
                    self.assertEqual(len(match[1] or ""), bar)
                    if columns == 250:
                        self.assertEqual(match[2], name)
                        continue
                    self.assertEqual(len(line), columns - 1)
                    head, tail = re.fullmatch(r"(.*?)\.{1,3}(?!\.)(.*)", match[2]).groups() if columns > 2 else ("", "")
                    self.assertTrue(name.startswith(head) and name.endswith(tail))
                    self.assertIn(len(tail) - len(head), (0, 1))

    def test_bar_is_shortened_before_the_name(self):
        (self.folder / "job.pickle").write_bytes(self.data)
        for line in self.read_lines("job.pickle", columns=40):
            self.assertRegex(line, r"^\[[# ]{26}\] job\.pickle$")

    def test_environment_has_the_width_if_the_terminal_has_none(self):
        (self.folder / "job.pickle").write_bytes(self.data)
        for columns, variable, bar in ((0, "40", 26), (0, "", 40), (0, "x", 40), (50, "40", 36)):
            for line in self.read_lines("job.pickle", columns=columns, environment={"COLUMNS": variable}):
                self.assertRegex(line, rf"^\[[# ]{{{bar}}}\] job\.pickle$")

    def test_both_files_of_a_comparison_have_a_bar(self):
        for name in ("a.pickle", "b.pickle"):
            (self.folder / name).write_bytes(self.data)
        COMMANDS["compare"] = ((), None)
        self.addCleanup(COMMANDS.pop, "compare")
        output = self.run_on_terminal("compare", "a.pickle", "b.pickle")
        self.assertRegex(output, rb"(?s)\r\[#+ *\] a\.pickle.*\r\[#+ *\] b\.pickle")

    def test_input_from_a_pipe_has_no_bar(self):
        os.mkfifo(self.folder / "pipe")
        try:
            terminal, client = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal can be opened: {error}")
        with self.start("blame", "pipe", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=client) as process:
            os.close(client)
            (self.folder / "pipe").write_bytes(self.data)
            output = self.read_terminal(terminal)
        self.assertEqual(process.returncode, 0)
        # Amounts in KiB and MiB are rounded to two decimals.
        amounts = [max(float(amount) - 0.005, 0) * {b"bytes": 1, b"KiB": 1 << 10, b"MiB": 1 << 20}[unit]
                   for amount, unit in re.findall(rb"\r([\d.]+) (bytes|KiB|MiB) of pipe\x1b", output)]
        self.assertTrue(amounts, output)
        self.assertLessEqual(max(amounts), len(self.data))

    def test_nothing_is_drawn_without_a_terminal(self):
        (self.folder / "job.pickle").write_bytes(self.data)
        for command in COMMANDS:
            with self.start(command, "job.pickle", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
                self.assertEqual(process.stderr.read(), b"", command)


class Interrupt(ProgressTest):
    def test_interrupted_reading_leaves_no_file(self):
        """The command has read half of a snapshot, and waits for the second half."""
        os.mkfifo(self.folder / "pipe")
        for command, signal_number in (("blame", signal.SIGINT), ("export", signal.SIGINT), ("view", signal.SIGINT),
                                       ("view", signal.SIGTERM), ("view", signal.SIGHUP)):
            with self.start(command, "pipe", stdout=subprocess.PIPE) as process, open(self.folder / "pipe", "wb") as pipe:
                pipe.write(self.data[:len(self.data) // 2])
                pipe.flush()
                if command == "view":  # it has created its temporary file
                    self.assertEqual(len(self.new_files("pipe")), 1)
                process.send_signal(signal_number)
                self.assertEqual(process.wait(), -signal_number)
                self.assertEqual(process.stdout.read(), b"", command)
            self.assertEqual(self.new_files("pipe"), [], command)

    def test_interrupted_writing_leaves_no_file(self):
        (self.folder / "job.pickle").write_bytes(self.data)
        for command in ("view", "export"):
            with self.start(command, "job.pickle") as process:
                while process.poll() is None and not self.new_files("job.pickle", "out"):
                    time.sleep(0.001)
                process.send_signal(signal.SIGINT)
                status = process.wait()
            # The command may have completed before the signal.
            self.assertEqual(self.new_files("job.pickle"), ["out"] if status == 0 else [], command)
            if status == 0:
                (self.folder / "out").unlink()

    def test_interrupt_keeps_the_previous_file(self):
        os.mkfifo(self.folder / "pipe")
        (self.folder / "out").write_text("before", encoding="utf-8")
        with self.start("view", "pipe") as process, open(self.folder / "pipe", "wb"):
            process.send_signal(signal.SIGINT)
            process.wait()
        self.assertEqual(self.new_files("pipe"), ["out"])
        self.assertEqual((self.folder / "out").read_text(encoding="utf-8"), "before")

    def test_ignored_signal_does_not_interrupt(self):
        """As with nohup."""
        os.mkfifo(self.folder / "pipe")
        with self.start("view", "pipe", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
            with open(self.folder / "pipe", "wb") as pipe:
                process.send_signal(signal.SIGHUP)
                pipe.write(self.data)
            self.assertEqual(process.wait(), 0)
        self.assertEqual(self.new_files("pipe"), ["out"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
