# SPDX-License-Identifier: MIT
"""Memory that others register: two functions that follow it, and descriptors of it."""
import atexit
import ctypes
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple, Type

from xseg import _library, _structs
from xseg._errors import ForkedError

if TYPE_CHECKING:
    from xseg._allocator import Allocator

#: Gets the address and the bytes of a run, and returns what the leave function of that run gets.
Enter = Callable[[int, int], Any]
#: Gets the address, the bytes, and what the enter function returned.
Leave = Callable[[int, int, Any], None]


# By the handle of the allocator and the number of the registration: what the library may call.
_LIVE: Dict[Tuple[int, int], "_Calls"] = {}
_LEFT: Set[Tuple[int, int]] = set()  # those that nobody refers to, and that could not end within their own functions


def _end(key: Tuple[int, int]) -> int:
    """End a registration; the status of xseg_unregister()."""
    status = int(_library.load().xseg_unregister(*key))
    if status in (0, _structs.XSEG_ERR_ARGUMENT):
        _LIVE.pop(key, None)
        _LEFT.discard(key)
    return status


def end_left(handle: int) -> None:
    """End what of an allocator nobody refers to any more."""
    for key in [each for each in _LEFT if each[0] == handle]:
        _end(key)


@atexit.register
def _end_all() -> None:
    """No function of Python is called once Python has ended."""
    for key in list(_LIVE):
        _end(key)


class _Calls:
    """The two functions as the library calls them."""

    def __init__(self, enter: Enter, leave: Leave, pin: bool) -> None:
        self.enter, self.leave = enter, leave
        self.kept: Dict[int, Any] = {}  # what entered, by address
        self.refusal: Optional[BaseException] = None
        fields = dict(_structs.xseg_registrar._fields_)
        self.registrar = _structs.xseg_registrar(ctypes.sizeof(_structs.xseg_registrar), None, fields["enter"](self._enter),
                                                 fields["leave"](self._leave), pin)

    def _enter(self, _: Any, run: Any) -> bool:
        base, size = run.contents.base, run.contents.bytes
        try:
            self.kept[base] = self.enter(base, size)
        except BaseException as refusal:  # pylint: disable=broad-except
            self.refusal = refusal
            return False
        return True

    def _leave(self, _: Any, run: Any) -> None:
        base, size = run.contents.base, run.contents.bytes
        self.leave(base, size, self.kept.pop(base))  # ctypes prints what it raises


class Registration(_library.Owner):
    """A range whose memory is registered elsewhere, see xseg/register.h.  Made by Allocator.register().

    Ended by end(), at the end of a with statement, or when nobody refers to it.
    """

    def __init__(self, allocator: "Allocator", address: int, size: int, calls: _Calls) -> None:
        """Made by Allocator.register()."""
        number = ctypes.c_uint64()
        self._key = (0, 0)
        end_left(allocator.handle)
        try:
            _library.call("xseg_register", allocator.handle, address, size, ctypes.byref(calls.registrar),
                          ctypes.byref(number))
        except Exception as error:
            if isinstance(calls.refusal, (KeyboardInterrupt, SystemExit)):
                raise calls.refusal
            raise error from calls.refusal
        self._allocator, self._calls, self._key = allocator, calls, (allocator.handle, number.value)
        _LIVE[self._key] = calls

    @property
    def refusal(self) -> Optional[BaseException]:
        """What `enter` raised last, for memory that came later; None: nothing."""
        return self._calls.refusal

    def end(self) -> None:
        """`leave` is called for what is there; again: nothing happens.  BusyError: within one of its own functions."""
        calls = _LIVE.pop(self._key, None)  # by one thread
        if calls is None or not self._allocator.handle:
            return
        try:
            _library.call("xseg_unregister", *self._key)
        except BaseException:
            _LIVE[self._key] = calls
            raise

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.end()

    def __del__(self) -> None:
        """Nobody hears of a failure here, such as in a forked child."""
        if self._key in _LIVE and self._allocator.handle and _end(self._key) == _structs.XSEG_ERR_BUSY:
            _LEFT.add(self._key)


def register(allocator: "Allocator", address: int, size: int, enter: Enter, leave: Leave, pin: bool) -> Registration:
    """As Allocator.register()."""
    return Registration(allocator, address, size, _Calls(enter, leave, pin))


class Dmabuf(_library.Owner):
    """A descriptor that names a range of memory, and where in it the range begins.  Made by Allocator.dmabuf().

    Closed by close(), at the end of a with statement, or when nobody refers to it; a pin goes with it.
    """

    def __init__(self, allocator: "Allocator", address: int, size: int, pin: bool, pcie: bool) -> None:
        """Made by Allocator.dmabuf()."""
        self._files: List[int] = []  # popped by whoever closes it
        file, offset = ctypes.c_int(-1), ctypes.c_uint64()
        flags = (_structs.XSEG_DMABUF_PIN if pin else 0) | (_structs.XSEG_DMABUF_PCIE if pcie else 0)
        _library.call("xseg_dmabuf_open", allocator.handle, address, size, flags, ctypes.byref(file), ctypes.byref(offset))
        self._allocator, self._pins = allocator, pin
        self._files.append(file.value)
        #: Where the range begins in what the descriptor names, in bytes.
        self.offset = offset.value

    def fileno(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._files[0] if self._files else -1

    def close(self) -> None:
        """Close the descriptor; again: nothing happens."""
        try:
            file = self._files.pop()
        except IndexError:
            return
        try:
            if self._pins and self._allocator.handle:
                _library.call("xseg_dmabuf_close", self._allocator.handle, file)
            else:
                os.close(file)
        except ForkedError:
            os.close(file)  # the pin is the parent's
        except BaseException:
            self._files.append(file)
            raise

    def __enter__(self) -> "Dmabuf":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
