# SPDX-License-Identifier: MIT
"""Headers of PyTorch versions that are not installed.

torch_headers.py [--offline] VERSION...    prints the folder that contains include/, for each version

Headers are extracted from the wheel, which is then deleted, to ${XDG_CACHE_HOME:-~/.cache}/xseg.  --offline fetches nothing.  If
headers are not available, the exit status is 77, and the message has the command that fetches them.
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
# The headers are the same in the wheels of all Python versions; these wheels exist for all supported versions of PyTorch.
WHEEL = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux1_x86_64",
         "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64")
# Headers of the CUDA runtime and driver, and of NVTX.
CUDA = ("nvidia-cuda-runtime>=13,<14", "nvidia-cuda-crt>=13,<14", "nvidia-nvtx>=13,<14")


class NotInstalled(Exception):
    """Headers are not available; the message contains the reason."""


def cache():
    """Get the cache folder."""
    folder = os.environ.get("XDG_CACHE_HOME")
    path = (pathlib.Path(folder) if folder else pathlib.Path.home() / ".cache") / "xseg"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotInstalled(f"cannot create a folder, {path}: {error.strerror}") from error
    return path


@contextlib.contextmanager
def locked():
    """Lock the cache, so that one process at a time fills it."""
    with (cache() / "lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pip(python, *arguments):
    """Run pip; the last line of its error output becomes the message of NotInstalled."""
    ran = subprocess.run([python, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check",
                          "--retries", "1"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if ran.returncode != 0:
        lines = ran.stderr.strip().splitlines() or ["pip failed without output"]
        raise NotInstalled(lines[-1])


def fetch(version, scratch):
    """Download the wheel of a version."""
    pip(sys.executable, "download", "--no-deps", "--only-binary", ":all:", *WHEEL, "-d", scratch, f"torch=={version}")
    wheel, = pathlib.Path(scratch).glob("*.whl")
    return wheel


def unpack(wheel, folder):
    """Extract the folder torch/include of a wheel to include/."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            found = re.fullmatch(r"torch/(include/.+\.(?:h|hpp|cuh|inc|def))", name)
            if found:
                path = folder / found[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))


def folder_of(version, offline=False):
    """Get the folder with the headers of a version, which are fetched if necessary."""
    folder = cache() / f"torch-headers-{version}"
    with locked():
        if (folder / "complete").exists():
            return folder
        if offline:
            raise NotInstalled(f"headers of PyTorch {version} not found, {folder}")
        print(f"torch_headers.py: downloading the headers of PyTorch {version} (a wheel of up to 900 MB, once) to {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="wheel-") as scratch:
            unpack(fetch(version, scratch), folder)
        if not (folder / "include/c10/cuda/CUDACachingAllocator.h").exists():
            raise NotInstalled(f"wheel of PyTorch has no CUDA headers, version {version}")
        (folder / "complete").touch()
    return folder


def cuda_folder(offline=False):
    """Get the folder with cuda_runtime_api.h and the headers that it includes."""
    folder = cache() / "cuda-13-headers/include"
    with locked():
        if (folder / "complete").exists():
            return folder
        if offline:
            raise NotInstalled(f"cuda_runtime_api.h not found, {folder}; install a CUDA toolkit")
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
    """Execute the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    options = parser.parse_args()
    try:
        for version in options.versions:
            print(folder_of(version, options.offline))
    except NotInstalled as error:
        print(f"torch_headers.py: {error}; run `python3 src/adapters/python/manylinux/torch_headers.py {' '.join(options.versions)}` with "
              "network access", file=sys.stderr)
        return SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
