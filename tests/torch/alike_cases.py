# SPDX-License-Identifier: MIT
"""Small programs that print properties of pools, history and child processes: alike_cases.py NAME...

alike.py verifies that the output is equal on each allocator.
"""
import gc
import os
import sys

import torch

from tensors import MIB, byte_tensor

if os.environ.get("XSEG_TORCH") == "1":
    import xseg.torch  # noqa: F401 pylint: disable=unused-import


def report(*values):
    print("=", *values, flush=True)


def attempt(function):
    """Returns the result of a function, or the type of its error and the first words of the message."""
    try:
        return function()
    except (RuntimeError, ValueError) as error:
        return type(error).__name__, " ".join(str(error).split()[:4])


def in_child(function):
    child = os.fork()
    if child == 0:
        report("child:", attempt(function))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def held_objects():
    held = {"graph": torch.cuda.CUDAGraph(), "pool": torch.cuda.MemPool(),
            "options": torch.cuda.MemPool(use_on_oom=True, no_split=True), "tensor": byte_tensor(4)}
    with torch.cuda.graph(held["graph"]):
        held["output"] = byte_tensor(4)
    with torch.cuda.use_mem_pool(held["pool"]):
        held["inside"] = byte_tensor(4)
    return held


def uninitialized():
    C = torch._C
    pool = torch.cuda.graph_pool_handle()
    for name, function in (
            ("memory_snapshot", lambda: C._cuda_memorySnapshot(None)["segments"]),
            ("traces", lambda: C._cuda_memorySnapshot(None)["device_traces"]),
            ("settings", lambda: C._cuda_memorySnapshot(None)["allocator_settings"]["expandable_segments"]),
            ("snapshot of a pool", lambda: C._cuda_memorySnapshot((1, 2))["segments"]),
            ("empty_cache", C._cuda_emptyCache),
            ("memory_stats", torch.cuda.memory_stats),
            ("memory_stats of device 0", lambda: C._cuda_memoryStats(0)),
            ("reset_peak", lambda: C._cuda_resetPeakMemoryStats(0)),
            ("reset_accumulated", lambda: C._cuda_resetAccumulatedMemoryStats(0)),
            ("fraction", lambda: C._cuda_setMemoryFraction(0.5, 0)),
            ("get_fraction", lambda: C._cuda_getMemoryFraction(0)),
            ("enable", lambda: C._cuda_cudaCachingAllocator_enable(True)),
            ("release", lambda: C._cuda_releasePool(0, pool)),
            ("end", lambda: C._cuda_endAllocateToPool(0, pool)),
            ("metadata", lambda: torch.cuda.memory._set_memory_metadata("early")),
            ("raw_delete", lambda: C._cuda_cudaCachingAllocator_raw_delete(0)),
            ("is initialized", torch.cuda.is_initialized)):
        # The messages of both allocators differ if CUDA is not initialized.
        result = attempt(function)
        report(name, result[0] if isinstance(result, tuple) else result)
    torch.cuda.memory._record_memory_history(stacks="python")
    byte_tensor(3)
    report("initialized", [entry["action"] for entry in C._cuda_memorySnapshot(None)["device_traces"][0]])


def children():
    """A forked child destroys objects of its parent, and calls methods of the allocator."""
    held = held_objects()

    def drop(*names):
        for name in names:
            del held[name]
        gc.collect()

    for names in (["graph"], ["output", "graph"], ["pool"], ["options"], ["tensor"], ["inside", "tensor", "output"]):
        report(*names, in_child(lambda names=names: drop(*names)))
    side = torch.cuda.Stream()
    address = held["tensor"].data_ptr()
    for name, function in (
            ("allocate", lambda: byte_tensor(1)),
            ("raw allocate", lambda: torch._C._cuda_cudaCachingAllocator_raw_alloc(1000, 0)),
            ("raw delete", lambda: torch._C._cuda_cudaCachingAllocator_raw_delete(address)),
            ("release", lambda: torch._C._cuda_releasePool(0, held["pool"].id)),
            ("empty_cache", torch._C._cuda_emptyCache),
            ("reset", lambda: torch._C._cuda_resetPeakMemoryStats(0)),
            ("record_stream", lambda: held["tensor"].record_stream(side)),
            ("use_count", lambda: held["pool"].use_count()),
            ("metadata", lambda: torch.cuda.memory._set_memory_metadata("child"))):
        report(name, in_child(function))
    del side
    child = os.fork()
    if child == 0:
        sys.exit(0)
    report("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    held.clear()
    torch.cuda.empty_cache()
    report("parent", torch.cuda.memory_allocated(), torch.cuda.memory_reserved())


def by_pools():
    statistics = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]
    return sorted((key, sorted(groups.items())) for key, groups in statistics.items())


