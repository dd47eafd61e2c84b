# SPDX-License-Identifier: MIT
"""Elastic ranges: addresses beneath which memory comes and goes by the page."""
import contextlib
import ctypes
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple, Type

from xseg import _dlpack, _driver, _library, _records, _structs
from xseg._arguments import integer
from xseg._errors import ArgumentError, ArgumentTypeError, BusyError, Error
from xseg._pool import Pool
from xseg._streams import Handle, handle

if TYPE_CHECKING:
    from xseg._allocator import Allocator


class RangeView(_library.Owner):
    """A part of a range as an array of bytes of other libraries; made by Range.view(), and it holds the range.

    It says where the bytes lie, not that there is memory: granules may be touched from their commit() to their
    decommit().  These order the work of streams, so no stream is made to wait for another as the view is taken.
    """

    def __init__(self, whole: "Range", offset: int, size: int) -> None:
        """Made by Range.view()."""
        self._range = whole
        self._exports = whole._exports  # the range is held by all DLPack tensors of its parts
        #: From the start of the range.
        self.offset = offset
        #: Bytes.
        self.size = size
        #: CUDA ordinal.
        self.device = whole.device

    @property
    def pointer(self) -> int:
        """The device address; ArgumentError: the range was released."""
        self._range.alive()
        return self._range.address + self.offset

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """The part as an array of bytes, version 3."""
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "version": 3, "strides": None,
                "stream": None}

    def __dlpack_device__(self) -> Tuple[int, int]:
        """kDLCUDA and the device's number."""
        return _dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule with the part as a tensor of bytes, whatever the consumer's `stream`.

        BufferError: a copy is asked for, or another device.
        """
        del stream
        _dlpack.check(self.device, dl_device, copy)
        return _dlpack.capsule(self, max_version)

    def __repr__(self) -> str:
        return f"<xseg.RangeView of {self.size} bytes at offset {self.offset} of {self._range!r}>"


class Range(_library.Owner):
    """Addresses of one's own, see xseg/range.h.  Made by Allocator.range().

    Offsets and sizes are in bytes, multiples of `page_bytes`.  Released by release(), at the end of a with statement, or
    when nobody refers to it, which its views do.  In the last case alone, what is committed is given up behind all streams
    that memory was committed on, which must be there still, and waited for.

    Threads: any, but release() must come once, and not beside another call on the range.
    """

    def __init__(self, allocator: "Allocator", size: int, device: int, pool: Optional[Pool], options: Any) -> None:
        """Made by Allocator.range()."""
        number = ctypes.c_void_p()
        self._held: List[int] = []  # popped by whoever releases it
        _library.call("xseg_range_reserve", allocator.handle, device, size, ctypes.byref(options), ctypes.byref(number))
        self._allocator, self._pool, self._names_pool = allocator, pool, pool is not None
        self._held.append(number.value or 0)
        self._exports: Set[int] = set()  # DLPack tensors of its parts that others hold
        self._streams: Set[int] = set()  # that memory was committed on
        info = self.info()
        self._base = info.base
        #: Bytes of addresses.
        self.size = info.bytes
        #: Bytes of a granule.
        self.page_bytes = info.page_bytes
        #: CUDA ordinal.
        self.device = info.device
        self._committed = bytearray(self.size // self.page_bytes)  # 1: the granule is, as far as this object has done it

    @property
    def handle(self) -> int:
        """The library's handle, a number; 0 once the range is released, or the allocator closed: it ends with that."""
        return self._held[0] if self._held and self._allocator.handle else 0

    def alive(self) -> int:
        """The handle; ArgumentError without one."""
        if not self.handle:
            raise ArgumentError("Range: range was released, or its allocator was closed; reserve another one")
        return self.handle

    @property
    def address(self) -> int:
        """The device address at which it begins; 0 once it is released."""
        return self._base if self.handle else 0

    @property
    def pool(self) -> Pool:
        """The pool that it belongs to: the one that was named, or its own, which ends with it."""
        if self._pool is None:
            number = self.info().pool
            _library.call("xseg_pool_retain", number)
            self._pool = Pool(self._allocator, number, self.device)
        return self._pool

    def commit(self, offset: int, size: int, stream: Handle = None) -> None:
        """Have memory beneath granules, for work on a stream; all or nothing.

        New memory contains anything.  NoMemoryError, LimitError, which are MemoryErrors: nothing has changed.  ArgumentError: a
        granule is committed already.
        Cost: none where all granules leave with this stream; see xseg_range_commit() for the rest.
        """
        on = self._number(stream)
        self._streams.add(on)  # before memory comes
        self._change("xseg_range_commit", 1, offset, size, on)

    def decommit(self, offset: int, size: int, stream: Handle = None) -> None:
        """Give memory up once a stream has passed what is queued on it now; of other streams the caller has made it wait.

        Cost: one event record; see xseg_range_decommit() for the rest.
        """
        self._change("xseg_range_decommit", 0, offset, size, self._number(stream))

    def prepare(self, size: int) -> None:
        """Make pages ahead until so many bytes are prepared, so that a commit only maps them.

        Meanwhile other threads run, and commit.  Cost: one create a page.
        """
        _library.call("xseg_range_prepare", self.alive(), size)

    def set_quota(self, size: int) -> None:
        """Promise it so much physical memory: what it does not have of that counts as taken for everything else; 0: none."""
        _library.call("xseg_range_set_quota", self.alive(), size)

    def hold(self, offset: int, size: int) -> None:
        """Let granules keep their page over a decommit, for a graph that uses their addresses; counted."""
        _library.call("xseg_range_hold", self.alive(), offset, size)

    def unhold(self, offset: int, size: int, stream: Handle = None) -> None:
        """Take a hold() back; granules that were decommitted meanwhile go once the stream has passed."""
        _library.call("xseg_range_unhold", self.alive(), offset, size, self._number(stream))

    def alias(self, offset: int, size: int, source: "Range", source_offset: int = 0) -> None:
        """Map the pages of committed granules of `source`, this range or another one, at granules without memory as well.

        These are committed then, and each place is decommitted by itself.  Cost: one map a page, and no memory.
        """
        if not isinstance(source, Range):
            raise ArgumentTypeError(f"Range.alias: source is not an xseg.Range, {source!r}; pass one")
        self._change("xseg_range_alias", 1, offset, size, source.alive(), source_offset)
        self._streams |= source._streams  # whose work may be on the pages

    def info(self) -> _records.RangeInfo:
        """What the range is, and has.  Cost: no driver call."""
        out = _records.structure(_structs.xseg_range_info)
        _library.call("xseg_range_query", self.alive(), ctypes.byref(out))
        return _records.record(_records.RangeInfo, out)

    def view(self, offset: int = 0, size: Optional[int] = None) -> RangeView:
        """A part of it, from any byte to any other, as an array for other libraries; None: to the end.

        There need be no memory beneath the part; where there is none, nothing may touch it.
        """
        self.alive()
        offset = integer(offset, ctypes.c_uint64, "Range.view: offset")
        size = max(self.size - offset, 0) if size is None else integer(size, ctypes.c_uint64, "Range.view: size")
        if offset + size > self.size:
            raise ArgumentError(f"Range.view: view exceeds the range of {self.size} bytes, {size} bytes at offset {offset}")
        return RangeView(self, offset, size)

    def release(self) -> None:
        """Give the addresses back; again: nothing happens.

        BusyError: memory is committed, held, pinned, exported or registered, or another library holds a part by DLPack.
        Cost: waits for the streams behind which memory leaves.
        """
        if self._exports:
            _dlpack.settle()
        if self._exports:
            raise BusyError(f"Range.release: range is exported by DLPack, {self!r}; delete the arrays that use its memory first")
        try:
            number = self._held.pop()
        except IndexError:
            return
        try:
            if self._allocator.handle:
                _library.call("xseg_range_release", number)
        except BaseException:
            self._held.append(number)
            raise
        if self._pool is not None and not self._names_pool:
            self._pool.release()

    def _number(self, stream: Handle) -> int:
        """The stream of a call."""
        return handle(stream)

    def _change(self, function: str, mark: int, offset: int, size: int, *others: Any) -> None:
        """Commit granules (mark 1) or decommit them (0) by a function of the library, and record that."""
        # Before the call: a conversion that fails after it would leave committed granules without a record.
        offset = integer(offset, ctypes.c_uint64, f"{function}: offset")
        size = integer(size, ctypes.c_uint64, f"{function}: size")
        _library.call(function, self.alive(), offset, size, *others)
        first, count = offset // self.page_bytes, size // self.page_bytes
        self._committed[first:first + count] = bytes((mark,)) * count

    def _give_up(self) -> None:
        """Decommit what is committed, behind all streams that it was committed on."""
        behind, *others = self._streams or {0}
        for other in others:
            _driver.wait(self._allocator.driver, self.device, other, behind, is_unasked=True)
        first = self._committed.find(1)
        while first >= 0:
            end = self._committed.find(0, first)
            count = (end if end >= 0 else len(self._committed)) - first
            self.decommit(first * self.page_bytes, count * self.page_bytes, behind)
            first = self._committed.find(1, first)

    def __enter__(self) -> "Range":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        try:
            self.release()
        except BusyError:
            if kind is None:  # else the first exception says more
                raise

    def __del__(self) -> None:
        """Nobody hears of a failure here, such as in a forked child, or while a stream is captured: the library keeps it then."""
        if not getattr(self, "_held", None) or self._exports:
            return
        with contextlib.suppress(Error):
            try:
                self.release()
            except BusyError:
                self._give_up()
                self.release()

    def __repr__(self) -> str:
        state = f"0x{self.address:x}" if self.handle else "released"
        return f"<xseg.Range {state} of {self.size} bytes on device {self.device}>"


def reserve(kind: Type[Range], allocator: "Allocator", size: int, device: int, pool: Optional[Pool], **options: Any) -> Range:
    """The reservation behind Allocator.range(); options are members of struct xseg_range_options."""
    made = _records.structure(_structs.xseg_range_options, pool=Pool.number_of(pool) or 0, **options)
    return kind(allocator, size, device, pool, made)
