# SPDX-License-Identifier: MIT
"""Environment variables that the tree reads or sets are in the table of src/base/environment.h, each variable of the table is
read, and docs/environment.md has the table.  Installed programs and libraries read variables with secure_getenv() only,
which returns none of them in a set-user-ID process.

environment.py ROOT [--write]; --write updates the document.
"""
import pathlib
import re

import tree

TABLE = "src/base/environment.h"
DOCUMENT = "docs/environment.md"
BEGIN = "<!-- The table is printed from the source: do not edit it here. -->\n"
END = "<!-- End of the table. -->\n"
ROW = re.compile(r'X\("(\w+)", "(\w+)",\s*(?:\\\s*)?"([^"]*)"\)')

MACRO = re.compile(r"#define (XSEG_\w+)")
NAME = r"(XSEG_[A-Z0-9_]*[A-Z0-9])\b"
PLAIN = re.compile(r"\bgetenv\s*\(")
INSTALLED = ("src/", "vmm/")
DEVELOPERS = ("tests", "benchmarks")  # readers whose variables are not on the page
LOGS_IGNORED = "src/core/instance/allocator_open.c"  # finds out what is ignored, by asking both ways
# How a variable is named where it is read or set, by kind of file.
IN_C = [rf'(?:get|set|put)env\w*\(\s*"{NAME}', rf'environment\w*\(\s*"{NAME}"', rf'{{"{NAME}"', rf'^\s*"{NAME}",$']
IN_PYTHON = [rf"""environ(?:\.\w+)?[\[(]\s*["']{NAME}""", rf"""["']{NAME}["']\s*:""",
             rf"""["']{NAME}["']\s*\]\s*=""", rf"[(,{{\s]{NAME}=[^=]", rf"""\.set\('{NAME}'"""]
IN_SHELL = [rf"\$\{{?{NAME}", rf"(?<!-D)\b{NAME}="]
KINDS = {".c": IN_C, ".h": IN_C, ".cpp": IN_C, ".cc": IN_C, ".py": IN_PYTHON, ".build": IN_PYTHON,
         ".md": [rf"(?<!-D)\b{NAME}="], "": IN_SHELL + IN_PYTHON}


def names_in(name, text):
    """The variables that a file names, with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        if "XSEG_" not in line:
            continue
        for pattern in KINDS.get(pathlib.PurePath(name).suffix, []):
            for found in re.findall(pattern, line):
                yield number, found


def table_of(rows):
    return "| variable | read by | description |\n|---|---|---|\n" + "".join(
        f"| `XSEG_{name}` | {reader} | {meaning} |\n" for name, reader, meaning in rows if reader not in DEVELOPERS)


def check(root, write=None):
    rows = ROW.findall((root / TABLE).read_text(encoding="utf-8"))
    known = {f"XSEG_{name}" for name, _, _ in rows}
    files = list(tree.text_files(root))
    macros = {macro for name, text in files if name.endswith(".h") for macro in MACRO.findall(text)}
    found, used = [], set()
    if not rows:
        found.append(f"{TABLE}: has no table")
    for name, text in files:
        if name == TABLE or name.startswith("tests/lint/"):
            continue
        if name.startswith(INSTALLED) and name.endswith((".c", ".h")) and name != LOGS_IGNORED:
            found += [f"{name}:{number}: getenv(), where secure_getenv() is to be called"
                      for number, line in enumerate(text.splitlines(), 1) if PLAIN.search(line)]
        for number, variable in names_in(name, text):
            used.add(variable)
            if variable not in known | macros and not name.startswith("tests/unit/environment"):
                found.append(f"{name}:{number}: {variable} is not in the table of {TABLE}")
    found += [f"{TABLE}: nothing reads {name}" for name in sorted(known - used)]
    document = root / DOCUMENT
    text = document.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    if str(write) == "--write":
        document.write_text(before + BEGIN + table_of(rows) + END + after, encoding="utf-8")
    elif old != table_of(rows):
        found.append(f"{DOCUMENT} does not have the table of {TABLE}; run this with --write")
    return found


if __name__ == "__main__":
    tree.finish(check)
