# SPDX-License-Identifier: MIT
"""RMM's device memory from xseg: a resource for cuDF, cuML and whatever else takes one.

    import rmm, xseg.rmm
    rmm.mr.set_current_device_resource(xseg.rmm.resource())

Memory is ordered on the stream that it is asked for; what is freed on another stream waits for that, too.  RMM's streams
say their handle by __cuda_stream__(), which RMM has since 25.02.
"""
from typing import Any, Dict, List, Optional

import rmm

from xseg._allocator import Allocator
from xseg._allocator import open as open_allocator
from xseg._block import Block
from xseg._streams import handle

__all__ = ["resource"]

ALIGNED = 512  # that much every block is
# Blocks whose last use could not be recorded: work may still use their memory, so it is never freed unless RMM deallocates it again.
_unordered: List[Block] = []


def resource(allocator: Optional[Allocator] = None, device: int = 0) -> Any:
    """An rmm.mr.CallbackMemoryResource for one device.

    None opens an allocator as the environment says.  It stays open as long as the resource is there.
    """
    source = allocator or open_allocator()
    blocks: Dict[int, Block] = {}

    def allocate(*arguments: Any) -> int:
        """What RMM calls for memory: with size and stream, later versions with stream, size and alignment."""
        size, stream, *_ = arguments if isinstance(arguments[0], int) else (arguments[1], arguments[0])
        alignment = 0 if len(arguments) < 3 or arguments[2] <= ALIGNED else arguments[2]
        block = source.allocate(size, device=device, stream=handle(stream), alignment=alignment)
        blocks[block.pointer] = block
        return block.pointer

    def deallocate(*arguments: Any) -> None:
        """What RMM calls when work on its stream is the last: with pointer, size and stream, or stream, pointer, ...

        If the stream or the free is rejected, the block stays allocated, and RMM may deallocate it again.
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
