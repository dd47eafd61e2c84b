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

# In another process than on_backend.py, too.
if os.environ.get("XSEG_TORCH") == "1":
    import xseg.torch  # noqa: F401 pylint: disable=unused-import

PLAIN = "max_split_size_mb:100000"


def tell(*what):
    print("tell", *what, flush=True)


def set_settings(text):
    """Change the settings as PyTorch lets a program; what is refused, is told.  Returns whether it was accepted."""
    try:
        torch.cuda.memory._set_allocator_settings(text)  # pylint: disable=protected-access
        return True
    except ValueError:
        tell("refused", text)
        return False


def reserved():
    return torch.cuda.memory_reserved() // MIB


def serves(mib):
    try:
        byte_tensor(mib)
        return True
    except torch.OutOfMemoryError:
        return False


def pass_over(small, large):
    """What is reserved after a cached block was too small for a request."""
    byte_tensor(small)
    byte_tensor(large)
    found = reserved()
    torch.cuda.empty_cache()
    return found


def fraction():
    """The string's fraction may be raised, and garbage is collected by what is set.  The device has 4 GiB."""
    tell(torch.cuda.get_per_process_memory_fraction() if torch.cuda.init() is None else None, serves(3000))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.9)
    tell(torch.cuda.get_per_process_memory_fraction(), serves(3000))
    torch.cuda.empty_cache()
    for value in (0.5, 0.9, 1.0, 0.5):
        torch.cuda.set_per_process_memory_fraction(value)
        # An idle block of 600 MiB, one of 700, and a request that neither serves.
        byte_tensor(600)
        tell(value, pass_over(700, 800))
    # Once CUDA is initialised a string's fraction changes nothing.
    set_settings("per_process_memory_fraction:0.1,garbage_collection_threshold:0.5")
    tell(torch.cuda.get_per_process_memory_fraction(), serves(1500))


def refusal(mib):
    return refusal_and_library(mib)[0]


def refusal_and_library(mib):
    """The parts of PyTorch and of the library of the message of an out-of-memory; PyTorch's own allocator has no second one."""
    try:
        byte_tensor(mib)
        return "served", ""
    except torch.OutOfMemoryError as error:
        native, _, library = str(error).partition(" xseg.torch: ")
        return native, library


