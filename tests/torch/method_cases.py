# SPDX-License-Identifier: MIT
"""Results of the methods of PyTorch's allocator, on the allocator that the environment selects: method_cases.py LIBRARY
[NAME...].

LIBRARY is compiled from methods.cpp.  One process runs all cases, each with an empty cache.  A case returns a value that
must be equal on every allocator, and prints a line: its name, then the value as JSON.
"""
import collections
import contextlib
import ctypes
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback

import torch

from tensors import FOREVER, MIB, byte_tensor, current, expect, simulator

MAX_RECORDS = 4000
UNMAPPING = ("segment_free", "segment_unmap")
# In the order of TraceEntry::Action.
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
           "snapshot", "oom", "annotate")
# Cases that need other settings of the simulator, and run only if the command line names them.
NAMED_ONLY = ("no_peers",)
# The last value of a record of a rejection.
REJECTED = 2
IS_EXPANDABLE = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")


class Record(ctypes.Structure):
    """A record of methods.cpp, which documents the values."""

    _fields_ = [("values", ctypes.c_uint64 * 8)]


class Methods:
    def __init__(self, path):
        self.path = path
        self.library = ctypes.CDLL(path)
        self.library.methods_error.restype = ctypes.c_char_p
        self.is_tracking = False
        self.library.methods_records.restype = self.library.methods_own_calls.restype = ctypes.c_size_t

    def call(self, name, *arguments):
        """Calls a function of methods.cpp.  A status other than 0 raises an error."""
        if getattr(self.library, "methods_" + name)(*arguments) != 0:
            raise RuntimeError(self.library.methods_error().decode())

    def track(self):
        if not self.is_tracking:
            self.call("track")
        self.is_tracking = True

    def records(self, name="records"):
        buffer = (Record * MAX_RECORDS)()
        return [list(buffer[index].values) for index in range(getattr(self.library, "methods_" + name)(buffer, MAX_RECORDS))]


METHODS = None


def pointer(address):
    return ctypes.c_void_p(address)


def error_of(function, *arguments):
    try:
        function(*arguments)
    except RuntimeError as error:
        return error
    raise AssertionError("the call raised no error")


def error_type(function, *arguments):
    return type(error_of(function, *arguments)).__name__


class Indexes:
    """Indexes of values in the order of their first use: addresses and streams differ between allocators."""

    def __init__(self, *known):
        self.seen = list(known)

    def of(self, value):
        if value not in self.seen:
            self.seen.append(value)
        return self.seen.index(value)

    def discard(self, value):
        self.seen[self.seen.index(value)] = object()


def case_cache_info():
    """The largest cached block of small, large and private pools; the argument is returned if it is larger."""

    def largest(minimum, device=0):
        size = ctypes.c_size_t(minimum)
        METHODS.call("cache_info", device, ctypes.byref(size))
        return size.value

    results = [largest(1)]
    small, middle, large = byte_tensor(0.5), byte_tensor(4), byte_tensor(60)
    results.append(largest(1))
    del large
    results.append(largest(1))
    results.append(largest(61 * MIB))
    del middle, small
    results.append(largest(1))
    results += [largest(1, 1), largest(1, 2), torch._C._cuda_hasPrimaryContext(2)]
    torch.cuda.empty_cache()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        byte_tensor(30)
    results.append(largest(1))
    free = torch.cuda.mem_get_info(0)[0]
    expect(largest(0) == free, "an argument of 0 returns the free memory of the device, if it is larger")
    return results


def case_base_allocation():
    """The classic segment that contains a block.  Blocks of expandable segments and freed blocks raise an error."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()

    def base_of(tensor):
        METHODS.call("base", pointer(tensor.data_ptr()), ctypes.byref(base), ctypes.byref(size))
        return tensor.data_ptr() - base.value, size.value

    first, second = byte_tensor(3), byte_tensor(5)
    if IS_EXPANDABLE:
        message = str(error_of(base_of, first))
        expect("expandable_segments:True cannot be shared" in message, message)
        return None
    results = [base_of(tensor) for tensor in (first, second, byte_tensor(0.5), byte_tensor(40))]
    METHODS.call("base", pointer(first.data_ptr()), ctypes.byref(base), None)
    address = second.data_ptr()
    del second
    for unallocated in (address, 4096):
        message = str(error_of(METHODS.call, "base", pointer(unallocated), ctypes.byref(base), None))
        expect("invalid device pointer" in message, message)
    return results


def case_expandable_segment_sizes():
    """The stream, the kind of pool and the mapped size of each expandable segment.  PyTorch omits segments of the default
    stream."""
    count, buffer = ctypes.c_size_t(), (Record * MAX_RECORDS)()
    side = torch.cuda.Stream()
    streams = Indexes(0, side.cuda_stream)

    def sizes(device=0):
        METHODS.call("segment_sizes", device, buffer, MAX_RECORDS, ctypes.byref(count))
        rows = [list(buffer[index].values[:3]) for index in range(count.value)]
        return sorted([streams.of(stream), is_small, size] for stream, is_small, size in rows)

    byte_tensor(0.5)
    held = byte_tensor(50)
    default = sizes()
    if torch.cuda.get_allocator_backend() == "xseg" and IS_EXPANDABLE:
        expect(default == [[0, 0, 60 * MIB], [0, 1, 2 * MIB]], default)
    else:
        expect(default == [], default)
    del held
    torch.cuda.empty_cache()
    results = [sizes()]
    with torch.cuda.stream(side):
        small, large = byte_tensor(0.5), byte_tensor(30)
        results.append(sizes())
        added = byte_tensor(60)
        results.append(sizes())
        del large
    torch.cuda.empty_cache()
    results.append(sizes())
    del added, small
    torch.cuda.empty_cache()
    results.append(sizes())
    return results + [sizes(1), sizes(2), torch._C._cuda_hasPrimaryContext(2)]


def address_gauges():
    """Bytes and number of expandable segments by PyTorch's gauges."""
    size, count = ctypes.c_size_t(), ctypes.c_size_t()
    METHODS.library.methods_address_gauges(ctypes.byref(size), ctypes.byref(count))
    return size.value, count.value


