# SPDX-License-Identifier: MIT
"""Numba's device memory from xseg, by its interface for external memory management.

    import xseg.numba
    xseg.numba.install()                # before Numba's first use of CUDA

or NUMBA_CUDA_MEMORY_MANAGER=xseg.numba in the environment, without a change of the programme.

Numba says neither on which stream memory is needed nor where it was used.  So a freed block waits for all work that was
queued on the device's streams by then, as the free of the driver would, without keeping the host waiting: streams that were
made with the flag NON_BLOCKING, which Numba does not make, are not waited for.
"""
import ctypes
import importlib
from typing import Any, Dict, Optional

from numba import cuda

from xseg._allocator import Allocator
from xseg._allocator import open as open_allocator

__all__ = ["Manager", "allocator", "install"]

_chosen: Optional[Allocator] = None


def allocator() -> Allocator:
    """The allocator behind Numba: what install() was given, else one that is opened now as the environment says."""
    global _chosen  # pylint: disable=global-statement
    if _chosen is None:
        _chosen = open_allocator()
    return _chosen


def install(chosen: Optional[Allocator] = None) -> None:
    """Have Numba take device memory from an allocator; None: as allocator() says.

    Call it before Numba's first use of CUDA: later it raises what Numba raises.  Pinned host memory stays Numba's.
    """
    global _chosen  # pylint: disable=global-statement
    cuda.set_memory_manager(Manager)
    if chosen is not None:
        _chosen = chosen


class Manager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """What Numba makes one of for each device's context."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._blocks: Dict[int, Any] = {}
        self._stream: Any = None

    @property
    def interface_version(self) -> int:
        """Of Numba's interface."""
        return 1

    def initialize(self) -> None:
        """Nothing to do before memory is needed."""

    def memalloc(self, size: int) -> Any:
        """Device memory on the context's device."""
        if self._stream is None:
            self._stream = self.context.create_stream()  # nobody queues anything on it
        block = allocator().allocate(size, device=self.context.device.id, stream=self._stream)
        pointer = block.pointer
        if pointer:
            block.record_stream(None)  # its free waits for the legacy default stream, which waits for the others
        self._blocks[pointer] = block
        blocks = self._blocks
        return cuda.MemoryPointer(self.context, _device_pointer(pointer), size,
                                  finalizer=lambda: _free(blocks, pointer))

    def get_memory_info(self) -> Any:
        """Memory of the device; free is what xseg has cached, too."""
        total = allocator().statistics(self.context.device.id)
        taken = total.physical_bytes
        used = total.allocated_bytes.all.current
        free, size = _driver_memory_info()
        return cuda.MemoryInfo(free=free + max(0, taken - used), total=size)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Numba's handles are of cuMemAlloc's memory: of classic segments only."""
        if allocator().block_at(_number(memory.device_pointer)).is_expandable:
            raise NotImplementedError("get_ipc_handle: memory of expandable segments has no CUDA IPC handle; open the allocator "
                                      "with expandable_segments:False, or export the memory with xseg_export()")
        return super().get_ipc_handle(memory)

    def reset(self) -> None:
        """Numba resets its context: everything is freed, and its streams are destroyed."""
        super().reset()
        self._blocks.clear()
        stream, self._stream = self._stream, None
        if stream is not None:
            allocator().stream_retire(stream, self.context.device.id)


def _free(blocks: Dict[int, Any], pointer: int) -> None:
    """Free a block once: Numba may have reset its context before."""
    block = blocks.pop(pointer, None)
    if block is not None:
        block.free()


def _device_pointer(pointer: int) -> Any:
    """An address as the version of Numba wants it."""
    driver = importlib.import_module("numba.cuda.cudadrv.driver")
    binding = getattr(driver, "binding", None)
    if getattr(driver, "USE_NV_BINDING", binding is not None) and binding is not None:
        return binding.CUdeviceptr(pointer)
    return ctypes.c_uint64(pointer)


def _number(pointer: Any) -> int:
    """And back."""
    return int(pointer.value if hasattr(pointer, "value") else pointer)


def _driver_memory_info() -> Any:
    """What the driver says of the current device: free, and all."""
    from numba.cuda.cudadrv.driver import driver  # pylint: disable=import-outside-toplevel
    try:
        free, size = ctypes.c_size_t(), ctypes.c_size_t()
        driver.cuMemGetInfo(ctypes.byref(free), ctypes.byref(size))
        return free.value, size.value
    except TypeError:  # NVIDIA's binding returns them
        return driver.cuMemGetInfo()


#: What NUMBA_CUDA_MEMORY_MANAGER=xseg.numba looks for.
_numba_memory_manager = Manager
