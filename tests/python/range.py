# SPDX-License-Identifier: MIT
"""Elastic ranges from Python, on the simulated driver."""
import ctypes
import gc
import os
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

import cases
import dlpack
import machine
import xseg
from cases import MIB
from xseg import _library

PAGE = 2 * MIB


class Case(machine.StreamCase):
    """A machine whose memory has contents, and a range of 64 granules."""

    config = "expandable_segments:True,page_cache_mb:0"

    def setUp(self):
        os.environ["XSEG_SIM_BYTES"] = "1"
        super().setUp()
        self.range = self.allocator.range(64 * PAGE)

    def tearDown(self):
        del self.range
        super().tearDown()

    def fill(self, offset, text):
        machine.checked("cuMemcpyHtoD_v2", c_uint64(self.range.address + offset), text, c_size_t(len(text)))

    def read(self, offset, size):
        return self.read_at(self.range.address + offset, size)

    @staticmethod
    def read_at(address, size):
        text = ctypes.create_string_buffer(size)
        machine.checked("cuMemcpyDtoH_v2", text, c_uint64(address), c_size_t(size))
        return text.raw

    @staticmethod
    def right(address):
        """What the device may do at an address: 1 for reading, 3 for writing as well."""
        flags, location = ctypes.c_ulonglong(), (c_int * 2)(1, 0)
        machine.checked("cuMemGetAccess", byref(flags), location, c_uint64(address))
        return flags.value


