# SPDX-License-Identifier: MIT
"""Prints the table of metrics of docs/metrics.md: the rows of src/core/report/metrics.c.

print_metrics.py ROOT
"""
import pathlib
import re
import sys

SOURCE = "src/core/report/metrics.c"
LABELS = {"pool_families": "device, pool, name", "device_families": "device", "call_families": "call"}
TABLE = re.compile(r"static const struct family (\w+)\[\] = \{\n(.*?)\n\};", re.DOTALL)
ROW = re.compile(r'\{"(\w+)", (GAUGE|COUNTER), \w+,\s*offsetof\([^)]*\),\s*((?:"[^"]*"\s*)+)\}')


def rows(text):
    for table, body in TABLE.findall(text):
        for name, kind, texts in ROW.findall(body):
            yield name + "_total" * (kind == "COUNTER"), kind.lower(), LABELS[table], "".join(re.findall(r'"([^"]*)"', texts))


def main(root):
    print("| metric | type | labels | description |\n|---|---|---|---|")
    for name, kind, labels, text in rows(pathlib.Path(root, SOURCE).read_text(encoding="utf-8")):
        print(f"| `{name}` | {kind} | {labels} | {text} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
