# SPDX-License-Identifier: MIT
"""Installation, use, upgrade, upgrade to another soname, and removal of the packages of src/package/deb in a fresh Debian.

packages.py [--root FOLDER]: an existing root file system; by default, debootstrap creates a temporary one.

Takes minutes, and requires a network for the dependencies.  `tests/campaign packages` runs this test.  The exit status is
77, with a message, if a requirement is missing.
"""
import argparse
import pathlib
import re
import shutil
import sys
import tempfile

from fresh_root import FreshRoot, expect, missing_requirement, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
NAMES = ("libxseg0", "libxseg-dev", "xseg", "python3-xseg")
REQUIRED = ("debootstrap", "chroot", "unshare", "dpkg-buildpackage", "lintian")
# Files that apt and dpkg write, and the packages.
IGNORED = ("./var/cache/", "./var/lib/apt/", "./var/lib/dpkg/", "./var/log/", "./etc/ld.so.cache", "./tmp/", "./etc/apt/",
           "./packages/")
PYTHON = """
import os, pathlib, sys, xseg, xseg._library
with xseg.open(driver=xseg._library.simulator()) as allocator, allocator.allocate(1 << 20) as block:
    print(allocator.statistics().allocated_bytes.all.current, xseg.__version__)
print(xseg._library.path(), xseg._library.include(), "_xseg_torch_hook" in sys.modules)
print(pathlib.Path(xseg.__file__).with_name("torch").joinpath("src/all.cpp").exists())
import importlib.metadata
print(importlib.metadata.version("xseg"))
"""


class Root(FreshRoot):
    def install(self, *packages):
        self.run("apt-get install -y -q --no-install-recommends " + " ".join(packages))

    def state(self):
        names = self.run("find . -xdev -path ./proc -prune -o -path ./dev -prune -o ! -type d -print").split("\n")
        return {name for name in names if not name.startswith(IGNORED)} | set(self.run("dpkg -l | grep -v ^ii.*xseg").split("\n"))


def build_next_soname(folder):
    """Build the packages of a version with an incompatible interface: libxseg2."""
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".git", "build*", "out", "__pycache__"))
    for name, old, new in (("meson.build", r"^abi = '0'$", "abi = '2'"), ("meson.build", r"^  version: '0\.", "  version: '2."),
                           ("include/xseg/version.h", r'(_TEXT\s+)"0\.', r'\1"2.')):
        text = (tree / name).read_text(encoding="utf-8")
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        expect(count == 1, f"{name} has {old!r} {count} times")
        (tree / name).write_text(text, encoding="utf-8")
    run(tree / "src/package/deb", folder / "packages")
    return folder / "packages"


def compile_program(root, flags, name):
    shutil.copy(HERE / "use.c", root.folder / "packages/use.c")
    root.run(f"cc -o packages/{name} packages/use.c $(pkg-config --cflags xseg) {flags}")
    return f"XSEG_DRIVER=$(pkg-config --variable=driver xseg-sim) packages/{name}"


def check_use(root, version):
    """Use the tool, and the library from C and Python; returns a command that runs the program linked with the library."""
    expect(f"xseg {version} " in root.run("xseg --version"), "xseg --version")
    expect("Simulated device 0" in root.run("xseg probe"), "xseg probe does not find the simulator")
    expect(root.run("python3 -m xseg --version") == root.run("xseg --version"), "python3 -m xseg")
    expect(root.run("LD_PRELOAD=libxseg-preload.so xseg --version") == root.run("xseg --version"), "LD_PRELOAD")
    (root.folder / "packages/use.py").write_text(PYTHON, encoding="utf-8")
    output = root.run("XSEG_TORCH=1 python3 packages/use.py").split("\n")
    multiarch = root.run("dpkg-architecture -q DEB_HOST_MULTIARCH || cc -print-multiarch").split()[-1]
    preloaded = root.run("xseg run sh -c 'echo $LD_PRELOAD'")
    expect(preloaded == f"/usr/lib/{multiarch}/libxseg-ipc.so\n", preloaded)
    expected = [f"{1 << 20} {version}", f"/usr/lib/{multiarch}/libxseg.so.0 /usr/include True", "True", version, ""]
    expect(output == expected, f"the Python program prints {output}")
    shared = compile_program(root, "$(pkg-config --libs xseg)", "shared")
    static = compile_program(root, "$(pkg-config --static --libs xseg | sed s/-lxseg/-l:libxseg.a/)", "static")
    expect(root.run(shared) == root.run(static) == f"{version}\n", "a program built with pkg-config prints another version")
    return shared


def check_packages(root, packages, version):
    """Install, upgrade and remove the packages."""
    root.run("apt-get update -q")
    root.copy_packages(packages["first"])
    root.install("gcc", "libc6-dev", "pkg-config", "python3")
    before = root.state()
    root.install("/packages/*.deb")
    shared = check_use(root, version)
    print("ok - the installed packages work", flush=True)

    for path in (root.folder / "packages").glob("*.deb"):
        path.unlink()
    root.copy_packages(packages["next"])
    root.install("/packages/*.deb")
    versions = root.run(f"dpkg-query -W -f '${{Version}} ' {' '.join(NAMES)}").split()
    expect(versions == [f"{version}-2"] * len(NAMES), f"versions {versions}")
    expect(root.run(shared) == f"{version}\n", "a program linked before the upgrade fails")
    check_use(root, version)
    print("ok - upgraded packages work", flush=True)

    root.copy_packages(packages["next soname"])
    root.install("/packages/libxseg2_*.deb")
    next_soname = compile_program(root, "-l:libxseg.so.2", "next-soname")
    expect("libxseg.so.2 => /" in root.run("ldd packages/next-soname"), "the program loads another library")
    expect(root.run(shared) == root.run(next_soname) == f"{version}\n", "a program fails while both sonames are installed")
    check_use(root, version)
    print("ok - libraries of two sonames coexist", flush=True)

    # The packages of the next version replace all packages but the library that existing programs load.
    root.install("/packages/*_2.*.deb")
    expect(root.run("xseg --version").startswith("xseg 2."), "the tool is not of the next version")
    expect(root.run(shared.replace("$(pkg-config --variable=driver xseg-sim)", "libxseg-sim.so.0")) == f"{version}\n",
           "a program linked with the previous version fails")
    print("ok - packages upgrade to another soname", flush=True)

    root.run(f"apt-get purge -y -q --autoremove {' '.join(NAMES)} libxseg2")
    remaining = sorted(root.state() - before)
    expect(not remaining, f"the removal leaves {remaining}")
    deleted = sorted(before - root.state())
    expect(not deleted, f"the removal also deletes {deleted}")
    print("ok - the removal leaves no files", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--root", type=pathlib.Path)
    arguments = parser.parse_args()
    if reason := missing_requirement(REQUIRED):
        print(f"packages.py: skipped: {reason}")
        return 77
    version = re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)[1]
    with tempfile.TemporaryDirectory(prefix="xseg-packages-") as scratch:
        folder = pathlib.Path(scratch)
        packages = {"first": folder / "first", "next": folder / "next"}
        run(ROOT / "src/package/deb", packages["first"])
        print(run("lintian", "--fail-on", "error", *packages["first"].glob("*.deb")), end="")
        print("ok - lintian reports no errors", flush=True)
        run(ROOT / "src/package/deb", "--revision", "2", packages["next"])
        (folder / "next-soname").mkdir()
        packages["next soname"] = build_next_soname(folder / "next-soname")
        root = Root(arguments.root or folder / "root")
        if not arguments.root:
            root.create("bookworm")
        check_packages(root, packages, version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
