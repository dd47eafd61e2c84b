# SPDX-License-Identifier: MIT
"""xseg.torch.range(): tensors on virtual addresses whose memory is committed and decommitted, with the limits of PyTorch.

range.py DRIVER; each test runs one function of this file in a separate process.
"""
import ctypes
import gc
import sys
import threading

import backends

if backends.IS_CASE:
    import torch
    import xseg.torch
    from tensors import FOREVER, MIB, byte_tensor, expect, expect_error, fill, holds, simulator, used_bytes
    from xseg import _library, _records, _structs

PAGE = 2 << 20


def case_tensor():
    cache = xseg.torch.range(64 * PAGE, name="cache")
    before, tensor = used_bytes(), cache.tensor((60, 1024, 1024), torch.float16, 4 * PAGE)
    expect(used_bytes() == before, "a tensor commits no memory")
    expect((tensor.shape, tensor.dtype, tensor.device.index) == ((60, 1024, 1024), torch.float16, 0), tensor.shape)
    expect(tensor.data_ptr() == cache.address + 4 * PAGE and tensor.is_contiguous(), hex(tensor.data_ptr()))
    for page in (0, 59, 7):
        cache.commit((4 + page) * PAGE, PAGE)
        fill(tensor[page], page)
    expect(used_bytes() - before == torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 3 * PAGE,
           used_bytes() - before)
    expect([holds(tensor[page], page) for page in (0, 7, 59)] == [True] * 3, "contents")
    expect(len(torch.cuda.memory_snapshot()) > 0, "a snapshot contains the committed pages")
    cache.decommit(4 * PAGE, PAGE)
    torch.cuda.empty_cache()
    expect(used_bytes() - before == 2 * PAGE and holds(tensor[59], 59), "other pages remain committed")
    expect(cache.tensor((4,)).dtype == torch.float32 and cache.tensor((0, 5)).shape == (0, 5), "default type; empty tensor")
    expect_error(xseg.ArgumentError, "a multiple of 2", cache.tensor, (1,), torch.float16, 3)
    expect_error(xseg.ArgumentError, f"view exceeds the range of {64 * PAGE} bytes", cache.tensor, (64 * PAGE + 1,),
                 torch.uint8)
    expect_error(xseg.BusyError, "range is exported by DLPack", cache.release)
    part, address = tensor[3:5, 1], cache.address
    del tensor, cache
    gc.collect()
    expect(part.data_ptr() == address + 7 * PAGE + 2048 and used_bytes() - before == 2 * PAGE,
           "a view retains the range")
    del part
    gc.collect()
    torch.cuda.empty_cache()
    expect(used_bytes() == before, "the range is released with its last view")


def case_streams():
    cache, side = xseg.torch.range(4 * PAGE), torch.cuda.Stream()
    with torch.cuda.stream(side):
        cache.commit(0, 2 * PAGE)
        expect(simulator().xseg_sim_launch(side.cuda_stream, FOREVER) == 0, "launch")
        cache.decommit(0, 2 * PAGE)
        cache.commit(0, PAGE)
        expect(cache.info().recommits == 1 and cache.info().pending_unmap_bytes == PAGE, cache.info())
    cache.commit(PAGE, PAGE, side)
    cache.decommit(0, 2 * PAGE, stream=side)
    expect(cache.info().pending_unmap_bytes == 2 * PAGE, cache.info())
    expect(simulator().xseg_sim_finish(side.cuda_stream) == 0, "finish")
    torch.cuda.empty_cache()
    expect(cache.info().mapped_bytes == 0, cache.info())


def case_limits():
    """Ranges share the limits of PyTorch's memory: a commit reclaims cached memory, and tensors cannot use a reserved quota."""
    cache, allocator = xseg.torch.range(64 * PAGE), xseg.torch.allocator()
    expect(isinstance(allocator.range(PAGE), xseg.torch.Range), "Allocator.range() returns xseg.torch.Range")
    held, idle = byte_tensor(40), byte_tensor(40)
    allocator.set_limits(0, hard_bytes=100 * MIB)
    expect_error(xseg.LimitError, "xseg_limits_set()", cache.commit, 0, 20 * PAGE)
    del idle
    cache.commit(0, 20 * PAGE)
    expect_error(torch.OutOfMemoryError, "CUDA out of memory", byte_tensor, 40)
    cache.decommit(0, 20 * PAGE)
    cache.set_quota(20 * PAGE)
    expect_error(torch.OutOfMemoryError, "CUDA out of memory", byte_tensor, 40)
    cache.commit(0, 20 * PAGE)
    expect(held.is_cuda and torch.cuda.memory_allocated() == 80 * MIB, torch.cuda.memory_allocated())


