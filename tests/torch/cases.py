# SPDX-License-Identifier: MIT
"""Small programs of PyTorch with assertions, which run on any allocator: cases.py NAME."""
import os
import sys

import torch
import torch.multiprocessing
import torch.utils.data

from tensors import FOREVER, MIB, byte_tensor, current, simulator

# Child processes do not run on_backend.py.
if os.environ.get("XSEG_TORCH") == "1":
    import xseg.torch  # noqa: F401 pylint: disable=unused-import


def streams():
    """A block that another stream uses is not reused before that stream reaches the free."""
    side = torch.cuda.Stream()
    block = byte_tensor(64)
    address = block.data_ptr()
    assert simulator().xseg_sim_launch(side.cuda_stream, FOREVER) == 0
    block.record_stream(side)
    assert not side.query()
    del block
    second = byte_tensor(64)
    assert second.data_ptr() != address
    assert current("active_bytes") == 128 * MIB and current("allocated_bytes") == 64 * MIB
    assert simulator().xseg_sim_finish(side.cuda_stream) == 0
    again = byte_tensor(64)
    assert again.data_ptr() == address and side.query()


def events():
    """Events measure the virtual clock, and a stream waits for an event of another stream."""
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    side = torch.cuda.Stream()
    first.record()
    assert simulator().xseg_sim_launch(torch.cuda.current_stream().cuda_stream, 5000000) == 0
    second.record()
    side.wait_event(second)
    assert not second.query()
    side.synchronize()
    assert second.query() and 5 <= first.elapsed_time(second) < 6
    assert simulator().xseg_sim_launch(side.cuda_stream, FOREVER) == 0
    assert not side.query()
    torch.cuda.synchronize()
    assert side.query()


def contents():
    """Copies to the device and back preserve the contents, also through pinned memory; XSEG_SIM_BYTES=1."""
    host = torch.arange(100000)
    assert torch.equal(host.cuda().cpu(), host)
    pinned = host.pin_memory()
    assert pinned.is_pinned() and not host.is_pinned()
    assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), host)


def out_of_memory():
    """An allocation that is too large raises OutOfMemoryError, and the next allocation succeeds."""
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert str(error).startswith("CUDA out of memory. Tried to allocate")
    else:
        raise AssertionError("an allocation of 2^50 bytes succeeds")
    assert torch.empty(1, device="cuda").is_cuda


def listeners():
    """PyTorch's tracer and profiler record the allocation and the free of tensors and of raw blocks."""
    # pylint: disable=import-outside-toplevel,protected-access
    from torch.cuda import _gpu_trace
    allocated, freed = [], []
    _gpu_trace.register_callback_for_memory_allocation(allocated.append)
    _gpu_trace.register_callback_for_memory_deallocation(freed.append)
    torch._C._activate_gpu_trace()
    with torch.profiler.profile(profile_memory=True) as profile:
        tensor = byte_tensor(1)
        addresses = [tensor.data_ptr(), torch.cuda.caching_allocator_alloc(2 * MIB)]
        del tensor
        torch.cuda.caching_allocator_delete(addresses[1])
    assert allocated == addresses and freed == addresses
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert [event.nbytes() for event in events] == [MIB, 2 * MIB, -MIB, -2 * MIB]


