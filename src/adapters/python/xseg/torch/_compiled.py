# SPDX-License-Identifier: MIT
"""Selects the compiled adapter of the wheel that matches the installed PyTorch.

compiled/torch-MINOR-abiN.so is for the releases of one minor version of PyTorch and one C++ ABI.  The version string is not
sufficient: torch-MINOR-abiN.json has the table of virtual methods of the adapter, which must be that of the loaded PyTorch.
"""
import ctypes
import json
import pathlib
import re
from typing import Any, Dict, List, Optional

HERE = pathlib.Path(__file__).resolve().parent
# The virtual table of an exported class of PyTorch that implements the interface.
TABLE = "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE"
HEADER_WORDS = 2  # words of a table before the first method: offset to top, type information


class _DlInfo(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]


class _Symbol(ctypes.Structure):
    """Elf64_Sym of elf.h."""

    _fields_ = [("name", ctypes.c_uint32), ("info", ctypes.c_ubyte), ("other", ctypes.c_ubyte), ("section", ctypes.c_uint16),
                ("value", ctypes.c_uint64), ("size", ctypes.c_uint64)]


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(library, name))


def _words(address: int) -> List[int]:
    """Get the words of the variable at an address, whose symbol has the size."""
    info, symbol, with_symbol = _DlInfo(), ctypes.POINTER(_Symbol)(), 1
    if not ctypes.CDLL(None).dladdr1(ctypes.c_void_p(address), ctypes.byref(info), ctypes.byref(symbol), with_symbol):
        return []
    return list((ctypes.c_uint64 * (symbol.contents.size // 8)).from_address(address))


def _has_table(library: ctypes.CDLL, methods: List[str]) -> bool:
    """Get whether PyTorch's table has these methods in this order; "" is a method without exported name."""
    try:
        words = _words(_address(library, TABLE))[HEADER_WORDS:]
        return len(words) == len(methods) and all(word == _address(library, name) for word, name in zip(words, methods) if name)
    except (AttributeError, ValueError):  # no dladdr1(), or no such symbol
        return False


def about(adapter: pathlib.Path) -> Dict[str, Any]:
    """Get the description of an adapter: `methods`, and `uncovered`, the methods of PyTorch that it does not implement."""
    found: Dict[str, Any] = json.loads(adapter.with_suffix(".json").read_text(encoding="utf-8"))
    return found


def find(torch_folder: pathlib.Path, version: str, is_cxx11: bool) -> Optional[pathlib.Path]:
    """Get the matching adapter, or None."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+[\w.]+)?", version)
    adapter = HERE / f"compiled/torch-{release[1]}-abi{int(is_cxx11)}.so" if release else None
    if adapter is None or not adapter.exists():
        return None
    try:
        is_match = _has_table(ctypes.CDLL(str(torch_folder / "lib/libtorch_cuda.so")), about(adapter)["methods"])
    except (OSError, ValueError, KeyError):
        return None
    return adapter if is_match else None
