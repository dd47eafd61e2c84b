# SPDX-License-Identifier: MIT
"""The plug-ins for vLLM and SGLang, with models of the modules that they change: engines.py DRIVER.

The models have the names and the interfaces of vLLM 0.33.0 (of later commits for tag hooks and graph pools) and of SGLang
0.5.23.
"""
import configparser
import logging
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest

import backends

if backends.IS_CASE:
    import torch
    from tensors import MIB, byte_tensor, expect, expect_error, fill, holds, used_bytes

VLLM = {
    "vllm/__init__.py": "",
    "vllm/device_allocator/__init__.py": """
import contextlib
hooks = {}

def get_mem_allocator_instance():
    from vllm.device_allocator.cumem import CuMemAllocator
    return CuMemAllocator.get_instance()

def register_tag_hooks(tag, before_unmap, after_map):
    hooks[tag] = before_unmap, after_map

def run_before_unmap_hooks(allocations, tags=None):
    for tag in {each.tag for each in allocations if not each.is_asleep and (tags is None or each.tag in tags)} & set(hooks):
        hooks[tag][0]()

def run_after_map_hooks(allocations):
    for tag in set(hooks) - {each.tag for each in allocations if each.is_asleep}:
        hooks[tag][1]()
""",
    "vllm/device_allocator/cumem.py": "cumem_available = False\nclass CuMemAllocator:\n    pass\n",
    "vllm/device_allocator/sleep_mode_backend.py": """
import importlib
from vllm.device_allocator import get_mem_allocator_instance

class CuMemBackend:
    def suspend(self, level=1):
        get_mem_allocator_instance().sleep(offload_tags=(("weights",) if level == 1 else ()) + ("runtime", "cudagraph"))

    def resume(self, tags=None):
        get_mem_allocator_instance().wake_up(tags)

    def discard(self, tags):
        get_mem_allocator_instance().discard(tags)

class SleepModeBackendFactory:
    registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls.registry:
            raise ValueError("already registered")
        cls.registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)
""",
}
SGLANG = {
    "sglang/__init__.py": "", "sglang/srt/__init__.py": "", "sglang/srt/utils/__init__.py": "",
    "sglang/srt/utils/torch_memory_saver_adapter.py": """
try:
    import torch_memory_saver
    _memory_saver = torch_memory_saver.torch_memory_saver
    import_error = None
except ImportError as error:
    import_error = error
""",
    "torch_memory_saver/__init__.py": "torch_memory_saver = 'the installed package'\n",
}


# --- In the processes. ---

def register_plugin():
    """Registers the plug-in for vLLM as vLLM does; returns the allocator and the backend."""
    from xseg.engines import vllm as plugin
    plugin.register()
    plugin.register()
    from vllm.device_allocator import cumem, get_mem_allocator_instance
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    expect(cumem.cumem_available and get_mem_allocator_instance() is get_mem_allocator_instance(), "one allocator")
    backend = SleepModeBackendFactory.registry["xseg"]()
    expect(backend.is_supported(), "the backend is supported")
    return get_mem_allocator_instance(), backend()


