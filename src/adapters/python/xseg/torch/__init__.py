# SPDX-License-Identifier: MIT
"""PyTorch on xseg: the import of this module makes xseg the allocator of PyTorch.

    import torch
    import xseg.torch                   # before the first use of CUDA; or XSEG_TORCH=1 in the environment

    torch.cuda.get_allocator_backend()  # 'xseg'

The functions of torch.cuda.memory work as before.  This module has additional functions:

    with xseg.torch.tag("weights"):     # a private pool
        model = build()
    xseg.torch.pause("weights")         # releases its physical memory and keeps its addresses
    xseg.torch.resume("weights")
    with xseg.torch.registered("cache"):  # a tag for memory that NCCL, UCX or network adapters register
        cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    blocks = xseg.torch.range(64 << 30)  # reserved addresses; commit() maps memory
    keys = blocks.tensor((1 << 20, 4096), torch.float16)

    xseg.torch.allocator()              # everything else: limits, trim, explain, statistics (xseg.Allocator)

An ImportError contains the reason why PyTorch keeps its own allocator, and what to do.
"""
import contextlib
import ctypes
import functools
import math
import os
import pathlib
import re
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple, Type, cast

import torch
from xseg import _library, _range
from xseg._allocator import Allocator
from xseg._arguments import converted, integer
from xseg._errors import ArgumentError, Error, PausedError, UnsupportedError
from xseg._pool import Pool
from xseg._streams import Handle, handle
from xseg.torch import _build, _compiled
from xseg.torch._build import LoadError

__all__ = ["Range", "LoadError", "allocator", "doctor", "info", "pause", "paused", "pin", "pool", "range", "registered", "resume", "suspended",
           "tag", "tags", "unpin"]

MESSAGE_BYTES = 4096


class Range(_range.Range):
    """A range of PyTorch's allocator, whose limits apply.  Created by xseg.torch.range().

    A stream of None is PyTorch's current stream on the device.  Calls release the GIL.
    """

    def tensor(self, shape: Sequence[int], dtype: Optional[torch.dtype] = None, offset: int = 0) -> torch.Tensor:
        """Create a tensor over a part of the range from a byte offset on; it retains the range.  dtype None: PyTorch's default.

        The memory is not accessed, and need not be committed.  commit() makes more elements usable; the shape is constant.  Elements
        without committed memory must not be accessed, also not by copies and printing.
        """
        kind = torch.get_default_dtype() if dtype is None else dtype
        offset = integer(offset, ctypes.c_uint64, "Range.tensor: offset")
        if offset % kind.itemsize:
            raise ArgumentError(f"Range.tensor: offset is not aligned to {kind}, {offset} bytes; pass a multiple of {kind.itemsize}")
        part = self.view(offset, math.prod(shape) * kind.itemsize)
        return cast(torch.Tensor, torch.from_dlpack(part).view(kind).view(tuple(shape)))

    def _stream_handle(self, stream: Handle) -> int:
        return handle(torch.cuda.current_stream(self.device) if stream is None else stream)


class _PyTorchAllocator(Allocator):
    """PyTorch's allocator, which the adapter owns and never closes."""

    _ranges = Range

    def __init__(self, address: int) -> None:  # pylint: disable=super-init-not-called
        self.handle = address
        self.driver = ""
        self._log = None

    def close(self) -> None:
        """No effect: PyTorch uses the allocator."""

    def register(self, *_: Any, **__: Any) -> Any:
        """UnsupportedError: PyTorch frees tensors while it holds the GIL, for which Python callbacks would wait."""
        raise UnsupportedError("register: Python callbacks are not supported for PyTorch's memory; allocate it in "
                               "xseg.torch.registered() and pin() it, or call xseg_register() from C")

    def __del__(self) -> None:
        pass


class _RetainedPool(Pool):
    """A pool that the adapter retains."""

    def release(self) -> None:
        """No effect: the adapter retains the pool."""

    def __del__(self) -> None:
        pass


