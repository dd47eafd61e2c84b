# SPDX-License-Identifier: MIT
"""The installed files are complete, contain no path of the build folder, and can be used by other programs.

install.py ROOT BUILD --cc COMMAND [--cxx COMMAND] [--cuda FLAGS] --instrumented WHAT

Installs the build twice into empty folders: with DESTDIR; and configured again with
another prefix.  Prints TAP.
"""
import argparse
import contextlib
import fnmatch
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lint"))
import pages  # pylint: disable=wrong-import-position
import symbols  # pylint: disable=wrong-import-position
from checks import Absent, expect, run, run_cases, start  # pylint: disable=wrong-import-position

STANDARD = {"c": "-std=c11", "cc": "-std=c++17"}


def needs(program):
    if not shutil.which(program):
        raise Absent(f"{program} is not installed; run .ci/setup {program}")


class Installed:
    def __init__(self, build, destdir, compilers, scratch, cuda):
        options = {one["name"]: one["value"] for one in json.loads(run("meson", "introspect", "--buildoptions", build))}
        self.build, self.destdir, self.compilers, self.scratch = build, destdir, compilers, scratch
        self.cuda = cuda
        self.c_args, self.checks = options["c_args"], options.get("checks")  # of xseg itself, not of a project above it
        self.prefix = pathlib.Path(options["prefix"])
        if destdir:
            self.prefix = destdir / self.prefix.relative_to("/")
        self.libdir = self.prefix / options["libdir"]
        self.includedir = self.prefix / options["includedir"]
        self.bindir = self.prefix / options["bindir"]
        self.datadir = self.prefix / options["datadir"]

    def install(self):
        run("meson", "install", "-C", self.build, "--no-rebuild", "--quiet",
            **({"DESTDIR": str(self.destdir)} if self.destdir else {}))

    def move(self, folder):
        for name in ("libdir", "includedir", "bindir", "datadir"):
            setattr(self, name, folder / getattr(self, name).relative_to(self.prefix))
        self.prefix = self.prefix.rename(folder)

    def pkg_config_environment(self):
        environment = {"PKG_CONFIG_LIBDIR": str(self.libdir / "pkgconfig"),
                       "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1", "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1"}
        if self.destdir:
            environment["PKG_CONFIG_SYSROOT_DIR"] = str(self.destdir)
        return environment

    def pkg_config(self, *arguments):
        return run("pkg-config", *arguments, **self.pkg_config_environment()).split()

    def compile(self, source, *flags, output):
        language = source.rpartition(".")[2]
        if not self.compilers[language]:
            raise Absent("no C++ compiler is installed; run .ci/setup g++")
        program = self.scratch / output
        run(*self.compilers[language], STANDARD[language], *pages.WARNINGS, "-o", program, HERE / source, *flags)
        return program

    def start(self, program, *arguments, **environment):
        return run(program, *arguments, XSEG_DRIVER=str(self.libdir / "libxseg-sim.so.0"), **environment)


def files_of(tree):
    return {f"{short}/{path.relative_to(folder)}"
            for short, folder in (("include", tree.includedir), ("lib", tree.libdir), ("bin", tree.bindir),
                                  ("share", tree.datadir)) for path in folder.rglob("*") if not path.is_dir()}


def files_are_complete(tree, root, version, is_whole=True):
    """Every file, and nothing else; of the library alone, if not of all."""
    want = {f"include/xseg/{path.name}" for path in (root / "include/xseg").glob("*.h")}
    for name in ("libxseg", "libxseg-sim") if is_whole else ("libxseg",):
        want |= {f"lib/{name}.so", f"lib/{name}.so.0", f"lib/{name}.so.{version}"}
    want |= {"lib/libxseg.a", "lib/libxseg-ipc.so", "lib/libxseg-preload.so", "lib/libxseg-torch.so", "lib/pkgconfig/xseg.pc",
             "lib/cmake/xseg/xsegConfig.cmake", "lib/cmake/xseg/xsegConfigVersion.cmake"}
    if is_whole:
        want |= {"bin/xseg", "lib/pkgconfig/xseg-sim.pc", "share/man/man1/xseg.1",
                 "share/bash-completion/completions/xseg",
                 "share/fish/vendor_completions.d/xseg.fish", "share/zsh/site-functions/_xseg"}
        want |= {f"share/man/man1/xseg-{path.stem.partition('_')[2]}.1"
                 for path in (root / "src/tools").rglob("command_*.c")}
    else:
        want -= {"include/xseg/sim.h"}
    have = files_of(tree)
    total = sum(not path.is_dir() for path in (tree.destdir or tree.prefix).rglob("*"))
    expect(have == want, f"missing {sorted(want - have)}, too much {sorted(have - want)}")
    expect(total == len(have), "files elsewhere")