def messages():
    """Each part of the message of an out-of-memory, but PyTorch's advice.  The device has 4 GiB."""
    def tell_refusal(name, mib):
        text = refusal(mib).split(" If reserved but", maxsplit=1)[0].split(" If instead the process", maxsplit=1)[0]
        tell(name, text.rstrip("."))

    held = byte_tensor(100)
    tell_refusal("plain", 10000)
    os.environ["NVML_PROCESSES"] = f"self:{300 * MIB},77:{2000 * MIB}"
    tell_refusal("two processes", 10000)
    os.environ["NVML_PROCESSES"] = ",".join(f"{number}:{number * MIB}" for number in range(1, 40))
    tell_refusal("many processes", 10000)
    del os.environ["NVML_PROCESSES"]
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = byte_tensor(60)
        tell_refusal("in a pool", 10000)
    tell_refusal("a pool", 10000)
    del inside
    tell_refusal("a pool with cached memory", 10000)
    torch.cuda.set_per_process_memory_fraction(0.25)
    tell_refusal("a fraction", 2000)
    torch.cuda.set_per_process_memory_fraction(1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.empty(1000, device="cuda")
        tell_refusal("a capture", 10000)
    tell_refusal("a graph", 10000)
    set_settings("throw_on_cudamalloc_oom:True")
    tell_refusal("rejected", 10000)
    set_settings("throw_on_cudamalloc_oom:False")
    tell_refusal("not rejected", 10000)
    del held, pool, graph


def advice():
    """PyTorch advises expandable segments while they are off, the library where they help.  1 GiB is allowed."""
    torch.cuda.set_per_process_memory_fraction((1 << 30) / torch.cuda.mem_get_info()[1])
    sentence = "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation"
    text, library = refusal_and_library(2000)
    tell("nothing to gain", sentence in text)
    print("named", "expandable_segments:True" in library, flush=True)
    whole = [byte_tensor(80) for _ in range(12)]
    del whole
    blocks = [byte_tensor(size) for _ in range(12) for size in (11, 69)]
    del blocks[1::2]
    text, library = refusal_and_library(300)
    tell("fragmented", sentence in text, "828.00 MiB is reserved by PyTorch but unallocated" in text)
    print("named", "expandable_segments:True" in library, flush=True)


def logged():
    """An allocation that the device has no memory for is logged, whether or not it is served then.  The device has 4 GiB."""
    blocks = [byte_tensor(1000) for _ in range(3)]
    del blocks
    tell(serves(3500), serves(5000), torch.cuda.memory_stats()["num_ooms"])


def tried():
    """The size that an out-of-memory names, and what its observers hear."""
    torch.cuda.init()
    torch.cuda.set_per_process_memory_fraction(0.0)
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *all: seen.append(all[1:3]))  # pylint: disable=protected-access
    for settings in (PLAIN, "roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,512:2,>:4]",
                     "large_segment_size_mb:40", "large_segment_size_mb:12,roundup_power2_divisions:8"):
        set_settings(settings)
        for size in (1, MIB - 511, MIB + 1, 5 * MIB, 9 * MIB, 10 * MIB - 1, 12 * MIB + 1, 84 * MIB, 400 * MIB + 5, 3000 * MIB + 77):
            try:
                torch.empty(size, dtype=torch.uint8, device="cuda")
                tell("served", size)
            except torch.OutOfMemoryError as refusal:
                found = re.match(r"CUDA out of memory. Tried to allocate (.*?)\. GPU 0 has a total capacity of (.*?) of which "
                                 r".*? is free\. (.*? allowed); ", str(refusal))
                tell(settings, size, found.groups() if found else str(refusal), seen.pop())


def of_pytorch():
    found = torch.cuda.memory._snapshot()["allocator_settings"]  # pylint: disable=protected-access
    return sorted((key, str(value)) for key, value in found.items())


def unlimited():
    """-1, which is read back for unlimited sizes, is accepted; keys of pinned memory have an effect."""
    torch.cuda.init()
    for key, name in (("pinned_max_round_threshold_mb", "max_round_threshold"), ("pinned_max_cached_size_mb", "max_cached_size"),
                      ("max_split_size_mb", "max_split_size")):
        for value in ("128", "-1", "64"):
            set_settings(f"{key}:{value}")
            tell(key, value, dict(of_pytorch())[name])
    for text in ("pinned_use_cuda_host_register:True,pinned_num_register_threads:8", "pinned_reserve_segment_size_mb:8",
                 "pinned_use_background_threads:True,pinned_free_catch_all:True"):
        set_settings(text)
        tell(text, of_pytorch())