class Ranges(Case):
    def test_memory_is_mapped_and_unmapped_at_fixed_addresses(self):
        one, address = self.range, self.range.address
        self.assertEqual((one.size, one.page_bytes, one.device), (64 * PAGE, PAGE, 0))
        self.assertEqual(machine.simulator.xseg_sim_used(0), 0)
        one.commit(3 * PAGE, 5 * PAGE)
        self.assertEqual(machine.simulator.xseg_sim_used(0), 5 * PAGE)
        self.assertEqual(self.allocator.statistics().allocated_bytes.all.current, 5 * PAGE)
        self.fill(7 * PAGE, b"a block")
        self.assertEqual(self.read(7 * PAGE, 7), b"a block")
        one.decommit(3 * PAGE, 5 * PAGE)
        self.assertEqual((one.info().committed_bytes, machine.simulator.xseg_sim_used(0)), (0, 0))
        self.assertEqual(one.address, address)
        one.release()
        one.release()
        self.assertEqual((one.address, one.handle), (0, 0))

    def test_info_tells_what_it_is_and_has(self):
        with self.allocator.range(8 * PAGE, limit_bytes=4 * PAGE) as one:
            one.prepare(PAGE + 1)
            one.set_quota(3 * PAGE)
            own = one.pool.handle
            self.assertEqual(one.info(), xseg.RangeInfo(
                base=one.address, bytes=8 * PAGE, page_bytes=PAGE, device=0, pool=own, limit_bytes=4 * PAGE, quota_bytes=3 * PAGE,
                committed_bytes=0, pending_unmap_bytes=0, mapped_bytes=0, physical_bytes=0, prepared_bytes=2 * PAGE, recommits=0))
            creates = machine.simulator.xseg_sim_calls(b"cuMemCreate")
            one.commit(0, 2 * PAGE)
            self.assertEqual(machine.simulator.xseg_sim_calls(b"cuMemCreate"), creates)
            found = one.info()
            self.assertEqual((found.committed_bytes, found.mapped_bytes, found.physical_bytes, found.prepared_bytes),
                             (2 * PAGE, 2 * PAGE, 2 * PAGE, 0))
            one.set_quota(0)
            one.decommit(0, 2 * PAGE)
        self.assertIsNone(self.range.info().limit_bytes)

    def test_memory_is_unmapped_in_stream_order(self):
        one, (own, other) = self.range, self.streams
        one.commit(0, 4 * PAGE, own)
        own.launch()
        one.decommit(0, 4 * PAGE, stream=own)
        self.assertEqual((one.info().pending_unmap_bytes, machine.simulator.xseg_sim_used(0)), (4 * PAGE, 4 * PAGE))
        one.commit(0, PAGE, own)
        self.assertEqual(one.info().recommits, 1)
        one.commit(PAGE, PAGE, other)
        self.assertEqual(machine.simulator.cuStreamQuery(c_void_p(other.number)), 600)
        own.finish()
        one.decommit(0, 2 * PAGE, other)
        self.assertEqual(one.info().pending_unmap_bytes, 0)

    def test_held_memory_remains_mapped_until_its_release(self):
        one = self.range
        one.commit(0, 2 * PAGE)
        one.hold(0, PAGE)
        one.decommit(0, 2 * PAGE)
        self.assertEqual(one.info().pending_unmap_bytes, PAGE)
        self.assertRaisesRegex(xseg.BusyError, "held", one.release)
        one.unhold(0, PAGE)
        self.assertEqual(one.info().mapped_bytes, 0)
        self.assertRaisesRegex(xseg.ArgumentError, "is not held", one.unhold, 0, PAGE)

    def test_page_can_be_mapped_at_several_addresses(self):
        one = self.range
        one.commit(0, 2 * PAGE)
        self.fill(PAGE, b"a prefix")
        one.alias(10 * PAGE, PAGE, one, PAGE)
        with self.allocator.range(4 * PAGE, pool=one.pool) as other:
            other.alias(0, PAGE, one)
            self.assertEqual(other.info().committed_bytes, PAGE)
            other.decommit(0, PAGE)
        self.assertEqual((self.read(10 * PAGE, 8), machine.simulator.xseg_sim_used(0)), (b"a prefix", 2 * PAGE))
        one.decommit(0, 2 * PAGE)
        self.assertEqual((self.read(10 * PAGE, 8), machine.simulator.xseg_sim_used(0)), (b"a prefix", PAGE))
        one.decommit(10 * PAGE, PAGE)

    def test_a_range_belongs_to_a_pool(self):
        with self.allocator.pool(name="cache") as pool, self.allocator.range(8 * PAGE, pool=pool, page_bytes=4 * MIB) as one:
            self.assertIs(one.pool, pool)
            self.assertEqual(one.page_bytes, 4 * MIB)
            one.commit(0, 4 * MIB)
            self.assertEqual(pool.statistics().allocated_bytes.all.current, 4 * MIB)
            with pool.paused("host"):
                self.assertEqual((one.info().mapped_bytes, machine.simulator.xseg_sim_used(0)), (0, 0))
                self.assertRaises(xseg.PausedError, one.commit, 4 * MIB, 4 * MIB)
            one.decommit(0, 4 * MIB)
            with self.assertRaisesRegex(xseg.ArgumentError, "name is set together with pool"):
                self.allocator.range(PAGE, pool=pool, name="another")
        self.assertRaisesRegex(xseg.ArgumentError, "pool was released", self.allocator.range, PAGE, pool=pool)

    def test_a_pool_of_its_own_ends_with_it(self):
        one = self.allocator.range(PAGE, name="blocks")
        own = one.pool
        self.assertIs(one.pool, own)
        own.set_limit(4 * PAGE)
        self.assertEqual(own.limits().hard_bytes, 4 * PAGE)
        one.release()
        self.assertEqual(own.handle, 0)

    def test_failures_are_exceptions_with_the_library_s_sentence(self):
        one, (own, _) = self.range, self.streams
        one.commit(0, PAGE, own)
        for kind, words, call in (
                (xseg.ArgumentError, "granule is committed, offset 0", lambda: one.commit(0, 2 * PAGE)),
                (xseg.ArgumentError, "is not committed", lambda: one.decommit(PAGE, PAGE)),
                (xseg.ArgumentError, f"the page size is {PAGE} bytes", lambda: one.commit(1, PAGE)),
                (xseg.ArgumentError, f"size exceeds the range, {64 * PAGE} bytes at offset {PAGE}; the range has {64 * PAGE} bytes",
                 lambda: one.commit(PAGE, 64 * PAGE)),
                (xseg.ArgumentError, f"offset is out of range, -{PAGE}", lambda: one.commit(-PAGE, PAGE)),
                (xseg.ArgumentError, "is committed", lambda: one.alias(0, PAGE, one, 0)),
                (xseg.ArgumentError, "quota exceeds the size or limit_bytes of the range", lambda: one.set_quota(65 * PAGE)),
                (xseg.ArgumentError, f"size exceeds the range, {65 * PAGE} bytes; the range has {64 * PAGE} bytes", lambda: one.prepare(65 * PAGE)),
                (xseg.ArgumentError, "size is not a multiple of the page size, 1 bytes", lambda: self.allocator.range(1)),
                (xseg.NoAddressesError, "size exceeds the virtual addresses of a device", lambda: self.allocator.range(1 << 60)),
                (xseg.ArgumentError, "size is out of range, -1", lambda: self.allocator.range(-1)),
                (TypeError, "stream is not a handle, 'a'", lambda: one.commit(PAGE, PAGE, "a")),
                (xseg.BusyError, f"memory of the range is committed, {PAGE} bytes; decommit it first", one.release)):
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                call()
        self.allocator.set_limits(hard_bytes=2 * PAGE)
        with self.assertRaisesRegex(xseg.LimitError, r"xseg_limits_set\(\)") as refusal:
            one.commit(PAGE, 2 * PAGE, own)
        self.assertIsInstance(refusal.exception, MemoryError)
        self.assertEqual(one.info().committed_bytes, PAGE)

    def test_destroyed_range_is_rejected(self):
        one = self.allocator.range(PAGE)
        view = one.view()
        one.release()
        other = xseg.open("expandable_segments:True")
        closed = other.range(PAGE)
        other.close()
        for gone in (one, closed):
            for call, arguments in ((gone.commit, (0, PAGE)), (gone.info, ()), (gone.view, ()), (gone.hold, (0, PAGE)),
                                    (gone.set_quota, (0,)), (self.range.alias, (0, PAGE, gone))):
                self.assertRaisesRegex(xseg.ArgumentError, "range was released, or its allocator was closed", call, *arguments)
        self.assertRaisesRegex(xseg.ArgumentError, "range was released", view.__dlpack__)
        closed.release()