def packages_have_every_file(tree, root):
    """Each file is in one of the Debian packages, and what their lists name is there."""
    wanted = [line.split()[0] for path in sorted((root / "src/package/debian").glob("*.install"))
              for line in path.read_text(encoding="utf-8").splitlines()]
    expect(len(wanted) == len(set(wanted)) > 4, f"the lists name {wanted}")
    files = {re.sub("^usr/lib/", "usr/lib/processor/", f"usr/{name}") for name in files_of(tree)}
    for name in files:
        found = [each for each in wanted if fnmatch.fnmatch(name, each) or fnmatch.fnmatch(name, f"{each}/*")]
        expect(len(found) == 1, f"{name} is named by {found or 'no list'} of src/package/debian")
    for each in wanted:
        expect(fnmatch.filter(files, each) or fnmatch.filter(files, f"{each}/*") or list(root.glob(each)),
               f"src/package/debian names {each}, which is not there")


def names_are_right(tree, root):
    """The soname, the exported symbols, and what the static library brings along."""
    for name in ("libxseg", "libxseg-sim"):
        said = run("readelf", "-d", tree.libdir / f"{name}.so")
        expect(f"soname: [{name}.so.0]" in said, f"{name}.so: {said}")
        expect("NODELETE" in said, f"{name}.so: {said}")
    exported = symbols.exported(tree.libdir / "libxseg.so")
    expect(exported == symbols.declared(root), f"exported: {sorted(exported)}")
    rows = [line.split() for line in run("nm", "--defined-only", "--extern-only",
                                         tree.libdir / "libxseg.a").splitlines()]
    defined = {row[2] for row in rows if len(row) == 3}
    # Headers of NVTX and of probes define what every library with them has, weak: programs get one of each.
    weak = {row[2] for row in rows if len(row) == 3 and row[1] in "VW" and
            re.match(r"nvtx\w+_v3$|InitializeInjectionNvtx2_fnptr$|_\.stapsdt\.base$", row[2])}
    strange = {name for name in defined - weak if not name.startswith("xseg_")}
    expect(not strange, f"libxseg.a defines {sorted(strange)}")
    expect(defined >= exported, f"libxseg.a lacks {sorted(exported - defined)}")
    with (tree.libdir / "libxseg.a").open("rb") as archive:
        expect(archive.read(8) == b"!<arch>\n", "libxseg.a is a thin archive")


def nothing_names_the_build(tree):
    """No run path but relative ones, no trace of the build or the staging folder in text files."""
    for path in [*tree.libdir.rglob("*.so"), *tree.bindir.iterdir()]:
        for found in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", run("readelf", "-d", path)):
            strange = [part for part in found.split(":") if not part.startswith("$ORIGIN")]
            expect(not strange, f"{path.name} looks for libraries in {strange}")
    for path in [*tree.libdir.rglob("*.pc"), *tree.libdir.rglob("*.cmake"), *tree.includedir.rglob("*.h")]:
        for folder in filter(None, (tree.build, tree.destdir)):
            expect(str(folder) not in path.read_text(), f"{path.name} names {folder}")


def loads_libxseg(program):
    """Whether a program needs libxseg.so."""
    return "[libxseg.so.0]" in run("readelf", "-d", program)


