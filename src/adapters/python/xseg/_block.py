# SPDX-License-Identifier: MIT
"""A block of device memory."""
import ctypes
from ctypes import c_int, c_size_t, c_void_p
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Tuple, Type

from xseg import _dlpack, _driver, _library, _records, _structs
from xseg._arguments import integer
from xseg._errors import BusyError, NotAllocatedError
from xseg._streams import Handle, handle

if TYPE_CHECKING:
    from xseg._allocator import Allocator


class Block(_library.Owner):
    """A block of device memory that Allocator.allocate() or Pool.allocate() returned.

    free(), the end of a with statement, or the end of the last reference frees the block.  Other libraries use it as an
    array of bytes by __cuda_array_interface__ and DLPack: cupy.asarray(block), torch.from_dlpack(block) and
    numba.cuda.as_cuda_array(block) accept it and keep a reference to it.

    Threads: any; free() must not run concurrently with another call on the block.
    """

    def __init__(self, allocator: "Allocator", pointer: int, size: int, device: int, stream: int) -> None:
        """Created by allocate()."""
        self._allocator = allocator
        self._live: List[int] = [pointer]  # popped by the thread that frees it
        self._exports: Set[int] = set()  # addresses of DLPack tensors that refer to the block
        #: Requested size in bytes.
        self.size = size
        #: CUDA ordinal.
        self.device = device
        #: Stream that orders the block, an integer.
        self.stream = stream

    @property
    def pointer(self) -> int:
        """The device address; 0 for an empty block and after free()."""
        return self._live[0] if self._live else 0

    def _address(self) -> int:
        """Get the device address.  NotAllocatedError: the block was freed."""
        try:
            return self._live[0]
        except IndexError:
            raise NotAllocatedError(f"Block: block was freed, {self!r}; allocate another one") from None

    def free(self, after: Sequence[Handle] = ()) -> None:
        """Free the block.  A repeated call has no effect.

        A later request on the block's stream can reuse the block immediately.  If record_stream() named other streams, the
        block is pending until their work has completed.  With `after` it is pending until these recorded events have
        completed as well.

        BusyError: a DLPack tensor refers to the block.  DriverError: an event could not be recorded; the block stays live.
        Cost: no driver call without uses and events.
        """
        if self._exports:
            _dlpack.release_unconsumed()
        if self._exports:
            raise BusyError(f"Block.free: block is exported by DLPack, {self!r}; delete the arrays that use its memory first")
        try:
            pointer = self._live.pop()
        except IndexError:
            return
        try:
            if after:
                events = (c_void_p * len(after))(*(handle(event, "event") for event in after))
                _library.call("xseg_free_after", self._allocator.handle, pointer, events, len(after))
            else:
                _library.call("xseg_free", self._allocator.handle, pointer)
        except BaseException:
            self._live.append(pointer)
            raise

    def record_stream(self, stream: Handle) -> None:
        """Announce that work on another stream uses the block (PyTorch's record_stream)."""
        _library.call("xseg_record_stream", self._allocator.handle, self._address(), handle(stream))

    def info(self) -> _records.BlockInfo:
        """Query the block and the free memory next to it."""
        return self._allocator.block_at(self._address())

    def pin(self) -> None:
        """Pin the memory of the block until unpin(): its pages are not unmapped, moved or paused.  Pins are counted."""
        _library.call("xseg_pin", self._allocator.handle, self._address(), self.size)

    def unpin(self) -> None:
        """Release one pin of the block."""
        _library.call("xseg_unpin", self._allocator.handle, self._address(), self.size)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """The block as an array of bytes on the block's stream, version 3.  NotAllocatedError: the block was freed."""
        return {"shape": (self.size,), "typestr": "|u1", "data": (self._address(), False), "version": 3, "strides": None,
                "stream": self.stream or _dlpack.LEGACY}

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Get the pair of kDLCUDA and the CUDA ordinal."""
        return _dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """Export the block as a DLPack tensor of bytes.

        The stream of the consumer waits for the work that is queued on the block's stream, and is recorded as a use of the
        block.  A `stream` of -1 omits both; None is the legacy default stream.
        BufferError: a copy or another device is requested.  NotAllocatedError: the block was freed.
        """
        _dlpack.check(self.device, dl_device, copy)
        consumer = _dlpack.consumer(stream)
        if self._address() and consumer not in (_dlpack.NO_ORDER, self.stream or _dlpack.LEGACY):
            _driver.wait(self._allocator.driver, self.device, self.stream, consumer)
            self.record_stream(consumer)
        return _dlpack.capsule(self, max_version)

    def __enter__(self) -> "Block":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.free()

    def __del__(self, _load: Any = _library.load) -> None:  # modules may have ended before
        """Free the block.  A failure, such as in a forked child, is not reported."""
        if getattr(self, "_live", None) and self._allocator.handle:
            _load().xseg_free(self._allocator.handle, self._live.pop())

    def __repr__(self) -> str:
        state = f"0x{self.pointer:x}" if self._live else "freed"
        return f"<xseg.Block {state} of {self.size} bytes on device {self.device}>"


def allocate(allocator: "Allocator", size: int, device: int, stream: Handle, pool: Optional[int], alignment: int,
             zeroed: bool, user: int) -> Block:
    """Implement Allocator.allocate() and Pool.allocate()."""
    native_stream, pointer = handle(stream), c_void_p()
    if type(size) is not int or type(device) is not int:  # pylint: disable=unidiomatic-typecheck
        # Before the call: a conversion that fails after it would lose the memory.
        size, device = integer(size, c_size_t, "xseg_alloc: size"), integer(device, c_int, "xseg_alloc: device")
    # A value that equals 0 and is not an integer is rejected as a member of the structure.
    if pool is None and not zeroed and alignment == user == 0 and type(alignment) is type(user) is int:  # pylint: disable=unidiomatic-typecheck
        _library.call("xseg_alloc", allocator.handle, device, size, native_stream, ctypes.byref(pointer))
    else:
        request = _records.structure(_structs.xseg_request, device=device, bytes=size, stream=native_stream, pool=pool or 0,
                                     alignment=alignment, zeroed=zeroed, user=user)
        _library.call("xseg_alloc_with", allocator.handle, ctypes.byref(request), ctypes.byref(pointer))
    return Block(allocator, pointer.value or 0, size, device, native_stream)
