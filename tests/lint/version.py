# SPDX-License-Identifier: MIT
"""meson.build, the headers, the Python package and the changelog have the same version.

version.py ROOT             all versions are equal, and the changelog has the version
version.py ROOT --release   the changelog has a date for the version, and the recorded binary interface has the soname of
                            the version: src/package/release runs this check
"""
import re
import sys

import tree


def find(root, name, pattern):
    """The first group of a pattern in a file, or "missing"."""
    match = re.search(pattern, (root / name).read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "missing"


def versions(root):
    header = "include/xseg/version.h"
    numbers = [find(root, header, rf"XSEG_VERSION_{part}\s+(\d+)") for part in ("MAJOR", "MINOR", "PATCH")]
    yield header, "XSEG_VERSION_MAJOR to XSEG_VERSION_PATCH", ".".join(numbers)
    yield header, "XSEG_VERSION_TEXT", find(root, header, r'XSEG_VERSION_TEXT\s+"([^"]*)"')
    structs = "src/adapters/python/xseg/_structs.py"
    yield structs, "VERSION", find(root, structs, r'^VERSION = "(.*)"$')
    yield "docs/changelog.md", "the newest version", find(root, "docs/changelog.md", r"^## \[(\d[^]]*)\]")


def check(root):
    build = find(root, "meson.build", r"^\s*version:\s*'([^']+)'")
    return [f"{name}: {field} is {version} instead of {build} as in meson.build"
            for name, field, version in versions(root) if version != build]


def check_release(root):
    build = find(root, "meson.build", r"^\s*version:\s*'([^']+)'")
    text = (root / "docs/changelog.md").read_text(encoding="utf-8")
    errors = []
    if not re.search(rf"^## \[{re.escape(build)}\] - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        errors.append(f"docs/changelog.md: version without a date, {build}; replace \"unreleased\"")
    record = root / "tests/abi/libxseg.abi"
    abi = find(root, "meson.build", r"^abi = '(.*)'$")
    if f'soname="libxseg.so.{abi}"' not in record.read_text(encoding="utf-8"):
        errors.append(f"tests/abi/libxseg.abi: soname is not libxseg.so.{abi}")
    if abi != build.split(".", maxsplit=1)[0]:
        errors.append(f"meson.build: libxseg.so.{abi} in version {build}")
    return errors


if __name__ == "__main__":
    IS_RELEASE = "--release" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--release"]
    tree.finish(check_release if IS_RELEASE else check)
