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
from xseg._registration import Dmabuf, Enter, Leave, Registration, end_left, register
from xseg._streams import Handle, handle

LOG = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
UNCHANGED: Any = object()
_stacks_are_slow = False


def _bytes(text: Optional[str], what: str) -> Optional[bytes]:
    """A string as C has it; `what` names the operation and the argument in the message of an ArgumentTypeError."""
    if text is not None and not isinstance(text, str):
        raise ArgumentTypeError(f"{what} is not a string, {text!r}; pass a str")
    return None if text is None else text.encode()


def _where(device: int, stream: Optional[Handle], pool: Optional[Pool]) -> Any:
    """What a call is about, by the objects of this package."""
    return _records.where(device, None if stream is None else handle(stream), Pool.number_of(pool))


def _visited(function: str, *arguments: Any, visitor: int, kind: Type[ctypes.Structure], record: Type[Any]) -> List[Any]:
    """Call a function that visits structures, and return these as a list.  `visitor` is the index of the visitor among the arguments."""
    found: List[Any] = []
    failures: List[BaseException] = []

    def visit(_: Any, one: Any) -> bool:
        try:
            found.append(_records.record(record, one.contents))
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
    """A function for the library to call with each line."""
    return LOG(lambda _, level, line: log(level, line.decode(errors="replace")))


# Allocators whose log lines go to a function of Python.
_logging: "weakref.WeakSet[Allocator]" = weakref.WeakSet()


@atexit.register
def _stop_threads() -> None:
    """End the threads of the library that would call a function of Python after the end of the interpreter."""
    for allocator in list(_logging):
        if allocator.handle:
            _library.load().xseg_config_set(allocator.handle, b"background_thread:False,budget_file:none")


