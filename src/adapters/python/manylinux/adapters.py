# SPDX-License-Identifier: MIT
"""Builds the PyTorch adapters of a wheel: one for each version in torch.json, for one architecture."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent import futures

from manylinux import toolchain, torch_headers, torch_tables

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[3]
# Symbols that are resolved at run time: by libraries of PyTorch, their dependencies, and libxseg.so.
RUN_TIME_SYMBOLS = re.compile(r"_Z\w*3c10\w*|cuda[A-Z]\w*|xseg_\w+|_Unwind_Resume")


def recorded_versions():
    """Get the versions: dictionaries of version, is_cxx11, methods."""
    return json.loads(torch_tables.RECORD.read_text(encoding="utf-8"))


def build_module():
    """Load the module xseg.torch._build without its package, which requires PyTorch."""
    sys.path.insert(0, str(ROOT / "src/adapters/python"))
    spec = importlib.util.spec_from_file_location("xseg_adapter_build", ROOT / "src/adapters/python/xseg/torch/_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_stubs(processor, folder):
    """Make empty libraries with the names of PyTorch's, which are already loaded at run time."""
    folder.mkdir()
    for name in ("c10", "c10_cuda"):
        toolchain.run([*toolchain.compiler(processor), "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,lib{name}.so",
                       "-o", folder / f"lib{name}.so"])
    return folder


def check_symbols(path):
    """Check that undefined symbols are in RUN_TIME_SYMBOLS, or in a library of the system with symbol versions."""
    output = subprocess.check_output(["readelf", "-W", "--dyn-syms", path], text=True)
    undefined = [line.split()[7] for line in output.splitlines() if re.search(r"GLOBAL +DEFAULT +UND \S", line)]
    unexpected = [name for name in undefined if "@" not in name and not RUN_TIME_SYMBOLS.fullmatch(name)]
    if unexpected:
        raise toolchain.Missing(f"{path.name}: unexpected undefined symbols, {', '.join(unexpected)}")


def fetch_headers(version):
    """Get the folders of the headers of a version, and of the CUDA runtime."""
    return torch_headers.folder_of(version) / "include", torch_headers.cuda_folder()


def build_one(build, release, processor, library, folder, headers):
    """Build an adapter and its description."""
    include, cuda = headers(release["version"])
    name = f"torch-{'.'.join(release['version'].split('.')[:2])}-abi{int(release['is_cxx11'])}"
    adapter, object_file = folder / f"{name}.so", folder / f"{name}.o"
    toolchain.run([*toolchain.cpp(processor), "-include", HERE / "old_libstdcxx.h", *build.flags(include, release["is_cxx11"]), "-c",
                   f"-ffile-prefix-map={ROOT}=.", f"-ffile-prefix-map={include}=torch", "-iquote", ROOT, "-I", ROOT / "include",
                   "-isystem", include, "-isystem", cuda, ROOT / "src/adapters/torch/all.cpp", "-o", object_file])
    cpp_library = subprocess.check_output([*toolchain.cpp(processor), "-print-file-name=libstdc++.so"], text=True).strip()
    toolchain.run([*toolchain.compiler(processor), "-shared", "-s", "-Wl,--gc-sections", "-Wl,-rpath,$ORIGIN/../../lib", object_file,
                   f"-L{folder}/stubs", "-Wl,--no-as-needed", "-lc10", "-lc10_cuda", library, cpp_library, "-o", adapter])
    object_file.unlink()
    check_symbols(adapter)
    description = {"methods": release["methods"], "uncovered": build.uncovered(include)}
    adapter.with_suffix(".json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def build_all(processor, library, folder, only=(), headers=fetch_headers):
    """Build all adapters of an architecture, or those of the minor versions in `only`, in a folder.

    `library` is libxseg.so of that architecture; `headers` returns the folder of a version's headers.
    """
    build, folder = build_module(), pathlib.Path(folder)
    selected = [each for each in recorded_versions() if not only or ".".join(each["version"].split(".")[:2]) in only]
    folder.mkdir(parents=True)
    os.environ["XSEG_LIBRARY"] = str(library)
    make_stubs(processor, folder / "stubs")
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda each: build_one(build, each, processor, library, folder, headers), selected))
    for path in (folder / "stubs").iterdir():
        path.unlink()
    (folder / "stubs").rmdir()
