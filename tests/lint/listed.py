# SPDX-License-Identifier: MIT
"""Every test file is named in a build file, and every test that is named exists.

A test that no table names would be compiled by nobody and fail for nobody.  What stands in a folder of a suite is
named with the folder: 'exercise/call.c'.
"""
import re

import tree

SUITES = ("unit", "api", "fault", "model", "stress", "fuzz", "tool", "gpu", "python", "torch", "clients")


def check(root):
    """All complaints about a tree."""
    tests = root / "tests"
    named = set()
    for build in [tests / "meson.build", *tests.glob("*/meson.build")]:
        text = re.sub(r"#.*", "", build.read_text())
        named |= set(re.findall(r"'([\w./-]+)'", text))
    found = []
    for suite in SUITES:
        for path in sorted((tests / suite).rglob("*")):
            name = path.relative_to(tests / suite)
            if path.suffix in (".c", ".py") and not {str(name), str(name.with_suffix(""))} & named:
                found.append(f"tests/{suite}/{name}: no table of tests names it")
    return found


if __name__ == "__main__":
    tree.finish(check)
