# SPDX-License-Identifier: MIT
"""Prints the table of metrics of docs/metrics.md: the rows of src/core/report/metrics.c.

print_metrics.py ROOT
"""
import pathlib
import re
import sys
import textwrap

SOURCE = "src/core/report/metrics.c"
LABELS = {"pool_families": "device, pool, name", "device_families": "device", "call_families": "call"}
TABLE = re.compile(r"static const struct family (\w+)\[\] = \{\n(.*?)\n\};", re.DOTALL)
ROW = re.compile(r'\{"(\w+)", (GAUGE|COUNTER), \w+,\s*offsetof\([^)]*\),\s*((?:"[^"]*"\s*)+)\}')


def rows(body):
    for name, kind, texts in ROW.findall(body):
        yield name + "_total" * (kind == "COUNTER"), kind.lower(), "".join(re.findall(r'"([^"]*)"', texts))


def main(root):
    for table, body in TABLE.findall(pathlib.Path(root, SOURCE).read_text(encoding="utf-8")):
        print(f"### Labels: {LABELS[table]}\n")
        for name, kind, text in rows(body):
            print(textwrap.fill(f"- **`{name}`** ({kind}). {text}", 100, subsequent_indent="  ", break_long_words=False,
                                break_on_hyphens=False))
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
