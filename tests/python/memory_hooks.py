# SPDX-License-Identifier: MIT
"""Tests of xseg.cupy and xseg.rmm with small models of CuPy and RMM.

The wheels of CuPy and RMM contain a static CUDA runtime, which does not run on the simulated driver.  The models have
the documented signatures; the test does not verify any version of CuPy or RMM.
"""
import gc
import sys
import types

import cases
import simulation
import xseg
from cases import MIB


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id=-1):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


class CupyModel(types.ModuleType):
    """A model of cupy.cuda: current device and stream, and an allocator."""

    def __init__(self):
        super().__init__("cupy")
        self.device, self.stream, self.allocator = 0, types.SimpleNamespace(ptr=0), None
        self.cuda = types.SimpleNamespace(
            UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer, set_allocator=self.set_allocator,
            get_current_stream=lambda: self.stream, runtime=types.SimpleNamespace(getDevice=lambda: self.device))

    def set_allocator(self, allocator=None):
        self.allocator = allocator


class RmmModel(types.ModuleType):
    """A model of rmm.mr.CallbackMemoryResource with the argument orders of both versions of RMM."""

    class CallbackMemoryResource:
        def __init__(self, allocate_func, deallocate_func):
            self.allocate_func, self.deallocate_func = allocate_func, deallocate_func

        def old_interface(self, size, stream):
            pointer = self.allocate_func(size, stream)
            return lambda on_stream=stream: self.deallocate_func(pointer, size, on_stream), pointer

        def new_interface(self, size, stream, alignment=256):
            pointer = self.allocate_func(stream, size, alignment)
            return lambda on_stream=stream: self.deallocate_func(on_stream, pointer, size, alignment), pointer

    def __init__(self):
        super().__init__("rmm")
        self.mr = types.SimpleNamespace(CallbackMemoryResource=self.CallbackMemoryResource)


class Case(simulation.StreamCase):
    def setUp(self):
        super().setUp()
        self.stream, self.other_stream = self.streams

    def tearDown(self):
        cupy.stream = types.SimpleNamespace(ptr=0)
        super().tearDown()


class Cupy(Case):
    def test_array_retains_its_block(self):
        cupy.stream = types.SimpleNamespace(ptr=self.stream.stream_handle)
        xseg.cupy.install(self.allocator)
        self.assertIs(xseg.cupy.allocator(), self.allocator)
        array = cupy.allocator(3 * MIB)
        self.assertEqual((array.mem.size, array.mem.device_id), (3 * MIB, 0))
        info = self.allocator.block_at(array.ptr)
        self.assertEqual((info.state, info.stream), (xseg.BlockState.ALLOCATED, self.stream.stream_handle))
        view, address = MemoryPointer(array.mem, MIB), array.ptr
        del array
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.ALLOCATED)
        del view
        gc.collect()
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.CACHED)
        self.assertEqual(cupy.allocator(0).ptr, 0)

    def test_allocation_beyond_device_memory_raises_memory_error(self):
        with self.assertRaises(MemoryError):
            xseg.cupy.function(self.allocator)(1 << 50)


class Rmm(Case):
    def setUp(self):
        super().setUp()
        self.resource = xseg.rmm.resource(self.allocator)

    def tearDown(self):
        del self.resource
        super().tearDown()

    def test_both_orders_of_arguments_are_supported(self):
        for call in (self.resource.old_interface, self.resource.new_interface):
            free, pointer = call(30 * MIB, self.stream)
            info = self.allocator.block_at(pointer)
            self.assertEqual((info.state, info.stream, info.requested),
                             (xseg.BlockState.ALLOCATED, self.stream.stream_handle, 30 * MIB))
            free()
            self.assertEqual(self.allocator.block_at(pointer).state, xseg.BlockState.CACHED)

    def test_block_freed_on_another_stream_waits_for_it(self):
        for call in (self.resource.old_interface, self.resource.new_interface):
            free, pointer = call(30 * MIB, self.stream)
            self.other_stream.launch()
            free(self.other_stream)
            self.assertEqual(self.allocator.block_at(pointer).state, xseg.BlockState.PENDING_FREE)
            self.other_stream.finish()
            self.allocator.stream_synchronized(self.other_stream)

    def test_rejected_stream_leaves_the_memory_allocated(self):
        for call in (self.resource.old_interface, self.resource.new_interface):
            free, pointer = call(30 * MIB, self.stream)
            for handle in (1 << 64, -1, 1.5, None, "1"):
                rejected = types.SimpleNamespace(__cuda_stream__=lambda handle=handle: (0, handle))
                self.assertRaises(xseg.ArgumentError, free, rejected)
                gc.collect()
                self.assertEqual(self.allocator.block_at(pointer).state, xseg.BlockState.ALLOCATED)
            free(self.other_stream)
            self.assertNotEqual(self.allocator.block_at(pointer).state, xseg.BlockState.ALLOCATED)

    def test_failed_free_leaves_the_memory_allocated(self):
        free, pointer = self.resource.new_interface(30 * MIB, self.stream)
        simulation.simulator.xseg_sim_fail(b"cuEventRecord", 1, 1)
        self.assertRaises(xseg.DriverError, free, self.other_stream)
        gc.collect()
        self.assertEqual(self.allocator.block_at(pointer).state, xseg.BlockState.ALLOCATED)
        free(self.other_stream)

    def test_alignment_is_applied(self):
        free, pointer = self.resource.new_interface(MIB, self.stream, 1 << 20)
        self.assertEqual(pointer % (1 << 20), 0)
        free()

    def test_empty_and_excessive_requests_are_handled(self):
        free, pointer = self.resource.old_interface(0, self.stream)
        self.assertEqual(pointer, 0)
        free()
        self.assertRaises(MemoryError, self.resource.old_interface, 1 << 50, self.stream)


if __name__ == "__main__":
    cupy = sys.modules["cupy"] = CupyModel()
    sys.modules["rmm"] = RmmModel()
    import xseg.cupy
    import xseg.rmm
    cases.main()
