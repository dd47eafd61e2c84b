# SPDX-License-Identifier: MIT
"""The calls of torch_memory_saver 0.0.10 on tags of xseg, so that a trainer switches by an import:

    from xseg.torch.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = build()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

No LD_PRELOAD is needed, and expandable segments stay on.
"""
import contextlib
from typing import Any, Dict, Iterator, Optional, Set

import torch
import xseg.torch

DEFAULT_TAG = "default"
# What the tag of graphs is called, behind the tag that they are paused with.
OF_GRAPHS = "#graphs"


class TorchMemorySaver:
    """One for the process: torch_memory_saver below."""

    def __init__(self) -> None:
        self._keeps: Dict[str, bool] = {}
        self._paused: Set[str] = set()
        #: Accepted for the sake of programmes that set it; there is one way here.
        self.hook_mode = "xseg"

    @property
    def enabled(self) -> bool:
        """Whether pause() frees memory: always, where this module could be imported."""
        return True

    @contextlib.contextmanager
    def region(self, tag: str = DEFAULT_TAG, enable_cpu_backup: bool = False) -> Iterator[None]:
        """What the calling thread allocates meanwhile can be paused by its tag.

        enable_cpu_backup keeps contents in pinned memory over a pause.  It holds for a tag as a whole: regions of a tag
        that differ in it are a ValueError.
        """
        if self._keeps.setdefault(tag, enable_cpu_backup) != enable_cpu_backup:
            raise ValueError(f"the regions of tag {tag!r} differ in enable_cpu_backup: use two tags")
        with xseg.torch.tag(tag):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: torch.cuda.CUDAGraph, pool: Any = None, stream: Optional[torch.cuda.Stream] = None,
                   capture_error_mode: str = "global", tag: str = DEFAULT_TAG,
                   enable_cpu_backup: bool = False) -> Iterator[None]:
        """torch.cuda.graph() whose memory is paused and resumed with a tag.

        It is a pool of its own: each replay writes to all of it, and what region() gives out must stay.
        """
        if pool is not None:
            raise ValueError("pool: the memory of the graph is the tag's")
        with torch.cuda.graph(cuda_graph, stream=stream, capture_error_mode=capture_error_mode), \
                self.region(tag + OF_GRAPHS, enable_cpu_backup):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Within a region: what is allocated meanwhile belongs to no tag."""
        with xseg.torch.suspended():
            yield

    def pause(self, tag: Optional[str] = None) -> None:
        """Free the memory of a tag, or of all that are not paused yet."""
        for name in self._names(tag):
            if name not in self._paused:
                xseg.torch.pause(name, "host" if self._keeps.get(name) else "nothing")
                self._paused.add(name)

    def resume(self, tag: Optional[str] = None) -> None:
        """Bring it back, at the same addresses."""
        for name in self._names(tag):
            if name in self._paused:
                xseg.torch.resume(name)
                self._paused.remove(name)

    @staticmethod
    def _names(tag: Optional[str]) -> Set[str]:
        names = {name for name, _ in xseg.torch.tags()}
        return names if tag is None else names & {tag, tag + OF_GRAPHS}


torch_memory_saver = TorchMemorySaver()
