# SPDX-License-Identifier: MIT
"""Allocators."""
import atexit
import contextlib
import ctypes
import os
import warnings
import weakref
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_size_t, c_void_p
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Optional, Type, Union

from xseg import _dlpack, _library, _records, _structs
from xseg._arguments import integer
from xseg._block import Block, allocate
from xseg._errors import ArgumentTypeError, BusyError
from xseg._pool import Pool
from xseg._range import Range, reserve
from xseg._registration import Dmabuf, Enter, Leave, Registration, end_unreferenced, register
from xseg._streams import Handle, handle

LOG = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
UNCHANGED: Any = object()
_stacks_are_slow = False


def _bytes(text: Optional[str], name: str) -> Optional[bytes]:
    """Encode a string for C; `name` is the operation and the argument in the message of an ArgumentTypeError."""
    if text is not None and not isinstance(text, str):
        raise ArgumentTypeError(f"{name} is not a string, {text!r}; pass a str")
    return None if text is None else text.encode()


def _scope(device: int, stream: Optional[Handle], pool: Optional[Pool]) -> Any:
    """Make the scope of a call from objects of this package."""
    return _records.scope(device, None if stream is None else handle(stream), Pool.handle_of(pool))


def _collect(function: str, *arguments: Any, visitor: int, kind: Type[ctypes.Structure], record: Type[Any]) -> List[Any]:
    """Call a function that visits structures, and return the structures as a list of records.  `visitor` is the index of the
    callback among the arguments."""
    found: List[Any] = []
    failures: List[BaseException] = []

    def visit(_: Any, structure: Any) -> bool:
        try:
            found.append(_records.record(record, structure.contents))
        except BaseException as failure:  # pylint: disable=broad-except
            failures.append(failure)  # such as KeyboardInterrupt: ctypes would only print it
        return not failures

    values = list(arguments)
    values[visitor:visitor] = [CFUNCTYPE(c_bool, c_void_p, POINTER(kind))(visit), None]
    _library.call(function, *values)
    if failures:
        raise failures[0]
    return found


def _logger(log: Callable[[int, str], None]) -> Any:
    """Wrap a function of Python as the log callback of the library."""
    return LOG(lambda _, level, line: log(level, line.decode(errors="replace")))


# Allocators whose log callback is a function of Python.
_logging: "weakref.WeakSet[Allocator]" = weakref.WeakSet()


@atexit.register
def _stop_threads() -> None:
    """Stop the library threads that could call a function of Python after the interpreter has ended."""
    for allocator in list(_logging):
        if allocator.handle:
            _library.load().xseg_config_set(allocator.handle, b"background_thread:False,budget_file:none")


