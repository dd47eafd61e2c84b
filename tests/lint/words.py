# SPDX-License-Identifier: MIT
"""Files contain no absolute paths of hosts, code no tabs, and lines no trailing blanks."""
import re

import tree

# Split into words so that this file does not match the pattern.
FOLDERS = ("work", "root", "home", "tmp")
PATH = re.compile(r"(?<![\w.}$)>*])/(?:" + "|".join(FOLDERS) + r")(?![\w.])(?:/|\b)")


def check(root):
    errors = []
    for name, text in tree.text_files(root):
        for number, line in enumerate(text.splitlines(), 1):
            match = PATH.search(line)
            if match:
                errors.append(f"{name}:{number}: absolute path, {match[0]}")
            if "\t" in line and name.endswith((".c", ".h", ".in", ".py", ".build")):
                errors.append(f"{name}:{number}: tab in code")
            if line != line.rstrip():
                errors.append(f"{name}:{number}: trailing blank")
    return errors


if __name__ == "__main__":
    tree.finish(check)