def allocate_from(pool, mib):
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    byte_tensor(mib)
    torch._C._cuda_endAllocateToPool(0, pool)
    torch._C._cuda_releasePool(0, pool)


def pool_statistics():
    """reserved_bytes_by_private_pools: resets between two reads, destroyed pools, reused IDs."""
    unused = torch.cuda.MemPool()
    report("empty", by_pools())
    del unused
    report("destroyed without memory", by_pools())
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = byte_tensor(4)
    torch.cuda.reset_accumulated_memory_stats()
    report("allocated, and reset before the first read", by_pools())
    del held, pool
    torch.cuda.reset_peak_memory_stats()
    report("destroyed and reset", by_pools())
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        byte_tensor(1)
    del pool
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
    report("created, destroyed and reset", by_pools())
    reused = torch.cuda.graph_pool_handle()
    for mib in (4, 24, 44, 4):
        allocate_from(reused, mib)
        report("reused ID", mib, by_pools())
        torch.cuda.empty_cache()
        report("emptied", by_pools())
        if mib == 24:
            torch.cuda.reset_peak_memory_stats()
            report("peak reset", by_pools())
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, reused)
    report("no memory", by_pools())
    torch.cuda.reset_accumulated_memory_stats()
    report("no memory, reset", by_pools())
    torch._C._cuda_endAllocateToPool(0, reused)
    torch._C._cuda_releasePool(0, reused)
    report("released", by_pools())


def pool_ids():
    """Whether an ID can be reused after its pool was released."""
    pool = torch.cuda.graph_pool_handle()
    torch.cuda.init()

    def begin():
        return "rejected" if attempt(lambda: torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)) else "accepted"

    def end():
        torch._C._cuda_endAllocateToPool(0, pool)
        torch._C._cuda_releasePool(0, pool)

    report("new", begin(), attempt(lambda: torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool))[0])
    report("without blocks", torch._C._cuda_checkPoolLiveAllocations(0, pool, set()))
    held = byte_tensor(4)
    torch._C._cuda_endAllocateToPool(0, pool)
    for _ in range(2 if torch.cuda.get_allocator_backend() == "native" else 1):
        torch._C._cuda_releasePool(0, pool)  # PyTorch's allocator counts also the second begin, which it rejects
    report("allocated block", begin(), torch._C._cuda_checkPoolLiveAllocations(0, pool, {held.data_ptr()}))
    torch.cuda.empty_cache()
    report("allocated block, empty cache", begin())
    del held
    report("cached memory", begin())
    torch.cuda.empty_cache()
    report("destroyed", begin())
    byte_tensor(4)
    end()
    report("cached memory", begin())
    report("out of memory", attempt(lambda: byte_tensor(1 << 30))[0])
    report("destroyed by the out-of-memory fallback", begin())
    end()
    report("unknown", attempt(lambda: torch._C._cuda_checkPoolLiveAllocations(0, (1000, 0), set())))


def backend():
    """`backend:native` in the initial and in a later string; only the name of the allocator differs."""
    host = torch.arange(1000).pin_memory()
    expected = "xseg" if os.environ.get("XSEG_TORCH") == "1" else "native"
    report(host.is_pinned(), host.to("cuda").sum().item(), torch.cuda.get_allocator_backend() == expected)
    torch.cuda.memory_snapshot()
    torch.cuda.memory._snapshot()
    before = torch.cuda.memory._snapshot()["allocator_settings"]
    report(before["expandable_segments"], before.get("last_allocator_settings", before))
    held = byte_tensor(30)
    torch.cuda.memory._set_allocator_settings("backend:native,roundup_power2_divisions:4")
    rounded = torch.empty(4200, dtype=torch.uint8, device="cuda")
    report(torch.cuda.memory_allocated())
    del rounded
    report(torch.cuda.memory_allocated())
    report(attempt(lambda: torch.cuda.memory._set_allocator_settings("backend:cudaMallocAsync")))
    report(attempt(lambda: torch.cuda.memory._set_allocator_settings("backend:other")))
    del held


def capture_out_of_memory():
    """An out-of-memory error during a capture reaches the caller, and later captures and allocations succeed."""
    tensors = []

    def capture(graph, function):
        with torch.cuda.graph(graph):
            tensors.append(byte_tensor(20))
            function()
            tensors.append(byte_tensor(4))

    def state():
        return (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_ooms"],
                torch.cuda.is_current_stream_capturing())

    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    report("ends the capture", attempt(lambda: capture(graphs[0], lambda: byte_tensor(1 << 30))), state())
    capture(graphs[1], lambda: report("is caught within", attempt(lambda: byte_tensor(1 << 30)), state()))
    graphs[1].replay()
    report("replayed", state())
    capture(graphs[2], lambda: None)
    report("next", state())
    tensors.clear()
    graphs.clear()
    gc.collect()
    torch.cuda.empty_cache()
    report("destroyed", state())


