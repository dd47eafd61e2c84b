# SPDX-License-Identifier: MIT
"""The calls of torch_memory_saver 0.0.10 on tags of xseg, so that a trainer switches by an import:

    from xseg.torch.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = build()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

No LD_PRELOAD is needed, and expandable segments stay on.  Calls that are not supported raise NotImplementedError.
"""
import contextlib
import os
from typing import Dict, Iterator, Optional, Tuple

import torch
import xseg.torch
from xseg._errors import ArgumentError, PausedError

DEFAULT_TAG = "default"
# What a tag of xseg is called behind the tag that it is paused with: that of graphs, and that whose contents are kept.
OF_GRAPHS = "#graphs"
KEPT = "#kept"


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Processes that start meanwhile are on xseg, too: XSEG_TORCH=1 is in the environment."""
    before = os.environ.get("XSEG_TORCH")
    os.environ["XSEG_TORCH"] = "1"
    try:
        yield
    finally:
        del os.environ["XSEG_TORCH"]
        if before is not None:
            os.environ["XSEG_TORCH"] = before


class TorchMemorySaver:
    """One for the process: torch_memory_saver below."""

    def __init__(self) -> None:
        # By the name of a tag of xseg: the tag that it is paused with, and how.
        self._tags: Dict[str, Tuple[str, str]] = {}
        #: Accepted for the sake of programmes that set it; there is one way here.
        self.hook_mode = "xseg"

    @property
    def enabled(self) -> bool:
        """Whether pause() frees memory: always, where this module could be imported."""
        return True

    @property
    def memory_margin_bytes(self) -> int:
        """Not there but for 0."""
        raise NotImplementedError("memory_margin_bytes: cannot be read")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if value:
            raise NotImplementedError(f"memory_margin_bytes: a margin is not supported, {value!r} bytes; call "
                                      "xseg.torch.allocator().set_limits(device, hard_bytes=BYTES) instead")

    def get_cpu_backup(self, x: torch.Tensor) -> torch.Tensor:
        """Not there."""
        raise NotImplementedError("get_cpu_backup: views of backups are not supported; call resume() to restore the contents")

    @contextlib.contextmanager
    def region(self, tag: str = DEFAULT_TAG, enable_cpu_backup: bool = False) -> Iterator[None]:
        """What the calling thread allocates meanwhile can be paused by its tag.

        enable_cpu_backup keeps contents in pinned memory over a pause.  Regions of a tag that differ in it have pools
        of their own.
        """
        with self._enter(tag, "", enable_cpu_backup):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: torch.cuda.CUDAGraph, pool: Optional[Tuple[int, int]] = None,
                   stream: Optional[torch.cuda.Stream] = None, capture_error_mode: str = "global", tag: str = DEFAULT_TAG,
                   enable_cpu_backup: bool = False) -> Iterator[None]:
        """torch.cuda.graph() whose memory is paused and resumed with a tag.

        It is a pool of its own: each replay writes to all of it, and what region() gives out must stay.  Graphs of a tag
        that name the same `pool` share it, and so do those that name none: replay these one after another.
        """
        kind = OF_GRAPHS if pool is None else f"{OF_GRAPHS}{tuple(pool)}"
        with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode), \
                self._enter(tag, kind, enable_cpu_backup):
            yield

    def _enter(self, tag: str, kind: str, is_kept: bool) -> "contextlib.AbstractContextManager[xseg.Pool]":
        name = tag + kind + (KEPT if is_kept else "")
        self._tags[name] = tag, "host" if is_kept else "nothing"
        return xseg.torch.tag(name)

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Within a region: what is allocated meanwhile belongs to no tag."""
        with xseg.torch.suspended():
            yield

    def pause(self, tag: Optional[str] = None) -> None:
        """Free the memory of a tag, or of all, that is not paused yet."""
        for name, keep in self._named(tag).items():
            with contextlib.suppress(PausedError):
                xseg.torch.pause(name, keep)

    def resume(self, tag: Optional[str] = None) -> None:
        """Bring it back, at the same addresses."""
        for name in self._named(tag):
            with contextlib.suppress(ArgumentError):  # it is not paused
                xseg.torch.resume(name)

    def _named(self, tag: Optional[str]) -> Dict[str, str]:
        """The tags of xseg that are paused with a tag, and how."""
        found = {name: self._tags.get(name, (name, "nothing")) for name, _ in xseg.torch.tags()}
        return {name: keep for name, (of_tag, keep) in found.items() if tag in (None, of_tag)}


torch_memory_saver = TorchMemorySaver()
