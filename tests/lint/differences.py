# SPDX-License-Identifier: MIT
"""Each difference from PyTorch names a test that shows it, and the tests that it names exist."""
import re

import tree

TABLE = "docs/differences.md"
# `suite/name`, then the names of its cases.
TEST = re.compile(r"`([a-z]+/\w+)`((?: [a-z]\w*)*)")


def source(root, test):
    """The source of a test, or None."""
    for ending in (".c", ".py"):
        path = root / "tests" / (test + ending)
        if path.exists():
            return path.read_text()
    return None


def complaints_about(root, cell):
    """What is wrong with the last cell of a row."""
    tests = TEST.findall(cell)
    if not tests:
        yield "names no test"
    for test, cases in tests:
        text = source(root, test)
        if text is None:
            yield f"there is no test {test}"
            continue
        for case in cases.split():
            if not re.search(rf"cmocka_unit_test\w*\({case}\b|\bdef {case}\(", text):
                yield f"{test} has no case {case}"


def check(root):
    """All complaints about a tree."""
    found = []
    is_head = True
    for number, line in enumerate((root / TABLE).read_text().splitlines(), 1):
        if not line.startswith("|"):
            is_head = True
        elif re.fullmatch(r"[|\s:-]+", line):
            is_head = False
        elif not is_head:
            cell = line.strip().strip("|").split("|")[-1]
            found += [f"{TABLE}:{number}: {text}" for text in complaints_about(root, cell)]
    return found


if __name__ == "__main__":
    tree.finish(check)
