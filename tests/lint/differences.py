# SPDX-License-Identifier: MIT
"""Each difference from PyTorch names a test that shows it, and the tests that it names exist."""
import re

import named_tests
import tree

TABLE = "docs/differences.md"

def check(root):
    found = []
    is_head = True
    for number, line in enumerate((root / TABLE).read_text().splitlines(), 1):
        if not line.startswith("|"):
            is_head = True
        elif re.fullmatch(r"[|\s:-]+", line):
            is_head = False
        elif not is_head:
            cell = line.strip().strip("|").split("|")[-1]
            found += [f"{TABLE}:{number}: {text}" for text in named_tests.complaints_about(root, cell)]
    return found


if __name__ == "__main__":
    tree.finish(check)
