# SPDX-License-Identifier: MIT
"""Tests that `xseg --version` prints the properties of the build: version.py TOOL SOURCE_ROOT BUILD_TYPE CHECKS LIBDW."""
import pathlib
import re
import subprocess
import sys
import unittest


def run(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


class Version(unittest.TestCase):
    def setUp(self):
        output = run(TOOL, "--version")
        match = re.fullmatch(r"xseg (\S+) \((\w+) build, (.*), (\w+) libdw, commit (\S+)\)\n", output)
        self.assertTrue(match, output)
        self.version, self.type, self.checks, self.libdw, self.commit = match.groups()

    def test_version_is_that_of_the_header(self):
        self.assertIn(f'XSEG_VERSION_TEXT  "{self.version}"', (ROOT / "include/xseg/version.h").read_text())

    def test_build_type_is_reported(self):
        self.assertEqual(self.type, TYPE)

    def test_level_of_self_checks_is_reported(self):
        level = int(CHECKS)
        self.assertEqual(self.checks, f"self-checks of level {level}" if level else "without self-checks")

    def test_libdw_is_reported(self):
        self.assertEqual(self.libdw, LIBDW)

    def test_commit_is_that_of_the_checkout(self):
        if not (ROOT / ".git").exists():
            self.assertEqual(self.commit, "unknown")
            return
        # The state of the checkout may have changed since the build.
        head = run("git", "-C", ROOT, "rev-parse", "HEAD").strip()
        self.assertRegex(self.commit, rf"\A{head[:12]}(-dirty)?\Z")


if __name__ == "__main__":
    TYPE, CHECKS, LIBDW = sys.argv[3:6]
    TOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
