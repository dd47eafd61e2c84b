# SPDX-License-Identifier: MIT
"""Each entry of docs/differences.md ends with the tests of the difference, in parentheses, and these tests exist."""
import re

import named_tests
import tree

PAGE = "docs/differences.md"
ENTRY = re.compile(r"^- (?:.+\n)(?:  .+\n)*", re.MULTILINE)
TESTS = re.compile(r"\(([^()]*)\)$")


def check(root):
    text = (root / PAGE).read_text(encoding="utf-8")
    errors, entries = [], list(ENTRY.finditer(text))
    if len(entries) < 30:
        return [f"{PAGE}: only {len(entries)} entries match the pattern"]
    for entry in entries:
        line = text.count("\n", 0, entry.start()) + 1
        tests = TESTS.search(" ".join(entry[0].split()))
        errors += [f"{PAGE}:{line}: {error}" for error in named_tests.errors_in(root, tests[1] if tests else "")]
    return errors


if __name__ == "__main__":
    tree.finish(check)
