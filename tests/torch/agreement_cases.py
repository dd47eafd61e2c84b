# SPDX-License-Identifier: MIT
"""Programs that print settings, limits, errors and profiler events of PyTorch: agreement_cases.py NAME.

agreement.py runs each on both allocators and compares the output.
"""
import os
import re
import sys
import tempfile
import time

import torch

from tensors import MIB, byte_tensor

# Child processes do not run on_backend.py.
if os.environ.get("XSEG_TORCH") == "1":
    import xseg.torch  # noqa: F401 pylint: disable=unused-import

ORDINARY = "max_split_size_mb:100000"


def report(*values):
    print("report", *values, flush=True)


def set_settings(settings):
    """Sets a settings string, and reports a rejection.  Returns whether PyTorch accepted the string."""
    try:
        torch.cuda.memory._set_allocator_settings(settings)  # pylint: disable=protected-access
        return True
    except ValueError:
        report("rejected", settings)
        return False


def reserved():
    return torch.cuda.memory_reserved() // MIB


def can_allocate(mib):
    try:
        byte_tensor(mib)
        return True
    except torch.OutOfMemoryError:
        return False


def reserved_after(small, large):
    """The reserved memory after two allocations, the second of which does not fit the cached block of the first."""
    byte_tensor(small)
    byte_tensor(large)
    result = reserved()
    torch.cuda.empty_cache()
    return result


def fraction():
    """A program may raise the fraction of the string.  Garbage collection uses the current fraction.  The device has 4 GiB."""
    torch.cuda.init()
    report(torch.cuda.get_per_process_memory_fraction(), can_allocate(3000))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.9)
    report(torch.cuda.get_per_process_memory_fraction(), can_allocate(3000))
    torch.cuda.empty_cache()
    for value in (0.5, 0.9, 1.0, 0.5):
        torch.cuda.set_per_process_memory_fraction(value)
        # Two idle blocks, of 600 and 700 MiB, and a request that neither can serve.
        byte_tensor(600)
        report(value, reserved_after(700, 800))
    # A fraction in a string has no effect after CUDA is initialized.
    set_settings("per_process_memory_fraction:0.1,garbage_collection_threshold:0.5")
    report(torch.cuda.get_per_process_memory_fraction(), can_allocate(1500))


def oom_message(mib):
    """The parts of an out-of-memory message that PyTorch and the library add; the second one is empty on PyTorch's allocator."""
    try:
        byte_tensor(mib)
        return "served", ""
    except torch.OutOfMemoryError as error:
        native, _, library = str(error).partition(" xseg.torch: ")
        return native, library


