# SPDX-License-Identifier: MIT
"""The outputs in docs/debugging.md are those of the commands: debugging.py TOOL SOURCE_ROOT [SANITIZER | --write].

--write replaces the outputs in the page.  With a sanitizer the test is skipped: about 200 replays take minutes.
"""
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import unittest

TOOL, ROOT = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
PAGE = ROOT / "docs/debugging.md"
BLOCKS = re.compile(r"^```\n\$ xseg (.*)\n(?:.*\n)*?```$", re.MULTILINE)
COLUMNS = 100


def wrap(line):
    """A line as the page shows it.  The second line of a named value begins below the first, as "reason  the peak ..."."""
    name = re.match(r"(?:[\w-]+ )*[\w-]+ {2,}|", line)[0]
    return textwrap.fill(line, COLUMNS, subsequent_indent=" " * len(name), break_long_words=False, break_on_hyphens=False)


def output(command):
    """The output of a command in the folder of the snapshots, without progress and notes on standard error."""
    ran = subprocess.run([TOOL, *command.split()], cwd=ROOT / "tests/data/snapshots", capture_output=True, text=True, check=False,
                         env={**os.environ, "NO_COLOR": "1"})
    if ran.returncode != 0:
        raise AssertionError(f"xseg {command}: status {ran.returncode}: {ran.stderr}")
    return "".join((wrap(line) if len(line) > COLUMNS else line) + "\n" for line in ran.stdout.splitlines())


def with_outputs(text):
    return BLOCKS.sub(lambda found: f"```\n$ xseg {found[1]}\n{output(found[1])}```", text)


class Debugging(unittest.TestCase):
    def test_the_page_has_the_outputs_of_its_commands(self):
        self.maxDiff = None
        text = PAGE.read_text(encoding="utf-8")
        self.assertEqual(len(BLOCKS.findall(text)), 2)
        self.assertEqual(text, with_outputs(text), f"run python3 tests/tool/debugging.py {sys.argv[1]} . --write")


if __name__ == "__main__":
    if sys.argv[3:] == ["--write"]:
        PAGE.write_text(with_outputs(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        sys.exit()
    if sys.argv[3:] not in ([], ["none"]):
        print("skipped with a sanitizer")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
