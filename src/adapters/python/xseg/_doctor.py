# SPDX-License-Identifier: MIT
"""Checks of PyTorch and inference engines on xseg: `python -m xseg doctor`, and xseg.torch.doctor() in a process.

A line has a level, a subject, and a setting in effect or a conflict; a warning or failure also has its solution:

    ok       nothing to do
    note     something to know
    warning  some programs will fail or be slower
    fail     something will fail
"""
import importlib.metadata
import os
import re
import sys
from typing import Any, Iterator, List, NamedTuple

from xseg import _library
from xseg._structs import VERSION
from xseg.engines import TESTED

PLUGINS = {"vllm": ("vLLM", "vllm.general_plugins", "VLLM_PLUGINS"), "sglang": ("SGLang", "sglang.srt.plugins", "SGLANG_PLUGINS")}
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # in the order in which xseg reads them
START = "start the program by `xseg run`"


class Line(NamedTuple):
    """A result."""

    level: str
    subject: str
    text: str


def _torch(is_started: bool) -> Any:
    """Get the module torch, or None.  is_started: import it, as a program does."""
    if is_started and "torch" not in sys.modules:
        try:
            import torch  # pylint: disable=import-outside-toplevel
        except ImportError:
            return None
        return torch
    return sys.modules.get("torch")


def _reason() -> str:
    """Explain why PyTorch does not run on xseg although XSEG_TORCH is 1."""
    hook = sys.modules.get("_xseg_torch_hook")
    if hook is None:
        return (f"the hook of the wheel did not run in {sys.executable}; install the wheel of xseg into the environment of this Python, "
                "and do not use `python -I` or `-S`")
    return getattr(hook, "error", None) or "CUDA was initialized, or another allocator was set, before torch was imported; import torch first"


def _allocator(torch: Any, is_used: bool) -> Iterator[Line]:
    setting = os.environ.get("XSEG_TORCH", "")
    if torch is None:
        yield Line("fail" if setting == "1" else "note", "allocator",
                   f"PyTorch cannot be imported by {sys.executable}; run this command with the Python of the program")
    elif is_used:
        from xseg import torch as adapter  # pylint: disable=import-outside-toplevel
        found = adapter.info()
        yield Line("ok", "allocator", f"PyTorch {found['torch']} runs on xseg {VERSION}, {found['library']}")
        yield Line("ok", "adapter", found["adapter"])
        if found["uncovered"]:
            yield Line("note", "adapter", f"methods of this version of PyTorch without an effect, {', '.join(found['uncovered'])}; "
                       "install a newer xseg if a program needs them")
    elif setting == "1":
        yield Line("fail", "allocator", f"PyTorch {torch.__version__} runs on its own allocator, although XSEG_TORCH is 1: {_reason()}")
    else:
        yield Line("note", "allocator", f"PyTorch {torch.__version__} runs on its own allocator; {START}, or set XSEG_TORCH=1")


def _key(config: str, key: str) -> str:
    """Get the value of the last entry with this key; "": none."""
    found = re.findall(rf"(?:^|,)\s*{key}\s*:\s*([^,]*?)\s*(?=,|$)", config)
    return str(found[-1]) if found else ""


def _segments(torch: Any, is_started: bool) -> Iterator[Line]:
    """Check the kind of segments in effect.  is_started: initialize CUDA, and allocate one tensor."""
    from xseg import torch as adapter  # pylint: disable=import-outside-toplevel
    if not torch.cuda.is_initialized() and not is_started:
        yield Line("note", "segments", "CUDA is not initialized; call torch.cuda.init() first to check segments and IPC")
        return
    try:
        allocator = adapter.allocator()
        probe = torch.empty(1, dtype=torch.uint8, device="cuda")
        is_expandable = allocator.block_at(probe.data_ptr()).is_expandable
    except (RuntimeError, OSError) as error:
        yield Line("fail", "segments", f"CUDA cannot be initialized, {str(error).splitlines()[0]}; check the driver by `xseg probe --driver cuda`")
        return
    config, source = allocator.configuration, allocator.configuration_source
    if not is_expandable:
        advice = ("set expandable_segments:True in XSEG_ALLOC_CONF to use expandable segments" if _key(config, "expandable_segments") == "False" else
                "the driver does not support virtual memory management, see `xseg probe --driver cuda`")
        yield Line("note", "segments", f"classic, configuration from {source}; {advice}")
        yield Line("ok", "legacy IPC", "the driver serves cudaIpcGetMemHandle() for classic segments")
        return
    yield Line("ok", "segments", f"expandable, configuration from {source}")
    yield from _ipc(adapter, _key(config, "exportable") == "True")


def _ipc(adapter: Any, is_exportable: bool) -> Iterator[Line]:
    """Check IPC of expandable memory."""
    failure = "cudaIpcGetMemHandle() of a tensor fails, which custom all-reduce and weight transfer call"
    alternative = "or turn these features off, such as by --disable-custom-all-reduce"
    is_served = bool(adapter._ADAPTER.xseg_torch_serves_ipc()) and is_exportable  # pylint: disable=protected-access
    if is_served:
        yield Line("ok", "legacy IPC", "cudaIpcGetMemHandle() of tensors is served, also for custom all-reduce")
        yield Line("note", "legacy IPC", "calls to a CUDA runtime that is linked statically, and of functions that are looked up in the runtime "
                   "library (ctypes, dlsym), are not served; turn legacy IPC off in such programs")
    elif not is_exportable:
        yield Line("fail", "legacy IPC", f"{failure}: memory is not exportable; remove exportable:False and "
                   f"TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0, {alternative}")
    elif _library.ipc() is None:
        yield Line("fail", "legacy IPC", f"{failure}: libxseg-ipc.so is not installed; install the wheel or the package xseg, {alternative}")
    else:
        yield Line("fail", "legacy IPC", f"{failure}: libxseg-ipc.so was not loaded before the CUDA runtime; {START}, {alternative}")
    is_kept = os.environ.get("XSEG_TORCH_KEEP_EXPANDABLE") == "1"
    if is_kept and is_served:
        yield Line("ok", "toggles", "expandable_segments:False at run time is ignored")
    elif is_kept:
        yield Line("warning", "toggles", "XSEG_TORCH_KEEP_EXPANDABLE has no effect, because legacy IPC is not served; see above")
    else:
        yield Line("note", "toggles", "expandable_segments:False at run time (verl, SkyRL, vLLM) creates classic segments, which remain; "
                   "pass --keep-expandable to `xseg run`, or set XSEG_TORCH_KEEP_EXPANDABLE=1, to ignore it")


