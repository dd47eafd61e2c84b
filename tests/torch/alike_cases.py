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


def say(*what):
    print("=", *what, flush=True)


def attempt(work):
    """What it returns, or the type of its error and its first words."""
    try:
        return work()
    except (RuntimeError, ValueError) as error:
        return type(error).__name__, " ".join(str(error).split()[:4])


def in_child(work):
    child = os.fork()
    if child == 0:
        say("child:", attempt(work))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def held_objects():
    held = {"graph": torch.cuda.CUDAGraph(), "pool": torch.cuda.MemPool(),
            "options": torch.cuda.MemPool(use_on_oom=True, no_split=True), "tensor": byte_tensor(4)}
    with torch.cuda.graph(held["graph"]):
        held["kept"] = byte_tensor(4)
    with torch.cuda.use_mem_pool(held["pool"]):
        held["inside"] = byte_tensor(4)
    return held


def uninitialised():
    C = torch._C
    pool = torch.cuda.graph_pool_handle()
    for name, work in (
            ("memory_snapshot", lambda: C._cuda_memorySnapshot(None)["segments"]),
            ("traces", lambda: C._cuda_memorySnapshot(None)["device_traces"]),
            ("settings", lambda: C._cuda_memorySnapshot(None)["allocator_settings"]["expandable_segments"]),
            ("of a pool", lambda: C._cuda_memorySnapshot((1, 2))["segments"]),
            ("empty_cache", C._cuda_emptyCache),
            ("memory_stats", torch.cuda.memory_stats),
            ("of device 0", lambda: C._cuda_memoryStats(0)),
            ("reset_peak", lambda: C._cuda_resetPeakMemoryStats(0)),
            ("reset_accumulated", lambda: C._cuda_resetAccumulatedMemoryStats(0)),
            ("fraction", lambda: C._cuda_setMemoryFraction(0.5, 0)),
            ("get_fraction", lambda: C._cuda_getMemoryFraction(0)),
            ("enable", lambda: C._cuda_cudaCachingAllocator_enable(True)),
            ("release", lambda: C._cuda_releasePool(0, pool)),
            ("end", lambda: C._cuda_endAllocateToPool(0, pool)),
            ("metadata", lambda: torch.cuda.memory._set_memory_metadata("early")),
            ("raw_delete", lambda: C._cuda_cudaCachingAllocator_raw_delete(0)),
            ("is initialised", torch.cuda.is_initialized)):
        # Errors say in words of their own that there is no such device yet.
        found = attempt(work)
        say(name, found[0] if isinstance(found, tuple) else found)
    torch.cuda.memory._record_memory_history(stacks="python")
    byte_tensor(3)
    say("then", [entry["action"] for entry in C._cuda_memorySnapshot(None)["device_traces"][0]])


def children():
    """A forked child ends what its parent holds."""
    held = held_objects()

    def drop(*names):
        for name in names:
            del held[name]
        gc.collect()

    for names in (["graph"], ["kept", "graph"], ["pool"], ["options"], ["tensor"], ["inside", "tensor", "kept"]):
        say(*names, in_child(lambda names=names: drop(*names)))
    side = torch.cuda.Stream()
    address = held["tensor"].data_ptr()
    for name, work in (
            ("allocate", lambda: byte_tensor(1)),
            ("raw allocate", lambda: torch._C._cuda_cudaCachingAllocator_raw_alloc(1000, 0)),
            ("raw delete", lambda: torch._C._cuda_cudaCachingAllocator_raw_delete(address)),
            ("release", lambda: torch._C._cuda_releasePool(0, held["pool"].id)),
            ("empty_cache", torch._C._cuda_emptyCache),
            ("reset", lambda: torch._C._cuda_resetPeakMemoryStats(0)),
            ("record_stream", lambda: held["tensor"].record_stream(side)),
            ("use_count", lambda: held["pool"].use_count()),
            ("metadata", lambda: torch.cuda.memory._set_memory_metadata("child"))):
        say(name, in_child(work))
    del side
    child = os.fork()
    if child == 0:
        sys.exit(0)
    say("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    held.clear()
    torch.cuda.empty_cache()
    say("parent", torch.cuda.memory_allocated(), torch.cuda.memory_reserved())


def by_pools():
    found = torch.cuda.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]
    return sorted((key, sorted(groups.items())) for key, groups in found.items())


def served_by(pool, mib):
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    byte_tensor(mib)
    torch._C._cuda_endAllocateToPool(0, pool)
    torch._C._cuda_releasePool(0, pool)


