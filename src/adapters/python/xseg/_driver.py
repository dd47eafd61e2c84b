# SPDX-License-Identifier: MIT
"""Driver calls that make one stream wait for another."""
import ctypes
import os
from ctypes import byref, c_int, c_uint, c_void_p

from xseg._errors import BusyError, DriverError

DISABLE_TIMING = 2


def _call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call a driver function.  DriverError: the call failed."""
    result = getattr(driver, name)(*arguments)
    if result:
        raise DriverError(f"{name}: driver call failed, CUDA error {result}")


def _reject_captures(driver: ctypes.CDLL, *streams: int) -> None:
    """Raise BusyError if one of the streams is being captured."""
    for stream in streams:
        status = c_int()
        _call(driver, "cuStreamIsCapturing", c_void_p(stream), byref(status))
        if status.value:
            raise BusyError(f"cuStreamIsCapturing: stream is being captured, 0x{stream:x}; end the capture first")


def wait(driver: str, device: int, before: int, after: int, *, is_implicit: bool = False) -> None:
    """Make later work of stream `after` wait for the work that is queued on stream `before`.

    `driver` is a library as for dlopen(); "": XSEG_DRIVER of the environment, or libcuda.so.1.  The host does not wait.
    is_implicit: the caller did not request the wait, so it must not become a part of a capture (BusyError).
    Cost: seven driver calls.
    """
    library = ctypes.CDLL(driver or os.environ.get("XSEG_DRIVER") or "libcuda.so.1")
    context, event, popped = c_void_p(), c_void_p(), c_void_p()
    _call(library, "cuDevicePrimaryCtxRetain", byref(context), c_int(device))
    try:
        _call(library, "cuCtxPushCurrent_v2", context)
        try:
            if is_implicit:
                _reject_captures(library, before, after)
            _call(library, "cuEventCreate", byref(event), c_uint(DISABLE_TIMING))
            try:
                _call(library, "cuEventRecord", event, c_void_p(before))
                _call(library, "cuStreamWaitEvent", c_void_p(after), event, c_uint(0))
            finally:
                _call(library, "cuEventDestroy_v2", event)
        finally:
            _call(library, "cuCtxPopCurrent_v2", byref(popped))
    finally:
        _call(library, "cuDevicePrimaryCtxRelease_v2", c_int(device))
