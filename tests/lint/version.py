# SPDX-License-Identifier: MIT
"""One version everywhere: meson.build, the headers, the Python package, the changelog.

version.py ROOT             all versions are equal, and the changelog has the version
version.py ROOT --release   the changelog has a date for the version, and the recorded binary interface has the soname of
                            the version: src/package/release runs this check
"""
import re
import sys

import tree


def find(root, name, pattern):
    """What a pattern finds in a file, or "nothing"."""
    found = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else "nothing"


def versions(root):
    header = "include/xseg/version.h"
    yield header, "the number", ".".join(find(root, header, rf"XSEG_VERSION_{part}\s+(\d+)") for part in ("MAJOR", "MINOR", "PATCH"))
    yield header, "the text", find(root, header, r'XSEG_VERSION_TEXT\s+"([^"]*)"')
    yield "src/adapters/python/xseg/_structs.py", "VERSION", find(root, "src/adapters/python/xseg/_structs.py", r'^VERSION = "(.*)"$')
    yield "docs/changelog.md", "the newest version", find(root, "docs/changelog.md", r"^## \[(\d[^]]*)\]")


def check(root):
    build = find(root, "meson.build", r"^\s*version:\s*'([^']+)'")
    return [f"{name}: {what} is {said}, meson.build says {build}" for name, what, said in versions(root) if said != build]


def check_release(root):
    build = find(root, "meson.build", r"^\s*version:\s*'([^']+)'")
    text = (root / "docs/changelog.md").read_text(encoding="utf-8")
    found = []
    if not re.search(rf"^## \[{re.escape(build)}\] - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        found.append(f"docs/changelog.md: version without a date, {build}; replace \"unreleased\"")
    now = root / "tests/abi/libxseg.abi"
    abi = find(root, "meson.build", r"^abi = '(.*)'$")
    if f'soname="libxseg.so.{abi}"' not in now.read_text(encoding="utf-8"):
        found.append(f"tests/abi/libxseg.abi: is not that of libxseg.so.{abi}")
    if abi != build.split(".", maxsplit=1)[0]:
        found.append(f"meson.build: libxseg.so.{abi} in version {build}")
    return found


if __name__ == "__main__":
    IS_RELEASE = "--release" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--release"]
    tree.finish(check_release if IS_RELEASE else check)
