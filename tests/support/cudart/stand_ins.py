# SPDX-License-Identifier: MIT
"""Stand-ins for the libraries that PyTorch is linked with and that need a GPU, and the runtime for tests.

stand_ins.py TORCH_LIB DRIVER INCLUDE OUT

TORCH_LIB is the folder of libtorch_cuda.so, DRIVER the simulator, INCLUDE a folder that has
cuda_runtime_api.h.  Into OUT come libcudart.so.N, compiled from the sources beside this file; a small
libnvidia-ml.so.1; and for every other library of NVIDIA's that PyTorch needs one of the same name, which
has the functions that PyTorch calls, under the same versions of symbols.  They return 0, which is success.
"""
import collections
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# What NVIDIA's libraries are called.  libcuda.so.1 is the simulator, and the runtime is written by hand.
THEIRS = re.compile(r"lib(cu|nv|nccl)")
BY_HAND = re.compile(r"libcuda\.so|libcudart\.so")
RUNTIME = ("device", "driver", "error", "graph", "kernel", "memory", "stream")
# Functions without a version of their symbol, by how they begin, and the library that has them.
PREFIXES = {"cusparseLt": "libcusparseLt", "nccl": "libnccl", "cuFile": "libcufile", "nvshmem": "libnvshmem_host"}
# The driver calls that the simulator lacks: what asks for them needs this library, too.
LACKING = "libnvrtc"
STRING = re.compile(r"(GetErrorString|GetErrorStringNoComm|GetStatusString|StatusString|GetStatusName|"
                    r"GetErrorName|GetLastErrorString|GetResultString)$|GetLastError$")
# Functions that write their answer where an argument points, or return a number.
SPECIAL = {
    "cublasGetVersion_v2": "int {}(void *h, int *v) {{ *v = {cublas}; return 0; }}",
    "cublasLtGetVersion": "unsigned long {}(void) {{ return {cublas}; }}",
    "cublasGetPointerMode_v2": "int {}(void *h, int *mode) {{ *mode = 0; return 0; }}",
    "cublasGetMathMode": "int {}(void *h, int *mode) {{ *mode = 0; return 0; }}",
    "cublasLtMatmulAlgoGetHeuristic":
        "int {}(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int n, void *r, int *found)"
        " {{ *found = 1; return 0; }}",
    "cudnnGetVersion": "unsigned long {}(void) {{ return {cudnn}; }}",
    "cudnnGetCudartVersion": "unsigned long {}(void) {{ return {cublas}; }}",
    "ncclGetVersion": "int {}(int *v) {{ *v = {nccl}; return 0; }}",
    "nvrtcVersion": "int {}(int *major, int *minor) {{ *major = 13; *minor = 0; return 0; }}",
}


def output(*command):
    """What a command prints, an entry a line."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed_by(library):
    """The names of the libraries that one needs."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", "\n".join(output("readelf", "-Wd", library)))


def files_of_versions(library):
    """For each version of a symbol that a library asks for, the library that has to have it."""
    files, name = {}, None
    for line in output("readelf", "-WV", library):
        if found := re.search(r"Version: \d+  File: (\S+)", line):
            name = found[1]
        elif (found := re.search(r"Name: (\S+)  Flags", line)) and name:
            files[found[1]] = name
    return files


def undefined_in(library):
    """Each function that a library needs and does not have, with the version or None."""
    for line in output("nm", "-D", "--undefined-only", library):
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@") or None


def owner_of(name, lacking, libraries):
    """The library that has a function without a version, or None."""
    for prefix, owner in PREFIXES.items():
        if name.startswith(prefix):
            break
    else:
        if name not in lacking:
            return None
        owner = LACKING
    return next((library for library in libraries if library.startswith(owner + ".")), None)


