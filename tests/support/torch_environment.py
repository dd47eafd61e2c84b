# SPDX-License-Identifier: MIT
"""PyTorch on the simulator: finds or makes an environment that has it, and runs programs there.

torch_environment.py [--driver PATH] [--xseg] run PROGRAM [ARGS...]   a program; "python" is the environment's
torch_environment.py [--driver PATH] print                   the variables, as lines for a shell
torch_environment.py python                                  the path of the environment's Python
torch_environment.py include                                 the folder that has cuda_runtime_api.h

--driver is libxseg-sim.so, build-tests/libxseg-sim.so without it.  --xseg makes the package xseg of this tree importable,
with the libxseg.so that is in the driver's folder.  --offline installs nothing.

XSEG_REFERENCE names a Python environment with PyTorch in it, or a folder that has one as v/.  Without it
an environment is made in ${XDG_CACHE_HOME:-~/.cache}/xseg, with a lock, from PyTorch's wheel and what that
needs for Python: 1.5 GB, once.  NVIDIA's libraries are not installed: the runtime of tests/support/cudart
and its stand-ins take their place, which are compiled into the same folder.

Exits with 77, and a sentence that says how to get PyTorch, where it cannot be had.
"""
import argparse
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "src/adapters/python"))
from manylinux.torch_headers import SKIPPED, Absent, cache, cuda_folder, locked, pip  # noqa: E402 pylint: disable=wrong-import-position
CUDART = HERE / "cudart"
VERSION = "2.15.0"
# What PyTorch imports.  Triton, which compiles kernels, and NVIDIA's libraries are left out.
PACKAGES = (f"torch=={VERSION}", "filelock", "typing-extensions", "sympy", "mpmath", "networkx", "jinja2",
            "markupsafe", "fsspec", "setuptools", "numpy")
HOW = ("run python3 tests/support/torch_environment.py python (1.5 GB to fetch, 6 GB on disk), or set XSEG_REFERENCE to an "
       f"environment with PyTorch {VERSION} or later for CUDA 13")


def site_of(python):
    """The folder of a Python's torch, found without loading it; None without it."""
    asked = subprocess.run(
        [python, "-c", "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"],
        capture_output=True, text=True, check=False)
    folder = pathlib.Path(asked.stdout.strip() or "/nowhere")
    return folder if (folder / "lib" / "libc10_cuda.so").exists() else None


def named():
    """The Python of XSEG_REFERENCE, or None where that is not set."""
    folder = os.environ.get("XSEG_REFERENCE")
    if not folder:
        return None
    for python in (pathlib.Path(folder) / "bin/python", pathlib.Path(folder) / "v/bin/python"):
        if python.exists():
            return python
    raise Absent(f"XSEG_REFERENCE={folder} has no bin/python and no v/bin/python")


def make_environment(folder):
    """A virtual environment with PyTorch, complete or not there."""
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing PyTorch {VERSION} into {folder}: 1.5 GB, once", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip(folder / "bin/python", "install", "--no-deps", *PACKAGES)
    (folder / "complete").touch()


def python_with_torch(offline):
    """The Python to use, and PyTorch's folder."""
    python = named()
    if python is None:
        folder = cache() / f"torch-{VERSION}"
        with locked():
            if not (folder / "complete").exists():
                if offline:
                    raise Absent("PyTorch is not installed in " + str(folder))
                make_environment(folder)
        python = folder / "bin/python"
    torch = site_of(python)
    if torch is None:
        raise Absent(f"{python} has no PyTorch, or one without CUDA")
    return python, torch


def include_folder(torch, offline):
    """Where cuda_runtime_api.h and what it includes are; its own copy where no toolkit is."""
    for folder in (pathlib.Path("/usr/local/cuda/include"), pathlib.Path("/usr/include"),
                   *torch.parent.glob("nvidia/cu13/include")):
        if (folder / "cuda_runtime_api.h").exists() and (folder / "crt/host_defines.h").exists():
            return folder
    return cuda_folder(offline)