class Endings(Case):
    def test_range_is_destroyed_with_its_last_reference_in_stream_order(self):
        one, (own, other) = self.allocator.range(64 * PAGE), self.streams
        one.commit(0, 2 * PAGE, own)
        one.commit(5 * PAGE, PAGE, other)
        one.alias(63 * PAGE, PAGE, one, 0)
        self.assertRaises(xseg.BusyError, self.allocator.close)
        waits = machine.simulator.xseg_sim_calls(b"cuStreamWaitEvent")
        del one
        self.assertEqual(machine.simulator.xseg_sim_calls(b"cuStreamWaitEvent"), waits + 1)
        self.assertEqual(machine.simulator.xseg_sim_used(0), 0)

    def test_its_end_becomes_no_part_of_a_capture(self):
        one, graph, nodes = self.allocator.range(2 * PAGE), c_void_p(), c_size_t(9)
        for place, stream in enumerate(self.streams):
            one.commit(place * PAGE, PAGE, stream)
        number, captured = one.handle, self.streams[1].number
        machine.checked("cuStreamBeginCapture_v2", c_void_p(captured), c_int(2))
        del one
        gc.collect()
        machine.checked("cuStreamEndCapture", c_void_p(captured), byref(graph))
        machine.checked("cuGraphGetNodes", graph, None, byref(nodes))
        machine.checked("cuGraphDestroy", graph)
        self.assertEqual(nodes.value, 0)
        _library.call("xseg_range_decommit", number, 0, 2 * PAGE, captured)
        _library.call("xseg_range_release", number)

    def test_held_memory_keeps_the_range(self):
        one = self.allocator.range(2 * PAGE)
        one.hold(0, PAGE)
        number = one.handle
        del one
        gc.collect()
        _library.call("xseg_range_unhold", number, 0, PAGE, 0)
        _library.call("xseg_range_release", number)

    def test_an_exception_is_not_hidden_by_what_is_committed(self):
        with self.assertRaises(ZeroDivisionError):
            with self.allocator.range(4 * PAGE) as one:
                one.commit(0, PAGE)
                _ = 1 // (one.info().pending_unmap_bytes)
        with self.assertRaises(xseg.BusyError):
            with one:
                pass
        del one

    def test_a_forked_child_leaves_it_alone(self):
        one = self.allocator.range(4 * PAGE)
        one.commit(0, PAGE)
        child = os.fork()
        if child == 0:
            try:
                one.commit(PAGE, PAGE)
            except xseg.ForkedError:
                del one
                gc.collect()
                os._exit(17)
            os._exit(0)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 17)
        one.decommit(0, PAGE)
        one.release()


