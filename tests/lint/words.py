# SPDX-License-Identifier: MIT
"""No absolute path of a host, no tab in C code, no trailing blank."""
import re

import tree

# Written so that this file does not match itself.
FOLDERS = ("work", "root", "home", "tmp")
PATH = re.compile(r"(?<![\w.}$)>*])/(?:" + "|".join(FOLDERS) + r")(?![\w.])(?:/|\b)")


def check(root):
    found = []
    for name, text in tree.text_files(root):
        for number, line in enumerate(text.splitlines(), 1):
            match = PATH.search(line)
            if match:
                found.append(f"{name}:{number}: absolute path {match[0]}")
            if "\t" in line and name.endswith((".c", ".h", ".in", ".py", ".build")):
                found.append(f"{name}:{number}: a tab")
            if line != line.rstrip():
                found.append(f"{name}:{number}: a blank at the end of the line")
    return found


if __name__ == "__main__":
    tree.finish(check)
