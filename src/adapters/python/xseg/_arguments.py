# SPDX-License-Identifier: MIT
"""Conversion of arguments to C: ctypes truncates integers to the C type and strings at a NUL, so this module rejects both.

_library.call() converts the arguments of every function by its parameter types, _records.structure() the members of every structure.
"""
import ctypes
import operator
from ctypes import c_char_p, c_double, c_int, c_int8, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, Tuple

from xseg._errors import ArgumentError, ArgumentTypeError


def _unsigned(kind: Any) -> Tuple[int, int]:
    return 0, (1 << 8 * ctypes.sizeof(kind)) - 1


#: By integer type: minimum and maximum.  Addresses and handles are integers as well.
LIMITS: Dict[Any, Tuple[int, int]] = {
    c_int: (-1 << 31, (1 << 31) - 1),
    c_int8: (-1 << 7, (1 << 7) - 1),
    **{kind: _unsigned(kind) for kind in (c_uint, c_uint32, c_size_t, c_uint64, c_void_p)},
}
#: Types that ctypes converts to a pointer without loss.
_POINTERS = (c_void_p, c_char_p, ctypes.Array, type(ctypes.byref(c_int())))


def integer(value: Any, kind: Any, name: str) -> int:
    """Convert an int, or an object with __index__(), to an int in the range of a type of ctypes.

    `name` is the operation and the argument in the message of an ArgumentError.  If the value is not an integer, the
    exception is a TypeError as well.  Floats and bools are not integers.
    """
    low, high = LIMITS[kind]
    if type(value) is not int:  # pylint: disable=unidiomatic-typecheck
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise ArgumentTypeError(f"{name} is not an integer, {value!r}; pass an integer from {low} to {high}")
        value = number
    if not low <= value <= high:
        shown = value if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        raise ArgumentError(f"{name} is out of range, {shown}; pass an integer from {low} to {high}")
    return int(value)


def _real(value: Any, name: str) -> float:
    """Convert a number to a C double."""
    if isinstance(value, (bool, str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise ArgumentTypeError(f"{name} is not a number, {value!r}; pass a float")
    try:
        return float(value)
    except OverflowError as error:
        raise ArgumentError(f"{name} is out of range for a float; pass a smaller number") from error


def converted(value: Any, kind: Any, name: str) -> Any:
    """Convert a value for a parameter or a member of a type of ctypes without loss; `name` is as in integer()."""
    if isinstance(value, kind) or (kind in (c_void_p, c_char_p) and (value is None or isinstance(value, _POINTERS))):
        return value
    if kind in LIMITS:
        return integer(value, kind, name)
    if kind is c_double:
        return _real(value, name)
    if kind is c_char_p and isinstance(value, bytes) and b"\0" in value:
        raise ArgumentError(f"{name} contains a NUL, {value!r}; pass a string without NUL")
    return value
