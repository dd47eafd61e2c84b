# SPDX-License-Identifier: MIT
"""Allocators, blocks, pools and streams from Python, on the simulated driver."""
import copy
import ctypes
import gc
import operator
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import cases
import machine
import xseg
from cases import MIB


class Case(machine.Case):
    def open(self, config="expandable_segments:True", **others):
        allocator = xseg.open(config, **others)
        self.addCleanup(allocator.close)
        return allocator


class Allocators(Case):
    def test_a_block_lives_from_allocate_to_free(self):
        with xseg.open("expandable_segments:True") as allocator:
            block = allocator.allocate(100 * MIB)
            self.assertEqual(block.pointer % 512, 0)
            self.assertEqual((block.size, block.device, block.stream), (100 * MIB, 0, 0))
            self.assertEqual(block.info().state, xseg.BlockState.ALLOCATED)
            self.assertEqual(block.info().requested, 100 * MIB)
            self.assertEqual(allocator.statistics().allocated_bytes.large.current, 100 * MIB)
            block.free()
            self.assertEqual(block.pointer, 0)
            block.free()
            self.assertEqual(allocator.statistics().allocated_bytes.all, xseg.Stat(0, 100 * MIB, 100 * MIB, 100 * MIB))
            self.assertEqual(machine.simulator.xseg_sim_used(0), 100 * MIB)
            self.assertEqual(allocator.trim(), xseg.TrimResult(100 * MIB, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
            self.assertEqual(machine.simulator.xseg_sim_used(0), 0)

    def test_a_block_goes_with_its_last_reference_or_its_with_statement(self):
        allocator = self.open()
        allocator.allocate(MIB)
        self.assertEqual(allocator.statistics().allocation.all.current, 0)
        with allocator.allocate(MIB) as block:
            self.assertEqual(allocator.statistics().allocation.all.current, 1)
        self.assertEqual((block.pointer, allocator.statistics().allocation.all.current), (0, 0))

    def test_allocator_is_closed_with_its_last_block(self):
        block = xseg.open("expandable_segments:True").allocate(MIB)
        self.assertNotEqual(block.pointer, 0)
        del block
        gc.collect()
        self.assertEqual(machine.left(), "")

    def test_object_that_outlives_its_allocator_detects_the_close(self):
        """In a cycle of references the order of ends is anyone's guess."""
        allocator = xseg.open("expandable_segments:True")
        pool = allocator.pool()
        allocator.__del__()
        self.assertEqual((allocator.handle, pool.handle), (0, 0))

    def test_closing_with_live_blocks_is_refused(self):
        allocator = self.open()
        block = allocator.allocate(MIB)
        self.assertRaisesRegex(xseg.BusyError, f"{block.pointer:x}", allocator.close)
        block.free()
        allocator.close()
        allocator.close()
        self.assertRaises(xseg.ArgumentError, allocator.allocate, MIB)

    def test_an_exception_is_not_hidden_by_the_blocks_that_it_keeps(self):
        with self.assertRaises(ZeroDivisionError):
            with xseg.open("expandable_segments:True") as allocator:
                block = allocator.allocate(MIB)
                _ = 1 // (block.size - MIB)

    def test_empty_allocation_has_an_address(self):
        with self.open().allocate(0) as block:
            self.assertEqual((block.pointer, block.size, block.__cuda_array_interface__["shape"]), (0, 0, (0,)))

    def test_alignment_and_zeroing_are_applied(self):
        allocator = self.open()
        before = machine.simulator.xseg_sim_calls(b"cuMemsetD32Async")
        with allocator.allocate(MIB, alignment=8 * MIB, zeroed=True) as block:
            self.assertEqual(block.pointer % (8 * MIB), 0)
            self.assertEqual(machine.simulator.xseg_sim_calls(b"cuMemsetD32Async"), before + 1)
        self.assertRaises(xseg.ArgumentError, allocator.allocate, MIB, alignment=3)
        self.assertRaises(ValueError, allocator.allocate, -1)

    def test_failures_raise_their_class_with_the_library_s_message(self):
        with self.assertRaisesRegex(xseg.ConfigError, "'nonsense' at column 1") as refusal:
            xseg.open("nonsense:1")
        self.assertEqual(refusal.exception.status, -2)
        again = pickle.loads(pickle.dumps(refusal.exception))
        self.assertEqual((repr(type(again)), again.status, str(again)),
                         ("<class 'xseg.ConfigError'>", -2, str(refusal.exception)))
        self.assertRaisesRegex(xseg.NoDriverError, "libno-such-driver.so", xseg.open, driver="libno-such-driver.so")
        allocator = self.open()
        with self.assertRaisesRegex(xseg.NoMemoryError, "hold 81920.00|81920.00 MiB") as refusal:
            allocator.allocate(1 << 50)
        self.assertIsInstance(refusal.exception, MemoryError)
        self.assertRaises(xseg.NotAllocatedError, allocator.block_at, 4096)
        allocator.configure("expandable_segments:False")
        machine.simulator.xseg_sim_fail(b"cuMemAlloc", 1, 1)
        self.assertRaisesRegex(xseg.DriverError, "cuMemAlloc", allocator.allocate, MIB)

    def test_configuration_can_be_read_and_changed(self):
        allocator = self.open("idle_ms:50")
        self.assertEqual(allocator.configuration_source, "argument")
        self.assertIn("idle_ms:50", allocator.configuration)
        allocator.configure("idle_ms:70")
        self.assertIn("idle_ms:70", allocator.configuration)
        found = {key.name: key for key in xseg.config_keys("idle_ms:50")}
        self.assertEqual((found["idle_ms"].value, found["idle_ms"].is_set), ("50", True))
        self.assertFalse(found["expandable_segments"].is_set)

    def test_budget_file_is_queried(self):
        with tempfile.TemporaryDirectory() as folder:
            ledger = os.path.join(folder, "ledger")
            self.assertRaises(xseg.FileError, xseg.budget_members, ledger)
            self.assertRaises(xseg.ArgumentError, xseg.budget_members, "")
            self.assertRaisesRegex(ValueError, "NUL", xseg.budget_members, "a\0b")
            for no_text in (5, b"rack7"):
                self.assertRaises(TypeError, xseg.budget_members, no_text)
            allocator = self.open(f"budget_file:{ledger},budget_share:0.5,budget_min_mb:7")
            (found,) = xseg.budget_members(ledger)
            self.assertEqual((found.pid, found.is_readable, found.uuid, found.physical_bytes), (os.getpid(), True, None, 0))
            allocator.allocate(20 * MIB).free()
            (found,) = xseg.budget_members(ledger)
            self.assertRegex(found.uuid, r"^[0-9a-f]{8}-[0-9a-f-]{27}$")
            self.assertEqual((found.slot, found.share_millionths, found.min_bytes, found.demand_bytes), (0, 500000, 7 * MIB, 0))
            allocator.close()
            self.assertEqual(xseg.budget_members(ledger), [])

    def test_devices_are_queried_without_a_driver_call(self):
        with unittest.mock.patch.dict(os.environ, XSEG_SIM_DEVICES="3"):
            machine.reset()
            self.addCleanup(machine.reset)
        allocator = self.open("hard_limit_mb:200")
        block = allocator.allocate(100 * MIB, device=1)
        allocator.allocate(50 * MIB, device=1).free()
        self.assertRaises(xseg.LimitError, allocator.allocate, 300 * MIB, device=1)
        before = machine.simulator.xseg_sim_calls(None)
        devices = allocator.devices()
        self.assertEqual(machine.simulator.xseg_sim_calls(None), before)
        self.assertEqual([(one.device, one.is_open, one.is_lost) for one in devices],
                         [(0, False, False), (1, True, False), (2, False, False)])
        used, statistics = devices[1], allocator.statistics(1)
        self.assertEqual((used.allocated_bytes, used.pending_bytes, used.limit_bytes), (100 * MIB, 0, 200 * MIB))
        self.assertEqual((used.total_bytes, used.physical_bytes, used.reserved_bytes),
                         (statistics.device_bytes, statistics.physical_bytes, statistics.reserved_bytes.all.current))
        self.assertEqual(used.idle_bytes, used.reserved_bytes - 100 * MIB)
        self.assertEqual(used.free_bytes, used.total_bytes - used.physical_bytes)
        self.assertLess(used.free_age_ms, 60000)
        allocator.allocate(MIB, device=2).free()
        never = allocator.devices()[2]
        self.assertEqual((never.is_open, never.free_bytes, never.free_age_ms), (True, None, None))
        block.free()

    def test_limits_are_read_and_set_one_by_one(self):
        allocator = self.open()
        self.assertEqual(allocator.limits(), xseg.Limits(None, None, 0, 1, 1))
        self.assertEqual(allocator.set_limits(hard_bytes=64 * MIB), xseg.Limits(None, None, 0, 1, 1))
        allocator.set_limits(keep_bytes=MIB)
        self.assertEqual(allocator.limits(), xseg.Limits(64 * MIB, None, MIB, 1, 1))
        self.assertEqual(allocator.set_limits(fraction=0.5).fraction, 1)
        self.assertEqual(allocator.limits(), xseg.Limits(64 * MIB, None, MIB, 0.5, 1))
        self.assertEqual(allocator.set_limits(rejection_fraction=0.25)[3:], (0.5, 1))
        self.assertEqual(allocator.set_limits(fraction=1)[3:], (0.5, 0.25))
        self.assertRaisesRegex(xseg.LimitError, "hard_bytes", allocator.allocate, 65 * MIB)
        self.assertRaises(xseg.ArgumentError, allocator.set_limits, hard_bytes=0)
        allocator.set_limits(hard_bytes=None)
        allocator.allocate(65 * MIB).free()

    def test_every_reserved_byte_has_a_reason(self):
        allocator = self.open()
        blocks = [allocator.allocate(30 * MIB) for _ in range(3)]
        blocks.pop(1).free()
        explained = allocator.explain()
        self.assertEqual(explained.reserved, allocator.statistics().reserved_bytes.all.current)
        self.assertEqual(sum(one.bytes for one in explained.reasons), explained.reserved)
        self.assertEqual({one.kind for one in explained.reasons}, {xseg.ReasonKind.ALLOCATED, xseg.ReasonKind.POLICY})
        walked = [one for one in allocator.blocks() if one.state == xseg.BlockState.ALLOCATED]
        self.assertEqual([one.base for one in walked], sorted(block.pointer for block in blocks))

    def test_statistics_start_again(self):
        allocator = self.open()
        allocator.allocate(MIB).free()
        allocator.reset_statistics(accumulated=True)
        self.assertEqual(allocator.statistics().allocation.all, xseg.Stat(0, 0, 0, 0))
        self.assertGreater(allocator.driver_calls()["cuMemCreate"].count, 0)

    def test_a_label_holds_for_a_with_statement_and_a_thread(self):
        allocator, blocks = self.open("history:state"), []
        with allocator.label("outer"):
            with allocator.label("inner"):
                blocks.append(allocator.allocate(MIB))
                thread = threading.Thread(target=lambda: blocks.append(allocator.allocate(MIB)))
                thread.start()
                thread.join()
            blocks.append(allocator.allocate(MIB))
        blocks.append(allocator.allocate(MIB))
        self.assertEqual([block.info().label for block in blocks], ["inner", None, "outer", None])

    def test_user_value_is_kept_with_its_block(self):
        allocator = self.open("block_user:True")
        word, other = (1 << 64) - 1, id(self)
        with allocator.pool() as pool:
            blocks = [allocator.allocate(MIB, user=word), pool.allocate(MIB, user=other), allocator.allocate(MIB)]
            self.assertEqual([block.info().user for block in blocks], [word, other, 0])
            for block in blocks:
                block.free()

    def test_user_value_is_ignored_without_the_key(self):
        self.assertEqual(self.open().allocate(MIB, user=7).info().user, 0)

    def test_memory_is_ready_after_prewarm(self):
        allocator = self.open()
        allocator.prewarm(50 * MIB)
        before = machine.simulator.xseg_sim_calls(b"cuMemCreate")
        with allocator.allocate(50 * MIB):
            self.assertEqual(machine.simulator.xseg_sim_calls(b"cuMemCreate"), before)
        allocator.trim_due(1000)

    def test_log_lines_reach_the_callback(self):
        lines = []
        allocator = self.open(log=lambda level, line: lines.append((level, line)))
        allocator.allocate(MIB).free()
        self.assertTrue(any(level == 2 for level, _ in lines), lines)

    def test_missing_libunwind_is_reported_once(self):
        script = """if True:
            import warnings, xseg
            lines = []
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                first = xseg.open("history:all", log=lambda _, line: lines.append(line))
                assert not caught, caught
                first.configure("history_stacks:all")
                second = xseg.open("history:all,history_stacks:all", log=lambda _, line: lines.append(line))
            print([one.category.__name__ for one in caught], sum("libunwind8" in line for line in lines))
            """
        with tempfile.TemporaryDirectory() as folder:
            # The first file of the name is taken, and this one cannot be loaded.
            pathlib.Path(folder, "libunwind.so.8").touch()
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                                  env={**os.environ, "LD_LIBRARY_PATH": folder})
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("['RuntimeWarning'] 1\n", "", 0))

    def test_threads_allocate_concurrently(self):
        allocator = self.open()

        def work(_):
            for size in range(1, 200):
                allocator.allocate(size * 1000).free()

        self.assertEqual(cases.in_threads(work, *range(4)), [])
        self.assertEqual(allocator.statistics().allocation.all.allocated, 4 * 199)

    def test_a_child_cannot_use_the_parent_s_allocator(self):
        allocator = self.open()
        block, child = allocator.allocate(MIB), os.fork()
        if child == 0:
            try:
                allocator.allocate(MIB)
            except xseg.ForkedError:
                del block
                os._exit(17)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 17)
        block.free()


