# SPDX-License-Identifier: MIT
"""What the tests of tests/gpu/run share: a packed folder, and the command in it.

A test is called as <name>_test.py SOURCE_ROOT BUILD_ROOT OLD_DRIVER BAD_DRIVER SANITIZERS.
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

# The least of each step, in more time than a busy machine takes for it: what is found does not depend on the time.
QUICK = ("--quick", "--minutes", "60")

# What the command line names, once main() has read it, and the packed folder that it has made.
PLACES = types.SimpleNamespace()


class Packed(unittest.TestCase):
    """Everything below starts from the packed folder, of which each test has links: a file is replaced, never written to."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "xseg-gpu"
        shutil.copytree(PLACES.packed, self.folder, symlinks=True, copy_function=os.link)
        self.out = pathlib.Path(folder.name) / "out"

    def steps(self, **steps):
        """These steps and no others: (seconds, text) by name, in this order."""
        shutil.rmtree(self.folder / "steps")
        (self.folder / "steps").mkdir()
        for number, (name, (seconds, text)) in enumerate(steps.items(), 1):
            (self.folder / f"steps/{number}-{name}").write_text(
                HEAD.format(title=f"The step {name}", seconds=seconds, text=text))

    def replace(self, name, text):
        """Another file in place of one of the packed folder."""
        path = self.folder / name
        mode = path.stat().st_mode
        path.unlink()
        path.write_text(text)
        path.chmod(mode)

    def run_all(self, *options, status=0, before=(), **environment):
        """What the command prints; in an environment that has nothing but a path."""
        done = subprocess.run([*before, "bash", self.folder / "run", *options], text=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, cwd="/", timeout=1100,
                              env={"PATH": "/usr/bin:/bin", **environment})
        self.assertEqual(done.returncode, status, done.stdout + (self.report() if (self.out / "report.md").exists() else ""))
        return done.stdout

    def no_driver(self):
        """A file that is no driver: whether this machine has one does not matter then."""
        path = self.folder.parent / "libcuda.so.1"
        path.touch()
        return str(path)

    def run_sim(self, *options, **more):
        """The command on the simulated driver, with its results in a known place."""
        return self.run_all("--driver", "sim", "--out", str(self.out), *options, **more)

    def report(self):
        """The report, as it is on disk."""
        return (self.out / "report.md").read_text()


def main():
    """Run the tests of the calling file."""
    source, PLACES.build, PLACES.old_driver, PLACES.bad_driver, sanitizers = sys.argv[1:]
    PLACES.source = pathlib.Path(source)
    if sanitizers != "none":
        print("skipped: a build with sanitizers is not packed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        PLACES.packed = pathlib.Path(scratch) / "packed"
        subprocess.run([PLACES.source / "tests/gpu/pack", "--builddir", PLACES.build, PLACES.packed], check=True,
                       stdout=subprocess.DEVNULL)
        unittest.main(argv=sys.argv[:1], verbosity=1)
