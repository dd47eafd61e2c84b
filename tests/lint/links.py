# SPDX-License-Identifier: MIT
"""Relative links in Markdown lead to a file that exists, and anchors to a heading of it."""
import functools
import re

import tree

LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$")
CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)?$", re.MULTILINE)
TEXT_OF_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@functools.cache
def anchors(path):
    """The anchors that GitHub gives the headings of a page."""
    found = {}
    for heading in HEADING.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        text = TEXT_OF_LINK.sub(r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if number == 0 else f"{slug}-{number}" for slug, count in found.items() for number in range(count + 1)}


def check(root):
    found = []
    for name, text in tree.text_files(root):
        if not name.endswith(".md"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for link in map("".join, LINK.findall(line)):
                path, _, anchor = link.partition("#")
                if "://" in link or link.startswith("mailto:"):
                    continue
                target = (root / name).parent / path if path else root / name
                if not target.exists():
                    found.append(f"{name}:{number}: {link} leads nowhere")
                elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                    found.append(f"{name}:{number}: {link}: the page has no such heading")
    return found


if __name__ == "__main__":
    tree.finish(check)
