# SPDX-License-Identifier: MIT
"""Each driver fact that the test asserts stands in the table of facts, and the other way round."""
import re

import tree

TEST = "tests/gpu/driver_facts.c"
TABLE = "docs/internals/driver-facts.md"


def repeated(numbers):
    """Numbers that are given twice."""
    return sorted({number for number in numbers if numbers.count(number) > 1})


def check(root):
    """All complaints about a tree."""
    asserted = re.findall(r'"(FACT-[A-Z]+-\d+)"', (root / TEST).read_text())
    listed = re.findall(r"^\| (FACT-[A-Z]+-\d+) \|", (root / TABLE).read_text(), re.MULTILINE)
    return ([f"{TEST}: {number} is not in {TABLE}"
             for number in sorted(set(asserted) - set(listed))] +
            [f"{TABLE}: {number} is not in {TEST}"
             for number in sorted(set(listed) - set(asserted))] +
            [f"{TEST}: {number} is given twice" for number in repeated(asserted)] +
            [f"{TABLE}: {number} is given twice" for number in repeated(listed)])


if __name__ == "__main__":
    tree.finish(check)
