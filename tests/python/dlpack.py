# SPDX-License-Identifier: MIT
"""Tests of blocks as arrays of other libraries: __cuda_array_interface__ and DLPack, with a consumer in ctypes."""
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
import simulation
import xseg
from cases import MIB
from xseg import _dlpack

pointer_of = PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
name_of = PYFUNCTYPE(c_char_p, py_object)(("PyCapsule_GetName", ctypes.pythonapi))
rename = PYFUNCTYPE(c_int, py_object, c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
new_capsule = PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", ctypes.pythonapi))
CONSUMED_NAMES = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


CONSUMER_SOURCE = r"""
#include <stddef.h>
#include <stdio.h>
static char *tensors[8];
static size_t deleters[8]; /* offsets in the tensors */
static int count;
void consume(char *tensor, size_t deleter)
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
LATE_PROGRAM = """
import atexit, ctypes, sys, types
sys.path.insert(0, {folder!r})
holder = sys.modules["holder"] = types.ModuleType("holder")     # finalized after xseg, which is imported later

def consume(array, version):
    consumed = dlpack.Consumer(array.__dlpack__(max_version=version))
    consumer.consume(ctypes.c_void_p(consumed.address), ctypes.c_size_t(type(consumed.managed).deleter.offset))

@atexit.register                                                # the first registered function runs last
def consume_late():
    consume(block, None)
    holder.late = block.__dlpack__()

import dlpack, xseg
consumer = ctypes.CDLL({library!r})
allocator = xseg.open("expandable_segments:True")
block, reserved = allocator.allocate(1000), allocator.range(2 << 20)
for version in (None, (1, 0)):
    consume(allocator.allocate(1000), version)
    consume(reserved.view(), version)
holder.capsule, holder.block = block.__dlpack__(), block
print("end", flush=True)
"""


class Consumer:
    """Consumes a capsule as torch.from_dlpack() does.  The consumer owns the tensor, and may delete it at any time."""

    def __init__(self, capsule):
        name = name_of(capsule)
        address = pointer_of(capsule, name)
        structure = _dlpack.ManagedVersioned if b"versioned" in name else _dlpack.Managed
        self.managed = structure.from_address(address)
        if rename(capsule, CONSUMED_NAMES[name]):
            raise AssertionError("the capsule was not renamed")
        self.address = address

    def delete(self):
        """Calls the current deleter of the tensor, as a consumer in C does."""
        deleter = self.managed.deleter
        if deleter:
            CFUNCTYPE(None, c_void_p)(deleter)(self.address)


class DlpackTest(unittest.TestCase):
    def setUp(self):
        simulation.reset()
        self.allocator = xseg.open("expandable_segments:True")

    def tearDown(self):
        self.allocator.close()

    def count_allocated(self):
        return self.allocator.statistics().allocation.all.current

    def test_array_interface_describes_the_block(self):
        with self.allocator.allocate(3 * MIB) as block:
            self.assertEqual(block.__cuda_array_interface__, {
                "shape": (3 * MIB,), "typestr": "|u1", "data": (block.pointer, False), "version": 3, "strides": None,
                "stream": 1})

    def test_tensor_describes_the_block(self):
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

    def test_consumer_retains_the_block(self):
        block = self.allocator.allocate(MIB)
        consumer = Consumer(block.__dlpack__())
        with self.assertRaisesRegex(xseg.BusyError, "block is exported by DLPack"):
            block.free()
        del block
        gc.collect()
        self.assertEqual(self.count_allocated(), 1)
        thread = threading.Thread(target=consumer.delete)
        thread.start()
        thread.join()
        gc.collect()
        self.assertEqual(self.count_allocated(), 0)

    def test_unconsumed_capsule_releases_the_block(self):
        for version in (None, (1, 0)):
            block = self.allocator.allocate(MIB)
            capsule = block.__dlpack__(max_version=version)
            with self.assertRaises(xseg.BusyError):
                block.free()
            del capsule
            block.free()

    def test_stream_of_the_consumer_waits_for_that_of_the_block(self):
        block_stream, consumer_stream = simulation.Stream(), simulation.Stream()
        block = self.allocator.allocate(MIB, stream=block_stream)
        block_stream.launch()
        consumer = Consumer(block.__dlpack__(stream=consumer_stream.stream_handle))
        self.assertEqual(simulation.simulator.cuStreamQuery(c_void_p(consumer_stream.stream_handle)),
                         simulation.NOT_READY)
        block_stream.finish()
        self.assertEqual(simulation.simulator.cuStreamQuery(c_void_p(consumer_stream.stream_handle)), 0)
        consumer.delete()
        consumer_stream.launch()
        address = block.pointer
        block.free()
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING_FREE)
        consumer_stream.finish()
        for stream in (block_stream, consumer_stream):
            self.allocator.stream_retire(stream)
            stream.destroy()

    def test_consumer_may_disable_synchronization(self):
        block_stream = simulation.Stream()
        block = self.allocator.allocate(MIB, stream=block_stream)
        before = simulation.simulator.xseg_sim_calls(b"cuStreamWaitEvent")
        for stream in (-1, block_stream.stream_handle):
            Consumer(block.__dlpack__(stream=stream)).delete()
        self.assertEqual(simulation.simulator.xseg_sim_calls(b"cuStreamWaitEvent"), before)
        block.free()
        self.allocator.stream_retire(block_stream)
        block_stream.destroy()

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
        self.allocator.allocate(MIB).__dlpack__()  # creating a capsule collects unconsumed ones
        self.assertLessEqual(self.count_allocated(), 1)

    def test_deleter_during_an_exception_releases_the_block(self):
        block = self.allocator.allocate(MIB)
        consumer, exceptions = Consumer(block.__dlpack__()), []
        call, address = CFUNCTYPE(None)(consumer.managed.deleter), c_void_p(consumer.address)
        destructor = CFUNCTYPE(None, c_void_p)(lambda _: call(address))
        with unittest.mock.patch.object(sys, "unraisablehook", lambda hook_arguments: exceptions.append(hook_arguments.exc_type)):
            with self.assertRaises((TypeError, SystemError)):
                int(new_capsule(1, None, ctypes.cast(destructor, c_void_p)))  # its destructor runs as int() raises
        self.assertEqual(exceptions, [TypeError])
        block.free()

    def test_freed_block_is_rejected(self):
        block = self.allocator.allocate(MIB)
        block.free()
        for access in (lambda: block.__cuda_array_interface__, block.__dlpack__, lambda: block.__dlpack__(stream=-1), block.info,
                       block.pin, block.unpin, lambda: block.record_stream(None)):
            with self.assertRaisesRegex(xseg.NotAllocatedError, "block was freed"):
                access()
        block.free()
        empty = self.allocator.allocate(0)
        self.assertEqual(empty.__cuda_array_interface__["data"], (0, False))
        Consumer(empty.__dlpack__()).delete()

    def test_stream_of_the_consumer_must_be_a_handle(self):
        with self.allocator.allocate(MIB) as block:
            for stream in (1 << 64, -2, True, 1.0, "1"):
                with self.subTest(stream), self.assertRaisesRegex(xseg.ArgumentError, "stream"):
                    block.__dlpack__(stream=stream)

    def test_consumer_may_outlive_the_interpreter(self):
        """A consumer in C deletes its tensors at the exit of the process.  Freed memory is filled with the debug pattern."""
        with tempfile.TemporaryDirectory() as folder:
            source, library = pathlib.Path(folder, "consumer.c"), pathlib.Path(folder, "consumer.so")
            source.write_text(CONSUMER_SOURCE, encoding="utf-8")
            subprocess.run([*cases.COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
            output = cases.run_python(LATE_PROGRAM.format(folder=str(cases.ROOT / "tests/python"), library=str(library)),
                                      PYTHONMALLOC="debug")
        self.assertEqual((output[0], cases.without_self_checks(output[1])), ("end\ndeleted 5 tensors\n", ""))


if __name__ == "__main__":
    cases.main()
