# SPDX-License-Identifier: MIT
"""PyTorch on xseg: importing this module makes PyTorch allocate by it, and nothing else changes.

    import torch
    import xseg.torch                   # before CUDA is first used; or XSEG_TORCH=1 in the environment

    torch.cuda.get_allocator_backend()  # 'xseg'

All of torch.cuda.memory goes on working.  What PyTorch has no words for is here:

    with xseg.torch.tag("weights"):     # a pool of its own
        model = build()
    xseg.torch.pause("weights")         # its memory goes, its addresses stay
    xseg.torch.resume("weights")
    with xseg.torch.registered("cache"):  # a tag for what NCCL, UCX or network cards register
        cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    blocks = xseg.torch.range(64 << 30)  # addresses for the worst case, memory where commit() says
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
from xseg.torch._build import Refused

__all__ = ["Range", "Refused", "allocator", "info", "pause", "paused", "pin", "pool", "range", "registered", "resume", "suspended",
           "tag", "tags", "unpin"]

TEXT_BYTES = 4096


class Range(_range.Range):
    """A range of PyTorch's allocator, and so under its limits.  Made by xseg.torch.range().

    A stream of None is PyTorch's current one on the device.  Python's lock is let go of as long as a call lasts.
    """

    def tensor(self, shape: Sequence[int], dtype: Optional[torch.dtype] = None, offset: int = 0) -> torch.Tensor:
        """A tensor over a part of the range, from a byte on; it holds the range.  dtype None: PyTorch's default.

        Nothing is read or written: there may be no memory beneath it.  commit() makes more of it usable, and not the tensor
        longer.  What nothing is committed beneath must not be touched, by copies and printing neither.
        """
        kind = torch.get_default_dtype() if dtype is None else dtype
        offset = integer(offset, ctypes.c_uint64, "Range.tensor: offset")
        if offset % kind.itemsize:
            raise ArgumentError(f"Range.tensor: offset is not aligned to {kind}, {offset} bytes; pass a multiple of {kind.itemsize}")
        part = self.view(offset, math.prod(shape) * kind.itemsize)
        return cast(torch.Tensor, torch.from_dlpack(part).view(kind).view(tuple(shape)))

    def _number(self, stream: Handle) -> int:
        return handle(torch.cuda.current_stream(self.device) if stream is None else stream)


class _Borrowed(Allocator):
    """PyTorch's allocator; it belongs to the adapter, and is never closed."""

    _ranges = Range

    def __init__(self, number: int) -> None:  # pylint: disable=super-init-not-called
        self.handle = number
        self.driver = ""
        self._log = None

    def close(self) -> None:
        """Nothing: PyTorch goes on using it."""

    def register(self, *_: Any, **__: Any) -> Any:
        """UnsupportedError: PyTorch frees tensors while it holds Python's lock, for which such functions would wait."""
        raise UnsupportedError("register: Python callbacks are not supported for PyTorch's memory; allocate it in "
                               "xseg.torch.registered() and pin() it, or call xseg_register() from C")

    def __del__(self) -> None:
        pass


class _BorrowedPool(Pool):
    """A pool that the adapter holds."""

    def release(self) -> None:
        """Nothing: the adapter holds it."""

    def __del__(self) -> None:
        pass


def _declare(adapter: ctypes.CDLL) -> ctypes.CDLL:
    text = (ctypes.c_char_p, ctypes.c_size_t)
    adapter.xseg_torch_install.argtypes = text
    adapter.xseg_torch_library.restype = ctypes.c_void_p
    adapter.xseg_torch_library.argtypes = ()
    adapter.xseg_torch_open_device.argtypes = (ctypes.c_int, *text)
    adapter.xseg_torch_check_settings.argtypes = (ctypes.c_char_p, ctypes.c_size_t, *text)
    adapter.xseg_torch_restore_settings.argtypes = text
    adapter.xseg_torch_hears_settings.restype = ctypes.c_bool
    adapter.xseg_torch_hears_settings.argtypes = ()
    adapter.xseg_torch_settings.argtypes = (ctypes.c_char_p, *text)
    adapter.xseg_torch_pool.restype = ctypes.c_void_p
    adapter.xseg_torch_pool.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
    adapter.xseg_torch_tag.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_bool,
                                       ctypes.POINTER(ctypes.c_void_p), *text)
    adapter.xseg_torch_tag_enter.argtypes = (ctypes.c_void_p, *text)
    adapter.xseg_torch_tag_leave.argtypes = text
    adapter.xseg_torch_tag_label.argtypes = (ctypes.c_void_p, *text)
    adapter.xseg_torch_tag_suspend.argtypes = (ctypes.c_bool, *text)
    return adapter


