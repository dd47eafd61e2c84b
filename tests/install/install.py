# SPDX-License-Identifier: MIT
"""The installed files are complete, contain no path of the build folder, and can be used by other programs.

install.py ROOT BUILD --cc COMMAND [--cxx COMMAND] [--cuda FLAGS] --instrumented none|coverage|SANITIZERS

Installs the build twice into empty folders: with DESTDIR, and configured again for another prefix.  Prints TAP.
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


def require(program):
    if not shutil.which(program):
        raise Absent(f"{program} is not installed; run .ci/setup {program}")


class Installed:
    def __init__(self, build, destdir, compilers, scratch, cuda):
        options = {option["name"]: option["value"] for option in json.loads(run("meson", "introspect", "--buildoptions", build))}
        self.build, self.destdir, self.compilers, self.scratch = build, destdir, compilers, scratch
        self.cuda = cuda
        self.c_args, self.checks = options["c_args"], options.get("checks")  # of xseg, not of its superproject
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
    return {f"{prefix}/{path.relative_to(folder)}"
            for prefix, folder in (("include", tree.includedir), ("lib", tree.libdir), ("bin", tree.bindir),
                                   ("share", tree.datadir)) for path in folder.rglob("*") if not path.is_dir()}


def files_are_complete(tree, root, version, is_whole=True):
    """The installation contains exactly the files of all parts, or of the library alone."""
    expected = {f"include/xseg/{path.name}" for path in (root / "include/xseg").glob("*.h")}
    for name in ("libxseg", "libxseg-sim") if is_whole else ("libxseg",):
        expected |= {f"lib/{name}.so", f"lib/{name}.so.0", f"lib/{name}.so.{version}"}
    expected |= {"lib/libxseg.a", "lib/libxseg-ipc.so", "lib/libxseg-preload.so", "lib/libxseg-torch.so", "lib/pkgconfig/xseg.pc",
             "lib/cmake/xseg/xsegConfig.cmake", "lib/cmake/xseg/xsegConfigVersion.cmake"}
    if is_whole:
        expected |= {"bin/xseg", "lib/pkgconfig/xseg-sim.pc", "share/man/man1/xseg.1",
                     "share/bash-completion/completions/xseg", "share/fish/vendor_completions.d/xseg.fish",
                     "share/zsh/site-functions/_xseg"}
        expected |= {f"share/man/man1/xseg-{path.stem.partition('_')[2]}.1"
                 for path in (root / "src/tools").rglob("command_*.c")}
    else:
        expected -= {"include/xseg/sim.h"}
    installed = files_of(tree)
    total = sum(not path.is_dir() for path in (tree.destdir or tree.prefix).rglob("*"))
    expect(installed == expected, f"missing {sorted(expected - installed)}, unexpected {sorted(installed - expected)}")
    expect(total == len(installed), f"{total - len(installed)} files in other folders")


def packages_contain_every_file(tree, root):
    """Each file is in exactly one Debian package, and each pattern of the packages' lists matches a file."""
    lines = [line for path in sorted((root / "src/package/debian").glob("*.install"))
             for line in path.read_text(encoding="utf-8").splitlines()]
    patterns = [line.split()[0] for line in lines]
    expect(len(patterns) == len(set(patterns)) > 4, f"duplicate or missing patterns: {patterns}")
    files = {re.sub("^usr/lib/", "usr/lib/multiarch/", f"usr/{name}") for name in files_of(tree)}
    for name in files:
        matches = [pattern for pattern in patterns if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"{pattern}/*")]
        expect(len(matches) == 1, f"src/package/debian: patterns that match {name}: {matches}")
    for pattern in patterns:
        expect(fnmatch.filter(files, pattern) or fnmatch.filter(files, f"{pattern}/*") or list(root.glob(pattern)),
               f"src/package/debian: no file matches {pattern}")


