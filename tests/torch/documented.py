# SPDX-License-Identifier: MIT
"""The examples of docs/pytorch.md, the Python of docs/ranges.md and docs/registration.md, and README.md run as documented.

documented.py DRIVER; each test is a function of this file in a separate process, which reads the example from the page.
"""
import doctest
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import backends

if backends.IS_CASE:
    import torch
    from tensors import FOREVER, MIB, byte_tensor, expect, expect_error, fill, holds, simulator, used_bytes

PAGE = backends.ROOT / "docs/pytorch.md"
RANGES = PAGE.with_name("ranges.md")
REGISTRATION = PAGE.with_name("registration.md")


def code_block(words, page=PAGE):
    """The single code block of a page that contains these words."""
    blocks = [block for block in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
              if words in block]
    if len(blocks) != 1:
        raise AssertionError(f"{len(blocks)} blocks of {page.name} contain {words!r}")
    return blocks[0]


def run_block(words, page=PAGE, **names):
    """Runs a code block with these names defined; returns the names that are defined at its end."""
    exec(compile(code_block(words, page), f"{page.name}: {words}", "exec"), names)
    return types.SimpleNamespace(**names)


def check_streams():
    """A block that another stream uses is not reused before that stream reaches the free."""
    block, side = byte_tensor(30), torch.cuda.Stream()
    address = block.data_ptr()
    expect(simulator().xseg_sim_launch(side.cuda_stream, FOREVER) == 0, "launch")
    block.record_stream(side)
    del block
    second = byte_tensor(30)
    expect(second.data_ptr() != address, "the block is in use by a stream")
    expect(simulator().xseg_sim_finish(side.cuda_stream) == 0, "finish")
    again = byte_tensor(30)
    expect(again.data_ptr() == address, "the block is reused after the stream completes")
    with torch.cuda.stream(side):
        expect(byte_tensor(30).data_ptr() not in (address, second.data_ptr()), "another stream has separate memory")


def check_graphs():
    """Two graphs of one pool are captured and replayed; other allocations do not reuse their memory."""
    source = fill(byte_tensor(2), 3)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = source.clone()
        freed_address = middle.data_ptr()
        result = middle.clone()
        del middle
    with torch.cuda.graph(second, pool=first.pool()):
        second_result = source.clone()
    expect(byte_tensor(2).data_ptr() != freed_address, "memory that the graph freed is not reused")
    fill(source, 7)
    first.replay()
    expect(holds(result, 7), "replayed")
    second.replay()
    expect(holds(second_result, 7), "replayed from the same pool")
    before = used_bytes()
    del first, second, result, second_result
    torch.cuda.empty_cache()
    expect(used_bytes() < before, "the memory is released after the graphs are destroyed")


def case_plugin():
    """The plug-in alone, set by the documented lines: its features, and the methods that PyTorch does not support with it."""
    run_block("CUDAPluggableAllocator(")
    expect(torch.cuda.get_allocator_backend() == "pluggable", "backend")
    expect(holds(fill(byte_tensor(3), 5), 5), "contents")
    check_streams()
    before = used_bytes()
    torch.cuda.empty_cache()
    expect(before - used_bytes() >= 90 * MIB, "empty_cache() releases memory")
    torch.cuda.set_per_process_memory_fraction(0.01)
    expect(byte_tensor(1024).data_ptr() == 0, "beyond the fraction")
    torch.cuda.set_per_process_memory_fraction(1.0)
    expect(byte_tensor(1024).data_ptr() != 0, "within the device")
    expect(byte_tensor(1 << 30).data_ptr() == 0, "beyond the device")
    check_graphs()
    expect_error(RuntimeError, "createOrIncrefPool", lambda: torch.cuda.use_mem_pool(torch.cuda.MemPool()).__enter__())
    expect_error(RuntimeError, "getDeviceStats", torch.cuda.memory_stats)
    expect_error(RuntimeError, "snapshot", torch.cuda.memory_snapshot)
    expect_error(RuntimeError, "recordHistory", torch.cuda.memory._record_memory_history)
    expect_error(RuntimeError, "attachOutOfMemoryObserver", torch._C._cuda_attach_out_of_memory_observer, print)
    expect_error(RuntimeError, "shareIPcHandle", byte_tensor(1).untyped_storage()._share_cuda_)
    expect_error(RuntimeError, "checkPoolLiveAllocations", torch._C._cuda_checkPoolLiveAllocations, 0, (1, 0), set())


