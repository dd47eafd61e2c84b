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
        completed = subprocess.run([program, *map(str, arguments)], check=False, input=stdin_data,
                                   env={**os.environ, **(environment or {})}, **popen_options)
        completed.stderr = SELF_CHECKS.sub("", (completed.stderr or b"").decode(errors="replace"))
        if text and completed.stdout is not None:
            completed.stdout = completed.stdout.decode()
        if status is not None:
            self.assertEqual(completed.returncode, status, f"{completed.stdout}{completed.stderr}")
        return completed

    def on_terminal(self, *arguments, stream="stderr", columns=0, statuses=(0,), environment=None, **popen_options):
        """Runs the tool on a terminal, checks its exit status, and returns its output.

        columns: the width that the terminal reports, or 0 for none.
        """
        try:
            terminal, client = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal can be opened: {error}")
        fcntl.ioctl(client, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: client,
                   **popen_options}
        environment = {**os.environ, **(environment or {})}
        with subprocess.Popen([TOOL, *map(str, arguments)], env=environment, **streams) as tool:
            os.close(client)
            output = self.read_terminal(terminal)
        self.assertIn(tool.returncode, statuses, output.decode(errors="replace"))
        return output

    @staticmethod
    def read_terminal(terminal):
        output = b""
        with contextlib.suppress(OSError):  # a read fails after all processes have closed the terminal
            while chunk := os.read(terminal, 65536):
                output += chunk
        os.close(terminal)
        return output