class Streams(machine.StreamCase):
    def test_a_block_waits_for_the_streams_that_used_it(self):
        own, other = self.streams
        block = self.allocator.allocate(30 * MIB, stream=own)
        address = block.pointer
        self.assertEqual(block.stream, own.number)
        block.record_stream(other)
        other.launch()
        block.free()
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING_FREE)
        other.finish()
        self.allocator.stream_synchronized(other)
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.CACHED)

    def test_a_block_waits_for_events(self):
        own, other = self.streams
        event = machine.c_void_p()
        machine.checked("cuEventCreate", machine.byref(event), machine.c_uint(2))
        other.launch()
        machine.checked("cuEventRecord", event, machine.c_void_p(other.number))
        block = self.allocator.allocate(30 * MIB, stream=own)
        address = block.pointer
        block.free(after=[event])
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING_FREE)
        other.finish()
        machine.checked("cuEventDestroy_v2", event)
        with self.allocator.allocate(30 * MIB, stream=own) as again:
            self.assertEqual(again.pointer, address)

    def test_a_free_that_fails_leaves_the_block(self):
        own, other = self.streams
        block = self.allocator.allocate(30 * MIB, stream=own)
        block.record_stream(other)
        machine.simulator.xseg_sim_fail(b"cuEventRecord", 1, 1)
        self.assertRaises(xseg.DriverError, block.free)
        self.assertEqual(block.info().state, xseg.BlockState.ALLOCATED)
        block.free()

    def test_streams_of_many_libraries_are_understood(self):
        own, _ = self.streams

        class Torch:
            cuda_stream = own.number

        class Cupy:
            ptr = own.number

        class Numba:
            handle = machine.c_void_p(own.number)

        for stream in (own.number, own, Torch(), Cupy(), Numba(), machine.c_void_p(own.number)):
            with self.subTest(stream), self.allocator.allocate(MIB, stream=stream) as block:
                self.assertEqual(block.info().stream, own.number)
        self.assertRaisesRegex(TypeError, "stream is not a handle, 'a'", self.allocator.allocate, MIB, stream="a")

    def test_a_trim_can_be_of_a_stream(self):
        for stream in self.streams:
            self.allocator.allocate(20 * MIB, stream=stream).free()
        self.assertEqual(self.allocator.trim(stream=self.streams[0]).released, 20 * MIB)
        self.streams[1].launch()
        self.assertEqual(self.allocator.trim().kept_busy, 20 * MIB)
        self.assertEqual(self.allocator.trim(wait=True).released, 20 * MIB)


