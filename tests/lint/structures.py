# SPDX-License-Identifier: MIT
"""docs/stability.md lists each structure of the public headers, except sim.h, that does not begin with `struct_size`."""
import re

import tree

PAGE = "docs/stability.md"
STRUCTURE = re.compile(r"^struct (xseg_\w+) \{\n(.*)", re.MULTILINE)
ROW = re.compile(r"^\| (`xseg_\w+`(?:, `xseg_\w+`)*) \| ", re.MULTILINE)


def check(root):
    listed = {name for names in ROW.findall((root / PAGE).read_text(encoding="utf-8")) for name in re.findall(r"xseg_\w+", names)}
    unsized = {name for path in (root / "include/xseg").glob("*.h") if path.name != "sim.h"
               for name, first in STRUCTURE.findall(path.read_text(encoding="utf-8")) if "size_t struct_size;" not in first}
    return [f"{PAGE}: structure without struct_size is not listed, {name}" for name in sorted(unsized - listed)] + \
        [f"{PAGE}: no structure without struct_size has this name, {name}" for name in sorted(listed - unsized)]


if __name__ == "__main__":
    tree.finish(check)
