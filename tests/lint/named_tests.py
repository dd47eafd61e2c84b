# SPDX-License-Identifier: MIT
"""The tests that a table cell names: `suite/name`, each followed by the names of some of its cases."""
import re

TEST = re.compile(r"`([a-z]+/\w+)`((?: [a-z]\w*)*)")
# A file beside a test that has its cases.
BESIDE = re.compile(r'"(\w+\.py)"')


def source(root, test):
    """What a test is made of: its file, and those beside it that it names; None without such a test."""
    for ending in (".c", ".py"):
        path = root / "tests" / (test + ending)
        if path.exists():
            text = path.read_text()
            others = [path.with_name(name) for name in BESIDE.findall(text)]
            return "\n".join([text, *(other.read_text() for other in others if other.exists())])
    return None


def complaints_about(root, cell):
    tests = TEST.findall(cell)
    if not tests:
        yield "names no test"
    for test, cases in tests:
        text = source(root, test)
        if text is None:
            yield f"there is no test {test}"
            continue
        for case in cases.split():
            if not re.search(rf"\b(?:TEST|cmocka_unit_test)\w*\({case}\b|\bdef (?:case_|test_)?{case}\(", text):
                yield f"{test} has no case {case}"
