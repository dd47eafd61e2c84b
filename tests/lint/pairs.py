# SPDX-License-Identifier: MIT
"""Each pair of what pools can do has a row in the document and a case in the test, and both agree."""
import itertools
import re

import tree

TEST = "tests/api/pool_pairs.c"
TABLE = "docs/pools.md"


def rows(pattern, text):
    """What is said of each pair, and complaints about pairs that are given twice."""
    found = [(match[1], match[2], match[3]) for match in re.finditer(pattern, text, re.MULTILINE)]
    said = {(one, other): verdict for one, other, verdict in found}
    return said, len(found) - len(said)


def check(root):
    """All complaints about a tree."""
    document = (root / TABLE).read_text()
    features = re.findall(r"^\| (\w+) \| `", document, re.MULTILINE)
    told, twice = rows(r"^\| (\w+) \| (\w+) \| (yes|no|later) \|", document)
    tested, again = rows(r"(?<!#define )\bPAIR\((\w+), (\w+), (\w+)\),", (root / TEST).read_text())
    pairs = set(itertools.combinations(features, 2))
    found = [f"{TABLE}: nothing about {one} and {other}"
             for one, other in sorted(pairs - set(told))]
    found += [f"{TABLE}: {one} and {other}: no pair of the first table"
              for one, other in sorted(set(told) - pairs)]
    found += [f"{TEST}: no case for {one} and {other}"
              for one, other in sorted(set(told) - set(tested))]
    found += [f"{TEST}: {one} and {other} are not in {TABLE}"
              for one, other in sorted(set(tested) - set(told))]
    found += [f"{TEST}: {one} and {other}: {tested[one, other]}, but {verdict} in {TABLE}"
              for (one, other), verdict in sorted(told.items())
              if tested.get((one, other), verdict) != verdict]
    found += [f"{TABLE}: a pair is given twice"] * (twice > 0)
    found += [f"{TEST}: a pair is given twice"] * (again > 0)
    return found


if __name__ == "__main__":
    tree.finish(check)
