# SPDX-License-Identifier: MIT
"""Every test file is named in a build file, and every test that is named exists.

A test that no table names would be compiled by nobody and fail for nobody.
"""
import re

import tree

SUITES = ("unit", "api", "fault", "model", "stress", "fuzz", "tool", "gpu")


def check(root):
    """All complaints about a tree."""
    tests = root / "tests"
    named = set()
    for build in [tests / "meson.build", *tests.glob("*/meson.build")]:
        text = re.sub(r"#.*", "", build.read_text())
        named |= set(re.findall(r"'([\w.-]+)'", text))
    return [f"tests/{suite}/{path.name}: no table of tests names it"
            for suite in SUITES
            for path in sorted((tests / suite).glob("*"))
            if path.suffix in (".c", ".py") and not {path.stem, path.name} & named]


if __name__ == "__main__":
    tree.finish(check)
