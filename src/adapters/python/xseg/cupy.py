# SPDX-License-Identifier: MIT
"""CuPy's device memory from xseg.

    import cupy, xseg.cupy
    xseg.cupy.install()                 # or cupy.cuda.set_allocator(xseg.cupy.function(allocator))

An array's memory is ordered on the stream that is current as it is made, as with CuPy's own pool, so what holds there holds
here: use an array on another stream only with an event between.  Before a stream is destroyed, call
xseg.cupy.allocator().stream_retire(stream).
"""
from typing import Any, Callable, Optional

import cupy

from xseg._allocator import Allocator
from xseg._allocator import open as open_allocator

__all__ = ["allocator", "function", "install"]

_chosen: Optional[Allocator] = None


def allocator() -> Allocator:
    """The allocator behind CuPy: what install() was given, else one that is opened now as the environment says."""
    global _chosen  # pylint: disable=global-statement
    if _chosen is None:
        _chosen = open_allocator()
    return _chosen


def function(chosen: Allocator) -> Callable[[int], Any]:
    """A function for cupy.cuda.set_allocator() or cupy.cuda.using_allocator().

    A block is freed with the last array on it.  Errors are those of xseg: NoMemoryError is a MemoryError, as CuPy's.
    """

    def allocate(size: int) -> Any:
        """Device memory on the current device, ordered on its current stream."""
        device = cupy.cuda.runtime.getDevice()
        block = chosen.allocate(size, device=device, stream=cupy.cuda.get_current_stream().ptr)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.pointer, size, block, device), 0)

    return allocate


def install(chosen: Optional[Allocator] = None) -> None:
    """Have CuPy take device memory from an allocator; None: as allocator() says.

    Arrays that are there keep their memory.  cupy.cuda.set_allocator(None) undoes it.
    """
    global _chosen  # pylint: disable=global-statement
    _chosen = chosen or allocator()
    cupy.cuda.set_allocator(function(_chosen))
