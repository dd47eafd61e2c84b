# SPDX-License-Identifier: MIT
"""One exception for each status of libxseg.so; its text is that of xseg_error_message()."""
from typing import Dict, Type


class Error(Exception):
    """A call of the library failed.  The text says what was refused, and what to do."""

    #: The number of the status, as in xseg/status.h.
    status = 0


class ArgumentError(Error, ValueError):
    """An argument is outside what the function accepts."""

    status = -1


class ArgumentTypeError(ArgumentError, TypeError):
    """An ArgumentError whose argument has a type that the function does not accept."""


class ConfigError(Error, ValueError):
    """The configuration string has an error: the text names the key, the value and the position."""

    status = -2


class NoMemoryError(Error, MemoryError):
    """The device has no memory left for the request."""

    status = -3


class NoAddressesError(Error, MemoryError):
    """No device addresses are left to reserve."""

    status = -4


class LimitError(Error, MemoryError):
    """A limit leaves no room; the text names which."""

    status = -5


class HostMemoryError(Error, MemoryError):
    """No host memory is left for bookkeeping."""

    status = -6


class NoDriverError(Error):
    """The CUDA driver is missing, too old, or shows no device."""

    status = -7


class DriverError(Error):
    """A driver call failed."""

    status = -8


class NotAllocatedError(Error, ValueError):
    """The pointer is not a live block of this allocator."""

    status = -9


class BusyError(Error):
    """Live blocks or unfinished work stand in the way."""

    status = -10


class UnsupportedError(Error):
    """This device or this build cannot do that."""

    status = -11


class ForkedError(Error):
    """The allocator belongs to the parent process."""

    status = -12


class DeviceLostError(Error):
    """The device or its context is gone; only the host side still works."""

    status = -13


class PausedError(Error):
    """The pool is paused: resume it first."""

    status = -14


class FileError(Error, OSError):
    """A file could not be made, written or read."""

    status = -15


#: The class of each status.
ERRORS: Dict[int, Type[Error]] = {kind.status: kind for kind in Error.__subclasses__()}
for _kind in (Error, *ERRORS.values()):
    _kind.__module__ = "xseg"  # what people import, and read in a traceback


def error(status: int, text: str) -> Error:
    """The exception of a status; one that this package does not know is an Error of that number."""
    failure = ERRORS.get(status, Error)(text)
    failure.status = status
    return failure