def with_pkg_config(tree, language, is_static, version):
    """A program that is built with what pkg-config says."""
    flags = tree.pkg_config("--cflags", "--libs", *(["--static"] if is_static else []), "xseg")
    if is_static:
        flags = ["-l:libxseg.a" if flag == "-lxseg" else flag for flag in flags]
    program = tree.compile(f"use.{language}", *flags, output=f"use-{language}-{is_static}")
    expect(loads_libxseg(program) != is_static, "linked with the other kind of library")
    said = tree.start(program, **({} if is_static else {"LD_LIBRARY_PATH": str(tree.libdir)}))
    expect(said == f"{version}\n", "another version")


def is_loaded_again(tree, program=None):
    """dlopen, use and dlclose, many times, also under a call; the program is linked with the simulator."""
    program = program or tree.compile("reload.c", "-D_GNU_SOURCE", "-pthread", "-ldl", f"-Wl,-rpath,{tree.libdir}",
        *tree.pkg_config("--cflags", "--libs", "xseg-sim"), output="reload")
    tree.start(program, tree.libdir / "libxseg.so.0", GLIBC_TUNABLES="glibc.malloc.tcache_count=0")


def configure_with_cmake(tree, folder):
    """A CMake project; what find_package() must not find is checked in it."""
    needs("cmake")
    options = [f"-DCMAKE_PREFIX_PATH={tree.prefix}", f"-DCMAKE_C_FLAGS={' '.join(pages.WARNINGS)}"]
    for name, language in (("C", "c"), ("CXX", "cc")):
        compiler = tree.compilers[language]
        options.append(f"-DCMAKE_{name}_COMPILER={compiler[-1] if compiler else ''}")
    run("cmake", "-S", HERE, "-B", folder, *options)
    run("cmake", "--build", folder)


def with_cmake(tree, folder, language, is_static, version):
    """A program of that project."""
    needs("cmake")
    if not tree.compilers[language]:
        raise Absent("no C++ compiler is installed; run .ci/setup g++")
    program = folder / f"use-{language}-{'static' if is_static else 'shared'}"
    expect(loads_libxseg(program) != is_static, "linked with the other kind of library")
    expect(tree.start(program) == f"{version}\n", "another version")


def tool_runs(tree, version):
    """The tool finds its libraries wherever the prefix is, the simulator at run time."""
    said = run(tree.bindir / "xseg", "--version")
    expect(version in said, said)
    page = (tree.datadir / "man/man1/xseg-replay.1").read_text(encoding="utf-8")
    expect(f"xseg {version}" in page, page)
    said = run(tree.bindir / "xseg", "probe")
    expect("Simulated device 0" in said, said)


def tool_needs_no_simulator(tree):
    """The tool says what is missing, and takes a simulator from elsewhere."""
    elsewhere = tree.scratch / "elsewhere"
    elsewhere.mkdir()
    for path in tree.libdir.glob("libxseg-sim.so*"):
        path.rename(elsewhere / path.name)
    refused = start(tree.bindir / "xseg", "probe")
    found = start(tree.bindir / "xseg", "probe", LD_LIBRARY_PATH=str(elsewhere))
    for path in elsewhere.iterdir():
        path.rename(tree.libdir / path.name)
    expect(refused.returncode == 2 and "libxseg-sim.so.0" in refused.stderr and
           "--driver cuda" in refused.stderr, f"status {refused.returncode}: {refused.stderr}")
    expect("Simulated device 0" in found.stdout, found.stderr)


def unpack_archive(root, folder):
    """The tree as an archive has it, inside somebody else's repository."""
    git = shutil.which("git")
    if git and (root / ".git").exists():
        for name in run(git, "-C", root, "ls-files", "-z", "-co", "--exclude-standard").split("\0"):
            if name and (root / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, folder / name)
        run(git, "init", "-q", folder.parent)
        run(git, "-C", folder.parent, "-c", "user.name=x", "-c", "user.email=x", "commit", "-q",
            "--allow-empty", "-m", "x")
    else:
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(".git", ".deps", "build*", "out"))


def prefix_of(tree, name):
    return tree.scratch / "prefix" / name