def symbols_are_correct(tree, root):
    """The sonames, the exported symbols, and the symbols of the static library."""
    for name in ("libxseg", "libxseg-sim"):
        section = run("readelf", "-d", tree.libdir / f"{name}.so")
        expect(f"soname: [{name}.so.0]" in section, f"{name}.so: {section}")
        expect("NODELETE" in section, f"{name}.so: {section}")
    exported = symbols.exported(tree.libdir / "libxseg.so")
    expect(exported == symbols.declared(root), f"exported: {sorted(exported)}")
    rows = [line.split() for line in run("nm", "--defined-only", "--extern-only", tree.libdir / "libxseg.a").splitlines()]
    defined = {row[2] for row in rows if len(row) == 3}
    # The headers of NVTX and of probes define weak symbols in every library that includes them.
    weak = {row[2] for row in rows if len(row) == 3 and row[1] in "VW" and
            re.match(r"nvtx\w+_v3$|InitializeInjectionNvtx2_fnptr$|_\.stapsdt\.base$", row[2])}
    foreign = {name for name in defined - weak if not name.startswith("xseg_")}
    expect(not foreign, f"libxseg.a defines {sorted(foreign)}")
    expect(defined >= exported, f"libxseg.a lacks {sorted(exported - defined)}")
    with (tree.libdir / "libxseg.a").open("rb") as archive:
        expect(archive.read(8) == b"!<arch>\n", "libxseg.a is a thin archive")


def files_contain_no_build_paths(tree):
    """Run paths are relative, and text files do not contain the path of the build or the staging folder."""
    for path in [*tree.libdir.rglob("*.so"), *tree.bindir.iterdir()]:
        for run_path in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", run("readelf", "-d", path)):
            absolute = [part for part in run_path.split(":") if not part.startswith("$ORIGIN")]
            expect(not absolute, f"{path.name}: absolute run paths {absolute}")
    for path in [*tree.libdir.rglob("*.pc"), *tree.libdir.rglob("*.cmake"), *tree.includedir.rglob("*.h")]:
        for folder in filter(None, (tree.build, tree.destdir)):
            expect(str(folder) not in path.read_text(), f"{path.name} contains {folder}")


def depends_on_libxseg(program):
    """Whether libxseg.so is a dependency of a program."""
    return "[libxseg.so.0]" in run("readelf", "-d", program)


def pkg_config_builds_programs(tree, language, is_static, version):
    """A program that is built with the flags of pkg-config runs."""
    flags = tree.pkg_config("--cflags", "--libs", *(["--static"] if is_static else []), "xseg")
    if is_static:
        flags = ["-l:libxseg.a" if flag == "-lxseg" else flag for flag in flags]
    program = tree.compile(f"use.{language}", *flags, output=f"use-{language}-{is_static}")
    expect(depends_on_libxseg(program) != is_static, "linked with the other kind of library")
    output = tree.start(program, **({} if is_static else {"LD_LIBRARY_PATH": str(tree.libdir)}))
    expect(output == f"{version}\n", f"printed version: {output}")


def library_reloads(tree, program=None):
    """The library can be loaded, used and closed repeatedly, also during a call; the program is linked with the simulator."""
    program = program or tree.compile("reload.c", "-D_GNU_SOURCE", "-pthread", "-ldl", f"-Wl,-rpath,{tree.libdir}",
        *tree.pkg_config("--cflags", "--libs", "xseg-sim"), output="reload")
    tree.start(program, tree.libdir / "libxseg.so.0", GLIBC_TUNABLES="glibc.malloc.tcache_count=0")


def configure_with_cmake(tree, folder):
    """Build a CMake project, which also checks the versions and components that find_package() must reject."""
    require("cmake")
    options = [f"-DCMAKE_PREFIX_PATH={tree.prefix}", f"-DCMAKE_C_FLAGS={' '.join(pages.WARNINGS)}"]
    for name, language in (("C", "c"), ("CXX", "cc")):
        compiler = tree.compilers[language]
        options.append(f"-DCMAKE_{name}_COMPILER={compiler[-1] if compiler else ''}")
    run("cmake", "-S", HERE, "-B", folder, *options)
    run("cmake", "--build", folder)


