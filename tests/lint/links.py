# SPDX-License-Identifier: MIT
"""The targets of relative links in Markdown exist: files, and headings of anchors."""
import functools
import re

import tree

LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$")
CODE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)?$", re.MULTILINE)
TEXT_OF_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@functools.cache
def anchors(path):
    """The anchors that GitHub generates for the headings of a page."""
    highest = {}
    for heading in HEADING.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        text = TEXT_OF_LINK.sub(r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        highest[slug] = highest.get(slug, -1) + 1
    return {slug if number == 0 else f"{slug}-{number}" for slug, count in highest.items() for number in range(count + 1)}


def check(root):
    errors = []
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
                    errors.append(f"{name}:{number}: target does not exist, {link}")
                elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                    errors.append(f"{name}:{number}: heading does not exist, {link}")
    return errors


if __name__ == "__main__":
    tree.finish(check)
