# SPDX-License-Identifier: MIT
"""Files that commands write are complete or absent after an interrupt, a full disk or a closed pipe: written.py TOOL SOURCE_ROOT."""
import fcntl
import os
import pathlib
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

from folder_case import CHECKED, ROOT, TOOL, FolderCase

sys.path.insert(0, str(ROOT / "tests/support"))
import view_program  # pylint: disable=wrong-import-position

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
TRACE = "xtrace 1\n" + "".join(f"a {i} {512 * (i % 40 + 1)} 0\nf {i}\n" for i in range(200))


def small_files():
    """In the child: no file grows beyond 16 KiB.  The tool itself has to survive SIGXFSZ."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))


def default_signals():
    """In the child: a shell ignores some of them in a background job."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def default_pipe():
    """In the child: a write to a closed pipe ends a process that does not care."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


class Written(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace, self.snapshot, self.pipe = (self.folder / name for name in ("t.xtrace", "job.pickle", "pipe"))
        self.trace.write_text(TRACE, encoding="utf-8")
        self.snapshot.write_bytes(pickle.dumps(view_program.Program(13, 800).snapshot(), 4))
        self.folder /= "files"
        self.folder.mkdir()

    def writers(self, out="out"):
        """The arguments of each command that writes a file, without its input; the input; whether it prints a report."""
        yield ["replay", "--timeline", out], self.trace, True
        yield ["replay", "--history", out], self.trace, True
        yield ["view", "-o", out], self.snapshot, False
        yield ["export", "--perfetto", "-o", out], self.snapshot, False

    def start(self, arguments, **more):
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True,
                "preexec_fn": default_signals, **more}
        return subprocess.Popen([TOOL, *map(str, arguments)], cwd=self.folder, **more)

    def run_tool(self, arguments, status=0, **more):
        with self.start(arguments, **more) as process:
            said = process.communicate()[1]
        self.assertEqual(process.returncode, status, said)
        return CHECKED.sub("", said)

    def left(self):
        return sorted(os.listdir(self.folder))

    def assert_kept(self):
        """The file, which was there with the text "before", is as it was, and no other one is there."""
        self.assertEqual(self.left(), ["out"])
        self.assertEqual((self.folder / "out").read_text(encoding="utf-8"), "before")

    def wait_for(self, condition, process):
        end = time.monotonic() + 60
        while not condition():
            self.assertIsNone(process.poll(), "it has ended before")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)

    def filled_pipe(self):
        """A pipe without room: a process that prints a report waits."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
        try:
            while True:
                os.write(writer, bytes(4096))
        except BlockingIOError:
            fcntl.fcntl(writer, fcntl.F_SETFL, 0)
        return writer


class Interrupt(Written):
    def test_an_interrupt_while_the_input_is_read_leaves_nothing(self):
        os.mkfifo(self.pipe)
        for number in SIGNALS:
            for arguments, data, _ in self.writers():
                with self.subTest(arguments, number=number), self.start([*arguments, self.pipe]) as process, \
                        open(self.pipe, "wb") as pipe:
                    contents = data.read_bytes()
                    pipe.write(contents[:len(contents) // 2])
                    pipe.flush()
                    process.send_signal(number)
                    self.assertEqual(process.wait(), -number)
                    self.assertEqual(process.stderr.read(), "")
                self.assertEqual(self.left(), [])

    def test_an_interrupt_before_the_report_is_printed_leaves_nothing(self):
        """The events have been written to the temporary file, all or some of them."""
        for number in SIGNALS:
            for arguments, data, has_report in self.writers():
                if not has_report:
                    continue
                writer = self.filled_pipe()
                (self.folder / "out").write_text("before", encoding="utf-8")
                with self.subTest(arguments, number=number), self.start([*arguments, data], stdout=writer) as process:
                    os.close(writer)
                    self.wait_for(lambda: any((self.folder / name).stat().st_size > 0 for name in self.left()
                                              if name != "out"), process)
                    process.send_signal(number)
                    self.assertEqual(process.wait(), -number)
                self.assert_kept()

    def test_an_interrupt_of_a_probe_leaves_nothing(self):
        writer = self.filled_pipe()
        with self.start(["probe", "--table", "out", "--save-costs", "costs"], stdout=writer) as process:
            os.close(writer)
            self.wait_for(lambda: len(self.left()) == 2, process)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(), -signal.SIGINT)
        self.assertEqual(self.left(), [])

    def test_both_files_of_a_replay_are_removed(self):
        os.mkfifo(self.pipe)
        with self.start(["replay", "--timeline", "one", "--history", "two", self.pipe]) as process, open(self.pipe, "wb"):
            self.assertEqual(len(self.left()), 2)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(), -signal.SIGTERM)
        self.assertEqual(self.left(), [])