def cmake_program_runs(tree, folder, language, is_static, version):
    """A program of the CMake project prints the version."""
    require("cmake")
    if not tree.compilers[language]:
        raise Absent("no C++ compiler is installed; run .ci/setup g++")
    program = folder / f"use-{language}-{'static' if is_static else 'shared'}"
    expect(depends_on_libxseg(program) != is_static, "linked with the other kind of library")
    output = tree.start(program)
    expect(output == f"{version}\n", f"printed version: {output}")


def tool_runs(tree, version):
    """The tool loads its libraries from any prefix, and the simulator at run time."""
    output = run(tree.bindir / "xseg", "--version")
    expect(version in output, output)
    page = (tree.datadir / "man/man1/xseg-replay.1").read_text(encoding="utf-8")
    expect(f"xseg {version}" in page, page)
    output = run(tree.bindir / "xseg", "probe")
    expect("Simulated device 0" in output, output)


def tool_reports_missing_simulator(tree):
    """The tool reports a missing simulator, and loads a simulator of another folder."""
    other_folder = tree.scratch / "other"
    other_folder.mkdir()
    for path in tree.libdir.glob("libxseg-sim.so*"):
        path.rename(other_folder / path.name)
    failed = start(tree.bindir / "xseg", "probe")
    succeeded = start(tree.bindir / "xseg", "probe", LD_LIBRARY_PATH=str(other_folder))
    for path in other_folder.iterdir():
        path.rename(tree.libdir / path.name)
    expect(failed.returncode == 2 and "libxseg-sim.so.0" in failed.stderr and
           "--driver cuda" in failed.stderr, f"status {failed.returncode}: {failed.stderr}")
    expect("Simulated device 0" in succeeded.stdout, succeeded.stderr)


