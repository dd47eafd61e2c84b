# SPDX-License-Identifier: MIT
"""Tables in documents equal the output of the commands that print them.

printed.py ROOT DOCUMENT [--write] COMMAND...

COMMAND prints the table, which is between two comments in the document; --write updates it.
"""
import pathlib
import subprocess
import sys

BEGIN = "<!-- The table is printed from the source: do not edit it here. -->\n"
END = "<!-- End of the table. -->\n"


def main(root, document, *command):
    """Compare or write the table; returns the exit status."""
    path = pathlib.Path(root, document)
    writes = command[0] == "--write"
    table = subprocess.run(command[writes:], check=True, capture_output=True, text=True).stdout
    before, old_table = path.read_text(encoding="utf-8").split(BEGIN)
    old, _, after = old_table.partition(END)
    if writes:
        path.write_text(before + BEGIN + table + END + after, encoding="utf-8")
        return 0
    if old == table:
        return 0
    print(f"{document}: the table differs from the source; "
          f"run python3 tests/lint/printed.py . {document} --write {' '.join(command)}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