def messages():
    """Each part of an out-of-memory message, except PyTorch's advice.  The device has 4 GiB."""
    def report_error(name, mib):
        message = oom_message(mib)[0].split(" If reserved but", maxsplit=1)[0].split(" If instead the process", maxsplit=1)[0]
        report(name, message.rstrip("."))

    held = byte_tensor(100)
    report_error("plain", 10000)
    os.environ["NVML_PROCESSES"] = f"self:{300 * MIB},77:{2000 * MIB}"
    report_error("two processes", 10000)
    os.environ["NVML_PROCESSES"] = ",".join(f"{number}:{number * MIB}" for number in range(1, 40))
    report_error("many processes", 10000)
    del os.environ["NVML_PROCESSES"]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = byte_tensor(60)
        report_error("in a pool", 10000)
    report_error("a pool", 10000)
    del inside
    report_error("a pool with cached memory", 10000)
    torch.cuda.set_per_process_memory_fraction(0.25)
    report_error("a fraction", 2000)
    torch.cuda.set_per_process_memory_fraction(1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.empty(1000, device="cuda")
        report_error("a capture", 10000)
    report_error("a graph", 10000)
    set_settings("throw_on_cudamalloc_oom:True")
    report_error("rejected", 10000)
    set_settings("throw_on_cudamalloc_oom:False")
    report_error("not rejected", 10000)
    del held, pool, graph


def advice():
    """PyTorch advises expandable segments whenever they are off, and the library only if they help.  The limit is 1 GiB."""
    torch.cuda.set_per_process_memory_fraction((1 << 30) / torch.cuda.mem_get_info()[1])
    native_advice = "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation"
    message, library = oom_message(2000)
    report("not fragmented", native_advice in message)
    print("advised", "expandable_segments:True" in library, flush=True)
    segments = [byte_tensor(80) for _ in range(12)]
    del segments
    blocks = [byte_tensor(size) for _ in range(12) for size in (11, 69)]
    del blocks[1::2]  # 12 free blocks of 69 MiB: 828 MiB
    message, library = oom_message(300)
    report("fragmented", native_advice in message, "828.00 MiB is reserved by PyTorch but unallocated" in message)
    print("advised", "expandable_segments:True" in library, flush=True)


def driver_failures():
    """An allocation failure of the driver is logged, whether or not a retry succeeds.  The device has 4 GiB."""
    blocks = [byte_tensor(1000) for _ in range(3)]
    del blocks
    report(can_allocate(3500), can_allocate(5000), torch.cuda.memory_stats()["num_ooms"])


def reported_sizes():
    """The size in an out-of-memory message, and the arguments of observers."""
    torch.cuda.init()
    torch.cuda.set_per_process_memory_fraction(0.0)
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *args: seen.append(args[1:3]))  # pylint: disable=protected-access
    for settings in (ORDINARY, "roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,512:2,>:4]",
                     "large_segment_size_mb:40", "large_segment_size_mb:12,roundup_power2_divisions:8"):
        set_settings(settings)
        for size in (1, MIB - 511, MIB + 1, 5 * MIB, 9 * MIB, 10 * MIB - 1, 12 * MIB + 1, 84 * MIB, 400 * MIB + 5, 3000 * MIB + 77):
            try:
                torch.empty(size, dtype=torch.uint8, device="cuda")
                report("served", size)
            except torch.OutOfMemoryError as error:
                match = re.match(r"CUDA out of memory. Tried to allocate (.*?)\. GPU 0 has a total capacity of (.*?) of which "
                                 r".*? is free\. (.*? allowed); ", str(error))
                report(settings, size, match.groups() if match else str(error), seen.pop())


def pytorch_settings():
    settings = torch.cuda.memory._snapshot()["allocator_settings"]  # pylint: disable=protected-access
    return sorted((key, str(value)) for key, value in settings.items())


def unlimited():
    """-1, which settings contain for unlimited sizes, is accepted; keys of pinned memory have an effect."""
    torch.cuda.init()
    for key, name in (("pinned_max_round_threshold_mb", "max_round_threshold"), ("pinned_max_cached_size_mb", "max_cached_size"),
                      ("max_split_size_mb", "max_split_size")):
        for value in ("128", "-1", "64"):
            set_settings(f"{key}:{value}")
            report(key, value, dict(pytorch_settings())[name])
    for text in ("pinned_use_cuda_host_register:True,pinned_num_register_threads:8", "pinned_reserve_segment_size_mb:8",
                 "pinned_use_background_threads:True,pinned_free_catch_all:True"):
        set_settings(text)
        report(text, pytorch_settings())


