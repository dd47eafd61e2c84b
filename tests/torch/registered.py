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
VARIABLES = {"two_devices": {"XSEG_SIM_DEVICES": "2"},
    "contents": {"XSEG_SIM_BYTES": "1"},
    "variable": {"XSEG_TORCH_REGISTERED": "kv_.*|weights"},
    "label": {"XSEG_TORCH_REGISTERED": "kv_.*|weights"},
    "saver": {"XSEG_TORCH_REGISTERED": "weights.*"},
    "bad_expression": {"XSEG_TORCH_REGISTERED": "kv_(cache"},
    "empty_expression": {"XSEG_TORCH_REGISTERED": ""},
    "classic": {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},}


def asked(tensor, offset=0):
    """What the driver says of a byte: where its memory begins and ends, from the tensor on, in MiB; and its attribute."""
    driver = ctypes.CDLL("libcuda.so.1")
    address, start, size, can = tensor.data_ptr() + offset, ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint(7)
    with torch.cuda.device(tensor.device):
        torch.cuda.current_stream().synchronize()
        expect(driver.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(address)) == 0, "the range")
        expect(driver.cuPointerGetAttribute(ctypes.byref(can), RDMA_CAPABLE, ctypes.c_uint64(address)) == 0, "the attribute")
    return (start.value - tensor.data_ptr()) // MIB, size.value // MIB, can.value


def expect_one(tensor, mib):
    """The tensor is all of one piece of so many MiB, which network cards may reach."""
    for offset in (0, tensor.numel() // 2, tensor.numel() - 1):
        expect(asked(tensor, offset) == (0, mib, 1), asked(tensor, offset))


def expect_plain(tensor):
    """It lies on pages of 20 MiB, which they may reach, as those of PyTorch's own allocator."""
    expect(asked(tensor, tensor.numel() - 1)[1:] == (20, 1), asked(tensor, tensor.numel() - 1))


def expect_left(number):
    """No thread is in the tag whose pool has this id: a route to it is refused while one is.  A thread leaves the last one
    when it ends, which is a moment after Python's join()."""
    for _ in range(1000):
        try:
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, number)
        except RuntimeError:
            time.sleep(0.02)
            continue
        torch._C._cuda_endAllocateToPool(0, number)
        torch._C._cuda_releasePool(0, number)
        return
    raise AssertionError("a thread is in the tag")


def enter(context):
    with context:
        pass


def case_one_piece():
    """A tensor of 200 MiB is one piece inside, and ten pages outside; what is small shares a page, within reach as well."""
    with xseg.torch.registered("cache") as pool:
        inside, odd, small = byte_tensor(200), byte_tensor(3), torch.empty(1000, device="cuda")
        with xseg.torch.suspended():
            outside = byte_tensor(200)
    expect_one(inside, 200)
    expect_one(odd, 4)
    expect(asked(small)[1:] == (2, 1), asked(small))
    expect_plain(outside)
    expect([name for name, _ in xseg.torch.tags()] == ["cache"], xseg.torch.tags())
    expect(pool.statistics().reserved_bytes.all.current == 206 * MIB, pool.statistics().reserved_bytes.all.current)


def case_contents():
    """A paused one comes back at its address, in one piece, with what it contained."""
    with xseg.torch.registered("cache"):
        inside = fill(byte_tensor(200), 5)
    address = inside.data_ptr()
    xseg.torch.pause("cache", keep="host")
    expect(torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved())
    xseg.torch.resume("cache")
    expect(inside.data_ptr() == address and bool((inside.cpu() == 5).all()), "it came back")
    expect_one(inside, 200)
    xseg.torch.pin(inside)
    expect_error(xseg.BusyError, ["pinned"], lambda: xseg.torch.pause("cache"))
    xseg.torch.unpin(inside)


def case_two_devices():
    held = []
    for device in (0, 1):
        with xseg.torch.registered("cache", device):
            held.append(byte_tensor(60, f"cuda:{device}"))
        expect_one(held[-1], 60)
    expect(len(xseg.torch.tags("cache")) == 2, xseg.torch.tags())
    expect_error(xseg.ArgumentError, ["'cache'", "registered()"], lambda: enter(xseg.torch.tag("cache", 1)))


def case_clash():
    """A name is of one kind; what was refused has changed nothing."""
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
        expect_one(tensor, 40)
    expect_plain(plain)
    outside = byte_tensor(40)
    expect_plain(outside)


def case_variable():
    """Tags whose whole name is matched are registered ones, by either call; others are not."""
    expected = {"kv_cache": True, "weights": True, "weights2": False, "my_kv_cache": False}
    for name, is_registered in expected.items():
        with xseg.torch.tag(name):
            tensor = byte_tensor(100)
        (expect_one(tensor, 100) if is_registered else expect_plain(tensor))
    enter(xseg.torch.registered("weights"))
    enter(xseg.torch.registered("another"))
    expect_error(xseg.ArgumentError, ["'weights2'"], lambda: enter(xseg.torch.registered("weights2")))


