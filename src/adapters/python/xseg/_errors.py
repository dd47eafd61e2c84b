# SPDX-License-Identifier: MIT
"""One exception class for each status of libxseg.so; the text is the message of xseg_error_message()."""
from typing import Dict, Type


class Error(Exception):
    """A call of the library failed.  The text contains the operation, the failure with its value, and a remedy."""

    #: Status, as in xseg/status.h.
    status = 0


class ArgumentError(Error, ValueError):
    """An argument is invalid."""

    status = -1


class ArgumentTypeError(ArgumentError, TypeError):
    """An ArgumentError whose argument has a type that the function does not accept."""


class ConfigError(Error, ValueError):
    """The configuration string is invalid; the text contains the key, the value and the position."""

    status = -2


class NoMemoryError(Error, MemoryError):
    """The device is out of memory."""

    status = -3


class NoAddressesError(Error, MemoryError):
    """The device is out of virtual addresses."""

    status = -4


class LimitError(Error, MemoryError):
    """A memory limit rejects the request; the text contains its name."""

    status = -5


class HostMemoryError(Error, MemoryError):
    """The host is out of memory."""

    status = -6


class NoDriverError(Error):
    """The CUDA driver is missing, is too old, or has no device."""

    status = -7


class DriverError(Error):
    """A driver call failed."""

    status = -8


class NotAllocatedError(Error, ValueError):
    """The address is not allocated memory of this allocator."""

    status = -9


class BusyError(Error):
    """The memory or the pool is in use."""

    status = -10


class UnsupportedError(Error):
    """This device or build does not support the operation."""

    status = -11


class ForkedError(Error):
    """The allocator belongs to the parent process."""

    status = -12


class DeviceLostError(Error):
    """The device or its context is lost; only host-side calls work."""

    status = -13


class PausedError(Error):
    """The pool is paused; resume it first."""

    status = -14


class FileError(Error, OSError):
    """A file or socket operation failed."""

    status = -15


#: The class of each status.
ERRORS: Dict[int, Type[Error]] = {kind.status: kind for kind in Error.__subclasses__()}
for _kind in (Error, *ERRORS.values()):
    _kind.__module__ = "xseg"  # the public name in tracebacks


def error(status: int, text: str) -> Error:
    """Create the exception of a status; an unknown status becomes an Error with that number."""
    failure = ERRORS.get(status, Error)(text)
    failure.status = status
    return failure
