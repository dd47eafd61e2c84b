# SPDX-License-Identifier: MIT
"""Checks the tests in a table cell: `suite/name`, followed by the names of cases."""
import re

TEST = re.compile(r"`([a-z]+/\w+)`((?: [a-z]\w*)*)")
# The name of a file with cases, in the folder of the test.
CASE_FILE = re.compile(r'"(\w+\.py)"')


def source(root, test):
    """The source of a test: its file, and the case files that it names; None if the test does not exist."""
    for ending in (".c", ".py"):
        path = root / "tests" / (test + ending)
        if path.exists():
            text = path.read_text()
            files = [path.with_name(name) for name in CASE_FILE.findall(text)]
            return "\n".join([text, *(file.read_text() for file in files if file.exists())])
    return None


def errors_in(root, cell):
    tests = TEST.findall(cell)
    if not tests:
        yield "no test is named"
    for test, cases in tests:
        text = source(root, test)
        if text is None:
            yield f"test does not exist, {test}"
            continue
        for case in cases.split():
            if not re.search(rf"\b(?:TEST|cmocka_unit_test)\w*\({case}\b|\bdef (?:case_|test_)?{case}\(", text):
                yield f"{test}: case does not exist, {case}"