def _call(kind: type, name: str, *arguments: Any, value_kind: Optional[type] = None) -> None:
    """kind: the exception; value_kind: that for what a value has caused, where it is another."""
    text = ctypes.create_string_buffer(TEXT_BYTES)
    result = getattr(_ADAPTER, name)(*arguments, text, len(text))
    if result:
        raise (value_kind if value_kind and result == -1 else kind)(text.value.decode(errors="replace"))


def _check_process() -> None:
    """What can be seen before anything is built."""
    _library.load()
    if torch.version.cuda is None:
        raise Refused(f"xseg.torch: PyTorch was built without CUDA, version {torch.__version__}; install a build with CUDA")
    if torch.cuda.is_initialized() and torch.cuda.get_allocator_backend() != "xseg":
        raise Refused("xseg.torch: CUDA is already initialized with PyTorch's own allocator; import xseg.torch right after torch, "
                      "or set XSEG_TORCH=1 in the environment")
    driver = os.environ.get("XSEG_DRIVER")
    if driver:
        try:
            ctypes.CDLL(driver)
        except OSError as refusal:
            raise Refused(f"XSEG_DRIVER: cannot load the driver, {refusal}; unset XSEG_DRIVER to use libcuda.so.1") from refusal


def _original(name: str) -> Any:
    """A function of torch._C, or None; that which _replace() has replaced, if this module is imported again."""
    found = getattr(torch._C, name, None)  # pylint: disable=protected-access
    return getattr(found, "xseg_original", found)


def _replace(name: str, function: Any) -> None:
    function.xseg_original = _original(name)
    setattr(torch._C, name, function)  # pylint: disable=protected-access


def _apply_settings(settings: str) -> None:
    """For older versions, which do not tell an allocator of new settings."""
    _call(ValueError, "xseg_torch_settings", settings.encode())


def _set_settings(apply: Callable[[str], None], settings: str) -> None:
    """Apply a string, or nothing of it: PyTorch's own function applies what comes before an error."""
    try:
        if isinstance(settings, str):  # else PyTorch's TypeError says so
            text = settings.encode(errors="surrogateescape")
            _call(RuntimeError, "xseg_torch_check_settings", text, len(text), value_kind=ValueError)
        apply(settings)
    except BaseException:
        _call(RuntimeError, "xseg_torch_restore_settings")
        raise


def _follow_settings() -> None:
    for name in ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"):
        found = _original(name)
        if found is not None:
            apply = found if _ADAPTER.xseg_torch_hears_settings() else _apply_settings
            _replace(name, functools.partial(_set_settings, apply))


def _registered_names() -> Optional["re.Pattern[str]"]:
    """What the environment says of which tags and labels are registered; None: none."""
    text = os.environ.get("XSEG_TORCH_REGISTERED")
    if not text:
        return None
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as refusal:
        print(f"xseg.torch: ignoring XSEG_TORCH_REGISTERED: invalid regular expression, {text!r}, {refusal}; set an expression of "
              "Python's re that matches whole names, such as kv_cache|weights", file=sys.stderr)
        return None


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
_call(Refused, "xseg_torch_install")
_follow_settings()
_lock = threading.Lock()
_tags: Dict[Tuple[str, int], Pool] = _build.TAGS
_registered: Set[str] = _build.REGISTERED  # names of tags whose memory others register
_REGISTERED_NAMES = _registered_names()


