# SPDX-License-Identifier: MIT
"""include/xseg/version.h says the version that meson.build says."""
import re

import tree


def check(root):
    """All complaints about a tree."""
    header = (root / "include/xseg/version.h").read_text()
    build = re.search(r"^\s*version:\s*'([^']+)'", (root / "meson.build").read_text(), re.M)[1]
    parts = [re.search(rf"XSEG_VERSION_{part}\s+(\d+)", header)[1]
             for part in ("MAJOR", "MINOR", "PATCH")]
    text = re.search(r'XSEG_VERSION_TEXT\s+"([^"]*)"', header)[1]
    return [f"include/xseg/version.h: {what} is {said}, meson.build says {build}"
            for what, said in (("the number", ".".join(parts)), ("the text", text))
            if said != build]


if __name__ == "__main__":
    tree.finish(check)
