# SPDX-License-Identifier: MIT
"""Tests that the examples of docs/pytorch.md print the documented output, and that documented names exist."""
import os
import re
import sys
import unittest

import cases
import xseg

sys.path.insert(0, str(cases.ROOT / "tests/support"))
from page_blocks import wrapped  # noqa: E402 pylint: disable=wrong-import-position


class Document(unittest.TestCase):
    def setUp(self):
        self.text = (cases.ROOT / "docs/pytorch.md").read_text(encoding="utf-8")

    def test_example_prints_the_documented_output(self):
        program, output = re.search(r"```python\n(import xseg\n\n.*?)```\n\nIt prints, .*?:\n\n```\n(.*?)```", self.text,
                                    re.DOTALL).groups()
        self.assertEqual(wrapped(cases.run_python(program)[0]), output)

    def test_command_prints_the_documented_output(self):
        example = re.search(r"\$ python -m xseg replay (\S+)\n(.*?)\.\.\.\n", self.text, re.DOTALL)
        command = os.path.join(os.path.dirname(os.environ["XSEG_LIBRARY"]), "xseg")
        program = f"import os; os.chdir({str(cases.ROOT)!r}); os.execv({command!r}, ['xseg', 'replay', {example[1]!r}])"
        self.assertTrue(cases.run_python(program)[0].startswith(example[2]), example[2])

    def test_documented_names_exist(self):
        names = set(re.findall(r"\bxseg\.([a-zA-Z]\w*)", self.text)) - {"torch", "numba", "cupy", "rmm"}
        self.assertGreater(len(names), 3)
        self.assertEqual([name for name in names if not hasattr(xseg, name)], [])
        for name in xseg.__all__:
            self.assertTrue(getattr(xseg, name).__doc__, name)

    def test_every_public_method_has_a_docstring(self):
        for class_ in (xseg.Allocator, xseg.Block, xseg.Pool, xseg.Range, xseg.RangeView):
            for name, member in vars(class_).items():
                if not name.startswith("_"):
                    self.assertTrue(member.__doc__, f"{class_.__name__}.{name}")


if __name__ == "__main__":
    cases.main()