def _declare(adapter: ctypes.CDLL) -> ctypes.CDLL:
    message = (ctypes.c_char_p, ctypes.c_size_t)
    adapter.xseg_torch_install.argtypes = message
    adapter.xseg_torch_library.restype = ctypes.c_void_p
    adapter.xseg_torch_library.argtypes = ()
    adapter.xseg_torch_open_device.argtypes = (ctypes.c_int, *message)
    adapter.xseg_torch_check_settings.argtypes = (ctypes.c_char_p, ctypes.c_size_t, *message)
    adapter.xseg_torch_restore_settings.argtypes = message
    adapter.xseg_torch_acknowledged.argtypes = message
    adapter.xseg_torch_serves_ipc.restype = ctypes.c_bool
    adapter.xseg_torch_serves_ipc.argtypes = ()
    adapter.xseg_torch_has_settings_hook.restype = ctypes.c_bool
    adapter.xseg_torch_has_settings_hook.argtypes = ()
    adapter.xseg_torch_settings.argtypes = (ctypes.c_char_p, *message)
    adapter.xseg_torch_pool.restype = ctypes.c_void_p
    adapter.xseg_torch_pool.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
    adapter.xseg_torch_tag.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool,
                                       ctypes.POINTER(ctypes.c_void_p), *message)
    adapter.xseg_torch_tag_enter.argtypes = (ctypes.c_void_p, *message)
    adapter.xseg_torch_tag_leave.argtypes = message
    adapter.xseg_torch_tag_label.argtypes = (ctypes.c_void_p, *message)
    adapter.xseg_torch_tag_suspend.argtypes = (ctypes.c_bool, *message)
    return adapter


def _call(kind: type, name: str, *arguments: Any, value_kind: Optional[type] = None) -> None:
    """Call a function of the adapter.  kind: exception of a failure; value_kind: exception of an invalid value, if it differs."""
    message = ctypes.create_string_buffer(MESSAGE_BYTES)
    result = getattr(_ADAPTER, name)(*arguments, message, len(message))
    if result:
        raise (value_kind if value_kind and result == -1 else kind)(message.value.decode(errors="replace"))


def _check_process() -> None:
    """Check the process before the adapter is built."""
    _library.load()
    if torch.version.cuda is None:
        raise LoadError(f"xseg.torch: PyTorch was built without CUDA, version {torch.__version__}; install a build with CUDA")
    if torch.cuda.is_initialized() and torch.cuda.get_allocator_backend() != "xseg":
        raise LoadError("xseg.torch: CUDA is already initialized with PyTorch's own allocator; import xseg.torch right after torch, "
                      "or set XSEG_TORCH=1 in the environment")
    driver = os.environ.get("XSEG_DRIVER")
    if driver:
        try:
            ctypes.CDLL(driver)
        except OSError as error:
            raise LoadError(f"XSEG_DRIVER: cannot load the driver, {error}; unset XSEG_DRIVER to use libcuda.so.1") from error


def _original(name: str) -> Any:
    """Get a function of torch._C, or None.  If this module is imported again, get the function that _replace() has replaced."""
    found = getattr(torch._C, name, None)  # pylint: disable=protected-access
    return getattr(found, "xseg_original", found)


def _replace(name: str, function: Any) -> None:
    function.xseg_original = _original(name)
    setattr(torch._C, name, function)  # pylint: disable=protected-access


def _apply_settings(settings: str) -> None:
    """Apply a string, for older versions of PyTorch, which do not notify an allocator of new settings."""
    _call(ValueError, "xseg_torch_settings", settings.encode())


def _set_settings(apply: Callable[[str], None], settings: str) -> None:
    """Apply a string completely or not at all.  PyTorch's function applies the part before an error."""
    try:
        if isinstance(settings, str):  # otherwise PyTorch raises a TypeError
            text = settings.encode(errors="surrogateescape")
            _call(RuntimeError, "xseg_torch_check_settings", text, len(text), value_kind=ValueError)
        apply(settings)
    except BaseException:
        _call(RuntimeError, "xseg_torch_restore_settings")
        raise