def configure(tree, source, folder, *options, project=""):
    """What meson says as it sets up another build for a prefix of its own; xseg may be a subproject of it."""
    compilers = {"CC": " ".join(tree.compilers["c"]), "CXX": " ".join(tree.compilers["cc"] or ["c++"])}
    return run("meson", "setup", folder, source, f"--prefix={prefix_of(tree, folder.name)}",
               "--libdir=lib", "--bindir=programs/here",
               f"-Dc_args={[*tree.c_args, *tree.cuda]}", f"-D{project}checks={tree.checks}", *options, **compilers)


def hide_packages(scratch):
    """Options of meson with which it finds no package."""
    file = scratch / "no-packages.ini"
    file.write_text("[binaries]\npkgconfig = '/bin/false'\ncmake = '/bin/false'\n")
    return "--native-file", file


def options_follow_what_is_there(tree, source):
    """Without their packages the tool and the tests are left out, or missed where they are wanted."""
    hidden = hide_packages(tree.scratch)
    said = configure(tree, source, tree.scratch / "hidden", *hidden)
    for part, is_there in (("Simulator", True), ("Tools", False), ("Benchmarks", True), ("Tests", False)):
        expect(re.search(rf"{part} *: {'YES' if is_there else 'NO'}\n", said), f"{part}: {said}")
    for options, words in ((["-Dtools=enabled"], "libzstd"), (["-Dtests=enabled"], "the tests also cover"),
                           (["-Dsimulator=disabled", "-Dbenchmarks=enabled"], "run on the simulator")):
        try:
            configure(tree, source, tree.scratch / "hidden", "--wipe", *hidden, *options)
        except AssertionError as refusal:
            expect(words in str(refusal), f"{options}: {refusal}")
        else:
            expect(False, f"{options} without the packages")


BESIDE = ("simulator", "tools", "benchmarks", "tests")


def library_needs_no_package(tree, source):
    """Without tool, simulator, benchmarks and tests, none of their packages is looked for."""
    folder = tree.scratch / "hidden"
    said = configure(tree, source, folder, "--wipe", *hide_packages(tree.scratch),
                     *(f"-D{part}=disabled" for part in BESIDE))
    for name in ("zstd", "jansson", "cmocka"):
        expect(not re.search(rf"dependency \S*{name}\S* found: YES", said), f"{name}: {said}")


def library_alone(tree, folder, root, version):
    """The library without tool, simulator, benchmarks and tests, in use.

    Its objects are those that the folder has.
    """
    run("meson", "configure", folder, *(f"-Dxseg:{part}=disabled" for part in BESIDE), f"--prefix={prefix_of(tree, 'alone')}")
    run("ninja", "-C", folder)
    alone = Installed(folder, None, tree.compilers, tree.scratch, tree.cuda)
    alone.install()
    files_are_complete(alone, root, version, is_whole=False)
    program = alone.compile("use.c", *alone.pkg_config("--cflags", "--libs", "xseg"), output="use-alone")
    driver = str(tree.libdir / "libxseg-sim.so.0")
    said = run(program, XSEG_DRIVER=driver, LD_LIBRARY_PATH=str(alone.libdir))
    expect(said == f"{version}\n", said)


def configure_for_a_prefix(source, folder, like, scratch):
    """Another build, for a prefix and folders of its own: below somebody else's project, what is installed and their programs."""
    outer = source.parents[1]
    for name in ("subproject/meson.build", "use.c"):
        shutil.copy(HERE / name, outer)
    configure(like, outer, folder, "--buildtype=plain", "--force-fallback-for=xseg", "-Dxseg:simulator=enabled",
              "-Dxseg:tools=enabled", project="xseg:")
    names = [os.path.relpath(name, folder) for target in json.loads(run("meson", "introspect", "--targets", folder))
             if target["installed"] for name in target["filename"]]
    run("ninja", "-C", folder, *names, "use-shared", "use-static")
    tree = Installed(folder, None, like.compilers, scratch, like.cuda)
    tree.install()
    said = run(tree.bindir / "xseg", "--version")
    expect("plain build" in said and "commit unknown)" in said, said)
    return tree


def as_subproject(tree, like, is_static, version):
    """A program of the project around it."""
    program = tree.build / f"use-{'static' if is_static else 'shared'}"
    expect(loads_libxseg(program) != is_static, "linked with the other kind of library")
    expect(like.start(program) == f"{version}\n", "another version")


