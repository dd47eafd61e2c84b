# SPDX-License-Identifier: MIT
"""Shared code of the tests of tests/gpu/run: a packed folder, and execution of the command in it.

The command line of a test is <name>_test.py SOURCE_ROOT BUILD_ROOT OLD_DRIVER BAD_DRIVER SANITIZERS.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

HEAD = "# SPDX-License-Identifier: MIT\n# title: {title}\n# seconds: {seconds}\n{text}\n"

# The shortest run of each step, with a time limit that a loaded host does not reach.
QUICK = ("--quick", "--minutes", "60")

# The paths of the command line, and the packed folder; main() sets them.
PATHS = types.SimpleNamespace()


class Packed(unittest.TestCase):
    """A test with a copy of the packed folder.  The files are hard links, so a test must not write to a file but replace it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "xseg-gpu"
        shutil.copytree(PATHS.packed, self.folder, symlinks=True, copy_function=os.link)
        self.out = pathlib.Path(folder.name) / "out"

    def steps(self, **steps):
        """Replace all steps: (seconds, text) by name, in order."""
        shutil.rmtree(self.folder / "steps")
        (self.folder / "steps").mkdir()
        for number, (name, (seconds, text)) in enumerate(steps.items(), 1):
            (self.folder / f"steps/{number}-{name}").write_text(
                HEAD.format(title=f"The step {name}", seconds=seconds, text=text))

    def replace(self, name, text):
        """Replace a file of the packed folder."""
        path = self.folder / name
        mode = path.stat().st_mode
        path.unlink()
        path.write_text(text)
        path.chmod(mode)

    def run_all(self, *options, status=0, before=(), **environment):
        """The output of the command, in an environment with only PATH and the given variables."""
        result = subprocess.run([*before, "bash", self.folder / "run", *options], text=True, check=False,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", timeout=1100,
                                env={"PATH": "/usr/bin:/bin", **environment})
        self.assertEqual(result.returncode, status, result.stdout + (self.report() if (self.out / "report.md").exists() else ""))
        return result.stdout

    def no_driver(self):
        """The path of a file that is not a driver, so that the test does not depend on the driver of the host."""
        path = self.folder.parent / "libcuda.so.1"
        path.touch()
        return str(path)

    def run_sim(self, *options, **arguments):
        """Run the command on the simulated driver, with results in `self.out`."""
        return self.run_all("--driver", "sim", "--out", str(self.out), *options, **arguments)

    def report(self):
        return (self.out / "report.md").read_text()


def main():
    """Run the tests of the calling module."""
    source, PATHS.build, PATHS.old_driver, PATHS.bad_driver, sanitizers = sys.argv[1:]
    PATHS.source = pathlib.Path(source)
    if sanitizers != "none":
        print("skipped: builds with sanitizers cannot be packed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        PATHS.packed = pathlib.Path(scratch) / "packed"
        subprocess.run([PATHS.source / "tests/gpu/pack", "--builddir", PATHS.build, PATHS.packed], check=True,
                       stdout=subprocess.DEVNULL)
        unittest.main(argv=sys.argv[:1], verbosity=1)