class Pools(Case):
    def test_memory_of_a_pool_is_its_own(self):
        allocator = self.open()
        with allocator.pool(name="weights", limit_bytes=64 * MIB) as pool:
            block = pool.allocate(20 * MIB)
            self.assertEqual(block.info().pool, pool.handle)
            self.assertEqual(pool.statistics().allocated_bytes.all.current, 20 * MIB)
            self.assertEqual(allocator.explain(pool=pool).allocated, 20 * MIB)
            self.assertEqual(pool.limits().hard_bytes, 64 * MIB)
            self.assertRaisesRegex(xseg.LimitError, "weights", pool.allocate, 60 * MIB)
            pool.set_limit(None)
            pool.allocate(60 * MIB).free()
            self.assertEqual(pool.trim().released, 60 * MIB)
        self.assertEqual(pool.handle, 0)
        self.assertRaises(xseg.ArgumentError, pool.pause)
        for call in (pool.trim, pool.statistics, pool.limits, lambda: pool.allocate(MIB), lambda: allocator.explain(pool=pool)):
            self.assertRaisesRegex(xseg.ArgumentError, "pool was released", call)
        block.free()

    def test_a_pool_pauses_and_resumes_at_the_same_addresses(self):
        allocator = self.open()
        with allocator.pool() as pool, pool.allocate(20 * MIB) as block, tempfile.TemporaryDirectory() as folder:
            address = block.pointer
            for keep, file in (("nothing", None), ("host", None), ("file", pathlib.Path(folder, "kept"))):
                with self.subTest(keep), pool.paused(keep, file):
                    self.assertEqual(machine.simulator.xseg_sim_used(0), 0)
                    self.assertTrue(block.info().is_paused)
                    self.assertEqual(file is not None, bool(os.listdir(folder)))
                    self.assertRaises(xseg.PausedError, pool.allocate, MIB)
            self.assertEqual((block.pointer, machine.simulator.xseg_sim_used(0)), (address, 20 * MIB))
            self.assertRaisesRegex(ValueError, "Pool.pause: unknown keep, 'elsewhere'", pool.pause, "elsewhere")
            self.assertRaises(xseg.FileError, pool.pause, "file", pathlib.Path(folder, "no/such/folder"))

    def test_a_route_sends_what_its_predicate_accepts(self):
        allocator, asked = self.open(), []
        with allocator.pool() as pool:
            with pool.route(lambda stream: not asked.append(stream)), allocator.allocate(MIB) as block:
                self.assertEqual(block.info().pool, pool.handle)
            self.assertEqual(asked, [0])
            with pool.route(), allocator.allocate(MIB) as block:
                self.assertEqual(block.info().pool, pool.handle)
            with allocator.allocate(MIB) as block:
                self.assertEqual(block.info().pool, 0)

    def test_a_pool_of_a_closed_allocator_is_nothing(self):
        allocator = self.open()
        pool = allocator.pool()
        allocator.close()
        self.assertEqual(pool.handle, 0)
        self.assertRaises(xseg.ArgumentError, pool.resume)
        pool.release()


