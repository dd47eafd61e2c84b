# SPDX-License-Identifier: MIT
"""Device memory of CuPy from xseg.

    import cupy, xseg.cupy
    xseg.cupy.install()                 # or cupy.cuda.set_allocator(xseg.cupy.function(allocator))

The stream that is current when an array is created orders its memory, as in CuPy's own pool: another stream that uses the array must
wait for that stream by an event.  Before a stream is destroyed, call xseg.cupy.allocator().stream_retire(stream).
"""
from typing import Any, Callable, Optional

import cupy

from xseg._allocator import Allocator
from xseg._allocator import open as open_allocator

__all__ = ["allocator", "function", "install"]

_allocator: Optional[Allocator] = None


def allocator() -> Allocator:
    """Get the allocator of CuPy: the argument of install(), or an allocator that is opened with the configuration of the environment."""
    global _allocator  # pylint: disable=global-statement
    if _allocator is None:
        _allocator = open_allocator()
    return _allocator


def function(chosen: Allocator) -> Callable[[int], Any]:
    """Create a function for cupy.cuda.set_allocator() or cupy.cuda.using_allocator().

    A block is freed with the last array that uses it.  Exceptions are those of xseg: NoMemoryError is a MemoryError, as in CuPy.
    """

    def allocate(size: int) -> Any:
        """Allocate memory on the current device, in the order of the current stream."""
        device = cupy.cuda.runtime.getDevice()
        block = chosen.allocate(size, device=device, stream=cupy.cuda.get_current_stream().ptr)
        return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.pointer, size, block, device), 0)

    return allocate


def install(chosen: Optional[Allocator] = None) -> None:
    """Make CuPy allocate device memory from an allocator; None: allocator().

    Existing arrays keep their memory.  cupy.cuda.set_allocator(None) ends the use of xseg.
    """
    global _allocator  # pylint: disable=global-statement
    _allocator = chosen or allocator()
    cupy.cuda.set_allocator(function(_allocator))
