# SPDX-License-Identifier: MIT
"""Tests of output files after an interrupt, on a full disk and with a closed pipe: output_files.py TOOL SOURCE_ROOT."""
import contextlib
import fcntl
import os
import pathlib
import pickle
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import unittest

from folder_case import SELF_CHECKS, ROOT, TOOL, FolderCase

sys.path.insert(0, str(ROOT / "tests/support"))
import view_program  # pylint: disable=wrong-import-position

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
TRACE = "xtrace 1\n" + "".join(f"a {i} {512 * (i % 40 + 1)} 0\nf {i}\n" for i in range(200))


def limit_file_size():
    """Limits files of the child process to 16 KiB.  The tool must ignore or handle SIGXFSZ."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))


def default_signals():
    """Restores the default actions in the child process: a shell ignores some signals in background jobs."""
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_DFL)


def default_pipe():
    """Restores the default action in the child process: SIGPIPE terminates it, unless the tool ignores the signal."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


class OutputFileTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace, self.snapshot, self.pipe = (self.folder / name for name in ("t.xtrace", "job.pickle", "pipe"))
        self.trace.write_text(TRACE, encoding="utf-8")
        self.snapshot.write_bytes(pickle.dumps(view_program.Program(13, 800).snapshot(), 4))
        self.folder /= "files"
        self.folder.mkdir()

    def writers(self, output_path="out"):
        """Yields for each command that writes a file: its arguments without the input, the input, whether it prints a report."""
        yield ["replay", "--timeline", output_path], self.trace, True
        yield ["replay", "--history", output_path], self.trace, True
        yield ["view", "-o", output_path], self.snapshot, False
        yield ["export", "--perfetto", "-o", output_path], self.snapshot, False

    def start(self, arguments, **options):
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True,
                   "preexec_fn": default_signals, **options}
        return subprocess.Popen([TOOL, *map(str, arguments)], cwd=self.folder, **options)

    def run_tool(self, arguments, status=0, **options):
        with self.start(arguments, **options) as process:
            message = process.communicate()[1]
        self.assertEqual(process.returncode, status, message)
        return SELF_CHECKS.sub("", message)

    def new_files(self):
        return sorted(os.listdir(self.folder))

    def expect_unchanged_file(self):
        """Expects only the previous file, with its text "before"."""
        self.assertEqual(self.new_files(), ["out"])
        self.assertEqual((self.folder / "out").read_text(encoding="utf-8"), "before")

    def wait_for(self, condition, process):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertIsNone(process.poll(), "the process exited too early")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)

    def make_full_pipe(self):
        """Returns the write end of a full pipe, which blocks a process that prints a report."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
        try:
            while True:
                os.write(writer, bytes(4096))
        except BlockingIOError:
            fcntl.fcntl(writer, fcntl.F_SETFL, 0)
        return writer


class Interrupt(OutputFileTest):
    def test_interrupted_reading_leaves_no_file(self):
        os.mkfifo(self.pipe)
        for signal_number in SIGNALS:
            for arguments, data, _ in self.writers():
                with self.subTest(arguments, signal_number=signal_number), self.start([*arguments, self.pipe]) as process, \
                        open(self.pipe, "wb") as pipe:
                    contents = data.read_bytes()
                    pipe.write(contents[:len(contents) // 2])
                    pipe.flush()
                    process.send_signal(signal_number)
                    self.assertEqual(process.wait(), -signal_number)
                    self.assertEqual(process.stderr.read(), "")
                self.assertEqual(self.new_files(), [])

    def test_interrupt_before_the_report_keeps_the_previous_file(self):
        """The temporary file contains some or all of the events."""
        for signal_number in SIGNALS:
            for arguments, data, has_report in self.writers():
                if not has_report:
                    continue
                writer = self.make_full_pipe()
                (self.folder / "out").write_text("before", encoding="utf-8")
                with self.subTest(arguments, signal_number=signal_number), \
                        self.start([*arguments, data], stdout=writer) as process:
                    os.close(writer)
                    self.wait_for(lambda: any((self.folder / name).stat().st_size > 0 for name in self.new_files()
                                              if name != "out"), process)
                    process.send_signal(signal_number)
                    self.assertEqual(process.wait(), -signal_number)
                self.expect_unchanged_file()

    def test_interrupted_probe_leaves_no_file(self):
        writer = self.make_full_pipe()
        with self.start(["probe", "--table", "out", "--save-costs", "costs"], stdout=writer) as process:
            os.close(writer)
            self.wait_for(lambda: len(self.new_files()) == 2, process)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(), -signal.SIGINT)
        self.assertEqual(self.new_files(), [])

    def test_interrupted_replay_removes_both_files(self):
        os.mkfifo(self.pipe)
        with self.start(["replay", "--timeline", "one", "--history", "two", self.pipe]) as process, open(self.pipe, "wb"):
            self.assertEqual(len(self.new_files()), 2)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(), -signal.SIGTERM)
        self.assertEqual(self.new_files(), [])


class Space(OutputFileTest):
    def test_file_beyond_the_size_limit_is_reported(self):
        for arguments, data, _ in self.writers():
            if "--timeline" in arguments:
                continue  # the timeline is smaller than the limit
            with self.subTest(arguments):
                (self.folder / "out").write_text("before", encoding="utf-8")
                message = self.run_tool([*arguments, data], 2, preexec_fn=limit_file_size)
                self.assertEqual(message, f"xseg {arguments[0]}: out cannot be written: File too large\n")
                self.expect_unchanged_file()

    def test_report_beyond_the_size_limit_is_reported(self):
        with open(self.folder / "report", "wb") as report:
            message = self.run_tool(["help", "--json"], 2, stdout=report, preexec_fn=limit_file_size)
        self.assertEqual(message, "xseg help: the output cannot be written: File too large\n")

    def test_full_device_is_reported(self):
        for arguments, data, _ in self.writers("/dev/full"):
            with self.subTest(arguments):
                message = self.run_tool([*arguments, data], 2)
                self.assertEqual(message, f"xseg {arguments[0]}: /dev/full cannot be written: No space left on device\n")
        self.assertTrue(pathlib.Path("/dev/full").is_char_device())

    def test_probe_reports_a_full_device_and_a_size_limit(self):
        for option in ("--table", "--save-costs"):
            message = self.run_tool(["probe", option, "/dev/full"], 2)
            self.assertEqual(message, "xseg probe: /dev/full cannot be written: No space left on device\n")
        (self.folder / "out").write_text("before", encoding="utf-8")
        message = self.run_tool(["probe", "--table", "out"], 2,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, 1 << 10)))
        self.assertEqual(message, "xseg probe: out cannot be written: File too large\n")
        self.expect_unchanged_file()

    def test_full_file_system_is_reported(self):
        unshare = shutil.which("unshare")
        unshare_command = [unshare, "--mount"] if os.geteuid() == 0 else [unshare, "--mount", "--map-root-user"]
        script = f'mount -t tmpfs -o size=4k none {self.folder} && cd {self.folder} && {{ "$@"; s=$?; ls -A; exit $s; }}'
        if not unshare or subprocess.run([*unshare_command, "sh", "-c", script, "sh", "true"], check=False,
                                         capture_output=True).returncode != 0:
            self.skipTest("no file system can be mounted")
        for arguments, data, _ in self.writers():
            with self.subTest(arguments):
                completed = subprocess.run([*unshare_command, "sh", "-c", script, "sh", TOOL, *arguments, data], check=False,
                                           capture_output=True, text=True)
                self.assertEqual((completed.returncode, completed.stdout), (2, ""))
                self.assertEqual(SELF_CHECKS.sub("", completed.stderr),
                                 f"xseg {arguments[0]}: out cannot be written: No space left on device\n")


class Pipes(OutputFileTest):
    def open_full_pipe(self):
        """Returns a descriptor that reads from the pipe, which is full: a writer waits in its first write."""
        reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
        writer = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.close(writer)
        return reader

    def test_pipe_without_a_reader_is_reported(self):
        os.mkfifo(self.pipe)
        for arguments, data, _ in self.writers(str(self.pipe)):
            reader = self.open_full_pipe()
            with self.subTest(arguments), self.start([*arguments, data], preexec_fn=default_pipe) as process:
                poll = select.poll()
                poll.register(reader, 0)
                while poll.poll(0) and process.poll() is None:  # POLLHUP: the tool has not opened the pipe
                    time.sleep(0.01)
                os.close(reader)
                self.assertEqual(process.wait(), 2)
                self.assertEqual(SELF_CHECKS.sub("", process.stderr.read()),
                                 f"xseg {arguments[0]}: {self.pipe} cannot be written: Broken pipe\n")
        self.assertTrue(self.pipe.is_fifo())

    def test_file_is_complete_if_the_report_has_no_reader(self):
        for arguments, data, has_report in self.writers():
            if not has_report:
                continue
            reader, writer = os.pipe()
            os.close(reader)
            message = self.run_tool([*arguments, data], 2, stdout=writer, preexec_fn=default_pipe)
            os.close(writer)
            self.assertEqual(message, "xseg replay: the output cannot be written: Broken pipe\n")
            complete_file = (self.folder / "out").read_bytes()
            self.run_tool([*arguments, data])
            self.assertEqual(len(complete_file.splitlines()), len((self.folder / "out").read_bytes().splitlines()))


class Paths(OutputFileTest):
    def test_missing_folder_is_reported(self):
        for output_path, reason in (("none/out", "No such file or directory"), (f"{self.trace}/out", "Not a directory"),
                                    (str(self.folder), "Is a directory")):
            for arguments, data, _ in self.writers(output_path):
                with self.subTest(arguments):
                    self.assertEqual(self.run_tool([*arguments, data], 2),
                                     f"xseg {arguments[0]}: {output_path} cannot be written: {reason}\n")
        self.assertEqual(self.new_files(), [])

    def test_rejected_replay_leaves_no_file(self):
        self.trace.write_text("xtrace 1\na 0 512 0\nx\n", encoding="utf-8")
        for arguments, data, has_report in self.writers():
            if has_report:
                self.run_tool([*arguments, data], 2)
                self.run_tool([*arguments, "--config", "max_split_size_mb:x", data], 2)
        self.assertEqual(self.new_files(), [])

    def test_input_file_is_not_replaced(self):
        for arguments, data, _ in self.writers(str(self.trace)):
            if data == self.trace:
                self.assertIn("is an input file; choose another output file", self.run_tool([*arguments, data], 2))
        self.assertEqual(self.trace.read_text(encoding="utf-8"), TRACE)

    def test_equal_output_files_are_rejected(self):
        message = self.run_tool(["replay", "--timeline", "out", "--history", f"{self.folder}/../files/out", self.trace], 2)
        self.assertIn("cannot be written: Device or resource busy", message)
        self.assertEqual(self.new_files(), [])
        self.run_tool(["replay", "--timeline", "/dev/null", "--history", "/dev/null", self.trace])

    def test_path_of_standard_output_is_written_in_place(self):
        for arguments, data, _ in self.writers("/dev/stdout"):
            with self.subTest(arguments):
                with open(self.folder / "all", "wb") as output:
                    output.write(b"first\n")
                    output.flush()
                    inode = os.fstat(output.fileno()).st_ino
                    self.run_tool([*arguments, data], stdout=output)
                self.assertEqual((self.folder / "all").stat().st_ino, inode)
                self.assertTrue((self.folder / "all").read_bytes().startswith(b"first\n"))
                self.assertGreater((self.folder / "all").stat().st_size, 1000)
                with self.start([*arguments, data], stdout=subprocess.PIPE, text=False) as process:
                    self.assertGreater(len(process.communicate()[0]), 1000)
                    self.assertEqual(process.returncode, 0)
                (self.folder / "all").unlink()
        self.assertTrue(pathlib.Path("/dev/stdout").is_symlink())

    def test_replaced_file_keeps_its_mode_and_symbolic_link(self):
        for arguments, data, _ in self.writers():
            (self.folder / "target").touch()
            (self.folder / "target").chmod(0o640)
            (self.folder / "out").symlink_to("target")
            self.run_tool([*arguments, data])
            self.assertTrue((self.folder / "out").is_symlink())
            self.assertEqual((self.folder / "target").stat().st_mode & 0o777, 0o640)
            self.assertGreater((self.folder / "target").stat().st_size, 100)
            for name in self.new_files():
                (self.folder / name).unlink()

    def test_file_is_created_at_the_target_of_a_dangling_link(self):
        (self.folder / "deep").mkdir()
        (self.folder / "out").symlink_to("deep/link")
        (self.folder / "deep/link").symlink_to("../deep/target")
        (self.folder / "loop").symlink_to("loop")
        for arguments, data, _ in self.writers():
            self.run_tool([*arguments, data])
            self.assertTrue((self.folder / "out").is_symlink())
            self.assertEqual(sorted(os.listdir(self.folder / "deep")), ["link", "target"])
            (self.folder / "deep/target").unlink()
        for output_path, reason in (("loop", "Too many levels of symbolic links"), ("", "No such file or directory")):
            for arguments, data, _ in self.writers(output_path):
                self.assertEqual(self.run_tool([*arguments, data], 2),
                                 f"xseg {arguments[0]}: {output_path} cannot be written: {reason}\n")
        self.assertEqual(self.new_files(), ["deep", "loop", "out"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
