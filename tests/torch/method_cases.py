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

from tensors import MIB, OPEN, byte_tensor, current, expect, simulator

MOST = 4000
LEAVING = ("segment_free", "segment_unmap")
# As TraceEntry::Action counts them.
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
           "snapshot", "oom", "annotate")
# Cases that want another machine, and run where they are named.
ELSEWHERE = ("no_peers",)
# The last number of what an observer of rejections heard.
REJECTED = 2
IS_EXPANDABLE = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")


class Heard(ctypes.Structure):
    """What methods.cpp notes: numbers, whose meaning stands there."""

    _fields_ = [("numbers", ctypes.c_uint64 * 8)]


class Methods:
    def __init__(self, path):
        self.path = path
        self.library = ctypes.CDLL(path)
        self.library.methods_error.restype = ctypes.c_char_p
        self.is_tracking = False
        self.library.methods_heard.restype = self.library.methods_own_calls.restype = ctypes.c_size_t

    def call(self, name, *arguments):
        """Call a function; -1 is an exception."""
        if getattr(self.library, "methods_" + name)(*arguments) != 0:
            raise RuntimeError(self.library.methods_error().decode())

    def track(self):
        if not self.is_tracking:
            self.call("track")
        self.is_tracking = True

    def heard(self, name="heard"):
        found = (Heard * MOST)()
        return [list(found[index].numbers) for index in range(getattr(self.library, "methods_" + name)(found, MOST))]


METHODS = None


def pointer(address):
    return ctypes.c_void_p(address)


def refused(function, *arguments):
    try:
        function(*arguments)
    except RuntimeError as refusal:
        return refusal
    raise AssertionError("nothing was refused")


class Numbers:
    """Numbers of values in the order in which they are met: addresses and streams differ from allocator to allocator."""

    def __init__(self, *known):
        self.seen = list(known)

    def of(self, value):
        if value not in self.seen:
            self.seen.append(value)
        return self.seen.index(value)

    def forget(self, value):
        self.seen[self.seen.index(value)] = object()


def case_cache_info():
    """The largest cached block, of both kinds of pool and of private ones; what is given if that is larger."""

    def largest(guess, device=0):
        found = ctypes.c_size_t(guess)
        METHODS.call("cache_info", device, ctypes.byref(found))
        return found.value

    said = [largest(1)]
    small, middle, large = byte_tensor(0.5), byte_tensor(4), byte_tensor(60)
    said.append(largest(1))
    del large
    said.append(largest(1))
    said.append(largest(61 * MIB))
    del middle, small
    said.append(largest(1))
    said += [largest(1, 1), largest(1, 2), torch._C._cuda_hasPrimaryContext(2)]
    torch.cuda.empty_cache()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        byte_tensor(30)
    said.append(largest(1))
    free = torch.cuda.mem_get_info(0)[0]
    expect(largest(0) == free, "0 asks for what the device has free, if that is more")
    return said


def case_base_allocation():
    """The classic segment around a block; expandable memory has none, and what is not a live block is refused."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()

    def ask(tensor):
        METHODS.call("base", pointer(tensor.data_ptr()), ctypes.byref(base), ctypes.byref(size))
        return tensor.data_ptr() - base.value, size.value

    first, second = byte_tensor(3), byte_tensor(5)
    if IS_EXPANDABLE:
        text = str(refused(ask, first))
        expect("expandable_segments:True cannot be shared" in text, text)
        return None
    said = [ask(first), ask(second), ask(byte_tensor(0.5)), ask(byte_tensor(40))]
    METHODS.call("base", pointer(first.data_ptr()), ctypes.byref(base), None)
    address = second.data_ptr()
    del second
    for nothing in (address, 4096):
        text = str(refused(METHODS.call, "base", pointer(nothing), ctypes.byref(base), None))
        expect("invalid device pointer" in text, text)
    return said


def case_expandable_segment_sizes():
    """Each expandable segment: its stream, which kind of pool, and what is mapped of it.  PyTorch leaves out those of the
    default stream."""
    count, found = ctypes.c_size_t(), (Heard * MOST)()
    side = torch.cuda.Stream()
    streams = Numbers(0, side.cuda_stream)

    def sizes(device=0):
        METHODS.call("segment_sizes", device, found, MOST, ctypes.byref(count))
        rows = [list(found[index].numbers[:3]) for index in range(count.value)]
        return sorted([streams.of(stream), is_small, size] for stream, is_small, size in rows)

    byte_tensor(0.5)
    kept = byte_tensor(50)
    default = sizes()
    if torch.cuda.get_allocator_backend() == "xseg" and IS_EXPANDABLE:
        expect(default == [[0, 0, 60 * MIB], [0, 1, 2 * MIB]], default)
    else:
        expect(default == [], default)
    del kept
    torch.cuda.empty_cache()
    said = [sizes()]
    with torch.cuda.stream(side):
        small, large = byte_tensor(0.5), byte_tensor(30)
        said.append(sizes())
        more = byte_tensor(60)
        said.append(sizes())
        del large
    torch.cuda.empty_cache()
    said.append(sizes())
    del more, small
    torch.cuda.empty_cache()
    said.append(sizes())
    return said + [sizes(1), sizes(2), torch._C._cuda_hasPrimaryContext(2)]


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
    """PyTorch's gauges count the segments of its own allocator only; xseg lists the address ranges of its blocks."""
    full = torch.cuda.get_device_properties(0).total_memory * 9 // 8 // (20 * MIB) * 20 * MIB
    side = torch.cuda.Stream()
    before = address_gauges()
    with torch.cuda.stream(side):
        kept = byte_tensor(30)
    grown, count = (after - old for after, old in zip(address_gauges(), before))
    if torch.cuda.get_allocator_backend() == "xseg":
        expect((grown, count) == before == (0, 0), (grown, count, before))
        ranges = reserved_addresses(side.cuda_stream)
        expect(all(full <= size <= full + 20 * MIB for size in ranges) and len(ranges) == IS_EXPANDABLE, ranges)
    else:
        expect(full <= grown <= full + 20 * MIB and count == 1 if IS_EXPANDABLE else grown == count == 0, (grown, count))
    del kept
    return []


