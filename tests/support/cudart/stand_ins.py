# SPDX-License-Identifier: MIT
"""Builds the runtime for tests, and stand-ins for the other libraries of NVIDIA that PyTorch requires.

stand_ins.py TORCH_LIB DRIVER INCLUDE OUT

TORCH_LIB is the folder of libtorch_cuda.so, DRIVER the simulator, and INCLUDE the folder of cuda_runtime_api.h.  OUT
receives libcudart.so.N and libnvidia-ml.so.1, compiled from the sources in this folder, and for every other library of NVIDIA
that PyTorch requires, a stand-in with the functions that PyTorch calls and their symbol versions.  These functions return 0,
which is success.
"""
import collections
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# Names of NVIDIA's libraries.  libcuda.so.1 is the simulator, and the runtime is compiled from sources.
NVIDIA = re.compile(r"lib(cu|nv|nccl)")
WITH_SOURCES = re.compile(r"libcuda\.so|libcudart\.so")
RUNTIME = ("device", "driver", "error", "graph", "kernel", "memory", "stream")
# Prefixes of functions without a symbol version, and the libraries that define them.
PREFIXES = {"cusparseLt": "libcusparseLt", "nccl": "libnccl", "cuFile": "libcufile", "nvshmem": "libnvshmem_host"}
# The library that defines driver calls that the simulator lacks, because PyTorch's libraries that call them require it.
FALLBACK = "libnvrtc"
STRING = re.compile(r"(GetErrorString|GetErrorStringNoComm|GetStatusString|StatusString|GetStatusName|"
                    r"GetErrorName|GetLastErrorString|GetResultString)$|GetLastError$")
# Functions that write to an output argument, or return a number.
SPECIAL = {
    "cublasGetVersion_v2": "int {}(void *h, int *v) {{ *v = {cublas}; return 0; }}",
    "cublasLtGetVersion": "unsigned long {}(void) {{ return {cublas}; }}",
    "cublasGetPointerMode_v2": "int {}(void *h, int *mode) {{ *mode = 0; return 0; }}",
    "cublasGetMathMode": "int {}(void *h, int *mode) {{ *mode = 0; return 0; }}",
    "cublasLtMatmulAlgoGetHeuristic":
        "int {}(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int n, void *r, int *count)"
        " {{ *count = 1; return 0; }}",
    "cudnnGetVersion": "unsigned long {}(void) {{ return {cudnn}; }}",
    "cudnnGetCudartVersion": "unsigned long {}(void) {{ return {cublas}; }}",
    "ncclGetVersion": "int {}(int *v) {{ *v = {nccl}; return 0; }}",
    "nvrtcVersion": "int {}(int *major, int *minor) {{ *major = 13; *minor = 0; return 0; }}",
}


def output(*command):
    """The lines that a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def dependencies(library):
    """The names of the libraries that a library requires."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", "\n".join(output("readelf", "-Wd", library)))


def files_of_versions(library):
    """For each symbol version that a library requires, the library that must define it."""
    files, name = {}, None
    for line in output("readelf", "-WV", library):
        if match := re.search(r"Version: \d+  File: (\S+)", line):
            name = match[1]
        elif (match := re.search(r"Name: (\S+)  Flags", line)) and name:
            files[match[1]] = name
    return files


def undefined_in(library):
    """Each undefined function of a library, with its symbol version or None."""
    for line in output("nm", "-D", "--undefined-only", library):
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@") or None


def find_owner(name, missing, libraries):
    """The library that defines a function without a symbol version, or None."""
    for prefix, owner in PREFIXES.items():
        if name.startswith(prefix):
            break
    else:
        if name not in missing:
            return None
        owner = FALLBACK
    return next((library for library in libraries if library.startswith(owner + ".")), None)


def required_functions(torch, driver):
    """For each library that a stand-in replaces, its functions by symbol version."""
    binaries = sorted(torch.glob("*.so"))
    required = {name for binary in binaries for name in dependencies(binary)}
    installed = {binary.name for binary in binaries}
    libraries = {name: collections.defaultdict(set) for name in required
                 if NVIDIA.match(name) and not WITH_SOURCES.match(name) and name not in installed}
    exported = {line.split()[-1] for line in output("nm", "-D", "--defined-only", driver)}
    for binary in binaries:
        files = files_of_versions(binary)
        for name, version in undefined_in(binary):
            missing = {name} if re.match(r"cu[A-Z]", name) and name not in exported else set()
            owner = files.get(version) if version else find_owner(name, missing, libraries)
            if owner in libraries:
                libraries[owner][version].add(name)
    return libraries


def library_versions(torch):
    """The versions of the libraries with which PyTorch was built, as the numbers that the libraries return."""
    site = torch.parent.parent
    text = "\n".join(path.read_text() for path in site.glob("torch-*.dist-info/METADATA"))

    def version(package, default):
        match = re.search(rf"{package}[^=\n]*==(\d+)\.(\d+)\.(\d+)", text)
        return [int(part) for part in match.groups()] if match else default

    cudnn, nccl = version("nvidia-cudnn", [9, 0, 0]), version("nvidia-nccl", [2, 20, 0])
    return {"cublas": 130000, "cudnn": cudnn[0] * 10000 + cudnn[1] * 100 + cudnn[2],
            "nccl": nccl[0] * 10000 + nccl[1] * 100 + nccl[2]}


def compile_library(out, name, sources, versions, *options):
    """Compile a shared library with the soname `name`; `versions` is the text of its version script."""
    script = out / (name + ".map")
    script.write_text(versions)
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-shared", "-fPIC", "-fvisibility=hidden",
                    "-Werror=implicit-function-declaration", *options,
                    f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", "-o", out / name, *sources,
                    "-ldl", "-lpthread"], check=True)


def build_stand_in(out, name, functions, numbers):
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


def unsupported_functions(torch, runtime, sources, out):
    """Write a source with the functions that PyTorch links and the runtime for tests lacks; they return 801, not supported."""
    defined = set(re.findall(r"\b((?:__)?cuda\w+)\(", "\n".join(path.read_text() for path in sources)))
    names = {name for binary in sorted(torch.glob("*.so")) for name, version in undefined_in(binary)
             if version == runtime and name not in defined}
    path = out / "unsupported_functions.c"
    line = '__attribute__((visibility("default"))) int {0}(void);\nint {0}(void)\n{{\n    return 801;\n}}\n'
    path.write_text("".join(line.format(name) for name in sorted(names)))
    return path


def main():
    """Build the libraries into the folder OUT."""
    torch, driver, include, out = (pathlib.Path(argument) for argument in sys.argv[1:])
    runtime = next(name for name in dependencies(torch / "libc10_cuda.so") if name.startswith("libcudart.so"))
    sources = [HERE / f"{name}.c" for name in RUNTIME]
    compile_library(out, runtime, [*sources, unsupported_functions(torch, runtime, sources, out)],
                    f"{runtime} {{ global: cuda*; __cuda*; local: *; }};", "-Wall", "-Wextra", f"-I{include}",
                    f"-I{HERE.parent.parent.parent}")
    compile_library(out, "libnvidia-ml.so.1", [HERE / "nvml.c"], "{ global: nvml*; local: *; };", "-Wall", "-Wextra")
    numbers = library_versions(torch)
    count = 0
    for name, functions in sorted(required_functions(torch, driver).items()):
        build_stand_in(out, name, functions, numbers)
        count += sum(len(names) for names in functions.values())
    (out / "count").write_text(f"{count}\n")


if __name__ == "__main__":
    main()