def case_label():
    """So are labels, in the thread that has set one, outside of tags; the label ends with its thread."""
    set_label = getattr(torch.cuda.memory, "_set_memory_metadata", None)
    if set_label is None:
        return
    made, handle = [], torch.cuda.graph_pool_handle
    torch.cuda.graph_pool_handle = lambda: made.append(handle()) or made[-1]
    set_label("kv_cache")
    labelled = byte_tensor(100)
    expect_one(labelled, 100)
    elsewhere = []
    other = threading.Thread(target=lambda: (elsewhere.append(byte_tensor(100)), set_label("weights"),
                                             elsewhere.append(byte_tensor(60))))
    other.start()
    other.join()
    expect_plain(elsewhere[0])
    expect_one(elsewhere[1], 60)
    expect_left(made[1])
    with xseg.torch.tag("plain"):
        tagged = byte_tensor(100)
        set_label("weights")
        with xseg.torch.suspended():
            suspended = byte_tensor(100)
    expect_plain(tagged)
    expect_plain(suspended)
    expect_one(byte_tensor(80), 80)
    set_label("something else")
    expect_plain(byte_tensor(140))
    expect(sorted(name for name, _ in xseg.torch.tags()) == ["kv_cache", "plain", "weights"], xseg.torch.tags())


def case_mem_pool():
    """A MemPool of single pages: what register_mem_pool() gives NCCL, its segments, are one piece each."""
    memory, plain = torch.cuda.MemPool(), torch.cuda.MemPool()
    xseg.torch.pool(memory).set_single_page()
    with torch.cuda.use_mem_pool(memory):
        inside = [byte_tensor(200), byte_tensor(60)]
    with torch.cuda.use_mem_pool(plain):
        outside = byte_tensor(200)
    expect_one(inside[0], 200)
    expect_one(inside[1], 60)
    expect_plain(outside)
    simulator = ctypes.CDLL("libcuda.so.1")
    for pool, are_accepted in ((memory, True), (plain, False)):
        segments = [(each["address"], each["total_size"]) for each in pool.snapshot()]
        expect(sum(size for _, size in segments) == (260 if are_accepted else 200) * MIB, segments)
        for address, size in segments:
            number = ctypes.c_uint64()
            status = simulator.xseg_sim_register(ctypes.c_uint64(address), ctypes.c_uint64(size), 0, ctypes.byref(number))
            expect((status == 0) == are_accepted, (status, address, size))
            if status == 0:
                expect(simulator.xseg_sim_unregister(number) == 0, "it is deregistered")
    expect_error(xseg.BusyError, ["has served a request"], lambda: xseg.torch.pool(plain).set_single_page())


def case_saver():
    """Regions of torch_memory_saver are tags as well."""
    from xseg.torch.memory_saver import torch_memory_saver
    for is_kept in (True, False):
        with torch_memory_saver.region("weights", enable_cpu_backup=is_kept):
            tensor = byte_tensor(100)
        expect_one(tensor, 100)


def case_bad_expression():
    """Nothing matches; the sentence is looked at in the output."""
    with xseg.torch.tag("kv_(cache"):
        expect_plain(byte_tensor(100))


def case_empty_expression():
    """That is as if it were not set."""
    with xseg.torch.tag(""), xseg.torch.tag("weights"):
        expect_plain(byte_tensor(100))


def case_classic():
    """A classic segment is one piece already, which they reach."""
    with xseg.torch.registered("cache"):
        tensor = byte_tensor(100)
    expect(asked(tensor, 50 * MIB) == (0, 100, 1), asked(tensor, 50 * MIB))


class Programs(backends.CaseTest):
    variables = VARIABLES

    def run_case(self, name, *arguments, **more):
        text = super().run_case(name, *arguments, **more)
        if name != "bad_expression":
            # A library with self-checks reports that in a line.
            lines = [line for line in text.splitlines() if "self-checks: " not in line]
            self.assertNotRegex("\n".join(lines), r"xseg(\.torch)?:")
        return text

    def test_bad_expression(self):
        lines = [line for line in self.run_case("bad_expression").splitlines() if "XSEG_TORCH_REGISTERED" in line]
        self.assertEqual(len(lines), 1, lines)
        for words in ("xseg.torch: ignoring XSEG_TORCH_REGISTERED: invalid regular expression, 'kv_(cache', missing )",
                      "such as kv_cache|weights"):
            self.assertIn(words, lines[0])


if __name__ == "__main__":
    backends.main(globals(), Programs)