class Warnings(logging.Handler):
    """The warnings of the plug-in."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []
        logging.getLogger("vllm.xseg").addHandler(self)

    def emit(self, record):
        self.messages.append(record.getMessage())


def case_vllm():
    """As vLLM's worker: weights, a KV cache, captured graphs; both levels, selective wake-up, discard."""
    allocator, backend = register_plugin()
    warnings = Warnings()
    expect(allocator.get_current_usage() == 0, "nothing is used before the weights")
    with allocator.use_memory_pool(tag="weights"):
        weights = fill(byte_tensor(100), 1)
        temporary = byte_tensor(300)
        del temporary
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = fill(byte_tensor(200), 2)
        with allocator.use_memory_pool(tag="runtime"):
            runtime = fill(byte_tensor(20), 3)
        added_cache = byte_tensor(20)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with allocator.cudagraph_pool() as pool, torch.cuda.graph(graph, pool=pool, stream=stream):
        captured = byte_tensor(40)
        captured.copy_(weights[: 40 * MIB])
    expect(allocator.get_current_usage() == (100 + 220 + 20 + 40) * MIB, allocator.get_current_usage() / MIB)
    untagged, addresses = fill(byte_tensor(10), 4), [tensor.data_ptr() for tensor in (weights, cache, runtime, captured)]
    before = used_bytes()

    backend.suspend(level=1)
    expect(before - used_bytes() >= 380 * MIB and allocator.get_current_usage() == 0, "sleep releases all memory of the tags")
    expect(holds(untagged, 4), "other memory remains mapped")
    backend.suspend(level=2)
    expect(warnings.messages == ["xseg: tag is already asleep, weights; its contents remain as they were kept"],
           warnings.messages)
    backend.resume(["weights"])
    expect(allocator.get_current_usage() == (100 + 20 + 40) * MIB, "the KV cache remains asleep")
    expect(holds(weights, 1) and holds(runtime, 3), "contents of weights and of the run time are kept")
    backend.resume(["kv_cache"])
    expect([tensor.data_ptr() for tensor in (weights, cache, runtime, captured)] == addresses and added_cache.numel(),
           "at the same addresses")
    graph.replay()
    expect(holds(captured, 1), "the graph is valid")

    backend.discard(("kv_cache", "unknown"))
    expect(allocator.get_current_usage() == 160 * MIB, "discard releases these tags only")
    backend.suspend(level=2)
    backend.resume()
    fill(weights, 5)
    expect(holds(weights, 5) and holds(runtime, 3), "level 2 keeps the run time's contents")
    del graph, captured
    allocator.release_cudagraph_pool()
    expect(allocator.get_current_usage() == 340 * MIB, "destroyed graphs release their pool")
    allocator.release_pools()


def case_vllm_graph_pools():
    """Later versions pass a pool of PyTorch, and release the pool of a profile run."""
    allocator, _ = register_plugin()
    profile, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with allocator.use_cudagraph_pool(profile) as pool, torch.cuda.graph(graph, pool=pool):
        scratch = byte_tensor(60)
    with allocator.use_cudagraph_pool() as own:
        expect(own != pool, "a separate pool")
    allocator.sleep()
    expect(allocator.get_current_usage() == 0, "all graph pools sleep")
    allocator.wake_up()
    expect(allocator.get_current_usage() == 60 * MIB, "and wake up")
    del graph, scratch
    allocator.release_cudagraph_pool(profile)
    expect(allocator.get_current_usage() == 0, "released")


def case_vllm_hooks():
    """Hooks of the allocator and of vLLM's function."""
    import vllm.device_allocator
    allocator, backend = register_plugin()
    calls = []
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = byte_tensor(40)
    remove = allocator.register_tag_hooks("kv_cache", lambda: calls.append(("unmap", allocator.get_current_usage())),
                                          lambda: calls.append(("map", allocator.get_current_usage())))
    vllm.device_allocator.register_tag_hooks("kv_cache", lambda: calls.append("before"), lambda: calls.append("after"))
    backend.suspend()
    backend.suspend()
    expect(calls == ["before", ("unmap", 40 * MIB)], calls)
    backend.resume(["weights"])
    expect(len(calls) == 2, "the tag sleeps")
    backend.resume(["kv_cache"])
    expect(calls[2:] == ["after", ("map", 40 * MIB)], calls)
    remove()
    backend.discard(("kv_cache",))
    expect(calls[4:] == ["before"] and cache.numel(), calls)


def case_vllm_busy():
    """A tag that cannot be paused stays awake, and a later sleep releases it."""
    import xseg.torch
    allocator, backend = register_plugin()
    with allocator.use_memory_pool(tag="weights"):
        weights = fill(byte_tensor(40), 1)
    with allocator.use_memory_pool(tag="kv_cache"):
        cache = byte_tensor(60)
    calls = []
    allocator.register_tag_hooks("weights", lambda: calls.append("unmap"), lambda: calls.append("map"))
    xseg.torch.pin(weights)
    expect_error(xseg.BusyError, "pinned", backend.suspend)
    expect(allocator.get_current_usage() == 40 * MIB and calls == ["unmap", "map"], "only the KV cache sleeps")
    xseg.torch.unpin(weights)
    backend.suspend()
    expect(allocator.get_current_usage() == 0, "all sleep")
    backend.resume()
    expect(allocator.get_current_usage() == 100 * MIB and holds(weights, 1) and cache.numel(), "all wake up")


