# SPDX-License-Identifier: MIT
"""Tests of allocators, blocks, pools and streams in Python, on the simulated driver."""
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
import simulation
import xseg
from cases import MIB
from simulation import call_driver, simulator


class Case(simulation.Case):
    def open(self, config="expandable_segments:True", **options):
        allocator = xseg.open(config, **options)
        self.addCleanup(allocator.close)
        return allocator


class Allocators(Case):
    def test_block_is_allocated_until_free(self):
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
            self.assertEqual(simulator.xseg_sim_used(0), 100 * MIB)
            self.assertEqual(allocator.trim(), xseg.TrimResult(100 * MIB, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
            self.assertEqual(simulator.xseg_sim_used(0), 0)

    def test_last_reference_or_with_statement_frees_a_block(self):
        allocator = self.open()
        allocator.allocate(MIB)
        self.assertEqual(allocator.statistics().allocation.all.current, 0)
        with allocator.allocate(MIB) as block:
            self.assertEqual(allocator.statistics().allocation.all.current, 1)
        self.assertEqual((block.pointer, allocator.statistics().allocation.all.current), (0, 0))

    def test_last_block_closes_the_allocator(self):
        block = xseg.open("expandable_segments:True").allocate(MIB)
        self.assertNotEqual(block.pointer, 0)
        del block
        gc.collect()
        self.assertEqual(simulation.leaks(), "")

    def test_pool_detects_that_its_allocator_was_finalized_first(self):
        """In a cycle of references the order of finalizers is unspecified."""
        allocator = xseg.open("expandable_segments:True")
        pool = allocator.pool()
        allocator.__del__()
        self.assertEqual((allocator.handle, pool.handle), (0, 0))

    def test_close_with_allocated_blocks_fails(self):
        allocator = self.open()
        block = allocator.allocate(MIB)
        self.assertRaisesRegex(xseg.BusyError, f"{block.pointer:x}", allocator.close)
        block.free()
        allocator.close()
        allocator.close()
        self.assertRaises(xseg.ArgumentError, allocator.allocate, MIB)

    def test_exception_in_a_with_statement_with_blocks_is_raised(self):
        with self.assertRaises(ZeroDivisionError):
            with xseg.open("expandable_segments:True") as allocator:
                block = allocator.allocate(MIB)
                _ = 1 // (block.size - MIB)

    def test_empty_allocation_has_an_address(self):
        with self.open().allocate(0) as block:
            self.assertEqual((block.pointer, block.size, block.__cuda_array_interface__["shape"]), (0, 0, (0,)))

    def test_alignment_and_zeroing_are_applied(self):
        allocator, before = self.open(), simulator.xseg_sim_calls(b"cuMemsetD32Async")
        with allocator.allocate(MIB, alignment=8 * MIB, zeroed=True) as block:
            self.assertEqual(block.pointer % (8 * MIB), 0)
            self.assertEqual(simulator.xseg_sim_calls(b"cuMemsetD32Async"), before + 1)
        self.assertRaises(xseg.ArgumentError, allocator.allocate, MIB, alignment=3)
        self.assertRaises(ValueError, allocator.allocate, -1)

    def test_errors_raise_their_class_with_the_message_of_the_library(self):
        with self.assertRaisesRegex(xseg.ConfigError, "'nonsense' at column 1") as raised:
            xseg.open("nonsense:1")
        self.assertEqual(raised.exception.status, -2)
        restored = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((repr(type(restored)), restored.status, str(restored)),
                         ("<class 'xseg.ConfigError'>", -2, str(raised.exception)))
        self.assertRaisesRegex(xseg.NoDriverError, "libno-such-driver.so", xseg.open, driver="libno-such-driver.so")
        allocator = self.open()
        with self.assertRaisesRegex(xseg.NoMemoryError, "81920.00 MiB") as raised:
            allocator.allocate(1 << 50)
        self.assertIsInstance(raised.exception, MemoryError)
        self.assertRaises(xseg.NotAllocatedError, allocator.block_at, 4096)
        allocator.configure("expandable_segments:False")
        simulator.xseg_sim_fail(b"cuMemAlloc", 1, 1)
        self.assertRaisesRegex(xseg.DriverError, "cuMemAlloc", allocator.allocate, MIB)

    def test_configuration_can_be_read_and_changed(self):
        allocator = self.open("idle_ms:50")
        self.assertEqual(allocator.configuration_source, "argument")
        self.assertIn("idle_ms:50", allocator.configuration)
        allocator.configure("idle_ms:70")
        self.assertIn("idle_ms:70", allocator.configuration)
        keys = {key.name: key for key in xseg.config_keys("idle_ms:50")}
        self.assertEqual((keys["idle_ms"].value, keys["idle_ms"].is_set), ("50", True))
        self.assertFalse(keys["expandable_segments"].is_set)

    def test_budget_file_is_queried(self):
        with tempfile.TemporaryDirectory() as folder:
            budget_file = os.path.join(folder, "budget")
            self.assertRaises(xseg.FileError, xseg.budget_members, budget_file)
            self.assertRaises(xseg.ArgumentError, xseg.budget_members, "")
            self.assertRaisesRegex(ValueError, "NUL", xseg.budget_members, "a\0b")
            for invalid in (5, b"rack7"):
                self.assertRaises(TypeError, xseg.budget_members, invalid)
            allocator = self.open(f"budget_file:{budget_file},budget_share:0.5,budget_min_mb:7")
            (member,) = xseg.budget_members(budget_file)
            self.assertEqual((member.pid, member.is_readable, member.uuid, member.physical_bytes), (os.getpid(), True, None, 0))
            allocator.allocate(20 * MIB).free()
            (member,) = xseg.budget_members(budget_file)
            self.assertRegex(member.uuid, r"^[0-9a-f]{8}-[0-9a-f-]{27}$")
            self.assertEqual((member.slot, member.share_millionths, member.min_bytes, member.demand_bytes),
                             (0, 500000, 7 * MIB, 0))
            allocator.close()
            self.assertEqual(xseg.budget_members(budget_file), [])

    def test_devices_are_queried_without_a_driver_call(self):
        with unittest.mock.patch.dict(os.environ, XSEG_SIM_DEVICES="3"):
            simulation.reset()
            self.addCleanup(simulation.reset)
        allocator = self.open("hard_limit_mb:200")
        block = allocator.allocate(100 * MIB, device=1)
        allocator.allocate(50 * MIB, device=1).free()
        self.assertRaises(xseg.LimitError, allocator.allocate, 300 * MIB, device=1)
        calls = simulator.xseg_sim_calls(None)
        devices = allocator.devices()
        self.assertEqual(simulator.xseg_sim_calls(None), calls)
        self.assertEqual([(device.device, device.is_open, device.is_lost) for device in devices],
                         [(0, False, False), (1, True, False), (2, False, False)])
        used, statistics = devices[1], allocator.statistics(1)
        self.assertEqual((used.allocated_bytes, used.pending_bytes, used.limit_bytes), (100 * MIB, 0, 200 * MIB))
        self.assertEqual((used.total_bytes, used.physical_bytes, used.reserved_bytes),
                         (statistics.device_bytes, statistics.physical_bytes, statistics.reserved_bytes.all.current))
        self.assertEqual(used.idle_bytes, used.reserved_bytes - 100 * MIB)
        self.assertEqual(used.free_bytes, used.total_bytes - used.physical_bytes)
        self.assertLess(used.free_age_ms, 60000)
        self.assertEqual((used.free_min_bytes, used.is_integrated), (0, False))
        allocator.allocate(MIB, device=2).free()
        unqueried = allocator.devices()[2]
        self.assertEqual((unqueried.is_open, unqueried.free_bytes, unqueried.free_age_ms), (True, None, None))
        block.free()

    def test_limits_are_read_and_set_individually(self):
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
        report = allocator.explain()
        self.assertEqual(report.reserved, allocator.statistics().reserved_bytes.all.current)
        self.assertEqual(sum(reason.bytes for reason in report.reasons), report.reserved)
        self.assertEqual({reason.kind for reason in report.reasons}, {xseg.ReasonKind.ALLOCATED, xseg.ReasonKind.POLICY})
        allocated = [block for block in allocator.blocks() if block.state == xseg.BlockState.ALLOCATED]
        self.assertEqual([block.base for block in allocated], sorted(block.pointer for block in blocks))

    def test_statistics_can_be_reset(self):
        allocator = self.open()
        allocator.allocate(MIB).free()
        allocator.reset_statistics(accumulated=True)
        self.assertEqual(allocator.statistics().allocation.all, xseg.Stat(0, 0, 0, 0))
        self.assertGreater(allocator.driver_calls()["cuMemCreate"].count, 0)

    def test_label_applies_to_a_with_statement_and_its_thread(self):
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
        value, other_value = (1 << 64) - 1, id(self)
        with allocator.pool() as pool:
            blocks = [allocator.allocate(MIB, user=value), pool.allocate(MIB, user=other_value), allocator.allocate(MIB)]
            self.assertEqual([block.info().user for block in blocks], [value, other_value, 0])
            for block in blocks:
                block.free()

    def test_user_value_is_ignored_without_the_key(self):
        self.assertEqual(self.open().allocate(MIB, user=7).info().user, 0)

    def test_memory_is_ready_after_prewarm(self):
        allocator = self.open()
        allocator.prewarm(50 * MIB)
        before = simulator.xseg_sim_calls(b"cuMemCreate")
        with allocator.allocate(50 * MIB):
            self.assertEqual(simulator.xseg_sim_calls(b"cuMemCreate"), before)
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
            print([warning.category.__name__ for warning in caught], sum("libunwind8" in line for line in lines))
            """
        with tempfile.TemporaryDirectory() as folder:
            # The first file of this name is used, and this empty file cannot be loaded.
            pathlib.Path(folder, "libunwind.so.8").touch()
            completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                                       env={**os.environ, "LD_LIBRARY_PATH": folder})
        self.assertEqual((completed.stdout, completed.stderr, completed.returncode), ("['RuntimeWarning'] 1\n", "", 0))

    def test_threads_allocate_concurrently(self):
        allocator = self.open()

        def allocate_and_free(_):
            for size in range(1, 200):
                allocator.allocate(size * 1000).free()

        self.assertEqual(cases.run_in_threads(allocate_and_free, *range(4)), [])
        self.assertEqual(allocator.statistics().allocation.all.allocated, 4 * 199)

    def test_forked_child_cannot_use_the_allocator(self):
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


class Streams(simulation.StreamCase):
    def test_free_waits_for_recorded_streams(self):
        first_stream, second_stream = self.streams
        block = self.allocator.allocate(30 * MIB, stream=first_stream)
        address = block.pointer
        self.assertEqual(block.stream, first_stream.stream_handle)
        block.record_stream(second_stream)
        second_stream.launch()
        block.free()
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING_FREE)
        second_stream.finish()
        self.allocator.stream_synchronized(second_stream)
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.CACHED)

    def test_free_waits_for_events(self):
        first_stream, second_stream = self.streams
        event = simulation.c_void_p()
        call_driver("cuEventCreate", simulation.byref(event), simulation.c_uint(2))
        second_stream.launch()
        call_driver("cuEventRecord", event, simulation.c_void_p(second_stream.stream_handle))
        block = self.allocator.allocate(30 * MIB, stream=first_stream)
        address = block.pointer
        block.free(after=[event])
        self.assertEqual(self.allocator.block_at(address).state, xseg.BlockState.PENDING_FREE)
        second_stream.finish()
        call_driver("cuEventDestroy_v2", event)
        with self.allocator.allocate(30 * MIB, stream=first_stream) as reused:
            self.assertEqual(reused.pointer, address)

    def test_failed_free_leaves_the_block_allocated(self):
        first_stream, second_stream = self.streams
        block = self.allocator.allocate(30 * MIB, stream=first_stream)
        block.record_stream(second_stream)
        simulator.xseg_sim_fail(b"cuEventRecord", 1, 1)
        self.assertRaises(xseg.DriverError, block.free)
        self.assertEqual(block.info().state, xseg.BlockState.ALLOCATED)
        block.free()

    def test_stream_objects_of_other_libraries_are_accepted(self):
        first_stream, _ = self.streams

        class Torch:
            cuda_stream = first_stream.stream_handle

        class Cupy:
            ptr = first_stream.stream_handle

        class Numba:
            handle = simulation.c_void_p(first_stream.stream_handle)

        for stream in (first_stream.stream_handle, first_stream, Torch(), Cupy(), Numba(),
                       simulation.c_void_p(first_stream.stream_handle)):
            with self.subTest(stream), self.allocator.allocate(MIB, stream=stream) as block:
                self.assertEqual(block.info().stream, first_stream.stream_handle)
        self.assertRaisesRegex(TypeError, "stream is not a handle, 'a'", self.allocator.allocate, MIB, stream="a")

    def test_trim_can_be_limited_to_a_stream(self):
        for stream in self.streams:
            self.allocator.allocate(20 * MIB, stream=stream).free()
        self.assertEqual(self.allocator.trim(stream=self.streams[0]).released, 20 * MIB)
        self.streams[1].launch()
        self.assertEqual(self.allocator.trim().kept_busy, 20 * MIB)
        self.assertEqual(self.allocator.trim(wait=True).released, 20 * MIB)


class Pools(Case):
    def test_pool_has_separate_memory_and_limits(self):
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

    def test_paused_pool_resumes_at_the_same_addresses(self):
        allocator = self.open()
        with allocator.pool() as pool, pool.allocate(20 * MIB) as block, tempfile.TemporaryDirectory() as folder:
            address = block.pointer
            for keep, file in (("nothing", None), ("host", None), ("file", pathlib.Path(folder, "kept"))):
                with self.subTest(keep), pool.paused(keep, file):
                    self.assertEqual(simulator.xseg_sim_used(0), 0)
                    self.assertTrue(block.info().is_paused)
                    self.assertEqual(file is not None, bool(os.listdir(folder)))
                    self.assertRaises(xseg.PausedError, pool.allocate, MIB)
            self.assertEqual((block.pointer, simulator.xseg_sim_used(0)), (address, 20 * MIB))
            self.assertRaisesRegex(ValueError, "Pool.pause: unknown keep, 'elsewhere'", pool.pause, "elsewhere")
            self.assertRaises(xseg.FileError, pool.pause, "file", pathlib.Path(folder, "no/such/folder"))

    def test_route_applies_to_streams_that_its_predicate_accepts(self):
        allocator, routed_streams = self.open(), []
        with allocator.pool() as pool:
            with pool.route(lambda stream: not routed_streams.append(stream)), allocator.allocate(MIB) as block:
                self.assertEqual(block.info().pool, pool.handle)
            self.assertEqual(routed_streams, [0])
            with pool.route(), allocator.allocate(MIB) as block:
                self.assertEqual(block.info().pool, pool.handle)
            with allocator.allocate(MIB) as block:
                self.assertEqual(block.info().pool, 0)

    def test_pool_of_a_closed_allocator_is_invalid(self):
        allocator = self.open()
        pool = allocator.pool()
        allocator.close()
        self.assertEqual(pool.handle, 0)
        self.assertRaises(xseg.ArgumentError, pool.resume)
        pool.release()


class Captures(simulation.StreamCase):
    def test_capture_allocates_from_its_pool(self):
        stream, _ = self.streams
        graph = simulation.c_void_p()
        with self.allocator.pool() as pool:
            with pool.capture(stream):
                call_driver("cuStreamBeginCapture_v2", simulation.c_void_p(stream.stream_handle), simulation.c_int(2))
                block = self.allocator.allocate(MIB, stream=stream)
                call_driver("cuStreamEndCapture", simulation.c_void_p(stream.stream_handle), simulation.byref(graph))
            self.assertEqual(block.info().pool, pool.handle)
            block.free()
        call_driver("cuGraphDestroy", graph)


class Index:
    """An integer of another library, such as numpy.int64, whose additions overflow."""

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
    """Arguments that the C type cannot represent are rejected before the call of the library."""

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
        """Returns for each integer argument: its name, the bits of its type, and a call with a value."""
        owner, block, pool, range_ = self.allocator, self.block, self.pool, self.range
        callbacks = (lambda *_: None, lambda *_: None)
        return (
            ("size", 64, owner.allocate), ("size", 64, pool.allocate),
            ("alignment", 64, lambda x: owner.allocate(1, alignment=x)), ("user", 64, lambda x: owner.allocate(1, user=x)),
            ("user", 64, lambda x: pool.allocate(1, user=x)), ("device", 31, lambda x: owner.allocate(1, device=x)),
            ("stream", 64, lambda x: owner.allocate(1, stream=x)), ("size", 64, lambda x: owner.allocate(x, zeroed=True)),
            ("device", 31, lambda x: owner.allocate(1, device=x, alignment=1024)),
            ("stream", 64, lambda x: pool.allocate(1, stream=x)), ("stream", 64, block.record_stream),
            ("event", 64, lambda x: block.free([x])), ("device", 31, owner.pool),
            ("limit_bytes", 64, lambda x: owner.pool(limit_bytes=x)), ("size", 64, owner.range),
            ("device", 31, lambda x: owner.range(2 * MIB, x)), ("page_bytes", 64, lambda x: owner.range(2 * MIB, page_bytes=x)),
            ("limit_bytes", 64, lambda x: owner.range(2 * MIB, limit_bytes=x)),
            ("address", 64, lambda x: owner.register(x, 1, *callbacks)),
            ("size", 64, lambda x: owner.register(block.pointer, x, *callbacks)), ("address", 64, lambda x: owner.dmabuf(x, 1)),
            ("size", 64, lambda x: owner.dmabuf(block.pointer, x)), ("address", 64, owner.block_at), ("device", 31, owner.blocks),
            ("target_bytes", 64, lambda x: owner.trim(target_bytes=x)), ("idle_ms", 64, lambda x: owner.trim(idle_ms=x)),
            ("device", 31, lambda x: owner.trim(device=x)), ("stream", 64, lambda x: owner.trim(stream=x)),
            ("max_us", 64, owner.trim_due), ("size", 64, owner.prewarm), ("device", 31, lambda x: owner.prewarm(1, device=x)),
            ("stream", 64, lambda x: owner.prewarm(1, stream=x)), ("device", 31, owner.statistics),
            ("device", 31, owner.reset_statistics), ("device", 31, owner.limits), ("device", 31, owner.set_limits),
            ("hard_bytes", 64, lambda x: owner.set_limits(hard_bytes=x)),
            ("soft_bytes", 64, lambda x: owner.set_limits(soft_bytes=x)),
            ("keep_bytes", 64, lambda x: owner.set_limits(keep_bytes=x)), ("hard_bytes", 64, pool.set_limit),
            ("device", 31, owner.explain), ("host_bytes", 64, lambda x: owner.snapshot("/no-folder/x", host_bytes=x)),
            ("max_ms", 32, lambda x: owner.snapshot("/no-folder/x", max_ms=x)), ("stream", 64, owner.stream_synchronized),
            ("device", 31, lambda x: owner.stream_synchronized(0, x)), ("stream", 64, owner.stream_retire),
            ("device", 31, lambda x: owner.stream_retire(0, x)), ("stream", 64, lambda x: pool.capture(x).__enter__()),
            ("target_bytes", 64, lambda x: pool.trim(target_bytes=x)), ("offset", 64, lambda x: range_.commit(x, 2 * MIB)),
            ("size", 64, lambda x: range_.commit(0, x)), ("stream", 64, lambda x: range_.commit(0, 2 * MIB, x)),
            ("offset", 64, lambda x: range_.decommit(x, 2 * MIB)), ("size", 64, lambda x: range_.decommit(0, x)),
            ("stream", 64, lambda x: range_.decommit(0, 2 * MIB, x)), ("size", 64, range_.prepare),
            ("size", 64, range_.set_quota), ("offset", 64, lambda x: range_.hold(x, 2 * MIB)),
            ("size", 64, lambda x: range_.hold(0, x)), ("offset", 64, lambda x: range_.unhold(x, 2 * MIB)),
            ("size", 64, lambda x: range_.unhold(0, x)), ("stream", 64, lambda x: range_.unhold(0, 2 * MIB, x)),
            ("offset", 64, lambda x: range_.alias(x, 2 * MIB, range_)), ("size", 64, lambda x: range_.alias(0, x, range_)),
            ("source_offset", 64, lambda x: range_.alias(0, 2 * MIB, range_, x)), ("offset", 64, range_.view),
            ("size", 64, lambda x: range_.view(0, x)))

    def test_integers_that_do_not_fit_are_rejected(self):
        before, limits = self.allocator.blocks(), self.allocator.limits()
        calls = simulator.xseg_sim_calls(None)
        for index, (name, bits, call) in enumerate(self.calls()):
            for value in (1 << bits, (1 << bits) + 512, -(1 << bits) - 1, 1 << 20000,
                          Index(1 << bits), *([] if bits == 31 else [-1, Index(-1)])):
                with self.subTest(index=index, name=name, kind=type(value)):
                    self.assertRaisesRegex(xseg.ArgumentError, rf"\b{name} is out of range, \S", call, value)
            for value in (1.0, 1.5, True, False, "1", b"1", [1], ctypes.c_int16(1), ctypes.c_bool(True)):
                with self.subTest(index=index, name=name, value=value):
                    self.assertRaisesRegex(xseg.ArgumentError, rf"\b{name} is not an integer, |{name} is not a handle, ", call,
                                           value)
                    self.assertRaises(TypeError, call, value)
        self.assertEqual((self.allocator.blocks(), self.allocator.limits()), (before, limits))
        self.assertEqual(simulator.xseg_sim_calls(None), calls)

    def test_integers_of_other_libraries_are_integers(self):
        range_ = self.range
        with self.allocator.allocate(Index(1000), device=Index(0), stream=Index(0), alignment=Index(1024)) as block:
            self.assertEqual((block.size, block.device, block.stream, type(block.size)), (1000, 0, 0, int))
            self.assertEqual(self.allocator.block_at(Index(block.pointer)).requested, 1000)
        range_.commit(Index(0), Index(2 * MIB))
        self.assertEqual(range_.view(Index(5), Index(7)).size, 7)
        self.assertRaises(xseg.ArgumentError, range_.view, Index(2**62), Index(2**63 - 1))
        range_.decommit(Index(0), Index(2 * MIB), Index(0))
        self.allocator.set_limits(Index(0), hard_bytes=Index(64 * MIB))
        self.assertEqual(self.allocator.limits().hard_bytes, 64 * MIB)

    def test_each_integer_is_converted_once(self):
        """A conversion that fails after the call would leak the created object."""
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
        for call in (lambda: self.allocator.allocate(size), lambda: self.allocator.allocate(1, device=device),
                     lambda: self.allocator.pool(device), lambda: self.range.commit(0, size)):
            self.assertRaisesRegex(xseg.ArgumentError, "is not an integer", call)
        self.assertEqual(self.allocator.statistics().allocation.all.current, 1)

    def test_largest_integers_are_passed_to_the_library(self):
        self.assertRaises(xseg.NoMemoryError, self.allocator.allocate, (1 << 64) - 1)
        self.assertRaises(xseg.NotAllocatedError, self.allocator.block_at, (1 << 64) - 1)
        self.assertRaisesRegex(xseg.ArgumentError, "device", self.allocator.statistics, (1 << 31) - 1)

    def test_strings_with_a_nul_are_rejected(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a\0b")
            for call in (lambda: self.allocator.snapshot(path), lambda: self.allocator.write_metrics(path),
                         lambda: self.pool.pause("file", path), lambda: self.allocator.pool(name="a\0b"),
                         lambda: self.allocator.range(2 * MIB, name="a\0b"), lambda: self.allocator.configure("idle_ms:7\0"),
                         lambda: self.allocator.label("a\0b").__enter__(), lambda: xseg.config_keys("a\0b"),
                         lambda: xseg.open("idle_ms:7\0"), lambda: xseg.open(driver="a\0b")):
                self.assertRaisesRegex(xseg.ArgumentError, "contains a NUL", call)
            self.assertEqual(os.listdir(folder), [])

    def test_fractions_must_be_numbers(self):
        for value in ("0.5", True, None, [], 10**400):
            self.assertRaisesRegex(xseg.ArgumentError, "fraction", lambda value=value: self.allocator.set_limits(fraction=value))
        self.assertEqual(self.allocator.limits().fraction, 1)

    def test_handle_of_another_kind_is_rejected(self):
        for call in (lambda: self.allocator.trim(pool=self.range), lambda: self.range.alias(0, 2 * MIB, self.pool),
                     lambda: self.allocator.statistics(pool=self.block),
                     lambda: self.allocator.range(2 * MIB, pool=self.pool.handle)):
            self.assertRaises(TypeError, call)
            self.assertRaises(xseg.ArgumentError, call)


class Copies(Case):
    def test_owning_objects_cannot_be_copied_or_pickled(self):
        allocator, ignore = self.open("expandable_segments:True,rdma:True"), lambda *_: None
        with allocator.pool() as pool, allocator.range(2 * MIB) as range_, allocator.allocate(MIB) as block:
            with allocator.register(block.pointer, MIB, ignore, ignore) as registration, \
                    allocator.dmabuf(block.pointer, MIB) as file:
                for owner in (allocator, pool, range_, range_.view(), block, registration, file):
                    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps, lambda value: copy.deepcopy([value])):
                        with self.subTest(type(owner)), self.assertRaisesRegex(TypeError, "cannot be copied or pickled"):
                            duplicate(owner)
            self.assertEqual(block.info().state, xseg.BlockState.ALLOCATED)


class Callbacks(Case):
    def test_exception_in_a_visit_is_raised(self):
        allocator = self.open()
        for call in (allocator.blocks, allocator.explain, xseg.config_keys):
            with allocator.allocate(MIB), unittest.mock.patch("xseg._records.record", side_effect=KeyboardInterrupt):
                self.assertRaises(KeyboardInterrupt, call)

    def test_route_ends_after_its_pool_was_released(self):
        allocator, routed_streams = self.open(), []
        pool = allocator.pool()
        with pool.route(lambda stream: not routed_streams.append(stream)):
            pool.release()
        gc.collect()
        allocator.allocate(MIB).free()
        self.assertEqual(routed_streams, [])

    def test_objects_at_exit_are_released_silently(self):
        program = """
import builtins, gc, sys, types
holder = sys.modules["holder"] = types.ModuleType("holder")     # finalized after xseg, which is imported later
import xseg
MIB = 1 << 20
for log in (None, lambda level, line: None):
    allocator = xseg.open("expandable_segments:True,rdma:True", log=log)
    pool, range_, block = allocator.pool(), allocator.range(4 * MIB), allocator.allocate(20 * MIB)
    range_.commit(0, 2 * MIB)
    route = pool.route(lambda stream: True)
    route.__enter__()
    label = allocator.label("a")
    label.__enter__()
    registration = allocator.register(block.pointer, MIB, lambda *_: None, lambda *_: None)
    objects = [block, pool, range_, route, label, registration, allocator.dmabuf(block.pointer, MIB, pin=True), allocator]
    owner = types.SimpleNamespace(objects=objects)
    if OWNER == "cycle":
        gc.disable()
        owner.owner = owner
    else:
        setattr(sys.modules[OWNER], f"of_xseg_{log is None}", owner)
    del allocator, pool, range_, block, route, label, registration, objects, owner
print("end")
"""
        for owner in ("holder", "builtins", "sys", "cycle"):
            with self.subTest(owner):
                output, error = cases.run_python(program.replace("OWNER", repr(owner)), PYTHONMALLOC="debug")
                self.assertEqual((output, cases.without_self_checks(error)), ("end\n", ""))

    def test_background_threads_end_before_the_interpreter(self):
        program = """
import atexit, os
threads = lambda: len(os.listdir("/proc/self/task"))
atexit.register(lambda: print(threads()))       # called after the handlers of xseg, which is imported later
import xseg
before = threads()
allocator = xseg.open("idle_ms:100,background_thread:True", log=lambda level, line: None)
print(threads() - before)
"""
        self.assertEqual(cases.run_python(program)[0], "1\n1\n")


class LibraryLoading(unittest.TestCase):
    def test_environment_variable_selects_the_library(self):
        program = "import xseg._library as library; print(library.path()); library.load()"
        output, _ = cases.run_python(program)
        self.assertEqual(output, os.environ["XSEG_LIBRARY"] + "\n")
        with self.assertRaisesRegex(AssertionError, "xseg: cannot load the library, libno-such.so: "):
            cases.run_python(program, XSEG_LIBRARY="libno-such.so")
        with self.assertRaisesRegex(AssertionError, "install the wheel of xseg, or set XSEG_LIBRARY"):
            cases.run_python(program, XSEG_LIBRARY="")

    def test_library_for_another_system_is_distinguished_from_a_damaged_one(self):
        library_bytes = pathlib.Path(os.environ["XSEG_LIBRARY"]).read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            library = str(pathlib.Path(folder, "libxseg.so.0"))
            load = "import os, xseg._library as library\n{before}\ntry: library.load()\nexcept ImportError as error: print(error)"
            for elf_machine, before, message in (
                    (b"\xb7\0", "library.platform.machine = lambda: 'x86_64'",
                     "built for aarch64, but the CPU is x86_64; install the wheel of xseg whose name ends in x86_64.whl"),
                    (library_bytes[18:20], "os.confstr = lambda name: None",
                     "built for glibc, but the system has another C library"),
                    (library_bytes[18:20], "os.confstr = lambda name: 'glibc 2.27'",
                     "built for glibc 2.28 or newer, but the system has 2.27; use Debian 10, Ubuntu 20.04, RHEL 8 or newer"),
                    (library_bytes[18:20], "", "file too short")):
                pathlib.Path(library).write_bytes(library_bytes[:18] + elf_machine + library_bytes[20:40])
                with self.subTest(message):
                    output, _ = cases.run_python(load.format(before=before), XSEG_LIBRARY=library)
                    self.assertIn(f"xseg: cannot load the library, {library}: ", output)
                    self.assertIn(message, output)

    def test_missing_function_is_reported_at_the_call(self):
        output, _ = cases.run_python("import xseg._library as library\ntry: library.call('xseg_trim', None, None, None, None)\n"
                                     "except Exception as error: print(repr(error))", XSEG_LIBRARY=os.environ["XSEG_DRIVER"])
        self.assertIn("UnsupportedError(", output)
        self.assertIn("xseg_trim: function not found in the library, ", output)

    def test_headers_and_simulator_are_found(self):
        output, _ = cases.run_python("import xseg._library as library; print(library.include(), library.simulator())")
        include, simulator_path = output.split()
        self.assertTrue(pathlib.Path(include, "xseg/xseg.h").exists())
        self.assertTrue(pathlib.Path(simulator_path).samefile(os.environ["XSEG_DRIVER"]))

    def test_missing_command_is_reported(self):
        with self.assertRaisesRegex(AssertionError, r"status 1:\nxseg: command not found, .*bin/xseg; install the wheel"):
            cases.run_python("import runpy; runpy.run_module('xseg', run_name='__main__')")


if __name__ == "__main__":
    cases.main()