def _get_settings(get: Callable[[], str]) -> str:
    """Get the last string that was set, also if a part of it was ignored (XSEG_TORCH_KEEP_EXPANDABLE)."""
    text = ctypes.create_string_buffer(MESSAGE_BYTES)
    _ADAPTER.xseg_torch_acknowledged(text, len(text))
    return text.value.decode(errors="surrogateescape") or get()


def _replace_settings_functions() -> None:
    get = _original("_accelerator_getAllocatorSettings")
    if get is not None:
        _replace("_accelerator_getAllocatorSettings", functools.partial(_get_settings, get))
    for name in ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"):
        found = _original(name)
        if found is not None:
            apply = found if _ADAPTER.xseg_torch_has_settings_hook() else _apply_settings
            _replace(name, functools.partial(_set_settings, apply))


def _registered_names() -> Optional["re.Pattern[str]"]:
    """Get the expression of XSEG_TORCH_REGISTERED for registered tags and labels; None: none."""
    pattern = os.environ.get("XSEG_TORCH_REGISTERED")
    if not pattern:
        return None
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        print(f"xseg.torch: ignoring XSEG_TORCH_REGISTERED: invalid regular expression, {pattern!r}, {error}; set an expression of "
              "Python's re that matches whole names, such as kv_cache|weights", file=sys.stderr)
        return None


def _check_variables() -> None:
    """Report an invalid value of XSEG_TORCH_KEEP_EXPANDABLE, which has no effect."""
    value = os.environ.get("XSEG_TORCH_KEEP_EXPANDABLE", "")
    if value not in ("", "0", "1"):
        print(f"xseg.torch: ignoring XSEG_TORCH_KEEP_EXPANDABLE: unknown value, {value!r}; set 1 to ignore expandable_segments:False at "
              "run time, or 0", file=sys.stderr)


def _install() -> ctypes.CDLL:
    _check_process()
    is_cxx11 = bool(torch._C._GLIBCXX_USE_CXX11_ABI)  # pylint: disable=protected-access
    compiled = _compiled.find(_TORCH, torch.__version__, is_cxx11)
    if compiled is not None:
        with contextlib.suppress(OSError):
            return _declare(_build.open_adapter(compiled))
    return _declare(_build.load(_TORCH, torch.__version__, is_cxx11))


def _uncovered() -> List[str]:
    adapter = pathlib.Path(_ADAPTER._name)
    return _compiled.about(adapter)["uncovered"] if adapter.parent.name == "compiled" else _build.uncovered(_TORCH / "include")


_TORCH = pathlib.Path(torch.__file__).resolve().parent
_ADAPTER = _install()
_call(LoadError, "xseg_torch_install")
_check_variables()
_replace_settings_functions()
_lock = threading.Lock()
_tags: Dict[Tuple[str, int], Pool] = _build.TAGS
_registered: Set[str] = _build.REGISTERED  # names of registered() tags
_REGISTERED_NAMES = _registered_names()


def info() -> Dict[str, Any]:
    """Get the allocator backend, the files of xseg, and the methods of PyTorch's allocator that the adapter does not implement."""
    return {
        "backend": torch.cuda.get_allocator_backend(),
        "library": _library.path(),
        "adapter": _ADAPTER._name,
        "torch": torch.__version__,
        "uncovered": _uncovered(),
    }


def doctor() -> bool:
    """Print the settings that are in effect for inference engines, and conflicts with their solution.  Returns False if a check fails.

    `python -m xseg doctor` prints the same for a new process.
    """
    from xseg import _doctor  # pylint: disable=import-outside-toplevel
    return _doctor.report()


def allocator() -> Allocator:
    """Get PyTorch's allocator, for limits, trim, explain and configuration.  The call initializes CUDA."""
    torch.cuda.init()
    return _PyTorchAllocator(_ADAPTER.xseg_torch_library())


def _ordinal(device: Optional[int]) -> int:
    """Convert an argument `device` to an ordinal, which has 8 bits in PyTorch; None is the current device."""
    return torch.cuda.current_device() if device is None else integer(device, ctypes.c_int8, "xseg.torch: device")


