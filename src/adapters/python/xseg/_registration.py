# SPDX-License-Identifier: MIT
"""Memory that others register: two functions that follow it, and descriptors of it."""
import ctypes
import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Type

from xseg import _library, _structs

if TYPE_CHECKING:
    from xseg._allocator import Allocator

#: Gets the address and the bytes of a run, and returns what the leave function of that run gets.
Enter = Callable[[int, int], Any]
#: Gets the address, the bytes, and what the enter function returned.
Leave = Callable[[int, int, Any], None]


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


class Registration:
    """A range whose memory is registered elsewhere, see xseg/registration.h.  Made by Allocator.register().

    Ended by end(), at the end of a with statement, or when nobody refers to it.
    """

    def __init__(self, allocator: "Allocator", address: int, size: int, calls: _Calls) -> None:
        """Made by Allocator.register()."""
        number = ctypes.c_uint64()
        self._number = 0
        try:
            _library.call("xseg_register", allocator.handle, address, size, ctypes.byref(calls.registrar),
                          ctypes.byref(number))
        except Exception as error:
            raise error from calls.refusal
        self._allocator, self._calls, self._number = allocator, calls, number.value

    @property
    def refusal(self) -> Optional[BaseException]:
        """What `enter` raised last, for memory that came later; None: nothing."""
        return self._calls.refusal

    def end(self) -> None:
        """`leave` is called for what is there; again: nothing happens."""
        number, self._number = self._number, 0
        if number and self._allocator.handle:
            try:
                _library.call("xseg_unregister", self._allocator.handle, number)
            except Exception:
                self._number = number
                raise

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.end()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.end()


def register(allocator: "Allocator", address: int, size: int, enter: Enter, leave: Leave, pin: bool) -> Registration:
    """As Allocator.register()."""
    return Registration(allocator, address, size, _Calls(enter, leave, pin))


class Dmabuf:
    """A descriptor that names a range of memory, and where in it the range begins.  Made by Allocator.dmabuf().

    Closed by close(), at the end of a with statement, or when nobody refers to it; a pin goes with it.
    """

    def __init__(self, allocator: "Allocator", address: int, size: int, pin: bool, pcie: bool) -> None:
        """Made by Allocator.dmabuf()."""
        file, offset = ctypes.c_int(-1), ctypes.c_uint64()
        flags = (_structs.XSEG_DMABUF_PIN if pin else 0) | (_structs.XSEG_DMABUF_PCIE if pcie else 0)
        self._file = -1
        _library.call("xseg_dmabuf", allocator.handle, address, size, flags, ctypes.byref(file), ctypes.byref(offset))
        self._allocator, self._file, self._pins = allocator, file.value, pin
        #: Where the range begins in what the descriptor names, in bytes.
        self.offset = offset.value

    def fileno(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._file

    def close(self) -> None:
        """Close the descriptor; again: nothing happens."""
        file, self._file = self._file, -1
        if file < 0:
            return
        if self._pins and self._allocator.handle:
            _library.call("xseg_dmabuf_close", self._allocator.handle, file)
        else:
            os.close(file)

    def __enter__(self) -> "Dmabuf":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()