def reserved_addresses(stream):
    """Sizes of the address ranges of a stream's expandable segments; for xseg only."""
    import xseg.torch  # pylint: disable=import-outside-toplevel
    blocks = xseg.torch.allocator().blocks(0)
    return sorted({block.segment_base: block.segment_bytes for block in blocks
                   if block.is_expandable and (block.stream or 0) == stream}.values())


def case_address_gauges():
    """PyTorch's gauges count only the segments of its own allocator; xseg lists the address ranges of its blocks."""
    reservation = torch.cuda.get_device_properties(0).total_memory * 9 // 8 // (20 * MIB) * 20 * MIB
    side = torch.cuda.Stream()
    before = address_gauges()
    with torch.cuda.stream(side):
        tensor = byte_tensor(30)
    grown, count = (after - old for after, old in zip(address_gauges(), before))
    if torch.cuda.get_allocator_backend() == "xseg":
        expect((grown, count) == before == (0, 0), (grown, count, before))
        ranges = reserved_addresses(side.cuda_stream)
        expect(all(reservation <= size <= reservation + 20 * MIB for size in ranges) and len(ranges) == IS_EXPANDABLE, ranges)
    else:
        expect(reservation <= grown <= reservation + 20 * MIB and count == 1 if IS_EXPANDABLE else grown == count == 0,
               (grown, count))
    del tensor
    return []