def pool(mempool: Any, device: Optional[int] = None) -> Pool:
    """Get the library's pool of a torch.cuda.MemPool or of its ID.  KeyError: the pool does not exist."""
    first, second = (integer(each, ctypes.c_uint64, "xseg.torch.pool: mempool") for each in getattr(mempool, "id", mempool))
    device = _ordinal(device)
    found = _ADAPTER.xseg_torch_pool(device, first, second)
    if not found:
        raise KeyError(f"xseg.torch.pool: no such memory pool, ID ({first}, {second}) on device {device}; keep the MemPool alive, "
                       "and pass the device on which it was created")
    return _RetainedPool(allocator(), found, device)


def range(size: int, device: Optional[int] = None,  # pylint: disable=redefined-builtin
          **options: Any) -> Range:
    """Reserve addresses of PyTorch's allocator, by default on the current device.  The options are those of Allocator.range().

    pool=: the pool of a tag (`with tag("cache") as pool`) or of a MemPool, whose limits, pause and resume then apply to the range.
    """
    torch.cuda.init()
    device = _ordinal(device)
    _call(RuntimeError, "xseg_torch_open_device", device)
    return cast(Range, allocator().range(size, device, **options))


def _check_kind(name: str, is_registered: bool) -> None:
    """Check that a name has the same kind of memory on all devices."""
    if (name in _registered) != is_registered and any(each == name for each, _ in _tags):
        existing, requested = ("registered", "tag") if name in _registered else ("tag", "registered")
        raise ArgumentError(f"xseg.torch.{requested}: tag was created by xseg.torch.{existing}(), {name!r}; enter the tag with xseg.torch.{existing}(), or "
                            "use another name")


def _tag_pool(name: str, device: int, is_registered: bool) -> Pool:
    with _lock:
        _check_kind(name, is_registered)
        found = _tags.get((name, device))
        if found is None:
            handle_out = ctypes.c_void_p()
            first, second = torch.cuda.graph_pool_handle()
            _call(RuntimeError, "xseg_torch_tag", device, converted(name.encode(), ctypes.c_char_p, "xseg.torch: tag name"), first, second, is_registered, ctypes.byref(handle_out))
            found = _tags[name, device] = _RetainedPool(allocator(), handle_out.value or 0, device)
            if is_registered:
                _registered.add(name)
        return found


def _set_metadata(set_metadata: Callable[[str], None], text: str) -> None:
    """Set metadata as PyTorch does.  A label that XSEG_TORCH_REGISTERED matches also enters a registered tag."""
    assert _REGISTERED_NAMES is not None
    found = _tag_pool(text, torch.cuda.current_device(), True).handle if _REGISTERED_NAMES.fullmatch(text) else None
    if found or torch.cuda.is_initialized():
        _call(RuntimeError, "xseg_torch_tag_label", found)
    set_metadata(text)


def _replace_metadata_function() -> None:
    name = "_cuda_setMemoryMetadata"
    set_metadata = _original(name)
    if _REGISTERED_NAMES is not None and set_metadata is not None:
        _replace(name, functools.partial(_set_metadata, set_metadata))


_replace_metadata_function()


@contextlib.contextmanager
def _entered(name: str, device: Optional[int], is_registered: bool) -> Iterator[Pool]:
    torch.cuda.init()
    found = _tag_pool(name, _ordinal(device), is_registered)
    _call(RuntimeError, "xseg_torch_tag_enter", found.handle)
    try:
        yield found
    finally:
        _call(RuntimeError, "xseg_torch_tag_leave")


@contextlib.contextmanager
def tag(name: str, device: Optional[int] = None) -> Iterator[Pool]:
    """Make the calling thread allocate from the pool of this name during the with statement.

    The pool is created at the first use and never released.  By default it is on the current device.  The innermost of tags,
    torch.cuda.use_mem_pool() and captures applies.  Other threads are not affected.

    A name that XSEG_TORCH_REGISTERED matches is a registered() tag.
    """
    is_registered = _REGISTERED_NAMES is not None and _REGISTERED_NAMES.fullmatch(name) is not None
    with _entered(name, device, is_registered) as found:
        yield found