def rejected():
    """What is rejected, by whomever, changes nothing; the error has a column of the string that was passed."""
    torch.cuda.init()
    set_settings(PLAIN + ",pinned_num_register_threads:4")
    before, ours = of_pytorch(), xseg.torch.allocator().configuration
    changing = ("pinned_max_round_threshold_mb:7,pinned_max_cached_size_mb:7,pinned_num_register_threads:8,large_segment_size_mb:40,"
                "max_non_split_rounding_mb:50,expandable_segments:False,release_lock_on_cudamalloc:True,"
                "throw_on_cudamalloc_oom:True,graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,"
                "pinned_free_catch_all:True,pinned_use_background_threads:True,pinned_reserve_segment_size_mb:4,"
                "roundup_power2_divisions:4,garbage_collection_threshold:0.5,per_process_memory_fraction:0.5,")
    for last in ("max_split_size_mb:128x", "max_split_size_mb:1", "no_such_key:1", "idle_ms:5", "backend:other", "backend:cudaMallocAsync",
                 "max_split_size_mb:100\0", "max_split_size_mb", "roundup_power2_divisions:[4:3]", "garbage_collection_threshold:off,",
                 "max_split_size_mb:99999999999999999999"):
        for text in (last, changing + last):
            try:
                torch._C._accelerator_setAllocatorSettings(text)  # pylint: disable=protected-access
                continue
            except (ValueError, RuntimeError, IndexError) as refusal:
                column = re.search(r"(.{1,20}) at column (\d+)", str(refusal))
            value = column and re.search("'(.*)'", column[1])
            if value and not text.startswith(value[1], int(column[2]) - 1):
                tell("another column", text, column[0])
            if of_pytorch() != before or xseg.torch.allocator().configuration != ours:
                tell("changed", text, [pair for pair in zip(before, of_pytorch()) if pair[0] != pair[1]])
    for text, column in (("max_split_size_mb:128x", 19), ("per_process_memory_fraction:0.5,max_split_size_mb:1", 51),
                         ("expandable_segments:False,large_segment_size_mb:11,expandable_segments:True", 49)):
        try:
            torch._C._accelerator_setAllocatorSettings(text)  # pylint: disable=protected-access
        except ValueError as refusal:
            tell(f" at column {column}; " in str(refusal) or str(refusal))
    tell(of_pytorch() == before, xseg.torch.allocator().configuration == ours)


def resets():
    """What a later string does not name goes back, or stays, by what the allocator does.  The device has 4 GiB."""
    torch.cuda.init()
    torch.cuda.set_per_process_memory_fraction(0.5)
    shown = ("max_split_size", "garbage_collection_threshold", "expandable_segments")
    for text in ("garbage_collection_threshold:0.3", PLAIN, "roundup_power2_divisions:4", "",
                 "max_split_size_mb:100,max_non_split_rounding_mb:200", "max_split_size_mb:100",
                 "large_segment_size_mb:60", "max_split_size_mb:100", "max_split_size_mb:59", "garbage_collection_threshold:0.3",
                 "large_segment_size_mb:20", "garbage_collection_threshold:1.5"):
        if not set_settings(text):
            continue  # PyTorch's own allocator has a part of it in force
        settings = torch.cuda.memory._snapshot()["allocator_settings"]  # pylint: disable=protected-access
        torch.cuda.reset_peak_memory_stats()
        held = torch.empty(5000, dtype=torch.uint8, device="cuda")
        rounded = torch.cuda.memory_allocated()
        del held
        # Whether a request of 150 MiB takes a block of 300, and which size a middling one reserves.
        byte_tensor(300)
        held = byte_tensor(150)
        whole = torch.cuda.memory_allocated() // MIB
        del held
        torch.cuda.empty_cache()
        byte_tensor(5)
        middling = reserved()
        torch.cuda.empty_cache()
        tell(repr(text), [settings[name] for name in shown], rounded, whole, middling, pass_over(400, 500))


def events_of(profiled):
    found = []
    for event in profiled.profiler.kineto_results.events():
        if event.name() in ("[memory]", "[OutOfMemory]") and "CUDA" in str(event.device_type()):
            found.append((event.name(), event.nbytes()))
    return found