def unpack_archive(root, folder):
    """Copy the files of a source archive into a subfolder of another repository."""
    git = shutil.which("git")
    if git and (root / ".git").exists():
        for name in run(git, "-C", root, "ls-files", "-z", "-co", "--exclude-standard").split("\0"):
            if name and (root / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, folder / name)
        run(git, "init", "-q", folder.parent)
        run(git, "-C", folder.parent, "-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "--allow-empty", "-m", "x")
    else:
        shutil.copytree(root, folder, ignore=shutil.ignore_patterns(".git", ".deps", "build*", "out"))


def prefix_path(tree, name):
    return tree.scratch / "prefix" / name


def configure(tree, source, folder, *options, project=""):
    """Configure another build with a prefix named after its folder; returns the output of meson.  xseg may be its subproject."""
    compilers = {"CC": " ".join(tree.compilers["c"]), "CXX": " ".join(tree.compilers["cc"] or ["c++"])}
    return run("meson", "setup", folder, source, f"--prefix={prefix_path(tree, folder.name)}",
               "--libdir=lib", "--bindir=programs/here",
               f"-Dc_args={[*tree.c_args, *tree.cuda]}", f"-D{project}checks={tree.checks}", *options, **compilers)


def hide_packages(scratch):
    """The options that hide all packages from meson."""
    file = scratch / "no-packages.ini"
    file.write_text("[binaries]\npkgconfig = '/bin/false'\ncmake = '/bin/false'\n")
    return "--native-file", file


def missing_packages_disable_parts(tree, source):
    """Without their packages, the tool and the tests are disabled, or an error if they are enabled explicitly."""
    hidden = hide_packages(tree.scratch)
    output = configure(tree, source, tree.scratch / "hidden", *hidden)
    for part, is_enabled in (("Simulator", True), ("Tools", False), ("Benchmarks", True), ("Tests", False)):
        expect(re.search(rf"{part} *: {'YES' if is_enabled else 'NO'}\n", output), f"{part}: {output}")
    for options, message in ((["-Dtools=enabled"], "libzstd"), (["-Dtests=enabled"], "the tests also cover"),
                           (["-Dsimulator=disabled", "-Dbenchmarks=enabled"], "run on the simulator")):
        try:
            configure(tree, source, tree.scratch / "hidden", "--wipe", *hidden, *options)
        except AssertionError as error:
            expect(message in str(error), f"{options}: {error}")
        else:
            expect(False, f"{options}: configured without the packages")


OPTIONAL_PARTS = ("simulator", "tools", "benchmarks", "tests")


def library_requires_no_package(tree, source):
    """If the tool, the simulator, the benchmarks and the tests are disabled, meson does not search for their packages."""
    folder = tree.scratch / "hidden"
    output = configure(tree, source, folder, "--wipe", *hide_packages(tree.scratch),
                       *(f"-D{part}=disabled" for part in OPTIONAL_PARTS))
    for name in ("zstd", "jansson", "cmocka"):
        expect(not re.search(rf"dependency \S*{name}\S* found: YES", output), f"{name}: {output}")


def library_alone_works(tree, folder, root, version):
    """The library works without tool, simulator, benchmarks and tests.  Its objects are those of the existing build folder."""
    run("meson", "configure", folder, *(f"-Dxseg:{part}=disabled" for part in OPTIONAL_PARTS),
        f"--prefix={prefix_path(tree, 'alone')}")
    run("ninja", "-C", folder)
    alone = Installed(folder, None, tree.compilers, tree.scratch, tree.cuda)
    alone.install()
    files_are_complete(alone, root, version, is_whole=False)
    program = alone.compile("use.c", *alone.pkg_config("--cflags", "--libs", "xseg"), output="use-alone")
    driver = str(tree.libdir / "libxseg-sim.so.0")
    output = run(program, XSEG_DRIVER=driver, LD_LIBRARY_PATH=str(alone.libdir))
    expect(output == f"{version}\n", output)


def build_as_subproject(source, folder, main_tree, scratch):
    """Build and install xseg as a subproject of another project, with another prefix, and build the programs of that project."""
    superproject = source.parents[1]
    for name in ("subproject/meson.build", "use.c"):
        shutil.copy(HERE / name, superproject)
    configure(main_tree, superproject, folder, "--buildtype=plain", "--force-fallback-for=xseg", "-Dxseg:simulator=enabled",
              "-Dxseg:tools=enabled", project="xseg:")
    names = [os.path.relpath(name, folder) for target in json.loads(run("meson", "introspect", "--targets", folder))
             if target["installed"] for name in target["filename"]]
    run("ninja", "-C", folder, *names, "use-shared", "use-static")
    tree = Installed(folder, None, main_tree.compilers, scratch, main_tree.cuda)
    tree.install()
    output = run(tree.bindir / "xseg", "--version")
    expect("plain build" in output and "commit unknown)" in output, output)
    return tree


def superproject_program_runs(tree, main_tree, is_static, version):
    """A program of the project that contains xseg prints the version."""
    program = tree.build / f"use-{'static' if is_static else 'shared'}"
    expect(depends_on_libxseg(program) != is_static, "linked with the other kind of library")
    output = main_tree.start(program)
    expect(output == f"{version}\n", f"printed version: {output}")


def prefix_works(tree, root, version):
    """An installation without DESTDIR works in its configured prefix, and pkg-config contains the path of the simulator."""
    files_are_complete(tree, root, version)
    files_contain_no_build_paths(tree)
    pkg_config_builds_programs(tree, "c", False, version)
    pkg_config_builds_programs(tree, "c", True, version)
    driver = tree.pkg_config("--variable=driver", "xseg-sim")
    expect(driver == [str(tree.libdir / "libxseg-sim.so.0")], f"driver: {driver}")
    tool_runs(tree, version)


def moved_prefix_works(tree, scratch, version):
    """The tool and the CMake package work after the prefix is moved."""
    tree.move(scratch / "moved")
    tool_runs(tree, version)
    folder = scratch / "moved-cmake"
    configure_with_cmake(tree, folder)
    cmake_program_runs(tree, folder, "c", False, version)
    cmake_program_runs(tree, folder, "c", True, version)


def cases(root, build, compilers, cuda, scratch):
    """The name and the function of each case; later cases depend on earlier ones."""
    version = json.loads(run("meson", "introspect", "--projectinfo", build))["version"]
    source = scratch / "outer/subprojects/xseg"
    tree = Installed(build, scratch / "destdir", compilers, scratch, cuda)
    tree.install()
    yield "the installation contains every file and no other", lambda: files_are_complete(tree, root, version)
    yield "the Debian packages contain every file", lambda: packages_contain_every_file(tree, root)
    yield "sonames and symbols match the headers", lambda: symbols_are_correct(tree, root)
    yield "no file contains the path of the build folder", lambda: files_contain_no_build_paths(tree)
    yield "the tool loads its libraries", lambda: tool_runs(tree, version)
    yield "the tool reports a missing simulator", lambda: tool_reports_missing_simulator(tree)
    yield "a program that links the simulator with pkg-config reloads the library", lambda: library_reloads(tree)
    folder = scratch / "cmake"
    kinds = [(language, is_static) for language in ("c", "cc") for is_static in (False, True)]
    for language, is_static in kinds:
        yield f"pkg-config builds programs with the {'static' if is_static else 'shared'} library, {language}", \
            lambda kind=(language, is_static): pkg_config_builds_programs(tree, *kind, version)
    yield from pages.cases(tree, root)
    yield "CMake finds the package", lambda: configure_with_cmake(tree, folder)
    for language, is_static in kinds:
        yield f"CMake builds programs with the {'static' if is_static else 'shared'} library, {language}", \
            lambda kind=(language, is_static): cmake_program_runs(tree, folder, *kind, version)
    yield "a program that links the simulator with CMake reloads the library", \
        lambda: (require("cmake"), library_reloads(tree, folder / "reload"))
    superproject = {}
    yield "the source archive is unpacked", lambda: unpack_archive(root, source)
    yield "missing packages disable the tool and the tests", lambda: missing_packages_disable_parts(tree, source)
    yield "the library requires no package", lambda: library_requires_no_package(tree, source)
    yield "meson builds xseg as a subproject with another prefix", \
        lambda: superproject.update(tree=build_as_subproject(source, scratch / "build", tree, scratch))
    for is_static in (False, True):
        yield f"a meson project uses its subproject's {'static' if is_static else 'shared'} library", \
            lambda is_static=is_static: superproject_program_runs(superproject["tree"], tree, is_static, version)
    yield "the installation works in its configured prefix", lambda: prefix_works(superproject["tree"], root, version)
    yield "the installation works after its prefix is moved", lambda: moved_prefix_works(superproject["tree"], scratch, version)
    yield "the library works without tool and simulator", lambda: library_alone_works(tree, scratch / "build", root, version)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--cc", type=str.split)
    parser.add_argument("--cxx", type=str.split)
    parser.add_argument("--cuda", type=str.split, default=[], help="flags to include cuda.h")
    parser.add_argument("--instrumented")
    arguments = parser.parse_args()
    if arguments.instrumented != "none":
        print(f"1..0 # SKIP built with {arguments.instrumented}, which cannot be installed")
        return 0
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compilers = {"c": arguments.cc, "cc": arguments.cxx}
        return run_cases(cases(arguments.root, arguments.build, compilers, arguments.cuda, scratch))


if __name__ == "__main__":
    sys.exit(main())
