# SPDX-License-Identifier: MIT
"""Tests of registrations and dma-buf descriptors in Python, on the simulated driver."""
import gc
import os

import cases
import simulation
import xseg
from cases import MIB


class Registrar:
    def __init__(self):
        self.registered, self.calls, self.is_failing = {}, [], False

    def enter(self, address, size):
        if self.is_failing:
            raise OverflowError("no more regions")
        self.calls.append("enter")
        self.registered[address] = size
        return f"region {len(self.calls)}"

    def leave(self, address, size, region):
        self.calls.append(f"leave {region}")
        assert self.registered.pop(address) == size


class Registrations(simulation.Case):
    def setUp(self):
        super().setUp()
        self.allocator = xseg.open("expandable_segments:True,rdma:True")
        self.registrar = Registrar()

    def tearDown(self):
        self.allocator.close()
        super().tearDown()

    def register(self, address, size, **options):
        return self.allocator.register(address, size, self.registrar.enter, self.registrar.leave, **options)

    def test_enter_and_leave_follow_mapped_memory(self):
        block = self.allocator.allocate(100 * MIB)
        address = block.pointer
        with self.register(address, 200 * MIB) as registration:
            self.assertEqual(self.registrar.registered, {address: 100 * MIB})
            other_block = self.allocator.allocate(40 * MIB)
            self.assertEqual(self.registrar.registered, {address: 100 * MIB, address + 100 * MIB: 40 * MIB})
            self.assertEqual(self.allocator.statistics().registered_bytes, 140 * MIB)
            other_block.free()
            self.allocator.trim()
            self.assertEqual(self.registrar.registered, {address: 100 * MIB})
            self.assertIsNone(registration.refusal)
        self.assertEqual(self.registrar.calls, ["enter", "enter", "leave region 2", "leave region 1"])
        registration.end()
        block.free()

    def test_last_reference_ends_the_registration(self):
        block = self.allocator.allocate(20 * MIB)
        registration = self.register(block.pointer, 20 * MIB)
        self.assertRaises(xseg.BusyError, self.allocator.close)
        del registration
        gc.collect()
        self.assertEqual(self.registrar.registered, {})
        block.free()

    def test_registration_may_be_dropped_in_its_callback(self):
        block, registrations = self.allocator.allocate(20 * MIB), []

        def drop(*_):
            registrations.clear()
            gc.collect()

        registrations.append(self.allocator.register(block.pointer, 100 * MIB, lambda *_: None, drop))
        with self.allocator.allocate(60 * MIB):
            pass
        self.allocator.trim()
        self.assertEqual(registrations, [])
        # Callbacks exist as long as the library may call them; the end of another registration or of the allocator ends this one.
        self.assertEqual(self.allocator.statistics().registered_bytes, 20 * MIB)
        self.register(block.pointer, 20 * MIB).end()
        self.assertEqual(self.allocator.statistics().registered_bytes, 0)
        block.free()

    def test_forked_child_does_not_end_the_registration(self):
        block = self.allocator.allocate(20 * MIB)
        registration, dmabuf = self.register(block.pointer, 20 * MIB), self.allocator.dmabuf(block.pointer, MIB, pin=True)
        child = os.fork()
        if child == 0:
            del registration, dmabuf
            gc.collect()
            os._exit(len(self.registrar.registered) != 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        registration.end()
        dmabuf.close()
        block.free()

    def test_exception_of_enter_is_the_cause(self):
        block = self.allocator.allocate(20 * MIB)
        self.registrar.is_failing = True
        with self.assertRaises(xseg.UnsupportedError) as raised:
            self.register(block.pointer, 20 * MIB)
        self.assertIsInstance(raised.exception.__cause__, OverflowError)
        self.registrar.is_failing = False
        with self.register(block.pointer, 100 * MIB) as registration:
            self.registrar.is_failing = True
            other_block = self.allocator.allocate(40 * MIB)
            self.assertIsInstance(registration.refusal, OverflowError)
            self.assertEqual(len(self.registrar.registered), 1)
            other_block.free()
        block.free()

    def test_registration_with_a_pin_keeps_memory_mapped(self):
        block = self.allocator.allocate(20 * MIB)
        with self.register(block.pointer, 20 * MIB, pin=True):
            block.free()
            self.assertEqual(self.allocator.trim().released, 0)
        self.assertEqual(self.allocator.trim().released, 20 * MIB)

    def test_errors_of_the_library_are_raised(self):
        self.assertRaises(xseg.NotAllocatedError, self.register, 1 << 40, MIB)
        self.assertRaises(xseg.ArgumentError, self.allocator.dmabuf, 0, MIB)

    def test_descriptor_covers_an_address_range(self):
        block = self.allocator.allocate(50 * MIB)
        with self.allocator.dmabuf(block.pointer + 12345, 30 * MIB, pin=True) as descriptor:
            self.assertEqual(descriptor.offset, 12345 % 4096)
            os.fstat(descriptor.fileno())
            block.free()
            self.assertEqual(self.allocator.trim().released, 20 * MIB)
            number = descriptor.fileno()
        self.assertEqual(descriptor.fileno(), -1)
        self.assertRaises(OSError, os.fstat, number)
        self.assertEqual(self.allocator.trim().released, 40 * MIB)

    def test_single_page_mode_is_set_before_the_first_block(self):
        pool = self.allocator.pool()
        pool.set_single_page()
        with pool.allocate(21 * MIB) as block:
            self.assertEqual(block.info().bytes, 22 * MIB)
            self.assertRaises(xseg.BusyError, pool.set_single_page, False)
        pool.release()


if __name__ == "__main__":
    cases.main()
