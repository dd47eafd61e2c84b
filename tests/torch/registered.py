# SPDX-License-Identifier: MIT
"""xseg.torch.registered(): each tensor is one physical allocation that the driver reports as accessible by RDMA.

registered.py DRIVER; each test runs one function of this file in a separate process.
"""
import ctypes
import threading
import time

import backends

if backends.IS_CASE:
    import torch
    import xseg.torch
    from tensors import MIB, byte_tensor, expect, expect_error, fill

RDMA_CAPABLE = 15  # CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
# Variables of cases.
VARIABLES = {
    "two_devices": {"XSEG_SIM_DEVICES": "2"},
    "contents": {"XSEG_SIM_BYTES": "1"},
    "variable": {"XSEG_TORCH_REGISTERED": "kv_.*|weights"},
    "label": {"XSEG_TORCH_REGISTERED": "kv_.*|weights"},
    "saver": {"XSEG_TORCH_REGISTERED": "weights.*"},
    "bad_expression": {"XSEG_TORCH_REGISTERED": "kv_(cache"},
    "empty_expression": {"XSEG_TORCH_REGISTERED": ""},
    "classic": {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},
}


def driver_range(tensor, offset=0):
    """Queries the driver for the range that contains a byte: its start relative to the tensor and its size, in MiB, and whether
    the range is accessible by RDMA."""
    driver = ctypes.CDLL("libcuda.so.1")
    address, start, size, is_capable = tensor.data_ptr() + offset, ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint(7)
    with torch.cuda.device(tensor.device):
        torch.cuda.current_stream().synchronize()
        expect(driver.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(address)) == 0, "range")
        expect(driver.cuPointerGetAttribute(ctypes.byref(is_capable), RDMA_CAPABLE, ctypes.c_uint64(address)) == 0, "attribute")
    return (start.value - tensor.data_ptr()) // MIB, size.value // MIB, is_capable.value


