# SPDX-License-Identifier: MIT
"""The examples of docs/pytorch.md print the documented output, and names on the page exist."""
import os
import re
import unittest

import cases
import xseg


class Document(unittest.TestCase):
    def setUp(self):
        self.text = (cases.ROOT / "docs/pytorch.md").read_text(encoding="utf-8")

    def test_the_example_prints_the_output_of_the_page(self):
        program, output = re.search(r"```python\n(import xseg\n\n.*?)```\n\nIt prints, .*?:\n\n```\n(.*?)```", self.text, re.DOTALL).groups()
        self.assertEqual(cases.said(program)[0].split(), output.split())  # the page wraps long lines

    def test_the_command_prints_the_output_of_the_page(self):
        shown = re.search(r"\$ python -m xseg replay (\S+)\n(.*?)\.\.\.\n", self.text, re.DOTALL)
        command = os.path.join(os.path.dirname(os.environ["XSEG_LIBRARY"]), "xseg")
        program = f"import os; os.chdir({str(cases.ROOT)!r}); os.execv({command!r}, ['xseg', 'replay', {shown[1]!r}])"
        self.assertTrue(cases.said(program)[0].startswith(shown[2]), shown[2])

    def test_documented_names_exist(self):
        named = set(re.findall(r"\bxseg\.([a-zA-Z]\w*)", self.text)) - {"torch", "numba", "cupy", "rmm"}
        self.assertGreater(len(named), 3)
        self.assertEqual([name for name in named if not hasattr(xseg, name)], [])
        for name in xseg.__all__:
            self.assertTrue(getattr(xseg, name).__doc__, name)

    def test_every_public_method_has_its_sentence(self):
        for kind in (xseg.Allocator, xseg.Block, xseg.Pool, xseg.Range, xseg.RangeView):
            for name, member in vars(kind).items():
                if not name.startswith("_"):
                    self.assertTrue(member.__doc__, f"{kind.__name__}.{name}")


if __name__ == "__main__":
    cases.main()