class Captures(machine.StreamCase):
    def test_capture_allocates_from_its_pool(self):
        own, _ = self.streams
        graph = machine.c_void_p()
        with self.allocator.pool() as pool:
            with pool.capture(own):
                machine.checked("cuStreamBeginCapture_v2", machine.c_void_p(own.number), machine.c_int(2))
                block = self.allocator.allocate(MIB, stream=own)
                machine.checked("cuStreamEndCapture", machine.c_void_p(own.number), machine.byref(graph))
            self.assertEqual(block.info().pool, pool.handle)
            block.free()
        machine.checked("cuGraphDestroy", graph)


class Index:
    """An integer of another library, such as numpy.int64, whose sums wrap around."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value

    def __add__(self, other):
        return Index((self.value + int(other) + 2**63) % 2**64 - 2**63)

    def __lt__(self, other):
        return self.value < int(other)

    __int__, __radd__ = __index__, __add__


class Arguments(Case):
    """Whatever does not fit the C type of an argument is rejected before the library is called."""

    def setUp(self):
        super().setUp()
        self.allocator = self.open()
        self.block, self.pool, self.range = self.allocator.allocate(MIB), self.allocator.pool(), self.allocator.range(8 * MIB)

    def tearDown(self):
        self.block.free()
        self.range.release()
        self.pool.release()
        super().tearDown()

    def calls(self):
        """Each argument that is an integer: its name, the bits of its type, and a call with a value for it."""
        one, block, pool, area, registered = self.allocator, self.block, self.pool, self.range, (lambda *_: None, lambda *_: None)
        return (
            ("size", 64, one.allocate), ("size", 64, pool.allocate), ("alignment", 64, lambda x: one.allocate(1, alignment=x)),
            ("user", 64, lambda x: one.allocate(1, user=x)), ("user", 64, lambda x: pool.allocate(1, user=x)),
            ("device", 31, lambda x: one.allocate(1, device=x)), ("stream", 64, lambda x: one.allocate(1, stream=x)),
            ("size", 64, lambda x: one.allocate(x, zeroed=True)), ("device", 31, lambda x: one.allocate(1, device=x, alignment=1024)),
            ("stream", 64, lambda x: pool.allocate(1, stream=x)), ("stream", 64, block.record_stream), ("event", 64, lambda x: block.free([x])),
            ("device", 31, one.pool), ("limit_bytes", 64, lambda x: one.pool(limit_bytes=x)), ("size", 64, one.range),
            ("device", 31, lambda x: one.range(2 * MIB, x)), ("page_bytes", 64, lambda x: one.range(2 * MIB, page_bytes=x)),
            ("limit_bytes", 64, lambda x: one.range(2 * MIB, limit_bytes=x)), ("address", 64, lambda x: one.register(x, 1, *registered)),
            ("size", 64, lambda x: one.register(block.pointer, x, *registered)), ("address", 64, lambda x: one.dmabuf(x, 1)),
            ("size", 64, lambda x: one.dmabuf(block.pointer, x)), ("address", 64, one.block_at), ("device", 31, one.blocks),
            ("target_bytes", 64, lambda x: one.trim(target_bytes=x)), ("idle_ms", 64, lambda x: one.trim(idle_ms=x)),
            ("device", 31, lambda x: one.trim(device=x)), ("stream", 64, lambda x: one.trim(stream=x)), ("max_us", 64, one.trim_due),
            ("size", 64, one.prewarm), ("device", 31, lambda x: one.prewarm(1, device=x)),
            ("stream", 64, lambda x: one.prewarm(1, stream=x)), ("device", 31, one.statistics), ("device", 31, one.reset_statistics),
            ("device", 31, one.limits), ("device", 31, one.set_limits), ("hard_bytes", 64, lambda x: one.set_limits(hard_bytes=x)),
            ("soft_bytes", 64, lambda x: one.set_limits(soft_bytes=x)), ("keep_bytes", 64, lambda x: one.set_limits(keep_bytes=x)),
            ("hard_bytes", 64, pool.set_limit), ("device", 31, one.explain), ("host_bytes", 64, lambda x: one.snapshot("/no-folder/x", host_bytes=x)),
            ("max_ms", 32, lambda x: one.snapshot("/no-folder/x", max_ms=x)), ("stream", 64, one.stream_synchronized), ("device", 31, lambda x: one.stream_synchronized(0, x)),
            ("stream", 64, one.stream_retire), ("device", 31, lambda x: one.stream_retire(0, x)),
            ("stream", 64, lambda x: pool.capture(x).__enter__()), ("target_bytes", 64, lambda x: pool.trim(target_bytes=x)),
            ("offset", 64, lambda x: area.commit(x, 2 * MIB)), ("size", 64, lambda x: area.commit(0, x)),
            ("stream", 64, lambda x: area.commit(0, 2 * MIB, x)), ("offset", 64, lambda x: area.decommit(x, 2 * MIB)),
            ("size", 64, lambda x: area.decommit(0, x)), ("stream", 64, lambda x: area.decommit(0, 2 * MIB, x)), ("size", 64, area.prepare),
            ("size", 64, area.set_quota), ("offset", 64, lambda x: area.hold(x, 2 * MIB)), ("size", 64, lambda x: area.hold(0, x)),
            ("offset", 64, lambda x: area.unhold(x, 2 * MIB)), ("size", 64, lambda x: area.unhold(0, x)),
            ("stream", 64, lambda x: area.unhold(0, 2 * MIB, x)), ("offset", 64, lambda x: area.alias(x, 2 * MIB, area)),
            ("size", 64, lambda x: area.alias(0, x, area)), ("source_offset", 64, lambda x: area.alias(0, 2 * MIB, area, x)),
            ("offset", 64, area.view), ("size", 64, lambda x: area.view(0, x)),)

    def test_integers_that_do_not_fit_are_rejected(self):
        before, limits = self.allocator.blocks(), self.allocator.limits()
        calls = machine.simulator.xseg_sim_calls(None)
        for place, (name, bits, call) in enumerate(self.calls()):
            for value in (1 << bits, (1 << bits) + 512, -(1 << bits) - 1, 1 << 20000, Index(1 << bits), *([] if bits == 31 else [-1, Index(-1)])):
                with self.subTest(place=place, name=name, kind=type(value)):
                    self.assertRaisesRegex(xseg.ArgumentError, rf"\b{name} is out of range, \S", call, value)
            for value in (1.0, 1.5, True, False, "1", b"1", [1], ctypes.c_int16(1), ctypes.c_bool(True)):
                with self.subTest(place=place, name=name, value=value):
                    self.assertRaisesRegex(xseg.ArgumentError, rf"\b{name} is not an integer, |{name} is not a handle, ", call, value)
                    self.assertRaises(TypeError, call, value)
        self.assertEqual((self.allocator.blocks(), self.allocator.limits()), (before, limits))
        self.assertEqual(machine.simulator.xseg_sim_calls(None), calls)

    def test_integers_of_other_libraries_are_integers(self):
        area = self.range
        with self.allocator.allocate(Index(1000), device=Index(0), stream=Index(0), alignment=Index(1024)) as block:
            self.assertEqual((block.size, block.device, block.stream, type(block.size)), (1000, 0, 0, int))
            self.assertEqual(self.allocator.block_at(Index(block.pointer)).requested, 1000)
        area.commit(Index(0), Index(2 * MIB))
        self.assertEqual(area.view(Index(5), Index(7)).size, 7)
        self.assertRaises(xseg.ArgumentError, area.view, Index(2**62), Index(2**63 - 1))
        area.decommit(Index(0), Index(2 * MIB), Index(0))
        self.allocator.set_limits(Index(0), hard_bytes=Index(64 * MIB))
        self.assertEqual(self.allocator.limits().hard_bytes, 64 * MIB)

    def test_each_integer_is_converted_once(self):
        """A conversion that failed after the call would lose what the call made."""
        class Once(Index):
            def __index__(self):
                self.value, value = None, self.value
                return operator.index(value)

        with self.allocator.allocate(Once(1000), device=Once(0), zeroed=True) as block:
            self.assertEqual((block.size, block.device), (1000, 0))
        self.allocator.pool(Once(0)).release()
        self.range.commit(Once(0), Once(2 * MIB))
        self.range.alias(Once(2 * MIB), Once(2 * MIB), self.range, Once(0))
        self.range.decommit(Once(0), Once(4 * MIB))
        size, device = ctypes.c_size_t(2 * MIB), ctypes.c_int(0)
        for call in (lambda: self.allocator.allocate(size), lambda: self.allocator.allocate(1, device=device), lambda: self.allocator.pool(device),
                     lambda: self.range.commit(0, size)):
            self.assertRaisesRegex(xseg.ArgumentError, "is not an integer", call)
        self.assertEqual(self.allocator.statistics().allocation.all.current, 1)

    def test_the_greatest_integers_reach_the_library(self):
        self.assertRaises(xseg.NoMemoryError, self.allocator.allocate, (1 << 64) - 1)
        self.assertRaises(xseg.NotAllocatedError, self.allocator.block_at, (1 << 64) - 1)
        self.assertRaisesRegex(xseg.ArgumentError, "device", self.allocator.statistics, (1 << 31) - 1)

    def test_strings_with_a_nul_are_rejected(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a\0b")
            for call in (lambda: self.allocator.snapshot(path), lambda: self.allocator.write_metrics(path),
                         lambda: self.pool.pause("file", path), lambda: self.allocator.pool(name="a\0b"),
                         lambda: self.allocator.range(2 * MIB, name="a\0b"), lambda: self.allocator.configure("idle_ms:7\0"),
                         lambda: self.allocator.label("a\0b").__enter__(), lambda: xseg.config_keys("a\0b"), lambda: xseg.open("idle_ms:7\0"),
                         lambda: xseg.open(driver="a\0b")):
                self.assertRaisesRegex(xseg.ArgumentError, "contains a NUL", call)
            self.assertEqual(os.listdir(folder), [])

    def test_fractions_are_numbers(self):
        for value in ("0.5", True, None, [], 10**400):
            self.assertRaisesRegex((xseg.ArgumentError), "fraction", lambda value=value: self.allocator.set_limits(fraction=value))
        self.assertEqual(self.allocator.limits().fraction, 1)

    def test_a_handle_of_another_kind_is_rejected(self):
        for call in (lambda: self.allocator.trim(pool=self.range), lambda: self.allocator.statistics(pool=self.block),
                     lambda: self.allocator.range(2 * MIB, pool=self.pool.handle), lambda: self.range.alias(0, 2 * MIB, self.pool)):
            self.assertRaises(TypeError, call)
            self.assertRaises(xseg.ArgumentError, call)


class Copies(Case):
    def test_no_copy_releases_what_the_original_owns(self):
        allocator, ignore = self.open("expandable_segments:True,rdma:True"), lambda *_: None
        with allocator.pool() as pool, allocator.range(2 * MIB) as area, allocator.allocate(MIB) as block:
            with allocator.register(block.pointer, MIB, ignore, ignore) as registration, allocator.dmabuf(block.pointer, MIB) as file:
                for owner in (allocator, pool, area, area.view(), block, registration, file):
                    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: copy.deepcopy([one])):
                        with self.subTest(type(owner)), self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                            duplicate(owner)
            self.assertEqual(block.info().state, xseg.BlockState.ALLOCATED)


class Callbacks(Case):
    def test_exception_in_a_visit_is_raised(self):
        allocator = self.open()
        for call in (allocator.blocks, allocator.explain, xseg.config_keys):
            with allocator.allocate(MIB), unittest.mock.patch("xseg._records.record", side_effect=KeyboardInterrupt):
                self.assertRaises(KeyboardInterrupt, call)

    def test_a_route_ends_although_its_pool_was_released(self):
        allocator, asked = self.open(), []
        pool = allocator.pool()
        with pool.route(lambda stream: not asked.append(stream)):
            pool.release()
        gc.collect()
        allocator.allocate(MIB).free()
        self.assertEqual(asked, [])

    def test_objects_at_exit_are_released_silently(self):
        program = """
