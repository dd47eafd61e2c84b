# SPDX-License-Identifier: MIT
"""What one call reaches: functions, files and rooms of the library, counted by callgrind.

    reach.py ROOT BUILD [ROOT BUILD]...       a column for each source tree and its build

Prints how many modules of src/core call in circles, what a small hit, its free, a large miss that maps
pages and a trim that unmaps them reach (reach.c), and the lines of src/core.  By hand: it needs
valgrind with its header, universal-ctags, and a release build with debug information:

    meson setup BUILD -Dbuildtype=release -Ddebug=true && ninja -C BUILD

A function is reached if an instruction of it is executed, or of what was inlined into it; inlined functions
count.  The simulator, the C library and the tools do not.  A room is a folder: each in src/core, and
src/core, src/base, vmm and src.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import calls

PROGRAM = pathlib.Path(__file__).with_suffix(".c")
CASES = {"small_hit": "small hit", "small_free": "free of it", "large_miss": "large miss",
         "large_trim": "trim of it"}
# An object, and an instruction of it that was executed.
PLACE = re.compile(r"ob=(.*)|(0x[0-9a-f]+) \d+$")


def compile_program(root, build, folder):
    """Compile reach.c with a tree's headers and library, the one for all processors."""
    program = pathlib.Path(folder).resolve() / "reach"
    is_older = "struct xseg_statistics" not in (root / "include/xseg/stats.h").read_text()
    renamed = ["-Dxseg_statistics=xseg_stats"] if is_older else []  # what a tree from before calls it
    subprocess.run(["cc", "-std=c11", "-O1", "-no-pie", *renamed, "-I", root / "include", "-o", program, PROGRAM,
                    build / "libxseg.a", build / "libxseg-sim.so", f"-Wl,-rpath,{build}", "-pthread", "-ldl"],
                   check=True)
    return program


def record(program, build, case):
    """What callgrind writes about a case."""
    dump = program.with_name(case)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XSEG_", "PYTORCH_"))}
    environment["XSEG_DRIVER"] = str(build / "libxseg-sim.so")
    subprocess.run(["valgrind", "--log-file=/dev/null", "--tool=callgrind", "--instr-atstart=no",
                    "--dump-instr=yes", "--dump-line=no", "--compress-strings=no", "--compress-pos=no",
                    f"--callgrind-out-file={dump}", program, case],
                   env=environment, check=True)
    return dump.read_text()


def addresses(text, program):
    """The instructions of the programme that were executed."""
    is_own, found = False, set()
    for match in filter(None, map(PLACE.match, text.splitlines())):
        if match[2] is None:
            is_own = match[1] == str(program)
        elif is_own:
            found.add(match[2])
    return sorted(found)


def executed(found, program, root, build):
    """File and line of instructions, and of each place that they were inlined into."""
    done = subprocess.run(["addr2line", "-i", "-e", program], input="\n".join(found), text=True,
                          capture_output=True, check=True)
    for line in set(done.stdout.splitlines()):
        path, number = line.split(" (")[0].rsplit(":", 1)
        if number.isdigit():
            yield os.path.relpath(build / path, root), int(number)


def room(path):
    """The folder that a file counts for."""
    parts = path.split("/")
    return "/".join(parts[:3 if parts[:2] == ["src", "core"] else 2][:len(parts) - 1])


def reached(graph, lines):
    """How many functions, files and rooms the executed lines stand in."""
    functions = collections.defaultdict(list)
    for function in graph.functions:
        functions[function.path].append(function)
    hits = {function for path, line in lines for function in functions[path]
            if function.first <= line <= function.last}
    files = {function.path for function in hits}
    return len(hits), len(files), len(set(map(room, files)))


def column(root, build):
    """The figures of a tree, a name and a text each."""
    graph = calls.Graph(root)
    in_core = {path: text for path, text in graph.texts.items() if path.startswith(calls.CORE)}
    edges = graph.modules(in_core.__contains__)
    sizes = [len(circle) for circle in calls.circles(edges)]
    yield "modules in circles, of", f"{sum(sizes)}, {len(edges)}"
    yield "the largest circle", str(max(sizes, default=0))
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program(root, build, folder)
        for case, name in CASES.items():
            found = addresses(record(program, build, case), program)
            counts = reached(graph, executed(found, program, root, build))
            if not counts[0]:
                sys.exit(f"{build}: no line of {root} was executed: is it built with -Ddebug=true?")
            yield f"{name}: functions, files, rooms", "{}, {}, {}".format(*counts)
    yield "lines of src/core", str(sum(text.count("\n") for text in in_core.values()))


def main():
    """Print the table."""
    paths = [pathlib.Path(argument).resolve() for argument in sys.argv[1:]]
    if not paths or len(paths) % 2:
        sys.exit("usage: reach.py ROOT BUILD [ROOT BUILD]...")
    trees = list(zip(paths[::2], paths[1::2]))
    columns = [dict(column(root, build)) for root, build in trees]
    print("| |" + "".join(f" {root.name} |" for root, _ in trees))
    print("|---|" + "---|" * len(trees))
    for name in columns[0]:
        print(f"| {name} |" + "".join(f" {figures[name]} |" for figures in columns))


if __name__ == "__main__":
    main()
