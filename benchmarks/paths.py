#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Counts the functions and files that a hit, a free, a miss and a trim pass through.

paths.py [--list [PATH...]] [--builddir DIR]

Builds a copy of the library in which each function reports its entry (gcc without optimization and inlining), runs
bench-paths on the simulated driver, and counts the distinct functions of each path and their files.  Functions of src/base
do not count.  A miss ends with its first driver call.  --list prints the functions in the order of their first entry.
"""
import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATHS = {"hit": "small hit", "free": "free", "miss": "miss, to the first driver call", "trim": "trim"}
OPTIONS = ["-Dbuildtype=plain", "-Dchecks=0", "-Dtests=disabled", "-Dtools=disabled", "-Dbenchmarks=enabled",
           "-Dsimulator=enabled", "-Dc_args=-O0 -g -gdwarf-4 -fno-inline -finstrument-functions"]


def build(folder):
    """Create or update the instrumented build; returns the program."""
    if not (folder / "build.ninja").exists():
        subprocess.run(["meson", "setup", folder, ROOT, *OPTIONS], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, "benchmarks/bench-paths"], check=True, stdout=subprocess.DEVNULL)
    return folder / "benchmarks/bench-paths"


def read_entries(program):
    """Run the program; returns the entries of each path, as pairs of shared library and offset."""
    result = {path: [] for path in PATHS}
    environment = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name and name != "XSEG_DRIVER"}
    output = subprocess.run([program], check=True, text=True, stdout=subprocess.PIPE, env=environment).stdout
    for line in output.splitlines():
        path, library, offset = line.split()
        result[path].append((library, offset))
    return result


def symbolize(library, offsets):
    """The function and the file, relative to the tree, of each offset."""
    result = subprocess.run(["addr2line", "-f", "-e", library], check=True, text=True, stdout=subprocess.PIPE,
                            input="\n".join(offsets))
    lines = result.stdout.splitlines()
    return {offset: (name, os.path.relpath(location.rsplit(":", 1)[0], ROOT))
            for offset, name, location in zip(offsets, lines[::2], lines[1::2])}


def distinct_functions(path, path_entries, names):
    """The distinct functions of a path in the order of their first entry."""
    result = {}
    for library, offset in path_entries:
        if "libxseg-sim" in library:
            if path == "miss":
                break
            continue
        function = names[library][offset]
        if not function[1].startswith("src/base/"):
            result[function] = None
    return list(result)


def main():
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", nargs="*", metavar="PATH", choices=PATHS, help="print the functions of these paths, or of all")
    parser.add_argument("--builddir", type=pathlib.Path, default=ROOT / "build-paths")
    arguments = parser.parse_args()
    all_entries = read_entries(build(arguments.builddir.resolve()))
    names = {}
    for library in {library for path in all_entries.values() for library, _ in path}:
        offsets = {offset for path in all_entries.values() for owner, offset in path if owner == library}
        names[library] = symbolize(library, sorted(offsets))
    for path, title in PATHS.items():
        path_functions = distinct_functions(path, all_entries[path], names)
        print(f"{title:32}{len(path_functions):5} functions{len({file for _, file in path_functions}):5} files")
        if arguments.list is not None and (not arguments.list or path in arguments.list):
            print("".join(f"    {name:48}{file}\n" for name, file in path_functions), end="")


if __name__ == "__main__":
    sys.exit(main())