import builtins, gc, sys, types
holder = sys.modules["holder"] = types.ModuleType("holder")     # ends after xseg, which is imported later
import xseg
MIB = 1 << 20
for log in (None, lambda level, line: None):
    allocator = xseg.open("expandable_segments:True,rdma:True", log=log)
    pool, area, block = allocator.pool(), allocator.range(4 * MIB), allocator.allocate(20 * MIB)
    area.commit(0, 2 * MIB)
    route = pool.route(lambda stream: True)
    route.__enter__()
    label = allocator.label("a")
    label.__enter__()
    registration = allocator.register(block.pointer, MIB, lambda *_: None, lambda *_: None)
    made = [block, pool, area, route, label, registration, allocator.dmabuf(block.pointer, MIB, pin=True), allocator]
    place = types.SimpleNamespace(made=made)
    if PLACE == "cycle":
        gc.disable()
        place.place = place
    else:
        setattr(sys.modules[PLACE], f"of_xseg_{log is None}", place)
    del allocator, pool, area, block, route, label, registration, made, place
print("end")
"""
        for place in ("holder", "builtins", "sys", "cycle"):
            with self.subTest(place):
                out, complaint = cases.said(program.replace("PLACE", repr(place)), PYTHONMALLOC="debug")
                self.assertEqual((out, cases.complaints(complaint)), ("end\n", ""))

    def test_threads_of_the_library_that_may_log_end_with_the_interpreter(self):
        program = """