def works_where_it_was_put(tree, root, version):
    """Everything once more in the prefix that was configured; pkg-config names the simulator."""
    files_are_complete(tree, root, version)
    nothing_names_the_build(tree)
    with_pkg_config(tree, "c", False, version)
    with_pkg_config(tree, "c", True, version)
    driver = tree.pkg_config("--variable=driver", "xseg-sim")
    expect(driver == [str(tree.libdir / "libxseg-sim.so.0")], f"driver: {driver}")
    tool_runs(tree, version)


def works_where_it_was_moved(tree, scratch, version):
    """The tool and the CMake package need no fixed place."""
    tree.move(scratch / "moved")
    tool_runs(tree, version)
    folder = scratch / "moved-cmake"
    configure_with_cmake(tree, folder)
    with_cmake(tree, folder, "c", False, version)
    with_cmake(tree, folder, "c", True, version)


def cases(root, build, compilers, cuda, scratch):
    """Name and function of each case; they build on each other."""
    version = json.loads(run("meson", "introspect", "--projectinfo", build))["version"]
    source = scratch / "outer/subprojects/xseg"
    tree = Installed(build, scratch / "destdir", compilers, scratch, cuda)
    tree.install()
    yield "every file is there, and no other", lambda: files_are_complete(tree, root, version)
    yield "the Debian packages have every file", lambda: packages_have_every_file(tree, root)
    yield "soname and symbols", lambda: names_are_right(tree, root)
    yield "nothing names the build folder", lambda: nothing_names_the_build(tree)
    yield "the tool finds its libraries", lambda: tool_runs(tree, version)
    yield "the tool says that it has no simulator", lambda: tool_needs_no_simulator(tree)
    yield "loaded and closed many times, the simulator with pkg-config", lambda: is_loaded_again(tree)
    folder = scratch / "cmake"
    kinds = [(language, is_static) for language in ("c", "cc") for is_static in (False, True)]
    for language, is_static in kinds:
        yield f"{'static' if is_static else 'shared'} with pkg-config, {language}", \
            lambda which=(language, is_static): with_pkg_config(tree, *which, version)
    yield from pages.cases(tree, root)
    yield "CMake finds the package", lambda: configure_with_cmake(tree, folder)
    for language, is_static in kinds:
        yield f"{'static' if is_static else 'shared'} with CMake, {language}", \
            lambda which=(language, is_static): with_cmake(tree, folder, *which, version)
    yield "the simulator with CMake", lambda: (needs("cmake"), is_loaded_again(tree, folder / "reload"))
    other = {}
    yield "unpacked from an archive", lambda: unpack_archive(root, source)
    yield "options follow what is there", lambda: options_follow_what_is_there(tree, source)
    yield "the library needs no package", lambda: library_needs_no_package(tree, source)
    yield "configured for a prefix, as a subproject", lambda: other.update(tree=configure_for_a_prefix(
        source, scratch / "build", tree, scratch))
    for is_static in (False, True):
        yield f"{'static' if is_static else 'shared'} as a subproject of meson", \
            lambda is_static=is_static: as_subproject(other["tree"], tree, is_static, version)
    yield "works in that prefix", lambda: works_where_it_was_put(other["tree"], root, version)
    yield "works after that prefix was moved", \
        lambda: works_where_it_was_moved(other["tree"], scratch, version)
    yield "the library alone", lambda: library_alone(tree, scratch / "build", root, version)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--cc", type=str.split)
    parser.add_argument("--cxx", type=str.split)
    parser.add_argument("--cuda", type=str.split, default=[], help="where cuda.h is")
    parser.add_argument("--instrumented")
    given = parser.parse_args()
    if given.instrumented != "none":
        print(f"1..0 # SKIP built with {given.instrumented}, which cannot be installed")
        return 0
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compilers = {"c": given.cc, "cc": given.cxx}
        return run_cases(cases(given.root, given.build, compilers, given.cuda, scratch))


if __name__ == "__main__":
    sys.exit(main())
