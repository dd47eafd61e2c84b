# SPDX-License-Identifier: MIT
"""torch_environment.py says in a sentence what is missing, and how to get PyTorch; it installs nothing unasked.

environment.py DRIVER
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "support/torch_environment.py"
SKIPPED = 77


def run(*arguments, **variables):
    """The script, with these variables in place of those that it reads."""
    environment = {name: value for name, value in os.environ.items() if name not in ("XSEG_REFERENCE", "XDG_CACHE_HOME")}
    return subprocess.run([sys.executable, SCRIPT, *arguments], check=False, capture_output=True, text=True,
                          env={**environment, **variables})


class Environment(unittest.TestCase):
    """Each refusal."""

    def expect(self, ran, *words):
        """It was refused, in one line that has these words and says how to get PyTorch."""
        self.assertEqual(ran.returncode, SKIPPED, ran.stderr)
        self.assertEqual(ran.stdout, "")
        self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)
        for word in (*words, "XSEG_REFERENCE=FOLDER"):
            self.assertIn(word, ran.stderr)

    def test_a_folder_without_python(self):
        """XSEG_REFERENCE names nothing."""
        self.expect(run("python", XSEG_REFERENCE="/nowhere"), "/nowhere has no bin/python")

    def test_a_python_without_torch(self):
        """XSEG_REFERENCE names a Python that lacks PyTorch."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "bin")
            path.mkdir()
            (path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
            (path / "python").chmod(0o755)
            self.expect(run("python", XSEG_REFERENCE=folder), "has no PyTorch")

    def test_nothing_is_installed_offline(self):
        """An empty cache stays empty but for the lock."""
        with tempfile.TemporaryDirectory() as folder:
            self.expect(run("--offline", "python", XDG_CACHE_HOME=folder), "PyTorch is not installed in " + folder)
            self.assertEqual(os.listdir(pathlib.Path(folder, "xseg")), ["lock"])

    def test_a_cache_that_cannot_be_made(self):
        """The folder's name is a file's."""
        with tempfile.NamedTemporaryFile() as file:
            self.expect(run("--offline", "python", XDG_CACHE_HOME=file.name), "cannot be made")

    def test_run_needs_a_program(self):
        """A mistake in the command line is no reason to skip."""
        self.assertEqual(run("run").returncode, 2)


if __name__ == "__main__":
    del sys.argv[1:]
    unittest.main()
