# SPDX-License-Identifier: MIT
"""The few calls of the CUDA driver that make one stream wait for another."""
import ctypes
import os
from ctypes import byref, c_int, c_uint, c_void_p

from xseg._errors import BusyError, DriverError

DISABLE_TIMING = 2


def _checked(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Make a call of the driver; DriverError if it fails."""
    result = getattr(driver, name)(*arguments)
    if result:
        raise DriverError(f"{name}: driver call failed, CUDA error {result}")


def _refuse_captures(driver: ctypes.CDLL, *streams: int) -> None:
    """BusyError: one of the streams is captured."""
    for stream in streams:
        status = c_int()
        _checked(driver, "cuStreamIsCapturing", c_void_p(stream), byref(status))
        if status.value:
            raise BusyError(f"cuStreamIsCapturing: stream is being captured, 0x{stream:x}; end the capture first")


def wait(driver: str, device: int, before: int, after: int, *, is_unasked: bool = False) -> None:
    """Let what is queued on stream `after` from now on wait for what is queued on stream `before` by now.

    `driver` is a library as for dlopen(); "": the environment's XSEG_DRIVER, else libcuda.so.1.  Nothing waits on the
    host.  is_unasked: nobody has asked for it, so it is to be no part of a capture (BusyError).  Cost: seven calls of the driver.
    """
    library = ctypes.CDLL(driver or os.environ.get("XSEG_DRIVER") or "libcuda.so.1")
    context, event, popped = c_void_p(), c_void_p(), c_void_p()
    _checked(library, "cuDevicePrimaryCtxRetain", byref(context), c_int(device))
    try:
        _checked(library, "cuCtxPushCurrent_v2", context)
        try:
            if is_unasked:
                _refuse_captures(library, before, after)
            _checked(library, "cuEventCreate", byref(event), c_uint(DISABLE_TIMING))
            try:
                _checked(library, "cuEventRecord", event, c_void_p(before))
                _checked(library, "cuStreamWaitEvent", c_void_p(after), event, c_uint(0))
            finally:
                _checked(library, "cuEventDestroy_v2", event)
        finally:
            _checked(library, "cuCtxPopCurrent_v2", byref(popped))
    finally:
        _checked(library, "cuDevicePrimaryCtxRelease_v2", c_int(device))
