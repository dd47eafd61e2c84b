# SPDX-License-Identifier: MIT
"""The packages of src/package/deb, in a fresh Debian: installed, used, upgraded, with another soname, removed.

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

from fresh_root import Fresh, expect, missing, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
NAMES = ("libxseg0", "libxseg-dev", "xseg", "python3-xseg")
NEEDED = ("debootstrap", "chroot", "unshare", "dpkg-buildpackage", "lintian")
# What apt and dpkg themselves write.
BOOKS = ("./var/cache/", "./var/lib/apt/", "./var/lib/dpkg/", "./var/log/", "./etc/ld.so.cache", "./tmp/", "./etc/apt/",
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


class Root(Fresh):
    def install(self, *words):
        self.do("apt-get install -y -q --no-install-recommends " + " ".join(words))

    def state(self):
        names = self.do("find . -xdev -path ./proc -prune -o -path ./dev -prune -o ! -type d -print").split("\n")
        return {name for name in names if not name.startswith(BOOKS)} | set(self.do("dpkg -l | grep -v ^ii.*xseg").split("\n"))


def another_soname(folder):
    """The packages of a tree in which the next version breaks programs: libxseg2."""
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".git", "build*", "out", "__pycache__"))
    for name, old, new in (("meson.build", r"^abi = '0'$", "abi = '2'"), ("meson.build", r"^  version: '0\.", "  version: '2."),
                           ("include/xseg/version.h", r'(_TEXT\s+)"0\.', r'\1"2.')):
        text = (tree / name).read_text(encoding="utf-8")
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        expect(count == 1, f"{name} has {old!r} {count} times")
        (tree / name).write_text(text, encoding="utf-8")
    run(tree / "src/package/deb", folder / "made")
    return folder / "made"


def compile_program(root, words, name):
    shutil.copy(HERE / "use.c", root.folder / "packages/use.c")
    root.do(f"cc -o packages/{name} packages/use.c $(pkg-config --cflags xseg) {words}")
    return f"XSEG_DRIVER=$(pkg-config --variable=driver xseg-sim) packages/{name}"


def is_used(root, version):
    """Tool, C and Python; returns a command that runs the program linked with the library."""
    expect(f"xseg {version} " in root.do("xseg --version"), "xseg --version")
    expect("Simulated device 0" in root.do("xseg probe"), "xseg probe does not find the simulator")
    expect(root.do("python3 -m xseg --version") == root.do("xseg --version"), "python3 -m xseg")
    expect(root.do("LD_PRELOAD=libxseg-preload.so xseg --version") == root.do("xseg --version"), "LD_PRELOAD")
    (root.folder / "packages/use.py").write_text(PYTHON, encoding="utf-8")
    said = root.do("XSEG_TORCH=1 python3 packages/use.py").split("\n")
    multiarch = root.do("dpkg-architecture -q DEB_HOST_MULTIARCH || cc -print-multiarch").split()[-1]
    preloaded = root.do("xseg run sh -c 'echo $LD_PRELOAD'")
    expect(preloaded == f"/usr/lib/{multiarch}/libxseg-ipc.so\n", preloaded)
    want = [f"{1 << 20} {version}", f"/usr/lib/{multiarch}/libxseg.so.0 /usr/include True", "True", version, ""]
    expect(said == want, f"Python says {said}")
    shared = compile_program(root, "$(pkg-config --libs xseg)", "shared")
    static = compile_program(root, "$(pkg-config --static --libs xseg | sed s/-lxseg/-l:libxseg.a/)", "static")
    expect(root.do(shared) == root.do(static) == f"{version}\n", "a program that was built with pkg-config")
    return shared


def go_through(root, made, version):
    """From the first installation to the last file."""
    root.do("apt-get update -q")
    root.bring(made["first"])
    root.install("gcc", "libc6-dev", "pkg-config", "python3")
    before = root.state()
    root.install("/packages/*.deb")
    shared = is_used(root, version)
    print("ok - installed and used", flush=True)

    for path in (root.folder / "packages").glob("*.deb"):
        path.unlink()
    root.bring(made["next"])
    root.install("/packages/*.deb")
    said = root.do(f"dpkg-query -W -f '${{Version}} ' {' '.join(NAMES)}").split()
    expect(said == [f"{version}-2"] * len(NAMES), f"versions {said}")
    expect(root.do(shared) == f"{version}\n", "a program of before the upgrade")
    is_used(root, version)
    print("ok - upgraded", flush=True)

    root.bring(made["other"])
    root.install("/packages/libxseg2_*.deb")
    other = compile_program(root, "-l:libxseg.so.2", "other")
    expect("libxseg.so.2 => /" in root.do("ldd packages/other"), "the program loads another library")
    expect(root.do(shared) == root.do(other) == f"{version}\n", "two programs with two sonames")
    is_used(root, version)
    print("ok - beside another soname", flush=True)

    # All of the next version take the places of theirs, but for the library that programs of before are linked with.
    root.install("/packages/*_2.*.deb")
    expect(root.do("xseg --version").startswith("xseg 2."), "the tool of the next version")
    expect(root.do(shared.replace("$(pkg-config --variable=driver xseg-sim)", "libxseg-sim.so.0")) == f"{version}\n",
           "a program of before the next version")
    print("ok - upgraded to another soname", flush=True)

    root.do(f"apt-get purge -y -q --autoremove {' '.join(NAMES)} libxseg2")
    left = sorted(root.state() - before)
    expect(not left, f"left behind: {left}")
    lost = sorted(before - root.state())
    expect(not lost, f"taken along: {lost}")
    print("ok - removed, and nothing is left", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--root", type=pathlib.Path)
    given = parser.parse_args()
    why = missing(NEEDED)
    if why:
        print(f"packages.py: skipped: {why}")
        return 77
    version = re.search(r"^  version: '(.*)',$", (ROOT / "meson.build").read_text(encoding="utf-8"), re.MULTILINE)[1]
    with tempfile.TemporaryDirectory(prefix="xseg-packages-") as scratch:
        folder = pathlib.Path(scratch)
        made = {"first": folder / "first", "next": folder / "next"}
        run(ROOT / "src/package/deb", made["first"])
        print(run("lintian", "--fail-on", "error", *made["first"].glob("*.deb")), end="")
        print("ok - built, and lintian has no error", flush=True)
        run(ROOT / "src/package/deb", "--revision", "2", made["next"])
        (folder / "other").mkdir()
        made["other"] = another_soname(folder / "other")
        root = Root(given.root or folder / "root")
        if not given.root:
            root.make("bookworm")
        go_through(root, made, version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
