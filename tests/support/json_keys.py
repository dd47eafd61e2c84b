# SPDX-License-Identifier: MIT
"""The keys of a JSON output: those that it has, and those that a page documents.

Both are sets of paths such as `ranks.a.events`; objects in a list have the path of the list.  A page has tables whose
first column names keys in backticks.  The heading of that column names the paths of the objects that the table is of; a
heading without backticks stands for the output itself.  `peak.live` in a table stands for two keys, one in the other.
"""
import re

NAMES = re.compile(r"`([^`]+)`")
TABLE = re.compile(r"^\|([^|\n]*)\|.*\n\|-.*\n((?:\|.*\n)+)", re.MULTILINE)


def joined(path, key):
    return f"{path}.{key}" if path else key


def paths(found, path="", maps=()):
    """The paths of an output.  maps: those of objects whose keys are data."""
    if isinstance(found, list):
        return set().union(*(paths(one, path, maps) for one in found))
    if not isinstance(found, dict) or path in maps:
        return set()
    keys = {joined(path, key): value for key, value in found.items()}
    return set(keys).union(*(paths(value, key, maps) for key, value in keys.items()))


def documented(page, *headings):
    """The paths in the tables below these headings of a page, each up to the next heading."""
    found = set()
    for heading in headings:
        part = re.split(r"^#+ ", page.read_text(encoding="utf-8").partition(f"# {heading}\n")[2], 1, re.MULTILINE)[0]
        for head, rows in TABLE.findall(part):
            for key in NAMES.findall("\n".join(row.split("|")[1] for row in rows.splitlines())):
                parts = key.split(".")
                for of in NAMES.findall(head) or [""]:
                    found |= {joined(of, ".".join(parts[:length])) for length in range(1, len(parts) + 1)}
    return found
