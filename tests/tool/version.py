# SPDX-License-Identifier: MIT
"""`xseg --version` prints the properties of the build: version.py TOOL SOURCE_ROOT BUILD_TYPE CHECKS LIBDW."""
import pathlib
import re
import subprocess
import sys
import unittest


def run(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


class Version(unittest.TestCase):
    def setUp(self):
        said = run(TOOL, "--version")
        found = re.fullmatch(r"xseg (\S+) \((\w+) build, (.*), (\w+) libdw, commit (\S+)\)\n", said)
        self.assertTrue(found, said)
        self.version, self.type, self.checks, self.libdw, self.commit = found.groups()

    def test_version(self):
        self.assertIn(f'XSEG_VERSION_TEXT  "{self.version}"', (ROOT / "include/xseg/version.h").read_text())

    def test_build_type(self):
        self.assertEqual(self.type, TYPE)

    def test_self_checks(self):
        level = int(CHECKS)
        self.assertEqual(self.checks, f"self-checks of level {level}" if level else "without self-checks")

    def test_libdw(self):
        self.assertEqual(self.libdw, LIBDW)

    def test_commit(self):
        if not (ROOT / ".git").exists():
            self.assertEqual(self.commit, "unknown")
            return
        # Changes may have come or gone since the build.
        head = run("git", "-C", ROOT, "rev-parse", "HEAD").strip()
        self.assertRegex(self.commit, rf"\A{head[:12]}(-dirty)?\Z")


if __name__ == "__main__":
    TYPE, CHECKS, LIBDW = sys.argv[3:6]
    TOOL, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
