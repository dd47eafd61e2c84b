# SPDX-License-Identifier: MIT
"""The outputs in docs/seeing.md are what the commands print: seeing.py TOOL SOURCE_ROOT [SANITIZER | --write].

--write updates the page.  Skipped with a sanitizer, with which about two hundred replays take minutes.
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

TOOL, ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
PAGE = ROOT / "docs/seeing.md"
BLOCKS = re.compile(r"^```\n\$ xseg (.*)\n(?:.*\n)*?```$", re.MULTILINE)


def output(command):
    """What a command prints in the folder of the snapshots.  A progress bar or a note to the user is not part of it."""
    ran = subprocess.run([TOOL, *command.split()], cwd=ROOT / "tests/data/snapshots", capture_output=True, text=True, check=False,
                         env={**os.environ, "NO_COLOR": "1"})
    # As diff's, the status of `compare` says that there is a difference.
    if ran.returncode != (1 if command.startswith("compare ") else 0):
        raise AssertionError(f"xseg {command}: status {ran.returncode}: {ran.stderr}")
    return ran.stdout


def with_outputs(text):
    return BLOCKS.sub(lambda found: f"```\n$ xseg {found[1]}\n{output(found[1])}```", text)


class Seeing(unittest.TestCase):
    def test_the_page_shows_what_is_printed(self):
        self.maxDiff = None
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(len(BLOCKS.findall(text)), 5)
        self.assertEqual(text, with_outputs(text), f"python3 tests/tool/seeing.py {sys.argv[1]} . --write puts it right")


if __name__ == "__main__":
    if sys.argv[3:] == ["--write"]:
        PAGE.write_text(with_outputs(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        sys.exit()
    if sys.argv[3:] not in ([], ["none"]):
        print("skipped with a sanitizer")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