def rejected_strings():
    """A string that PyTorch or xseg rejects changes nothing; the error contains the column in the string that was passed."""
    torch.cuda.init()
    set_settings(ORDINARY + ",pinned_num_register_threads:4")
    before, xseg_before = pytorch_settings(), xseg.torch.allocator().configuration
    valid_prefix = (
        "pinned_max_round_threshold_mb:7,pinned_max_cached_size_mb:7,pinned_num_register_threads:8,large_segment_size_mb:40,"
        "max_non_split_rounding_mb:50,expandable_segments:False,release_lock_on_cudamalloc:True,"
        "throw_on_cudamalloc_oom:True,graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,"
        "pinned_free_catch_all:True,pinned_use_background_threads:True,pinned_reserve_segment_size_mb:4,"
        "roundup_power2_divisions:4,garbage_collection_threshold:0.5,per_process_memory_fraction:0.5,")
    for last in ("max_split_size_mb:128x", "max_split_size_mb:1", "no_such_key:1", "idle_ms:5", "backend:other", "backend:cudaMallocAsync",
                 "max_split_size_mb:100\0", "max_split_size_mb", "roundup_power2_divisions:[4:3]", "garbage_collection_threshold:off,",
                 "max_split_size_mb:99999999999999999999"):
        for text in (last, valid_prefix + last):
            try:
                torch._C._accelerator_setAllocatorSettings(text)  # pylint: disable=protected-access
                continue
            except (ValueError, RuntimeError, IndexError) as error:
                column = re.search(r"(.{1,20}) at column (\d+)", str(error))
            value = column and re.search("'(.*)'", column[1])
            if value and not text.startswith(value[1], int(column[2]) - 1):
                report("wrong column", text, column[0])
            if pytorch_settings() != before or xseg.torch.allocator().configuration != xseg_before:
                report("changed", text, [pair for pair in zip(before, pytorch_settings()) if pair[0] != pair[1]])
    for text, column in (("max_split_size_mb:128x", 19), ("per_process_memory_fraction:0.5,max_split_size_mb:1", 51),
                         ("expandable_segments:False,large_segment_size_mb:11,expandable_segments:True", 49)):
        try:
            torch._C._accelerator_setAllocatorSettings(text)  # pylint: disable=protected-access
        except ValueError as error:
            report(f" at column {column}; " in str(error) or str(error))
    report(pytorch_settings() == before, xseg.torch.allocator().configuration == xseg_before)


def resets():
    """Keys that a later string does not contain are reset, or keep their value, by observable behavior.  The device has 4 GiB."""
    torch.cuda.init()
    torch.cuda.set_per_process_memory_fraction(0.5)
    names = ("max_split_size", "garbage_collection_threshold", "expandable_segments")
    for text in ("garbage_collection_threshold:0.3", ORDINARY, "roundup_power2_divisions:4", "",
                 "max_split_size_mb:100,max_non_split_rounding_mb:200", "max_split_size_mb:100",
                 "large_segment_size_mb:60", "max_split_size_mb:100", "max_split_size_mb:59", "garbage_collection_threshold:0.3",
                 "large_segment_size_mb:20", "garbage_collection_threshold:1.5"):
        if not set_settings(text):
            continue  # PyTorch's allocator has applied a part of the string
        settings = torch.cuda.memory._snapshot()["allocator_settings"]  # pylint: disable=protected-access
        torch.cuda.reset_peak_memory_stats()
        held = torch.empty(4200, dtype=torch.uint8, device="cuda")
        rounded = torch.cuda.memory_allocated()
        del held
        # Whether a request of 150 MiB uses a block of 300 MiB whole, and the size of the segment of a medium request.
        byte_tensor(300)
        held = byte_tensor(150)
        allocated_mib = torch.cuda.memory_allocated() // MIB
        del held
        torch.cuda.empty_cache()
        byte_tensor(5)
        medium = reserved()
        torch.cuda.empty_cache()
        report(repr(text), [settings[name] for name in names], rounded, allocated_mib, medium, reserved_after(400, 500))


def memory_events(profile):
    return [(event.name(), event.nbytes()) for event in profile.profiler.kineto_results.events()
            if event.name() in ("[memory]", "[OutOfMemory]") and "CUDA" in str(event.device_type())]


def totals(path):
    """The totals of each memory event in a trace file."""
    import json
    with open(path, encoding="utf-8") as file:
        entries = json.load(file)["traceEvents"]
    return [(entry["name"], {name: value for name, value in entry["args"].items() if name.startswith(("Total", "Bytes"))})
            for entry in entries
            if entry.get("name") in ("[memory]", "[OutOfMemory]") and entry["args"].get("Device Type") == 1]