def case_tags():
    """A range of a tag's pool is paused and resumed with its tensors."""
    with xseg.torch.tag("cache") as pool:
        block = byte_tensor(40)
    cache = xseg.torch.range(64 * PAGE, pool=pool)
    tensor = cache.tensor((64, PAGE), torch.uint8)
    cache.commit(5 * PAGE, PAGE)
    fill(tensor[5], 5)
    fill(block, 7)
    expect(pool.statistics().allocated_bytes.all.current == 40 * MIB + PAGE, "the pool contains the block and the page")
    with xseg.torch.paused("cache", keep="host"):
        expect(torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved())
        expect_error(xseg.PausedError, "paused", cache.commit, 0, PAGE)
    expect(holds(tensor[5], 5) and holds(block, 7), "contents are restored")


def case_graphs():
    """Held granules remain mapped for a graph after a decommit, and a commit during a capture succeeds."""
    cache = xseg.torch.range(64 * PAGE)
    tensor, graph = cache.tensor((64, PAGE), torch.uint8), torch.cuda.CUDAGraph()
    cache.commit(0, PAGE)
    fill(tensor[0], 3)
    with torch.cuda.graph(graph):
        cache.commit(PAGE, PAGE)
        tensor[1].copy_(tensor[0])
    cache.hold(0, 2 * PAGE)
    graph.replay()
    expect(holds(tensor[1], 3), "replayed")
    cache.decommit(0, 2 * PAGE)
    torch.cuda.empty_cache()
    graph.replay()
    torch.cuda.synchronize()
    expect(cache.info().mapped_bytes == 2 * PAGE, "held")
    cache.unhold(0, 2 * PAGE)
    torch.cuda.empty_cache()
    expect(cache.info().mapped_bytes == 0, "unmapped after the unhold")


def case_two_devices():
    """A range is on the current device, or on the device of the argument."""
    for device in (0, 1):
        with torch.cuda.device(device):
            expect(xseg.torch.range(PAGE).device == device and xseg.torch.range(PAGE, 1 - device).device == 1 - device, device)
    cache = xseg.torch.range(PAGE, 1)
    tensor = cache.tensor((10,))
    cache.commit(0, PAGE)
    fill(tensor, 4)
    expect(tensor.device == torch.device("cuda", 1) and holds(tensor, 4), tensor.device)
    expect(torch.cuda.memory_allocated(1) == PAGE and torch.cuda.memory_allocated(0) == 0, "statistics of both devices")


def case_locks():
    """A thread that prepares pages, an observer in Python, and tensors that are freed with Python's lock held do not deadlock."""
    sys.setswitchinterval(1e-5)
    cache, notifications = xseg.torch.range(64 * PAGE), []
    fields, observer_id = dict(_structs.xseg_observer._fields_), ctypes.c_uint64()
    calls = {name: fields[name](lambda *_, name=name: notifications.append(name)) for name in ("on_map", "on_unmap", "on_trace")}
    observer, handle = _records.structure(_structs.xseg_observer, **calls), xseg.torch.allocator().handle
    _library.call("xseg_observer_add", handle, ctypes.byref(observer), ctypes.byref(observer_id))
    done, ready = threading.Event(), threading.Event()

    def use_range():
        while not done.is_set():
            cache.prepare(8 * PAGE)
            cache.commit(0, 16 * PAGE)
            cache.decommit(0, 16 * PAGE)
            ready.set()

    thread = threading.Thread(target=use_range)
    thread.start()
    ready.wait()
    for _ in range(100):
        byte_tensor(50)
        torch.cuda.empty_cache()
    done.set()
    thread.join()
    _library.call("xseg_observer_remove", handle, observer_id)
    expect(set(notifications) == {"on_map", "on_unmap", "on_trace"}, set(notifications))


class Programs(backends.CaseTest):
    environment = {"XSEG_SIM_BYTES": "1"}
    variables = {"two_devices": {"XSEG_SIM_DEVICES": "2"}}


if __name__ == "__main__":
    backends.main(globals(), Programs)
