# SPDX-License-Identifier: MIT
"""Tables in documents equal the output of the commands that print them.

printed.py ROOT DOCUMENT[#NAME] [--write] COMMAND...

COMMAND prints the table, which is between two comments in the document; --write updates it.
"""
import pathlib
import subprocess
import sys

BEGIN = "<!-- The table{} is printed from the source: do not edit it here. -->\n"
END = "<!-- End of the table. -->\n"


def main(root, document, *command):
    """Compare or write; returns the exit status."""
    page, _, name = document.partition("#")
    path = pathlib.Path(root, page)
    writes = command[0] == "--write"
    table = subprocess.run(command[writes:], check=True, capture_output=True, text=True).stdout
    begin = BEGIN.format(f" of {name}" if name else "")
    before, rest = path.read_text(encoding="utf-8").split(begin)
    old, _, after = rest.partition(END)
    if writes:
        path.write_text(before + begin + table + END + after, encoding="utf-8")
        return 0
    if old == table:
        return 0
    print(f"{page} does not have the table of the source; "
          f"run python3 tests/lint/printed.py . '{document}' --write {' '.join(command)}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