def info() -> Dict[str, Any]:
    """What PyTorch runs on: whether xseg is in place, which files, and which methods of PyTorch's it does not have."""
    return {
        "backend": torch.cuda.get_allocator_backend(),
        "library": _library.path(),
        "adapter": _ADAPTER._name,
        "torch": torch.__version__,
        "uncovered": _uncovered(),
    }


def allocator() -> Allocator:
    """The allocator that PyTorch allocates by, to limit, trim, explain and configure it; CUDA is initialised first."""
    torch.cuda.init()
    return _Borrowed(_ADAPTER.xseg_torch_library())


def _ordinal(device: Optional[int]) -> int:
    """The ordinal of an argument `device`: the current one of None.  PyTorch has 8 bits for it."""
    return torch.cuda.current_device() if device is None else integer(device, ctypes.c_int8, "xseg.torch: device")


def pool(mempool: Any, device: Optional[int] = None) -> Pool:
    """The library's pool behind a torch.cuda.MemPool or the id of one; KeyError: nothing holds it."""
    first, second = (integer(each, ctypes.c_uint64, "xseg.torch.pool: mempool") for each in getattr(mempool, "id", mempool))
    device = _ordinal(device)
    number = _ADAPTER.xseg_torch_pool(device, first, second)
    if not number:
        raise KeyError(f"xseg.torch.pool: no such memory pool, ID ({first}, {second}) on device {device}; keep the MemPool alive, "
                       "and pass the device on which it was created")
    return _BorrowedPool(allocator(), number, device)


def range(size: int, device: Optional[int] = None,  # pylint: disable=redefined-builtin
          **options: Any) -> Range:
    """Reserve addresses of PyTorch's allocator, on the current device or the one given; options are those of Allocator.range().

    pool=: that of a tag or a MemPool, `with tag("cache") as pool`, which limits it, pauses and resumes it.
    """
    torch.cuda.init()
    device = _ordinal(device)
    _call(RuntimeError, "xseg_torch_open_device", device)
    return cast(Range, allocator().range(size, device, **options))


def _check_kind(name: str, is_registered: bool) -> None:
    """A name stands for one kind of memory, on all devices."""
    if (name in _registered) != is_registered and any(each == name for each, _ in _tags):
        was, now = ("registered", "tag") if name in _registered else ("tag", "registered")
        raise ArgumentError(f"xseg.torch.{now}: tag was created by xseg.torch.{was}(), {name!r}; enter the tag with xseg.torch.{was}(), or "
                            "use another name")


def _tag_pool(name: str, device: int, is_registered: bool) -> Pool:
    with _lock:
        _check_kind(name, is_registered)
        found = _tags.get((name, device))
        if found is None:
            made = ctypes.c_void_p()
            first, second = torch.cuda.graph_pool_handle()
            _call(RuntimeError, "xseg_torch_tag", device, converted(name.encode(), ctypes.c_char_p, "xseg.torch: tag name"), first, second, is_registered, ctypes.byref(made))
            found = _tags[name, device] = _BorrowedPool(allocator(), made.value or 0, device)
            if is_registered:
                _registered.add(name)
        return found


def _set_metadata(set_metadata: Callable[[str], None], text: str) -> None:
    """PyTorch's function; a label that XSEG_TORCH_REGISTERED matches is a registered tag beside."""
    assert _REGISTERED_NAMES is not None
    found = _tag_pool(text, torch.cuda.current_device(), True).handle if _REGISTERED_NAMES.fullmatch(text) else None
    if found or torch.cuda.is_initialized():
        _call(RuntimeError, "xseg_torch_tag_label", found)
    set_metadata(text)


def _follow_labels() -> None:
    name = "_cuda_setMemoryMetadata"
    set_metadata = _original(name)
    if _REGISTERED_NAMES is not None and set_metadata is not None:
        _replace(name, functools.partial(_set_metadata, set_metadata))


_follow_labels()


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
    """While the with statement lasts, the calling thread allocates from the pool of this name.

    The pool is made at the first use, and stays.  It is the device's that is current at the start, or the one given.
    The innermost counts of tags, torch.cuda.use_mem_pool() and captures.  Other threads are not affected.

    A name that XSEG_TORCH_REGISTERED matches is that of a registered() tag.
    """
    is_registered = _REGISTERED_NAMES is not None and _REGISTERED_NAMES.fullmatch(name) is not None
    with _entered(name, device, is_registered) as found:
        yield found


