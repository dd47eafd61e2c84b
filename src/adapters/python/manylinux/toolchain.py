# SPDX-License-Identifier: MIT
"""Compilers for manylinux_2_28, for the architectures of PyTorch's wheels."""
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
PROCESSORS = ("x86_64", "aarch64")
#: Replaces an architecture: build for this host.
NATIVE = "native"
CROSS = """[binaries]
c = {compiler}
ar = '{processor}-linux-gnu-ar'
pkg-config = 'pkg-config'
[properties]
needs_exe_wrapper = true
pkg_config_libdir = '{parts}/lib/pkgconfig'
[built-in options]
c_args = {arguments}
c_link_args = ['-s', '-Wl,--gc-sections', '-Wl,-z,defs', '{libgcc}']
[host_machine]
system = 'linux'
cpu_family = '{processor}'
cpu = '{processor}'
endian = 'little'
"""


class Missing(Exception):
    """A tool is not installed; the message contains its name and how to install it."""


def compiler(processor):
    """Get the command of the C compiler, which also links objects of other languages."""
    if processor == NATIVE:
        return ["cc"]
    import ziglang  # pylint: disable=import-outside-toplevel
    return [str(HERE / "cc"), str(pathlib.Path(ziglang.__file__).resolve().parent), processor]


def cpp(processor):
    """Get the command of the C++ compiler, which only compiles."""
    return ["c++"] if processor == NATIVE else [f"{processor}-linux-gnu-g++"]


def check(processor):
    """Check that the compilers are installed."""
    for name in ("gcc", "g++"):
        if not shutil.which(f"{processor}-linux-gnu-{name}"):
            package = f"{name}-{processor.replace('_', '-')}-linux-gnu"
            raise Missing(f"{processor}-linux-gnu-{name}: compiler not found; run .ci/setup {package} as root, or install the package {package}")


def cross_file(folder, processor, parts, arguments):
    """Write Meson's cross file of the target.

    `parts` is the folder of the libraries of the target; `arguments` are additional arguments of the compiler.
    """
    path = pathlib.Path(folder, f"{processor}.ini")
    libgcc = subprocess.check_output([*cpp(processor), "-print-libgcc-file-name"], text=True).strip()
    path.write_text(CROSS.format(compiler=compiler(processor), processor=processor, parts=parts, libgcc=libgcc,
                                 arguments=arguments), encoding="utf-8")
    return path


def run(command, **more):
    """Run a command that must succeed."""
    subprocess.run([str(word) for word in command], check=True, **more)
