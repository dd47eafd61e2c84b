# SPDX-License-Identifier: MIT
"""Device memory of Numba from xseg, by Numba's interface for external memory management.

    import xseg.numba
    xseg.numba.install()                # before Numba's first use of CUDA

or NUMBA_CUDA_MEMORY_MANAGER=xseg.numba in the environment, without a change of the program.

Numba does not report on which streams memory is used.  So a freed block is pending until all work that is queued on the streams of
the device at the free has completed.  The host does not wait.  Streams with the flag NON_BLOCKING, which Numba does not create, are
not waited for.
"""
import ctypes
import importlib
from typing import Any, Dict, Optional

from numba import cuda

from xseg._allocator import Allocator
from xseg._allocator import open as open_allocator

__all__ = ["Manager", "allocator", "install"]

_allocator: Optional[Allocator] = None


def allocator() -> Allocator:
    """Get the allocator of Numba: the argument of install(), or an allocator that is opened with the configuration of the environment."""
    global _allocator  # pylint: disable=global-statement
    if _allocator is None:
        _allocator = open_allocator()
    return _allocator


def install(chosen: Optional[Allocator] = None) -> None:
    """Make Numba allocate device memory from an allocator; None: allocator().

    Call it before Numba's first use of CUDA; a later call raises an exception of Numba.  Numba still allocates pinned host memory.
    """
    global _allocator  # pylint: disable=global-statement
    cuda.set_memory_manager(Manager)
    if chosen is not None:
        _allocator = chosen


class Manager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """The memory manager, which Numba creates once for each context."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._blocks: Dict[int, Any] = {}
        self._stream: Any = None

    @property
    def interface_version(self) -> int:
        """Version of Numba's interface."""
        return 1

    def initialize(self) -> None:
        """Required by the interface; has no effect."""

    def memalloc(self, size: int) -> Any:
        """Allocate memory on the device of the context."""
        if self._stream is None:
            self._stream = self.context.create_stream()  # no work is queued on it
        block = allocator().allocate(size, device=self.context.device.id, stream=self._stream)
        pointer = block.pointer
        if pointer:
            block.record_stream(None)  # its free waits for the legacy default stream, which waits for the others
        self._blocks[pointer] = block
        blocks = self._blocks
        return cuda.MemoryPointer(self.context, _device_pointer(pointer), size,
                                  finalizer=lambda: _free(blocks, pointer))

    def get_memory_info(self) -> Any:
        """Get the memory of the device; memory that xseg has cached counts as free."""
        statistics = allocator().statistics(self.context.device.id)
        physical = statistics.physical_bytes
        allocated = statistics.allocated_bytes.all.current
        free, size = _driver_memory_info()
        return cuda.MemoryInfo(free=free + max(0, physical - allocated), total=size)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Get a CUDA IPC handle, which only memory of cuMemAlloc has: that of classic segments."""
        if allocator().block_at(_address(memory.device_pointer)).is_expandable:
            raise NotImplementedError("get_ipc_handle: memory of expandable segments has no CUDA IPC handle; open the allocator "
                                      "with expandable_segments:False, or export the memory with xseg_export()")
        return super().get_ipc_handle(memory)

    def reset(self) -> None:
        """Reset the context: all blocks are freed, and Numba destroys its streams."""
        super().reset()
        self._blocks.clear()
        stream, self._stream = self._stream, None
        if stream is not None:
            allocator().stream_retire(stream, self.context.device.id)


def _free(blocks: Dict[int, Any], pointer: int) -> None:
    """Free a block unless a reset of the context has freed it."""
    block = blocks.pop(pointer, None)
    if block is not None:
        block.free()


def _device_pointer(pointer: int) -> Any:
    """Convert an address to the type that the version of Numba requires."""
    driver = importlib.import_module("numba.cuda.cudadrv.driver")
    binding = getattr(driver, "binding", None)
    if getattr(driver, "USE_NV_BINDING", binding is not None) and binding is not None:
        return binding.CUdeviceptr(pointer)
    return ctypes.c_uint64(pointer)


def _address(pointer: Any) -> int:
    """Convert an address of Numba to an integer."""
    return int(pointer.value if hasattr(pointer, "value") else pointer)


def _driver_memory_info() -> Any:
    """Query free and total memory of the current device."""
    from numba.cuda.cudadrv.driver import driver  # pylint: disable=import-outside-toplevel
    try:
        free, size = ctypes.c_size_t(), ctypes.c_size_t()
        driver.cuMemGetInfo(ctypes.byref(free), ctypes.byref(size))
        return free.value, size.value
    except TypeError:  # NVIDIA's binding returns them
        return driver.cuMemGetInfo()


#: Name that Numba imports for NUMBA_CUDA_MEMORY_MANAGER=xseg.numba.
_numba_memory_manager = Manager
