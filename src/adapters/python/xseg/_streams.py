# SPDX-License-Identifier: MIT
"""Handles of streams and events of several libraries."""
import ctypes
import numbers
from typing import Any, Union

from xseg._arguments import integer
from xseg._errors import ArgumentTypeError

Handle = Union[int, None, Any]


def handle(value: Handle, kind: str = "stream") -> int:
    """Get the CUstream or CUevent of an object as an integer; None is 0, the legacy default stream.

    The function accepts integers, pointers of ctypes, objects with the method __cuda_stream__() (cuda.core), objects of PyTorch
    (cuda_stream, cuda_event), CuPy (ptr) and Numba (handle), and other objects with __int__() that are not numbers (cuda.bindings).
    ArgumentError: the handle does not fit a pointer.  For an object of another type the exception is a TypeError as well.
    """
    if value is None:
        return 0
    if type(value) is int and 0 <= value < 1 << 64:  # pylint: disable=unidiomatic-typecheck
        return value
    if isinstance(value, ctypes.c_void_p):
        return value.value or 0
    if isinstance(value, numbers.Number) or hasattr(value, "__index__"):
        return integer(value, ctypes.c_void_p, kind)
    if hasattr(value, "__cuda_stream__"):
        return integer(value.__cuda_stream__()[1], ctypes.c_void_p, kind)
    for name in (f"cuda_{kind}", "ptr", "handle"):
        if hasattr(value, name):
            return handle(getattr(value, name), kind)
    if hasattr(value, "__int__"):
        return integer(int(value), ctypes.c_void_p, kind)
    raise ArgumentTypeError(f"{kind} is not a handle, {value!r}; pass an integer, or an object with __cuda_stream__(), cuda_{kind}, ptr "
                            "or handle")
