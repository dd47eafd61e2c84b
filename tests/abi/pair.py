# SPDX-License-Identifier: MIT
"""A program runs on a library whose structures are longer than those of its headers, and on one whose are shorter.

pair.py ROOT LIBRARY CC...   prints TAP

The test creates a copy of the tree in which every public structure with struct_size has one more member at its end, and
builds libxseg.so from it.  pair.c is compiled against the headers of both.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STRUCT = re.compile(r"^(struct (\w+) \{\n    size_t struct_size;.*?)^\};", re.MULTILINE | re.DOTALL)
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-w", "-O0")


def run(*command, env=None):
    """Why a command failed, or nothing."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, env=env)
    return "" if done.returncode == 0 else f"{command[0]}: status {done.returncode}: {done.stdout}{done.stderr}"


def grow(root, folder):
    """Copy the library's sources with longer structures; the names of these."""
    for part in ("include", "src", "vmm"):
        shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("tools", "adapters", "package", "sim"))
    grown = []
    for header in sorted((folder / "include/xseg").glob("*.h")):
        if header.name not in ("sim.h", "ipc.h"):  # of other libraries
            text = header.read_text()
            grown += [name for _, name in STRUCT.findall(text)]
            header.write_text(STRUCT.sub(r"\1    size_t one_more;\n};", text))
    return grown


def build(folder, compiler):
    """The library of the copied tree; why it could not be built, or nothing."""
    sources = [path for part in ("src", "vmm") for path in sorted((folder / part).rglob("*.c"))]
    count = os.cpu_count() or 1
    flags = (*FLAGS, "-DXSEG_CHECKS=0", "-DXSEG_HAVE_SDT=0", "-DXSEG_HAVE_NVTX=0", "-fPIC", "-fvisibility=hidden",
             f"-I{folder}", f"-I{folder / 'include'}")

    def compile_some(number):
        return run(*compiler, *flags, "-r", "-nostdlib", "-o", folder / f"part{number}.o", *sources[number::count])

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        failed = "".join(pool.map(compile_some, range(count)))
    return failed or run(*compiler, "-shared", "-Wl,-soname,libxseg.so.0", f"-Wl,--version-script={folder / 'src/xseg.map'}",
                         "-o", folder / "libxseg.so.0", *sorted(folder.glob("part*.o")), "-pthread", "-ldl")


def main(root, library, *compiler):
    root, library = pathlib.Path(root), pathlib.Path(library)
    program = pathlib.Path(__file__).with_name("pair.c")
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        grown = grow(root, folder)
        source = program.read_text()
        (folder / "today").mkdir()
        (folder / "today/libxseg.so.0").symlink_to(library.resolve())

        def play(headers, libraries):
            made = folder / f"pair-{headers.parent.name}-{libraries.name}"
            return run(*compiler, *FLAGS, f"-I{headers}", "-o", made, program, libraries / "libxseg.so.0") or \
                run(made, folder / "snapshot.pickle", env={**os.environ, "LD_LIBRARY_PATH": str(libraries)})

        unnamed = [name for name in grown if not re.search(rf"\b{name}\b", source)]
        cases = [
            ("pair.c names every structure that can grow", lambda: "\n".join(unnamed) or ("" if grown else "there is none")),
            ("a library with longer structures can be built", lambda: build(folder, compiler)),
            ("a program of today runs on a library with longer structures", lambda: play(root / "include", folder)),
            ("a program of longer structures runs on the library of today",
             lambda: play(folder / "include", folder / "today")),
        ]
        print(f"1..{len(cases)}")
        for number, (name, case) in enumerate(cases, 1):
            why = case()
            failed += bool(why)
            print(f"{'not ok' if why else 'ok'} {number} - {name}")
            print("".join(f"# {line}\n" for line in why.splitlines()), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