@contextlib.contextmanager
def registered(name: str, device: Optional[int] = None) -> Iterator[Pool]:
    """A tag for what others register: NCCL, UCX, network cards.

    What is allocated of more than 1 MiB is one piece of physical memory each, which network cards may reach; what is
    smaller shares such a piece of 2 MiB.  In all else it is a tag.  ArgumentError: the name is that of a tag() which is
    none of these.

    To keep memory where it is while it is registered, hold the tensor and pin() it.
    """
    with _entered(name, device, True) as found:
        yield found


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """While the with statement lasts, the calling thread allocates as if it were in no tag."""
    _call(RuntimeError, "xseg_torch_tag_suspend", True)
    try:
        yield
    finally:
        _call(RuntimeError, "xseg_torch_tag_suspend", False)


def tags(name: Optional[str] = None) -> List[Tuple[str, Pool]]:
    """The tags there are, or those of a name, with their pools: one for each device that uses it."""
    with _lock:
        return [(key[0], found) for key, found in _tags.items() if name is None or key[0] == name]


def _named(name: Optional[str]) -> List[Tuple[str, Pool]]:
    found = tags(name)
    if name is not None and not found:
        raise KeyError(f"xseg.torch: unknown tag, {name!r}; allocate in xseg.torch.tag({name!r}) first")
    return found


def _is_moved(move: Callable[[], None], refusal: Type[Error]) -> bool:
    """Pause or resume a pool; False: it was so already."""
    try:
        move()
    except refusal:
        return False
    return True


def _pause(name: Optional[str], keep: str) -> List[Pool]:
    """What of a tag, or of all, was not paused is paused."""
    if keep not in ("nothing", "host"):
        raise ValueError(f'xseg.torch.pause: unknown keep, {keep!r}; use "nothing" or "host"')
    found, done = _named(name), []
    try:
        for _, each in found:
            torch.cuda.synchronize(each.device)
            if _is_moved(functools.partial(each.pause, keep), PausedError):
                done.append(each)
    except Exception:
        _resume(done)
        raise
    if name is not None and not done:
        raise PausedError(f"xseg.torch.pause: tag is already paused, {name!r}; call xseg.torch.resume({name!r}) first")
    return done


def _resume(pools: List[Pool]) -> bool:
    """Resume those that are paused; False: none was.  ArgumentError is the library's word for that."""
    return sum(_is_moved(each.resume, ArgumentError) for each in pools) > 0


def pause(name: Optional[str] = None, keep: str = "nothing") -> None:
    """Take the physical memory of a tag, or of all that are not paused, away; tensors and graphs keep their addresses.

    `keep`: "nothing" loses contents, "host" keeps them in pinned memory.  Devices are synchronised first.  On an error
    what was paused by this call is resumed.
    """
    _pause(name, keep)


def resume(name: Optional[str] = None) -> None:
    """Bring the memory of a paused tag, or of all that are paused, back beneath the same addresses."""
    if not _resume([each for _, each in _named(name)]) and name is not None:
        raise ArgumentError(f"xseg.torch.resume: tag is not paused, {name!r}; call xseg.torch.pause({name!r}) first")


@contextlib.contextmanager
def paused(name: Optional[str] = None, keep: str = "nothing") -> Iterator[None]:
    """pause(), and at the end of the with statement its memory comes back."""
    done = _pause(name, keep)
    try:
        yield
    finally:
        _resume(done)


def _extent(tensor: torch.Tensor) -> Tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def pin(tensor: torch.Tensor) -> None:
    """Keep the pages beneath a tensor where they are until unpin(), for those who register addresses."""
    _library.call("xseg_pin", allocator().handle, *_extent(tensor))


def unpin(tensor: torch.Tensor) -> None:
    """Take a pin back."""
    _library.call("xseg_unpin", allocator().handle, *_extent(tensor))
