# SPDX-License-Identifier: MIT
"""The interface of torch_memory_saver 0.0.10, implemented by tags of xseg.  A trainer only changes an import:

    from xseg.torch.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = build()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

No LD_PRELOAD is needed, and segments remain expandable.  Unsupported calls raise NotImplementedError.
"""
import contextlib
import ctypes
import os
from typing import Dict, Iterator, Optional, Tuple

import torch
import xseg.torch
from xseg._arguments import integer
from xseg._errors import ArgumentError, PausedError

DEFAULT_TAG = "default"
# Suffixes of tags of xseg: memory of graphs, and memory whose contents are kept.
OF_GRAPHS = "#graphs"
KEPT = "#kept"


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Set XSEG_TORCH=1 for processes that are started during the with statement."""
    previous = os.environ.get("XSEG_TORCH")
    os.environ["XSEG_TORCH"] = "1"
    try:
        yield
    finally:
        del os.environ["XSEG_TORCH"]
        if previous is not None:
            os.environ["XSEG_TORCH"] = previous


def _check_backup(is_on_host: bool, is_on_disk: bool, backend: Optional[str]) -> None:
    """Reject a kind of backup that is not supported."""
    if is_on_disk:
        raise NotImplementedError("enable_disk_backup: backups on disk are not supported; pass enable_cpu_backup=True")
    if backend is not None and not is_on_host:
        raise ValueError("cpu_backup_backend: has no effect without a backup; pass enable_cpu_backup=True")
    if backend not in (None, "pinned"):
        raise NotImplementedError(f"cpu_backup_backend: unsupported backend, {backend!r}; pass 'pinned'")


class TorchMemorySaver:
    """The class of the only object torch_memory_saver."""

    def __init__(self) -> None:
        # By the name of a tag of xseg: the tag of the caller, and the argument `keep` of pause().
        self._tags: Dict[str, Tuple[str, str]] = {}
        #: Has no effect; programs set it.
        self.hook_mode = "xseg"
        self._margin = 0

    @property
    def enabled(self) -> bool:
        """Whether pause() releases memory: always True."""
        return True

    @property
    def memory_margin_bytes(self) -> int:
        """Device memory that remains free for other users of the GPU, in bytes: the last value that was set, 0 at first.

        The setter sets the key device_free_min_mb, rounded up to MiB.
        """
        return self._margin

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        margin = integer(value, ctypes.c_uint64, "memory_margin_bytes")
        xseg.torch.allocator().configure(f"device_free_min_mb:{-(-margin >> 20)}")
        self._margin = margin

    @property
    def retain_cpu_backup(self) -> bool:
        """Only False is supported: resume() releases the copy in host memory."""
        return False

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        if value:
            raise NotImplementedError("retain_cpu_backup: copies cannot be retained after resume(); set it to False")

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor:
        """Unsupported."""
        raise NotImplementedError("get_cpu_backup: views of backups are not supported; call resume() to restore the contents")

    def set_disk_backup_dir(self, path: str) -> None:
        """Unsupported."""
        raise NotImplementedError("set_disk_backup_dir: backups on disk are not supported; pass enable_cpu_backup=True")

    @contextlib.contextmanager
    def region(self, tag: str = DEFAULT_TAG, enable_cpu_backup: bool = False, enable_disk_backup: bool = False,
               cpu_backup_backend: Optional[str] = None) -> Iterator[None]:
        """Allocate from the tag in the calling thread during the with statement.

        enable_cpu_backup keeps the contents in pinned memory during a pause.  Regions of a tag with different values have
        separate pools.
        """
        _check_backup(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        with self._enter(tag, "", enable_cpu_backup):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: torch.cuda.CUDAGraph, pool: Optional[Tuple[int, int]] = None,
                   stream: Optional[torch.cuda.Stream] = None, capture_error_mode: str = "global", tag: str = DEFAULT_TAG,
                   enable_cpu_backup: bool = False, cpu_backup_backend: Optional[str] = None) -> Iterator[None]:
        """torch.cuda.graph() whose memory is paused and resumed with a tag.

        The graph has a separate pool, because each replay overwrites it.  Graphs of a tag with the same `pool`, or without one, share
        a pool; replay them one after the other.
        """
        _check_backup(enable_cpu_backup, False, cpu_backup_backend)
        kind = OF_GRAPHS if pool is None else f"{OF_GRAPHS}{tuple(pool)}"
        with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode), \
                self._enter(tag, kind, enable_cpu_backup):
            yield

    def _enter(self, tag: str, kind: str, is_kept: bool) -> "contextlib.AbstractContextManager[xseg.Pool]":
        name = tag + kind + (KEPT if is_kept else "")
        self._tags[name] = tag, "host" if is_kept else "nothing"
        return xseg.torch.tag(name)

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """Allocate without a tag during the with statement, inside a region."""
        with xseg.torch.suspended():
            yield

    def pause(self, tag: Optional[str] = None) -> None:
        """Release the memory of a tag, or of all tags, that is not paused."""
        for name, keep in self._find_tags(tag).items():
            with contextlib.suppress(PausedError):
                xseg.torch.pause(name, keep)

    def resume(self, tag: Optional[str] = None) -> None:
        """Map memory at the same addresses."""
        for name in self._find_tags(tag):
            with contextlib.suppress(ArgumentError):  # not paused
                xseg.torch.resume(name)

    def _find_tags(self, tag: Optional[str]) -> Dict[str, str]:
        """Get the tags of xseg that belong to a tag of the caller, with their modes of keeping contents."""
        found = {name: self._tags.get(name, (name, "nothing")) for name, _ in xseg.torch.tags()}
        return {name: keep for name, (of_tag, keep) in found.items() if tag in (None, of_tag)}


torch_memory_saver = TorchMemorySaver()