class Allocator(_library.Owner):
    """An allocator for all devices of a driver, see xseg/allocator.h.

    close(), the end of a with statement, or the end of the last reference closes the allocator.  Each block refers to its
    allocator.  A failed call raises a subclass of xseg.Error and leaves blocks, pools and settings unchanged.

    Threads: every method can be called from any thread at any time, except close().
    """

    _ranges: Type[Range] = Range  # class of the objects that range() returns

    def __init__(self, config: Optional[str] = None, *, driver: Optional[str] = None,
                 log: Optional[Callable[[int, str], None]] = None) -> None:
        """See xseg.open()."""
        #: Handle of the allocator in the library, an integer; 0 after close().
        self.handle = 0
        #: Driver library; "": XSEG_DRIVER of the environment, or libcuda.so.1.
        self.driver = _library.driver(driver) if driver else ""
        self._log = _logger(log) if log else None  # the library calls it as long as the allocator is open
        options = _records.structure(_structs.xseg_options, driver=_bytes(self.driver or None, "xseg_open: driver"))
        if self._log:
            options.log = self._log
        out = c_void_p()
        _library.call("xseg_open", _bytes(config, "xseg_open: config"), byref(options), byref(out))
        self.handle = out.value or 0
        if self._log:
            _logging.add(self)
        self._warn_of_slow_stacks()

    def close(self) -> None:
        """Release all memory to the driver and close the allocator.  A repeated call has no effect.

        BusyError: blocks are live, or memory is pinned; the message lists the first ones, and the allocator stays open.
        Threads: no other call on this allocator may be in progress.  Cost: synchronizes the streams of cached memory.
        """
        if self.handle:
            _dlpack.release_unconsumed()
            end_unreferenced(self.handle)
            _library.call("xseg_close", self.handle)
            self.handle = 0

    def configure(self, config: str) -> None:
        """Change the keys that the string names.  Other keys keep their values."""
        _library.call("xseg_config_set", self.handle, _bytes(config, "xseg_config_set: config"))
        self._warn_of_slow_stacks()

    def _warn_of_slow_stacks(self) -> None:
        """Warn once per process if the history records call stacks without libunwind."""
        global _stacks_are_slow  # pylint: disable=global-statement
        if not _stacks_are_slow and _library.stack_method(self.handle) == "backtrace":
            _stacks_are_slow = True
            warnings.warn("xseg: cannot load libunwind, call stacks take about 25 times as long; install libunwind.so.8 "
                          "(Debian: libunwind8)", RuntimeWarning, stacklevel=4)

    @property
    def configuration(self) -> str:
        """The current configuration, as a string that open() accepts."""
        length = c_size_t()
        _library.call("xseg_config_get", self.handle, None, 0, byref(length))
        text = ctypes.create_string_buffer(length.value)
        _library.call("xseg_config_get", self.handle, text, len(text), None)
        return text.value.decode()

    @property
    def configuration_source(self) -> str:
        """The source of the configuration: "argument", the name of an environment variable, or "default"."""
        return str(_library.load().xseg_config_source(self.handle).decode())

    def allocate(self, size: int, *, device: int = 0, stream: Handle = None, alignment: int = 0,
                 zeroed: bool = False, user: int = 0) -> Block:
        """Allocate device memory in stream order.

        size       size in bytes; 0 returns an empty block
        device     CUDA ordinal
        stream     stream that orders the block: an integer, None (the legacy default stream), or a stream of cuda.core,
                   PyTorch, CuPy or Numba
        alignment  of the address, a power of two up to 1 GiB; 0: 512 bytes
        zeroed     clear the block by a memset on the stream
        user       user value of 64 bits, which Block.info() returns if the key block_user is set

        NoMemoryError, LimitError and NoAddressesError are subclasses of MemoryError.
        Cost: a hit makes no driver call; otherwise as xseg_alloc().
        """
        return allocate(self, size, device, stream, None, alignment, zeroed, user)

    def pool(self, device: int = 0, *, limit_bytes: int = 0, no_split: bool = False, use_on_oom: bool = False,
             exportable: bool = False, name: Optional[str] = None, rdma: bool = False, single_page: bool = False) -> Pool:
        """Create a private pool.  The arguments are the members of struct xseg_pool_options."""
        device = integer(device, c_int, "xseg_pool_create: device")
        options = _records.structure(_structs.xseg_pool_options, limit_bytes=limit_bytes, no_split=no_split,
                                     use_on_oom=use_on_oom, exportable=exportable, name=_bytes(name, "xseg_pool_create: name"), rdma=rdma,
                                     single_page=single_page)
        out = c_void_p()
        _library.call("xseg_pool_create", self.handle, device, byref(options), byref(out))
        return Pool(self, out.value or 0, device)

    def range(self, size: int, device: int = 0, *, pool: Optional[Pool] = None, page_bytes: int = 0, limit_bytes: int = 0,
              exportable: bool = False, rdma: bool = False, name: Optional[str] = None) -> Range:
        """Reserve the addresses of a range.  Nothing is committed.

        The arguments are the members of struct xseg_range_options.  `size` is a multiple of `page_bytes`; a `page_bytes` of
        0 is 2 MiB, and a `limit_bytes` of 0 is unlimited.  Without `pool` a new pool with `exportable`, `rdma` and `name`
        is created and is released with the range.
        """
        return reserve(self._ranges, self, size, device, pool, page_bytes=page_bytes, limit_bytes=limit_bytes,
                       exportable=exportable, rdma=rdma, name=_bytes(name, "xseg_range_reserve: name"))

    def register(self, address: int, size: int, enter: Enter, leave: Leave, *, pin: bool = False) -> Registration:
        """Register a range of addresses, see xseg_register().

        `enter` is called with the address and the size of each run of memory in the range: during this call for memory that
        is mapped, and later for memory that is mapped or resumed.  `leave` is called with address, size and the return
        value of `enter` before a part of the run is unmapped.  If `enter` raises an exception, the run is not registered;
        during this call UnsupportedError is raised from that exception.  `pin` pins registered memory until the
        registration ends.
        """
        return register(self, address, size, enter, leave, pin)

    def dmabuf(self, address: int, size: int, *, pin: bool = False, pcie: bool = False) -> Dmabuf:
        """Get a dma-buf descriptor of a range of memory, for network adapters, see xseg_dmabuf_open()."""
        return Dmabuf(self, address, size, pin, pcie)

    def block_at(self, address: int) -> _records.BlockInfo:
        """Query the block that contains an address.  NotAllocatedError: no segment contains the address."""
        info = _records.structure(_structs.xseg_block_info)
        _library.call("xseg_block_query", self.handle, address, byref(info))
        return _records.record(_records.BlockInfo, info)

    def blocks(self, device: int = -1, *, pool: Optional[Pool] = None) -> List[_records.BlockInfo]:
        """List every block and every unmapped range, segment by segment in the order of addresses."""
        return _collect("xseg_for_each_block", self.handle, byref(_scope(device, None, pool)), visitor=2,
                        kind=_structs.xseg_block_info, record=_records.BlockInfo)

    def trim(self, *, wait: bool = False, target_bytes: int = 0, idle_ms: int = 0, device: int = -1,
             stream: Optional[Handle] = None, pool: Optional[Pool] = None) -> _records.TrimResult:
        """Release idle cached memory to the driver: of one device, stream or pool, or of all devices.

        wait          synchronize the streams of pending and cached blocks, as torch.cuda.empty_cache() does
        target_bytes  stop once at most this much memory is reserved, per device
        idle_ms       release only memory that is idle for this time; 0: any age

        The result contains the released bytes, and the kept bytes by reason.
        """
        scope = _scope(device, stream, pool)
        options = _records.structure(_structs.xseg_trim_options, wait=wait, target_bytes=target_bytes, idle_ms=idle_ms)
        out = _records.structure(_structs.xseg_trim_result)
        _library.call("xseg_trim", self.handle, byref(scope), byref(options), byref(out))
        return _records.record(_records.TrimResult, out)

    def trim_due(self, max_us: int = 0, *, device: int = -1) -> _records.TrimResult:
        """Release memory that is due by the configuration, in at most max_us microseconds of driver time per device; 0: unlimited."""
        options = _records.structure(_structs.xseg_trim_options, due_only=True, max_us=max_us)
        out = _records.structure(_structs.xseg_trim_result)
        _library.call("xseg_trim", self.handle, byref(_scope(device, None, None)), byref(options), byref(out))
        return _records.record(_records.TrimResult, out)

    def prewarm(self, size: int, *, device: int = 0, stream: Optional[Handle] = None,
                pool: Optional[Pool] = None) -> None:
        """Map pages, or allocate a classic segment, so that the next request of up to `size` bytes is a hit."""
        scope = _scope(device, stream, pool)
        _library.call("xseg_prewarm", self.handle, byref(scope), size)

    def statistics(self, device: int = 0, *, pool: Optional[Pool] = None) -> _records.Statistics:
        """Read the statistics of a device or a pool.  Cost: no driver call once the device is open."""
        scope = _scope(-1 if pool else device, None, pool)
        out = _records.structure(_structs.xseg_statistics)
        _library.call("xseg_stats_get", self.handle, byref(scope), byref(out))
        return _records.record(_records.Statistics, out)

    def reset_statistics(self, device: int = 0, *, peak: bool = True, accumulated: bool = False) -> None:
        """Reset statistics of a device: peaks to the current values (`peak`), totals to 0 (`accumulated`)."""
        reset = (_structs.XSEG_RESET_PEAK if peak else 0) | (_structs.XSEG_RESET_ACCUMULATED if accumulated else 0)
        _library.call("xseg_stats_reset", self.handle, byref(_records.scope(device)), reset)

    def driver_calls(self) -> Dict[str, _records.DriverCall]:
        """Read the number of driver calls by entry point since the allocator was opened."""
        count = c_size_t()
        _library.call("xseg_driver_calls", self.handle, None, 0, byref(count))
        calls = (_structs.xseg_driver_call * count.value)()
        _library.call("xseg_driver_calls", self.handle, calls, len(calls), None)
        found = [_records.record(_records.DriverCall, each_call) for each_call in calls]
        return {each_call.name: each_call for each_call in found}

    def devices(self) -> List[_records.DeviceStats]:
        """Read the memory of all devices, for a scheduler that reads it at each step.  Cost: no driver call, no lock."""
        count, size = c_size_t(), ctypes.sizeof(_structs.xseg_device_stats)
        _library.call("xseg_device_stats_get", self.handle, None, size, 0, byref(count))
        devices = (_structs.xseg_device_stats * count.value)()
        _library.call("xseg_device_stats_get", self.handle, devices, size, len(devices), None)
        return [_records.record(_records.DeviceStats, entry) for entry in devices]

    def limits(self, device: int = 0, *, pool: Optional[Pool] = None) -> _records.Limits:
        """Get the limits of a device or a pool."""
        return self.set_limits(device, pool=pool)

    def set_limits(self, device: int = 0, *, pool: Optional[Pool] = None, hard_bytes: Optional[int] = UNCHANGED,
                   soft_bytes: Optional[int] = UNCHANGED, keep_bytes: int = UNCHANGED,
                   fraction: float = UNCHANGED, rejection_fraction: float = UNCHANGED) -> _records.Limits:
        """Set limits of a device, or the hard limit of a pool, and return the previous limits.

        None is unlimited; an omitted limit is unchanged.  `fraction` is per_process_memory_fraction of the device; 1 is
        unlimited.  throw_on_cudamalloc_oom rejects requests above `rejection_fraction`.

        Threads: concurrent calls for one device can overwrite each other's limits.
        """
        scope = byref(_scope(-1 if pool else device, None, pool))
        limits = _records.structure(_structs.xseg_limits)
        _library.call("xseg_limits_get", self.handle, scope, byref(limits))
        previous = _records.record(_records.Limits, limits)
        changed = {name: _records.NONE if value is None else value
                   for name, value in (("hard_bytes", hard_bytes), ("soft_bytes", soft_bytes), ("keep_bytes", keep_bytes),
                                      ("fraction", fraction), ("rejection_fraction", rejection_fraction))
                   if value is not UNCHANGED}
        if changed:
            _records.assign(limits, has_fraction="fraction" in changed,
                            has_rejection_fraction="rejection_fraction" in changed, **changed)
            _library.call("xseg_limits_set", self.handle, scope, byref(limits))
        return previous

    def explain(self, device: int = -1, *, pool: Optional[Pool] = None) -> _records.ExplainResult:
        """Report why reserved memory is not free: bytes by reason, and each run of pages in `reasons`."""
        out = _records.structure(_structs.xseg_explain_result)
        found = _collect("xseg_explain", self.handle, byref(_scope(device, None, pool)), byref(out), visitor=2,
                         kind=_structs.xseg_reason, record=_records.Reason)
        return _records.record(_records.ExplainResult, out, reasons=found)

    def snapshot(self, path: Union[str, "os.PathLike[str]"], *, events: bool = True, host_bytes: int = 0,
                 max_ms: int = 0) -> None:
        """Write a snapshot of blocks, pages and events in the format of torch.cuda.memory._dump_snapshot().

        events      include the events of the history
        host_bytes  host memory for events; 0: the part of 64 MiB that blocks and pages do not use
        max_ms      time limit in milliseconds; 0: unlimited

        Events that exceed a limit are omitted, the oldest first.  Other threads continue during the call.
        FileError: the file cannot be written; an earlier file is unchanged.
        """
        options = _records.structure(_structs.xseg_snapshot_options, without_events=not events, host_bytes=host_bytes,
                                     max_ms=max_ms)
        _library.call("xseg_snapshot", self.handle, os.fsencode(path), byref(options))

    def metrics(self) -> str:
        """Get the metrics of this allocator in Prometheus's text format 0.0.4; docs/metrics.md lists every metric.

        The Content-Type of an HTTP response is `text/plain; version=0.0.4; charset=utf-8`.
        Cost: no driver call, no lock of the fast path.
        """
        text, needed = ctypes.create_string_buffer(4096), c_size_t()
        while True:
            _library.call("xseg_metrics", self.handle, text, len(text), byref(needed))
            if needed.value <= len(text):
                return text.value.decode()
            text = ctypes.create_string_buffer(needed.value + 4096)  # values can grow between the calls

    def write_metrics(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Write the metrics to a file for the textfile collector of node exporter.  The file is replaced atomically.

        FileError: the file cannot be written; an earlier file is unchanged.
        """
        _library.call("xseg_metrics_write", self.handle, os.fsencode(path))

    @contextlib.contextmanager
    def label(self, text: Optional[str]) -> Iterator[None]:
        """Label the events and allocations of the calling thread in the history during the with statement.

        Labels are recorded unless the key history is `nothing`, which is the default.
        """
        before = c_char_p()
        _library.call("xseg_history_label", self.handle, _bytes(text, "xseg_history_label: text"), byref(before))
        try:
            yield
        finally:
            _library.call("xseg_history_label", self.handle, before, None)

    def stream_synchronized(self, stream: Handle, device: int = 0) -> None:
        """Announce that all work queued on a stream so far has completed.  The caller has synchronized the stream."""
        _library.call("xseg_stream_synchronized", self.handle, device, handle(stream))

    def stream_retire(self, stream: Handle, device: int = 0) -> None:
        """Announce that a stream is about to be destroyed.  Required if blocks were allocated or used on the stream."""
        _library.call("xseg_stream_retire", self.handle, device, handle(stream))

    def __enter__(self) -> "Allocator":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        try:
            self.close()
        except BusyError:
            if kind is None:  # otherwise the first exception is more specific: its frames refer to the blocks
                raise

    def __del__(self, _load: Any = _library.load, _keep: Any = _dlpack.keep) -> None:  # modules may have ended before
        """Close the allocator.  A failure, such as in a forked child, is not reported."""
        if getattr(self, "handle", 0):
            if _load().xseg_close(self.handle) == 0:
                self.handle = 0  # for objects that are destroyed later, as in a reference cycle
            elif self._log:
                _keep(self._log)  # the library still calls it


def open(config: Optional[str] = None, *, driver: Optional[str] = None,  # pylint: disable=redefined-builtin
         log: Optional[Callable[[int, str], None]] = None) -> Allocator:
    """Open an allocator.

    config  configuration string (docs/options.md); None: the first environment variable that is set among
            XSEG_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, or the defaults
    driver  driver library, as for dlopen(); None: XSEG_DRIVER of the environment, or libcuda.so.1
    log     called in any thread with the level (0: error, 1: warning, 2: information) and the text of each log line;
            None: warnings and errors are written to standard error

    Raises ConfigError, NoDriverError or DriverError.
    Cost: loads and initializes the driver; no context is created.
    """
    return Allocator(config, driver=driver, log=log)


def config_keys(config: Optional[str] = None) -> List[_records.ConfigKey]:
    """Parse a configuration string as xseg.open() does, and list all keys with their values and descriptions.

    ConfigError: the string has an error.  Cost: no driver call.
    """
    return _collect("xseg_config_keys", _bytes(config, "xseg_config_keys: config"), None, visitor=2, kind=_structs.xseg_config_key,
                    record=_records.ConfigKey)


def budget_members(name: str) -> List[_records.BudgetEntry]:
    """List the devices of each member of a shared budget file, which is named as by the key budget_file.

    The calling process does not become a member.
    FileError: the file does not exist, cannot be read, or is not a budget file.  Cost: no driver call.
    """
    return _collect("xseg_budget_members", _bytes(name, "xseg_budget_members: name"), visitor=1, kind=_structs.xseg_budget_entry, record=_records.BudgetEntry)
