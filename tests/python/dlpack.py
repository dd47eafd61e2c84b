# SPDX-License-Identifier: MIT
"""Blocks as arrays of other libraries: __cuda_array_interface__ and DLPack, with a consumer made of ctypes."""
import ctypes
import gc
import threading
import unittest
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_char_p, c_int, c_void_p, py_object

import cases
import machine
import xseg
from cases import MIB
from xseg import _dlpack

pointer_of = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
name_of = PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", ctypes.pythonapi))
rename = PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


class Consumer:
    """What torch.from_dlpack() does with a capsule: it takes the tensor over, and deletes it when it likes."""

    def __init__(self, capsule):
        name = name_of(capsule)
        address = pointer_of(capsule, name)
        kind = _dlpack.ManagedVersioned if b"versioned" in name else _dlpack.Managed
        self.managed = kind.from_address(address)
        if rename(capsule, USED[name]):
            raise AssertionError("the capsule was not renamed")
        self.address = address

    def delete(self):
        """As C does: by the pointer that lies in the tensor now."""
        deleter = self.managed.deleter
        if deleter:
            CFUNCTYPE(None, c_void_p)(deleter)(self.address)


class Arrays(unittest.TestCase):
    def setUp(self):
        machine.reset()
        self.allocator = xseg.open("expandable_segments:True")

    def tearDown(self):
        self.allocator.close()

    def live(self):
        return self.allocator.statistics().allocation.all.current

    def test_the_array_interface_says_what_the_block_is(self):
        with self.allocator.allocate(3 * MIB) as block:
            self.assertEqual(block.__cuda_array_interface__, {
                "shape": (3 * MIB,), "typestr": "|u1", "data": (block.pointer, False), "version": 3, "strides": None,
                "stream": 1})

    def test_a_tensor_says_what_the_block_is(self):
        with self.allocator.allocate(3 * MIB) as block:
            self.assertEqual(block.__dlpack_device__(), (2, 0))
            for version in (None, (0, 8), (1, 0), (1, 3)):
                consumer = Consumer(block.__dlpack__(max_version=version))
                tensor = consumer.managed.tensor
                self.assertEqual((tensor.data, tensor.device_type, tensor.device_id), (block.pointer, 2, 0))
                self.assertEqual((tensor.ndim, tensor.shape[0], tensor.strides[0]), (1, 3 * MIB, 1))
                self.assertEqual((tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset), (1, 8, 1, 0))
                self.assertEqual(isinstance(consumer.managed, _dlpack.ManagedVersioned), version is not None and version >= (1,))
                if version and version >= (1,):
                    self.assertEqual((consumer.managed.major, consumer.managed.flags), (1, 0))
                consumer.delete()

    def test_a_consumer_holds_the_block(self):
        block = self.allocator.allocate(MIB)
        consumer = Consumer(block.__dlpack__())
        with self.assertRaisesRegex(xseg.BusyError, "held by DLPack"):
            block.free()
        del block
        gc.collect()
        self.assertEqual(self.live(), 1)
        thread = threading.Thread(target=consumer.delete)
        thread.start()
        thread.join()
        gc.collect()
        self.assertEqual(self.live(), 0)

    def test_a_capsule_that_nobody_takes_lets_go_of_the_block(self):
        for version in (None, (1, 0)):
            block = self.allocator.allocate(MIB)
            capsule = block.__dlpack__(max_version=version)
            with self.assertRaises(xseg.BusyError):
                block.free()
            del capsule
            block.free()

    def test_the_consumer_s_stream_waits_for_the_block_s(self):
        own, other = machine.Stream(), machine.Stream()
        block = self.allocator.allocate(MIB, stream=own)
        own.launch()
        consumer = Consumer(block.__dlpack__(stream=other.number))
        self.assertEqual(machine.simulator.cuStreamQuery(c_void_p(other.number)), 600)
        own.finish()
        self.assertEqual(machine.simulator.cuStreamQuery(c_void_p(other.number)), 0)
        consumer.delete()
        other.launch()
        address = block.pointer
        block.free()
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING)
        other.finish()
        for stream in (own, other):
            self.allocator.stream_gone(stream)
            stream.destroy()

    def test_the_consumer_may_want_no_order(self):
        own = machine.Stream()
        block = self.allocator.allocate(MIB, stream=own)
        before = machine.simulator.xseg_sim_calls(b"cuStreamWaitEvent")
        for stream in (-1, own.number):
            Consumer(block.__dlpack__(stream=stream)).delete()
        self.assertEqual(machine.simulator.xseg_sim_calls(b"cuStreamWaitEvent"), before)
        block.free()
        self.allocator.stream_gone(own)
        own.destroy()

    def test_what_cannot_be_is_a_buffer_error(self):
        with self.allocator.allocate(MIB) as block:
            with self.assertRaises(BufferError):
                block.__dlpack__(copy=True)
            with self.assertRaises(BufferError):
                block.__dlpack__(dl_device=(1, 0))
            Consumer(block.__dlpack__(dl_device=(2, 0), copy=False)).delete()

    def test_a_consumer_may_outlive_the_interpreter(self):
        program = """
import atexit, ctypes, sys
sys.path.insert(0, {folder!r})
def delete_late():
    assert consumer.managed.deleter is None
    consumer.delete()
    print("nothing was called")
atexit.register(delete_late)    # the first that is registered runs last
import dlpack, xseg
allocator = xseg.open()
consumer = dlpack.Consumer(allocator.allocate(1 << 20).__dlpack__())
"""
        out, _ = cases.said(program.format(folder=str(cases.ROOT / "tests/python")))
        self.assertEqual(out, "nothing was called\n")


if __name__ == "__main__":
    cases.main()
