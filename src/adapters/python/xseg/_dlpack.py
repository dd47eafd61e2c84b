# SPDX-License-Identifier: MIT
"""A block, or a part of a range, as a DLPack tensor: one dimension of bytes.

The capsule, and then its consumer, keep a reference to the block, which is freed with the last reference.  A consumer can outlive
the interpreter: the structures that it reads are allocated by malloc(), and at exit their deleters, which are functions of Python,
are replaced by free().  Blocks to which consumers refer at that time are never freed.

A capsule has no destructor: ctypes would call it while an exception is raised, such as that of a consumer that rejects the
capsule, and lose that exception.  So this module refers to each capsule until release_unconsumed() finds it consumed or
without other references.
"""
import atexit
import ctypes
import sys
from ctypes import (
    CFUNCTYPE, POINTER, PYFUNCTYPE, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32,
    c_uint64, c_void_p, py_object,
)
from typing import Any, Dict, Optional, Tuple

from xseg._errors import HostMemoryError
from xseg._streams import Handle, handle

CUDA = 2  # kDLCUDA
UINT, BITS = 1, 8  # kDLUInt
VERSION = (1, 0)
PLAIN_NAME, VERSIONED_NAME = b"dltensor", b"dltensor_versioned"
LEGACY = 1  # the legacy default stream
NO_ORDER = -1  # the consumer orders its stream itself


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


class _Plain(Structure):
    """Memory of a capsule: the structure, and the arrays to which it points."""

    _fields_ = [("managed", Managed), ("shape", c_int64), ("strides", c_int64)]


class _Versioned(Structure):
    """Memory of a capsule of version 1."""

    _fields_ = [("managed", ManagedVersioned), ("shape", c_int64), ("strides", c_int64)]


# Separate prototypes: other modules can change those of ctypes.pythonapi.
_capsule_new = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_capsule_is = PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
# Raises the exception that is set in C: ctypes checks for one after each call of such a function.
_raise_current = PYFUNCTYPE(c_void_p)(("PyErr_Occurred", ctypes.pythonapi))
keep = PYFUNCTYPE(None, py_object)(("Py_IncRef", ctypes.pythonapi))
_c = ctypes.CDLL(None)
_malloc = CFUNCTYPE(c_void_p, c_size_t)(("malloc", _c))
_free = CFUNCTYPE(None, c_void_p)(("free", _c))

# By the address of the tensor: the address of its deleter, and the block to which a capsule or a consumer refers.
_tensors: Dict[int, Tuple[int, Any]] = {}
# By the address of the tensor: the capsules that release_unconsumed() has not found consumed.
_capsules: Dict[int, Any] = {}
_exiting = False


@CFUNCTYPE(None, c_void_p)
def _delete(address: int) -> None:
    """Deleter of a tensor.  The consumer calls it once, in any thread.

    The tensor may be destroyed while an exception is raised.  ctypes cannot preserve that exception: it prints the exception here,
    and the caller raises SystemError.
    """
    try:
        _raise_current()
    finally:
        _, block = _tensors.pop(address)
        _capsules.pop(address, None)
        block._exports.discard(address)
        _free(address)


def _references(objects: Dict[int, Any], key: int) -> int:
    return sys.getrefcount(objects[key])


_UNSHARED_COUNT = _references({0: object()}, 0)


def release_unconsumed() -> None:
    """Release the blocks whose capsules have not been consumed and have no other reference."""
    for address in list(_capsules):
        try:
            # Read before the name, because no other thread can consume the capsule then.
            is_unshared = _references(_capsules, address) <= _UNSHARED_COUNT
            is_pending = any(_capsule_is(_capsules[address], name) for name in (PLAIN_NAME, VERSIONED_NAME))
            if is_pending and not is_unshared:
                continue
            del _capsules[address]
        except KeyError:  # another thread released the capsule
            continue
        if is_pending:
            _delete(address)


@atexit.register
def _detach_consumers() -> None:
    """Make the tensors of consumers independent of the interpreter."""
    global _exiting  # pylint: disable=global-statement
    _exiting = True
    release_unconsumed()
    for deleter, block in list(_tensors.values()):
        _make_independent(deleter, block)


def _make_independent(deleter: int, block: Any) -> None:
    c_void_p.from_address(deleter).value = ctypes.cast(_free, c_void_p).value
    keep(block)  # its destruction would free the memory


def consumer(stream: Handle) -> int:
    """Convert the argument `stream` of __dlpack__() to a handle; NO_ORDER: the consumer orders its stream."""
    return NO_ORDER if type(stream) is int and stream == NO_ORDER else handle(stream) or LEGACY  # pylint: disable=unidiomatic-typecheck


def check(device: int, requested: Optional[Tuple[int, int]], copy: Optional[bool]) -> None:
    """Raise BufferError if a consumer requests a copy or another device."""
    if copy:
        raise BufferError("__dlpack__: copies are not supported; omit copy")
    if requested not in (None, (CUDA, device)):
        raise BufferError(f"__dlpack__: dl_device is not the device of the memory, {requested}; pass {(CUDA, device)}")


def capsule(block: Any, max_version: Optional[Tuple[int, int]]) -> Any:
    """Create a capsule for a block or a view; `max_version` is the newest version that the consumer supports."""
    release_unconsumed()
    is_versioned = max_version is not None and max_version[0] >= VERSION[0]
    kind, pointer = _Versioned if is_versioned else _Plain, block.pointer
    address = _malloc(ctypes.sizeof(kind))
    if not address:
        raise HostMemoryError("__dlpack__: out of host memory, tensor")
    ctypes.memset(address, 0, ctypes.sizeof(kind))
    memory = kind.from_address(address)
    memory.shape, memory.strides = block.size, 1
    managed, tensor = memory.managed, memory.managed.tensor
    tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = pointer, CUDA, block.device, 1
    tensor.code, tensor.bits, tensor.lanes = UINT, BITS, 1
    tensor.shape = ctypes.cast(address + kind.shape.offset, POINTER(c_int64))
    tensor.strides = ctypes.cast(address + kind.strides.offset, POINTER(c_int64))
    managed.deleter = ctypes.cast(_delete, c_void_p)
    if is_versioned:
        managed.major, managed.minor = VERSION
    deleter = address + type(managed).deleter.offset
    created = _capsules[address] = _capsule_new(address, VERSIONED_NAME if is_versioned else PLAIN_NAME, None)
    _tensors[address] = deleter, block
    block._exports.add(address)
    if _exiting:
        _make_independent(deleter, block)
    return created
