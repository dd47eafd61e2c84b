# SPDX-License-Identifier: MIT
"""The simulated machine, for tests that query it or keep its streams busy."""
import ctypes
import gc
import os
import unittest
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

import xseg

FOREVER = 2**64 - 1

simulator = ctypes.CDLL(os.environ["XSEG_DRIVER"])
simulator.xseg_sim_launch.argtypes = [c_void_p, c_uint64]
simulator.xseg_sim_finish.argtypes = [c_void_p]
simulator.xseg_sim_calls.restype = c_uint64
simulator.xseg_sim_calls.argtypes = [c_char_p]
simulator.xseg_sim_used.restype = c_uint64
simulator.xseg_sim_leaks.restype = c_size_t
simulator.xseg_sim_leaks.argtypes = [c_char_p, c_size_t]
simulator.xseg_sim_fail.argtypes = [c_char_p, c_uint64, c_int]


def checked(name, *arguments):
    """A driver call that has to succeed."""
    result = getattr(simulator, name)(*arguments)
    if result:
        raise AssertionError(f"{name} returned {result}")


def reset():
    checked("xseg_sim_reset", None)


def left():
    text = ctypes.create_string_buffer(4096)
    simulator.xseg_sim_leaks(text, len(text))
    return text.value.decode()


class Case(unittest.TestCase):
    """A fresh machine, on which a test leaves nothing."""

    def setUp(self):
        reset()

    def tearDown(self):
        self.doCleanups()
        gc.collect()
        self.assertEqual(left(), "")


class Stream:
    """A stream of device 0, as an object of a library that speaks the protocol of cuda.core."""

    def __init__(self):
        self.context, stream = c_void_p(), c_void_p()
        checked("cuInit", c_uint(0))
        checked("cuDevicePrimaryCtxRetain", byref(self.context), c_int(0))
        checked("cuCtxSetCurrent", self.context)
        checked("cuStreamCreate", byref(stream), c_uint(1))
        self.number = stream.value

    def __cuda_stream__(self):
        return 0, self.number

    def launch(self):
        """Queue work that ends when finish() says so."""
        checked("xseg_sim_launch", self.number, FOREVER)

    def finish(self):
        checked("xseg_sim_finish", self.number)

    def destroy(self):
        checked("cuStreamDestroy_v2", c_void_p(self.number))
        checked("cuDevicePrimaryCtxRelease_v2", c_int(0))


class StreamCase(Case):
    """A machine with an allocator and two streams."""

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