def pool_statistics():
    """reserved_bytes_by_private_pools: resets between two readings, pools that end, ids that are used again."""
    never = torch.cuda.MemPool()
    say("no memory yet", by_pools())
    del never
    say("no memory ever", by_pools())
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = byte_tensor(4)
    torch.cuda.reset_accumulated_memory_stats()
    say("allocated and reset before the first reading", by_pools())
    del held, pool
    torch.cuda.reset_peak_memory_stats()
    say("gone and reset", by_pools())
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        byte_tensor(1)
    del pool
    torch.cuda.reset_accumulated_memory_stats()
    torch.cuda.reset_peak_memory_stats()
    say("came, went and reset", by_pools())
    again = torch.cuda.graph_pool_handle()
    for mib in (4, 24, 44, 4):
        served_by(again, mib)
        say("id again", mib, by_pools())
        torch.cuda.empty_cache()
        say("emptied", by_pools())
        if mib == 24:
            torch.cuda.reset_peak_memory_stats()
            say("peak reset", by_pools())
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, again)
    say("no memory", by_pools())
    torch.cuda.reset_accumulated_memory_stats()
    say("no memory, reset", by_pools())
    torch._C._cuda_endAllocateToPool(0, again)
    torch._C._cuda_releasePool(0, again)
    say("released", by_pools())


def pool_ids():
    """Whether an id can be used again once its pool was released."""
    pool = torch.cuda.graph_pool_handle()
    torch.cuda.init()

    def begin():
        return "refused" if attempt(lambda: torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)) else "begun"

    def end():
        torch._C._cuda_endAllocateToPool(0, pool)
        torch._C._cuda_releasePool(0, pool)

    say("fresh", begin(), attempt(lambda: torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool))[0])
    say("live", torch._C._cuda_checkPoolLiveAllocations(0, pool, set()))
    held = byte_tensor(4)
    torch._C._cuda_endAllocateToPool(0, pool)
    for _ in range(2 if torch.cuda.get_allocator_backend() == "native" else 1):
        torch._C._cuda_releasePool(0, pool)  # PyTorch's own allocator counts the second begin, which it refuses
    say("a live block", begin(), torch._C._cuda_checkPoolLiveAllocations(0, pool, {held.data_ptr()}))
    torch.cuda.empty_cache()
    say("a live block, emptied", begin())
    del held
    say("cached memory", begin())
    torch.cuda.empty_cache()
    say("gone", begin())
    byte_tensor(4)
    end()
    say("cached memory", begin())
    say("shortage", attempt(lambda: byte_tensor(1 << 30))[0])
    say("gone by a shortage", begin())
    end()
    say("nobody's", attempt(lambda: torch._C._cuda_checkPoolLiveAllocations(0, (1000, 0), set())))


def backend():
    """`backend:native` in the string, at the start and later; only the name of the allocator differs."""
    host = torch.arange(1000).pin_memory()
    expected = "xseg" if os.environ.get("XSEG_TORCH") == "1" else "native"
    say(host.is_pinned(), host.to("cuda").sum().item(), torch.cuda.get_allocator_backend() == expected)
    for taken in (torch.cuda.memory_snapshot, torch.cuda.memory._snapshot):
        taken()
    before = torch.cuda.memory._snapshot()["allocator_settings"]
    say(before["expandable_segments"], before["last_allocator_settings"] if "last_allocator_settings" in before else before)
    held = byte_tensor(30)
    torch.cuda.memory._set_allocator_settings("backend:native,roundup_power2_divisions:4")
    say(torch.cuda.memory_allocated(), torch.empty(5000, dtype=torch.uint8, device="cuda").numel(), torch.cuda.memory_allocated())
    say(attempt(lambda: torch.cuda.memory._set_allocator_settings("backend:cudaMallocAsync")))
    say(attempt(lambda: torch.cuda.memory._set_allocator_settings("backend:other")))
    del held


def capture_shortage():
    """Memory is short while a graph is captured: the error comes through, and capturing and allocating go on."""
    kept = []

    def capture(graph, work):
        with torch.cuda.graph(graph):
            kept.append(byte_tensor(20))
            work()
            kept.append(byte_tensor(4))

    def now():
        stats = torch.cuda.memory_stats()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), stats["num_ooms"], torch.cuda.is_current_stream_capturing()

    graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
    say("ends the capture", attempt(lambda: capture(graphs[0], lambda: byte_tensor(1 << 30))), now())
    capture(graphs[1], lambda: say("is caught within", attempt(lambda: byte_tensor(1 << 30)), now()))
    graphs[1].replay()
    say("replayed", now())
    capture(graphs[2], lambda: None)
    say("the next", now())
    kept.clear()
    graphs.clear()
    gc.collect()
    torch.cuda.empty_cache()
    say("gone", now())


