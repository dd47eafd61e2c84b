# SPDX-License-Identifier: MIT
"""The libraries export exactly the functions that their headers declare, and do not depend on CUDA libraries.

symbols.py ROOT LIBXSEG LIBXSEG_SIM LIBXSEG_IPC
"""
import re
import subprocess

import tree

DECLARATION = re.compile(r"XSEG_API[^;{]*?\b(xseg_\w+)\s*\(")
# Headers of libxseg-sim.so and libxseg-ipc.so; the other headers declare functions of libxseg.so.
OWN_HEADERS = ("sim.h", "ipc.h")


def declared(root, own_header=None):
    """The functions that a header of OWN_HEADERS declares, or the functions of libxseg.so."""
    names = set()
    for header in (root / "include/xseg").glob("*.h"):
        if header.name == own_header or (own_header is None and header.name not in OWN_HEADERS):
            names |= set(DECLARATION.findall(header.read_text()))
    return names


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def exported(library):
    rows = (line.split() for line in run("nm", "-D", "--defined-only", str(library)))
    return {row[2].split("@")[0] for row in rows if len(row) == 3 and row[1] != "A"}


def dependencies(library):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", "\n".join(run("readelf", "-d", str(library)))))


def differences(library, symbols, expected):
    return [f"{library}: does not export {name}" for name in sorted(expected - symbols)] + \
           [f"{library}: exports an undeclared function, {name}" for name in sorted(symbols - expected)]


def check(root, libxseg, libxseg_sim, libxseg_ipc):
    errors = differences("libxseg.so", exported(libxseg), declared(root))
    simulated = exported(libxseg_sim)
    for library, names, header in (("libxseg-sim.so", simulated, "sim.h"), ("libxseg-ipc.so", exported(libxseg_ipc), "ipc.h")):
        errors += differences(library, {name for name in names if name[:2] != "cu"}, declared(root, header))
    if "cuInit" not in simulated:
        errors.append("libxseg-sim.so: does not export cuInit")
    for library in (libxseg, libxseg_sim, libxseg_ipc):
        errors += [f"{library.name}: depends on {name}" for name in sorted(dependencies(library))
                   if name.startswith(("libcuda", "libnv"))]
    return errors


if __name__ == "__main__":
    tree.finish(check)