def graphs():
    """A graph is captured and replayed; its pool exists until all of its graphs are destroyed."""
    source = torch.zeros(2 * MIB, dtype=torch.uint8, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = source.clone()
        del middle
    with torch.cuda.graph(second, pool=first.pool()):
        result = source.clone()
    source.copy_(torch.full((2 * MIB,), 7, dtype=torch.uint8))
    for graph in (first, second):
        graph.replay()
    torch.cuda.synchronize()
    assert result[5].item() == 7
    before = current("reserved_bytes")
    del first, second, graph, result
    torch.cuda.empty_cache()
    assert current("reserved_bytes") < before


def recorded():
    """An event that a graph records is recorded by its replay, and not by its capture."""
    graph, event = torch.cuda.CUDAGraph(), torch.cuda.Event(external=True)
    with torch.cuda.graph(graph):
        block = torch.zeros(1000, device="cuda")
        event.record()
    graph.replay()
    event.synchronize()
    assert event.query() and block.is_cuda


def conditional():
    """The body of a conditional node is captured into the same pool during the capture of the parent graph."""
    graph = torch.cuda.CUDAGraph()
    choice = torch.ones((), dtype=torch.bool, device="cuda")
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        outside = byte_tensor(4)
        graph.begin_capture_to_if_node(choice)
        inside = torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
        graph.end_capture_to_conditional_node()
    graph.replay()
    torch.cuda.synchronize()
    assert inside.data_ptr() != outside.data_ptr()


def pools():
    """A pool does not share its memory, and releases it when the pool is destroyed."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = byte_tensor(32)
    outside = byte_tensor(32)
    assert current("reserved_bytes") >= 64 * MIB
    assert inside.data_ptr() != outside.data_ptr()
    del inside, pool
    torch.cuda.empty_cache()
    assert current("allocated_bytes") == 32 * MIB and current("reserved_bytes") < 64 * MIB


def compiled():
    """A function that torch.compile captures returns the same shape for each call."""
    function = torch.compile(lambda x: (x * 2).relu() + 1, backend="cudagraphs")
    argument = torch.zeros(1000, device="cuda")
    for _ in range(4):
        assert function(argument).shape == (1000,)


def training():
    """Training steps of a small network allocate no additional memory after the first ones."""
    network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).cuda()
    optimizer = torch.optim.AdamW(network.parameters())
    batch = torch.zeros(32, 64, device="cuda")
    for _ in range(3):
        optimizer.zero_grad()
        network(batch).sum().backward()
        optimizer.step()
    allocated = current("allocated_bytes")
    for _ in range(3):
        optimizer.zero_grad()
        network(batch).sum().backward()
        optimizer.step()
    assert current("allocated_bytes") == allocated


def devices():
    """Tensors are copied from one device to another and back; XSEG_SIM_DEVICES=2."""
    host = torch.arange(100000)
    first = host.to("cuda:0")
    with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream()):
        second = first.to("cuda:1", non_blocking=True)
        back = second.to("cuda:0", non_blocking=True)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    assert second.device.index == 1 and torch.equal(back.cpu(), host)


def receive(queue, replies):
    tensor = queue.get()
    replies.put(tensor[5].item())
    tensor.fill_(0)
    tensor.copy_(torch.full(tensor.shape, 8.0))
    torch.cuda.synchronize()
    del tensor
    replies.put("done")


def sharing():
    context = torch.multiprocessing.get_context("spawn")
    queue, replies = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(queue, replies))
    process.start()
    tensor = torch.empty(MIB, device="cuda")
    tensor.copy_(torch.full((MIB,), 7.0))
    torch.cuda.synchronize()
    queue.put(tensor)
    assert replies.get(timeout=300) == 7.0
    assert replies.get(timeout=300) == "done"
    process.join()
    assert process.exitcode == 0 and tensor[9].item() == 8.0


def loading():
    """Batches of worker processes are copied through pinned memory, and a step runs under autocast."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4))
    network = torch.nn.Linear(4, 4).cuda()
    received = []
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, pin_memory=True):
        assert batch.is_pinned()
        copy = batch.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            assert network(copy).dtype == torch.float16
        received.append(copy.cpu())
    assert torch.equal(torch.cat(received), data.tensors[0])


def forked():
    """A child can use CUDA after a fork that follows device_count(), and gets an error if the parent had used CUDA."""
    assert torch.cuda.device_count() == 1
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.empty(1, device="cuda").is_cuda else 1)
    assert os.waitpid(child, 0)[1] == 0
    block = torch.empty(MIB, device="cuda")
    child = os.fork()
    if child == 0:
        try:
            torch.empty(MIB, device="cuda")
        except RuntimeError as error:
            os._exit(0 if "forked subprocess" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert block.clone().shape == block.shape


if __name__ == "__main__":
    globals()[sys.argv[1]]()