def profiled():
    torch.cuda.init()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        held = torch.empty(5000, dtype=torch.uint8, device="cuda")
        raw = torch.cuda.caching_allocator_alloc(3 * MIB + 5)
        large = byte_tensor(30)
        del held
        torch.cuda.caching_allocator_delete(raw)
        try:
            torch.empty((1 << 50) + 5, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            report("out of memory")
        del large
    report(memory_events(profile))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        for line in totals(path):
            report(line)


def traced():
    import torch.cuda._gpu_trace as gpu_trace
    torch.cuda.init()
    calls = []
    torch._C._activate_gpu_trace()  # pylint: disable=protected-access
    gpu_trace.register_callback_for_memory_allocation(lambda address: calls.append(("allocated", address)))
    gpu_trace.register_callback_for_memory_deallocation(lambda address: calls.append(("freed", address)))
    held = torch.empty(5000, dtype=torch.uint8, device="cuda")
    first = held.data_ptr()
    del held
    raw = torch.cuda.caching_allocator_alloc(5000)
    torch.cuda.caching_allocator_delete(raw)
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") is None:
        # A double free raises an error, and calls no callback.
        try:
            torch.cuda.caching_allocator_delete(raw)
        except RuntimeError as error:
            report("invalid device pointer" in str(error))
    names = {first: "tensor", raw: "raw"} if first != raw else {first: "both"}
    report([(action, names.get(address, "other")) for action, address in calls])
    report(len(calls))


def expandable_later():
    """On xseg, a segment is shared by a handle of the library if expandable segments were set after CUDA was initialized."""
    byte_tensor(3)
    set_settings("expandable_segments:True")
    held = byte_tensor(30)
    try:
        shared = held.untyped_storage()._share_cuda_()  # pylint: disable=protected-access
        report("shared", chr(shared[1][0]))
        # No process receives the handle.  At exit, PyTorch would release its counter after the objects that it needs.
        torch.UntypedStorage._release_ipc_counter_cuda(*shared[4:6])  # pylint: disable=protected-access
    except RuntimeError as error:
        report("rejected", *[word for word in ("exportable",) if word in str(error)])


def named_defaults():
    byte_tensor(3)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]  # pylint: disable=protected-access
    report(settings["garbage_collection_threshold"], settings["max_split_size"])


def one_allocation():
    """Opens the allocator, which then logs keys without an effect."""
    report(byte_tensor(3).numel())


def send(queue):
    held = byte_tensor(30)
    queue.put(held.untyped_storage()._share_cuda_())  # pylint: disable=protected-access
    time.sleep(600)
    del held


def with_exporter(use):
    """Calls a function with the IPC handle of another process's memory, and with that process."""
    import torch.multiprocessing
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=send, args=(queue,))
    child.start()
    try:
        use(queue.get(timeout=300), child)
    finally:
        child.kill()
        child.join()


def open_handle(handle):
    torch.cuda.init()
    return torch.UntypedStorage._new_shared_cuda(*handle)  # pylint: disable=protected-access


def imported():
    """Mapped memory of other processes, in MiB."""
    return xseg.torch.allocator().statistics(device=0).imported_bytes // MIB


def import_ends_in_capture():
    """An import whose last tensor is freed during a capture is closed after the capture."""

    def use(handle, _):
        storage = open_handle(handle)
        assert imported() == 40, imported()  # 30 MiB in two pages of 20 MiB
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            block = byte_tensor(3)
            # PyTorch waits for the current stream before the release.
            with torch.cuda.stream(torch.cuda.default_stream()):
                del storage
            assert imported() == 40, imported()
        assert imported() == 0, imported()
        graph.replay()
        del block

    with_exporter(use)


def plug_in():
    """With the plug-in alone, blocks that another thread allocates on the captured stream belong to the graph."""
    import ctypes
    import threading
    plugin = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[2], "xseg_torch_malloc", "xseg_torch_free")
    library = ctypes.CDLL(sys.argv[2])
    for setter, name in (("set_begin_allocate_to_pool", "begin_allocate_to_pool"),
                         ("set_end_allocate_to_pool_fn", "end_allocate_to_pool"), ("set_release_pool", "release_pool")):
        getattr(plugin.allocator(), setter)(ctypes.cast(getattr(library, "xseg_torch_" + name), ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(plugin)
    stream, graph, addresses = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []

    def allocate(stream):
        with torch.cuda.stream(stream):
            addresses.append(byte_tensor(30).data_ptr())

    def allocate_in_thread(stream):
        thread = threading.Thread(target=allocate, args=(stream,))
        thread.start()
        thread.join()

    side = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        byte_tensor(3)
        allocate_in_thread(stream)
        allocate_in_thread(side)
    allocate(stream)
    allocate(side)
    # The block of the captured stream remains in the graph's pool; the block of the other stream is reused.
    report(addresses[2] != addresses[0], addresses[3] == addresses[1])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