def case_vllm_out_of_memory():
    """As test_python_error of vLLM: a wake-up without memory is a RuntimeError, and a later one succeeds."""
    allocator, _ = register_plugin()
    with allocator.use_memory_pool():
        first = fill(byte_tensor(200), 1)
    allocator.sleep()
    untagged = byte_tensor(200)
    expect_error(RuntimeError, "is still paused", allocator.wake_up)
    expect(allocator.get_current_usage() == 0, "the tag remains asleep")
    del untagged
    allocator.wake_up()
    expect(holds(first, 1), "contents are kept")


def case_vllm_attributes():
    """Attributes of vLLM's class that its tests and other programs read: allocations, and the tag of the next one."""
    allocator, backend = register_plugin()
    expect(allocator.current_tag == "default" and not allocator.pointer_to_data, "nothing is allocated")
    with allocator.use_memory_pool("weights"):
        weights = byte_tensor(40)
        with allocator.use_memory_pool("kv_cache"):
            expect(allocator.current_tag == "kv_cache", allocator.current_tag)
            cache = byte_tensor(80)
        expect(allocator.current_tag == "weights", allocator.current_tag)
    with allocator.cudagraph_pool():
        expect(allocator.current_tag == "cudagraph", allocator.current_tag)

    def sizes():
        return {(data.tag, data.is_asleep): data.handle[1] // MIB for data in allocator.pointer_to_data.values()}

    expect(sizes() == {("weights", False): 40, ("kv_cache", False): 80}, sizes())
    expect(set(allocator.pointer_to_data) == {weights.data_ptr(), cache.data_ptr()}, allocator.pointer_to_data)
    backend.discard(("kv_cache",))
    expect(sizes() == {("weights", False): 40, ("kv_cache", True): 80}, sizes())


def case_vllm_broken():
    """An error of vLLM's own module, such as a missing symbol, does not end a process that does not use sleep mode."""
    class Finder:
        @staticmethod
        def find_spec(name, *_):
            if name == "vllm.device_allocator.cumem":
                raise AttributeError("undefined symbol")

    from xseg.engines import vllm as plugin
    messages = Warnings().messages
    sys.meta_path.insert(0, Finder)
    plugin.register()
    expect("sleep mode is not available, undefined symbol" in messages[0], messages)


def case_vllm_unused():
    """PyTorch on its own allocator: vLLM is unchanged, and the backend is an error."""
    from xseg.engines import vllm as plugin
    from vllm.device_allocator import cumem
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    before, messages = cumem.CuMemAllocator, Warnings().messages
    plugin.register()
    expect(cumem.CuMemAllocator is before and not cumem.cumem_available, "unchanged")
    expect(not SleepModeBackendFactory.registry["xseg"]().is_supported(), "the backend is not supported")
    expect("start vLLM by `xseg run`" in messages[0], messages)
    expect("xseg.torch" not in sys.modules, "nothing is imported")


def case_vllm_old():
    """A version without backends, and one whose extension cannot be loaded."""
    from xseg.engines import vllm as plugin
    messages = Warnings().messages
    sys.modules.update({"vllm.device_allocator.sleep_mode_backend": None, "vllm.device_allocator.cumem": None})
    plugin.register()
    expect("sleep mode is not available" in messages[0], messages)


def case_sglang():
    """The name torch_memory_saver is xseg's, however the plug-in and the import are ordered."""
    if "without the finder" in sys.argv:
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "SaverFinder"]
    is_first = "SaverFinder" in {type(finder).__name__ for finder in sys.meta_path}
    from sglang.srt.utils import torch_memory_saver_adapter as adapter
    expect((adapter._memory_saver == "the installed package") != is_first, adapter._memory_saver)
    from xseg.engines import sglang as plugin
    plugin.register()
    import torch_memory_saver as saver
    expect(saver.is_xseg and adapter.torch_memory_saver is saver and adapter._memory_saver is saver.torch_memory_saver,
           "the adapter uses xseg")
    with adapter.torch_memory_saver.configure_subprocess():
        expect(os.environ["XSEG_TORCH"] == "1" and adapter.import_error is None, "processes run on xseg")
    with adapter._memory_saver.region(tag="kv_cache", enable_cpu_backup=False):
        cache = byte_tensor(100)
    before = used_bytes()
    adapter._memory_saver.pause(tag="kv_cache")
    expect(before - used_bytes() >= 100 * MIB, "pause() releases the memory")
    adapter._memory_saver.resume(tag="kv_cache")
    expect(used_bytes() == before and cache.numel(), "resume() maps it")


