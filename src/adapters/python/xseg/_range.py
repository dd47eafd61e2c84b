# SPDX-License-Identifier: MIT
"""Elastic ranges: VA ranges whose pages the user commits and decommits."""
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
    """A part of a range, which other libraries use as an array of bytes.  Created by Range.view(); refers to the range.

    A view does not commit memory: only granules between their commit() and decommit() can be accessed.  These calls order
    the work of streams, so an export of a view makes no stream wait.
    """

    def __init__(self, source: "Range", offset: int, size: int) -> None:
        """Created by Range.view()."""
        self._range = source
        self._exports = source._exports  # all DLPack tensors of parts of the range
        #: Offset from the start of the range, in bytes.
        self.offset = offset
        #: Size in bytes.
        self.size = size
        #: CUDA ordinal.
        self.device = source.device

    @property
    def pointer(self) -> int:
        """The device address; ArgumentError: the range was released."""
        self._range.alive()
        return self._range.address + self.offset

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """The view as an array of bytes, version 3."""
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.pointer, False), "version": 3, "strides": None,
                "stream": None}

    def __dlpack_device__(self) -> Tuple[int, int]:
        """Get the pair of kDLCUDA and the CUDA ordinal."""
        return _dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """Export the view as a DLPack tensor of bytes.  `stream` has no effect.

        BufferError: a copy or another device is requested.
        """
        del stream
        _dlpack.check(self.device, dl_device, copy)
        return _dlpack.capsule(self, max_version)

    def __repr__(self) -> str:
        return f"<xseg.RangeView of {self.size} bytes at offset {self.offset} of {self._range!r}>"


