# SPDX-License-Identifier: MIT
"""Locations of libxseg.so and its headers, and calls of its functions."""
import ctypes
import functools
import os
import pathlib
import platform
import sys
from typing import Any, List, Optional, Tuple

from xseg._arguments import LIMITS, converted
from xseg._errors import ArgumentTypeError, UnsupportedError, error
from xseg._functions import FUNCTIONS

HERE = pathlib.Path(__file__).resolve().parent
MACHINES = {b"\x3e\0": "x86_64", b"\xb7\0": "aarch64"}  # e_machine of an ELF file
OLDEST_GLIBC = (2, 28)  # of the wheels, manylinux_2_28
SIMULATORS = ("libxseg-sim.so", "libxseg-sim.so.0")


def path() -> str:
    """Get the path of libxseg.so: XSEG_LIBRARY of the environment, the library of the wheel, or that of the system.

    ImportError: the variable is not set, and neither the wheel nor the system has the library.
    """
    configured = os.environ.get("XSEG_LIBRARY")
    if configured:
        return configured
    wheel_library = HERE / "lib/libxseg.so.0"
    # In a Debian system this package is in /usr/lib/python3/dist-packages, and the library in a directory of the architecture.
    for found in (wheel_library, HERE.parents[2] / getattr(sys.implementation, "_multiarch", "") / "libxseg.so.0"):
        if found.exists():
            return str(found)
    raise ImportError(f"xseg: library not found, {wheel_library}; install the wheel of xseg, or set XSEG_LIBRARY to the path of libxseg.so")


def include() -> str:
    """Get the directory that contains xseg/xseg.h: that of the wheel, of the source tree, or of the system.

    ImportError: no directory contains the headers.
    """
    for folder in (HERE / "include", *(parent / "include" for parent in HERE.parents[:4])):
        if (folder / "xseg/xseg.h").exists():
            return str(folder)
    raise ImportError(f"xseg: headers not found for the package, {HERE}; install the wheel of xseg, or the system's package libxseg-dev")


def simulator() -> str:
    """Get the path of the simulated driver, for XSEG_DRIVER or the argument `driver` of xseg.open().

    The simulated driver is in the directory of libxseg.so.  ImportError: it does not exist.
    """
    found = pathlib.Path(path()).resolve().parent / "libxseg-sim.so.0"
    if not found.exists():
        raise ImportError(f"xseg.simulator: simulated driver not found, {found}; install a build of xseg that includes the simulator")
    return str(found)


def ipc() -> Optional[str]:
    """Get the path of libxseg-ipc.so, which is in the directory of libxseg.so, also in a build folder; None: it does not exist."""
    folder = pathlib.Path(path()).resolve().parent
    for found in (folder / "libxseg-ipc.so", folder / "src/adapters/ipc/libxseg-ipc.so"):
        if found.exists():
            return str(found)
    return None


def load_ipc() -> None:
    """Load libxseg-ipc.so for all libraries that are loaded later, unless LD_PRELOAD has loaded it.

    The dynamic linker finds its functions before those of the CUDA runtime only if the runtime is loaded later.
    """
    if hasattr(ctypes.CDLL(None), "xseg_ipc_attach"):
        return
    found = ipc()
    if found:
        ctypes.CDLL(found, mode=ctypes.RTLD_GLOBAL)


def driver(name: str) -> str:
    """Get the argument of dlopen() for a driver library: the name of the simulated driver becomes a path in the directory of
    libxseg.so, since the dynamic loader does not search the directory of the wheel.
    """
    found = pathlib.Path(path()).resolve().parent / SIMULATORS[-1] if name in SIMULATORS else None
    return str(found) if found and found.exists() else name


