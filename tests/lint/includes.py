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
# The other folders whose headers the files of a folder include.
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
ALLOWED["src/tools/commands/top"] += ["src/base"]  # the layout of the statistics region
ALLOWED["src/tools/main"] = LIBRARY[:1] + ["src/tools"] + [f"src/tools/{folder}" for folder in TOOLS]

INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
PUBLIC = {"stdbool.h", "stddef.h", "stdint.h"}  # the headers of libc that public headers include
CUDA = re.compile(r"vmm/(driver\w*\.c|driver_entry\.h|sim/.*)")  # files that include cuda.h


def layer(path):
    """The folder of ALLOWED that contains a file directly or in a subfolder, or None."""
    folder = path.rpartition("/")[0]
    if folder in ALLOWED:
        return folder
    parents = [name for name in ALLOWED if name != "src" and path.startswith(name + "/")]
    return max(parents, key=len, default=None)


def include_error(source, quote, name):
    folder = layer(source)
    if name == "cuda.h":
        return None if CUDA.fullmatch(source) else "cuda.h is included outside of the driver and the simulator"
    if quote == "<":
        return f"a public header includes <{name}>" if folder == "include/xseg" and name not in PUBLIC else None
    if folder.startswith("src/adapters/") and "/" not in name:  # the Python package compiles these files without the tree
        return None
    target = layer("include/" + name if name.startswith("xseg/") else name)
    return None if target in [folder, *ALLOWED[folder]] else f"{folder} includes {name} of a higher layer"


def check(root):
    errors = []
    for source, text in tree.text_files(root):
        if not re.match(r"(include|src|vmm)/.*\.(c|h|cc|cpp|hpp)$", source):
            continue
        if layer(source) is None:
            errors.append(f"{source}: folder is not in ALLOWED of tests/lint/includes.py")
            continue
        for line_number, line in enumerate(text.splitlines(), 1):
            match = INCLUDE.match(line)
            if match and (message := include_error(source, match[1], match[2])):
                errors.append(f"{source}:{line_number}: {message}")
    return errors


if __name__ == "__main__":
    tree.finish(check)
