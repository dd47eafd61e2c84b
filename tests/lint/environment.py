# SPDX-License-Identifier: MIT
"""Environment variables that the tree reads or sets are in the table of src/base/environment.h, each variable of the table is
read, and docs/environment.md has the table.  Installed programs and libraries read variables only with secure_getenv(),
which returns NULL in a set-user-ID process.

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
GETENV = re.compile(r"\bgetenv\s*\(")
INSTALLED = ("src/", "vmm/")
DEVELOPERS = ("tests", "benchmarks")  # readers whose variables are not on the page
LOGS_IGNORED = "src/core/instance/allocator_open.c"  # calls both functions to log the variables that secure_getenv() ignores
# Patterns of code that reads or sets a variable, by kind of file.
IN_C = [rf'(?:get|set|put)env\w*\(\s*"{NAME}', rf'environment\w*\(\s*"{NAME}"', rf'{{"{NAME}"', rf'^\s*"{NAME}",$']
IN_PYTHON = [rf"""environ(?:\.\w+)?[\[(]\s*["']{NAME}""", rf"""["']{NAME}["']\s*:""",
             rf"""["']{NAME}["']\s*\]\s*=""", rf"[(,{{\s]{NAME}=[^=]", rf"""\.set\('{NAME}'"""]
IN_SHELL = [rf"\$\{{?{NAME}", rf"(?<!-D)\b{NAME}="]
KINDS = {".c": IN_C, ".h": IN_C, ".cpp": IN_C, ".cc": IN_C, ".py": IN_PYTHON, ".build": IN_PYTHON,
         ".md": [rf"(?<!-D)\b{NAME}="], "": IN_SHELL + IN_PYTHON}


def variables_in(name, text):
    """The variables that a file reads or sets, with their line numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if "XSEG_" not in line:
            continue
        for pattern in KINDS.get(pathlib.PurePath(name).suffix, []):
            for variable in re.findall(pattern, line):
                yield number, variable


def format_table(rows):
    return "| variable | read by | description |\n|---|---|---|\n" + "".join(
        f"| `XSEG_{name}` | {reader} | {meaning} |\n" for name, reader, meaning in rows if reader not in DEVELOPERS)


def check(root, write=None):
    rows = ROW.findall((root / TABLE).read_text(encoding="utf-8"))
    known = {f"XSEG_{name}" for name, _, _ in rows}
    files = list(tree.text_files(root))
    macros = {macro for name, text in files if name.endswith(".h") for macro in MACRO.findall(text)}
    errors, used = [], set()
    if not rows:
        errors.append(f"{TABLE}: no rows match the pattern")
    for name, text in files:
        if name == TABLE or name.startswith("tests/lint/"):
            continue
        if name.startswith(INSTALLED) and name.endswith((".c", ".h")) and name != LOGS_IGNORED:
            errors += [f"{name}:{number}: installed code calls getenv(); call secure_getenv()"
                       for number, line in enumerate(text.splitlines(), 1) if GETENV.search(line)]
        for number, variable in variables_in(name, text):
            used.add(variable)
            if variable not in known | macros and not name.startswith("tests/unit/environment"):
                errors.append(f"{name}:{number}: variable is not in the table of {TABLE}, {variable}")
    errors += [f"{TABLE}: variable is unused, {name}" for name in sorted(known - used)]
    document = root / DOCUMENT
    text = document.read_text(encoding="utf-8")
    before, table = text.split(BEGIN)
    old, after = table.split(END)
    if str(write) == "--write":
        document.write_text(before + BEGIN + format_table(rows) + END + after, encoding="utf-8")
    elif old != format_table(rows):
        errors.append(f"{DOCUMENT}: the table differs from {TABLE}; run python3 tests/lint/environment.py . --write")
    return errors


if __name__ == "__main__":
    tree.finish(check)
