# SPDX-License-Identifier: MIT
"""Registrations and descriptors from Python, on the simulated driver."""
import gc
import os

import cases
import machine
import xseg
from cases import MIB


class Registrar:
    def __init__(self):
        self.there, self.calls, self.refuses = {}, [], False

    def enter(self, address, size):
        if self.refuses:
            raise OverflowError("no more regions")
        self.calls.append("enter")
        self.there[address] = size
        return f"region {len(self.calls)}"

    def leave(self, address, size, region):
        self.calls.append(f"leave {region}")
        assert self.there.pop(address) == size


class Registrations(machine.Case):
    def setUp(self):
        super().setUp()
        self.allocator = xseg.open("expandable_segments:True,rdma:True")
        self.registrar = Registrar()

    def tearDown(self):
        self.allocator.close()
        super().tearDown()

    def register(self, address, size, **others):
        return self.allocator.register(address, size, self.registrar.enter, self.registrar.leave, **others)

    def test_functions_follow_the_memory(self):
        block = self.allocator.allocate(100 * MIB)
        address = block.pointer
        with self.register(address, 200 * MIB) as one:
            self.assertEqual(self.registrar.there, {address: 100 * MIB})
            more = self.allocator.allocate(40 * MIB)
            self.assertEqual(self.registrar.there, {address: 100 * MIB, address + 100 * MIB: 40 * MIB})
            self.assertEqual(self.allocator.statistics().registered_bytes, 140 * MIB)
            more.free()
            self.allocator.trim()
            self.assertEqual(self.registrar.there, {address: 100 * MIB})
            self.assertIsNone(one.refusal)
        self.assertEqual(self.registrar.calls, ["enter", "enter", "leave region 2", "leave region 1"])
        one.end()
        block.free()

    def test_it_ends_with_its_last_reference(self):
        block = self.allocator.allocate(20 * MIB)
        one = self.register(block.pointer, 20 * MIB)
        self.assertRaises(xseg.BusyError, self.allocator.close)
        del one
        gc.collect()
        self.assertEqual(self.registrar.there, {})
        block.free()

    def test_it_may_be_dropped_within_its_own_function(self):
        block = self.allocator.allocate(20 * MIB)
        kept = []

        def drop(*_):
            kept.clear()
            gc.collect()

        kept.append(self.allocator.register(block.pointer, 100 * MIB, lambda *_: None, drop))
        with self.allocator.allocate(60 * MIB):
            pass
        self.allocator.trim()
        self.assertEqual(kept, [])
        # The functions are there as long as the library may call them; now it ends, with another one or with the allocator.
        self.assertEqual(self.allocator.statistics().registered_bytes, 20 * MIB)
        self.register(block.pointer, 20 * MIB).end()
        self.assertEqual(self.allocator.statistics().registered_bytes, 0)
        block.free()

    def test_a_forked_child_leaves_it_alone(self):
        block = self.allocator.allocate(20 * MIB)
        one, file = self.register(block.pointer, 20 * MIB), self.allocator.dmabuf(block.pointer, MIB, pin=True)
        child = os.fork()
        if child == 0:
            del one, file
            gc.collect()
            os._exit(len(self.registrar.there) != 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        one.end()
        file.close()
        block.free()

    def test_exception_of_enter_is_the_cause(self):
        block = self.allocator.allocate(20 * MIB)
        self.registrar.refuses = True
        with self.assertRaises(xseg.UnsupportedError) as refused:
            self.register(block.pointer, 20 * MIB)
        self.assertIsInstance(refused.exception.__cause__, OverflowError)
        self.registrar.refuses = False
        with self.register(block.pointer, 100 * MIB) as one:
            self.registrar.refuses = True
            more = self.allocator.allocate(40 * MIB)
            self.assertIsInstance(one.refusal, OverflowError)
            self.assertEqual(len(self.registrar.there), 1)
            more.free()
        block.free()

    def test_with_a_pin_memory_stays(self):
        block = self.allocator.allocate(20 * MIB)
        with self.register(block.pointer, 20 * MIB, pin=True):
            block.free()
            self.assertEqual(self.allocator.trim().released, 0)
        self.assertEqual(self.allocator.trim().released, 20 * MIB)

    def test_errors_are_the_library_s(self):
        self.assertRaises(xseg.NotAllocatedError, self.register, 1 << 40, MIB)
        self.assertRaises(xseg.ArgumentError, self.allocator.dmabuf, 0, MIB)

    def test_a_descriptor_names_a_range(self):
        block = self.allocator.allocate(50 * MIB)
        with self.allocator.dmabuf(block.pointer + 12345, 30 * MIB, pin=True) as one:
            self.assertEqual(one.offset, 12345 % 4096)
            os.fstat(one.fileno())
            block.free()
            self.assertEqual(self.allocator.trim().released, 20 * MIB)
            file = one.fileno()
        self.assertEqual(one.fileno(), -1)
        self.assertRaises(OSError, os.fstat, file)
        self.assertEqual(self.allocator.trim().released, 40 * MIB)

    def test_a_pool_is_made_for_single_pages_before_its_first_block(self):
        pool = self.allocator.pool()
        pool.set_single_page()
        with pool.allocate(21 * MIB) as block:
            self.assertEqual(block.info().bytes, 22 * MIB)
            self.assertRaises(xseg.BusyError, pool.set_single_page, False)
        pool.release()


if __name__ == "__main__":
    cases.main()