def actions():
    return [(entry["action"], entry.get("user_metadata")) for entry in torch.cuda.memory._snapshot()["device_traces"][0]]


def max_entries():
    """A snapshot has the newest max_entries events of a device, whatever their streams and pools."""
    torch.cuda.memory._record_memory_history(max_entries=5, stacks="python")
    held = [byte_tensor(1), byte_tensor(30), torch.empty(1000, device="cuda")]
    with torch.cuda.stream(torch.cuda.Stream()):
        byte_tensor(3)
    say("of two streams", actions())
    say("the snapshot counts", actions())
    held.clear()
    say("and frees", actions())
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(max_entries=40, stacks="python")
    for _ in range(30):
        byte_tensor(1)
    say("of many", len(actions()))
    torch.cuda.memory._record_memory_history(None)
    for entries in (0, 1, 2, 3):
        torch.cuda.memory._record_memory_history(max_entries=entries, context=None)
        held = byte_tensor(3)
        say(entries, actions(), actions())
        del held
        say("freed", actions())
        torch.cuda.memory._record_memory_history(None)

    def have_frames():
        return [len(block["frames"]) > 0 for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]
                if block["state"] == "active_allocated"]

    for mode in ("state", "all"):
        torch.cuda.memory._record_memory_history(mode, stacks="python")
        held = byte_tensor(3)
        say(mode, actions(), have_frames())
        del held
        say("freed", actions())
    held = [byte_tensor(3) for _ in range(3)]
    torch.cuda.memory._record_memory_history(None)
    del held[1]
    held.append(byte_tensor(3))
    say("after recording", have_frames())


def metadata():
    """What was said before CUDA was initialised holds afterwards, and for snapshots, too."""
    torch.cuda.memory._set_memory_metadata("before")
    torch.cuda.memory._record_memory_history(stacks="python")
    held = byte_tensor(1)
    say(torch.cuda.memory._get_memory_metadata(), actions())
    torch.cuda.memory._set_memory_metadata("after")
    del held
    say(actions())
    torch.cuda.memory._set_memory_metadata("")
    byte_tensor(1)
    say(actions())
    torch.cuda.memory._record_memory_history(None)


def annotations():
    """Texts with a NUL, annotations before the first allocation, on a device without one, and of memory that is not allocated."""
    torch.cuda.memory._record_memory_history(context=None, global_record_annotations=True)

    def of_times():
        found = torch.cuda.memory._snapshot()["external_annotations"]
        return [(entry["name"], entry["stage"], entry["device"]) for entry in found]

    with torch.profiler.record_function("## before ##"):
        pass
    with torch.cuda.device(1), torch.profiler.record_function("## elsewhere ##"):
        pass
    with torch.profiler.record_function("## first ##"):
        held = byte_tensor(1)
    say(of_times())
    traces = torch.cuda.memory._snapshot()["device_traces"]
    say([[entry["action"] for entry in trace] for trace in traces])
    for text in ("", "a\0b", "\0head", "tail\0", "#7", "x" * 300 + " #1\0y"):
        torch.cuda.memory._set_memory_metadata(text)
        byte_tensor(1)
        torch.cuda.memory._annotate_tensor(held, text)
        say(repr(torch.cuda.memory._get_memory_metadata()), [repr(entry) for entry in actions()[-5:]])
    torch.cuda.memory._set_memory_metadata("")
    address = held.untyped_storage().data_ptr()
    annotate = torch._C._cuda_annotateMemory
    say("a part", attempt(lambda: annotate(address + 512, "text")))
    del held
    for name, place in (("freed", address), ("null", 0), ("another's", 12345)):
        say(name, attempt(lambda place=place: annotate(place, "text")))
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(context=None, max_entries=3, global_record_annotations=True)
    for number in range(4):
        with torch.profiler.record_function(f"## {number} ##"):
            byte_tensor(1)
    say(of_times(), actions())
    torch.cuda.memory._record_memory_history(None)
    say(of_times())


