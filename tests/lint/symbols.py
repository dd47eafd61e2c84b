# SPDX-License-Identifier: MIT
"""The libraries export what their headers declare, and need no CUDA library.

symbols.py ROOT LIBXSEG LIBXSEG_SIM LIBXSEG_IPC
"""
import re
import subprocess

import tree

DECLARATION = re.compile(r"XSEG_API[^;{]*?\b(xseg_\w+)\s*\(")
# Headers of other libraries than libxseg.so.
OWN_HEADERS = ("sim.h", "ipc.h")


def declared(root, own=None):
    """The functions that a header of OWN_HEADERS declares, or those of libxseg.so."""
    names = set()
    for header in (root / "include/xseg").glob("*.h"):
        if header.name == own or (own is None and header.name not in OWN_HEADERS):
            names |= set(DECLARATION.findall(header.read_text()))
    return names


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def exported(library):
    rows = (line.split() for line in run("nm", "-D", "--defined-only", str(library)))
    return {row[2].split("@")[0] for row in rows if len(row) == 3 and row[1] != "A"}


def needed(library):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", "\n".join(run("readelf", "-d", str(library)))))


def differences(what, have, want):
    """A complaint for each name that only one of two sets has."""
    return [f"{what}: {name} is missing" for name in sorted(want - have)] + \
           [f"{what}: {name} is too much" for name in sorted(have - want)]


def check(root, libxseg, libxseg_sim, libxseg_ipc):
    found = differences("libxseg.so", exported(libxseg), declared(root))
    simulated = exported(libxseg_sim)
    for library, names, header in (("libxseg-sim.so", simulated, "sim.h"), ("libxseg-ipc.so", exported(libxseg_ipc), "ipc.h")):
        found += differences(library, {name for name in names if name[:2] != "cu"}, declared(root, header))
    if "cuInit" not in simulated:
        found.append("libxseg-sim.so: exports no cuInit")
    for library in (libxseg, libxseg_sim, libxseg_ipc):
        found += [f"{library.name}: needs {name}" for name in sorted(needed(library))
                  if name.startswith(("libcuda", "libnv"))]
    return found


if __name__ == "__main__":
    tree.finish(check)
