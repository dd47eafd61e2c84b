# SPDX-License-Identifier: MIT
"""Handles of streams and events of several libraries."""
import ctypes
import numbers
from typing import Any, Union

from xseg._arguments import integer
from xseg._errors import ArgumentTypeError

Handle = Union[int, None, Any]


def handle(one: Handle, kind: str = "stream") -> int:
    """Get the CUstream or CUevent of an object as an integer; None is 0, the legacy default stream.

    The function accepts integers, pointers of ctypes, objects with the method __cuda_stream__() (cuda.core), objects of PyTorch
    (cuda_stream, cuda_event), CuPy (ptr) and Numba (handle), and other objects with __int__() that are not numbers (cuda.bindings).
    ArgumentError: the handle does not fit a pointer.  For an object of another type the exception is a TypeError as well.
    """
    if one is None:
        return 0
    if type(one) is int and 0 <= one < 1 << 64:  # pylint: disable=unidiomatic-typecheck
        return one
    if isinstance(one, ctypes.c_void_p):
        return one.value or 0
    if isinstance(one, numbers.Number) or hasattr(one, "__index__"):
        return integer(one, ctypes.c_void_p, kind)
    if hasattr(one, "__cuda_stream__"):
        return integer(one.__cuda_stream__()[1], ctypes.c_void_p, kind)
    for name in (f"cuda_{kind}", "ptr", "handle"):
        if hasattr(one, name):
            return handle(getattr(one, name), kind)
    if hasattr(one, "__int__"):
        return integer(int(one), ctypes.c_void_p, kind)
    raise ArgumentTypeError(f"{kind} is not a handle, {one!r}; pass an integer, or an object with __cuda_stream__(), cuda_{kind}, ptr "
                            "or handle")