def case_reserve_class():
    """A class is stored for each stream.  It shortens segments of PyTorch's own allocator, and has no effect in xseg."""
    total = torch.cuda.get_device_properties(0).total_memory
    tagged, has_class = torch.cuda.Stream(), ctypes.c_bool()
    METHODS.call("set_reserve_class", pointer(tagged.cuda_stream), b"short", ctypes.c_double(0.25))
    results, before = [], address_gauges()[0]
    for stream, name in ((tagged, b"short"), (tagged, b"long"), (torch.cuda.Stream(), b"")):
        METHODS.call("has_reserve_class", pointer(stream.cuda_stream), name, ctypes.byref(has_class))
        results.append(has_class.value)
    with torch.cuda.stream(tagged):
        tensor = byte_tensor(30)
    if torch.cuda.get_allocator_backend() == "xseg":
        expect(all(size > total for size in reserved_addresses(tagged.cuda_stream)), "the segment is as long as without a class")
    else:
        expect(address_gauges()[0] - before < total // 2, "the class shortens the segment")
    del tensor
    METHODS.call("set_reserve_class", pointer(tagged.cuda_stream), b"", ctypes.c_double(1.125))
    return results


def known_names(stack):
    """The functions of this test in a stack, or None without a stack."""
    return None if stack is None else sorted(
        {frame["name"] for frame in stack} & {"byte_tensor", "case_context_for_pointer"})


def case_context_for_pointer():
    """The stack of an allocated block while stacks are recorded; None without a history, for other addresses, and after the
    free."""
    stack_of = torch.cuda.memory._allocation_traceback
    before = byte_tensor(3)
    results = [known_names(stack_of(before.data_ptr()))]
    torch.cuda.memory._record_memory_history(stacks="python")
    during = byte_tensor(3)
    small = byte_tensor(0.25)
    results += [known_names(stack_of(tensor.data_ptr())) for tensor in (before, during, small)]
    address = small.data_ptr()
    del small
    results += [known_names(stack_of(address)), known_names(stack_of(4096))]
    side = torch.cuda.Stream()
    simulator().xseg_sim_launch(side.cuda_stream, FOREVER)
    pending = byte_tensor(3)
    pending.record_stream(side)
    address = pending.data_ptr()
    del pending
    results.append(known_names(stack_of(address)))
    side.synchronize()
    torch.cuda.memory._record_memory_history("state", context="state", stacks="python")
    state = byte_tensor(3)
    results.append(known_names(stack_of(state.data_ptr())))
    torch.cuda.memory._record_memory_history(context=None)
    without = byte_tensor(3)
    results.append(known_names(stack_of(without.data_ptr())))
    torch.cuda.memory._record_memory_history(enabled=None)
    after = byte_tensor(3)
    return results + [known_names(stack_of(tensor.data_ptr())) for tensor in (after, during)]


def trace(*keys):
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    return [[entry.get(key) for key in ("action", *keys)] for entry in entries if entry["action"] != "snapshot"]


def case_compile_context():
    """The compile context is recorded with each allocation; contexts nest, and require a history."""
    METHODS.call("push_compile_context", b"lost")
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    tensors = [byte_tensor(3)]
    METHODS.call("push_compile_context", b"0/0")
    tensors.append(byte_tensor(4))
    METHODS.call("push_compile_context", b"1/0 [#2]")
    tensors.append(byte_tensor(5))
    METHODS.call("pop_compile_context")
    tensors.append(byte_tensor(6))
    METHODS.call("pop_compile_context")
    METHODS.call("pop_compile_context")
    torch.cuda.memory._set_memory_metadata("phase")
    METHODS.call("push_compile_context", b"2/0")
    tensors.append(byte_tensor(7))
    METHODS.call("pop_compile_context")
    tensors.append(byte_tensor(8))
    torch.cuda.memory._set_memory_metadata("")
    return trace("size", "compile_context", "user_metadata")


def case_annotation():
    """Snapshots list the ranges of record_function() next to the history, with stage and device."""
    record = torch.profiler.record_function
    tensors = byte_tensor(3), byte_tensor(3, "cuda:1")
    torch.cuda.memory._record_memory_history(context=None, clear_history=True, global_record_annotations=True)
    with record("forward"):
        tensors = byte_tensor(3)
        with record("inner"):
            tensors = byte_tensor(4)
    with torch.cuda.device(1), record("other device"):
        tensors = byte_tensor(3, "cuda:1")
    entries = torch.cuda.memory._snapshot()["external_annotations"]
    torch.cuda.memory._record_memory_history(enabled=None)
    with record("forward"):
        del tensors
    expect(torch.cuda.memory._snapshot()["external_annotations"] == [], "recording is off")
    entries = sorted(entries, key=lambda entry: entry["device"])
    for device in (0, 1):
        times = [entry["time_us"] for entry in entries if entry["device"] == device]
        expect(times == sorted(times), times)
    return [[entry[key] for key in ("device", "name", "stage")] for entry in entries
            if entry["name"] in ("forward", "inner", "other device")]


def case_annotate_memory():
    """The annotation of an allocated block is a separate event if a history is recorded."""
    annotate = torch.cuda.memory._annotate_tensor
    first = byte_tensor(3)
    annotate(first, "no history")
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    second, small = byte_tensor(4), torch.empty(1000, dtype=torch.uint8, device="cuda")
    annotate(first, "older")
    annotate(second, "layer 7 #1")
    annotate(small, "small")
    annotate(small, "small again")
    annotate(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"), "temporary")
    known = {first.data_ptr(): "first", second.data_ptr(): "second", small.data_ptr(): "small"}
    results = [[action, known.get(address), *others]
               for action, address, *others in trace("addr", "size", "stream", "user_metadata", "pool_id")]
    address = second.data_ptr()
    del second
    results += [error_type(torch._C._cuda_annotateMemory, unallocated, "none")
                for unallocated in (address, 4096, small.data_ptr() + 8)]
    torch.cuda.memory._record_memory_history(context=None, clear_history=True, skip_actions=["annotate"])
    annotate(first, "skipped")
    return results + trace("user_metadata")


def case_use_on_oom():
    """A pool with use_on_oom serves allocations of other pools from its cached blocks under memory pressure; other pools do
    not.  PyTorch's allocator serves from classic segments only."""
    total = torch.cuda.get_device_properties(0).total_memory
    results = []
    for is_fallback, is_revoked in ((False, False), (True, False), (True, True)):
        pool = torch.cuda.MemPool(use_on_oom=is_fallback)
        if is_revoked:
            first, second = pool.id
            METHODS.call("set_use_on_oom", 0, ctypes.c_uint64(first), ctypes.c_uint64(second), False)
        with torch.cuda.use_mem_pool(pool):
            byte_tensor(total // MIB * 3 // 5)
        try:
            held = byte_tensor(total // MIB // 2)
            results += ["served", sum(segment["active_size"] for segment in pool.snapshot()) // MIB]
            del held
        except torch.OutOfMemoryError:
            results.append("out of memory")
        del pool
        torch.cuda.empty_cache()
        results.append(current("reserved_bytes"))
    if IS_EXPANDABLE:
        is_xseg = torch.cuda.get_allocator_backend() == "xseg"
        served = ["served", total // MIB // 2, 0] if is_xseg else ["out of memory", 0]
        expect(results == ["out of memory", 0, *served, "out of memory", 0], results)
        return None
    return results


def case_no_split():
    """A pool with no_split allocates a whole segment for each block."""
    results = []
    for no_split in (False, True):
        pool = torch.cuda.MemPool(no_split=no_split)
        with torch.cuda.use_mem_pool(pool):
            tensors = [byte_tensor(3), byte_tensor(5), torch.empty(1000, dtype=torch.uint8, device="cuda"), byte_tensor(12)]
        with torch.cuda.use_mem_pool(pool, 1):
            tensors.append(byte_tensor(3, "cuda:1"))
        blocks = [block for segment in pool.snapshot() for block in segment["blocks"]]
        results.append(sorted([block["size"], block["requested_size"], block["state"]] for block in blocks))
        first = tensors[0].data_ptr()
        del tensors
        with torch.cuda.use_mem_pool(pool):
            reused = byte_tensor(2)
        results.append([reused.data_ptr() == first, current("active_bytes"), current("reserved_bytes")])
        del reused, pool
        torch.cuda.empty_cache()
    return results


def tracked_entries(program):
    """Entries of a trace tracker for a program: action, device, block, bytes, stream, pool.  Consecutive segments that are
    unmapped may be in any order."""
    METHODS.library.methods_listen(True)
    returned = program()
    METHODS.library.methods_listen(False)
    blocks, streams, pools = Indexes(), Indexes(0), Indexes((0, 0))
    entries = []
    for action, device, address, size, stream, *pool, is_mapped in METHODS.records():
        is_oom = ACTIONS[action] == "oom"
        entries.append([ACTIONS[action], device, address if is_oom else blocks.of(address), size, streams.of(stream),
                        pools.of(tuple(pool))])
        if ACTIONS[action] in UNMAPPING:
            blocks.discard(address)
        if not is_oom and torch.cuda.get_allocator_backend() == "xseg":
            expect(is_mapped, f"{entries[-1]}: the memory was unmapped before the callback")
    del returned
    runs = itertools.groupby(entries, key=lambda entry: entry[0] in UNMAPPING)
    return [entry for is_unmapping, run_of in runs for entry in (sorted(run_of) if is_unmapping else run_of)]


def case_trace_tracker():
    """Order and actions of trace entries; memory is still mapped while its unmapping is reported."""
    METHODS.track()
    side = torch.cuda.Stream()

    def program():
        small, large = torch.empty(1000, dtype=torch.uint8, device="cuda"), byte_tensor(30)
        other_device_tensor = byte_tensor(3, "cuda:1")
        del small
        simulator().xseg_sim_launch(side.cuda_stream, FOREVER)
        large.record_stream(side)
        del large, other_device_tensor
        side.synchronize()
        byte_tensor(40)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            byte_tensor(3)
        del pool
        torch.cuda.empty_cache()
        tensor = byte_tensor(20)
        error_of(byte_tensor, 1 << 20)
        with torch.cuda.stream(side):
            error_of(byte_tensor, 1 << 19)
        return tensor

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            first = byte_tensor(3)
            side.wait_stream(torch.cuda.current_stream())
            first.record_stream(side)
            del first
            second = byte_tensor(3)
            torch.cuda.current_stream().wait_stream(side)
        graph.replay()
        torch.cuda.synchronize()
        third = byte_tensor(3)
        del graph, second, third
        torch.cuda.empty_cache()

    return [tracked_entries(program), tracked_entries(capture)]


def case_single_pages_are_segments():
    """In xseg, each page of a single-page MemPool is reported as a segment, because NCCL's hooks register whole segments."""
    METHODS.track()
    if torch.cuda.get_allocator_backend() != "xseg" or not IS_EXPANDABLE:
        return
    import xseg.torch
    pool = torch.cuda.MemPool()
    xseg.torch.pool(pool).set_single_page()
    METHODS.library.methods_listen(True)
    with torch.cuda.use_mem_pool(pool):
        byte_tensor(30)
    del pool
    torch.cuda.empty_cache()
    METHODS.library.methods_listen(False)
    entries = [(ACTIONS[entry[0]], entry[3]) for entry in METHODS.records() if ACTIONS[entry[0]].startswith("segment")]
    expect(entries == [("segment_alloc", 30 << 20), ("segment_free", 30 << 20)], entries)


class Mirror:
    """The state of a device that a tracker reconstructs from trace entries: mapped memory, and blocks in use."""

    def __init__(self):
        self.memory = {}  # mapped memory: bytes by address
        self.allocated, self.pending = {}, {}  # blocks: bytes by address

    def apply(self, action, address, size):
        in_use = {**self.allocated, **self.pending}
        if action in ("segment_alloc", "segment_map"):
            expect(not overlap(self.memory, address, size), (action, address, size))
            self.memory[address] = size
        elif action in UNMAPPING:
            expect(not overlap(in_use, address, size), (action, address, size, in_use))
            self.unmap(address, size)
        elif action == "alloc":
            expect(not overlap(in_use, address, size), (action, address, size, in_use))
            expect(sum(overlap(self.memory, address, size)) == size, (action, address, size, self.memory))
            self.allocated[address] = size
        elif action == "free_requested":
            expect(self.allocated[address] == size, (action, address, size))
            self.pending[address] = self.allocated.pop(address)
        elif action == "free_completed":
            expect(self.pending.pop(address) == size, (action, address, size))

    def unmap(self, address, size):
        expect(sum(overlap(self.memory, address, size)) == size, ("unmap", address, size, self.memory))
        for base, length in list(self.memory.items()):
            if base < address + size and address < base + length:
                del self.memory[base]
                if base < address:
                    self.memory[base] = address - base
                if base + length > address + size:
                    self.memory[address + size] = base + length - address - size


def overlap(ranges, address, size):
    """The size of each nonempty intersection of a range with the ranges of a dictionary."""
    sizes = (min(base + length, address + size) - max(base, address) for base, length in ranges.items())
    return [common_size for common_size in sizes if common_size > 0]


def random_program(seed):
    """Allocates and frees tensors on three streams and in two pools; returns the remaining tensors, and the pools."""
    rng = random.Random(seed)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    pools, tensors = [torch.cuda.MemPool() for _ in range(2)], []
    for step in range(400):
        with torch.cuda.stream(rng.choice(streams)), \
                torch.cuda.use_mem_pool(rng.choice(pools)) if rng.random() < 0.2 else contextlib.nullcontext():
            tensors.append(byte_tensor(rng.choice((0.001, 0.1, 1.5, 3, 12, 30, 45))))
        if rng.random() < 0.3:
            using_stream = rng.choice(streams)
            simulator().xseg_sim_launch(using_stream.cuda_stream, 1000)
            rng.choice(tensors).record_stream(using_stream)
        while len(tensors) > 20 or (tensors and rng.random() < 0.4):
            tensors.pop(rng.randrange(len(tensors)))
        if step % 100 == 50:
            torch.cuda.empty_cache()
    return tensors, pools


def case_tracker_account():
    """The entries of a tracker are consistent, and reconstruct the mapped memory and the blocks of a device.  An unmap of
    several mapped parts is one entry in PyTorch, and one for each part in xseg."""
    METHODS.track()
    METHODS.library.methods_listen(True)
    tensors, pools = random_program(7)
    METHODS.library.methods_listen(False)
    mirror, count = Mirror(), collections.Counter()
    for action, device, address, size, *_ in METHODS.records():
        if device == 0 and ACTIONS[action] != "oom":
            mirror.apply(ACTIONS[action], address, size)
            count[ACTIONS[action]] += 1
    snapshot = torch.cuda.memory_snapshot()
    used = {block["address"]: block["requested_size"] for segment in snapshot for block in segment["blocks"]
            if block["state"] != "inactive"}
    expect(used == {**mirror.allocated, **mirror.pending}, (used, mirror.allocated, mirror.pending))
    expect(set(mirror.allocated) == {tensor.data_ptr() for tensor in tensors}, mirror.allocated)
    expect(sum(mirror.memory.values()) == torch.cuda.memory_reserved(), mirror.memory)
    for segment in snapshot:
        expect(sum(overlap(mirror.memory, segment["address"], segment["total_size"])) == segment["total_size"], segment)
    del tensors, pools
    del count["segment_unmap"]
    return dict(count)


def free_blocks():
    segments = ([[block["size"], block["requested_size"]] for block in segment["blocks"] if block["state"] == "inactive"]
                for segment in torch.cuda.memory_snapshot() if segment["device"] == 0)
    return sorted(blocks for blocks in segments if blocks)


def case_requested_sizes():
    """The requested size of free blocks after frees, splits and coalescing, on two streams and in pools, without a history."""
    results, side = [], torch.cuda.Stream()
    for unit in (500, 100 * 1000, 2 * MIB + 5):
        tensors = [torch.empty(unit + 100 * number, dtype=torch.uint8, device="cuda") for number in range(12)]
        del tensors[2], tensors[6], tensors[6]
        results.append(free_blocks())
        tensors.append(torch.empty(unit // 2, dtype=torch.uint8, device="cuda"))
        results.append(free_blocks())
        for block in tensors[3:5]:
            simulator().xseg_sim_launch(side.cuda_stream, FOREVER)
            block.record_stream(side)
        del block, tensors[3:5]
        results.append(free_blocks())
        side.synchronize()
        tensors.append(torch.empty(unit * 3, dtype=torch.uint8, device="cuda"))
        results.append(free_blocks())
        with torch.cuda.stream(side):
            tensors += [torch.empty(unit * factor, dtype=torch.uint8, device="cuda") for factor in (1, 2, 1, 3, 1)]
        del tensors[-4], tensors[-2]
        torch.cuda.empty_cache()
        results.append(free_blocks())
        with torch.cuda.stream(side):
            tensors.append(torch.empty(unit * 4, dtype=torch.uint8, device="cuda"))
        results.append(free_blocks())
        del tensors
        results.append(free_blocks())
        torch.cuda.empty_cache()
    return results


def case_requested_sizes_at_an_address():
    """The requested size of the free block before the address of an allocation, which splits it."""
    allocated, results = ctypes.c_uint64(), []
    for bytes_held in (40 * MIB + 7, 100 * 1000):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            held = torch.empty(bytes_held, dtype=torch.uint8, device="cuda")
            address = held.data_ptr()
            del held
            METHODS.call("allocate_at", ctypes.c_size_t(1300 if bytes_held < MIB else MIB + 9), pointer(address + 2048),
                         ctypes.byref(allocated))
            results.append(free_blocks())
            METHODS.call("free", pointer(address + 2048))
            results.append(free_blocks())
        del pool
        torch.cuda.empty_cache()
    return results


def case_requested_sizes_after_a_restore():
    """A restore sets the requested size of each free block to its value at the checkpoint."""
    results = []
    for unit in (700, 3 * MIB + 7):
        pool = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        tensors = [torch.empty(unit + 100 * number, dtype=torch.uint8, device="cuda") for number in range(6)]
        del tensors[1], tensors[3]
        checkpoint, addresses = torch._C._cuda_getCheckpointState(0, pool), [tensor.data_ptr() for tensor in tensors]
        tensors += [torch.empty(int(unit * factor), dtype=torch.uint8, device="cuda") for factor in (0.5, 2)]
        del tensors[0]
        torch._C._cuda_endAllocateToPool(0, pool)
        for tensor in tensors:
            torch._C._free_And_Remove_DeleterFn(tensor.untyped_storage()._cdata)
        results.append(free_blocks())
        torch._C._cuda_setCheckpointPoolState(0, checkpoint, [], [])
        results.append(free_blocks())
        torch.cuda.empty_cache()
        results.append(free_blocks())
        for address in addresses:
            torch.cuda.caching_allocator_delete(address)
        torch._C._cuda_releasePool(0, pool)
        torch.cuda.empty_cache()
    return results


def case_raw_pointers():
    side = torch.cuda.Stream()
    allocate, free = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    first, second = allocate(1000), allocate(30 * MIB, stream=side)
    other_device_block = allocate(3 * MIB, device=1)
    results = [allocate(0), current("requested_bytes"), current("allocated_bytes"), current("reserved_bytes", 1)]
    results.append(sorted([segment["device"], segment["stream"] == side.cuda_stream, segment["active_size"]]
                          for segment in torch.cuda.memory_snapshot() if segment["active_size"]))
    free(0)
    results += [error_type(free, invalid) for invalid in (first + 512, 4096)]
    for block in (first, second, other_device_block):
        free(block)
    results.append(error_type(free, second))
    again = allocate(29 * MIB, stream=side)
    results += [again == second, current("allocated_bytes"), current("allocated_bytes", 1)]
    free(again)
    return results


def case_out_of_memory_observer():
    """Device, requested bytes, limit and free bytes, also with a memory fraction."""
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    total = torch.cuda.get_device_properties(0).total_memory
    tensor = byte_tensor(100)
    for size, device in ((total, 0), (total + 3 * MIB, 1), (1 << 50, 0), (total // 2, 0)):
        if size == total // 2:
            torch.cuda.set_per_process_memory_fraction(0.5)
        message = str(error_of(byte_tensor, size / MIB, f"cuda:{device}"))
        expect(message.startswith("CUDA out of memory. Tried to allocate "), message)
        seen.append(message.split(". ")[1] + message.split(". ")[2][:40])
    torch.cuda.set_per_process_memory_fraction(1.0)
    del tensor
    return seen


def case_free_memory_callback():
    """A registered callback frees memory, and the allocation succeeds."""
    METHODS.call("hold", ctypes.c_size_t(1200 * MIB))
    METHODS.library.methods_arm_callback(True)
    results = [current("allocated_bytes") // MIB]
    tensor = byte_tensor(1500)
    results += [current("allocated_bytes") // MIB, METHODS.library.methods_arm_callback(False)]
    del tensor
    return results


def case_conditional_bodies():
    """Each body of a conditional node has its own memory in the graph's pool, even if an earlier body has freed that size."""
    graph, choice = torch.cuda.CUDAGraph(), torch.ones((), dtype=torch.bool, device="cuda")
    before, results = current("reserved_bytes"), []
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        byte_tensor(40)
        for _ in range(2):
            graph.begin_capture_to_if_node(choice)
            byte_tensor(40)
            graph.end_capture_to_conditional_node()
            results.append((current("reserved_bytes") - before) // MIB)
        byte_tensor(40)
    results.append((current("reserved_bytes") - before) // MIB)
    expect(results == [80, 120, 120], results)  # 40 MiB outside of the bodies, and 40 MiB for each body
    del graph
    torch.cuda.empty_cache()
    return results + [current("reserved_bytes") // MIB]


def case_accelerator():
    """Functions of torch.accelerator find the allocator by the device type."""
    tensor = byte_tensor(30)
    memory = torch.accelerator.memory
    results = [memory.memory_allocated(), memory.memory_reserved(), memory.memory_stats()["allocation.all.current"],
            memory.get_memory_info() == torch.cuda.mem_get_info()]
    del tensor
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    return results + [memory.memory_reserved(), memory.max_memory_allocated()]


def case_host_memory():
    """PyTorch adds pinned memory to snapshots of any allocator."""
    torch.cuda.memory._record_memory_history(record_pinned_host_memory=True, clear_history=True)
    tensor = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    snapshot = torch.cuda.memory._snapshot()
    results = [[segment["total_size"] for segment in snapshot["host_segments"] if segment["address"] == tensor.data_ptr()],
               [[entry["action"], entry["size"]] for entry in snapshot["host_traces"]]]
    torch.cuda.memory._record_memory_history(enabled=None)
    return results


def case_memory_info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    results = []
    tensor = byte_tensor(100)
    for device in range(2):
        METHODS.call("memory_info", device, ctypes.byref(free), ctypes.byref(total))
        expect((free.value, total.value) == torch.cuda.mem_get_info(device), (free.value, total.value))
        results += [total.value - free.value, total.value]
    del tensor
    return results


def case_simple_pointer():
    is_simple = ctypes.c_bool()
    results = []
    for size in (0, 1000, 30 * MIB):
        METHODS.call("is_simple", ctypes.c_size_t(size), ctypes.byref(is_simple))
        results.append(is_simple.value)
    return [*results, current("allocated_bytes")]


def case_own_allocator():
    """A MemPool with its own allocator calls that allocator with device and size, and frees all of the memory."""
    plugin = torch.cuda.memory.CUDAPluggableAllocator(METHODS.path, "methods_own_alloc", "methods_own_free")
    pool = torch.cuda.MemPool(plugin.allocator())
    before = current("reserved_bytes")
    METHODS.records("own_calls")
    with torch.cuda.use_mem_pool(pool):
        small, large = torch.empty(1000, dtype=torch.uint8, device="cuda"), byte_tensor(30)
        again = byte_tensor(3)
        with torch.cuda.device(1):
            other_device_tensor = byte_tensor(3, "cuda:1")
    calls = METHODS.records("own_calls")
    with torch.cuda.use_mem_pool(pool, 1):
        second = byte_tensor(3, "cuda:1")
    outside = byte_tensor(3)
    calls += METHODS.records("own_calls")
    segments = sorted([segment["device"], segment["total_size"], segment["is_expandable"], segment["allocated_size"]]
                      for segment in pool.snapshot())
    results = [[call[0], call[1], call[3]] for call in calls] + segments + [current("reserved_bytes") - before]
    expect(large.data_ptr() in {call[2] for call in calls}, "a large block is at the start of its segment")
    del small, large, again, other_device_tensor, second, outside
    del pool
    torch.cuda.empty_cache()
    frees = METHODS.records("own_calls")
    expect(sorted(call[2] for call in frees) == sorted(call[2] for call in calls), "each allocation is freed once")
    results += sorted([call[0], call[1], call[3]] for call in frees)
    pool = torch.cuda.MemPool(plugin.allocator())
    with torch.cuda.use_mem_pool(pool):
        outlives, cached = byte_tensor(30), byte_tensor(3)
    del cached, plugin, pool
    torch.cuda.empty_cache()
    results.append([[call[0], call[3]] for call in METHODS.records("own_calls")])
    del outlives
    torch.cuda.empty_cache()
    return results + [[call[0], call[3]] for call in METHODS.records("own_calls")]


def access_report(stream, tensor):
    """The report of the simulator, in a child, for work that accesses a tensor; empty if the access is allowed."""
    with tempfile.TemporaryFile("w+") as report:
        child = os.fork()
        if child == 0:
            os.dup2(report.fileno(), 2)
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            simulator().xseg_sim_launch_on(stream, 1, tensor.data_ptr(), 4)
            os._exit(0)
        is_aborted = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        report.seek(0)
        text = report.read()
        expect(is_aborted == bool(text), text)
        return text


def case_own_allocator_out_of_memory():
    """A failure of a pool's own allocator is an out-of-memory error; a capture calls the allocator, too."""
    plugin = torch.cuda.memory.CUDAPluggableAllocator(METHODS.path, "methods_own_alloc", "methods_own_free")
    pool = torch.cuda.MemPool(plugin.allocator())
    keys = ("num_ooms", "num_alloc_retries", "reserved_bytes.all.current", "active_bytes.all.current")
    before = torch.cuda.memory_stats()
    with torch.cuda.use_mem_pool(pool):
        results = [error_type(byte_tensor, 4096)]
        tensor = byte_tensor(30)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        inside = byte_tensor(30)
        temporary = byte_tensor(12)
        del temporary
    graph.replay()
    torch.cuda.synchronize()
    results += [[call[0], call[3]] for call in METHODS.records("own_calls")]
    after = torch.cuda.memory_stats()
    results += [after[key] - before[key] for key in keys]
    del tensor, inside, graph, plugin, pool
    torch.cuda.empty_cache()
    return results + sorted([call[0], call[3]] for call in METHODS.records("own_calls")) + [current("reserved_bytes")]


def case_peers():
    """enable_peer_access() grants a device access to memory mapped before and after the call, and to no other memory."""
    streams = [torch.cuda.Stream(device) for device in range(3)]
    before = byte_tensor(3, "cuda:1")

    def can_access(device, tensor):
        with torch.cuda.device(device):
            return access_report(streams[device].cuda_stream, tensor) == ""

    results = [can_access(1, before), can_access(0, before)]
    METHODS.call("enable_peer_access", 0, 1)
    after, large = byte_tensor(0.5, "cuda:1"), byte_tensor(100, "cuda:1")
    local = byte_tensor(3)
    results += [can_access(0, tensor) for tensor in (before, after, large)]
    results += [can_access(2, before), can_access(1, local)]
    METHODS.call("enable_peer_access", 0, 1)
    METHODS.call("enable_peer_access", 1, 2)
    third = byte_tensor(3, "cuda:2")
    results += [can_access(1, third), can_access(0, third), can_access(2, before)]
    results.append(error_type(METHODS.call, "enable_peer_access", 0, 7))
    pool = torch.cuda.MemPool()
    with torch.cuda.device(1), torch.cuda.use_mem_pool(pool):
        within = byte_tensor(3, "cuda:1")
    results.append(can_access(0, within))
    return results


def case_copies():
    """Copies on one device, between peers, and between devices that are not peers."""
    pattern = torch.arange(3 * MIB, dtype=torch.int64).to(torch.uint8)
    first, twin, second, third = (byte_tensor(3, f"cuda:{device}") for device in (0, 0, 1, 2))
    first.copy_(pattern)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    METHODS.call("enable_peer_access", 0, 1)
    METHODS.call("enable_peer_access", 1, 0)
    results = []
    for target, is_peer in ((twin, False), (twin, True), (second, True), (second, False), (third, False)):
        target.zero_()
        torch.cuda.synchronize(target.device)
        METHODS.call("memcpy", pointer(target.data_ptr()), target.device.index, pointer(first.data_ptr()), 0,
                     ctypes.c_size_t(3 * MIB), pointer(stream.cuda_stream), is_peer)
        stream.synchronize()
        results.append(torch.equal(target.cpu(), pattern))
    twin.copy_(torch.zeros(3 * MIB, dtype=torch.uint8))
    METHODS.call("copy_data", pointer(twin.data_ptr()), pointer(first.data_ptr()), ctypes.c_size_t(2 * MIB))
    torch.cuda.synchronize()
    results.append([torch.equal(twin.cpu()[:2 * MIB], pattern[:2 * MIB]), int(twin.cpu()[2 * MIB + 1])])
    return results


def case_no_peers():
    """Without peer-to-peer support (XSEG_SIM_PEERS=0), enable_peer_access() fails, and copies between devices succeed."""
    pattern = torch.arange(3 * MIB, dtype=torch.int64).to(torch.uint8)
    first, second = byte_tensor(3), byte_tensor(3, "cuda:1")
    first.copy_(pattern)
    torch.cuda.synchronize()
    results = [error_type(METHODS.call, "enable_peer_access", 0, 1)]
    METHODS.call("memcpy", pointer(second.data_ptr()), 1, pointer(first.data_ptr()), 0, ctypes.c_size_t(3 * MIB),
                 pointer(torch.cuda.current_stream(0).cuda_stream), False)
    torch.cuda.synchronize(0)
    results.append(torch.equal(second.cpu(), pattern))
    return results + [torch.equal(first.to("cuda:1").cpu(), pattern), byte_tensor(100, "cuda:1").numel()]


def case_allocate_with_address():
    """An allocation at an address succeeds if the range is free in the pool of the thread."""
    allocated = ctypes.c_uint64()

    def allocate_at(address, size):
        METHODS.call("allocate_at", ctypes.c_size_t(size), pointer(address), ctypes.byref(allocated))
        return allocated.value == address

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first = byte_tensor(64)
        address = first.data_ptr()
        results = [error_type(allocate_at, address, 4 * MIB)]
        del first
        results += [allocate_at(address, 4 * MIB), allocate_at(address + 16 * MIB, 4 * MIB)]
        results.append([current("active_bytes"), current("reserved_bytes"), current("allocation")])
        results += [error_type(allocate_at, address + offset * MIB, size * MIB) for offset, size in ((16, 4), (100, 8))]
        between = byte_tensor(12)
        results.append(between.data_ptr() == address + 4 * MIB)
        METHODS.call("free", pointer(address + 16 * MIB))
        results.append(allocate_at(address + 16 * MIB, 48 * MIB))
    METHODS.call("free", pointer(address))
    METHODS.call("free", pointer(address + 16 * MIB))
    results.append(current("active_bytes"))
    results.append(error_type(allocate_at, address, 4 * MIB))
    with torch.cuda.use_mem_pool(pool):
        results += [error_type(allocate_at, address + 100, 4 * MIB), error_type(allocate_at, address, 1000)]
        small = byte_tensor(0.5).data_ptr()
        results.append(allocate_at(small + 4096, 1000))
        METHODS.call("free", pointer(small + 4096))
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(error_type(allocate_at, address, 4 * MIB))
        METHODS.call("allocate_at", ctypes.c_size_t(0), pointer(address), ctypes.byref(allocated))
        results.append(allocated.value)
    del between
    return results


def case_rejection():
    """A growth beyond the memory of the device is rejected without a retry.  Observers are notified, and trackers are not.
    PyTorch notifies observers in separate threads."""
    METHODS.track()
    METHODS.call("observe_rejections")
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    METHODS.library.methods_listen(True)
    mode = f"expandable_segments:{IS_EXPANDABLE}"
    total = torch.cuda.get_device_properties(0).total_memory
    tensor = byte_tensor(100)
    byte_tensor(200)
    keys = ("num_oom_rejections", "num_ooms", "num_alloc_retries", "reserved_bytes.all.current")
    before = torch.cuda.memory_stats()
    torch.cuda.memory._set_allocator_settings(f"{mode},throw_on_cudamalloc_oom:True")
    results = [error_type(byte_tensor, total / MIB), error_type(byte_tensor, total / MIB - 99.5)]
    torch.cuda.memory._set_allocator_settings(f"{mode},per_process_memory_fraction:0.5")
    results += [error_type(byte_tensor, total / MIB * 0.5 + 1), torch.cuda.get_per_process_memory_fraction()]
    torch.cuda.memory._set_allocator_settings(f"{mode},per_process_memory_fraction:1.0")
    stats = torch.cuda.memory_stats()
    results += [stats[key] - before[key] for key in keys]
    byte_tensor(200)
    torch.cuda.memory._set_allocator_settings(f"{mode},throw_on_cudamalloc_oom:False")
    results.append(error_type(byte_tensor, total / MIB))
    records, rejections = METHODS.records(), []
    for _ in range(1000):
        rejections = [entry[:4] for entry in records if entry[7] == REJECTED]
        if len(rejections) == 3:
            break
        time.sleep(0.01)
        records += METHODS.records()
    METHODS.library.methods_listen(False)
    del tensor
    results += sorted(rejections) + [[ACTIONS[entry[0]], entry[3]] for entry in records if entry[7] != REJECTED]
    return results + trace("size", "device_free")


def run_case(name):
    torch.cuda.empty_cache()
    try:
        return {"result": globals()["case_" + name]()}
    except Exception:  # pylint: disable=broad-exception-caught
        return {"failed": traceback.format_exc()}
    finally:
        METHODS.library.methods_listen(False)
        METHODS.records()
        torch.cuda.memory._record_memory_history(enabled=None)


def main():
    global METHODS  # pylint: disable=global-statement
    METHODS = Methods(sys.argv[1])
    torch.cuda.init()
    cases = [name.removeprefix("case_") for name in globals() if name.startswith("case_")]
    for name in sys.argv[2:] or [name for name in cases if name not in NAMED_ONLY]:
        print(name, json.dumps(run_case(name)), flush=True)


if __name__ == "__main__":
    main()
