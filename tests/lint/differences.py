# SPDX-License-Identifier: MIT
"""Each difference from PyTorch ends with the tests that show it, in parentheses, and these tests exist."""
import re

import named_tests
import tree

PAGE = "docs/differences.md"
ENTRY = re.compile(r"^- (?:.+\n)(?:  .+\n)*", re.MULTILINE)
TESTS = re.compile(r"\(([^()]*)\)$")


def check(root):
    text = (root / PAGE).read_text(encoding="utf-8")
    found, entries = [], list(ENTRY.finditer(text))
    if len(entries) < 30:
        return [f"{PAGE}: only {len(entries)} entries are readable"]
    for entry in entries:
        line = text.count("\n", 0, entry.start()) + 1
        tests = TESTS.search(" ".join(entry[0].split()))
        found += [f"{PAGE}:{line}: {complaint}"
                  for complaint in named_tests.complaints_about(root, tests[1] if tests else "")]
    return found


if __name__ == "__main__":
    tree.finish(check)
