# SPDX-License-Identifier: MIT
"""The simulated driver, for tests that query it or keep its streams busy."""
import ctypes
import gc
import os
import unittest
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

import xseg

FOREVER = 2**64 - 1
NOT_READY = 600  # CUDA_ERROR_NOT_READY

simulator = ctypes.CDLL(os.environ["XSEG_DRIVER"])
simulator.xseg_sim_launch.argtypes = [c_void_p, c_uint64]
simulator.xseg_sim_finish.argtypes = [c_void_p]
simulator.xseg_sim_calls.restype = c_uint64
simulator.xseg_sim_calls.argtypes = [c_char_p]
simulator.xseg_sim_used.restype = c_uint64
simulator.xseg_sim_leaks.restype = c_size_t
simulator.xseg_sim_leaks.argtypes = [c_char_p, c_size_t]
simulator.xseg_sim_fail.argtypes = [c_char_p, c_uint64, c_int]


def call_driver(name, *arguments):
    """Calls a driver function and expects success."""
    result = getattr(simulator, name)(*arguments)
    if result:
        raise AssertionError(f"{name} returned {result}")


def reset():
    call_driver("xseg_sim_reset", None)


def leaks():
    buffer = ctypes.create_string_buffer(4096)
    simulator.xseg_sim_leaks(buffer, len(buffer))
    return buffer.value.decode()


class Case(unittest.TestCase):
    """Resets the simulator before each test, and expects no leaks after it."""

    def setUp(self):
        reset()

    def tearDown(self):
        self.doCleanups()
        gc.collect()
        self.assertEqual(leaks(), "")


class Stream:
    """A stream of device 0, as an object with the protocol of cuda.core."""

    def __init__(self):
        self.context, stream = c_void_p(), c_void_p()
        call_driver("cuInit", c_uint(0))
        call_driver("cuDevicePrimaryCtxRetain", byref(self.context), c_int(0))
        call_driver("cuCtxSetCurrent", self.context)
        call_driver("cuStreamCreate", byref(stream), c_uint(1))
        self.stream_handle = stream.value

    def __cuda_stream__(self):
        return 0, self.stream_handle

    def launch(self):
        """Queues work that completes at the call of finish()."""
        call_driver("xseg_sim_launch", self.stream_handle, FOREVER)

    def finish(self):
        call_driver("xseg_sim_finish", self.stream_handle)

    def destroy(self):
        call_driver("cuStreamDestroy_v2", c_void_p(self.stream_handle))
        call_driver("cuDevicePrimaryCtxRelease_v2", c_int(0))


class StreamCase(Case):
    """A test case with an allocator and two streams."""

    config = "expandable_segments:True"

    def setUp(self):
        super().setUp()
        self.streams = [Stream(), Stream()]
        self.allocator = xseg.open(self.config)

    def tearDown(self):
        gc.collect()
        for stream in self.streams:
            self.allocator.stream_retire(stream)
        self.allocator.close()
        for stream in self.streams:
            stream.destroy()
        super().tearDown()
