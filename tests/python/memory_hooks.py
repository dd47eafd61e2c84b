# SPDX-License-Identifier: MIT
"""xseg.cupy and xseg.rmm with small models of CuPy and RMM.

The wheels of CuPy and RMM have a static CUDA runtime, which does not run on the simulated driver.  The models have
the documented signatures; the test does not verify any version of CuPy or RMM.
"""
import gc
import sys
import types

import cases
import machine
import xseg
from cases import MIB


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class ModelOfCupy(types.ModuleType):
    """cupy.cuda, as far as it matters: current device and stream, and an allocator."""

    def __init__(self):
        super().__init__("cupy")
        self.device, self.stream, self.allocator = 0, types.SimpleNamespace(ptr=0), None
        self.cuda = types.SimpleNamespace(
            UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer, set_allocator=self.set_allocator,
            get_current_stream=lambda: self.stream, runtime=types.SimpleNamespace(getDevice=lambda: self.device))

    def set_allocator(self, allocator=None):
        self.allocator = allocator


class ModelOfRmm(types.ModuleType):
    """rmm.mr.CallbackMemoryResource, which calls as either version of RMM does."""

    class CallbackMemoryResource:
        def __init__(self, allocate_func, deallocate_func):
            self.allocate_func, self.deallocate_func = allocate_func, deallocate_func

        def old(self, size, stream):
            pointer = self.allocate_func(size, stream)
            return lambda on=stream: self.deallocate_func(pointer, size, on), pointer

        def new(self, size, stream, alignment=256):
            pointer = self.allocate_func(stream, size, alignment)
            return lambda on=stream: self.deallocate_func(on, pointer, size, alignment), pointer

    def __init__(self):
        super().__init__("rmm")
        self.mr = types.SimpleNamespace(CallbackMemoryResource=self.CallbackMemoryResource)


class Case(machine.StreamCase):
    def setUp(self):
        super().setUp()
        self.stream, self.other = self.streams

    def tearDown(self):
        cupy.stream = types.SimpleNamespace(ptr=0)
        super().tearDown()


class Cupy(Case):
    def test_an_array_holds_its_block(self):
        cupy.stream = types.SimpleNamespace(ptr=self.stream.number)
        xseg.cupy.install(self.allocator)
        self.assertIs(xseg.cupy.allocator(), self.allocator)
        array = cupy.allocator(3 * MIB)
        self.assertEqual((array.mem.size, array.mem.device_id), (3 * MIB, 0))
        found = self.allocator.block_at(array.ptr)
        self.assertEqual((found.state, found.stream), (xseg.BlockState.ALLOCATED, self.stream.number))
        part = MemoryPointer(array.mem, MIB)
        address = array.ptr
        del array
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.ALLOCATED)
        del part
        gc.collect()
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.CACHED)
        self.assertEqual(cupy.allocator(0).ptr, 0)

    def test_too_much_is_a_memory_error(self):
        with self.assertRaises(MemoryError):
            xseg.cupy.function(self.allocator)(1 << 50)


class Rmm(Case):
    def setUp(self):
        super().setUp()
        self.resource = xseg.rmm.resource(self.allocator)

    def tearDown(self):
        del self.resource
        super().tearDown()

    def test_both_orders_of_arguments_are_understood(self):
        for call in (self.resource.old, self.resource.new):
            free, pointer = call(30 * MIB, self.stream)
            found = self.allocator.block_at(pointer)
            self.assertEqual((found.state, found.stream, found.requested),
                             (xseg.BlockState.ALLOCATED, self.stream.number, 30 * MIB))
            free()
            self.assertEqual(self.allocator.block_at(pointer).state, xseg.BlockState.CACHED)

    def test_block_freed_on_another_stream_waits_for_it(self):
        for call in (self.resource.old, self.resource.new):
            free, pointer = call(30 * MIB, self.stream)
            self.other.launch()
            free(self.other)
            self.assertEqual(self.allocator.block_at(pointer).state, xseg.BlockState.PENDING_FREE)
            self.other.finish()
            self.allocator.stream_synchronized(self.other)

    def test_memory_whose_use_is_rejected_stays_allocated(self):
        for call in (self.resource.old, self.resource.new):
            free, pointer = call(30 * MIB, self.stream)
            for handle in (1 << 64, -1, 1.5, None, "1"):
                rejected = types.SimpleNamespace(__cuda_stream__=lambda handle=handle: (0, handle))
                self.assertRaises(xseg.ArgumentError, free, rejected)
                gc.collect()
                self.assertEqual(self.allocator.block_at(pointer).state, xseg.BlockState.ALLOCATED)
            free(self.other)
            self.assertNotEqual(self.allocator.block_at(pointer).state, xseg.BlockState.ALLOCATED)

    def test_memory_whose_free_is_rejected_stays_allocated(self):
        free, pointer = self.resource.new(30 * MIB, self.stream)
        machine.simulator.xseg_sim_fail(b"cuEventRecord", 1, 1)
        self.assertRaises(xseg.DriverError, free, self.other)
        gc.collect()
        self.assertEqual(self.allocator.block_at(pointer).state, xseg.BlockState.ALLOCATED)
        free(self.other)

    def test_alignment_is_kept(self):
        free, pointer = self.resource.new(MIB, self.stream, 1 << 20)
        self.assertEqual(pointer % (1 << 20), 0)
        free()

    def test_nothing_and_too_much(self):
        free, pointer = self.resource.old(0, self.stream)
        self.assertEqual(pointer, 0)
        free()
        self.assertRaises(MemoryError, self.resource.old, 1 << 50, self.stream)


if __name__ == "__main__":
    cupy = sys.modules["cupy"] = ModelOfCupy()
    sys.modules["rmm"] = ModelOfRmm()
    import xseg.cupy
    import xseg.rmm
    cases.main()
