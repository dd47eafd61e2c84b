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
    """Device memory that Allocator.allocate() or Pool.allocate() gave.

    It is freed by free(), at the end of a with statement, or when nobody refers to it.  To other libraries it is an
    array of bytes: it has __cuda_array_interface__ and DLPack, so cupy.asarray(block), torch.from_dlpack(block) and
    numba.cuda.as_cuda_array(block) take it as it is, and hold it.

    Threads: any, but free() must come once, and not beside another call on the block.
    """

    def __init__(self, allocator: "Allocator", pointer: int, size: int, device: int, stream: int) -> None:
        """Made by allocate()."""
        self._allocator = allocator
        self._live: List[int] = [pointer]  # popped by whoever frees it
        self._exports: Set[int] = set()  # DLPack tensors of it that others hold
        #: Bytes that were asked for.
        self.size = size
        #: CUDA ordinal.
        self.device = device
        #: The stream that its memory is ordered on, a number.
        self.stream = stream

    @property
    def pointer(self) -> int:
        """The device address; 0 of an empty block, and of one that was freed."""
        return self._live[0] if self._live else 0

    def _address(self) -> int:
        """The device address; NotAllocatedError: the block was freed."""
        try:
            return self._live[0]
        except IndexError:
            raise NotAllocatedError(f"Block: block was freed, {self!r}; allocate another one") from None

    def free(self, after: Sequence[Handle] = ()) -> None:
        """Give the memory back to the allocator; again: nothing happens.

        A later request on the block's stream can reuse it immediately, unless record_stream() named other streams: then once their
        work has completed.  `after` are recorded events that the block waits for as well.

        BusyError: another library holds it by DLPack.  DriverError: an event could not be recorded; it is still live.
        Cost: no driver call without uses and events.
        """
        if self._exports:
            _dlpack.settle()
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
        """Say that work on another stream uses the block (PyTorch's record_stream)."""
        _library.call("xseg_record_stream", self._allocator.handle, self._address(), handle(stream))

    def info(self) -> _records.BlockInfo:
        """What the allocator knows of it, and what is free beside it."""
        return self._allocator.block_at(self._address())

    def pin(self) -> None:
        """Keep the memory beneath it where it is until unpin(); pins are counted."""
        _library.call("xseg_pin", self._allocator.handle, self._address(), self.size)

    def unpin(self) -> None:
        """Take one pin back."""
        _library.call("xseg_unpin", self._allocator.handle, self._address(), self.size)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """The block as an array of bytes, version 3; its contents are ordered on the block's stream.  NotAllocatedError: it was freed."""
        return {"shape": (self.size,), "typestr": "|u1", "data": (self._address(), False), "version": 3, "strides": None,
                "stream": self.stream or _dlpack.LEGACY}

    def __dlpack_device__(self) -> Tuple[int, int]:
        """kDLCUDA and the device's number."""
        return _dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule with the block as a tensor of bytes.

        `stream` is the consumer's: it is made to wait for what is queued on the block's stream, and noted as a use; -1:
        neither; None: the legacy default stream.  BufferError: a copy is asked for, or another device.  NotAllocatedError: it was freed.
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
        """Nobody hears of a failure here: the block may be in a forked child, or the allocator closed."""
        if getattr(self, "_live", None) and self._allocator.handle:
            _load().xseg_free(self._allocator.handle, self._live.pop())

    def __repr__(self) -> str:
        state = f"0x{self.pointer:x}" if self._live else "freed"
        return f"<xseg.Block {state} of {self.size} bytes on device {self.device}>"


def allocate(allocator: "Allocator", size: int, device: int, stream: Handle, pool: Optional[int], alignment: int,
             zeroed: bool, user: int) -> Block:
    """The allocation behind Allocator.allocate() and Pool.allocate()."""
    on, pointer = handle(stream), c_void_p()
    if type(size) is not int or type(device) is not int:  # pylint: disable=unidiomatic-typecheck
        # Before the call: a conversion that fails after it would lose the memory.
        size, device = integer(size, c_size_t, "xseg_alloc: size"), integer(device, c_int, "xseg_alloc: device")
    # Whatever equals 0 and is no integer is rejected as a member of the structure.
    if pool is None and not zeroed and alignment == user == 0 and type(alignment) is type(user) is int:  # pylint: disable=unidiomatic-typecheck
        _library.call("xseg_alloc", allocator.handle, device, size, on, ctypes.byref(pointer))
    else:
        request = _records.structure(_structs.xseg_request, device=device, bytes=size, stream=on, pool=pool or 0,
                                     alignment=alignment, zeroed=zeroed, user=user)
        _library.call("xseg_alloc_with", allocator.handle, ctypes.byref(request), ctypes.byref(pointer))
    return Block(allocator, pointer.value or 0, size, device, on)
