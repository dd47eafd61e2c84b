# SPDX-License-Identifier: MIT
"""Who may include whom: a folder includes itself and what stands below it, never above.

Includes in quotes are written from the root of the tree, public headers as "xseg/...", so every
include names its floor.  cuda.h is seen by the driver, the simulator and the GPU tests only.
"""
import re

import tree

# Folder: the folders that its files may include, itself aside.  The longest match counts.
FLOORS = {
    "include/xseg": set(),
    "src/base": {"include/xseg"},
    "vmm": {"include/xseg", "src/base"},
    "vmm/sim": {"include/xseg"},
    "src/core": {"include/xseg", "src/base", "vmm"},
    "src": {"include/xseg", "src/base", "vmm", "src/core"},
    "src/tools": {"include/xseg"},
    "src/adapters": {"include/xseg"},
}
# The C library of a public header; C and C++ both have these.
LIBC = {"stdbool.h", "stddef.h", "stdint.h"}
SEES_CUDA = re.compile(r"vmm/driver\w*\.c|vmm/driver_entry\.h|vmm/sim/.*|tests/gpu/.*|tests/unit/sim_.*")
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')


def floor_of(path):
    """The floor that a path stands on, or None."""
    floors = [floor for floor in FLOORS if path.startswith(floor + "/")]
    return max(floors, key=len, default=None)


def includes(path):
    """Line number, kind of quote and name of each include."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1], match[2]


def complaint(source, quote, name):
    """What is wrong with an include, or None."""
    floor = floor_of(source)
    if name == "cuda.h":
        return None if SEES_CUDA.fullmatch(source) else "may not see cuda.h"
    if quote == "<":
        if floor == "include/xseg" and name not in LIBC:
            return f"a public header may not include <{name}>"
        return None
    target = "include/" + name if name.startswith("xseg/") else name
    below = floor_of(target)
    if floor is None:  # tests and benchmarks may see everything
        return None if below or target.startswith(("tests/", "benchmarks/")) else \
            f"{name} is not written from the root"
    if below is None:
        return f"{name} is not written from the root"
    if below != floor and below not in FLOORS[floor]:
        return f"{floor} may not include {name}"
    return None


def check(root):
    """All complaints about a tree."""
    found = []
    for folder in ("include", "src", "vmm", "tests", "benchmarks"):
        for path in sorted((root / folder).rglob("*.[ch]")):
            source = path.relative_to(root).as_posix()
            for number, quote, name in includes(path):
                text = complaint(source, quote, name)
                if text:
                    found.append(f"{source}:{number}: {text}")
    return found


if __name__ == "__main__":
    tree.finish(check)
