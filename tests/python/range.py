# SPDX-License-Identifier: MIT
"""Tests of elastic ranges in Python, on the simulated driver."""
import ctypes
import gc
import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import cases
import dlpack
import simulation
import xseg
from cases import MIB
from xseg import _library

PAGE = 2 * MIB


class Case(simulation.StreamCase):
    """A test case with memory contents and a range of 64 granules."""

    config = "expandable_segments:True,page_cache_mb:0"

    def setUp(self):
        os.environ["XSEG_SIM_BYTES"] = "1"
        super().setUp()
        self.range = self.allocator.range(64 * PAGE)

    def tearDown(self):
        del self.range
        super().tearDown()

    def fill(self, offset, data):
        simulation.call_driver("cuMemcpyHtoD_v2", c_uint64(self.range.address + offset), data, c_size_t(len(data)))

    def read(self, offset, size):
        return self.read_at(self.range.address + offset, size)

    @staticmethod
    def read_at(address, size):
        data = ctypes.create_string_buffer(size)
        simulation.call_driver("cuMemcpyDtoH_v2", data, c_uint64(address), c_size_t(size))
        return data.raw


class Ranges(Case):
    def test_memory_is_mapped_and_unmapped_at_fixed_addresses(self):
        range_, address = self.range, self.range.address
        self.assertEqual((range_.size, range_.page_bytes, range_.device), (64 * PAGE, PAGE, 0))
        self.assertEqual(simulation.simulator.xseg_sim_used(0), 0)
        range_.commit(3 * PAGE, 5 * PAGE)
        self.assertEqual(simulation.simulator.xseg_sim_used(0), 5 * PAGE)
        self.assertEqual(self.allocator.statistics().allocated_bytes.all.current, 5 * PAGE)
        self.fill(7 * PAGE, b"a block")
        self.assertEqual(self.read(7 * PAGE, 7), b"a block")
        range_.decommit(3 * PAGE, 5 * PAGE)
        self.assertEqual((range_.info().committed_bytes, simulation.simulator.xseg_sim_used(0)), (0, 0))
        self.assertEqual(range_.address, address)
        range_.release()
        range_.release()
        self.assertEqual((range_.address, range_.handle), (0, 0))

    def test_info_reports_properties_and_sizes(self):
        with self.allocator.range(8 * PAGE, limit_bytes=4 * PAGE) as range_:
            range_.prepare(PAGE + 1)
            range_.set_quota(3 * PAGE)
            pool = range_.pool.handle
            self.assertEqual(range_.info(), xseg.RangeInfo(
                base=range_.address, bytes=8 * PAGE, page_bytes=PAGE, device=0, pool=pool, limit_bytes=4 * PAGE,
                quota_bytes=3 * PAGE, committed_bytes=0, pending_unmap_bytes=0, mapped_bytes=0, physical_bytes=0,
                prepared_bytes=2 * PAGE, recommits=0))
            creates = simulation.simulator.xseg_sim_calls(b"cuMemCreate")
            range_.commit(0, 2 * PAGE)
            self.assertEqual(simulation.simulator.xseg_sim_calls(b"cuMemCreate"), creates)
            info = range_.info()
            self.assertEqual((info.committed_bytes, info.mapped_bytes, info.physical_bytes, info.prepared_bytes),
                             (2 * PAGE, 2 * PAGE, 2 * PAGE, 0))
            range_.set_quota(0)
            range_.decommit(0, 2 * PAGE)
        self.assertIsNone(self.range.info().limit_bytes)

    def test_memory_is_unmapped_in_stream_order(self):
        range_, (first_stream, second_stream) = self.range, self.streams
        range_.commit(0, 4 * PAGE, first_stream)
        first_stream.launch()
        range_.decommit(0, 4 * PAGE, stream=first_stream)
        self.assertEqual((range_.info().pending_unmap_bytes, simulation.simulator.xseg_sim_used(0)), (4 * PAGE, 4 * PAGE))
        range_.commit(0, PAGE, first_stream)
        self.assertEqual(range_.info().recommits, 1)
        range_.commit(PAGE, PAGE, second_stream)
        self.assertEqual(simulation.simulator.cuStreamQuery(c_void_p(second_stream.stream_handle)),
                         simulation.NOT_READY)
        first_stream.finish()
        range_.decommit(0, 2 * PAGE, second_stream)
        self.assertEqual(range_.info().pending_unmap_bytes, 0)

    def test_held_memory_remains_mapped_until_its_release(self):
        range_ = self.range
        range_.commit(0, 2 * PAGE)
        range_.hold(0, PAGE)
        range_.decommit(0, 2 * PAGE)
        self.assertEqual(range_.info().pending_unmap_bytes, PAGE)
        self.assertRaisesRegex(xseg.BusyError, "held", range_.release)
        range_.unhold(0, PAGE)
        self.assertEqual(range_.info().mapped_bytes, 0)
        self.assertRaisesRegex(xseg.ArgumentError, "is not held", range_.unhold, 0, PAGE)

    def test_page_can_be_mapped_at_several_addresses(self):
        range_ = self.range
        range_.commit(0, 2 * PAGE)
        self.fill(PAGE, b"a prefix")
        range_.alias(10 * PAGE, PAGE, range_, PAGE)
        with self.allocator.range(4 * PAGE, pool=range_.pool) as other_range:
            other_range.alias(0, PAGE, range_)
            self.assertEqual(other_range.info().committed_bytes, PAGE)
            other_range.decommit(0, PAGE)
        self.assertEqual((self.read(10 * PAGE, 8), simulation.simulator.xseg_sim_used(0)), (b"a prefix", 2 * PAGE))
        range_.decommit(0, 2 * PAGE)
        self.assertEqual((self.read(10 * PAGE, 8), simulation.simulator.xseg_sim_used(0)), (b"a prefix", PAGE))
        range_.decommit(10 * PAGE, PAGE)

    def test_range_can_belong_to_a_pool(self):
        with self.allocator.pool(name="cache") as pool, self.allocator.range(8 * PAGE, pool=pool, page_bytes=4 * MIB) as range_:
            self.assertIs(range_.pool, pool)
            self.assertEqual(range_.page_bytes, 4 * MIB)
            range_.commit(0, 4 * MIB)
            self.assertEqual(pool.statistics().allocated_bytes.all.current, 4 * MIB)
            with pool.paused("host"):
                self.assertEqual((range_.info().mapped_bytes, simulation.simulator.xseg_sim_used(0)), (0, 0))
                self.assertRaises(xseg.PausedError, range_.commit, 4 * MIB, 4 * MIB)
            range_.decommit(0, 4 * MIB)
            with self.assertRaisesRegex(xseg.ArgumentError, "name is set together with pool"):
                self.allocator.range(PAGE, pool=pool, name="another")
        self.assertRaisesRegex(xseg.ArgumentError, "pool was released", self.allocator.range, PAGE, pool=pool)

    def test_own_pool_is_released_with_the_range(self):
        range_ = self.allocator.range(PAGE, name="blocks")
        pool = range_.pool
        self.assertIs(range_.pool, pool)
        pool.set_limit(4 * PAGE)
        self.assertEqual(pool.limits().hard_bytes, 4 * PAGE)
        range_.release()
        self.assertEqual(pool.handle, 0)

    def test_errors_raise_their_class_with_the_message_of_the_library(self):
        range_, (stream, _) = self.range, self.streams
        range_.commit(0, PAGE, stream)
        for kind, message, call in (
                (xseg.ArgumentError, "granule is committed, offset 0", lambda: range_.commit(0, 2 * PAGE)),
                (xseg.ArgumentError, "is not committed", lambda: range_.decommit(PAGE, PAGE)),
                (xseg.ArgumentError, f"the page size is {PAGE} bytes", lambda: range_.commit(1, PAGE)),
                (xseg.ArgumentError, f"size exceeds the range, {64 * PAGE} bytes at offset {PAGE}; the range has {64 * PAGE} "
                                     f"bytes", lambda: range_.commit(PAGE, 64 * PAGE)),
                (xseg.ArgumentError, f"offset is out of range, -{PAGE}", lambda: range_.commit(-PAGE, PAGE)),
                (xseg.ArgumentError, "is committed", lambda: range_.alias(0, PAGE, range_, 0)),
                (xseg.ArgumentError, "quota exceeds the size or limit_bytes of the range", lambda: range_.set_quota(65 * PAGE)),
                (xseg.ArgumentError, f"size exceeds the range, {65 * PAGE} bytes; the range has {64 * PAGE} bytes",
                 lambda: range_.prepare(65 * PAGE)),
                (xseg.ArgumentError, "size is not a multiple of the page size, 1 bytes", lambda: self.allocator.range(1)),
                (xseg.NoAddressesError, "size exceeds the virtual addresses of a device", lambda: self.allocator.range(1 << 60)),
                (xseg.ArgumentError, "size is out of range, -1", lambda: self.allocator.range(-1)),
                (TypeError, "stream is not a handle, 'a'", lambda: range_.commit(PAGE, PAGE, "a")),
                (xseg.BusyError, f"memory of the range is committed, {PAGE} bytes; decommit it first", range_.release)):
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                call()
        self.allocator.set_limits(hard_bytes=2 * PAGE)
        with self.assertRaisesRegex(xseg.LimitError, r"xseg_limits_set\(\)") as raised:
            range_.commit(PAGE, 2 * PAGE, stream)
        self.assertIsInstance(raised.exception, MemoryError)
        self.assertEqual(range_.info().committed_bytes, PAGE)

    def test_destroyed_range_is_rejected(self):
        range_ = self.allocator.range(PAGE)
        view = range_.view()
        range_.release()
        other_allocator = xseg.open("expandable_segments:True")
        range_of_closed_allocator = other_allocator.range(PAGE)
        other_allocator.close()
        for invalid in (range_, range_of_closed_allocator):
            for call, arguments in ((invalid.commit, (0, PAGE)), (invalid.info, ()), (invalid.view, ()),
                                    (invalid.hold, (0, PAGE)), (invalid.set_quota, (0,)), (self.range.alias, (0, PAGE, invalid))):
                self.assertRaisesRegex(xseg.ArgumentError, "range was released, or its allocator was closed", call, *arguments)
        self.assertRaisesRegex(xseg.ArgumentError, "range was released", view.__dlpack__)
        range_of_closed_allocator.release()


