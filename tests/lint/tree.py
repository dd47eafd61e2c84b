# SPDX-License-Identifier: MIT
"""Functions of the lint tests: iteration over the source tree, and the report of violations."""
import pathlib
import sys

# Made by building, by setting up or by version control, at the top of the tree.
SKIPPED = (".git", ".deps", "build", "benchmarks/out", "tests/fuzz/corpus")


def text_files(root):
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.startswith(SKIPPED) or "__pycache__" in name or not path.is_file():
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def finish(check):
    complaints = check(*map(pathlib.Path, sys.argv[1:]))
    print("\n".join(complaints))
    sys.exit(1 if complaints else 0)
