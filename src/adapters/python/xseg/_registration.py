# SPDX-License-Identifier: MIT
"""Registrations, whose callbacks follow the memory of a range of addresses, and dma-buf descriptors."""
import atexit
import ctypes
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple, Type

from xseg import _library, _structs
from xseg._errors import ForkedError

if TYPE_CHECKING:
    from xseg._allocator import Allocator

#: Receives the address and the size of a run, and returns a value for the leave function.
Enter = Callable[[int, int], Any]
#: Receives the address and the size of a run, and the return value of the enter function.
Leave = Callable[[int, int, Any], None]


# By the handle of the allocator and the ID of the registration: the callbacks.
_ACTIVE: Dict[Tuple[int, int], "_Calls"] = {}
_UNREFERENCED: Set[Tuple[int, int]] = set()  # unreferenced registrations that could not end in their own callbacks


def _end(key: Tuple[int, int]) -> int:
    """End a registration, and return the status of xseg_unregister()."""
    status = int(_library.load().xseg_unregister(*key))
    if status in (0, _structs.XSEG_ERR_ARGUMENT):
        _ACTIVE.pop(key, None)
        _UNREFERENCED.discard(key)
    return status


def end_unreferenced(handle: int) -> None:
    """End the unreferenced registrations of an allocator."""
    for key in [each for each in _UNREFERENCED if each[0] == handle]:
        _end(key)


@atexit.register
def _end_all() -> None:
    """End all registrations, so that no function of Python is called after the interpreter has ended."""
    for key in list(_ACTIVE):
        _end(key)


class _Calls:
    """The callbacks of a registration."""

    def __init__(self, enter: Enter, leave: Leave, pin: bool) -> None:
        self.enter, self.leave = enter, leave
        self.results: Dict[int, Any] = {}  # return values of `enter`, by address
        self.refusal: Optional[BaseException] = None
        fields = dict(_structs.xseg_registrar._fields_)
        self.registrar = _structs.xseg_registrar(ctypes.sizeof(_structs.xseg_registrar), None, fields["enter"](self._enter),
                                                 fields["leave"](self._leave), pin)

    def _enter(self, _: Any, run: Any) -> bool:
        base, size = run.contents.base, run.contents.bytes
        try:
            self.results[base] = self.enter(base, size)
        except BaseException as failure:  # pylint: disable=broad-except
            self.refusal = failure
            return False
        return True

    def _leave(self, _: Any, run: Any) -> None:
        base, size = run.contents.base, run.contents.bytes
        self.leave(base, size, self.results.pop(base))  # ctypes prints an exception


class Registration(_library.Owner):
    """A registration of a range of addresses, see xseg/register.h.  Created by Allocator.register().

    end(), the end of a with statement, or the end of the last reference ends the registration.
    """

    def __init__(self, allocator: "Allocator", address: int, size: int, calls: _Calls) -> None:
        """Created by Allocator.register()."""
        native_id = ctypes.c_uint64()
        self._key = (0, 0)
        end_unreferenced(allocator.handle)
        try:
            _library.call("xseg_register", allocator.handle, address, size, ctypes.byref(calls.registrar),
                          ctypes.byref(native_id))
        except Exception as error:
            if isinstance(calls.refusal, (KeyboardInterrupt, SystemExit)):
                raise calls.refusal
            raise error from calls.refusal
        self._allocator, self._calls, self._key = allocator, calls, (allocator.handle, native_id.value)
        _ACTIVE[self._key] = calls

    @property
    def refusal(self) -> Optional[BaseException]:
        """The last exception that `enter` raised for memory that was mapped after the registration; None: none."""
        return self._calls.refusal

    def end(self) -> None:
        """End the registration: `leave` is called for its memory.  A repeated call has no effect.

        BusyError: the call is from a callback of the registration.
        """
        calls = _ACTIVE.pop(self._key, None)  # only one thread continues
        if calls is None or not self._allocator.handle:
            return
        try:
            _library.call("xseg_unregister", *self._key)
        except BaseException:
            _ACTIVE[self._key] = calls
            raise

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.end()

    def __del__(self) -> None:
        """End the registration.  A failure, such as in a forked child, is not reported."""
        if self._key in _ACTIVE and self._allocator.handle and _end(self._key) == _structs.XSEG_ERR_BUSY:
            _UNREFERENCED.add(self._key)


def register(allocator: "Allocator", address: int, size: int, enter: Enter, leave: Leave, pin: bool) -> Registration:
    """Implement Allocator.register()."""
    return Registration(allocator, address, size, _Calls(enter, leave, pin))


class Dmabuf(_library.Owner):
    """A dma-buf descriptor of a range of memory.  Created by Allocator.dmabuf().

    close(), the end of a with statement, or the end of the last reference closes the descriptor and releases its pin.
    """

    def __init__(self, allocator: "Allocator", address: int, size: int, pin: bool, pcie: bool) -> None:
        """Created by Allocator.dmabuf()."""
        self._files: List[int] = []  # popped by the thread that closes it
        file, offset = ctypes.c_int(-1), ctypes.c_uint64()
        flags = (_structs.XSEG_DMABUF_PIN if pin else 0) | (_structs.XSEG_DMABUF_PCIE if pcie else 0)
        _library.call("xseg_dmabuf_open", allocator.handle, address, size, flags, ctypes.byref(file), ctypes.byref(offset))
        self._allocator, self._pins = allocator, pin
        self._files.append(file.value)
        #: Offset of the range in the descriptor, in bytes.
        self.offset = offset.value

    def fileno(self) -> int:
        """Get the descriptor; -1 after close()."""
        return self._files[0] if self._files else -1

    def close(self) -> None:
        """Close the descriptor.  A repeated call has no effect."""
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
            os.close(file)  # the parent process has the pin
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