def addresses():
    """Allocations at an address say so in the history, and are refused in PyTorch's words."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        occupied = torch.empty(4096, dtype=torch.uint8, device="cuda")
        storage = torch.empty(2048, dtype=torch.uint8, device="cuda").untyped_storage()
    at = storage.data_ptr()
    storage.resize_(0)

    def resize(size, address):
        with torch.cuda.use_mem_pool(pool):
            storage._resize_with_addr_(size, address)

    for name, size, address in (("occupied", 4096, occupied.data_ptr()), ("no multiple", 2048, at + 1), ("null", 2048, 0),
                                ("too much", 1 << 40, at), ("nobody's", 2048, 512)):
        say(name, attempt(lambda size=size, address=address: resize(size, address)))
    torch.cuda.memory._record_memory_history(context=None)
    torch.cuda.memory._set_memory_metadata("mine")
    resize(2048, at)
    byte_tensor(1)
    torch.cuda.memory._set_memory_metadata("")
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    say(storage.data_ptr() == at, [(entry["action"], entry["size"], entry["user_metadata"], entry.get("internal_metadata"))
                                   for entry in events if entry["size"] != 20 * MIB and not entry["action"].startswith("segment")])
    torch.cuda.memory._record_memory_history(None)


def syncs():
    """num_sync_all_streams of devices without memory, and of pools that end without memory."""
    torch.cuda.init()

    def now():
        return [torch.cuda.memory_stats(device)["num_sync_all_streams"] for device in range(2)]

    say("init", now())
    torch.cuda.empty_cache()
    say("no memory yet", now())
    for device in range(2):
        torch.cuda.reset_accumulated_memory_stats(device)
        torch.cuda.reset_peak_memory_stats(device)
    say("reset", now())
    for name, in_use in (("unused", lambda: None), ("used", lambda: byte_tensor(1))):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            in_use()
        del pool
        gc.collect()
        say("a pool that was", name, now())
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = byte_tensor(1)
    del pool
    gc.collect()
    say("a pool with a block", now())
    del held
    torch.cuda.empty_cache()
    say("emptied", now())
    pool = torch.cuda.graph_pool_handle()
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    torch._C._cuda_endAllocateToPool(0, pool)
    torch._C._cuda_releasePool(0, pool)
    say("a graph's pool", now())
    torch.cuda.empty_cache()
    say("emptied", now())
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.cuda.empty_cache()
    say("in a capture", now())
    with torch.cuda.device(1):
        byte_tensor(1)
    torch.cuda.empty_cache()
    say("both used", now())


def streams():
    """A stream of another device that uses a block, or allocates one."""
    other, own = torch.cuda.Stream(0), torch.cuda.Stream(1)

    def now():
        stats = torch.cuda.memory_stats(1)
        return stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]

    def freed_block(*using):
        with torch.cuda.device(1):
            held = byte_tensor(1)
        for stream in using:
            held.record_stream(stream)
        address = held.data_ptr()
        del held
        say("freed", now())
        with torch.cuda.device(1):
            again = byte_tensor(1)
        say("the same block comes", again.data_ptr() == address, now())

    for name, using in (("none", ()), ("another device's", (other,)), ("both devices'", (other, own, other))):
        say(name)
        freed_block(*using)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        with torch.cuda.device(1):
            byte_tensor(1)
        torch.cuda.empty_cache()
        say("emptied", now(), torch.cuda.memory_reserved(1))
    raw = torch.cuda.caching_allocator_alloc(1000, 1, other)
    say("allocated", raw > 0, now())
    torch.cuda.caching_allocator_delete(raw)
    say("and freed", now(), torch.cuda.caching_allocator_alloc(1000, 1, other) == raw)
    say("no tensor of CUDA", attempt(lambda: torch.empty(1).record_stream(other))[0], attempt(lambda: byte_tensor(0).record_stream(other)))


def observers():
    """The exception of an observer comes out of the allocation that was refused."""
    seen = []

    def observer(*arguments):
        seen.append(arguments[:2])
        raise ValueError("of the observer")

    torch._C._cuda_attach_out_of_memory_observer(observer)
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append("the second"))
    for name, work in (("tensor", lambda: byte_tensor(1 << 20)), ("again", lambda: byte_tensor(1 << 20)),
                       ("raw", lambda: torch.cuda.caching_allocator_alloc(1 << 40)), ("served", lambda: byte_tensor(1).numel())):
        say(name, attempt(work), len(seen), torch.cuda.memory_stats()["num_ooms"])
    say(seen)


def segment_frames():
    """Where the memory of a segment came from; 20 MiB are handed out whole."""
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python")

    def first():
        return byte_tensor(20)

    def second():
        return byte_tensor(20)

    held = [first(), second()]
    for segment in torch.cuda.memory._snapshot()["segments"]:
        say(segment["total_size"] // MIB, [frame["name"] for frame in segment["frames"][:2]])
    held.clear()
    torch.cuda.memory._record_memory_history(None)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        say(each)
        globals()[each]()