@contextlib.contextmanager
def registered(name: str, device: Optional[int] = None) -> Iterator[Pool]:
    """A tag() for memory that NCCL, UCX or network adapters register.

    Each allocation of more than 1 MiB is a single physical page that network adapters can access; smaller ones share such pages of
    2 MiB.  ArgumentError: the name is already that of an ordinary tag().

    To keep registered memory mapped, keep the tensor and pin() it.
    """
    with _entered(name, device, True) as found:
        yield found


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Suspend the tags of the calling thread during the with statement."""
    _call(RuntimeError, "xseg_torch_tag_suspend", True)
    try:
        yield
    finally:
        _call(RuntimeError, "xseg_torch_tag_suspend", False)


def tags(name: Optional[str] = None) -> List[Tuple[str, Pool]]:
    """List all tags, or those of a name, with their pools: one for each device that uses the tag."""
    with _lock:
        return [(key[0], found) for key, found in _tags.items() if name is None or key[0] == name]


def _find_tags(name: Optional[str]) -> List[Tuple[str, Pool]]:
    found = tags(name)
    if name is not None and not found:
        raise KeyError(f"xseg.torch: unknown tag, {name!r}; allocate in xseg.torch.tag({name!r}) first")
    return found


def _change_state(change: Callable[[], None], unchanged: Type[Error]) -> bool:
    """Pause or resume a pool; False: the pool was already in that state, for which the library raises `unchanged`."""
    try:
        change()
    except unchanged:
        return False
    return True


def _pause(name: Optional[str], keep: str) -> List[Pool]:
    """Pause the pools of a tag, or of all tags, that are not paused; returns them."""
    if keep not in ("nothing", "host"):
        raise ValueError(f'xseg.torch.pause: unknown keep, {keep!r}; use "nothing" or "host"')
    found, paused_pools = _find_tags(name), []
    try:
        for _, tag_pool in found:
            torch.cuda.synchronize(tag_pool.device)
            if _change_state(functools.partial(tag_pool.pause, keep), PausedError):
                paused_pools.append(tag_pool)
    except Exception:
        _resume(paused_pools)
        raise
    if name is not None and not paused_pools:
        raise PausedError(f"xseg.torch.pause: tag is already paused, {name!r}; call xseg.torch.resume({name!r}) first")
    return paused_pools


def _resume(pools: List[Pool]) -> bool:
    """Resume paused pools; False: no pool was paused."""
    return sum(_change_state(each.resume, ArgumentError) for each in pools) > 0


def pause(name: Optional[str] = None, keep: str = "nothing") -> None:
    """Release the physical memory of a tag, or of all tags that are not paused.  Tensors and graphs keep their addresses.

    `keep`: "nothing" discards the contents, "host" keeps them in pinned memory.  Synchronizes the devices first.  On an error the
    pools that this call has paused are resumed.
    """
    _pause(name, keep)


def resume(name: Optional[str] = None) -> None:
    """Map memory of a paused tag, or of all paused tags, at the same addresses."""
    if not _resume([each for _, each in _find_tags(name)]) and name is not None:
        raise ArgumentError(f"xseg.torch.resume: tag is not paused, {name!r}; call xseg.torch.pause({name!r}) first")


@contextlib.contextmanager
def paused(name: Optional[str] = None, keep: str = "nothing") -> Iterator[None]:
    """pause() during the with statement."""
    paused_pools = _pause(name, keep)
    try:
        yield
    finally:
        _resume(paused_pools)


def _extent(tensor: torch.Tensor) -> Tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def pin(tensor: torch.Tensor) -> None:
    """Pin the pages of a tensor until unpin(), for libraries that register addresses."""
    _library.call("xseg_pin", allocator().handle, *_extent(tensor))


def unpin(tensor: torch.Tensor) -> None:
    """Release one pin."""
    _library.call("xseg_unpin", allocator().handle, *_extent(tensor))