class Space(Written):
    def test_a_limit_on_the_size_of_files_is_reported(self):
        for arguments, data, _ in self.writers():
            if "--timeline" in arguments:
                continue  # it is small: a row for some events
            with self.subTest(arguments):
                (self.folder / "out").write_text("before", encoding="utf-8")
                said = self.run_tool([*arguments, data], 2, preexec_fn=small_files)
                self.assertEqual(said, f"xseg {arguments[0]}: out cannot be written: File too large\n")
                self.assert_kept()

    def test_a_report_beyond_the_limit_is_reported(self):
        with open(self.folder / "report", "wb") as report:
            said = self.run_tool(["help", "--json"], 2, stdout=report, preexec_fn=small_files)
        self.assertEqual(said, "xseg help: the output cannot be written: File too large\n")

    def test_a_full_device_is_reported(self):
        for arguments, data, _ in self.writers("/dev/full"):
            with self.subTest(arguments):
                said = self.run_tool([*arguments, data], 2)
                self.assertEqual(said, f"xseg {arguments[0]}: /dev/full cannot be written: No space left on device\n")
        self.assertTrue(pathlib.Path("/dev/full").is_char_device())

    def test_a_probe_reports_a_full_device_and_a_limit(self):
        for option in ("--table", "--save-costs"):
            said = self.run_tool(["probe", option, "/dev/full"], 2)
            self.assertEqual(said, "xseg probe: /dev/full cannot be written: No space left on device\n")
        (self.folder / "out").write_text("before", encoding="utf-8")
        said = self.run_tool(["probe", "--table", "out"], 2,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, 1 << 10)))
        self.assertEqual(said, "xseg probe: out cannot be written: File too large\n")
        self.assert_kept()

    def test_a_full_file_system_is_reported(self):
        unshare = shutil.which("unshare")
        enter = [unshare, "--mount"] if os.geteuid() == 0 else [unshare, "--mount", "--map-root-user"]
        script = f'mount -t tmpfs -o size=4k none {self.folder} && cd {self.folder} && {{ "$@"; s=$?; ls -A; exit $s; }}'
        if not unshare or subprocess.run([*enter, "sh", "-c", script, "sh", "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no file system can be mounted here")
        for arguments, data, _ in self.writers():
            with self.subTest(arguments):
                done = subprocess.run([*enter, "sh", "-c", script, "sh", TOOL, *arguments, data], check=False,
                                      capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertEqual(CHECKED.sub("", done.stderr), f"xseg {arguments[0]}: out cannot be written: No space left on device\n")


class Pipes(Written):
    def test_a_pipe_without_a_reader_is_reported(self):
        os.mkfifo(self.pipe)
        for arguments, data, _ in self.writers(str(self.pipe)):
            with self.subTest(arguments), self.start([*arguments, data], preexec_fn=default_pipe) as process:
                reader = os.open(self.pipe, os.O_RDONLY)
                os.close(reader)
                self.assertEqual(process.wait(), 2)
                self.assertEqual(CHECKED.sub("", process.stderr.read()), f"xseg {arguments[0]}: {self.pipe} cannot be written: Broken pipe\n")
        self.assertTrue(self.pipe.is_fifo())

    def test_a_file_is_complete_when_the_report_has_no_reader(self):
        for arguments, data, has_report in self.writers():
            if not has_report:
                continue
            reader, writer = os.pipe()
            os.close(reader)
            said = self.run_tool([*arguments, data], 2, stdout=writer, preexec_fn=default_pipe)
            os.close(writer)
            self.assertEqual(said, "xseg replay: the output cannot be written: Broken pipe\n")
            broken = (self.folder / "out").read_bytes()
            self.run_tool([*arguments, data])
            self.assertEqual(len(broken.splitlines()), len((self.folder / "out").read_bytes().splitlines()))


class Places(Written):
    def test_a_folder_that_is_missing_is_reported(self):
        for out, reason in (("none/out", "No such file or directory"), (f"{self.trace}/out", "Not a directory"),
                            (str(self.folder), "Is a directory")):
            for arguments, data, _ in self.writers(out):
                with self.subTest(arguments):
                    self.assertEqual(self.run_tool([*arguments, data], 2),
                                     f"xseg {arguments[0]}: {out} cannot be written: {reason}\n")
        self.assertEqual(self.left(), [])

    def test_a_replay_that_is_refused_leaves_no_file(self):
        self.trace.write_text("xtrace 1\na 0 512 0\nx\n", encoding="utf-8")
        for arguments, data, has_report in self.writers():
            if has_report:
                self.run_tool([*arguments, data], 2)
                self.run_tool([*arguments, "--config", "max_split_size_mb:x", data], 2)
        self.assertEqual(self.left(), [])

    def test_the_input_is_not_replaced(self):
        for arguments, data, _ in self.writers(str(self.trace)):
            if data == self.trace:
                self.assertIn("is an input file; choose another output file", self.run_tool([*arguments, data], 2))
        self.assertEqual(self.trace.read_text(encoding="utf-8"), TRACE)

    def test_one_file_is_not_written_twice(self):
        said = self.run_tool(["replay", "--timeline", "out", "--history", f"{self.folder}/../files/out", self.trace], 2)
        self.assertIn("cannot be written: Device or resource busy", said)
        self.assertEqual(self.left(), [])
        self.run_tool(["replay", "--timeline", "/dev/null", "--history", "/dev/null", self.trace])

    def test_standard_output_by_its_path_is_written_in_place(self):
        for arguments, data, _ in self.writers("/dev/stdout"):
            with self.subTest(arguments):
                with open(self.folder / "all", "wb") as everything:
                    everything.write(b"first\n")
                    everything.flush()
                    before = os.fstat(everything.fileno()).st_ino
                    self.run_tool([*arguments, data], stdout=everything)
                self.assertEqual((self.folder / "all").stat().st_ino, before)
                self.assertTrue((self.folder / "all").read_bytes().startswith(b"first\n"))
                self.assertGreater((self.folder / "all").stat().st_size, 1000)
                with self.start([*arguments, data], stdout=subprocess.PIPE, text=False) as process:
                    self.assertGreater(len(process.communicate()[0]), 1000)
                    self.assertEqual(process.returncode, 0)
                (self.folder / "all").unlink()
        self.assertTrue(pathlib.Path("/dev/stdout").is_symlink())

    def test_a_file_keeps_its_mode_and_a_link_its_target(self):
        for arguments, data, _ in self.writers():
            (self.folder / "target").touch()
            (self.folder / "target").chmod(0o640)
            (self.folder / "out").symlink_to("target")
            self.run_tool([*arguments, data])
            self.assertTrue((self.folder / "out").is_symlink())
            self.assertEqual((self.folder / "target").stat().st_mode & 0o777, 0o640)
            self.assertGreater((self.folder / "target").stat().st_size, 100)
            for name in self.left():
                (self.folder / name).unlink()

    def test_a_link_to_a_missing_file_leads_to_the_new_file(self):
        (self.folder / "deep").mkdir()
        (self.folder / "out").symlink_to("deep/link")
        (self.folder / "deep/link").symlink_to("../deep/target")
        (self.folder / "loop").symlink_to("loop")
        for arguments, data, _ in self.writers():
            self.run_tool([*arguments, data])
            self.assertTrue((self.folder / "out").is_symlink())
            self.assertEqual(sorted(os.listdir(self.folder / "deep")), ["link", "target"])
            (self.folder / "deep/target").unlink()
        for out, reason in (("loop", "Too many levels of symbolic links"), ("", "No such file or directory")):
            for arguments, data, _ in self.writers(out):
                self.assertEqual(self.run_tool([*arguments, data], 2), f"xseg {arguments[0]}: {out} cannot be written: {reason}\n")
        self.assertEqual(self.left(), ["deep", "loop", "out"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
