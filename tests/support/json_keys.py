# SPDX-License-Identifier: MIT
"""The keys of a JSON output, and the keys that a page documents.

Both are sets of paths such as `ranks.a.events`; objects in a list have the path of the list.  A page has tables whose
first column contains keys in backticks.  The heading of this column contains the paths of the described objects; a heading
without backticks denotes the output itself.  `peak.live` in a table denotes the key `live` in the object `peak`.
"""
import re

NAMES = re.compile(r"`([^`]+)`")
TABLE = re.compile(r"^\|([^|\n]*)\|.*\n\|-.*\n((?:\|.*\n)+)", re.MULTILINE)


def joined(path, key):
    return f"{path}.{key}" if path else key


def paths(value, path="", maps=()):
    """The paths of an output; maps: the paths of objects whose keys are data."""
    if isinstance(value, list):
        return set().union(*(paths(item, path, maps) for item in value))
    if not isinstance(value, dict) or path in maps:
        return set()
    members = {joined(path, key): member for key, member in value.items()}
    return set(members).union(*(paths(member, key, maps) for key, member in members.items()))


def documented(page, *headings):
    """The paths in the tables of the sections with these headings."""
    documented_paths = set()
    for heading in headings:
        part = re.split(r"^#+ ", page.read_text(encoding="utf-8").partition(f"# {heading}\n")[2], 1, re.MULTILINE)[0]
        for head, rows in TABLE.findall(part):
            for key in NAMES.findall("\n".join(row.split("|")[1] for row in rows.splitlines())):
                parts = key.split(".")
                for parent in NAMES.findall(head) or [""]:
                    documented_paths |= {joined(parent, ".".join(parts[:length])) for length in range(1, len(parts) + 1)}
    return documented_paths
