# SPDX-License-Identifier: MIT
"""Tests that `xseg replay --explain` prints the reasons that docs/services.md shows: services_page.py TOOL SOURCE_ROOT."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TOOL, PAGE = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2], "docs/services.md")
BEGIN = "why memory is reserved at the end\n"


class ServicesPage(unittest.TestCase):
    def test_explain_prints_the_documented_reasons(self):
        text = PAGE.read_text(encoding="utf-8")
        trace = re.search(r"```\n(xtrace 1\n.*?)```", text, re.DOTALL)[1]
        arguments, name, documented = re.search(rf"\$ xseg (.*) (\S+)\n\.\.\.\n{BEGIN}(.*?)```", text, re.DOTALL).groups()
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, name).write_text(trace, encoding="utf-8")
            report = subprocess.run([TOOL, *arguments.split(), name], cwd=folder, capture_output=True, text=True,
                                    check=True).stdout
        self.assertEqual(report.partition(BEGIN)[2].split(), documented.split())  # the page wraps long lines


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
