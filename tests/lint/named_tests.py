# SPDX-License-Identifier: MIT
"""Checks references to tests: `suite/name`, followed by the names of cases."""
import re

REFERENCE = re.compile(r"`([a-z]+/\w+)`((?: [a-z]\w*)*)")
# The name of a file that contains cases of a test, in the folder of the test.
CASE_FILE = re.compile(r'"(\w+\.py)"')


def source(root, test):
    """The text of a test and of the case files that it names, or None if the test does not exist."""
    for suffix in (".c", ".py"):
        path = root / "tests" / (test + suffix)
        if path.exists():
            text = path.read_text()
            files = [path.with_name(name) for name in CASE_FILE.findall(text)]
            return "\n".join([text, *(file.read_text() for file in files if file.exists())])
    return None


def errors_in(root, text):
    """Yields an error for each reference to a test or case that does not exist, and for a text without a reference."""
    references = REFERENCE.findall(text)
    if not references:
        yield "no test is named"
    for test, cases in references:
        test_source = source(root, test)
        if test_source is None:
            yield f"test does not exist, {test}"
            continue
        for case in cases.split():
            if not re.search(rf"\b(?:TEST|cmocka_unit_test)\w*\({case}\b|\bdef (?:case_|test_)?{case}\(", test_source):
                yield f"{test}: case does not exist, {case}"
