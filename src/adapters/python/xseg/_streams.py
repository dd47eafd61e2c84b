# SPDX-License-Identifier: MIT
"""Handles of streams and events, from whatever library they come."""
import ctypes
from typing import Any, Union

Handle = Union[int, None, Any]


def handle(one: Handle, kind: str = "stream") -> int:
    """The CUstream or CUevent of an object, as a number; 0, the legacy default stream, of None.

    Taken are numbers and what is one to int(), ctypes' pointers, what has the method __cuda_stream__() (cuda.core), and the objects of PyTorch
    (cuda_stream, cuda_event), CuPy (ptr) and Numba (handle).
    """
    if one is None:
        return 0
    if isinstance(one, int):
        return one
    if isinstance(one, ctypes.c_void_p):
        return one.value or 0
    if hasattr(one, "__cuda_stream__"):
        return int(one.__cuda_stream__()[1])
    for name in (f"cuda_{kind}", "ptr", "handle"):
        if hasattr(one, name):
            return handle(getattr(one, name), kind)
    if hasattr(one, "__int__"):
        return int(one)
    raise TypeError(f"{one!r} is no {kind}: a number, or an object with __cuda_stream__(), "
                    f"cuda_{kind}, ptr or handle is needed")
