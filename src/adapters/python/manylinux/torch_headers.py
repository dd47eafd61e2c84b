# SPDX-License-Identifier: MIT
"""Headers of PyTorch versions that are not installed.

torch_headers.py [--offline] VERSION...    prints for each the folder in which include/ lies

Headers are taken from the wheel, which is deleted again, and are kept in ${XDG_CACHE_HOME:-~/.cache}/xseg.  --offline
fetches nothing.  Exits with 77, and a sentence that says how to get them, where they cannot be had.
"""
import argparse
import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

SKIPPED = 77
# Any Python's wheel has the same headers; these exist for all supported versions.
WHEEL = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux1_x86_64",
         "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64")
# Headers of the CUDA runtime and driver, and of NVTX.
CUDA = ("nvidia-cuda-runtime>=13,<14", "nvidia-cuda-crt>=13,<14", "nvidia-nvtx>=13,<14")


class Absent(Exception):
    """Headers are not available; the message contains the reason."""


def cache():
    """The folder for what is made once."""
    folder = os.environ.get("XDG_CACHE_HOME")
    path = (pathlib.Path(folder) if folder else pathlib.Path.home() / ".cache") / "xseg"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Absent(f"cannot create a folder, {path}: {error.strerror}") from error
    return path


@contextlib.contextmanager
def locked():
    """One process at a time makes something."""
    with (cache() / "lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pip(python, *arguments):
    """Run pip; its last line of complaint is the reason why something is absent."""
    ran = subprocess.run([python, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check",
                          "--retries", "1"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if ran.returncode != 0:
        lines = ran.stderr.strip().splitlines() or ["pip failed without output"]
        raise Absent(lines[-1])


def fetch(version, scratch):
    """The wheel of a version."""
    pip(sys.executable, "download", "--no-deps", "--only-binary", ":all:", *WHEEL, "-d", scratch, f"torch=={version}")
    wheel, = pathlib.Path(scratch).glob("*.whl")
    return wheel


def unpack(wheel, folder):
    """The folder torch/include of a wheel, as include/."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            found = re.fullmatch(r"torch/(include/.+\.(?:h|hpp|cuh|inc|def))", name)
            if found:
                path = folder / found[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))


def folder_of(version, offline=False):
    """Where the headers of a version are, fetched if they are not there yet; one process at a time fetches."""
    folder = cache() / f"torch-headers-{version}"
    with locked():
        if (folder / "complete").exists():
            return folder
        if offline:
            raise Absent(f"headers of PyTorch {version} not found, {folder}")
        print(f"torch_headers.py: downloading the headers of PyTorch {version} (a wheel of up to 900 MB, once) to {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="wheel-") as scratch:
            unpack(fetch(version, scratch), folder)
        if not (folder / "include/c10/cuda/CUDACachingAllocator.h").exists():
            raise Absent(f"wheel of PyTorch has no CUDA headers, version {version}")
        (folder / "complete").touch()
    return folder


def cuda_folder(offline=False):
    """The folder that has cuda_runtime_api.h and what it includes."""
    folder = cache() / "cuda-13-headers/include"
    with locked():
        if (folder / "complete").exists():
            return folder
        if offline:
            raise Absent(f"cuda_runtime_api.h not found, {folder}; install a CUDA toolkit")
        shutil.rmtree(folder, ignore_errors=True)
        pip(sys.executable, "download", "--no-deps", "--only-binary", ":all:", "-d", folder, *CUDA)
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if found := re.search(r"/include/(.+\.(?:h|hpp))$", name):
                        path = folder / found[1]
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(archive.read(name))
        (folder / "complete").touch()
    return folder


def main():
    """As the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    options = parser.parse_args()
    try:
        for version in options.versions:
            print(folder_of(version, options.offline))
    except Absent as why:
        print(f"torch_headers.py: {why}; run `python3 src/adapters/python/manylinux/torch_headers.py {' '.join(options.versions)}` with "
              "network access", file=sys.stderr)
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