def _glibc() -> str:
    """Get the version of glibc; "" for another C library."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc ", "")
    except (AttributeError, OSError, ValueError):
        return ""


def _explain_load_error(library_path: str) -> str:
    """Explain why a library cannot be loaded on this host, and which one to install; "": unknown."""
    try:
        with open(library_path, "rb") as file:
            header = file.read(20)
    except OSError:
        return ""
    built_for, machine, version = MACHINES.get(header[18:20], ""), platform.machine(), _glibc()
    if header[:4] == b"\x7fELF" and built_for and built_for != machine:
        return f"built for {built_for}, but the CPU is {machine}; install the wheel of xseg whose name ends in {machine}.whl"
    if not version:
        return ("built for glibc, but the system has another C library, such as musl; use an image with glibc (Debian, Ubuntu, "
                "Fedora, RHEL)")
    if tuple(map(int, version.split(".")[:2])) < OLDEST_GLIBC:
        return (f"built for glibc {'.'.join(map(str, OLDEST_GLIBC))} or newer, but the system has {version}; use Debian 10, "
                "Ubuntu 20.04, RHEL 8 or newer")
    return ""


class Owner:
    """Base class of objects that own a resource of the library: a copy would release the resource twice."""

    def __reduce_ex__(self, _: Any) -> Any:
        """Reject copy and pickle."""
        raise ArgumentTypeError(f"{type(self).__name__}: cannot be copied or pickled because it owns memory of this process, {self!r}")


@functools.lru_cache(maxsize=None)
def load() -> ctypes.CDLL:
    """Load libxseg.so once and declare its functions.  The library stays loaded.

    ImportError: the library does not exist or cannot be loaded.
    """
    library_path = path()
    if os.environ.get("XSEG_DRIVER") in SIMULATORS:
        os.environ["XSEG_DRIVER"] = driver(os.environ["XSEG_DRIVER"])
    try:
        library = ctypes.CDLL(library_path)
    except OSError as failure:
        raise ImportError(f"xseg: cannot load the library, {library_path}: {_explain_load_error(library_path) or failure}") from failure
    for name, (result, arguments, _) in FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            setattr(library, name, functools.partial(_reject_missing, library_path, name))
            continue
        function.restype, function.argtypes = result, arguments
    return library


def _reject_missing(library_path: str, name: str, *_: Any) -> None:
    """Replace a function that an older library does not have."""
    raise UnsupportedError(f"{name}: function not found in the library, {library_path}; install the library and the Python package in one version")


def error_text() -> str:
    """Get the error message of the calling thread's last failed call; "" if no call has failed."""
    library = load()
    text = ctypes.create_string_buffer(library.xseg_error_message(None, 0) + 1)
    library.xseg_error_message(text, len(text))
    return text.value.decode(errors="replace")


def _conversions(function: str) -> List[Tuple[int, int, int, Any, str]]:
    """List the arguments of a function that ctypes would truncate: index, minimum, maximum, type, and name in error messages.

    The handle in the first argument is omitted, since the library has returned it.
    """
    _, kinds, names = FUNCTIONS[function]
    return [(index, *LIMITS.get(kind, (1, 0)), kind, f"{function}: {name}") for index, (kind, name) in enumerate(zip(kinds, names.split()))
            if kind is ctypes.c_char_p or kind in LIMITS and (index, kind) != (0, ctypes.c_void_p)]


_CONVERSIONS = {function: _conversions(function) for function in FUNCTIONS}


def call(function: str, *arguments: Any) -> None:
    """Call a function that returns a status, and raise the exception of the status unless it is XSEG_OK.

    ArgumentError: an argument does not fit the type of its parameter; the function was not called.
    """
    for index, low, high, kind, parameter in _CONVERSIONS[function]:
        value = arguments[index]
        if type(value) is not int or not low <= value <= high:  # pylint: disable=unidiomatic-typecheck
            arguments = (*arguments[:index], converted(value, kind, parameter), *arguments[index + 1:])
    status = getattr(load(), function)(*arguments)
    if status:
        raise error(status, error_text())


def stack_method(handle: int) -> str:
    """Get the method by which an allocator records call stacks: "libunwind", "frame records" or "backtrace"; "": it records none, or
    the library is older.
    """
    function = load().xseg_history_stack_method
    method = None if isinstance(function, functools.partial) else function(handle)
    return method.decode() if method else ""