class Destruction(Case):
    def test_range_is_destroyed_with_its_last_reference_in_stream_order(self):
        range_, (first_stream, second_stream) = self.allocator.range(64 * PAGE), self.streams
        range_.commit(0, 2 * PAGE, first_stream)
        range_.commit(5 * PAGE, PAGE, second_stream)
        range_.alias(63 * PAGE, PAGE, range_, 0)
        self.assertRaises(xseg.BusyError, self.allocator.close)
        event_waits = simulation.simulator.xseg_sim_calls(b"cuStreamWaitEvent")
        del range_
        self.assertEqual(simulation.simulator.xseg_sim_calls(b"cuStreamWaitEvent"), event_waits + 1)
        self.assertEqual(simulation.simulator.xseg_sim_used(0), 0)

    def test_destruction_during_a_capture_adds_no_nodes(self):
        range_, graph, nodes = self.allocator.range(2 * PAGE), c_void_p(), c_size_t(9)
        for index, stream in enumerate(self.streams):
            range_.commit(index * PAGE, PAGE, stream)
        handle, captured = range_.handle, self.streams[1].stream_handle
        simulation.call_driver("cuStreamBeginCapture_v2", c_void_p(captured), c_int(2))
        del range_
        gc.collect()
        simulation.call_driver("cuStreamEndCapture", c_void_p(captured), byref(graph))
        simulation.call_driver("cuGraphGetNodes", graph, None, byref(nodes))
        simulation.call_driver("cuGraphDestroy", graph)
        self.assertEqual(nodes.value, 0)
        _library.call("xseg_range_decommit", handle, 0, 2 * PAGE, captured)
        _library.call("xseg_range_release", handle)

    def test_held_memory_retains_the_range(self):
        range_ = self.allocator.range(2 * PAGE)
        range_.hold(0, PAGE)
        handle = range_.handle
        del range_
        gc.collect()
        _library.call("xseg_range_unhold", handle, 0, PAGE, 0)
        _library.call("xseg_range_release", handle)

    def test_exception_in_a_with_statement_with_committed_memory_is_raised(self):
        with self.assertRaises(ZeroDivisionError):
            with self.allocator.range(4 * PAGE) as range_:
                range_.commit(0, PAGE)
                _ = 1 // (range_.info().pending_unmap_bytes)
        with self.assertRaises(xseg.BusyError):
            with range_:
                pass
        del range_

    def test_forked_child_does_not_destroy_the_range(self):
        range_ = self.allocator.range(4 * PAGE)
        range_.commit(0, PAGE)
        child = os.fork()
        if child == 0:
            try:
                range_.commit(PAGE, PAGE)
            except xseg.ForkedError:
                del range_
                gc.collect()
                os._exit(17)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 17)
        range_.decommit(0, PAGE)
        range_.release()