class Allocator(_library.Owner):
    """An allocator for all devices of a driver, see xseg/allocator.h.

    Closed by close(), at the end of a with statement, or when nobody refers to it, which each of its blocks does.
    Every failure is an exception, a subclass of xseg.Error, and changes nothing.

    Threads: every method may be called from any thread at any time, except close().
    """

    _ranges: Type[Range] = Range  # what range() makes

    def __init__(self, config: Optional[str] = None, *, driver: Optional[str] = None,
                 log: Optional[Callable[[int, str], None]] = None) -> None:
        """See xseg.open()."""
        #: The library's handle, a number; 0 once it is closed.
        self.handle = 0
        #: The library that was named as the driver; "": the environment's XSEG_DRIVER, else libcuda.so.1.
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
        self._look_at_stacks()

    def close(self) -> None:
        """Give all memory back; again: nothing happens.

        BusyError: blocks are live, of which the text lists the first; the allocator stays usable.
        Threads: no other call on this allocator may be under way.  Cost: waits for streams of cached memory.
        """
        if self.handle:
            _dlpack.settle()
            end_left(self.handle)
            _library.call("xseg_close", self.handle)
            self.handle = 0

    def configure(self, config: str) -> None:
        """Change the keys that the string names; the others stay."""
        _library.call("xseg_config_set", self.handle, _bytes(config, "xseg_config_set: config"))
        self._look_at_stacks()

    def _look_at_stacks(self) -> None:
        """Warn, once in the process, where the history takes call stacks without libunwind."""
        global _stacks_are_slow  # pylint: disable=global-statement
        if not _stacks_are_slow and _library.stack_method(self.handle) == "backtrace":
            _stacks_are_slow = True
            warnings.warn("xseg: cannot load libunwind, call stacks take about 25 times as long; install libunwind.so.8 "
                          "(Debian: libunwind8)", RuntimeWarning, stacklevel=4)

    @property
    def configuration(self) -> str:
        """The configuration in force, every key spelled out."""
        needed = c_size_t()
        _library.call("xseg_config_get", self.handle, None, 0, byref(needed))
        text = ctypes.create_string_buffer(needed.value)
        _library.call("xseg_config_get", self.handle, text, len(text), None)
        return text.value.decode()

    @property
    def configuration_source(self) -> str:
        """Where it came from: "argument", the name of an environment variable, or "default"."""
        return str(_library.load().xseg_config_source(self.handle).decode())

    def allocate(self, size: int, *, device: int = 0, stream: Handle = None, alignment: int = 0,
                 zeroed: bool = False, user: int = 0) -> Block:
        """Allocate device memory, ordered on a stream.

        `stream` is a number, None (the legacy default stream), or a stream of cuda.core, PyTorch, CuPy or Numba;
        `alignment` a power of two up to 1 GiB, 0: 512 bytes; zeroed memory is zeroed by work of the stream.
        With the key block_user, Block.info() gives back `user`, any number of 64 bits.

        NoMemoryError, LimitError and NoAddressesError are MemoryErrors, too.
        Cost: a hit makes no driver call; see xseg_alloc() for the rest.
        """
        return allocate(self, size, device, stream, None, alignment, zeroed, user)

    def pool(self, device: int = 0, *, limit_bytes: int = 0, no_split: bool = False, use_on_oom: bool = False,
             exportable: bool = False, name: Optional[str] = None, rdma: bool = False, single_page: bool = False) -> Pool:
        """Make a private pool; the arguments are the members of struct xseg_pool_options."""
        device = integer(device, c_int, "xseg_pool_create: device")
        options = _records.structure(_structs.xseg_pool_options, limit_bytes=limit_bytes, no_split=no_split,
                                     use_on_oom=use_on_oom, exportable=exportable, name=_bytes(name, "xseg_pool_create: name"), rdma=rdma,
                                     single_page=single_page)
        out = c_void_p()
        _library.call("xseg_pool_create", self.handle, device, byref(options), byref(out))
        return Pool(self, out.value or 0, device)

    def range(self, size: int, device: int = 0, *, pool: Optional[Pool] = None, page_bytes: int = 0, limit_bytes: int = 0,
              exportable: bool = False, rdma: bool = False, name: Optional[str] = None) -> Range:
        """Reserve addresses beneath which memory comes and goes by the page; nothing is committed.

        The arguments are the members of struct xseg_range_options: `page_bytes` 0 is 2 MiB, of which `size` is a multiple;
        `limit_bytes` 0 no limit.  Without `pool` the range has one of its own, of which `exportable`, `rdma` and `name` say
        what kind.
        """
        return reserve(self._ranges, self, size, device, pool, page_bytes=page_bytes, limit_bytes=limit_bytes,
                       exportable=exportable, rdma=rdma, name=_bytes(name, "xseg_range_reserve: name"))

    def register(self, address: int, size: int, enter: Enter, leave: Leave, *, pin: bool = False) -> Registration:
        """Register memory elsewhere, and follow it: see xseg_register().

        `enter` is called with the address and the bytes of each run of memory in the range, now and whenever memory comes;
        what it returns is the third argument of `leave`, which is called before the run goes.  What `enter` raises refuses
        the run; here that is UnsupportedError, whose cause it is.  With `pin` memory stays until the registration ends.
        """
        return register(self, address, size, enter, leave, pin)

    def dmabuf(self, address: int, size: int, *, pin: bool = False, pcie: bool = False) -> Dmabuf:
        """A descriptor of a range of memory, for network cards: see xseg_dmabuf_open()."""
        return Dmabuf(self, address, size, pin, pcie)

    def block_at(self, address: int) -> _records.BlockInfo:
        """What an address belongs to, and what is free beside it; NotAllocatedError: it lies in no segment."""
        info = _records.structure(_structs.xseg_block_info)
        _library.call("xseg_block_query", self.handle, address, byref(info))
        return _records.record(_records.BlockInfo, info)

    def blocks(self, device: int = -1, *, pool: Optional[Pool] = None) -> List[_records.BlockInfo]:
        """Every block, holes included, segment by segment in the order of addresses."""
        return _visited("xseg_for_each_block", self.handle, byref(_where(device, None, pool)), visitor=2,
                        kind=_structs.xseg_block_info, record=_records.BlockInfo)

    def trim(self, *, wait: bool = False, target_bytes: int = 0, idle_ms: int = 0, device: int = -1,
             stream: Optional[Handle] = None, pool: Optional[Pool] = None) -> _records.TrimResult:
        """Give idle cached memory back to the driver: of a device, a stream, a pool, or all there is.

        wait=True waits for streams, as torch.cuda.empty_cache() does.  The result says what was kept, and why.
        """
        where = _where(device, stream, pool)
        options = _records.structure(_structs.xseg_trim_options, wait=wait, target_bytes=target_bytes, idle_ms=idle_ms)
        out = _records.structure(_structs.xseg_trim_result)
        _library.call("xseg_trim", self.handle, byref(where), byref(options), byref(out))
        return _records.record(_records.TrimResult, out)

    def trim_due(self, max_us: int = 0, *, device: int = -1) -> _records.TrimResult:
        """Release memory that is due by the configuration, for at most max_us microseconds of driver time per device."""
        options = _records.structure(_structs.xseg_trim_options, due_only=True, max_us=max_us)
        out = _records.structure(_structs.xseg_trim_result)
        _library.call("xseg_trim", self.handle, byref(_where(device, None, None)), byref(options), byref(out))
        return _records.record(_records.TrimResult, out)

    def prewarm(self, size: int, *, device: int = 0, stream: Optional[Handle] = None,
                pool: Optional[Pool] = None) -> None:
        """Have memory ready, so that the next request of up to `size` bytes there is a hit."""
        where = _where(device, stream, pool)
        _library.call("xseg_prewarm", self.handle, byref(where), size)

    def statistics(self, device: int = 0, *, pool: Optional[Pool] = None) -> _records.Statistics:
        """Statistics of a device, or of a pool.  Cost: no driver call once the device is open."""
        where = _where(-1 if pool else device, None, pool)
        out = _records.structure(_structs.xseg_statistics)
        _library.call("xseg_stats_get", self.handle, byref(where), byref(out))
        return _records.record(_records.Statistics, out)

    def reset_statistics(self, device: int = 0, *, peak: bool = True, accumulated: bool = False) -> None:
        """Let peaks fall to the current values, or totals start again at 0."""
        what = (_structs.XSEG_RESET_PEAK if peak else 0) | (_structs.XSEG_RESET_ACCUMULATED if accumulated else 0)
        _library.call("xseg_stats_reset", self.handle, byref(_records.where(device)), what)

    def driver_calls(self) -> Dict[str, _records.DriverCall]:
        """Calls of the driver by name, since the allocator was opened."""
        count = c_size_t()
        _library.call("xseg_driver_calls", self.handle, None, 0, byref(count))
        calls = (_structs.xseg_driver_call * count.value)()
        _library.call("xseg_driver_calls", self.handle, calls, len(calls), None)
        found = [_records.record(_records.DriverCall, one) for one in calls]
        return {one.name: one for one in found}

    def devices(self) -> List[_records.DeviceStats]:
        """What each device has, without asking the driver or waiting for anything: for schedulers that look at each step."""
        count, size = c_size_t(), ctypes.sizeof(_structs.xseg_device_stats)
        _library.call("xseg_device_stats_get", self.handle, None, size, 0, byref(count))
        devices = (_structs.xseg_device_stats * count.value)()
        _library.call("xseg_device_stats_get", self.handle, devices, size, len(devices), None)
        return [_records.record(_records.DeviceStats, one) for one in devices]

    def limits(self, device: int = 0, *, pool: Optional[Pool] = None) -> _records.Limits:
        """The limits of a device or a pool."""
        return self.set_limits(device, pool=pool)

    def set_limits(self, device: int = 0, *, pool: Optional[Pool] = None, hard_bytes: Optional[int] = UNCHANGED,
                   soft_bytes: Optional[int] = UNCHANGED, keep_bytes: int = UNCHANGED,
                   fraction: float = UNCHANGED, rejection_fraction: float = UNCHANGED) -> _records.Limits:
        """Set limits of a device, or the hard one of a pool; returns those before.  None: no limit; left out: it stays.

        fraction is per_process_memory_fraction of the device; 1: no limit.  rejection_fraction is the fraction past which
        throw_on_cudamalloc_oom rejects a request.

        Two threads that set different limits of one device at once may undo each other's.
        """
        where = byref(_where(-1 if pool else device, None, pool))
        was = _records.structure(_structs.xseg_limits)
        _library.call("xseg_limits_get", self.handle, where, byref(was))
        before = _records.record(_records.Limits, was)
        changed = {name: _records.NONE if value is None else value
                   for name, value in (("hard_bytes", hard_bytes), ("soft_bytes", soft_bytes), ("keep_bytes", keep_bytes),
                                      ("fraction", fraction), ("rejection_fraction", rejection_fraction))
                   if value is not UNCHANGED}
        if changed:
            _records.assign(was, has_fraction="fraction" in changed,
                            has_rejection_fraction="rejection_fraction" in changed, **changed)
            _library.call("xseg_limits_set", self.handle, where, byref(was))
        return before

    def explain(self, device: int = -1, *, pool: Optional[Pool] = None) -> _records.ExplainResult:
        """Why reserved memory is not free: bytes by reason, and each piece in `reasons`."""
        out = _records.structure(_structs.xseg_explain_result)
        found = _visited("xseg_explain", self.handle, byref(_where(device, None, pool)), byref(out), visitor=2,
                         kind=_structs.xseg_reason, record=_records.Reason)
        return _records.record(_records.ExplainResult, out, reasons=found)

    def snapshot(self, path: Union[str, "os.PathLike[str]"], *, events: bool = True, host_bytes: int = 0,
                 max_ms: int = 0) -> None:
        """Write where all memory is, and what led to it, in the format of torch.cuda.memory._dump_snapshot().

        events=False leaves out what led to it.  `host_bytes` bounds the host memory for copies of events, 0: what blocks and
        pages leave of 64 MiB; `max_ms` the time, 0: any.  The oldest events are left out for both.  Other threads go on meanwhile.

        FileError: the file cannot be written; a file that was there before still is.
        """
        options = _records.structure(_structs.xseg_snapshot_options, without_events=not events, host_bytes=host_bytes,
                                     max_ms=max_ms)
        _library.call("xseg_snapshot", self.handle, os.fsencode(path), byref(options))

    def metrics(self) -> str:
        """The metrics of this allocator in Prometheus's text format 0.0.4; docs/metrics.md lists every metric.

        The Content-Type of a response is `text/plain; version=0.0.4; charset=utf-8`.  Reading changes nothing.
        Cost: no driver call, no lock of the fast path.
        """
        text, needed = ctypes.create_string_buffer(4096), c_size_t()
        while True:
            _library.call("xseg_metrics", self.handle, text, len(text), byref(needed))
            if needed.value <= len(text):
                return text.value.decode()
            text = ctypes.create_string_buffer(needed.value + 4096)  # numbers grow meanwhile

    def write_metrics(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Write the metrics for node exporter's textfile collector: beside the file, which is replaced when all is there.

        FileError: the file cannot be written; a file that was there before still is.
        """
        _library.call("xseg_metrics_write", self.handle, os.fsencode(path))

    @contextlib.contextmanager
    def label(self, text: Optional[str]) -> Iterator[None]:
        """Within the with statement, what the calling thread allocates and does carries this label in the history.

        Costs nothing where the configuration says history:nothing, as it does by default.
        """
        before = c_char_p()
        _library.call("xseg_history_label", self.handle, _bytes(text, "xseg_history_label: text"), byref(before))
        try:
            yield
        finally:
            _library.call("xseg_history_label", self.handle, before, None)

    def stream_synchronized(self, stream: Handle, device: int = 0) -> None:
        """Say that all work queued on a stream so far has finished, as the caller knows."""
        _library.call("xseg_stream_synchronized", self.handle, device, handle(stream))

    def stream_retire(self, stream: Handle, device: int = 0) -> None:
        """Say that a stream is about to be destroyed; needed where blocks were ever allocated or used on it."""
        _library.call("xseg_stream_retire", self.handle, device, handle(stream))

    def __enter__(self) -> "Allocator":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        try:
            self.close()
        except BusyError:
            if kind is None:  # else the first exception says more: its frames hold the blocks
                raise

    def __del__(self, _load: Any = _library.load, _keep: Any = _dlpack.keep) -> None:  # modules may have ended before
        """Nobody hears of a failure here, such as in a forked child."""
        if getattr(self, "handle", 0):
            if _load().xseg_close(self.handle) == 0:
                self.handle = 0  # for those that end after it, as in a cycle of references
            elif self._log:
                _keep(self._log)  # the library goes on calling it


def open(config: Optional[str] = None, *, driver: Optional[str] = None,  # pylint: disable=redefined-builtin
         log: Optional[Callable[[int, str], None]] = None) -> Allocator:
    """Open an allocator.

    config  configuration string (docs/options.md); None: the environment's XSEG_ALLOC_CONF, else PYTORCH_CUDA_ALLOC_CONF,
            else PYTORCH_ALLOC_CONF, else the defaults
    driver  the driver library, as for dlopen(); None: the environment's XSEG_DRIVER, else libcuda.so.1
    log     called with level (0 error, 1 warning, 2 information) and text of each log line, in any thread; None: warnings
            and errors go to standard error

    ConfigError, NoDriverError, DriverError.  Cost: loads and starts the driver; no context is made.
    """
    return Allocator(config, driver=driver, log=log)


def config_keys(config: Optional[str] = None) -> List[_records.ConfigKey]:
    """The keys of a configuration string, as xseg.open() would read it: what each means, and its value.

    ConfigError: the string has an error.  Cost: no driver call.
    """
    return _visited("xseg_config_keys", _bytes(config, "xseg_config_keys: config"), None, visitor=2, kind=_structs.xseg_config_key,
                    record=_records.ConfigKey)


def budget_members(name: str) -> List[_records.BudgetEntry]:
    """What each process says of each device in a ledger, named as by the key budget_file; no part is taken in it.

    FileError: there is none, or it may not be read.  Cost: no driver call.
    """
    return _visited("xseg_budget_members", _bytes(name, "xseg_budget_members: name"), visitor=1, kind=_structs.xseg_budget_entry, record=_records.BudgetEntry)