class Views(Case):
    def test_a_view_is_any_part_and_says_where_it_lies(self):
        one = self.range
        for offset, size, bytes_ in ((0, None, 64 * PAGE), (5, 1000, 1000), (PAGE - 1, None, 63 * PAGE + 1), (64 * PAGE, None, 0),
                                     (7, 0, 0)):
            view = one.view(offset, size)
            self.assertEqual((view.pointer, view.size, view.offset), (one.address + offset, bytes_, offset))
            self.assertEqual(view.__cuda_array_interface__, {
                "shape": (bytes_,), "typestr": "|u1", "data": (one.address + offset, False), "version": 3, "strides": None,
                "stream": None})
        for offset, size in ((0, 64 * PAGE + 1), (64 * PAGE + 1, None)):
            with self.subTest(offset), self.assertRaisesRegex(xseg.ArgumentError, f"view exceeds the range of {64 * PAGE} bytes"):
                one.view(offset, size)

    def test_a_tensor_is_of_addresses_with_and_without_memory(self):
        view = self.range.view(PAGE // 2, 3 * PAGE)
        self.assertEqual(view.__dlpack_device__(), (2, 0))
        calls = machine.simulator.xseg_sim_calls(None)
        for version in (None, (1, 0)):
            consumer = dlpack.Consumer(view.__dlpack__(stream=self.streams[0].number, max_version=version))
            tensor = consumer.managed.tensor
            self.assertEqual((tensor.data, tensor.device_type, tensor.device_id), (view.pointer, 2, 0))
            self.assertEqual((tensor.ndim, tensor.shape[0], tensor.strides[0], tensor.bits), (1, 3 * PAGE, 1, 8))
            consumer.delete()
        self.assertEqual(machine.simulator.xseg_sim_calls(None), calls)
        self.assertRaises(BufferError, view.__dlpack__, copy=True)
        self.assertRaises(BufferError, view.__dlpack__, dl_device=(2, 1))

    def test_the_tensor_stays_and_what_may_be_touched_grows(self):
        consumer = dlpack.Consumer(self.range.view().__dlpack__())
        for count in range(1, 4):
            self.range.commit((count - 1) * PAGE, PAGE)
            self.fill(consumer.managed.tensor.data - self.range.address + count * PAGE - 4, b"last")
            self.assertEqual(self.read(count * PAGE - 4, 4), b"last")
        self.range.decommit(0, 3 * PAGE)
        consumer.delete()

    def test_views_and_their_tensors_hold_the_range(self):
        one = self.allocator.range(4 * PAGE)
        consumers = [dlpack.Consumer(one.view(PAGE).__dlpack__()), dlpack.Consumer(one.view(0, 1).__dlpack__())]
        view, address = one.view(), one.address
        for consumer in consumers:
            self.assertRaisesRegex(xseg.BusyError, "range is exported by DLPack", one.release)
            consumer.delete()
        del one
        gc.collect()
        self.assertEqual(view.pointer, address)
        reserved = machine.simulator.xseg_sim_calls(b"cuMemAddressFree")
        del view
        gc.collect()
        self.assertEqual(machine.simulator.xseg_sim_calls(b"cuMemAddressFree"), reserved + 1)


class Threads(Case):
    def test_threads_commit_concurrently(self):
        def work(first):
            for _ in range(50):
                self.range.commit(first * PAGE, 4 * PAGE)
                self.range.decommit(first * PAGE, 4 * PAGE)

        self.assertEqual((cases.in_threads(work, 0, 4, 8, 12), self.range.info().committed_bytes), ([], 0))

    def test_no_call_waits_for_python_s_lock_with_a_lock_of_the_library_s(self):
        """One thread makes pages ahead, and Python is told of all that happens; another one allocates and frees without letting
        go of Python's lock, as PyTorch does.  Were they to wait for each other, the process would not end."""
        program = """
import ctypes, sys, threading, xseg
from xseg import _functions, _library, _records, _structs
PAGE = 2 << 20
heard, fields = [], dict(_structs.xseg_observer._fields_)
sys.setswitchinterval(1e-5)
allocator = xseg.open("expandable_segments:True,page_cache_mb:0", log=lambda level, line: heard.append("log"))
calls = {name: fields[name](lambda _, what, name=name: heard.append(name)) for name in ("on_trace", "on_map", "on_unmap")}
observer, number = _records.structure(_structs.xseg_observer, **calls), ctypes.c_uint64()
_library.call("xseg_observer_add", allocator.handle, ctypes.byref(observer), ctypes.byref(number))
keeping, pointer, everything = ctypes.PyDLL(_library.path()), ctypes.c_void_p(), _records.where()
for name in ("xseg_alloc", "xseg_free", "xseg_trim"):
    getattr(keeping, name).argtypes = _functions.FUNCTIONS[name][1]
cache, ready, done = allocator.range(64 * PAGE), threading.Event(), threading.Event()

def work():
    while not done.is_set():
        cache.prepare(8 * PAGE)
        cache.commit(0, 16 * PAGE)
        cache.decommit(0, 16 * PAGE)
        ready.set()

thread = threading.Thread(target=work)
thread.start()
ready.wait()
for _ in range(200):
    assert keeping.xseg_alloc(allocator.handle, 0, 50 << 20, None, ctypes.byref(pointer)) == 0
    assert keeping.xseg_free(allocator.handle, pointer) == 0
    assert keeping.xseg_trim(allocator.handle, ctypes.byref(everything), None, None) == 0
done.set()
thread.join()
_library.call("xseg_observer_remove", allocator.handle, number)
print(sorted(set(heard)))
"""
        self.assertEqual(cases.said(program)[0], "['log', 'on_map', 'on_trace', 'on_unmap']\n")


if __name__ == "__main__":
    cases.main()
