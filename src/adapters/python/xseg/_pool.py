# SPDX-License-Identifier: MIT
"""Private pools."""
import contextlib
import os
from ctypes import CFUNCTYPE, c_bool, c_void_p
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Optional, Tuple, Type, Union

from xseg import _library, _records, _structs
from xseg._block import Block, allocate
from xseg._errors import ArgumentError, ArgumentTypeError
from xseg._streams import Handle, handle

if TYPE_CHECKING:
    from xseg._allocator import Allocator

KEEP = {"nothing": _structs.XSEG_KEEP_NOTHING, "host": _structs.XSEG_KEEP_HOST, "file": _structs.XSEG_KEEP_FILE}
ACCEPTS = CFUNCTYPE(c_bool, c_void_p, c_void_p)


class Pool(_library.Owner):
    """A wall around some allocations of one device, see xseg/pool.h.  Made by Allocator.pool().

    Released by release(), at the end of a with statement, or when nobody refers to it; its live blocks stay valid.
    """

    def __init__(self, allocator: "Allocator", number: int, device: int) -> None:
        """Made by Allocator.pool()."""
        self._allocator = allocator
        self._held: List[int] = [number]  # popped by whoever releases it
        #: CUDA ordinal.
        self.device = device

    @property
    def handle(self) -> int:
        """The library's handle, a number; 0 once the pool is released, or the allocator closed: it ends with that."""
        return self._held[0] if self._held and self._allocator.handle else 0

    def alive(self) -> int:
        """The handle; ArgumentError without one: a call without a pool would mean all memory."""
        if not self.handle:
            raise ArgumentError("Pool: pool was released, or its allocator was closed; create another one")
        return self.handle

    @staticmethod
    def number_of(pool: Optional["Pool"]) -> Optional[int]:
        """The handle of an argument `pool`, None of None; ArgumentError: it is no pool, or was released."""
        if pool is None:
            return None
        if not isinstance(pool, Pool):
            raise ArgumentTypeError(f"pool: not an xseg.Pool, {pool!r}; pass an xseg.Pool or None")
        return pool.alive()

    def allocate(self, size: int, *, stream: Handle = None, alignment: int = 0, zeroed: bool = False,
                 user: int = 0) -> Block:
        """Allocate from this pool; everything else as Allocator.allocate()."""
        return allocate(self._allocator, size, self.device, stream, self.alive(), alignment, zeroed, user)

    def set_single_page(self, on: bool = True) -> None:
        """Let each block of more than 1 MiB be one piece of memory, for those who register it; or not.

        BusyError: something was allocated from the pool before.
        """
        _library.call("xseg_pool_set", self.handle, _structs.XSEG_POOL_SINGLE_PAGE, on)

    def release(self) -> None:
        """Let go of the pool; again: nothing happens.  Its cached memory goes at the next trim."""
        try:
            number = self._held.pop()
        except IndexError:
            return
        if self._allocator.handle:
            _library.call("xseg_pool_release", number)

    @contextlib.contextmanager
    def route(self, accepts: Optional[Callable[[int], bool]] = None) -> Iterator["Pool"]:
        """While the with statement lasts, requests that name no pool are served from this one.

        `accepts` is asked with the stream of each request for the device, in the thread that allocates; it must not
        call this allocator.  None accepts all.
        """
        predicate = ACCEPTS((lambda _, stream: bool(accepts(stream or 0))) if accepts else 0)  # type: ignore[misc]
        with self._between("xseg_route_begin", (predicate, None), "xseg_route_end"):
            yield self

    @contextlib.contextmanager
    def capture(self, stream: Handle) -> Iterator["Pool"]:
        """Around the capture of a stream: what is allocated on it while it is captured comes from this pool."""
        with self._between("xseg_capture_begin", (handle(stream),), "xseg_capture_end"):
            yield self

    @contextlib.contextmanager
    def _between(self, begin: str, arguments: Tuple[Any, ...], end: str) -> Iterator[None]:
        """A call on the pool, and another one at the end, also where the pool is released within."""
        number = self.alive()
        _library.call(begin, number, *arguments)
        try:
            yield
        finally:
            if self._allocator.handle:  # else it has ended with the allocator
                _library.call(end, number)

    def pause(self, keep: str = "nothing", file: Union[str, "os.PathLike[str]", None] = None) -> None:
        """Take the physical memory away; addresses and blocks stay.

        `keep` says what becomes of the contents: "nothing", "host" (pinned host memory), "file" (a new file, which
        `file` names).  Nobody is waited for: synchronise the streams that used the pool before.
        """
        if keep not in KEEP:
            raise ValueError(f'Pool.pause: unknown keep, {keep!r}; use "nothing", "host" or "file"')
        _library.call("xseg_pool_pause", self.handle, KEEP[keep], os.fsencode(file) if file is not None else None)

    def resume(self) -> None:
        """Bring the memory of a paused pool back beneath the same addresses."""
        _library.call("xseg_pool_resume", self.handle)

    @contextlib.contextmanager
    def paused(self, keep: str = "nothing", file: Union[str, "os.PathLike[str]", None] = None) -> Iterator["Pool"]:
        """pause(), and resume() at the end of the with statement."""
        self.pause(keep, file)
        try:
            yield self
        finally:
            self.resume()

    def trim(self, *, wait: bool = False, target_bytes: int = 0, idle_ms: int = 0) -> _records.TrimResult:
        """Give idle memory of the pool back, see Allocator.trim()."""
        return self._allocator.trim(wait=wait, target_bytes=target_bytes, idle_ms=idle_ms, pool=self)

    def statistics(self) -> _records.Statistics:
        """What the pool has: groups and a few sums; the rest is 0."""
        return self._allocator.statistics(pool=self)

    def limits(self) -> _records.Limits:
        """The pool's limit: `hard_bytes`."""
        return self._allocator.limits(pool=self)

    def set_limit(self, hard_bytes: Optional[int]) -> _records.Limits:
        """Set how much the pool may reserve, None: no limit; returns what held before."""
        return self._allocator.set_limits(pool=self, hard_bytes=hard_bytes)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.release()

    def __del__(self, _load: Any = _library.load) -> None:  # modules may have ended before
        """Nobody hears of a failure here, such as in a forked child."""
        if getattr(self, "_held", None) and self._allocator.handle:
            _load().xseg_pool_release(self._held.pop())