def check_examples():
    """The lines that select xseg, the shown session, and the other examples of the page."""
    import xseg.torch
    run_block("import xseg.torch        # right after")
    session = doctest.DocTestParser().get_doctest(code_block(">>> torch.cuda.get_allocator_backend()"),
                                                  {"torch": torch, "xseg": xseg}, PAGE.name, None, None)
    expect(len(session.examples) == 2, "the session has two lines")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    expect(runner.run(session).failed == 0, "the session prints the output of the page")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor_in_pool = byte_tensor(2)
    example = run_block('xseg.torch.tag("weights"):  ', xseg=xseg, build=lambda: fill(byte_tensor(40), 9),
                        tensor=byte_tensor(2), mempool=pool)
    expect(holds(example.model, 9), "the weights have their contents after the resume")
    expect(example.allocator.limits(0).soft_bytes == 20 << 30, "the limit is set")
    expect("idle_ms:2000" in example.allocator.configuration, example.allocator.configuration)
    expect(xseg.torch.pool(pool).statistics().active_bytes.all.current == tensor_in_pool.nbytes, "the pool")
    calls = []
    engine = types.SimpleNamespace(register=lambda *arguments: calls.append(arguments))
    registered = run_block("xseg.torch.registered(", xseg=xseg, torch=torch, engine=engine)
    expect(calls == [(registered.cache.data_ptr(), 200 * MIB)], calls)
    expect_error(xseg.BusyError, "pinned", xseg.torch.pause, "cache")
    xseg.torch.unpin(registered.cache)
    ranged = run_block("cache = xseg.torch.range(", xseg=xseg, torch=torch)
    expect(ranged.keys.shape == (1 << 20, 4096) and ranged.cache.info().committed_bytes == 0, ranged.cache.info())
    saver = run_block("from xseg.torch.memory_saver import", PAGE.with_name("engines.md"))
    expect(saver.torch_memory_saver.enabled, "enabled")
    line = re.search(r"^tensor = torch\.from_dlpack.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[0]
    names = {"torch": torch, "block": example.allocator.allocate(1 << 20)}
    exec(line, names)
    expect(names["tensor"].data_ptr() == names["block"].pointer and names["tensor"].shape == (1 << 18,), names["tensor"].shape)


def install_vllm_model():
    """Installs models of the modules of vLLM that the plug-in changes, with the worker methods that call the allocator."""

    class Worker:
        """The steps of vLLM's worker that use the allocator: load, create the cache, sleep, wake up."""

        def memory(self, tag):
            return gpu_worker.CuMemAllocator.get_instance().use_memory_pool(tag=tag)

        def load(self):
            """Allocates weights, the cache, and temporary memory for the weights."""
            expect(gpu_worker.CuMemAllocator.get_instance().get_current_usage() == 0, "a process has one instance")
            with self.memory("weights"):
                temporary = byte_tensor(60)
                self.weights = [fill(byte_tensor(20), value) for value in (1, 2, 3)]
                del temporary
            with self.memory("kv_cache"):
                self.cache = fill(byte_tensor(100), 0)

        def capture(self):
            """Captures a graph that reads the weights and writes the cache."""
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                middle = self.weights[1].clone()
                self.cache[:20 * MIB].copy_(middle)

        def sleep(self, level):
            """Level 1 keeps the contents of the weights, level 2 discards all contents."""
            gpu_worker.CuMemAllocator.get_instance().sleep(offload_tags=("weights",) if level == 1 else tuple())

        def wake_up(self, tags=None):
            gpu_worker.CuMemAllocator.get_instance().wake_up(tags)

    gpu_worker = types.SimpleNamespace(Worker=Worker, CuMemAllocator=None)
    cumem = types.SimpleNamespace(CuMemAllocator=None)
    sys.modules.update({"vllm": types.ModuleType("vllm"), "vllm.device_allocator": types.SimpleNamespace(cumem=cumem),
                        "vllm.v1": types.ModuleType("vllm.v1"),
                        "vllm.v1.worker": types.SimpleNamespace(gpu_worker=gpu_worker)})
    return gpu_worker, cumem


def check_sleep():
    """The plug-in for vLLM's sleep mode keeps weights and discards the cache; graphs remain valid."""
    from xseg.engines import vllm as plugin
    gpu_worker, cumem = install_vllm_model()
    plugin.register()
    gpu_worker.CuMemAllocator = cumem.CuMemAllocator
    worker = gpu_worker.Worker()
    worker.load()
    expect(gpu_worker.CuMemAllocator.get_instance().get_current_usage() == 160 * MIB, "temporary memory of the load is released")
    worker.capture()
    torch.cuda.empty_cache()
    awake_bytes, addresses = used_bytes(), [tensor.data_ptr() for tensor in (*worker.weights, worker.cache)]
    for _ in range(2):
        worker.sleep(level=1)
        expect(used_bytes() == awake_bytes - 160 * MIB, used_bytes())
        worker.sleep(level=1)
        other_memory = byte_tensor(200)
        worker.wake_up(tags=["weights"])
        expect(all(holds(tensor, value) for tensor, value in zip(worker.weights, (1, 2, 3))), "the weights are restored")
        del other_memory
        torch.cuda.empty_cache()
        expect(used_bytes() == awake_bytes - 100 * MIB, used_bytes())
        worker.wake_up(tags=["kv_cache"])
        worker.wake_up()
        expect(used_bytes() == awake_bytes, used_bytes())
        fill(worker.cache, 0)
        worker.graph.replay()
        expect(holds(worker.cache[:20 * MIB], 2) and holds(worker.cache[20 * MIB:], 0), "contents after the replay")
    worker.sleep(level=2)
    expect(used_bytes() == awake_bytes - 160 * MIB, used_bytes())
    worker.wake_up()
    fill(worker.weights[1], 8)
    worker.graph.replay()
    expect(holds(worker.cache[:20 * MIB], 8), "the graph reads weights that were loaded again")
    expect(addresses == [tensor.data_ptr() for tensor in (*worker.weights, worker.cache)], "addresses are unchanged")


def case_page():
    check_sleep()
    check_examples()


def run_range_example(words):
    """Runs the first lines of docs/ranges.md and an example."""
    return run_block(words, RANGES, **vars(run_block("LAYERS, BLOCKS, BLOCK, PAGE =", RANGES)))


def check_page(run, layers, blocks, grow):
    """A page maps memory for its blocks in all layers, and the blocks do not overlap.  A growth that fails changes nothing."""
    before = used_bytes()
    grow(3)
    expect(used_bytes() - before == blocks * run.LAYERS * run.BLOCK, used_bytes() - before)
    first_and_last_blocks = [(layer, block) for layer in range(run.LAYERS) for block in (3 * blocks, 4 * blocks - 1)]
    for number, (layer, block) in enumerate(first_and_last_blocks):
        fill(layers[layer][block], number)
    expect(all(holds(layers[layer][block], number) for number, (layer, block) in enumerate(first_and_last_blocks)),
           "blocks do not overlap")
    allocator = run.xseg.torch.allocator()
    allocator.set_limits(0, hard_bytes=used_bytes() + blocks * run.LAYERS * run.BLOCK - run.PAGE // 2)
    expect_error(MemoryError, "xseg_limits_set()", grow, 4)
    allocator.set_limits(0, hard_bytes=None)
    grow(4)
    return before


def case_range_examples():
    """One tensor per layer, one tensor for all layers, and two groups with a reservation for one of them."""
    torch.cuda.init()
    for words, blocks in (("PART = BLOCKS", 32), ("whole = ", 8)):
        run = run_range_example(words)
        before = check_page(run, run.layers, blocks, run.grow)
        for page in (3, 4):
            run.shrink(page)
        torch.cuda.empty_cache()
        expect(used_bytes() == before, used_bytes() - before)
    check_groups(run_range_example("WINDOW = "))


def check_groups(run):
    """The full group cannot grow into the memory reserved for the window, and can use other memory that the window releases."""
    tensor, pages = run.tensors["window"], run.BLOCKS * run.LAYERS * run.BLOCK // run.PAGE
    run.xseg.torch.allocator().set_limits(0, hard_bytes=used_bytes() + run.WINDOW + 5 * run.PAGE)
    for page in range(20):
        run.grow("window", page)
    run.grow("full", 0)
    expect_error(MemoryError, "xseg_limits_set()", run.grow, "full", 1)
    fill(tensor[8 * 19], 5)  # the first block of page 19; a page has 8 blocks
    expect(holds(tensor[8 * 19], 5), "contents")
    for page in range(20):
        run.shrink("window", page)
    for page in range(1, 5):
        run.grow("full", page)
    expect_error(MemoryError, "xseg_limits_set()", run.grow, "full", 5)
    for page in range(pages - 16, pages):
        run.grow("window", page)


def case_registration():
    """The registered tensor is pinned."""
    run = run_block("xseg.torch.registered(", REGISTRATION)
    expect(run.cache.nbytes == 200 * MIB, run.cache.nbytes)
    expect_error(run.xseg.BusyError, "pinned", run.xseg.torch.pause, "kv_cache")
    run.xseg.torch.unpin(run.cache)
    run.xseg.torch.pause("kv_cache")


def case_address_ranges():
    """The documented counters of address ranges, for segments of small and of large blocks."""
    import xseg.torch  # pylint: disable=import-outside-toplevel
    tensors = [byte_tensor(0.5), byte_tensor(30)]
    ranges = run_block("ranges = {block.segment_base", torch=torch, xseg=xseg).ranges
    total = torch.cuda.get_device_properties(0).total_memory
    expect(len(ranges) == len(tensors) and min(ranges.values()) > total, ranges)


class Documented(backends.CaseTest):
    environment = {"XSEG_SIM_BYTES": "1", "XSEG_SIM_MEMORY_MB": "8192"}

    def test_plugin(self):
        folder = pathlib.Path(sys.argv[1]).resolve().parent / "src/adapters/torch"
        text = self.run_case("plugin", backend="native", LD_LIBRARY_PATH=str(folder))
        self.assertEqual(text.count("xseg-torch: xseg_alloc: "), 2, text)

    def test_readme(self):
        """docs/train.py prints the documented output, on xseg and without the import of xseg.torch."""
        text = PAGE.with_name("train.py").read_text(encoding="utf-8")
        native_program, count = re.subn(r"^import xseg\.torch.*", "", text, flags=re.MULTILINE)
        self.assertEqual(count, 1)
        expected = "".join(f"{line.strip()}\n" for line in text.split('"""')[1].splitlines() if line.startswith("    "))
        with tempfile.TemporaryDirectory() as folder:
            for program, output in ((text, expected), (native_program, expected.replace("xseg: 580 MiB", "native: 2880 MiB"))):
                path = pathlib.Path(folder, "train.py")
                path.write_text(program, encoding="utf-8")
                command = [sys.executable, backends.ENVIRONMENT, "--offline", "--xseg", "--driver", sys.argv[1]]
                completed = subprocess.run([*command, "run", "python", path], check=False, capture_output=True, text=True,
                                           env=backends.plain_environment())
                self.assertEqual((completed.returncode, completed.stdout), (0, output), completed.stderr)


if __name__ == "__main__":
    backends.main(globals(), Documented)
