# SPDX-License-Identifier: MIT
"""Functions of the lint tests: iteration over the source tree, and the report of violations."""
import pathlib
import sys

# Files of builds, of .ci/setup and of version control, and the inputs of fuzzers.
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
    errors = check(*map(pathlib.Path, sys.argv[1:]))
    print("\n".join(errors))
    sys.exit(1 if errors else 0)