def wanted(torch, driver):
    """For each library to stand in for: its functions by version."""
    binaries = sorted(torch.glob("*.so"))
    needed = {name for binary in binaries for name in needed_by(binary)}
    there = {binary.name for binary in binaries}
    libraries = {name: collections.defaultdict(set) for name in needed
                 if THEIRS.match(name) and not BY_HAND.match(name) and name not in there}
    has = {line.split()[-1] for line in output("nm", "-D", "--defined-only", driver)}
    for binary in binaries:
        files = files_of_versions(binary)
        for name, version in undefined_in(binary):
            lacking = {name} if re.match(r"cu[A-Z]", name) and name not in has else set()
            owner = files.get(version) if version else owner_of(name, lacking, libraries)
            if owner in libraries:
                libraries[owner][version].add(name)
    return libraries


def numbers_of(torch):
    """The versions of libraries that PyTorch was built with, in the libraries' own numbers."""
    site = torch.parent.parent
    text = "\n".join(path.read_text() for path in site.glob("torch-*.dist-info/METADATA"))

    def version(package, default):
        found = re.search(rf"{package}[^=\n]*==(\d+)\.(\d+)\.(\d+)", text)
        return [int(part) for part in found.groups()] if found else default

    cudnn, nccl = version("nvidia-cudnn", [9, 0, 0]), version("nvidia-nccl", [2, 20, 0])
    return {"cublas": 130000, "cudnn": cudnn[0] * 10000 + cudnn[1] * 100 + cudnn[2],
            "nccl": nccl[0] * 10000 + nccl[1] * 100 + nccl[2]}


def compile_library(out, name, sources, versions, *options):
    """A shared library of that soname; versions: the text of a version script."""
    script = out / (name + ".map")
    script.write_text(versions)
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-shared", "-fPIC", "-fvisibility=hidden", *options,
                    f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-o", out / name, *sources,
                    "-ldl", "-lpthread"], check=True)


def stand_in(out, name, functions, numbers):
    """Make the library of that name."""
    text, versions = [], []
    for version, names in functions.items():
        for function in sorted(names):
            if function in SPECIAL:
                text.append(SPECIAL[function].format(function, **numbers))
            elif STRING.search(function):
                text.append(f'const char *{function}(void) {{ return "a stand-in"; }}')
            else:
                text.append(f"long {function}(void) {{ return 0; }}")
        if version:
            versions.append(f"{version} {{ global: {'; '.join(sorted(names))}; }};")
    source = out / (name + ".c")
    source.write_text("\n".join(text) + "\n")
    compile_library(out, name, [source], "\n".join(versions) or "{ global: *; };", "-w", "-fno-builtin",
                    "-fvisibility=default")


def refused_calls(torch, runtime, sources, out):
    """Those that some version of PyTorch links and the runtime for tests lacks: they are not supported (801)."""
    has = set(re.findall(r"\b((?:__)?cuda\w+)\(", "\n".join(path.read_text() for path in sources)))
    names = {name for binary in sorted(torch.glob("*.so")) for name, version in undefined_in(binary)
             if version == runtime and name not in has}
    path = out / "refused_calls.c"
    line = '__attribute__((visibility("default"))) int {0}(void);\nint {0}(void)\n{{\n    return 801;\n}}\n'
    path.write_text("".join(line.format(name) for name in sorted(names)))
    return path


def main():
    """As the arguments say."""
    torch, driver, include, out = (pathlib.Path(argument) for argument in sys.argv[1:])
    runtime = next(name for name in needed_by(torch / "libc10_cuda.so") if name.startswith("libcudart.so"))
    sources = [HERE / f"{name}.c" for name in RUNTIME]
    compile_library(out, runtime, [*sources, refused_calls(torch, runtime, sources, out)],
                    f"{runtime} {{ global: cuda*; __cuda*; local: *; }};", "-Wall", "-Wextra", f"-I{include}",
                    f"-I{HERE.parent.parent.parent}")
    compile_library(out, "libnvidia-ml.so.1", [HERE / "nvml.c"], "{ global: nvml*; local: *; };", "-Wall", "-Wextra")
    numbers = numbers_of(torch)
    count = 0
    for name, functions in sorted(wanted(torch, driver).items()):
        stand_in(out, name, functions, numbers)
        count += sum(len(names) for names in functions.values())
    (out / "count").write_text(f"{count}\n")


if __name__ == "__main__":
    main()