def expect_one_allocation(tensor, mib):
    """The tensor is a single physical allocation of this size that is accessible by RDMA."""
    for offset in (0, tensor.numel() // 2, tensor.numel() - 1):
        expect(driver_range(tensor, offset) == (0, mib, 1), driver_range(tensor, offset))


def expect_pages(tensor):
    """The tensor consists of pages of 20 MiB that are accessible by RDMA, as in PyTorch's allocator."""
    expect(driver_range(tensor, tensor.numel() - 1)[1:] == (20, 1), driver_range(tensor, tensor.numel() - 1))


def expect_no_thread(pool):
    """Waits until no thread is in the tag whose pool has this ID.  PyTorch rejects a second route to the pool while a thread is
    in the tag.  A thread exits its last tag when it ends, which may be after Python's join() returns."""
    for _ in range(1000):
        try:
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        except RuntimeError:
            time.sleep(0.02)
            continue
        torch._C._cuda_endAllocateToPool(0, pool)
        torch._C._cuda_releasePool(0, pool)
        return
    raise AssertionError("a thread is in the tag")


def enter(context):
    with context:
        pass


def case_one_piece():
    """A tensor of 200 MiB is one allocation in a registered tag and ten pages outside.  Small tensors share a page."""
    with xseg.torch.registered("cache") as pool:
        inside, unaligned, small = byte_tensor(200), byte_tensor(3), torch.empty(1000, device="cuda")
        with xseg.torch.suspended():
            outside = byte_tensor(200)
    expect_one_allocation(inside, 200)
    expect_one_allocation(unaligned, 4)  # 3 MiB, rounded up to pages of 2 MiB
    expect(driver_range(small)[1:] == (2, 1), driver_range(small))
    expect_pages(outside)
    expect([name for name, _ in xseg.torch.tags()] == ["cache"], xseg.torch.tags())
    # 200 MiB, 4 MiB for 3 MiB, and a page of 2 MiB for small blocks.
    expect(pool.statistics().reserved_bytes.all.current == 206 * MIB, pool.statistics().reserved_bytes.all.current)


def case_contents():
    """A resumed tensor has its address and contents, and is one allocation."""
    with xseg.torch.registered("cache"):
        inside = fill(byte_tensor(200), 5)
    address = inside.data_ptr()
    xseg.torch.pause("cache", keep="host")
    expect(torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved())
    xseg.torch.resume("cache")
    expect(inside.data_ptr() == address and bool((inside.cpu() == 5).all()), "address and contents")
    expect_one_allocation(inside, 200)
    xseg.torch.pin(inside)
    expect_error(xseg.BusyError, ["pinned"], lambda: xseg.torch.pause("cache"))
    xseg.torch.unpin(inside)


def case_two_devices():
    held = []
    for device in (0, 1):
        with xseg.torch.registered("cache", device):
            held.append(byte_tensor(60, f"cuda:{device}"))
        expect_one_allocation(held[-1], 60)
    expect(len(xseg.torch.tags("cache")) == 2, xseg.torch.tags())
    expect_error(xseg.ArgumentError, ["'cache'", "registered()"], lambda: enter(xseg.torch.tag("cache", 1)))


def case_name_conflict():
    """A name belongs to either tag() or registered(); a rejected call changes nothing."""
    with xseg.torch.tag("weights"):
        plain = byte_tensor(40)
    with xseg.torch.registered("cache"):
        inside = byte_tensor(40)
    expect_error(xseg.ArgumentError, ["xseg.torch.registered: tag was created by xseg.torch.tag(), 'weights'",
                                      "use another name"],
                   lambda: enter(xseg.torch.registered("weights")))
    expect_error(xseg.ArgumentError, ["xseg.torch.tag: tag was created by xseg.torch.registered(), 'cache'",
                                      "use another name"],
                   lambda: enter(xseg.torch.tag("cache")))
    with xseg.torch.tag("weights"), xseg.torch.registered("cache"), xseg.torch.registered("cache"):
        again = byte_tensor(40)
    for tensor in (inside, again):
        expect_one_allocation(tensor, 40)
    expect_pages(plain)
    outside = byte_tensor(40)
    expect_pages(outside)


def case_variable():
    """Tags whose whole name matches the expression are registered by either call; others are not."""
    expected = {"kv_cache": True, "weights": True, "weights2": False, "my_kv_cache": False}
    for name, is_registered in expected.items():
        with xseg.torch.tag(name):
            tensor = byte_tensor(100)
        (expect_one_allocation(tensor, 100) if is_registered else expect_pages(tensor))
    enter(xseg.torch.registered("weights"))
    enter(xseg.torch.registered("other"))
    expect_error(xseg.ArgumentError, ["'weights2'"], lambda: enter(xseg.torch.registered("weights2")))


def case_label():
    """Labels that match are registered, in the thread that set the label and outside of tags; a label ends with its thread."""
    set_label = getattr(torch.cuda.memory, "_set_memory_metadata", None)
    if set_label is None:
        return
    pools, handle = [], torch.cuda.graph_pool_handle
    torch.cuda.graph_pool_handle = lambda: pools.append(handle()) or pools[-1]
    set_label("kv_cache")
    labeled = byte_tensor(100)
    expect_one_allocation(labeled, 100)
    tensors = []
    thread = threading.Thread(target=lambda: (tensors.append(byte_tensor(100)), set_label("weights"),
                                              tensors.append(byte_tensor(60))))
    thread.start()
    thread.join()
    expect_pages(tensors[0])
    expect_one_allocation(tensors[1], 60)
    expect_no_thread(pools[1])
    with xseg.torch.tag("plain"):
        tagged = byte_tensor(100)
        set_label("weights")
        with xseg.torch.suspended():
            suspended = byte_tensor(100)
    expect_pages(tagged)
    expect_pages(suspended)
    expect_one_allocation(byte_tensor(80), 80)
    set_label("something else")
    expect_pages(byte_tensor(140))
    expect(sorted(name for name, _ in xseg.torch.tags()) == ["kv_cache", "plain", "weights"], xseg.torch.tags())


def case_mem_pool():
    """Each segment of a single-page MemPool, which register_mem_pool() passes to NCCL, is one allocation."""
    memory, plain = torch.cuda.MemPool(), torch.cuda.MemPool()
    xseg.torch.pool(memory).set_single_page()
    with torch.cuda.use_mem_pool(memory):
        inside = [byte_tensor(200), byte_tensor(60)]
    with torch.cuda.use_mem_pool(plain):
        outside = byte_tensor(200)
    expect_one_allocation(inside[0], 200)
    expect_one_allocation(inside[1], 60)
    expect_pages(outside)
    simulator = ctypes.CDLL("libcuda.so.1")
    for pool, are_accepted in ((memory, True), (plain, False)):
        segments = [(segment["address"], segment["total_size"]) for segment in pool.snapshot()]
        expect(sum(size for _, size in segments) == (260 if are_accepted else 200) * MIB, segments)
        for address, size in segments:
            registration = ctypes.c_uint64()
            status = simulator.xseg_sim_register(ctypes.c_uint64(address), ctypes.c_uint64(size), 0, ctypes.byref(registration))
            expect((status == 0) == are_accepted, (status, address, size))
            if status == 0:
                expect(simulator.xseg_sim_unregister(registration) == 0, "unregister")
    expect_error(xseg.BusyError, ["has served a request"], lambda: xseg.torch.pool(plain).set_single_page())


def case_saver():
    """The expression applies to regions of torch_memory_saver, which are tags."""
    from xseg.torch.memory_saver import torch_memory_saver
    for is_kept in (True, False):
        with torch_memory_saver.region("weights", enable_cpu_backup=is_kept):
            tensor = byte_tensor(100)
        expect_one_allocation(tensor, 100)


def case_bad_expression():
    """An invalid expression matches no tag; the test checks the warning in the output."""
    with xseg.torch.tag("kv_(cache"):
        expect_pages(byte_tensor(100))


def case_empty_expression():
    """An empty expression is equivalent to an unset one."""
    with xseg.torch.tag(""), xseg.torch.tag("weights"):
        expect_pages(byte_tensor(100))


def case_classic():
    """A classic segment is one allocation that is accessible by RDMA."""
    with xseg.torch.registered("cache"):
        tensor = byte_tensor(100)
    expect(driver_range(tensor, 50 * MIB) == (0, 100, 1), driver_range(tensor, 50 * MIB))


class Programs(backends.CaseTest):
    variables = VARIABLES

    def run_case(self, name, *arguments, **variables):
        output = super().run_case(name, *arguments, **variables)
        if name != "bad_expression":
            # A library with self-checks prints one line about them.
            lines = [line for line in output.splitlines() if "self-checks: " not in line]
            self.assertNotRegex("\n".join(lines), r"xseg(\.torch)?:")
        return output

    def test_bad_expression(self):
        lines = [line for line in self.run_case("bad_expression").splitlines() if "XSEG_TORCH_REGISTERED" in line]
        self.assertEqual(len(lines), 1, lines)
        for words in ("xseg.torch: ignoring XSEG_TORCH_REGISTERED: invalid regular expression, 'kv_(cache', missing )",
                      "such as kv_cache|weights"):
            self.assertIn(words, lines[0])


if __name__ == "__main__":
    backends.main(globals(), Programs)
