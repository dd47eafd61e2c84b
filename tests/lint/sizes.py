# SPDX-License-Identifier: MIT
"""Functions of C have at most 60 lines between their braces; source files of C, C++, Python and JavaScript at most 600.

A file that is printed from others may be longer.
"""
import tree

FUNCTION_LINES = 60
FILE_LINES = 600
SOURCES = (".c", ".h", ".cc", ".cpp", ".hpp", ".py", ".js")


def functions(lines):
    """First line number and length of each function's body: braces stand at the line's start."""
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            yield start, number - start - 1
            start = None


def check(root):
    """All complaints about a tree."""
    found = []
    for name, text in tree.text_files(root):
        if not name.endswith(SOURCES) or not name.startswith(("include/", "src/", "vmm/")):
            continue
        lines = text.splitlines()
        if len(lines) > FILE_LINES and not any("do not edit it here" in line for line in lines[:9]):
            found.append(f"{name}: {len(lines)} lines, more than {FILE_LINES}")
        for start, length in functions(lines) if name.endswith((".c", ".h")) else ():
            if length > FUNCTION_LINES:
                found.append(f"{name}:{start}: a function of {length} lines, more than "
                             f"{FUNCTION_LINES}")
    return found


if __name__ == "__main__":
    tree.finish(check)
