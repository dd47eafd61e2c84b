# SPDX-License-Identifier: MIT
"""PyTorch on the simulator: finds or creates a Python environment with PyTorch, and runs programs in it.

torch_environment.py [--driver PATH] [--xseg] run PROGRAM [ARGS...]   run a program; "python" is the environment's
torch_environment.py [--driver PATH] print                   print the variables, as commands of a shell
torch_environment.py python                                  print the path of the environment's Python
torch_environment.py include                                 print the folder of cuda_runtime_api.h

--driver is the path of libxseg-sim.so, by default build-tests/libxseg-sim.so.  --xseg makes the package xseg of this tree
importable, with libxseg.so in the folder of the driver.  --offline prevents installations.

XSEG_REFERENCE is the folder of a Python environment with PyTorch, or a folder whose subfolder v/ is one.  By default, an
environment is created once in ${XDG_CACHE_HOME:-~/.cache}/xseg from PyTorch's wheel and its Python dependencies, 1.5 GB.
NVIDIA's libraries are not installed: the runtime and the stand-ins of tests/support/cudart replace them, which are compiled
into the same cache.

If PyTorch is missing, the exit status is 77, and a message describes how to install it.
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
from manylinux.torch_headers import SKIPPED, NotInstalled, cache, cuda_folder, locked, pip  # noqa: E402 pylint: disable=wrong-import-position
CUDART = HERE / "cudart"
VERSION = "2.15.0"
# The packages that PyTorch imports, without Triton, which compiles kernels, and NVIDIA's libraries.
PACKAGES = (f"torch=={VERSION}", "filelock", "typing-extensions", "sympy", "mpmath", "networkx", "jinja2",
            "markupsafe", "fsspec", "setuptools", "numpy")
HOW = ("run python3 tests/support/torch_environment.py python (1.5 GB to fetch, 6 GB on disk), or set XSEG_REFERENCE to an "
       f"environment with PyTorch {VERSION} or later for CUDA 13")


def torch_folder(python):
    """The folder of a Python's package torch, which is not imported; None without a package for CUDA."""
    code = "import importlib.util; spec = importlib.util.find_spec('torch'); print(spec.submodule_search_locations[0] if spec else '')"
    result = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    folder = pathlib.Path(result.stdout.strip() or "/nowhere")
    return folder if (folder / "lib" / "libc10_cuda.so").exists() else None


def reference_python():
    """The Python of XSEG_REFERENCE, or None if the variable is not set."""
    folder = os.environ.get("XSEG_REFERENCE")
    if not folder:
        return None
    for python in (pathlib.Path(folder) / "bin/python", pathlib.Path(folder) / "v/bin/python"):
        if python.exists():
            return python
    raise NotInstalled(f"XSEG_REFERENCE={folder} contains neither bin/python nor v/bin/python")


def create_environment(folder):
    """Create a virtual environment with PyTorch; the file `complete` marks its end."""
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing PyTorch {VERSION} into {folder}: 1.5 GB, once", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip(folder / "bin/python", "install", "--no-deps", *PACKAGES)
    (folder / "complete").touch()


def python_with_torch(offline):
    """The Python of the environment, and the folder of PyTorch."""
    python = reference_python()
    if python is None:
        folder = cache() / f"torch-{VERSION}"
        with locked():
            if not (folder / "complete").exists():
                if offline:
                    raise NotInstalled("PyTorch is not installed in " + str(folder))
                create_environment(folder)
        python = folder / "bin/python"
    torch = torch_folder(python)
    if torch is None:
        raise NotInstalled(f"{python} has no PyTorch with CUDA")
    return python, torch


def include_folder(torch, offline):
    """The folder of cuda_runtime_api.h and the headers that it includes; without a toolkit, a cached copy."""
    for folder in (pathlib.Path("/usr/local/cuda/include"), pathlib.Path("/usr/include"),
                   *torch.parent.glob("nvidia/cu13/include")):
        if (folder / "cuda_runtime_api.h").exists() and (folder / "crt/host_defines.h").exists():
            return folder
    return cuda_folder(offline)


def libraries(python, torch, driver, include):
    """The folder with the runtime, the stand-ins and the driver as libcuda.so.1, for this PyTorch and this driver."""
    digest = hashlib.sha256()
    for path in sorted(CUDART.iterdir()):
        if path.is_file():
            digest.update(path.read_bytes())
    status = (torch / "lib/libtorch_cuda.so").stat()
    exported = subprocess.run(["nm", "-D", "--defined-only", driver], capture_output=True, text=True, check=True).stdout
    names = sorted(line.split()[-1] for line in exported.splitlines())
    digest.update(repr((torch, status.st_size, status.st_mtime_ns, driver, names, include)).encode())
    folder = cache() / f"cudart-{digest.hexdigest()[:16]}"
    with locked():
        if not (folder / "complete").exists():
            # Remove the folders of deleted drivers.
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
    def prepend(name, value, separator):
        old = os.environ.get(name)
        return f"{value}{separator}{old}" if old else value

    result = {"LD_LIBRARY_PATH": prepend("LD_LIBRARY_PATH", str(folder), ":")}
    if library:
        result["PYTHONPATH"] = prepend("PYTHONPATH", str(ROOT / "src/adapters/python"), ":")
        result["XSEG_LIBRARY"] = str(library)
    # The adapter searches this folder for the headers of the runtime.
    result["CUDA_HOME"] = os.environ.get("CUDA_HOME", str(include.parent))
    # PyTorch's libraries search their own folder for NVIDIA's libraries first, but use libraries that are already loaded.
    if any(torch.parent.glob("nvidia/*/lib/libcudart.so*")):
        stand_ins = sorted(path.name for path in folder.glob("lib*.so.*") if re.search(r"\.so\.\d+$", path.name)
                           and not path.name.startswith(("libcuda.so", "libnvidia-ml.so")))
        result["LD_PRELOAD"] = prepend("LD_PRELOAD", " ".join(stand_ins), " ")
    return result


def parse():
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", type=pathlib.Path, default=ROOT / "build-tests/libxseg-sim.so")
    parser.add_argument("--xseg", action="store_true")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("command", choices=("run", "print", "python", "include"))
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.command == "run" and not options.program:
        parser.error("run: no program")
    return options


def prepare(options):
    """The Python of the environment, the variables, and the include folder."""
    python, torch = python_with_torch(options.offline)
    include = include_folder(torch, options.offline)
    if options.command in ("python", "include"):
        return python, {}, include
    driver = options.driver.resolve()
    if not driver.exists():
        raise NotInstalled(f"{driver} is missing; build it, or specify another driver with --driver")
    library = driver.with_name("libxseg.so") if options.xseg else None
    return python, variables(libraries(python, torch, driver, include), torch, include, library), include


def main():
    """Execute the command; returns the exit status."""
    options = parse()
    try:
        python, environment, include = prepare(options)
    except NotInstalled as reason:
        print(f"torch_environment.py: {reason}; {HOW}", file=sys.stderr)
        return SKIPPED
    if options.command == "python":
        print(python)
    elif options.command == "include":
        print(include)
    elif options.command == "print":
        for name, value in environment.items():
            print(f"export {name}='{value}'")
    else:
        program = [str(python) if options.program[0] == "python" else options.program[0], *options.program[1:]]
        sys.stdout.flush()
        os.execvpe(program[0], program, {**os.environ, **environment})
    return 0


if __name__ == "__main__":
    sys.exit(main())
