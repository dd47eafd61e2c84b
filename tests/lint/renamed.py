# SPDX-License-Identifier: MIT
"""Old names of docs/changelog.md are in no other file, and new names exist.  A line of its lists has an old and a new name."""
import re

import tree

PAGE = "docs/changelog.md"
LIST = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pattern(name):
    """A regular expression for a name; a name with "()" is a function that has the name of a structure."""
    if name.endswith("()"):
        return rf"(?<!struct )(?<!class ){re.escape(name[:-2])}\("
    return rf"(?<![A-Za-z0-9_.]){re.escape(name)}(?![A-Za-z0-9_])"


def check(root):
    text = (root / PAGE).read_text(encoding="utf-8")
    rows = [tuple(line.split()) for block in LIST.findall(text) for line in block.splitlines()]
    if len(rows) < 30 or any(len(row) != 2 for row in rows):
        return [f"{PAGE}: {len(rows)} lines of names, of which each must have an old and a new name"]
    old = {name.removesuffix("()"): pattern(name) for name, _ in rows}
    missing, found = {new.removesuffix("()").rpartition(".")[2] for _, new in rows}, []
    for name, text in tree.text_files(root):
        if name == PAGE:
            continue
        missing -= {new for new in missing if new in text}
        # Most files contain no old name, and a search for all patterns would take eight times as long.
        patterns = [pattern for word, pattern in old.items() if word in text]
        found += [f"{name}:{text.count(chr(10), 0, match.start()) + 1}: old name, {match[0]}; {PAGE} has the new one"
                  for match in (re.finditer("|".join(patterns), text) if patterns else ())]
    return found + [f"{PAGE}: no file contains the new name, {name}" for name in sorted(missing)]


if __name__ == "__main__":
    tree.finish(check)