def actions():
    return [(entry["action"], entry.get("user_metadata")) for entry in torch.cuda.memory._snapshot()["device_traces"][0]]


def max_entries():
    """A snapshot contains the newest max_entries events of a device, for all streams and pools together."""
    torch.cuda.memory._record_memory_history(max_entries=5, stacks="python")
    held = [byte_tensor(1), byte_tensor(30), torch.empty(1000, device="cuda")]
    with torch.cuda.stream(torch.cuda.Stream()):
        byte_tensor(3)
    report("two streams", actions())
    report("snapshot events", actions())
    held.clear()
    report("frees", actions())
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(max_entries=40, stacks="python")
    for _ in range(30):
        byte_tensor(1)
    report("many events", len(actions()))
    torch.cuda.memory._record_memory_history(None)
    for entries in (0, 1, 2, 3):
        torch.cuda.memory._record_memory_history(max_entries=entries, context=None)
        held = byte_tensor(3)
        report(entries, actions(), actions())
        del held
        report("freed", actions())
        torch.cuda.memory._record_memory_history(None)

    def have_frames():
        return [len(block["frames"]) > 0 for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]
                if block["state"] == "active_allocated"]

    for mode in ("state", "all"):
        torch.cuda.memory._record_memory_history(mode, stacks="python")
        held = byte_tensor(3)
        report(mode, actions(), have_frames())
        del held
        report("freed", actions())
    held = [byte_tensor(3) for _ in range(3)]
    torch.cuda.memory._record_memory_history(None)
    del held[1]
    held.append(byte_tensor(3))
    report("after recording", have_frames())


def metadata():
    """Metadata set before CUDA is initialized is recorded with later events, including snapshots."""
    torch.cuda.memory._set_memory_metadata("before")
    torch.cuda.memory._record_memory_history(stacks="python")
    held = byte_tensor(1)
    report(torch.cuda.memory._get_memory_metadata(), actions())
    torch.cuda.memory._set_memory_metadata("after")
    del held
    report(actions())
    torch.cuda.memory._set_memory_metadata("")
    byte_tensor(1)
    report(actions())
    torch.cuda.memory._record_memory_history(None)


def annotations():
    """Strings with a NUL; annotations before the first allocation, on a device without allocations, and of unallocated memory."""
    torch.cuda.memory._record_memory_history(context=None, global_record_annotations=True)

    def external():
        entries = torch.cuda.memory._snapshot()["external_annotations"]
        return [(entry["name"], entry["stage"], entry["device"]) for entry in entries]

    with torch.profiler.record_function("## before ##"):
        pass
    with torch.cuda.device(1), torch.profiler.record_function("## other device ##"):
        pass
    with torch.profiler.record_function("## first ##"):
        held = byte_tensor(1)
    report(external())
    traces = torch.cuda.memory._snapshot()["device_traces"]
    report([[entry["action"] for entry in trace] for trace in traces])
    for text in ("", "a\0b", "\0head", "tail\0", "#7", "x" * 300 + " #1\0y"):
        torch.cuda.memory._set_memory_metadata(text)
        byte_tensor(1)
        torch.cuda.memory._annotate_tensor(held, text)
        report(repr(torch.cuda.memory._get_memory_metadata()), [repr(entry) for entry in actions()[-5:]])
    torch.cuda.memory._set_memory_metadata("")
    address = held.untyped_storage().data_ptr()
    annotate = torch._C._cuda_annotateMemory
    report("inside a block", attempt(lambda: annotate(address + 512, "text")))
    del held
    for name, invalid in (("freed", address), ("null", 0), ("unknown", 12345)):
        report(name, attempt(lambda invalid=invalid: annotate(invalid, "text")))
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(context=None, max_entries=3, global_record_annotations=True)
    for index in range(4):
        with torch.profiler.record_function(f"## {index} ##"):
            byte_tensor(1)
    report(external(), actions())
    torch.cuda.memory._record_memory_history(None)
    report(external())


