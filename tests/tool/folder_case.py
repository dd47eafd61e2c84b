# SPDX-License-Identifier: MIT
"""Test cases with a temporary folder: of any program, and of the tool, which is the first argument of the test."""
import contextlib
import fcntl
import os
import pathlib
import pickle
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

TOOL = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SNAPSHOTS = ROOT / "tests/data/snapshots"
MIB = 1 << 20
# The message of a library with self-checks.
SELF_CHECKS = re.compile(r"^xseg: self-checks: [^\n]*\n", re.MULTILINE)


class FolderCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class ToolCase(FolderCase):
    def file(self, contents, name="job"):
        """Writes bytes, a string, or the pickle of any other object."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        contents = contents.encode() if isinstance(contents, str) else contents
        path.write_bytes(contents if isinstance(contents, bytes) else pickle.dumps(contents, 4))
        return path

    def tool(self, *arguments, status=0, stdin_data=None, text=True, environment=None, program=TOOL, **popen_options):
        """Runs the tool and checks its exit status, unless `status` is None; without `text` the output remains bytes."""
        popen_options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen_options}
        if stdin_data is None:
            popen_options.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run([program, *map(str, arguments)], check=False, input=stdin_data,
                              env={**os.environ, **(environment or {})}, **popen_options)
        done.stderr = SELF_CHECKS.sub("", (done.stderr or b"").decode(errors="replace"))
        if text and done.stdout is not None:
            done.stdout = done.stdout.decode()
        if status is not None:
            self.assertEqual(done.returncode, status, f"{done.stdout}{done.stderr}")
        return done

    def on_terminal(self, *arguments, stream="stderr", columns=0, statuses=(0,), environment=None, **popen_options):
        """Runs the tool on a terminal, checks its exit status, and returns its output.

        columns: the width that the terminal reports, or 0 for none.
        """
        try:
            terminal, client = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal can be opened here: {error}")
        fcntl.ioctl(client, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: client,
                   **popen_options}
        environment = {**os.environ, **(environment or {})}
        with subprocess.Popen([TOOL, *map(str, arguments)], env=environment, **streams) as tool:
            os.close(client)
            text = self.read_terminal(terminal)
        self.assertIn(tool.returncode, statuses, text.decode(errors="replace"))
        return text

    @staticmethod
    def read_terminal(terminal):
        text = b""
        with contextlib.suppress(OSError):  # a read fails once the other end is closed
            while part := os.read(terminal, 65536):
                text += part
        os.close(terminal)
        return text
