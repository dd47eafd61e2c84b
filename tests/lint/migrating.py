# SPDX-License-Identifier: MIT
"""Names that docs/migrating.md lists as old are in no other file, and names that it lists as new exist."""
import re

import tree

PAGE = "docs/migrating.md"
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)


def pattern(name):
    """A regular expression for a name; a name with "()" is a function that has the name of a structure."""
    if name.endswith("()"):
        return rf"(?<!struct )(?<!class ){re.escape(name[:-2])}\("
    return rf"(?<![A-Za-z0-9_.]){re.escape(name)}(?![A-Za-z0-9_])"


def check(root):
    rows = ROW.findall((root / PAGE).read_text(encoding="utf-8"))
    if len(rows) < 30:
        return [f"{PAGE}: only {len(rows)} rows are readable"]
    old = re.compile("|".join(pattern(name) for name, _ in rows))
    likely = [name.removesuffix("()") for name, _ in rows]
    missing, found = {new.removesuffix("()").rpartition(".")[2] for _, new in rows}, []
    for name, text in tree.text_files(root):
        if name == PAGE:
            continue
        missing -= {new for new in missing if new in text}
        if not any(name in text for name in likely):
            continue
        found += [f"{name}:{number}: old name, {match[0]}; {PAGE} has the new one"
                  for number, line in enumerate(text.splitlines(), 1) for match in old.finditer(line)]
    return found + [f"{PAGE}: no file contains the new name, {name}" for name in sorted(missing)]


if __name__ == "__main__":
    tree.finish(check)