def case_margin():
    """memory_margin_bytes is the key device_free_min_mb."""
    import torch_memory_saver as package
    import xseg.torch
    saver = package.torch_memory_saver
    expect(saver.memory_margin_bytes == 0, "none")
    saver.memory_margin_bytes = 100 * MIB + 1
    expect("device_free_min_mb:101" in xseg.torch.allocator().configuration, xseg.torch.allocator().configuration)
    expect(saver.memory_margin_bytes == 100 * MIB + 1, "can be read")
    expect_error(ValueError, "memory_margin_bytes", setattr, saver, "memory_margin_bytes", -1)
    saver.memory_margin_bytes = 0
    expect("device_free_min_mb:0" in xseg.torch.allocator().configuration, "off")
    saver.retain_cpu_backup = False
    expect_error(NotImplementedError, "retain_cpu_backup", setattr, saver, "retain_cpu_backup", True)
    expect_error(NotImplementedError, "set_disk_backup_dir", saver.set_disk_backup_dir, "backups")
    for words, options in (("enable_disk_backup", {"enable_disk_backup": True}),
                           ("mmap", {"enable_cpu_backup": True, "cpu_backup_backend": "mmap"})):
        expect_error(NotImplementedError, words, saver.region(**options).__enter__)
    expect_error(ValueError, "pass enable_cpu_backup=True", saver.region(cpu_backup_backend="pinned").__enter__)
    with saver.region(enable_cpu_backup=True, cpu_backup_backend="pinned"), saver.disable(dispose_mem_pool_after_use=True):
        pass


def case_time():
    """The CPU time that the plug-ins add to the import of torch: the hook, and the registration without an engine."""
    import _xseg_torch_hook as hook
    start = time.process_time()
    hook.load_ipc()
    from xseg.engines import sglang, vllm
    sys.modules.update({"vllm.device_allocator.sleep_mode_backend": None, "vllm.device_allocator": None})
    vllm.register()
    sglang.register()
    print("added", round(1000 * (time.process_time() - start), 1), "ms")


# --- The tests. ---

class Engines(backends.CaseTest):
    variables = {"vllm_out_of_memory": {"XSEG_SIM_MEMORY_MB": "300"}}

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        for name, text in {**VLLM, **SGLANG}.items():
            (cls.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (cls.folder / name).write_text(text, encoding="utf-8")

    def start_case(self, name, *arguments, backend="xseg", **variables):
        path = f"{self.folder}:{backends.ADAPTER}"
        return super().start_case(name, *arguments, backend=backend, **{"XSEG_SIM_BYTES": "1", "PYTHONPATH": path, **variables})

    def test_vllm_unused(self):
        self.run_case("vllm_unused", backend="native")

    def test_sglang_imports_first(self):
        self.run_case("sglang", "without the finder")

    def test_time(self):
        """The plug-ins add less than 30 ms of CPU time; the process has imported torch and xseg."""
        text = self.run_case("time", backend="native", PYTHONHASHSEED="0")
        print(re.search(r"added .*", text)[0])
        self.assertLess(float(re.search(r"added ([\d.]+)", text)[1]), 30)

    def test_entry_points_name_functions(self):
        sys.path.insert(0, str(backends.ADAPTER))
        import backend
        points = configparser.ConfigParser(delimiters=("=",))
        points.read_string(backend.ENTRY_POINTS)
        self.assertEqual({"console_scripts", "sglang.srt.plugins", "vllm.general_plugins"}, set(points.sections()))
        for group in points.sections():
            module, _, name = points[group]["xseg"].partition(":")
            self.assertTrue(callable(getattr(__import__(module, fromlist=[name]), name)))


if __name__ == "__main__":
    backends.main(globals(), Engines)