import atexit, os
threads = lambda: len(os.listdir("/proc/self/task"))
atexit.register(lambda: print(threads()))       # after the handlers of xseg, which is imported later
import xseg
before = threads()
allocator = xseg.open("idle_ms:100,background_thread:True", log=lambda level, line: None)
print(threads() - before)
"""
        self.assertEqual(cases.said(program)[0], "1\n1\n")


class Libraries(unittest.TestCase):
    def test_the_variable_chooses_the_library(self):
        program = "import xseg._library as library; print(library.path()); library.load()"
        out, _ = cases.said(program)
        self.assertEqual(out, os.environ["XSEG_LIBRARY"] + "\n")
        with self.assertRaisesRegex(AssertionError, "xseg: cannot load the library, libno-such.so: "):
            cases.said(program, XSEG_LIBRARY="libno-such.so")
        with self.assertRaisesRegex(AssertionError, "install the wheel of xseg, or set XSEG_LIBRARY"):
            cases.said(program, XSEG_LIBRARY="")

    def test_a_library_for_another_machine_is_told_from_one_that_is_broken(self):
        own = pathlib.Path(os.environ["XSEG_LIBRARY"]).read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            library = str(pathlib.Path(folder, "libxseg.so.0"))
            load = "import os, xseg._library as library\n{before}\ntry: library.load()\nexcept ImportError as why: print(why)"
            for machine_number, before, want in (
                    (b"\xb7\0", "library.platform.machine = lambda: 'x86_64'",
                     "built for aarch64, but the CPU is x86_64; install the wheel of xseg whose name ends in x86_64.whl"),
                    (own[18:20], "os.confstr = lambda name: None", "built for glibc, but the system has another C library"),
                    (own[18:20], "os.confstr = lambda name: 'glibc 2.27'",
                     "built for glibc 2.28 or newer, but the system has 2.27; use Debian 10, Ubuntu 20.04, RHEL 8 or newer"),
                    (own[18:20], "", "file too short")):
                pathlib.Path(library).write_bytes(own[:18] + machine_number + own[20:40])
                with self.subTest(want):
                    out, _ = cases.said(load.format(before=before), XSEG_LIBRARY=library)
                    self.assertIn(f"xseg: cannot load the library, {library}: ", out)
                    self.assertIn(want, out)

    def test_missing_function_is_reported_at_the_call(self):
        out, _ = cases.said("import xseg._library as library\n"
                            "try: library.call('xseg_trim', None, None, None, None)\n"
                            "except Exception as refusal: print(repr(refusal))", XSEG_LIBRARY=os.environ["XSEG_DRIVER"])
        self.assertIn("UnsupportedError(", out)
        self.assertIn("xseg_trim: function not found in the library, ", out)

    def test_headers_and_simulator_are_found(self):
        out, _ = cases.said("import xseg._library as library; print(library.include(), library.simulator())")
        include, simulator = out.split()
        self.assertTrue(pathlib.Path(include, "xseg/xseg.h").exists())
        self.assertTrue(pathlib.Path(simulator).samefile(os.environ["XSEG_DRIVER"]))

    def test_missing_command_is_reported(self):
        with self.assertRaisesRegex(AssertionError, r"status 1:\nxseg: command not found, .*bin/xseg; install the wheel"):
            cases.said("import runpy; runpy.run_module('xseg', run_name='__main__')")


if __name__ == "__main__":
    cases.main()