def libraries(python, torch, driver, include):
    """The folder with the runtime, the stand-ins and the driver as libcuda.so.1, for that PyTorch and that driver."""
    digest = hashlib.sha256()
    for path in sorted(CUDART.iterdir()):
        if path.is_file():
            digest.update(path.read_bytes())
    about = (torch / "lib/libtorch_cuda.so").stat()
    exported = subprocess.run(["nm", "-D", "--defined-only", driver], capture_output=True, text=True, check=True).stdout
    names = sorted(line.split()[-1] for line in exported.splitlines())
    digest.update(repr((torch, about.st_size, about.st_mtime_ns, driver, names, include)).encode())
    folder = cache() / f"cudart-{digest.hexdigest()[:16]}"
    with locked():
        if not (folder / "complete").exists():
            # Folders of drivers that are gone.
            for old in cache().glob("cudart-*"):
                if not (old / "libcuda.so.1").exists():
                    shutil.rmtree(old, ignore_errors=True)
            folder.mkdir()
            subprocess.run([python, CUDART / "stand_ins.py", torch / "lib", driver, include, folder], check=True)
            (folder / "libcuda.so.1").symlink_to(driver)
            (folder / "complete").touch()
    return folder


def variables(folder, torch, include, library):
    """The environment variables of a program that uses PyTorch, and the package xseg if a library is given."""
    def before(name, value, separator):
        old = os.environ.get(name)
        return f"{value}{separator}{old}" if old else value

    result = {"LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", str(folder), ":")}
    if library:
        result["PYTHONPATH"] = before("PYTHONPATH", str(ROOT / "src/adapters/python"), ":")
        result["XSEG_LIBRARY"] = str(library)
    # Where the adapter finds the runtime's headers.
    result["CUDA_HOME"] = os.environ.get("CUDA_HOME", str(include.parent))
    # PyTorch's libraries look for NVIDIA's beside themselves first.  What is loaded already wins.
    if any(torch.parent.glob("nvidia/*/lib/libcudart.so*")):
        stand_ins = sorted(path.name for path in folder.glob("lib*.so.*") if re.search(r"\.so\.\d+$", path.name)
                           and not path.name.startswith(("libcuda.so", "libnvidia-ml.so")))
        result["LD_PRELOAD"] = before("LD_PRELOAD", " ".join(stand_ins), " ")
    return result


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", type=pathlib.Path, default=ROOT / "build-tests/libxseg-sim.so")
    parser.add_argument("--xseg", action="store_true")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("what", choices=("run", "print", "python", "include"))
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.what == "run" and not options.program:
        parser.error("run what?")
    return options


def prepare(options):
    """The environment's Python, its variables, and the include folder."""
    python, torch = python_with_torch(options.offline)
    include = include_folder(torch, options.offline)
    if options.what in ("python", "include"):
        return python, {}, include
    driver = options.driver.resolve()
    if not driver.exists():
        raise Absent(f"{driver} is missing: build it, or name another with --driver")
    library = driver.with_name("libxseg.so") if options.xseg else None
    return python, variables(libraries(python, torch, driver, include), torch, include, library), include


def main():
    """As the arguments say."""
    options = parse()
    try:
        python, environment, include = prepare(options)
    except Absent as why:
        print(f"torch_environment.py: {why}; {HOW}", file=sys.stderr)
        return SKIPPED
    if options.what == "python":
        print(python)
    elif options.what == "include":
        print(include)
    elif options.what == "print":
        for name, value in environment.items():
            print(f"export {name}='{value}'")
    else:
        program = [str(python) if options.program[0] == "python" else options.program[0], *options.program[1:]]
        sys.stdout.flush()
        os.execvpe(program[0], program, {**os.environ, **environment})
    return 0


if __name__ == "__main__":
    sys.exit(main())