class Views(Case):
    def test_view_has_the_address_and_size_of_its_part(self):
        range_ = self.range
        for offset, size, expected_size in ((0, None, 64 * PAGE), (5, 1000, 1000), (PAGE - 1, None, 63 * PAGE + 1),
                                            (64 * PAGE, None, 0), (7, 0, 0)):
            view = range_.view(offset, size)
            self.assertEqual((view.pointer, view.size, view.offset), (range_.address + offset, expected_size, offset))
            self.assertEqual(view.__cuda_array_interface__, {
                "shape": (expected_size,), "typestr": "|u1", "data": (range_.address + offset, False), "version": 3,
                "strides": None, "stream": None})
        for offset, size in ((0, 64 * PAGE + 1), (64 * PAGE + 1, None)):
            with self.subTest(offset), self.assertRaisesRegex(xseg.ArgumentError, f"view exceeds the range of {64 * PAGE} bytes"):
                range_.view(offset, size)

    def test_tensor_includes_uncommitted_addresses(self):
        view = self.range.view(PAGE // 2, 3 * PAGE)
        self.assertEqual(view.__dlpack_device__(), (2, 0))
        calls = simulation.simulator.xseg_sim_calls(None)
        for version in (None, (1, 0)):
            consumer = dlpack.Consumer(view.__dlpack__(stream=self.streams[0].stream_handle, max_version=version))
            tensor = consumer.managed.tensor
            self.assertEqual((tensor.data, tensor.device_type, tensor.device_id), (view.pointer, 2, 0))
            self.assertEqual((tensor.ndim, tensor.shape[0], tensor.strides[0], tensor.bits), (1, 3 * PAGE, 1, 8))
            consumer.delete()
        self.assertEqual(simulation.simulator.xseg_sim_calls(None), calls)
        self.assertRaises(BufferError, view.__dlpack__, copy=True)
        self.assertRaises(BufferError, view.__dlpack__, dl_device=(2, 1))

    def test_tensor_remains_valid_while_memory_is_committed(self):
        consumer = dlpack.Consumer(self.range.view().__dlpack__())
        for count in range(1, 4):
            self.range.commit((count - 1) * PAGE, PAGE)
            self.fill(consumer.managed.tensor.data - self.range.address + count * PAGE - 4, b"last")
            self.assertEqual(self.read(count * PAGE - 4, 4), b"last")
        self.range.decommit(0, 3 * PAGE)
        consumer.delete()

    def test_views_and_their_tensors_retain_the_range(self):
        range_ = self.allocator.range(4 * PAGE)
        consumers = [dlpack.Consumer(range_.view(PAGE).__dlpack__()), dlpack.Consumer(range_.view(0, 1).__dlpack__())]
        view, address = range_.view(), range_.address
        for consumer in consumers:
            self.assertRaisesRegex(xseg.BusyError, "range is exported by DLPack", range_.release)
            consumer.delete()
        del range_
        gc.collect()
        self.assertEqual(view.pointer, address)
        address_frees = simulation.simulator.xseg_sim_calls(b"cuMemAddressFree")
        del view
        gc.collect()
        self.assertEqual(simulation.simulator.xseg_sim_calls(b"cuMemAddressFree"), address_frees + 1)


class Threads(Case):
    def test_threads_commit_concurrently(self):
        def commit_and_decommit(first):
            for _ in range(50):
                self.range.commit(first * PAGE, 4 * PAGE)
                self.range.decommit(first * PAGE, 4 * PAGE)

        self.assertEqual((cases.run_in_threads(commit_and_decommit, 0, 4, 8, 12), self.range.info().committed_bytes), ([], 0))

    def test_no_call_acquires_the_gil_with_a_locked_library_mutex(self):
        """One thread prepares pages, with callbacks in Python for all events; another thread allocates and frees without
        releasing the GIL, as PyTorch does.  A wrong lock order would deadlock the process."""
        program = """
import ctypes, sys, threading, xseg
from xseg import _functions, _library, _records, _structs
PAGE = 2 << 20
notifications, fields = [], dict(_structs.xseg_observer._fields_)
sys.setswitchinterval(1e-5)
allocator = xseg.open("expandable_segments:True,page_cache_mb:0", log=lambda level, line: notifications.append("log"))
calls = {name: fields[name](lambda _, event, name=name: notifications.append(name))
         for name in ("on_trace", "on_map", "on_unmap")}
observer, observer_id = _records.structure(_structs.xseg_observer, **calls), ctypes.c_uint64()
_library.call("xseg_observer_add", allocator.handle, ctypes.byref(observer), ctypes.byref(observer_id))
library, pointer, scope = ctypes.PyDLL(_library.path()), ctypes.c_void_p(), _records.scope()  # PyDLL: calls keep the GIL
for name in ("xseg_alloc", "xseg_free", "xseg_trim"):
    getattr(library, name).argtypes = _functions.FUNCTIONS[name][1]
cache, ready, done = allocator.range(64 * PAGE), threading.Event(), threading.Event()

def use_range():
    while not done.is_set():
        cache.prepare(8 * PAGE)
        cache.commit(0, 16 * PAGE)
        cache.decommit(0, 16 * PAGE)
        ready.set()

thread = threading.Thread(target=use_range)
thread.start()
ready.wait()
for _ in range(200):
    assert library.xseg_alloc(allocator.handle, 0, 50 << 20, None, ctypes.byref(pointer)) == 0
    assert library.xseg_free(allocator.handle, pointer) == 0
    assert library.xseg_trim(allocator.handle, ctypes.byref(scope), None, None) == 0
done.set()
thread.join()
_library.call("xseg_observer_remove", allocator.handle, observer_id)
print(sorted(set(notifications)))
"""
        self.assertEqual(cases.run_python(program)[0], "['log', 'on_map', 'on_trace', 'on_unmap']\n")


if __name__ == "__main__":
    cases.main()
