# SPDX-License-Identifier: MIT
"""The headers of a version of PyTorch that is not installed.

torch_headers.py [--offline] VERSION...    prints for each the folder in which include/ lies

They come from the wheel, which is deleted again, and are kept in ${XDG_CACHE_HOME:-~/.cache}/xseg.  --offline
fetches nothing.  Exits with 77, and a sentence that says how to get them, where they cannot be had.
"""
import argparse
import pathlib
import re
import shutil
import sys
import tempfile
import zipfile

import torch_environment

# Any Python's wheel has the same headers; these exist for all supported versions.
WHEEL = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux1_x86_64",
         "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64")


def unpack(wheel, folder):
    """The folder torch/include of a wheel, as include/."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            found = re.fullmatch(r"torch/(include/.+\.(?:h|hpp|cuh|inc|def))", name)
            if found:
                path = folder / found[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))


def folder_of(version, offline):
    """Where the headers of a version are, fetched if they are not there yet; one process at a time fetches."""
    folder = torch_environment.cache() / f"torch-headers-{version}"
    with torch_environment.locked():
        if (folder / "complete").exists():
            return folder
        if offline:
            raise torch_environment.Absent(f"the headers of PyTorch {version} are not in {folder}")
        print(f"fetching the headers of PyTorch {version} into {folder}: a wheel of up to 900 MB, once", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="wheel-") as scratch:
            torch_environment.pip(sys.executable, "download", "--no-deps", "--only-binary", ":all:", *WHEEL,
                                  "-d", scratch, f"torch=={version}")
            for wheel in pathlib.Path(scratch).glob("*.whl"):
                unpack(wheel, folder)
        if not (folder / "include/c10/cuda/CUDACachingAllocator.h").exists():
            raise torch_environment.Absent(f"the wheel of PyTorch {version} has no headers for CUDA")
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
    except torch_environment.Absent as why:
        print(f"torch_headers.py: {why}; run `python3 tests/support/torch_headers.py {' '.join(options.versions)}` with a "
              "network", file=sys.stderr)
        return torch_environment.SKIPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
