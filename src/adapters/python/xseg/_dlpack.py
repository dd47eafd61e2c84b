# SPDX-License-Identifier: MIT
"""A block, or a part of a range, as a DLPack tensor: one dimension of bytes.

The capsule, and then its consumer, hold the block: it is freed by the last of them, or by nobody if the interpreter ends
before.  Deleters are functions of Python, so at its end those that are still out are taken back.
"""
import atexit
import ctypes
from ctypes import (
    CFUNCTYPE, POINTER, PYFUNCTYPE, Structure, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32,
    c_uint64, c_void_p, py_object,
)
from typing import Any, Dict, Optional, Tuple

CUDA = 2  # kDLCUDA
UINT, BITS = 1, 8  # kDLUInt
VERSION = (1, 0)
PLAIN_NAME, VERSIONED_NAME = b"dltensor", b"dltensor_versioned"


class Tensor(Structure):
    """DLTensor."""

    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
                ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Managed(Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class ManagedVersioned(Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager_ctx", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", Tensor)]


# Own prototypes: those of ctypes.pythonapi belong to whoever set them last.
_capsule_new = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_capsule_is = PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_pointer = PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))

# By the address of its tensor: what a consumer still holds.
_held: Dict[int, Tuple[Any, ...]] = {}


@CFUNCTYPE(None, c_void_p)
def _delete(address: int) -> None:
    """What a consumer calls once, in any thread, when it needs the tensor no more."""
    block = _held.pop(address)[-1]
    block._exports.discard(address)


@CFUNCTYPE(None, c_void_p)
def _end_capsule(capsule: int) -> None:
    """Delete the tensor of a capsule that nobody has taken: consumers rename it."""
    for name in (PLAIN_NAME, VERSIONED_NAME):
        if _capsule_is(capsule, name):
            _delete(_capsule_pointer(capsule, name))


@atexit.register
def _take_back() -> None:
    """Consumers that end after the interpreter call nothing."""
    for managed, *_ in list(_held.values()):
        managed.deleter = None


def check(device: int, wanted: Optional[Tuple[int, int]], copy: Optional[bool]) -> None:
    """BufferError: a consumer asks for a copy, or for another device."""
    if copy:
        raise BufferError("memory of xseg is not copied: leave `copy` out")
    if wanted not in (None, (CUDA, device)):
        raise BufferError(f"the memory is on device {(CUDA, device)}, not on {wanted}")


def capsule(block: Any, max_version: Optional[Tuple[int, int]]) -> Any:
    """A capsule for a block, or what has its attributes; `max_version` is the newest that the consumer knows."""
    is_versioned = max_version is not None and max_version[0] >= VERSION[0]
    managed = ManagedVersioned() if is_versioned else Managed()
    shape, strides = (c_int64 * 1)(block.size), (c_int64 * 1)(1)
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = block.pointer, CUDA, block.device, 1
    tensor.code, tensor.bits, tensor.lanes = UINT, BITS, 1
    tensor.shape, tensor.strides = shape, strides
    managed.deleter = ctypes.cast(_delete, c_void_p)
    if is_versioned:
        managed.major, managed.minor = VERSION
    address = ctypes.addressof(managed)
    _held[address] = managed, shape, strides, block
    block._exports.add(address)
    return _capsule_new(address, VERSIONED_NAME if is_versioned else PLAIN_NAME, ctypes.cast(_end_capsule, c_void_p))
