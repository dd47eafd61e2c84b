# SPDX-License-Identifier: MIT
"""Who may include whom: a folder includes itself and what stands below it, never above.

Includes in quotes are written from the root of the tree, public headers as "xseg/...", so every
include names its floor.  cuda.h is seen by the driver, the simulator, the tests of that, the GPU tests and the runtime for tests only.

src/core and src/tools are divided into rooms, which have an order, too, and keep it with their calls as well.  In a
room a header declares the functions of one .c, the one of its stem, and every .c has such a header; but not command_NAME.c
of the tool, whose only name for others is a row that command.h lists.
Calls are read by calls.py; without universal-ctags only files and includes are looked at.

Each folder of src/adapters stands by itself above include/xseg.  What it has of Python imports the standard library, its
own package, and those that HOOKS names for it.
"""
import ast
import re
import sys

import calls
import tree
from calls import CORE, TOOLS

# The folders with rooms, each bottom to top.  A room uses itself and the rooms before it; folders in it belong to it.  Rooms
# in one tuple stand beside each other: none uses another.
ROOMS = {
    CORE: ("config", "history", "stats", "stream", "block", "arena", "small", "large", "cache", "device", "pending",
           "reclaim", "budget", "grow", "ranges", "pools", "registration", "inspect", "snapshot", "metrics", "front", "hit"),
    TOOLS: ("containers", "text", "command", "files", "recording", "trace", "driver", "player", "course", "ranks",
            ("advise", "blame", "compare", "config", "export", "probe", "replay", "top", "view"), "main"),
}
# Room: the circles of calls that it has, each as its modules in order.
CIRCLES = {
    "src/core/device": ["orphan pool pool_stats retire"],
    "src/core/pending": ["deferred pending"],
    "src/core/pools": ["share share_header"],
    "src/core/front": ["allocator_free device_alloc"],
}
CIRCLE_MODULES = 5
NO_CTAGS = "universal-ctags is not installed"

# Folder: the folders that its files may include, itself aside.  The longest match counts.
FLOORS = {
    "include/xseg": set(),
    "src/base": {"include/xseg"},
    "vmm": {"include/xseg", "src/base"},
    "vmm/sim": {"include/xseg"},
    "src/core": {"include/xseg", "src/base", "vmm"},
    "src": {"include/xseg", "src/base", "vmm", "src/core"},
    "src/tools": {"include/xseg"},
}
ADAPTER = re.compile(r"(src/adapters/[^/]+)/.*")
ABOVE_HEADERS = {"include/xseg"}
# Python of adapters: where it stands, the longest match, and the packages of others that it may import.
PYTHON = "src/adapters/"
PACKAGES = {"manylinux", "xseg", "xseg_sim", "_xseg_torch_hook"}
HOOKS = {
    "src/adapters/python/manylinux/": {"elftools", "ziglang"},
    "src/adapters/python/xseg/cupy.py": {"cupy"},
    "src/adapters/python/xseg/numba.py": {"numba"},
    "src/adapters/python/xseg/rmm.py": {"rmm"},
    "src/adapters/python/xseg/torch/": {"torch"},
    "src/adapters/python/_xseg_torch_hook.py": {"torch"},
}
# The C library of a public header; C and C++ both have these.
LIBC = {"stdbool.h", "stddef.h", "stdint.h"}
SEES_CUDA = re.compile(r"vmm/driver\w*\.c|vmm/driver_entry\.h|vmm/sim/.*|tests/gpu/.*|tests/unit/sim_.*|tests/support/cudart/.*")
HEADERLESS = re.compile(r"(main|command_\w+)\.c")
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')


def floor_of(path):
    """The floor that a path stands on, or None."""
    adapter = ADAPTER.fullmatch(path)
    if adapter:
        return adapter[1]
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
    if floor and floor.startswith(PYTHON) and "/" not in name:  # it is compiled where it is installed, too
        return None
    if floor is None:  # tests and benchmarks may see everything
        return None if below or target.startswith(("tests/", "benchmarks/")) else \
            f"{name} is not written from the root"
    if below is None:
        return f"{name} is not written from the root"
    if below != floor and below not in FLOORS.get(floor, ABOVE_HEADERS):
        return f"{floor} may not include {name}"
    return None


def rooms(program):
    """Of each room of a folder, bottom to top, how high it stands."""
    levels = (level if isinstance(level, tuple) else (level,) for level in ROOMS[program])
    return {room: height for height, level in enumerate(levels) for room in level}


