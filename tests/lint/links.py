# SPDX-License-Identifier: MIT
"""Relative links in Markdown have an existing target."""
import re

import tree

LINK = re.compile(r"\]\(([^)\s]+)\)")


def check(root):
    found = []
    for name, text in tree.text_files(root):
        if not name.endswith(".md"):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for link in LINK.findall(line):
                path = link.split("#")[0]
                if "://" in link or link.startswith("mailto:") or not path:
                    continue
                if not ((root / name).parent / path).exists():
                    found.append(f"{name}:{number}: {link} leads nowhere")
    return found


if __name__ == "__main__":
    tree.finish(check)
