# SPDX-License-Identifier: MIT
"""Builds zstd and jansson, which are linked into the tool, as static libraries for one architecture from Debian's source packages."""
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
from concurrent import futures

from manylinux import toolchain

#: By the name of the source package: license, name of the library, and folders of the source files.
PARTS = {
    "libzstd": ("BSD-3-Clause", "libzstd", ("lib/common", "lib/compress", "lib/decompress")),
    "jansson": ("MIT", "jansson", ("src",)),
}
FLAGS = ("-O2", "-fPIC", "-DNDEBUG", "-ffunction-sections", "-DZSTD_DISABLE_ASM", "-DHAVE_CONFIG_H", "-w", "-pthread")
JANSSON_HAS = ("HAVE_ATOMIC_BUILTINS", "HAVE_FCNTL_H", "HAVE_GETTIMEOFDAY", "HAVE_LOCALE_H", "HAVE_SCHED_H", "HAVE_SCHED_YIELD",
               "HAVE_STDINT_H", "HAVE_STRTOLL", "HAVE_SYNC_BUILTINS", "HAVE_SYS_PARAM_H", "HAVE_SYS_STAT_H", "HAVE_SYS_TIME_H",
               "HAVE_SYS_TYPES_H", "HAVE_UNISTD_H", "USE_URANDOM")
PC = "Name: {library}\nDescription: {library}\nVersion: {version}\nLibs: -L{folder}/lib -l{link}\nCflags: -I{folder}/include\n"


def download_source(folder, options, name):
    """Download the newest available version of a source package, and return its archive.

    Each attempt has an empty folder, so that an incomplete download of another version is not mistaken for the archive.
    """
    output = subprocess.run(["apt-cache", *options, "showsrc", name], check=True, capture_output=True, text=True).stdout
    order = functools.cmp_to_key(lambda a, b: 1 if is_newer(a, b) else -1)
    versions = sorted(set(re.findall(r"^Version: (.+)$", output, flags=re.MULTILINE)), key=order, reverse=True)
    for number, version in enumerate(versions):
        attempt = folder / f"{name}-{number}"
        attempt.mkdir()
        try:
            toolchain.run(["apt-get", *options, "source", "--download-only", f"{name}={version}"], cwd=attempt, stdout=subprocess.DEVNULL)
        except subprocess.CalledProcessError:
            print(f"wheels: source package cannot be downloaded, {name} {version}; trying an older version", file=sys.stderr)
            continue
        archive, = attempt.glob(f"{name}_*.orig.tar.*[!c]")
        return archive
    raise SystemExit(f"wheels: no version of the source package can be downloaded, {name}; check the network and apt's package sources")


def is_newer(version, other):
    """Get whether a version of a Debian package is newer than another one."""
    return subprocess.run(["dpkg", "--compare-versions", version, "gt", other], check=False).returncode == 0


def fetch(folder):
    """Fetch the source packages of the host's Debian release with checked signatures.  Returns archive and version by name."""
    folder = pathlib.Path(folder)
    for part in ("lists/partial", "sources"):
        (folder / part).mkdir(parents=True)
    for file in (pathlib.Path("/etc/apt/sources.list"), *pathlib.Path("/etc/apt/sources.list.d").iterdir()):
        if file.suffix in (".list", ".sources") and file.exists():
            text = re.sub(r"^(deb )(.*)", r"\1\2\ndeb-src \2", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            text = re.sub(r"^Types: *deb *$", "Types: deb-src", text, flags=re.MULTILINE)
            (folder / "sources" / file.name).write_text(text, encoding="utf-8")
    options = ["-q", "-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={folder}/sources", "-o",
               f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}", "-o", "APT::Sandbox::User=root"]
    toolchain.run(["apt-get", *options, "update"], stdout=subprocess.DEVNULL)
    archives = {}
    for name in PARTS:
        archive = download_source(folder, options, name)
        archives[name] = archive, re.search(r"_([\d.]+)", archive.name)[1].rstrip(".")
    return archives


def configure_jansson(source):
    """Write the results of the configure script on Linux with glibc."""
    public = (source / "src/jansson_config.h.in").read_text(encoding="utf-8")
    public = re.sub(r"@\w+@", "1", public.replace("@json_inline@", "inline"))
    (source / "src/jansson_config.h").write_text(public, encoding="utf-8")
    private = "".join(f"#define {name} 1\n" for name in JANSSON_HAS)
    (source / "src/jansson_private_config.h").write_text(private, encoding="utf-8")


def compile_part(source, name, processor, prefix):
    """Compile a library to an archive, and copy its headers."""
    _, library, folders = PARTS[name]
    if name == "jansson":
        configure_jansson(source)
    files = [file for folder in folders for file in sorted((source / folder).glob("*.c"))]
    objects = [file.with_suffix(".o") for file in files]
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda file: toolchain.run([
            *toolchain.compiler(processor), *FLAGS, f"-ffile-prefix-map={source}=.", f"-I{source / folders[0]}", "-c", file, "-o",
            file.with_suffix(".o")]), files))
    toolchain.run([f"{processor}-linux-gnu-ar", "rcsD", prefix / f"lib/lib{library.removeprefix('lib')}.a", *objects])
    for header in [*source.glob("lib/*.h"), *source.glob("src/jansson*.h")]:
        shutil.copy(header, prefix / "include")


def build(sources, processor, folder):
    """Build and install the libraries in `folder` for pkg-config, and return the folder."""
    prefix = pathlib.Path(folder)
    for part in ("include", "lib/pkgconfig", "licenses"):
        (prefix / part).mkdir(parents=True)
    for name, (archive, version) in sources.items():
        with tarfile.open(archive) as packed:
            packed.extractall(prefix / "source")
        source, = (prefix / "source").iterdir()
        compile_part(source, name, processor, prefix)
        library = PARTS[name][1]
        (prefix / f"lib/pkgconfig/{library}.pc").write_text(
            PC.format(library=library, version=version, folder=prefix, link=library.removeprefix("lib")), encoding="utf-8")
        shutil.copy(source / "LICENSE", prefix / f"licenses/{library}.txt")
        shutil.rmtree(prefix / "source")
    return prefix
