# SPDX-License-Identifier: MIT
"""Blocks as arrays of other libraries: __cuda_array_interface__ and DLPack, with a consumer made of ctypes."""
import ctypes
import gc
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_char_p, c_int, c_void_p, py_object

import cases
import machine
import xseg
from cases import MIB
from xseg import _dlpack

pointer_of = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
name_of = PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", ctypes.pythonapi))
rename = PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
new_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


LATE_CONSUMER = r"""
#include <stddef.h>
#include <stdio.h>
static char *tensors[8];
static size_t deleters[8]; /* where in the tensor */
static int count;
void take(char *tensor, size_t deleter)
{
    tensors[count] = tensor;
    deleters[count++] = deleter;
}
__attribute__((destructor)) static void end(void)
{
    for (int i = 0; i < count; i++) {
        void (*deleter)(void *) = *(void (**)(void *))(tensors[i] + deleters[i]);
        if (deleter != NULL)
            deleter(tensors[i]);
    }
    printf("deleted %d tensors\n", count);
}
"""
LATE = """
import atexit, ctypes, sys, types
sys.path.insert(0, {folder!r})
holder = sys.modules["holder"] = types.ModuleType("holder")     # ends after xseg, which is imported later

def take(array, version):
    taken = dlpack.Consumer(array.__dlpack__(max_version=version))
    consumer.take(ctypes.c_void_p(taken.address), ctypes.c_size_t(type(taken.managed).deleter.offset))

@atexit.register                                                # the first that is registered runs last
def take_late():
    take(block, None)
    holder.late = block.__dlpack__()

import dlpack, xseg
consumer = ctypes.CDLL({library!r})
allocator = xseg.open("expandable_segments:True")
block, reserved = allocator.allocate(1000), allocator.range(2 << 20)
for version in (None, (1, 0)):
    take(allocator.allocate(1000), version)
    take(reserved.view(), version)
holder.capsule, holder.block = block.__dlpack__(), block
print("end", flush=True)
"""


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
        with self.assertRaisesRegex(xseg.BusyError, "block is exported by DLPack"):
            block.free()
        del block
        gc.collect()
        self.assertEqual(self.live(), 1)
        thread = threading.Thread(target=consumer.delete)
        thread.start()
        thread.join()
        gc.collect()
        self.assertEqual(self.live(), 0)

    def test_unconsumed_capsule_releases_the_block(self):
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
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING_FREE)
        other.finish()
        for stream in (own, other):
            self.allocator.stream_retire(stream)
            stream.destroy()

    def test_the_consumer_may_want_no_order(self):
        own = machine.Stream()
        block = self.allocator.allocate(MIB, stream=own)
        before = machine.simulator.xseg_sim_calls(b"cuStreamWaitEvent")
        for stream in (-1, own.number):
            Consumer(block.__dlpack__(stream=stream)).delete()
        self.assertEqual(machine.simulator.xseg_sim_calls(b"cuStreamWaitEvent"), before)
        block.free()
        self.allocator.stream_retire(own)
        own.destroy()

    def test_invalid_requests_raise_a_buffer_error(self):
        with self.allocator.allocate(MIB) as block:
            with self.assertRaises(BufferError):
                block.__dlpack__(copy=True)
            with self.assertRaises(BufferError):
                block.__dlpack__(dl_device=(1, 0))
            Consumer(block.__dlpack__(dl_device=(2, 0), copy=False)).delete()

    def test_consumer_that_raises_releases_the_block(self):
        for version in (None, (1, 0)):
            block = self.allocator.allocate(MIB)
            with self.assertRaisesRegex(TypeError, "PyCapsule"):
                int(block.__dlpack__(max_version=version))
            block.free()
            with self.assertRaises(TypeError):
                int(self.allocator.allocate(MIB).__dlpack__(max_version=version))
        self.allocator.allocate(MIB).__dlpack__()  # the next capsule finds those that nobody has taken
        self.assertLessEqual(self.live(), 1)

    def test_a_tensor_that_is_deleted_while_an_exception_is_raised_lets_go_of_the_block(self):
        block = self.allocator.allocate(MIB)
        consumer, printed = Consumer(block.__dlpack__()), []
        call, address = CFUNCTYPE(None)(consumer.managed.deleter), c_void_p(consumer.address)
        end = CFUNCTYPE(None, c_void_p)(lambda _: call(address))
        with unittest.mock.patch.object(sys, "unraisablehook", lambda what: printed.append(what.exc_type)):
            with self.assertRaises((TypeError, SystemError)):
                int(new_capsule(1, None, ctypes.cast(end, c_void_p)))  # its destructor runs as int() raises
        self.assertEqual(printed, [TypeError])
        block.free()

    def test_a_freed_block_is_no_array(self):
        block = self.allocator.allocate(MIB)
        block.free()
        for use in (lambda: block.__cuda_array_interface__, block.__dlpack__, lambda: block.__dlpack__(stream=-1), block.info, block.pin,
                    block.unpin, lambda: block.record_stream(None)):
            with self.assertRaisesRegex(xseg.NotAllocatedError, "block was freed"):
                use()
        block.free()
        empty = self.allocator.allocate(0)
        self.assertEqual(empty.__cuda_array_interface__["data"], (0, False))
        Consumer(empty.__dlpack__()).delete()

    def test_a_consumer_s_stream_is_a_handle(self):
        with self.allocator.allocate(MIB) as block:
            for stream in (1 << 64, -2, True, 1.0, "1"):
                with self.subTest(stream), self.assertRaisesRegex(xseg.ArgumentError, "stream"):
                    block.__dlpack__(stream=stream)

    def test_a_consumer_may_outlive_the_interpreter(self):
        """A consumer in C deletes its tensors as the process ends.  Freed memory is filled with a pattern."""
        with tempfile.TemporaryDirectory() as folder:
            source, library = pathlib.Path(folder, "consumer.c"), pathlib.Path(folder, "consumer.so")
            source.write_text(LATE_CONSUMER, encoding="utf-8")
            subprocess.run([*cases.COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
            said = cases.said(LATE.format(folder=str(cases.ROOT / "tests/python"), library=str(library)), PYTHONMALLOC="debug")
        self.assertEqual((said[0], cases.complaints(said[1])), ("end\ndeleted 5 tensors\n", ""))


if __name__ == "__main__":
    cases.main()
