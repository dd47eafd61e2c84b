# SPDX-License-Identifier: MIT
"""docs/options.md has the table of keys that the source has.

options_doc.py ROOT PROGRAM [--write]; PROGRAM prints the table, --write puts it into the document.
"""
import pathlib
import subprocess
import sys

BEGIN = "<!-- The table is printed from the source: do not edit it here. -->\n"
END = "<!-- End of the table. -->\n"


def main(root, program, *flags):
    """Compare or write; returns the exit status."""
    document = pathlib.Path(root, "docs/options.md")
    table = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    text = document.read_text()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    if flags == ("--write",):
        document.write_text(before + BEGIN + table + END + after)
        return 0
    if old == table:
        return 0
    print(f"{document} does not have the table of the source; run this with --write")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