class Range(_library.Owner):
    """An elastic range, see xseg/range.h.  Created by Allocator.range().

    Offsets and sizes are in bytes and multiples of `page_bytes`.  release(), the end of a with statement, or the end of the
    last reference releases the range; views refer to their range.  At the end of the last reference, committed granules are
    decommitted first, in the order of all streams on which memory was committed.  These streams must still exist, and the
    release waits for their work.

    Threads: any; release() must not run concurrently with another call on the range.
    """

    def __init__(self, allocator: "Allocator", size: int, device: int, pool: Optional[Pool], options: Any) -> None:
        """Created by Allocator.range()."""
        native_handle = ctypes.c_void_p()
        self._handles: List[int] = []  # popped by the thread that releases it
        _library.call("xseg_range_reserve", allocator.handle, device, size, ctypes.byref(options), ctypes.byref(native_handle))
        self._allocator, self._pool, self._names_pool = allocator, pool, pool is not None
        self._handles.append(native_handle.value or 0)
        self._exports: Set[int] = set()  # addresses of DLPack tensors that refer to parts of the range
        self._streams: Set[int] = set()  # streams on which memory was committed
        info = self.info()
        self._base = info.base
        #: Size in bytes.
        self.size = info.bytes
        #: Size of a granule in bytes.
        self.page_bytes = info.page_bytes
        #: CUDA ordinal.
        self.device = info.device
        self._committed = bytearray(self.size // self.page_bytes)  # 1: this object has committed the granule

    @property
    def handle(self) -> int:
        """Handle of the range in the library, an integer; 0 after release() or after the allocator was closed."""
        return self._handles[0] if self._handles and self._allocator.handle else 0

    def alive(self) -> int:
        """Get the handle.  ArgumentError: the range was released."""
        if not self.handle:
            raise ArgumentError("Range: range was released, or its allocator was closed; reserve another one")
        return self.handle

    @property
    def address(self) -> int:
        """Start address; 0 after release()."""
        return self._base if self.handle else 0

    @property
    def pool(self) -> Pool:
        """The pool of the range: the argument of Allocator.range(), or a new pool, which is released with the range."""
        if self._pool is None:
            native_handle = self.info().pool
            _library.call("xseg_pool_retain", native_handle)
            self._pool = Pool(self._allocator, native_handle, self.device)
        return self._pool

    def commit(self, offset: int, size: int, stream: Handle = None) -> None:
        """Commit granules for work on a stream: all of them or, after an error, none.

        New memory has undefined contents.  NoMemoryError and LimitError are subclasses of MemoryError.
        ArgumentError: a granule is already committed.
        Cost: no driver call if all granules are pending unmap on this stream; otherwise as xseg_range_commit().
        """
        native_stream = self._stream_handle(stream)
        self._streams.add(native_stream)  # before memory is mapped
        self._change("xseg_range_commit", 1, offset, size, native_stream)

    def decommit(self, offset: int, size: int, stream: Handle = None) -> None:
        """Decommit granules: their memory is unmapped when the work that is queued on the stream now has completed.

        The stream must already wait for all other streams that use the memory.
        Cost: one event record; later polls as in xseg_range_decommit().
        """
        self._change("xseg_range_decommit", 0, offset, size, self._stream_handle(stream))

    def prepare(self, size: int) -> None:
        """Create pages in advance until the range has `size` bytes of prepared pages, so that a commit only maps them.

        Other threads can commit during the call.  Cost: one create per page.
        """
        _library.call("xseg_range_prepare", self.alive(), size)

    def set_quota(self, size: int) -> None:
        """Reserve physical memory for the range without creating it.

        The unused part of the quota counts as memory in use for all other requests of the allocator on the device; 0 removes
        the quota.
        """
        _library.call("xseg_range_set_quota", self.alive(), size)

    def hold(self, offset: int, size: int) -> None:
        """Hold granules: they keep their pages over a decommit, for a graph that uses their addresses.  Holds are counted."""
        _library.call("xseg_range_hold", self.alive(), offset, size)

    def unhold(self, offset: int, size: int, stream: Handle = None) -> None:
        """Release one hold of each granule.

        Decommitted granules without further holds are unmapped when the work that is queued on the stream now has completed.
        """
        _library.call("xseg_range_unhold", self.alive(), offset, size, self._stream_handle(stream))

    def alias(self, offset: int, size: int, source: "Range", source_offset: int = 0) -> None:
        """Alias pages: map the pages of committed granules of `source` in unmapped granules of this range as well.

        `source` is this range or another one of the same pool.  The new granules are committed, and each granule is
        decommitted independently.  Cost: one map per page, and no physical memory.
        """
        if not isinstance(source, Range):
            raise ArgumentTypeError(f"Range.alias: source is not an xseg.Range, {source!r}; pass one")
        self._change("xseg_range_alias", 1, offset, size, source.alive(), source_offset)
        self._streams |= source._streams  # their work may use the pages

    def info(self) -> _records.RangeInfo:
        """Query the state of the range.  Cost: no driver call."""
        out = _records.structure(_structs.xseg_range_info)
        _library.call("xseg_range_query", self.alive(), ctypes.byref(out))
        return _records.record(_records.RangeInfo, out)

    def view(self, offset: int = 0, size: Optional[int] = None) -> RangeView:
        """Create a view of a part of the range, for use as an array by other libraries.

        `offset` and `size` need not be multiples of `page_bytes`; a `size` of None extends the view to the end of the range.
        The part may contain granules that are not committed, which must not be accessed.
        """
        self.alive()
        offset = integer(offset, ctypes.c_uint64, "Range.view: offset")
        size = max(self.size - offset, 0) if size is None else integer(size, ctypes.c_uint64, "Range.view: size")
        if offset + size > self.size:
            raise ArgumentError(f"Range.view: view exceeds the range of {self.size} bytes, {size} bytes at offset {offset}")
        return RangeView(self, offset, size)

    def release(self) -> None:
        """Release the addresses of the range.  A repeated call has no effect.

        BusyError: memory is committed, held, pinned, exported or registered, or a DLPack tensor refers to a part.
        Cost: synchronizes the streams of memory that is pending unmap.
        """
        if self._exports:
            _dlpack.release_unconsumed()
        if self._exports:
            raise BusyError(f"Range.release: range is exported by DLPack, {self!r}; delete the arrays that use its memory first")
        try:
            native_handle = self._handles.pop()
        except IndexError:
            return
        try:
            if self._allocator.handle:
                _library.call("xseg_range_release", native_handle)
        except BaseException:
            self._handles.append(native_handle)
            raise
        if self._pool is not None and not self._names_pool:
            self._pool.release()

    def _stream_handle(self, stream: Handle) -> int:
        """Get the handle of the stream of a call."""
        return handle(stream)

    def _change(self, function: str, is_committed: int, offset: int, size: int, *arguments: Any) -> None:
        """Commit granules (is_committed 1) or decommit them (0) by a function of the library, and record their state."""
        # Before the call: a conversion that fails after it would leave committed granules without a record.
        offset = integer(offset, ctypes.c_uint64, f"{function}: offset")
        size = integer(size, ctypes.c_uint64, f"{function}: size")
        _library.call(function, self.alive(), offset, size, *arguments)
        first, count = offset // self.page_bytes, size // self.page_bytes
        self._committed[first:first + count] = bytes((is_committed,)) * count

    def _decommit_all(self) -> None:
        """Decommit all committed granules, after the work of all streams on which they were committed."""
        last, *others = self._streams or {0}
        for other in others:
            _driver.wait(self._allocator.driver, self.device, other, last, is_implicit=True)
        first = self._committed.find(1)
        while first >= 0:
            end = self._committed.find(0, first)
            count = (end if end >= 0 else len(self._committed)) - first
            self.decommit(first * self.page_bytes, count * self.page_bytes, last)
            first = self._committed.find(1, first)

    def __enter__(self) -> "Range":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        try:
            self.release()
        except BusyError:
            if kind is None:  # otherwise the first exception is more specific
                raise

    def __del__(self) -> None:
        """Release the range.  After a failure, such as in a forked child or during a capture, the library keeps the range."""
        if not getattr(self, "_handles", None) or self._exports:
            return
        with contextlib.suppress(Error):
            try:
                self.release()
            except BusyError:
                self._decommit_all()
                self.release()

    def __repr__(self) -> str:
        state = f"0x{self.address:x}" if self.handle else "released"
        return f"<xseg.Range {state} of {self.size} bytes on device {self.device}>"


def reserve(kind: Type[Range], allocator: "Allocator", size: int, device: int, pool: Optional[Pool], **options: Any) -> Range:
    """Implement Allocator.range(); options are members of struct xseg_range_options."""
    native_options = _records.structure(_structs.xseg_range_options, pool=Pool.handle_of(pool) or 0, **options)
    return kind(allocator, size, device, pool, native_options)