def case_reserve_class():
    """A class is stored for each stream.  It shortens segments of PyTorch's own allocator, and has no effect on xseg."""
    total = torch.cuda.get_device_properties(0).total_memory
    tagged, has_class = torch.cuda.Stream(), ctypes.c_bool()
    METHODS.call("set_reserve_class", pointer(tagged.cuda_stream), b"short", ctypes.c_double(0.25))
    said, before = [], address_gauges()[0]
    for stream, name in ((tagged, b"short"), (tagged, b"long"), (torch.cuda.Stream(), b"")):
        METHODS.call("has_reserve_class", pointer(stream.cuda_stream), name, ctypes.byref(has_class))
        said.append(has_class.value)
    with torch.cuda.stream(tagged):
        kept = byte_tensor(30)
    if torch.cuda.get_allocator_backend() == "xseg":
        expect(all(size > total for size in reserved_addresses(tagged.cuda_stream)), "a segment is short")
    else:
        expect(address_gauges()[0] - before < total // 2, "the segment is long")
    del kept
    METHODS.call("set_reserve_class", pointer(tagged.cuda_stream), b"", ctypes.c_double(1.125))
    return said


def names(traceback_of):
    return None if traceback_of is None else sorted(
        {frame["name"] for frame in traceback_of} & {"byte_tensor", "case_context_for_pointer"})


def case_context_for_pointer():
    """The stack of a live block while it is recorded; None without a history, for other addresses, and after the free."""
    ask = torch.cuda.memory._allocation_traceback
    before = byte_tensor(3)
    said = [names(ask(before.data_ptr()))]
    torch.cuda.memory._record_memory_history(stacks="python")
    during = byte_tensor(3)
    small = byte_tensor(0.25)
    said += [names(ask(tensor.data_ptr())) for tensor in (before, during, small)]
    address = small.data_ptr()
    del small
    said += [names(ask(address)), names(ask(4096))]
    side = torch.cuda.Stream()
    simulator().xseg_sim_launch(side.cuda_stream, OPEN)
    pending = byte_tensor(3)
    pending.record_stream(side)
    address = pending.data_ptr()
    del pending
    said.append(names(ask(address)))
    side.synchronize()
    torch.cuda.memory._record_memory_history("state", context="state", stacks="python")
    state = byte_tensor(3)
    said.append(names(ask(state.data_ptr())))
    torch.cuda.memory._record_memory_history(context=None)
    without = byte_tensor(3)
    said.append(names(ask(without.data_ptr())))
    torch.cuda.memory._record_memory_history(enabled=None)
    after = byte_tensor(3)
    said.append(names(ask(after.data_ptr())))
    said.append(names(ask(during.data_ptr())))
    return said


def trace(*keys):
    taken = torch.cuda.memory._snapshot()["device_traces"][0]
    return [[entry.get(key) for key in ("action", *keys)] for entry in taken if entry["action"] != "snapshot"]


def case_compile_context():
    """What is compiled stands with what is allocated meanwhile; contexts nest, and need a history."""
    METHODS.call("push_compile_context", b"lost")
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    kept = [byte_tensor(3)]
    METHODS.call("push_compile_context", b"0/0")
    kept.append(byte_tensor(4))
    METHODS.call("push_compile_context", b"1/0 [#2]")
    kept.append(byte_tensor(5))
    METHODS.call("pop_compile_context")
    kept.append(byte_tensor(6))
    METHODS.call("pop_compile_context")
    METHODS.call("pop_compile_context")
    torch.cuda.memory._set_memory_metadata("phase")
    METHODS.call("push_compile_context", b"2/0")
    kept.append(byte_tensor(7))
    METHODS.call("pop_compile_context")
    kept.append(byte_tensor(8))
    torch.cuda.memory._set_memory_metadata("")
    return trace("size", "compile_context", "user_metadata")


def case_annotation():
    """What record_function() names is beside the history, with its stage and its device."""
    record = torch.profiler.record_function
    kept = byte_tensor(3), byte_tensor(3, "cuda:1")
    torch.cuda.memory._record_memory_history(context=None, clear_history=True, global_record_annotations=True)
    with record("forward"):
        kept = byte_tensor(3)
        with record("inner"):
            kept = byte_tensor(4)
    with torch.cuda.device(1), record("elsewhere"):
        kept = byte_tensor(3, "cuda:1")
    taken = torch.cuda.memory._snapshot()["external_annotations"]
    torch.cuda.memory._record_memory_history(enabled=None)
    with record("forward"):
        del kept
    expect(torch.cuda.memory._snapshot()["external_annotations"] == [], "recording has ended")
    taken = sorted(taken, key=lambda entry: entry["device"])
    for device in (0, 1):
        times = [entry["time_us"] for entry in taken if entry["device"] == device]
        expect(times == sorted(times), times)
    return [[entry[key] for key in ("device", "name", "stage")] for entry in taken
            if entry["name"] in ("forward", "inner", "elsewhere")]


def case_annotate_memory():
    """A text for a live block is an event of its own, unless nobody listens."""
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
    said = [[action, known.get(address), *rest]
            for action, address, *rest in trace("addr", "size", "stream", "user_metadata", "pool_id")]
    address = second.data_ptr()
    del second
    said += [type(refused(torch._C._cuda_annotateMemory, where, "nothing")).__name__
             for where in (address, 4096, small.data_ptr() + 8)]
    torch.cuda.memory._record_memory_history(context=None, clear_history=True, skip_actions=["annotate"])
    annotate(first, "skipped")
    return said + trace("user_metadata")


def case_use_on_oom():
    """When memory is short, a pool that offers itself serves others from its cache, and no other pool does.  PyTorch's serves
    from classic segments only."""
    total = torch.cuda.get_device_properties(0).total_memory
    said = []
    for is_offered, is_withdrawn in ((False, False), (True, False), (True, True)):
        pool = torch.cuda.MemPool(use_on_oom=is_offered)
        if is_withdrawn:
            first, second = pool.id
            METHODS.call("set_use_on_oom", 0, ctypes.c_uint64(first), ctypes.c_uint64(second), False)
        with torch.cuda.use_mem_pool(pool):
            byte_tensor(total // MIB * 3 // 5)
        try:
            held = byte_tensor(total // MIB // 2)
            said.append("served")
            said.append(sum(segment["active_size"] for segment in pool.snapshot()) // MIB)
            del held
        except torch.OutOfMemoryError:
            said.append("refused")
        del pool
        torch.cuda.empty_cache()
        said.append(current("reserved_bytes"))
    if IS_EXPANDABLE:
        is_ours = torch.cuda.get_allocator_backend() == "xseg"
        served = ["served", total // MIB // 2, 0] if is_ours else ["refused", 0]
        expect(said == ["refused", 0, *served, "refused", 0], said)
        return None
    return said


def case_no_split():
    """A pool that does not split gives a whole segment for each block."""
    said = []
    for is_whole in (False, True):
        pool = torch.cuda.MemPool(no_split=is_whole)
        with torch.cuda.use_mem_pool(pool):
            kept = [byte_tensor(3), byte_tensor(5), torch.empty(1000, dtype=torch.uint8, device="cuda"), byte_tensor(12)]
        with torch.cuda.use_mem_pool(pool, 1):
            kept.append(byte_tensor(3, "cuda:1"))
        blocks = [block for segment in pool.snapshot() for block in segment["blocks"]]
        said.append(sorted([block["size"], block["requested_size"], block["state"]] for block in blocks))
        first = kept[0].data_ptr()
        del kept
        with torch.cuda.use_mem_pool(pool):
            kept = byte_tensor(2)
        said.append([kept.data_ptr() == first, current("active_bytes"), current("reserved_bytes")])
        del kept, pool
        torch.cuda.empty_cache()
    return said


def tracked(program):
    """What a trace tracker hears of a program: action, device, block, bytes, stream, pool.  Which of several segments goes
    first is nobody's business."""
    METHODS.library.methods_listen(True)
    kept = program()
    METHODS.library.methods_listen(False)
    blocks, streams, pools = Numbers(), Numbers(0), Numbers((0, 0))
    said = []
    for action, device, address, size, stream, *pool, is_there in METHODS.heard():
        if ACTIONS[action] == "oom":
            said.append(["oom", device, address, size, streams.of(stream), pools.of(tuple(pool))])
            continue
        said.append([ACTIONS[action], device, blocks.of(address), size, streams.of(stream), pools.of(tuple(pool))])
        if ACTIONS[action] in LEAVING:
            blocks.forget(address)
        if torch.cuda.get_allocator_backend() == "xseg":
            expect(is_there, f"{said[-1]}: nothing is there by then")
    del kept
    runs = itertools.groupby(said, key=lambda entry: entry[0] in LEAVING)
    return [entry for goes, run_of in runs for entry in (sorted(run_of) if goes else run_of)]


def case_trace_tracker():
    """Order and kinds of what is told; memory that goes is still there when that is told."""
    METHODS.track()
    side = torch.cuda.Stream()

    def program():
        small, large = torch.empty(1000, dtype=torch.uint8, device="cuda"), byte_tensor(30)
        other = byte_tensor(3, "cuda:1")
        del small
        simulator().xseg_sim_launch(side.cuda_stream, OPEN)
        large.record_stream(side)
        del large, other
        side.synchronize()
        byte_tensor(40)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            byte_tensor(3)
        del pool
        torch.cuda.empty_cache()
        kept = byte_tensor(20)
        refused(byte_tensor, 1 << 20)
        with torch.cuda.stream(side):
            refused(byte_tensor, 1 << 19)
        return kept

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

    return [tracked(program), tracked(capture)]


def case_single_pages_are_segments():
    """Of a MemPool of single pages on xseg, each is told as a segment, which NCCL's hooks register; parts of one they leave."""
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
    told = [(ACTIONS[entry[0]], entry[3]) for entry in METHODS.heard() if ACTIONS[entry[0]].startswith("segment")]
    expect(told == [("segment_alloc", 30 << 20), ("segment_free", 30 << 20)], told)


class Mirror:
    """What a tracker that keeps account of a device believes: where memory is, and which blocks are in use."""

    def __init__(self):
        self.memory = {}  # address: bytes
        self.live, self.pending = {}, {}

    def take(self, action, address, size):
        held = {**self.live, **self.pending}
        if action in ("segment_alloc", "segment_map"):
            expect(not overlap(self.memory, address, size), (action, address, size))
            self.memory[address] = size
        elif action in LEAVING:
            expect(not overlap(held, address, size), (action, address, size, held))
            self.leave(address, size)
        elif action == "alloc":
            expect(not overlap(held, address, size), (action, address, size, held))
            expect(sum(overlap(self.memory, address, size)) == size, (action, address, size, self.memory))
            self.live[address] = size
        elif action == "free_requested":
            expect(self.live[address] == size, (action, address, size))
            self.pending[address] = self.live.pop(address)
        elif action == "free_completed":
            expect(self.pending.pop(address) == size, (action, address, size))

    def leave(self, address, size):
        expect(sum(overlap(self.memory, address, size)) == size, ("leave", address, size, self.memory))
        for base, length in list(self.memory.items()):
            if base < address + size and address < base + length:
                del self.memory[base]
                if base < address:
                    self.memory[base] = address - base
                if base + length > address + size:
                    self.memory[address + size] = base + length - address - size


def overlap(ranges, address, size):
    """How many bytes of each range lie in another one, where any do."""
    common = (min(base + length, address + size) - max(base, address) for base, length in ranges.items())
    return [number for number in common if number > 0]


def random_program(seed):
    """Blocks come and go on three streams and in two pools; what is left at the end."""
    chance = random.Random(seed)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    pools, live = [torch.cuda.MemPool() for _ in range(2)], []
    for step in range(400):
        with torch.cuda.stream(chance.choice(streams)), \
                torch.cuda.use_mem_pool(chance.choice(pools)) if chance.random() < 0.2 else contextlib.nullcontext():
            live.append(byte_tensor(chance.choice((0.001, 0.1, 1.5, 3, 12, 30, 45))))
        if chance.random() < 0.3:
            user = chance.choice(streams)
            simulator().xseg_sim_launch(user.cuda_stream, 1000)
            chance.choice(live).record_stream(user)
        while len(live) > 20 or (live and chance.random() < 0.4):
            live.pop(chance.randrange(len(live)))
        if step % 100 == 50:
            torch.cuda.empty_cache()
    return live, pools


def case_tracker_account():
    """A tracker that keeps account of memory and blocks is right at the end, and never hears a contradiction.  Memory that
    goes at once, and came in parts, is told of once by PyTorch, and by its parts on xseg."""
    METHODS.track()
    METHODS.library.methods_listen(True)
    live, pools = random_program(7)
    METHODS.library.methods_listen(False)
    mirror, count = Mirror(), collections.Counter()
    for action, device, address, size, *_ in METHODS.heard():
        if device == 0 and ACTIONS[action] != "oom":
            mirror.take(ACTIONS[action], address, size)
            count[ACTIONS[action]] += 1
    taken = torch.cuda.memory_snapshot()
    used = {block["address"]: block["requested_size"] for segment in taken for block in segment["blocks"]
            if block["state"] != "inactive"}
    expect(used == {**mirror.live, **mirror.pending}, (used, mirror.live, mirror.pending))
    expect(set(mirror.live) == {tensor.data_ptr() for tensor in live}, mirror.live)
    expect(sum(mirror.memory.values()) == torch.cuda.memory_reserved(), mirror.memory)
    for segment in taken:
        expect(sum(overlap(mirror.memory, segment["address"], segment["total_size"])) == segment["total_size"], segment)
    del live, pools
    del count["segment_unmap"]
    return dict(count)


def free_blocks():
    segments = ([[block["size"], block["requested_size"]] for block in segment["blocks"] if block["state"] == "inactive"]
                for segment in torch.cuda.memory_snapshot() if segment["device"] == 0)
    return sorted(blocks for blocks in segments if blocks)


def case_requested_sizes():
    """The requested size of free blocks after frees, splits and coalescing, on two streams and in pools, without a history."""
    said, side = [], torch.cuda.Stream()
    for unit in (500, 100 * 1000, 2 * MIB + 5):
        kept = [torch.empty(unit + 100 * number, dtype=torch.uint8, device="cuda") for number in range(12)]
        del kept[2], kept[6], kept[6]
        said.append(free_blocks())
        kept.append(torch.empty(unit // 2, dtype=torch.uint8, device="cuda"))
        said.append(free_blocks())
        for block in kept[3:5]:
            simulator().xseg_sim_launch(side.cuda_stream, OPEN)
            block.record_stream(side)
        del block, kept[3:5]
        said.append(free_blocks())
        side.synchronize()
        kept.append(torch.empty(unit * 3, dtype=torch.uint8, device="cuda"))
        said.append(free_blocks())
        with torch.cuda.stream(side):
            kept += [torch.empty(unit * factor, dtype=torch.uint8, device="cuda") for factor in (1, 2, 1, 3, 1)]
        del kept[-4], kept[-2]
        torch.cuda.empty_cache()
        said.append(free_blocks())
        with torch.cuda.stream(side):
            kept.append(torch.empty(unit * 4, dtype=torch.uint8, device="cuda"))
        said.append(free_blocks())
        del kept
        said.append(free_blocks())
        torch.cuda.empty_cache()
    return said


def case_requested_sizes_at_an_address():
    """The part of a free block in front of an address."""
    found, said = ctypes.c_uint64(), []
    for bytes_held in (40 * MIB + 7, 100 * 1000):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            held = torch.empty(bytes_held, dtype=torch.uint8, device="cuda")
            address = held.data_ptr()
            del held
            METHODS.call("allocate_at", ctypes.c_size_t(1300 if bytes_held < MIB else MIB + 9), pointer(address + 2048),
                         ctypes.byref(found))
            said.append(free_blocks())
            METHODS.call("free", pointer(address + 2048))
            said.append(free_blocks())
        del pool
        torch.cuda.empty_cache()
    return said


def case_requested_sizes_after_a_restore():
    """Each free block of a checkpoint has the size that it had then."""
    said = []
    for unit in (700, 3 * MIB + 7):
        pool = torch.cuda.graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        kept = [torch.empty(unit + 100 * number, dtype=torch.uint8, device="cuda") for number in range(6)]
        del kept[1], kept[3]
        checkpoint, live = torch._C._cuda_getCheckpointState(0, pool), [tensor.data_ptr() for tensor in kept]
        kept += [torch.empty(int(unit * factor), dtype=torch.uint8, device="cuda") for factor in (0.5, 2)]
        del kept[0]
        torch._C._cuda_endAllocateToPool(0, pool)
        for tensor in kept:
            torch._C._free_And_Remove_DeleterFn(tensor.untyped_storage()._cdata)
        said.append(free_blocks())
        torch._C._cuda_setCheckpointPoolState(0, checkpoint, [], [])
        said.append(free_blocks())
        torch.cuda.empty_cache()
        said.append(free_blocks())
        for address in live:
            torch.cuda.caching_allocator_delete(address)
        torch._C._cuda_releasePool(0, pool)
        torch.cuda.empty_cache()
    return said


def case_raw_pointers():
    side = torch.cuda.Stream()
    take, give = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
    first, second = take(1000), take(30 * MIB, stream=side)
    other = take(3 * MIB, device=1)
    said = [take(0), current("requested_bytes"), current("allocated_bytes"), current("reserved_bytes", 1)]
    said.append(sorted([segment["device"], segment["stream"] == side.cuda_stream, segment["active_size"]]
                       for segment in torch.cuda.memory_snapshot() if segment["active_size"]))
    give(0)
    said += [type(refused(give, where)).__name__ for where in (first + 512, 4096)]
    for raw in (first, second, other):
        give(raw)
    said.append(type(refused(give, second)).__name__)
    again = take(29 * MIB, stream=side)
    said += [again == second, current("allocated_bytes"), current("allocated_bytes", 1)]
    give(again)
    return said


def case_out_of_memory_observer():
    """Device, bytes, what may be taken and what is free; with a fraction, too."""
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *what: seen.append(what))
    total = torch.cuda.get_device_properties(0).total_memory
    kept = byte_tensor(100)
    for size, device in ((total, 0), (total + 3 * MIB, 1), (1 << 50, 0), (total // 2, 0)):
        if size == total // 2:
            torch.cuda.set_per_process_memory_fraction(0.5)
        text = str(refused(byte_tensor, size / MIB, f"cuda:{device}"))
        expect(text.startswith("CUDA out of memory. Tried to allocate "), text)
        seen.append(text.split(". ")[1] + text.split(". ")[2][:40])
    torch.cuda.set_per_process_memory_fraction(1.0)
    del kept
    return seen


def case_free_memory_callback():
    """A registered callback frees memory, which then serves the request."""
    METHODS.call("hold", ctypes.c_size_t(1200 * MIB))
    METHODS.library.methods_arm_callback(True)
    said = [current("allocated_bytes") // MIB]
    kept = byte_tensor(1500)
    said += [current("allocated_bytes") // MIB, METHODS.library.methods_arm_callback(False)]
    del kept
    return said


def case_conditional_bodies():
    """Each body of a conditional node has separate memory in the graph's pool, also if an earlier body has freed the same size."""
    graph, choice = torch.cuda.CUDAGraph(), torch.ones((), dtype=torch.bool, device="cuda")
    before, said = current("reserved_bytes"), []
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        byte_tensor(40)
        for _ in range(2):
            graph.begin_capture_to_if_node(choice)
            byte_tensor(40)
            graph.end_capture_to_conditional_node()
            said.append((current("reserved_bytes") - before) // MIB)
        byte_tensor(40)
    said.append((current("reserved_bytes") - before) // MIB)
    expect(said == [80, 120, 120], said)
    del graph
    torch.cuda.empty_cache()
    return said + [current("reserved_bytes") // MIB]


def case_accelerator():
    """Functions of torch.accelerator find the allocator by the device type."""
    kept = byte_tensor(30)
    memory = torch.accelerator.memory
    said = [memory.memory_allocated(), memory.memory_reserved(), memory.memory_stats()["allocation.all.current"],
            memory.get_memory_info() == torch.cuda.mem_get_info()]
    del kept
    memory.empty_cache()
    memory.reset_peak_memory_stats()
    return said + [memory.memory_reserved(), memory.max_memory_allocated()]


def case_host_memory():
    """PyTorch adds pinned memory to snapshots of any allocator."""
    torch.cuda.memory._record_memory_history(record_pinned_host_memory=True, clear_history=True)
    kept = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    taken = torch.cuda.memory._snapshot()
    said = [[segment["total_size"] for segment in taken["host_segments"] if segment["address"] == kept.data_ptr()],
            [[entry["action"], entry["size"]] for entry in taken["host_traces"]]]
    torch.cuda.memory._record_memory_history(enabled=None)
    return said


def case_memory_info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    said = []
    kept = byte_tensor(100)
    for device in range(2):
        METHODS.call("memory_info", device, ctypes.byref(free), ctypes.byref(total))
        expect((free.value, total.value) == torch.cuda.mem_get_info(device), (free.value, total.value))
        said += [total.value - free.value, total.value]
    del kept
    return said


def case_simple_pointer():
    is_simple = ctypes.c_bool()
    said = []
    for size in (0, 1000, 30 * MIB):
        METHODS.call("is_simple", ctypes.c_size_t(size), ctypes.byref(is_simple))
        said.append(is_simple.value)
    return [*said, current("allocated_bytes")]


def case_own_allocator():
    """Memory of a MemPool's own allocator: who was asked for what, and that all of it comes back."""
    own = torch.cuda.memory.CUDAPluggableAllocator(METHODS.path, "methods_own_alloc", "methods_own_free")
    pool = torch.cuda.MemPool(own.allocator())
    before = current("reserved_bytes")
    METHODS.heard("own_calls")
    with torch.cuda.use_mem_pool(pool):
        small, large = torch.empty(1000, dtype=torch.uint8, device="cuda"), byte_tensor(30)
        again = byte_tensor(3)
        with torch.cuda.device(1):
            elsewhere = byte_tensor(3, "cuda:1")
    made = METHODS.heard("own_calls")
    with torch.cuda.use_mem_pool(pool, 1):
        second = byte_tensor(3, "cuda:1")
    outside = byte_tensor(3)
    made += METHODS.heard("own_calls")
    segments = sorted([segment["device"], segment["total_size"], segment["is_expandable"], segment["allocated_size"]]
                      for segment in pool.snapshot())
    said = [[call[0], call[1], call[3]] for call in made] + segments + [current("reserved_bytes") - before]
    expect(large.data_ptr() in {call[2] for call in made}, "a large block begins its segment")
    del small, large, again, elsewhere, second, outside
    del pool
    torch.cuda.empty_cache()
    gone = METHODS.heard("own_calls")
    expect(sorted(call[2] for call in gone) == sorted(call[2] for call in made), "what was taken is what was freed")
    said += sorted([call[0], call[1], call[3]] for call in gone)
    pool = torch.cuda.MemPool(own.allocator())
    with torch.cuda.use_mem_pool(pool):
        outlives, cached = byte_tensor(30), byte_tensor(3)
    del cached, own, pool
    torch.cuda.empty_cache()
    said.append([[call[0], call[3]] for call in METHODS.heard("own_calls")])
    del outlives
    torch.cuda.empty_cache()
    return said + [[call[0], call[3]] for call in METHODS.heard("own_calls")]


def ends_in_a_report(stream, tensor):
    """What the simulator says, in a child, of work that touches a tensor; empty if it is allowed."""
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 2)
            signal.signal(signal.SIGABRT, signal.SIG_DFL)
            simulator().xseg_sim_launch_on(stream, 1, tensor.data_ptr(), 4)
            os._exit(0)
        is_aborted = os.WIFSIGNALED(os.waitpid(child, 0)[1])
        said.seek(0)
        text = said.read()
        expect(is_aborted == bool(text), text)
        return text


def case_own_allocator_at_its_limits():
    """An allocator of a pool's own that has no memory is an out-of-memory; in a capture it is called as well."""
    own = torch.cuda.memory.CUDAPluggableAllocator(METHODS.path, "methods_own_alloc", "methods_own_free")
    pool = torch.cuda.MemPool(own.allocator())
    keys = ("num_ooms", "num_alloc_retries", "reserved_bytes.all.current", "active_bytes.all.current")
    before = torch.cuda.memory_stats()
    with torch.cuda.use_mem_pool(pool):
        said = [type(refused(byte_tensor, 4096)).__name__]
        kept = byte_tensor(30)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        inside = byte_tensor(30)
        passing = byte_tensor(12)
        del passing
    graph.replay()
    torch.cuda.synchronize()
    said += [[call[0], call[3]] for call in METHODS.heard("own_calls")]
    now = torch.cuda.memory_stats()
    said += [now[key] - before[key] for key in keys]
    del kept, inside, graph, own, pool
    torch.cuda.empty_cache()
    return said + sorted([call[0], call[3]] for call in METHODS.heard("own_calls")) + [current("reserved_bytes")]


def case_peers():
    """A device may touch what it was allowed to, mapped before or after, and nothing else."""
    streams = [torch.cuda.Stream(device) for device in range(3)]
    before = byte_tensor(3, "cuda:1")

    def touches(device, tensor):
        with torch.cuda.device(device):
            return ends_in_a_report(streams[device].cuda_stream, tensor) == ""

    said = [touches(1, before), touches(0, before)]
    METHODS.call("enable_peer_access", 0, 1)
    after, large = byte_tensor(0.5, "cuda:1"), byte_tensor(100, "cuda:1")
    mine = byte_tensor(3)
    said += [touches(0, tensor) for tensor in (before, after, large)]
    said += [touches(2, before), touches(1, mine)]
    METHODS.call("enable_peer_access", 0, 1)
    METHODS.call("enable_peer_access", 1, 2)
    third = byte_tensor(3, "cuda:2")
    said += [touches(1, third), touches(0, third), touches(2, before)]
    said += [type(refused(METHODS.call, "enable_peer_access", 0, 7)).__name__]
    pool = torch.cuda.MemPool()
    with torch.cuda.device(1), torch.cuda.use_mem_pool(pool):
        within = byte_tensor(3, "cuda:1")
    said.append(touches(0, within))
    return said


def case_copies():
    """Copies on one device, between peers, and between devices that are none."""
    pattern = torch.arange(3 * MIB, dtype=torch.int64).to(torch.uint8)
    first, twin, second, third = (byte_tensor(3, f"cuda:{device}") for device in (0, 0, 1, 2))
    first.copy_(pattern)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    METHODS.call("enable_peer_access", 0, 1)
    METHODS.call("enable_peer_access", 1, 0)
    said = []
    for target, is_peer in ((twin, False), (twin, True), (second, True), (second, False), (third, False)):
        target.zero_()
        torch.cuda.synchronize(target.device)
        METHODS.call("memcpy", pointer(target.data_ptr()), target.device.index, pointer(first.data_ptr()), 0,
                     ctypes.c_size_t(3 * MIB), pointer(stream.cuda_stream), is_peer)
        stream.synchronize()
        said.append(torch.equal(target.cpu(), pattern))
    twin.copy_(torch.zeros(3 * MIB, dtype=torch.uint8))
    METHODS.call("copy_data", pointer(twin.data_ptr()), pointer(first.data_ptr()), ctypes.c_size_t(2 * MIB))
    torch.cuda.synchronize()
    said.append([torch.equal(twin.cpu()[:2 * MIB], pattern[:2 * MIB]), int(twin.cpu()[2 * MIB + 1])])
    return said


def case_no_peers():
    """Where no device can use another's memory, to allow it is refused, and copies go all the same; XSEG_SIM_PEERS=0."""
    pattern = torch.arange(3 * MIB, dtype=torch.int64).to(torch.uint8)
    first, second = byte_tensor(3), byte_tensor(3, "cuda:1")
    first.copy_(pattern)
    torch.cuda.synchronize()
    said = [type(refused(METHODS.call, "enable_peer_access", 0, 1)).__name__]
    METHODS.call("memcpy", pointer(second.data_ptr()), 1, pointer(first.data_ptr()), 0, ctypes.c_size_t(3 * MIB),
                 pointer(torch.cuda.current_stream(0).cuda_stream), False)
    torch.cuda.synchronize(0)
    said.append(torch.equal(second.cpu(), pattern))
    return said + [torch.equal(first.to("cuda:1").cpu(), pattern), byte_tensor(100, "cuda:1").numel()]


def case_allocate_with_address():
    """A block at the address that is asked for, if that is free in the pool that the thread is in."""
    found = ctypes.c_uint64()

    def at(address, size):
        METHODS.call("allocate_at", ctypes.c_size_t(size), pointer(address), ctypes.byref(found))
        return found.value == address

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        first = byte_tensor(64)
        address = first.data_ptr()
        said = [type(refused(at, address, 4 * MIB)).__name__]
        del first
        said += [at(address, 4 * MIB), at(address + 16 * MIB, 4 * MIB)]
        said.append([current("active_bytes"), current("reserved_bytes"), current("allocation")])
        said.append(type(refused(at, address + 16 * MIB, 4 * MIB)).__name__)
        said.append(type(refused(at, address + 100 * MIB, 8 * MIB)).__name__)
        between = byte_tensor(12)
        said.append(between.data_ptr() == address + 4 * MIB)
        METHODS.call("free", pointer(address + 16 * MIB))
        said.append(at(address + 16 * MIB, 48 * MIB))
    METHODS.call("free", pointer(address))
    METHODS.call("free", pointer(address + 16 * MIB))
    said.append(current("active_bytes"))
    said.append(type(refused(at, address, 4 * MIB)).__name__)
    with torch.cuda.use_mem_pool(pool):
        said += [type(refused(at, address + 100, 4 * MIB)).__name__, type(refused(at, address, 1000)).__name__]
        small = byte_tensor(0.5).data_ptr()
        said.append(at(small + 4096, 1000))
        METHODS.call("free", pointer(small + 4096))
        with torch.cuda.stream(torch.cuda.Stream()):
            said.append(type(refused(at, address, 4 * MIB)).__name__)
        METHODS.call("allocate_at", ctypes.c_size_t(0), pointer(address), ctypes.byref(found))
        said.append(found.value)
    del between
    return said


def case_rejection():
    """A growth beyond the device is refused at once; observers are told, trackers are not.  PyTorch tells observers in
    threads of its own."""
    METHODS.track()
    METHODS.call("observe_rejections")
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)
    METHODS.library.methods_listen(True)
    mode = f"expandable_segments:{IS_EXPANDABLE}"
    total = torch.cuda.get_device_properties(0).total_memory
    kept = byte_tensor(100)
    byte_tensor(200)
    keys = ("num_oom_rejections", "num_ooms", "num_alloc_retries", "reserved_bytes.all.current")
    before = torch.cuda.memory_stats()
    torch.cuda.memory._set_allocator_settings(f"{mode},throw_on_cudamalloc_oom:True")
    said = [type(refused(byte_tensor, total / MIB)).__name__, type(refused(byte_tensor, total / MIB - 99.5)).__name__]
    torch.cuda.memory._set_allocator_settings(f"{mode},per_process_memory_fraction:0.5")
    said += [type(refused(byte_tensor, total / MIB * 0.5 + 1)).__name__, torch.cuda.get_per_process_memory_fraction()]
    torch.cuda.memory._set_allocator_settings(f"{mode},per_process_memory_fraction:1.0")
    stats = torch.cuda.memory_stats()
    said += [stats[key] - before[key] for key in keys]
    byte_tensor(200)
    torch.cuda.memory._set_allocator_settings(f"{mode},throw_on_cudamalloc_oom:False")
    said.append(type(refused(byte_tensor, total / MIB)).__name__)
    heard, told = METHODS.heard(), []
    for _ in range(1000):
        told = [entry[:4] for entry in heard if entry[7] == REJECTED]
        if len(told) == 3:
            break
        time.sleep(0.01)
        heard += METHODS.heard()
    METHODS.library.methods_listen(False)
    del kept
    said += sorted(told) + [[ACTIONS[entry[0]], entry[3]] for entry in heard if entry[7] != REJECTED]
    return said + trace("size", "device_free")


def run(name):
    torch.cuda.empty_cache()
    try:
        return {"said": globals()["case_" + name]()}
    except Exception:  # pylint: disable=broad-exception-caught
        return {"failed": traceback.format_exc()}
    finally:
        METHODS.library.methods_listen(False)
        METHODS.heard()
        torch.cuda.memory._record_memory_history(enabled=None)


def main():
    global METHODS  # pylint: disable=global-statement
    METHODS = Methods(sys.argv[1])
    torch.cuda.init()
    every = [name.removeprefix("case_") for name in globals() if name.startswith("case_")]
    for name in sys.argv[2:] or [name for name in every if name not in ELSEWHERE]:
        print(name, json.dumps(run(name)), flush=True)


if __name__ == "__main__":
    main()
