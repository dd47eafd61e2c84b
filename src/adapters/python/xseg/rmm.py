# SPDX-License-Identifier: MIT
"""Device memory of RMM from xseg: a resource for cuDF, cuML and other libraries that use RMM.

    import rmm, xseg.rmm
    rmm.mr.set_current_device_resource(xseg.rmm.resource())

The stream of the allocation orders the memory.  Memory that is freed on another stream is pending until the work of that stream has
completed.  The module reads the handle of a stream by __cuda_stream__(), which requires RMM 25.02.
"""
from typing import Any, Dict, List, Optional

import rmm

from xseg._allocator import Allocator
from xseg._allocator import open as open_allocator
from xseg._block import Block
from xseg._streams import handle

__all__ = ["resource"]

ALIGNED = 512  # alignment of every block
# Blocks whose last use could not be recorded: work may still use their memory, so it is never freed unless RMM deallocates it again.
_unordered: List[Block] = []


def resource(allocator: Optional[Allocator] = None, device: int = 0) -> Any:
    """Create an rmm.mr.CallbackMemoryResource for one device.

    None opens an allocator with the configuration of the environment.  The resource keeps a reference to the allocator.
    """
    source = allocator or open_allocator()
    blocks: Dict[int, Block] = {}

    def allocate(*arguments: Any) -> int:
        """Allocate.  RMM passes size and stream; later versions pass stream, size and alignment."""
        size, stream, *_ = arguments if isinstance(arguments[0], int) else (arguments[1], arguments[0])
        alignment = 0 if len(arguments) < 3 or arguments[2] <= ALIGNED else arguments[2]
        block = source.allocate(size, device=device, stream=handle(stream), alignment=alignment)
        blocks[block.pointer] = block
        return block.pointer

    def deallocate(*arguments: Any) -> None:
        """Free in the order of a stream.  RMM passes pointer, size and stream; later versions pass stream, pointer, ...

        If the stream or the free is rejected, the block stays allocated, and RMM can deallocate it again.
        """
        pointer, stream = (arguments[0], arguments[2]) if isinstance(arguments[0], int) else (arguments[1], arguments[0])
        block = blocks.pop(pointer, None)
        if block is None:
            return
        try:
            if block.pointer:
                block.record_stream(stream)
            block.free()
        except BaseException:
            blocks[pointer] = block
            if block not in _unordered:
                _unordered.append(block)
            raise
        if block in _unordered:
            _unordered.remove(block)

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