def totals(path):
    """The sums that the trace's file has with each event."""
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
        other = byte_tensor(30)
        del held
        torch.cuda.caching_allocator_delete(raw)
        try:
            torch.empty((1 << 50) + 5, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            tell("refused")
        del other
    tell(events_of(profile))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        for line in totals(path):
            tell(line)


def traced():
    import torch.cuda._gpu_trace as gpu_trace
    torch.cuda.init()
    heard = []
    torch._C._activate_gpu_trace()  # pylint: disable=protected-access
    gpu_trace.register_callback_for_memory_allocation(lambda address: heard.append(("allocated", address)))
    gpu_trace.register_callback_for_memory_deallocation(lambda address: heard.append(("freed", address)))
    held = torch.empty(5000, dtype=torch.uint8, device="cuda")
    first = held.data_ptr()
    del held
    raw = torch.cuda.caching_allocator_alloc(5000)
    torch.cuda.caching_allocator_delete(raw)
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") is None:
        # What is not live cannot be freed, and nobody hears of that.
        try:
            torch.cuda.caching_allocator_delete(raw)
        except RuntimeError as refusal:
            tell("invalid device pointer" in str(refusal))
    names = {first: "tensor", raw: "raw"} if first != raw else {first: "both"}
    tell([(what, names.get(address, "other")) for what, address in heard])
    tell(len(heard))


def expandable_later():
    """On xseg: a segment that is expandable since CUDA was initialised is shared by a handle of the library's."""
    byte_tensor(3)
    set_settings("expandable_segments:True")
    held = byte_tensor(30)
    try:
        shared = held.untyped_storage()._share_cuda_()  # pylint: disable=protected-access
        tell("shared", chr(shared[1][0]))
        # Nobody receives it: what is still sent when a process ends, PyTorch frees with objects that are destroyed already.
        torch.UntypedStorage._release_ipc_counter_cuda(*shared[4:6])  # pylint: disable=protected-access
    except RuntimeError as refusal:
        tell("refused", *[word for word in ("exportable",) if word in str(refusal)])


def named_defaults():
    byte_tensor(3)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]  # pylint: disable=protected-access
    tell(settings["garbage_collection_threshold"], settings["max_split_size"])


def plain():
    tell(byte_tensor(3).numel())


def send(queue):
    held = byte_tensor(30)
    queue.put(held.untyped_storage()._share_cuda_())  # pylint: disable=protected-access
    time.sleep(600)
    del held


def with_exporter(use):
    """Call a function with the handle of another process's memory and that process."""
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
    """MiB of other processes that are mapped."""
    return xseg.torch.allocator().statistics(device=0).imported_bytes // MIB


def import_ends_in_a_capture():
    """Its last tensor goes while a graph is captured; it is closed when that has ended."""

    def use(handle, _):
        storage = open_handle(handle)
        assert imported() == 40, imported()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            kept = byte_tensor(3)
            # PyTorch waits for the current stream before it lets go.
            with torch.cuda.stream(torch.cuda.default_stream()):
                del storage
            assert imported() == 40, imported()
        assert imported() == 0, imported()
        graph.replay()
        del kept

    with_exporter(use)


def plug_in():
    """On the plain plug-in: what another thread allocates on the captured stream is the graph's, after the capture too."""
    import ctypes
    import threading
    plugin = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[2], "xseg_torch_malloc", "xseg_torch_free")
    library = ctypes.CDLL(sys.argv[2])
    for setter, name in (("set_begin_allocate_to_pool", "begin_allocate_to_pool"),
                         ("set_end_allocate_to_pool_fn", "end_allocate_to_pool"), ("set_release_pool", "release_pool")):
        getattr(plugin.allocator(), setter)(ctypes.cast(getattr(library, "xseg_torch_" + name), ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(plugin)
    stream, graph, addresses = torch.cuda.Stream(), torch.cuda.CUDAGraph(), []

    def allocate(on):
        with torch.cuda.stream(on):
            addresses.append(byte_tensor(30).data_ptr())

    def in_a_thread(on):
        thread = threading.Thread(target=allocate, args=(on,))
        thread.start()
        thread.join()

    side = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        byte_tensor(3)
        in_a_thread(stream)
        in_a_thread(side)
    for on in (stream, side):
        allocate(on)
    # Of the captured stream the block stays the graph's; of the other one it is handed out again.
    tell(addresses[2] != addresses[0], addresses[3] == addresses[1])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
