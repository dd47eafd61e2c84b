# SPDX-License-Identifier: MIT
"""Each method of PyTorch's allocator interface has a row in docs/pytorch.md, and each row names tests that exist."""
import re

import named_tests
import tree

TABLE = "docs/pytorch.md"
HEAD = "| method | since | here | test |"
# Names the methods that the adapter has.
BUILD = "src/adapters/python/xseg/torch/_build.py"
COVERED = re.compile(r'COVERED = frozenset\("""(.*?)"""', re.DOTALL)


def complaints_about(root, cell):
    if named_tests.is_list(cell):
        yield from named_tests.complaints_about(root, cell)
    else:
        yield f"the last cell is not a list of tests: {cell.strip()}"


def check(root):
    lines = (root / TABLE).read_text().splitlines()
    if HEAD not in lines:
        return [f"{TABLE}: there is no table {HEAD}"]
    found, rows = [], set()
    for number, line in enumerate(lines[lines.index(HEAD) + 2:], lines.index(HEAD) + 3):
        if not line.startswith("|"):
            break
        cells = line.strip().strip("|").split("|")
        rows |= set(re.findall(r"`(\w+)`", cells[0]))
        found += [f"{TABLE}:{number}: {text}" for text in complaints_about(root, cells[-1])]
    covered = set(COVERED.search((root / BUILD).read_text())[1].split())
    found += [f"{TABLE}: method {name} has no row" for name in sorted(covered - rows)]
    return found + [f"{TABLE}: the adapter has no method {name}" for name in sorted(rows - covered)]


if __name__ == "__main__":
    tree.finish(check)
