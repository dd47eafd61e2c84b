# SPDX-License-Identifier: MIT
"""A program runs on a library whose structures are longer or shorter than those of the program's headers.

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
    """Run a command; returns the error, or an empty string."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, env=env)
    return "" if result.returncode == 0 else f"{command[0]}: status {result.returncode}: {result.stdout}{result.stderr}"


def copy_with_longer_structures(root, folder):
    """Copy the library's sources, and append a member to the structures; returns the names of the structures."""
    for part in ("include", "src", "vmm"):
        shutil.copytree(root / part, folder / part, ignore=shutil.ignore_patterns("tools", "adapters", "package", "sim"))
    longer = []
    for header in sorted((folder / "include/xseg").glob("*.h")):
        if header.name not in ("sim.h", "ipc.h"):  # headers of other libraries
            text = header.read_text()
            longer += [name for _, name in STRUCT.findall(text)]
            header.write_text(STRUCT.sub(r"\1    size_t new_member;\n};", text))
    return longer


def build(folder, compiler):
    """Build the library of the copied tree; returns the error, or an empty string."""
    sources = [path for part in ("src", "vmm") for path in sorted((folder / part).rglob("*.c"))]
    count = os.cpu_count() or 1
    flags = (*FLAGS, "-DXSEG_CHECKS=0", "-DXSEG_HAVE_SDT=0", "-DXSEG_HAVE_NVTX=0", "-fPIC", "-fvisibility=hidden",
             f"-I{folder}", f"-I{folder / 'include'}")

    def compile_part(number):
        return run(*compiler, *flags, "-r", "-nostdlib", "-o", folder / f"part{number}.o", *sources[number::count])

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        errors = "".join(pool.map(compile_part, range(count)))
    return errors or run(*compiler, "-shared", "-Wl,-soname,libxseg.so.0", f"-Wl,--version-script={folder / 'src/xseg.map'}",
                         "-o", folder / "libxseg.so.0", *sorted(folder.glob("part*.o")), "-pthread", "-ldl")


def main(root, library, *compiler):
    root, library = pathlib.Path(root), pathlib.Path(library)
    program = pathlib.Path(__file__).with_name("pair.c")
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        longer = copy_with_longer_structures(root, folder)
        source = program.read_text()
        (folder / "current").mkdir()
        (folder / "current/libxseg.so.0").symlink_to(library.resolve())

        def build_and_run(headers, libraries):
            executable = folder / f"pair-{headers.parent.name}-{libraries.name}"
            return run(*compiler, *FLAGS, f"-I{headers}", "-o", executable, program, libraries / "libxseg.so.0") or \
                run(executable, folder / "snapshot.pickle", env={**os.environ, "LD_LIBRARY_PATH": str(libraries)})

        unused = [name for name in longer if not re.search(rf"\b{name}\b", source)]
        cases = [
            ("pair.c uses every structure with struct_size", lambda: "\n".join(unused) or ("" if longer else "no structures")),
            ("a library with longer structures can be built", lambda: build(folder, compiler)),
            ("a current program runs on a library with longer structures", lambda: build_and_run(root / "include", folder)),
            ("a program with longer structures runs on the current library",
             lambda: build_and_run(folder / "include", folder / "current")),
        ]
        print(f"1..{len(cases)}")
        for number, (name, case) in enumerate(cases, 1):
            error = case()
            failed += bool(error)
            print(f"{'not ok' if error else 'ok'} {number} - {name}")
            print("".join(f"# {line}\n" for line in error.splitlines()), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
