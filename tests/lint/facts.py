# SPDX-License-Identifier: MIT
"""The driver facts that the tests verify are those in the table of facts."""
import re

import tree

TESTS = "tests/gpu/facts"
TABLE = "docs/internals/driver-facts.md"


def repeated(numbers):
    return sorted({number for number in numbers if numbers.count(number) > 1})


def check(root):
    asserted = [number for source in sorted((root / TESTS).glob("*.c"))
                for number in re.findall(r'"(FACT-[A-Z]+-\d+)"', source.read_text())]
    listed = re.findall(r"^\| (FACT-[A-Z]+-\d+) \|", (root / TABLE).read_text(), re.MULTILINE)
    return ([f"{TESTS}: {number} is not in {TABLE}" for number in sorted(set(asserted) - set(listed))] +
            [f"{TABLE}: {number} is not in {TESTS}" for number in sorted(set(listed) - set(asserted))] +
            [f"{TESTS}: {number} is given twice" for number in repeated(asserted)] +
            [f"{TABLE}: {number} is given twice" for number in repeated(listed)])


if __name__ == "__main__":
    tree.finish(check)
