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
    """A private pool, whose segments serve only its own requests, see xseg/pool.h.  Created by Allocator.pool().

    release(), the end of a with statement, or the end of the last reference releases the pool.  Its live blocks stay valid.
    """

    def __init__(self, allocator: "Allocator", native_handle: int, device: int) -> None:
        """Created by Allocator.pool()."""
        self._allocator = allocator
        self._handles: List[int] = [native_handle]  # popped by the thread that releases it
        #: CUDA ordinal.
        self.device = device

    @property
    def handle(self) -> int:
        """Handle of the pool in the library, an integer; 0 after release() or after the allocator was closed."""
        return self._handles[0] if self._handles and self._allocator.handle else 0

    def alive(self) -> int:
        """Get the handle.  ArgumentError: the pool was released; a call with the handle 0 would apply to all memory."""
        if not self.handle:
            raise ArgumentError("Pool: pool was released, or its allocator was closed; create another one")
        return self.handle

    @staticmethod
    def handle_of(pool: Optional["Pool"]) -> Optional[int]:
        """Get the handle of an argument `pool`, or None.  ArgumentError: the argument is not a pool, or the pool was released."""
        if pool is None:
            return None
        if not isinstance(pool, Pool):
            raise ArgumentTypeError(f"pool: not an xseg.Pool, {pool!r}; pass an xseg.Pool or None")
        return pool.alive()

    def allocate(self, size: int, *, stream: Handle = None, alignment: int = 0, zeroed: bool = False,
                 user: int = 0) -> Block:
        """Allocate from this pool.  Otherwise as Allocator.allocate()."""
        return allocate(self._allocator, size, self.device, stream, self.alive(), alignment, zeroed, user)

    def set_single_page(self, on: bool = True) -> None:
        """Set whether each block of more than 1 MiB is one physical page, for libraries that register memory.

        BusyError: the pool has served a request.
        """
        _library.call("xseg_pool_set", self.handle, _structs.XSEG_POOL_SINGLE_PAGE, on)

    def release(self) -> None:
        """Release the pool.  A repeated call has no effect.  The next trim, or memory pressure, releases its cached memory."""
        try:
            native_handle = self._handles.pop()
        except IndexError:
            return
        if self._allocator.handle:
            _library.call("xseg_pool_release", native_handle)

    @contextlib.contextmanager
    def route(self, accepts: Optional[Callable[[int], bool]] = None) -> Iterator["Pool"]:
        """Direct requests on the device that name no pool to this pool during the with statement.

        `accepts` is called with the stream of each request, in the allocating thread, and returns whether this pool serves
        the request; it must not call this allocator.  None accepts all requests.
        """
        predicate = ACCEPTS((lambda _, stream: bool(accepts(stream or 0))) if accepts else 0)  # type: ignore[misc]
        with self._between("xseg_route_begin", (predicate, None), "xseg_route_end"):
            yield self

    @contextlib.contextmanager
    def capture(self, stream: Handle) -> Iterator["Pool"]:
        """Announce the capture of a stream during the with statement: this pool serves its requests while it is captured."""
        with self._between("xseg_capture_begin", (handle(stream),), "xseg_capture_end"):
            yield self

    @contextlib.contextmanager
    def _between(self, begin: str, arguments: Tuple[Any, ...], end: str) -> Iterator[None]:
        """Call `begin` on the pool, and `end` at the end, also if the pool is released in between."""
        native_handle = self.alive()
        _library.call(begin, native_handle, *arguments)
        try:
            yield
        finally:
            if self._allocator.handle:  # otherwise xseg_close() has ended it
                _library.call(end, native_handle)

    def pause(self, keep: str = "nothing", file: Union[str, "os.PathLike[str]", None] = None) -> None:
        """Release the physical memory of the pool, and keep its addresses and blocks.

        `keep` is the destination of the contents: "nothing" (discarded), "host" (pinned host memory) or "file" (a new file
        with the path `file`).  Synchronize the streams that used the pool before the call.
        """
        if keep not in KEEP:
            raise ValueError(f'Pool.pause: unknown keep, {keep!r}; use "nothing", "host" or "file"')
        _library.call("xseg_pool_pause", self.handle, KEEP[keep], os.fsencode(file) if file is not None else None)

    def resume(self) -> None:
        """Map memory at the addresses of a paused pool, and restore the contents that were kept."""
        _library.call("xseg_pool_resume", self.handle)

    @contextlib.contextmanager
    def paused(self, keep: str = "nothing", file: Union[str, "os.PathLike[str]", None] = None) -> Iterator["Pool"]:
        """Call pause(), and resume() at the end of the with statement."""
        self.pause(keep, file)
        try:
            yield self
        finally:
            self.resume()

    def trim(self, *, wait: bool = False, target_bytes: int = 0, idle_ms: int = 0) -> _records.TrimResult:
        """Release idle memory of the pool to the driver, see Allocator.trim()."""
        return self._allocator.trim(wait=wait, target_bytes=target_bytes, idle_ms=idle_ms, pool=self)

    def statistics(self) -> _records.Statistics:
        """Read the statistics of the pool.  Members that only devices have are 0, see xseg_stats_get()."""
        return self._allocator.statistics(pool=self)

    def limits(self) -> _records.Limits:
        """Get the limit of the pool, `hard_bytes`."""
        return self._allocator.limits(pool=self)

    def set_limit(self, hard_bytes: Optional[int]) -> _records.Limits:
        """Set the maximum of reserved memory of the pool, and return the previous limits.  None: unlimited."""
        return self._allocator.set_limits(pool=self, hard_bytes=hard_bytes)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.release()

    def __del__(self, _load: Any = _library.load) -> None:  # modules may have ended before
        """Release the pool.  A failure, such as in a forked child, is not reported."""
        if getattr(self, "_handles", None) and self._allocator.handle:
            _load().xseg_pool_release(self._handles.pop())
