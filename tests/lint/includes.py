# SPDX-License-Identifier: MIT
"""Includes between layers: a file includes files of its folder and of lower folders."""
import re

import tree

LIBRARY = ["include/xseg", "src/base", "vmm"]
# The modules of the allocator and the folders of the tool, bottom to top. Commands of the tool do not include each other.
CORE = ("config history stats stream block device pending reclaim budget grow range pool "
        "register report instance alloc").split()
TOOLS = "containers output command reading trace replay replay_model ranks".split()
COMMANDS = "advise blame compare config doctor export probe replay run top view".split()
# Folder: the folders that its files include, itself aside.
ALLOWED = {
    "include/xseg": [],
    "src/base": LIBRARY[:1],
    "vmm": LIBRARY[:2],
    "vmm/sim": LIBRARY[:1],
    "src": LIBRARY + [f"src/core/{module}" for module in CORE],
    "src/adapters/ipc": LIBRARY[:1],
    "src/adapters/preload": LIBRARY[:1],
    "src/adapters/python": [],
    "src/adapters/torch": LIBRARY[:1],
    "src/tools": [],  # generated headers
}
for number, name in enumerate(CORE):
    ALLOWED[f"src/core/{name}"] = LIBRARY + [f"src/core/{module}" for module in CORE[:number]]
for number, name in enumerate(TOOLS):
    ALLOWED[f"src/tools/{name}"] = LIBRARY[:1] + [f"src/tools/{folder}" for folder in TOOLS[:number]]
for name in COMMANDS:
    ALLOWED[f"src/tools/commands/{name}"] = LIBRARY[:1] + [f"src/tools/{folder}" for folder in TOOLS]
ALLOWED["src/tools/commands/top"] += ["src/base"]  # the layout that the library publishes
ALLOWED["src/tools/main"] = LIBRARY[:1] + ["src/tools"] + [f"src/tools/{folder}" for folder in TOOLS]

INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
PUBLIC = {"stdbool.h", "stddef.h", "stdint.h"}  # what public headers include of libc
CUDA = re.compile(r"vmm/(driver\w*\.c|driver_entry\.h|sim/.*)")  # files that include cuda.h


def folder_of(path):
    """The folder of ALLOWED that has a file, subfolders included, or None."""
    folder = path.rpartition("/")[0]
    if folder in ALLOWED:
        return folder
    above = [name for name in ALLOWED if name != "src" and path.startswith(name + "/")]
    return max(above, key=len, default=None)


def complaint(source, quote, name):
    folder = folder_of(source)
    if name == "cuda.h":
        return None if CUDA.fullmatch(source) else "cuda.h is included outside of the driver and the simulator"
    if quote == "<":
        return f"a public header includes <{name}>" if folder == "include/xseg" and name not in PUBLIC else None
    if folder.startswith("src/adapters/") and "/" not in name:  # the Python package compiles these files without the tree
        return None
    target = folder_of("include/" + name if name.startswith("xseg/") else name)
    return None if target in [folder, *ALLOWED[folder]] else f"{folder} includes {name}, which is neither in it nor below it"


def check(root):
    found = []
    for source, text in tree.text_files(root):
        if not re.match(r"(include|src|vmm)/.*\.(c|h|cc|cpp|hpp)$", source):
            continue
        if folder_of(source) is None:
            found.append(f"{source}: is in no folder of ALLOWED in tests/lint/includes.py")
            continue
        for line_number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            what = complaint(source, match[1], match[2]) if match else None
            if what:
                found.append(f"{source}:{line_number}: {what}")
    return found


if __name__ == "__main__":
    tree.finish(check)