def addresses():
    """Allocations at an address are marked in the history; errors have PyTorch's messages."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        occupied = torch.empty(4096, dtype=torch.uint8, device="cuda")
        storage = torch.empty(2048, dtype=torch.uint8, device="cuda").untyped_storage()
    freed_address = storage.data_ptr()
    storage.resize_(0)

    def resize(size, address):
        with torch.cuda.use_mem_pool(pool):
            storage._resize_with_addr_(size, address)

    for name, size, address in (("occupied", 4096, occupied.data_ptr()), ("unaligned", 2048, freed_address + 1),
                                ("null", 2048, 0), ("too large", 1 << 40, freed_address), ("unknown", 2048, 512)):
        report(name, attempt(lambda size=size, address=address: resize(size, address)))
    torch.cuda.memory._record_memory_history(context=None)
    torch.cuda.memory._set_memory_metadata("resize")
    resize(2048, freed_address)
    byte_tensor(1)
    torch.cuda.memory._set_memory_metadata("")
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    keys = ("action", "size", "user_metadata", "internal_metadata")
    report(storage.data_ptr() == freed_address, [[entry.get(key) for key in keys] for entry in events
                                                 if entry["size"] != 20 * MIB and not entry["action"].startswith("segment")])
    torch.cuda.memory._record_memory_history(None)


def syncs():
    """num_sync_all_streams of devices without memory, and after pools without memory are destroyed."""
    torch.cuda.init()

    def counts():
        return [torch.cuda.memory_stats(device)["num_sync_all_streams"] for device in range(2)]

    report("init", counts())
    torch.cuda.empty_cache()
    report("no memory", counts())
    for device in range(2):
        torch.cuda.reset_accumulated_memory_stats(device)
        torch.cuda.reset_peak_memory_stats(device)
    report("reset", counts())
    for name, use in (("unused", lambda: None), ("used", lambda: byte_tensor(1))):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            use()
        del pool
        gc.collect()
        report("destroyed pool,", name, counts())
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = byte_tensor(1)
    del pool
    gc.collect()
    report("pool with a block", counts())
    del held
    torch.cuda.empty_cache()
    report("emptied", counts())
    pool = torch.cuda.graph_pool_handle()
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    torch._C._cuda_endAllocateToPool(0, pool)
    torch._C._cuda_releasePool(0, pool)
    report("graph pool", counts())
    torch.cuda.empty_cache()
    report("emptied", counts())
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.cuda.empty_cache()
    report("in a capture", counts())
    with torch.cuda.device(1):
        byte_tensor(1)
    torch.cuda.empty_cache()
    report("both devices used", counts())


def streams():
    """A stream of another device that uses a block, or allocates one."""
    other_stream, own_stream = torch.cuda.Stream(0), torch.cuda.Stream(1)

    def state():
        stats = torch.cuda.memory_stats(1)
        return stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]

    def freed_block(*using):
        with torch.cuda.device(1):
            held = byte_tensor(1)
        for stream in using:
            held.record_stream(stream)
        address = held.data_ptr()
        del held
        report("freed", state())
        with torch.cuda.device(1):
            again = byte_tensor(1)
        report("the same block is reused", again.data_ptr() == address, state())

    for name, using in (("none", ()), ("stream of another device", (other_stream,)),
                        ("streams of both devices", (other_stream, own_stream, other_stream))):
        report(name)
        freed_block(*using)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        with torch.cuda.device(1):
            byte_tensor(1)
        torch.cuda.empty_cache()
        report("emptied", state(), torch.cuda.memory_reserved(1))
    raw = torch.cuda.caching_allocator_alloc(1000, 1, other_stream)
    report("allocated", raw > 0, state())
    torch.cuda.caching_allocator_delete(raw)
    report("freed", state(), torch.cuda.caching_allocator_alloc(1000, 1, other_stream) == raw)
    report("host", attempt(lambda: torch.empty(1).record_stream(other_stream))[0],
           attempt(lambda: byte_tensor(0).record_stream(other_stream)))


def observers():
    """The exception of an observer propagates to the caller of the failed allocation."""
    seen = []

    def observer(*arguments):
        seen.append(arguments[:2])
        raise ValueError("raised by the observer")

    torch._C._cuda_attach_out_of_memory_observer(observer)
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append("second"))
    for name, function in (("tensor", lambda: byte_tensor(1 << 20)), ("again", lambda: byte_tensor(1 << 20)),
                       ("raw", lambda: torch.cuda.caching_allocator_alloc(1 << 40)), ("served", lambda: byte_tensor(1).numel())):
        report(name, attempt(function), len(seen), torch.cuda.memory_stats()["num_ooms"])
    report(seen)


def segment_frames():
    """The frames of a segment are those of the allocation that mapped it.  A block of 20 MiB is a whole segment."""
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python")

    def first():
        return byte_tensor(20)

    def second():
        return byte_tensor(20)

    held = [first(), second()]
    for segment in torch.cuda.memory._snapshot()["segments"]:
        report(segment["total_size"] // MIB, [frame["name"] for frame in segment["frames"][:2]])
    held.clear()
    torch.cuda.memory._record_memory_history(None)


if __name__ == "__main__":
    for case in sys.argv[1:]:
        report(case)
        globals()[case]()