def place(path, program):
    """How high a file stands among the rooms of a folder, and what is there; None where there is no room for it."""
    if path.startswith(program):
        room, _, name = path.removeprefix(program).partition("/")
        height = rooms(program).get(room)
        return (height, f"room {room}") if name and height is not None else None
    if program == CORE and re.fullmatch(r"src/[^/]+", path):
        return len(ROOMS[CORE]), "the entry points"
    return -1, floor_of(path)


def use(program, source, number, verb, target, what):
    """The complaints about one use of what is in another file: none, or one if that stands above, or beside."""
    here, there = place(source, program), place(target, program)
    if here is None or there is None or here == there or here[0] == -1 or here[0] > there[0]:
        return []
    where = "beside" if here[0] == there[0] else "above"
    return [f"{source}:{number}: {here[1]} may not {verb} {what} of {there[1]}, {where} it"]


def check_files(root, program):
    """What is wrong with the files of rooms and their includes."""
    for path in sorted((root / program).rglob("*.[ch]")):
        source = path.relative_to(root).as_posix()
        if place(source, program) is None:
            yield f"{source}: stands in no room"
        elif path.suffix == ".c" and not path.with_suffix(".h").exists() and not HEADERLESS.fullmatch(path.name):
            yield f"{source}: has no header {calls.module(source)}.h"
        for number, _, name in includes(path):
            if name.startswith(program):
                yield from use(program, source, number, "include", name, name)


def check_calls(graph, program):
    """What is wrong with the calls of rooms, and with where their functions are declared."""
    for call in graph.calls:
        yield from use(program, call.path, call.line, "call", call.target.path, call.target.name + "()")
    for header, name, line in graph.declared:
        places = [function.path for function in graph.defined[name] if not function.is_own]
        if header.startswith(program) and places and calls.module(header) not in map(calls.module, places):
            yield f"{header}:{line}: declares {name}(), which {places[0]} defines"


def check_circles(graph, program, known):
    """What is wrong with the circles of modules in each room."""
    for room in (program + name for name in rooms(program)):
        edges = graph.modules(lambda path, room=room: path.startswith(room + "/"))
        found = [[name.removeprefix(room + "/") for name in circle] for circle in calls.circles(edges)]
        for circle in found:
            if len(circle) > CIRCLE_MODULES:
                yield f"{room}: a circle of {len(circle)} modules, more than {CIRCLE_MODULES}: {' '.join(circle)}"
            elif " ".join(circle) not in known.get(room, []):
                yield f"{room}: a circle that CIRCLES does not name: {' '.join(circle)}"
        for circle in known.get(room, []):
            if circle.split() not in found:
                yield f"{room}: CIRCLES names a circle that is not there: {circle}"


def check_rooms(root, known):
    """All complaints about the rooms."""
    found = [complaint for program in ROOMS for complaint in check_files(root, program)]
    if not calls.has_ctags():
        print(f"floors.py: calls are not looked at: {NO_CTAGS}")
        return found
    for program in ROOMS:
        graph = calls.Graph(root, program)
        found += [*check_calls(graph, program), *check_circles(graph, program, known)]
    return found


def imports(tree_of_python):
    """Line and package of each import."""
    for node in ast.walk(tree_of_python):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module.split(".")[0]


def check_python(root):
    """What is wrong with the imports of the adapters."""
    for path in sorted((root / PYTHON).rglob("*.py")):
        source = path.relative_to(root).as_posix()
        allowed = HOOKS.get(max((hook for hook in HOOKS if source.startswith(hook)), key=len, default=""), set())
        for number, package in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if package not in sys.stdlib_module_names | PACKAGES | allowed:
                yield f"{source}:{number}: may not import {package}"


def check(root, known=None):
    """All complaints about a tree."""
    found = list(check_python(root))
    for folder in ("include", "src", "vmm", "tests", "benchmarks"):
        paths = [path for kind in ("*.[ch]", "*.cc", "*.cpp", "*.hpp") for path in (root / folder).rglob(kind)]
        for path in sorted(paths):
            source = path.relative_to(root).as_posix()
            for number, quote, name in includes(path):
                text = complaint(source, quote, name)
                if text:
                    found.append(f"{source}:{number}: {text}")
    return found + check_rooms(root, CIRCLES if known is None else known)


if __name__ == "__main__":
    tree.finish(check)
