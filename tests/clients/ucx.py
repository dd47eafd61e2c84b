# SPDX-License-Identifier: MIT
"""UCX's wheel on memory of xseg, on the simulated driver: ucx.py ROOT LIBXSEG SIMULATOR COMPILER...

.ci/setup --ucx installs the wheel in .deps/ucx.  The test compiles ucx.c, which documents the checks, and a replacement of
NVIDIA's management library, which UCX's module for CUDA requires.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT, LIBRARY, SIMULATOR = map(pathlib.Path, sys.argv[1:4])
COMPILER = sys.argv[4:]
SKIPPED = 77
# Output of ucx.c, and of ucx_info for the module of CUDA.
EXPECTED = ["ucx detects 20 MiB from byte 0 on, no dma-buf", "ucx detects 200 MiB from byte 0 on, a dma-buf",
            "ucx registers 200 MiB, with a key", "ucx sends 3145745 bytes"]
DOMAINS = ["# Memory domain: cuda_cpy", "# Memory domain: cuda_ipc", "cuda (access,alloc,reg,detect,dmabuf)"]


def fail(*lines):
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(1)


def run(command, **variables):
    process = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                             stdin=subprocess.DEVNULL, timeout=120, env={**os.environ, **variables})
    if process.returncode != 0:
        fail(" ".join(map(str, command)), f"status {process.returncode}", process.stdout)
    return process.stdout


def expect(output, expected):
    missing = [words for words in expected if words not in output]
    if missing:
        fail("missing:", *missing, "output:", output)


def main():
    ucx = ROOT / ".deps/ucx" / sys.implementation.cache_tag / "libucx"
    if not ucx.exists():
        print("UCX is not installed; run .ci/setup --ucx")
        sys.exit(SKIPPED)
    if re.search(rb"__[at]san_init", SIMULATOR.read_bytes()):
        print("UCX cannot load a library that is built with a sanitizer")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "libcuda.so.1").symlink_to(SIMULATOR)
        run([*COMPILER, "-shared", "-fPIC", "-D_GNU_SOURCE", "-w", f"-I{ROOT}", "-Wl,-soname,libnvidia-ml.so.1",
             ROOT / "tests/support/cudart/nvml.c", "-o", folder / "libnvidia-ml.so.1", "-ldl"])
        run([*COMPILER, "-std=gnu11", "-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror",
             f"-I{ROOT / 'include'}", "-isystem", ucx / "include",
             ROOT / "tests/clients/ucx.c", "-o", folder / "ucx", f"-L{ucx / 'lib'}", "-lucp", "-luct", "-lucs", LIBRARY,
             "-Wl,--no-as-needed", folder / "libcuda.so.1", "-ldl"])
        variables = {"LD_LIBRARY_PATH": f"{folder}:{ucx / 'lib'}:{LIBRARY.parent}", "UCX_MODULE_DIR": str(ucx / "lib/ucx"),
                     "XSEG_DRIVER": str(folder / "libcuda.so.1"), "XSEG_SIM_BYTES": "1"}
        (ucx / "bin/ucx_info").chmod(0o755)
        expect(run([ucx / "bin/ucx_info", "-d"], **variables), DOMAINS)
        output = run([folder / "ucx"], **variables)
        expect(output, EXPECTED)
        if " WARN " in output or " ERROR " in output:
            fail("UCX prints warnings or errors:", output)


if __name__ == "__main__":
    main()
