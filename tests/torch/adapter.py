# SPDX-License-Identifier: MIT
"""Small programs on xseg: common uses of memory in PyTorch work.

adapter.py DRIVER; each test runs one function of this file in a separate process.
"""
import functools
import os
import pickle
import re
import sys

import backends

if backends.IS_CASE:
    import torch
    import xseg.torch
    from tensors import MIB, byte_tensor, current, expect, expect_error, fill

# Variables of cases.
VARIABLES = {
    "default_stream_of_another_device": {"XSEG_SIM_DEVICES": "2"},
    "memory_saver_whole": {"XSEG_SIM_BYTES": "1"},
    "own_string_is_expandable": {"XSEG_ALLOC_CONF": "idle_ms:2000", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"},
    "own_string_is_classic": {"XSEG_ALLOC_CONF": "expandable_segments:False", "PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "older_string_is_classic": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
    "newer_string_is_classic": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
    "newer_string_is_expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
}


def case_train_step():
    layer = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(torch.empty(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    held = torch.cuda.memory_allocated()
    expect(held >= 512 * 512 * 4, held)
    del layer, optimizer
    expect(torch.cuda.memory_allocated() < held, "the layer and its gradients are freed")


def case_out_of_memory():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    small = byte_tensor(1)
    try:
        byte_tensor(1 << 30)
        expect(False, "an allocation of 1 PiB raises OutOfMemoryError")
    except torch.OutOfMemoryError as error:
        message = str(error)
    expect(message.startswith("CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of "), message)
    expect(re.search(r" xseg\.torch: out of memory on device 0, ", message), message)
    expect(len(seen) == 1 and seen[0][0] == 0 and seen[0][1] == 1 << 50, seen)
    expect(torch.cuda.memory_stats()["num_ooms"] == 1, "num_ooms")
    expect(small.numel() == MIB and byte_tensor(1) is not None, "the next allocation succeeds")
    # A rejected request of another caller does not change the message of the next request.
    torch.cuda.memory._set_allocator_settings("throw_on_cudamalloc_oom:True")
    expect_error(xseg.Error, "", lambda: xseg.torch.allocator().allocate(1 << 50))
    torch.cuda.memory._set_allocator_settings("throw_on_cudamalloc_oom:False")
    expect_error(torch.OutOfMemoryError, "Tried to allocate 1048576.00 GiB", lambda: byte_tensor(1 << 30))


def case_more_than_one_eb():
    expect_error(torch.OutOfMemoryError, "more than 1EB memory",
                 lambda: torch.empty(1 << 62, dtype=torch.uint8, device="cuda"))


def case_fraction():
    torch.cuda.set_per_process_memory_fraction(0.25)
    expect(torch.cuda.get_per_process_memory_fraction() == 0.25, "get_per_process_memory_fraction")
    total = torch.cuda.mem_get_info()[1]
    expect_error(torch.OutOfMemoryError, "allowed", lambda: torch.empty(total // 2, dtype=torch.uint8, device="cuda"))
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    xseg.torch.allocator().set_limits(fraction=0.75)
    expect(torch.cuda.get_per_process_memory_fraction() == 0.75, "PyTorch reads a fraction that was set in the library")
    xseg.torch.allocator().set_limits(fraction=1)


def case_arguments():
    """Device IDs above 8 bits are rejected rather than truncated, and so are handles above 64 bits and names with a NUL."""
    for device in (256, 1 << 32, -257, 0.0, False):
        for call in (lambda: xseg.torch.range(2 * MIB, device), lambda: xseg.torch.tag("tag", device).__enter__(),
                     lambda: xseg.torch.registered("tag", device).__enter__(), lambda: xseg.torch.pool((0, 1), device)):
            expect_error(xseg.ArgumentError, "", call)
    for handle in (-1, 1 << 64, 1.0):
        expect_error(xseg.ArgumentError, "", xseg.torch.pool, (0, handle))
        expect_error(xseg.ArgumentError, "", xseg.torch.range(2 * MIB).commit, 0, 2 * MIB, handle)
        expect_error(xseg.ArgumentError, "", xseg.torch.range(2 * MIB).tensor, (1,), torch.uint8, handle)
    expect_error(xseg.ArgumentError, "", lambda: xseg.torch.tag("a\0b").__enter__())
    expect(xseg.torch.tags() == [], xseg.torch.tags())


def case_snapshot():
    torch.cuda.memory._record_memory_history(stacks="python")
    torch.cuda.memory._set_memory_metadata("phase one")
    held = byte_tensor(3)
    torch.cuda.memory._set_memory_metadata("")
    byte_tensor(5)
    snapshot = torch.cuda.memory._snapshot()
    pickle.dumps(snapshot)
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"]
    expect([block["requested_size"] for block in blocks] == [3 * MIB], blocks)
    expect(blocks[0]["address"] == held.data_ptr(), blocks)
    expect(any(frame["name"] == "byte_tensor" for frame in blocks[0]["frames"]), blocks[0]["frames"])
    free = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "inactive"]
    expect([block["requested_size"] for block in free] == [5 * MIB], free)
    events = [entry["action"] for entry in snapshot["device_traces"][0]]
    expect(events == ["segment_map", "alloc", "alloc", "free_requested", "free_completed"], events)
    expect(snapshot["device_traces"][0][1].get("user_metadata") == "phase one", snapshot["device_traces"][0][1])
    expect(torch.cuda.memory._snapshot()["device_traces"][0][-1]["action"] == "snapshot", "a snapshot is an event")
    torch.cuda.memory._record_memory_history(enabled=None)
    expect(torch.cuda.memory._snapshot()["device_traces"][0] == [], "recording is off")
    torch.cuda.memory._record_memory_history(enabled="state", stacks="python")
    byte_tensor(5)
    events = [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]]
    expect(events == ["free_completed"], events)


def case_history_in_forked_child():
    """In a forked child, where the library fails, the start of a recording raises an error and recording remains off."""
    held = byte_tensor(1)
    child = os.fork()
    if child == 0:
        try:
            torch.cuda.memory._record_memory_history(stacks="python")
            os._exit(1)
        except RuntimeError as error:
            os._exit(2 if "recordHistory" not in str(error) else 3 if torch._C._cuda_isHistoryEnabled() else 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    expect(status == 0, status)
    del held


def case_graph():
    graph = torch.cuda.CUDAGraph()
    before = torch.cuda.memory_reserved()
    with torch.cuda.graph(graph):
        output = byte_tensor(30)
        byte_tensor(30)
    graph.replay()
    ids = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
    expect(tuple(graph.pool()) in ids, ids)
    del graph, output
    torch.cuda.empty_cache()
    expect(torch.cuda.memory_reserved() <= before, torch.cuda.memory_reserved())


def case_mempool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = byte_tensor(8)
    outside = byte_tensor(8)
    by_pool = {segment["segment_pool_id"]: segment["active_size"] for segment in torch.cuda.memory_snapshot()}
    expect(by_pool == {tuple(pool.id): 8 * MIB, (0, 0): 8 * MIB}, by_pool)
    expect(pool.use_count() == 1, pool.use_count())
    del inside, pool
    torch.cuda.empty_cache()
    expect(torch.cuda.memory_reserved() == 20 * MIB, torch.cuda.memory_reserved())
    del outside


def case_checkpoint():
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        held = byte_tensor(4)
        state = torch._C._cuda_getCheckpointState(0, pool)
        later = byte_tensor(4)
        torch._C._cuda_endAllocateToPool(0, pool)
    both_addresses = {held.untyped_storage().data_ptr(), later.untyped_storage().data_ptr()}
    expect(torch._C._cuda_checkPoolLiveAllocations(0, pool, both_addresses), "both blocks are allocated")
    torch._C._cuda_setCheckpointPoolState(0, state, [later.untyped_storage()._cdata], [])
    expect(torch._C._cuda_checkPoolLiveAllocations(0, pool, {held.untyped_storage().data_ptr()}), "one block is allocated")
    del held
    expect(torch._C._cuda_checkPoolLiveAllocations(0, pool, set()), "no block is allocated")
    torch._C._cuda_releasePool(0, pool)


def case_tags():
    """A tag is paused and resumed at the same addresses; other memory remains mapped."""
    with xseg.torch.tag("weights"):
        weights = byte_tensor(40)
        with xseg.torch.suspended():
            untagged = byte_tensor(20)
    reserved, address = torch.cuda.memory_reserved(), weights.data_ptr()
    xseg.torch.pause("weights", keep="host")
    expect(torch.cuda.memory_reserved() == reserved - 40 * MIB, torch.cuda.memory_reserved())
    xseg.torch.resume("weights")
    expect(torch.cuda.memory_reserved() == reserved and weights.data_ptr() == address, "resumed")
    expect_error(KeyError, "unknown tag, 'other'", lambda: xseg.torch.pause("other"))
    xseg.torch.pin(weights)
    expect_error(xseg.BusyError, "pinned", lambda: xseg.torch.pause("weights"))
    xseg.torch.unpin(weights)
    del untagged


def tag_mib(name):
    return sum(pool.statistics().reserved_bytes.all.current for _, pool in xseg.torch.tags(name)) // MIB


def expect_tags(weights, kv):
    reserved = tag_mib("weights"), tag_mib("kv")
    expect(reserved == (weights, kv), reserved)


def case_tags_without_a_name():
    """pause() and resume() without a name skip tags that are already in that state.  With a name, the error contains the
    Python call."""
    xseg.torch.pause()
    xseg.torch.resume()
    held = []
    for name, mib in (("weights", 40), ("kv", 60)):
        with xseg.torch.tag(name):
            held.append(byte_tensor(mib))
    xseg.torch.resume()
    xseg.torch.pause("kv")
    expect_tags(40, 0)
    for call, remedy in ((lambda: xseg.torch.pause("kv"), "xseg.torch.resume('kv')"),
                         (lambda: xseg.torch.resume("weights"), "xseg.torch.pause('weights')")):
        try:
            call()
            expect(False, "the tag is already in this state")
        except xseg.Error as error:
            expect(remedy in str(error) and "xseg_" not in str(error), error)
    with xseg.torch.paused():
        expect_tags(0, 0)
    expect_tags(40, 0)
    xseg.torch.resume()
    expect_tags(40, 60)
    xseg.torch.pause()
    xseg.torch.pause()
    expect_tags(0, 0)
    xseg.torch.resume()
    xseg.torch.pause("kv")
    xseg.torch.pin(held[0])
    expect_error(xseg.BusyError, "", lambda: xseg.torch.pause())
    xseg.torch.unpin(held[0])
    expect_tags(40, 0)


def case_innermost():
    """The innermost tag or pool of the thread serves its allocations, even if another thread is in the same tag."""
    import threading
    pool = torch.cuda.MemPool()

    def reserved_mib():
        return {"A": tag_mib("A"), "B": tag_mib("B"),
                "pool": xseg.torch.pool(pool).statistics().reserved_bytes.all.current // MIB}

    def serving_pool():
        before = reserved_mib()
        held.append(byte_tensor(20))
        after = reserved_mib()
        return "".join(name for name in after if after[name] > before[name])

    def nest():
        seen = []
        with xseg.torch.tag("A"):
            with torch.cuda.use_mem_pool(pool):
                with xseg.torch.tag("A"):
                    seen.append(serving_pool())
                    with xseg.torch.suspended():
                        seen.append(serving_pool())
                        with xseg.torch.tag("B"):
                            seen.append(serving_pool())
                seen.append(serving_pool())
            seen.append(serving_pool())
        with torch.cuda.use_mem_pool(pool), xseg.torch.tag("B"), xseg.torch.tag("A"):
            seen.append(serving_pool())
        return seen + [serving_pool()]

    held = []
    expected = ["A", "pool", "B", "pool", "A", "A", ""]
    expect(nest() == expected, "with one thread")
    inside, done = threading.Event(), threading.Event()

    def hold_tags():
        with xseg.torch.tag("A"), xseg.torch.tag("B"):
            inside.set()
            done.wait()

    thread = threading.Thread(target=hold_tags)
    thread.start()
    inside.wait()
    try:
        seen = nest()
        expect(seen == expected, seen)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            seen = [serving_pool()]
            with xseg.torch.tag("A"):
                seen.append(serving_pool())
        expect(seen == ["", "A"], seen)
    finally:
        done.set()
        thread.join()


def case_memory_saver():
    from xseg.torch.memory_saver import torch_memory_saver
    with torch_memory_saver.region(tag="cache", enable_cpu_backup=False):
        cache = byte_tensor(60)
        with torch_memory_saver.disable():
            untagged = byte_tensor(20)
    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        weights = byte_tensor(20)
    reserved = torch.cuda.memory_reserved()
    torch_memory_saver.pause("cache")
    torch_memory_saver.pause()
    expect(torch.cuda.memory_reserved() == 20 * MIB, torch.cuda.memory_reserved())
    torch_memory_saver.resume("weights")
    torch_memory_saver.resume()
    expect(torch.cuda.memory_reserved() == reserved == 100 * MIB, reserved)
    # A replay writes to blocks that the graph freed, so no region reuses these blocks.
    graph = torch.cuda.CUDAGraph()
    with torch_memory_saver.cuda_graph(graph, tag="cache"):
        freed_address = byte_tensor(20).data_ptr()
    with torch_memory_saver.region(tag="cache", enable_cpu_backup=False):
        after = byte_tensor(20)
    expect(after.data_ptr() != freed_address, freed_address)
    torch_memory_saver.pause("cache")
    expect(torch.cuda.memory_reserved() == 40 * MIB, torch.cuda.memory_reserved())
    torch_memory_saver.resume("cache")
    del cache, untagged, weights, after


def case_memory_saver_whole():
    """Features of torch_memory_saver that trainers use: backups per region, graph pools, child processes; unsupported calls."""
    from xseg.torch.memory_saver import configure_subprocess, torch_memory_saver
    saver, held = torch_memory_saver, []
    for is_kept in (True, False):
        with saver.region("weights", enable_cpu_backup=is_kept):
            held.append(fill(byte_tensor(20), 5))
    pool, graphs = torch.cuda.graph_pool_handle(), []

    def capture(pool):
        graphs.append(torch.cuda.CUDAGraph())
        before = torch.cuda.memory_reserved()
        with saver.cuda_graph(graphs[-1], pool=pool, tag="weights"):
            byte_tensor(20)
        expect(pool is None or graphs[-1].pool() == pool, "the graph uses the pool")
        return (torch.cuda.memory_reserved() - before) // MIB

    # The second capture of a pool, and of graphs without a pool, reuses the 20 MiB of the first one.
    growth = [capture(pool), capture(pool), capture(torch.cuda.graph_pool_handle()), capture(None), capture(None)]
    expect(growth == [20, 0, 20, 20, 0], growth)
    reserved = torch.cuda.memory_reserved()
    saver.pause("weights")
    saver.pause("weights")
    expect(torch.cuda.memory_reserved() == reserved - 100 * MIB, torch.cuda.memory_reserved())
    saver.resume()
    saver.resume("weights")
    expect(torch.cuda.memory_reserved() == reserved, torch.cuda.memory_reserved())
    expect([held[0][9].item(), held[1].numel()] == [5, 20 * MIB], "only the region with a backup keeps its contents")
    before = os.environ.get("XSEG_TORCH")
    for value in (None, "0", "1"):
        os.environ.pop("XSEG_TORCH", None)
        os.environ.update({"XSEG_TORCH": value} if value else {})
        with configure_subprocess():
            expect(os.environ["XSEG_TORCH"] == "1", "children use xseg")
        expect(os.environ.get("XSEG_TORCH") == value, "the variable is restored")
    os.environ.update({"XSEG_TORCH": before} if before else {})
    for margin, key in ((1, "device_free_min_mb:1"), (0, "device_free_min_mb:0")):
        saver.memory_margin_bytes = margin
        expect(key in xseg.torch.allocator().configuration, xseg.torch.allocator().configuration)
    expect_error(NotImplementedError, "resume()", saver.get_cpu_backup, held[0])


def case_pause_keep_values():
    """The error for an invalid `keep` lists the valid values, with and without tags."""
    def expect_rejected(keep):
        for call in (lambda: xseg.torch.pause(keep=keep), lambda: xseg.torch.paused(keep=keep).__enter__()):
            expect_error(ValueError, 'use "nothing" or "host"', call)

    expect_rejected("bad")
    with xseg.torch.tag("weights"):
        held = byte_tensor(40)
    for keep in ("bad", "file", "", None, 1):
        expect_rejected(keep)
    for keep in ("nothing", "host"):
        xseg.torch.pause("weights", keep)
        xseg.torch.resume("weights")
    del held


def case_imported_again():
    """A second import of the module keeps the allocator and the tags, and does not wrap PyTorch's functions a second time."""
    import importlib
    with xseg.torch.tag("weights"):
        held = byte_tensor(40)
    for import_again in (lambda: importlib.reload(xseg.torch),
                         lambda: (sys.modules.pop("xseg.torch"), importlib.import_module("xseg.torch"))):
        import_again()
        module = sys.modules["xseg.torch"]
        expect(torch.cuda.get_allocator_backend() == "xseg" and [name for name, _ in module.tags()] == ["weights"], module.tags())
        module.pause("weights")
        module.resume("weights")
        torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:4")
        expect(not hasattr(torch._C._accelerator_setAllocatorSettings.xseg_original, "xseg_original"), "it is wrapped once")
    del held


def case_default_stream_of_another_device():
    """A block waits for the default stream of another device, which has the same handle as that of its own device."""
    with torch.cuda.device(1):
        held = byte_tensor(1)
    held.record_stream(torch.cuda.default_stream(0))
    del held
    expect(current("active_bytes", 1) == MIB, "the block is pending free")
    with torch.cuda.device(1):
        byte_tensor(1)
    expect(current("active_bytes", 1) == 0, "the block is free after the next allocation")


def case_control():
    allocator = xseg.torch.allocator()
    held = byte_tensor(50)
    byte_tensor(100)
    expect(allocator.trim(wait=True).released > 0, "trim")
    active = current("active_bytes")
    expect(active == 50 * MIB and allocator.statistics(device=0).active_bytes.all.current == active, active)
    del allocator, held
    byte_tensor(1)


def case_settings():
    torch.cuda.init()
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")
    # With 4 divisions of 4096 bytes, 4200 bytes are rounded up to 4096 + 1024; without divisions, to 9 * 512 = 4608.
    held = torch.empty(4200, dtype=torch.uint8, device="cuda")
    expect(torch.cuda.memory_allocated() == 5120, torch.cuda.memory_allocated())
    large = byte_tensor(100)
    torch.cuda.memory._set_allocator_settings("garbage_collection_threshold:0.5")
    expect("garbage_collection_threshold:0.5" in xseg.torch.allocator().configuration, "the threshold is set")
    torch.cuda.memory._set_allocator_settings("max_split_size_mb:40")
    expect("garbage_collection_threshold:0.5" not in xseg.torch.allocator().configuration, "the threshold is reset")
    del large
    expect(torch.cuda.memory_stats()["oversize_allocations.current"] == 0, "the block was not oversize at its allocation")
    expect(torch.cuda.memory_stats()["max_split_size"] == 40 * MIB, "statistics contain the value in effect")
    second = torch.empty(4200, dtype=torch.uint8, device="cuda")
    expect(torch.cuda.memory_allocated() == 5120 + 4608, torch.cuda.memory_allocated())
    expect_error(ValueError, "", lambda: torch.cuda.memory._set_allocator_settings("no_such_key:1"))
    del held, second


def case_no_caching():
    """Uncached memory is allocated by the runtime, and is freed correctly after caching is enabled again."""
    torch.cuda.init()
    with torch.cuda.memory.caching_allocator_disabled() if hasattr(torch.cuda.memory, "caching_allocator_disabled") \
            else __import__("contextlib").nullcontext():
        held = byte_tensor(2)
    expect(held.numel() == 2 * MIB, "an uncached tensor")
    del held
    raw = torch.cuda.caching_allocator_alloc(1000)
    expect(torch.cuda.memory_allocated() == 1024, torch.cuda.memory_allocated())
    torch.cuda.caching_allocator_delete(raw)
    expect(torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated())


def expect_segments(is_expandable):
    byte_tensor(1)
    snapshot = torch.cuda.memory._snapshot()
    expect(snapshot["allocator_settings"]["expandable_segments"] == is_expandable, snapshot["allocator_settings"])
    expect([segment["is_expandable"] for segment in snapshot["segments"]] == [is_expandable], snapshot["segments"])


# The variables of the cases are in VARIABLES.
for case, expected in (("default_is_expandable", True), ("own_string_is_expandable", True), ("own_string_is_classic", False),
        ("older_string_is_classic", False), ("newer_string_is_classic", False), ("newer_string_is_expandable", True)):
    globals()["case_" + case] = functools.partial(expect_segments, expected)


def case_history_during_pool_use():
    """Recording of Python stacks does not deadlock with threads that wait for the adapter's locks."""
    import faulthandler
    import threading
    faulthandler.dump_traceback_later(120, exit=True)
    torch.cuda.memory._record_memory_history()
    done = threading.Event()

    def use_pools():
        for _ in range(300):
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                byte_tensor(1)
            with xseg.torch.tag("weights"):
                byte_tensor(1)
        done.set()

    thread = threading.Thread(target=use_pools)
    thread.start()
    while not done.is_set():
        torch.cuda.memory_stats()
    thread.join()
    expect(len(torch.cuda.memory._snapshot()["device_traces"][0]) > 300, "events")
    faulthandler.cancel_dump_traceback_later()


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def case_many_metadata_strings():
    """Metadata strings are freed with their events, so their number is not limited."""
    torch.cuda.memory._record_memory_history(max_entries=100, stacks="python")
    held = byte_tensor(1)
    before = 0
    for number in range(250000):
        torch.cuda.memory._annotate_tensor(held, f"{number} " + "x" * 80)
        if number == 150000:  # the library has collected unused labels twice
            before = resident_bytes()
    expect(resident_bytes() - before < 16 * MIB, resident_bytes() - before)
    torch.cuda.memory._set_memory_metadata("the last of many")
    byte_tensor(1)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    expect(len(events) == 100 and events[0]["user_metadata"].endswith("x" * 80), events[0])
    expect(events[-4]["user_metadata"].startswith("249999 "), events[-4])
    expect([event["user_metadata"] for event in events[-3:]] == ["the last of many"] * 3, events[-3:])
    for number in range(60000):
        torch.cuda.memory._set_memory_metadata(f"{number} " + "y" * 200)
        del held
        held = byte_tensor(1)
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    expect(events[-1]["user_metadata"] == "59999 " + "y" * 200, events[-1])
    expect(events[0]["user_metadata"] == "59966 " + "y" * 200, events[0])


def case_pool_destroyed_by_decay():
    """The ID of a released pool can be reused after decay has released the memory of the pool."""
    import time
    xseg.torch.allocator().configure("idle_ms:1")
    pool = torch.cuda.graph_pool_handle()

    def use():
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        byte_tensor(40)
        torch._C._cuda_endAllocateToPool(0, pool)
        torch._C._cuda_releasePool(0, pool)

    use()
    expect(torch.cuda.memory_reserved() == 40 * MIB, torch.cuda.memory_reserved())
    for _ in range(3000):  # decay releases pages one by one
        time.sleep(0.01)
        byte_tensor(1)
        if torch.cuda.memory_reserved() == 2 * MIB:
            break
    expect(torch.cuda.memory_reserved() == 2 * MIB, torch.cuda.memory_reserved())
    use()


def receive(queue, replies):
    held = queue.get()
    replies.put((torch.cuda.get_allocator_backend(), held.numel()))
    del held


def case_share():
    import torch.multiprocessing
    context = torch.multiprocessing.get_context("spawn")
    queue, replies = context.Queue(), context.Queue()
    child = context.Process(target=receive, args=(queue, replies))
    child.start()
    held = byte_tensor(3)
    queue.put(held)
    expect(replies.get(timeout=120) == ("xseg", 3 * MIB), "the backend and the size in the child")
    child.join()
    expect(child.exitcode == 0, child.exitcode)
    del held


class Programs(backends.CaseTest):
    variables = VARIABLES


if __name__ == "__main__":
    backends.main(globals(), Programs)