def _guards() -> Iterator[Line]:
    """Check the variables that engines read."""
    values = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    for name, value in values.items():
        if _key(value, "backend") not in ("", "native"):
            yield Line("fail", "guards", f"{name} selects another allocator, backend:{_key(value, 'backend')}; remove the key")
        if _key(value, "expandable_segments") == "True":
            yield Line("warning", "guards", f"{name} names expandable_segments:True: vLLM rejects KV connectors, SGLang's weight cache raises an error, "
                       "Megatron-LM requires NCCL_GRAPH_REGISTER=0; move the other keys to XSEG_ALLOC_CONF and unset the variable, since xseg has expandable segments by default")
    if len({_key(value, "expandable_segments") for value in values.values()}) > 1:
        yield Line("warning", "guards", f"{' and '.join(values)} differ in expandable_segments; xseg reads the first one only, so remove the other")
    if not any("expandable_segments" in value for value in values.values()):
        yield Line("ok", "guards", f"{' and '.join(VARIABLES)} do not name expandable_segments, so engines disable no feature; "
                   "pass --declare-expandable to `xseg run` if a feature must be disabled")


def _nccl() -> Iterator[Line]:
    if os.environ.get("NCCL_GRAPH_REGISTER") == "0":
        yield Line("ok", "NCCL", "NCCL_GRAPH_REGISTER is 0: NCCL does not register buffers of CUDA graphs")
    else:
        yield Line("warning", "NCCL", "NCCL 2.27 and later registers buffers of collectives in CUDA graphs, which must not be unmapped or paused; "
                   "set NCCL_GRAPH_REGISTER=0 if the program captures collectives")


def _memory_saver() -> Iterator[Line]:
    """Check torch_memory_saver, which intercepts cudaMalloc()."""
    loaded = sys.modules.get("torch_memory_saver")
    if "torch_memory_saver" in os.environ.get("LD_PRELOAD", ""):
        yield Line("fail", "memory saver", "LD_PRELOAD has the library of torch_memory_saver, whose pause() releases no memory of xseg; remove it from "
                   "LD_PRELOAD")
    elif loaded is not None and not hasattr(loaded, "is_xseg"):
        yield Line("fail", "memory saver", "torch_memory_saver is imported, whose pause() releases no memory of xseg; set XSEG_TORCH=1, or import "
                   "xseg.torch before it")
    elif loaded is not None or "SaverFinder" in {type(finder).__name__ for finder in sys.meta_path}:
        yield Line("ok", "memory saver", "the import of torch_memory_saver finds the implementation by tags of xseg")
    else:
        yield Line("note", "memory saver", "the import of torch_memory_saver finds the installed package, whose pause() releases no memory of xseg; "
                   "set XSEG_TORCH=1, or import xseg.torch.memory_saver instead")


def _engine(package: str) -> Iterator[Line]:
    """Check an installed engine, and the plug-in for it."""
    name, group, variable = PLUGINS[package]
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return
    if version != TESTED[package]:
        yield Line("note", name, f"version {version} is installed, and modules of {TESTED[package]} were tested; report differences")
    allowed = os.environ.get(variable)
    if not any(point.name == "xseg" for point in _entry_points(group)):
        yield Line("warning", name, f"entry point not found in {group}, so sleep mode is the engine's own; install the wheel of xseg with pip")
    elif allowed is not None and "xseg" not in [each.strip() for each in allowed.split(",")]:
        yield Line("warning", name, f"{variable} excludes the plug-in, {allowed!r}, so sleep mode is the engine's own; add xseg to {variable}")
    else:
        yield Line("ok", name, f"version {version}: the plug-in is loaded, and sleep mode pauses tags of xseg")


def _entry_points(group: str) -> List[Any]:
    found: Any = importlib.metadata.entry_points()
    return list(found.select(group=group) if hasattr(found, "select") else found.get(group, ()))


def check(is_started: bool) -> Iterator[Line]:
    """Run all checks.  is_started: import torch and initialize CUDA, as a program does."""
    torch = _torch(is_started)
    adapter = sys.modules.get("xseg.torch")
    is_used = torch is not None and adapter is not None and torch.cuda.get_allocator_backend() == "xseg"
    yield from _allocator(torch, is_used)
    if not is_used:
        return
    yield from _segments(torch, is_started)
    yield from _guards()
    yield from _nccl()
    yield from _memory_saver()
    for package in PLUGINS:
        yield from _engine(package)


def report(is_started: bool = False) -> bool:
    """Print all results.  Returns False if something will fail."""
    failed = 0
    for line in check(is_started):
        print(f"{line.level:8} {line.subject:13} {line.text}", flush=True)
        failed += line.level == "fail"
    return failed == 0


def main() -> int:
    """Run the command `python -m xseg doctor`.  Returns the exit status."""
    return 0 if report(is_started=True) else 1
