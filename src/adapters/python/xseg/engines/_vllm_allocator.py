# SPDX-License-Identifier: MIT
"""The interface of vLLM's CuMemAllocator, implemented by tags of xseg.

Each tag of vLLM ("weights", "kv_cache", "runtime") is a tag of xseg.  CUDA graphs are captured into a private pool, which is paused
together with the tags under the name "cudagraph".  Sleeping releases physical memory and keeps addresses.
"""
import contextlib
import gc
import logging
import types
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

import torch
import xseg.torch
from xseg._errors import ArgumentError, LimitError, NoAddressesError, NoMemoryError, PausedError
from xseg._pool import Pool
from xseg._records import BlockState

Tags = Union[Tuple[str, ...], List[str], str]
PoolId = Tuple[int, int]
Hooks = Tuple[Callable[[], None], Callable[[], None]]

GRAPHS = "cudagraph"
#: Tags that wake_up() of other tags leaves asleep; every other tag is resumed by any wake_up().
DEFERRABLE = ("weights", "kv_cache")
logger = logging.getLogger("vllm.xseg")


def _set_of(tags: Optional[Tags], default: Iterable[str]) -> Set[str]:
    return set(default) if tags is None else {tags} if isinstance(tags, str) else set(tags)


class CuMemAllocator:
    """Replaces the class of this name in vllm.device_allocator.cumem.  There is one object per process, get_instance()."""

    instance: Optional["CuMemAllocator"] = None
    default_tag = "default"

    @classmethod
    def get_instance(cls) -> "CuMemAllocator":
        """Get the only object."""
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = cls()
        return CuMemAllocator.instance

    def __init__(self) -> None:
        self._tags: Set[str] = set()  # all that were used, without GRAPHS
        self._asleep: Dict[str, str] = {}  # by tag that sleeps, GRAPHS included: how contents are kept
        # By the pool that vLLM has passed: the pool of the graphs, and its device.
        self._graph_pools: Dict[Optional[PoolId], Tuple[torch.cuda.MemPool, int]] = {}
        self._hooks: Dict[str, List[Hooks]] = {}
        #: Tag of the current context.
        self.current_tag = self.default_tag

    # --- Allocation. ---

    @contextlib.contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """Make the calling thread allocate from a tag.  Memory that is free at the end is released."""
        name = self.default_tag if tag is None else tag
        self._tags.add(name)
        pool: Optional[Pool] = None
        try:
            with xseg.torch.tag(name) as pool, self._current(name):
                yield
        finally:
            if pool is not None:
                pool.trim(wait=True)

    @contextlib.contextmanager
    def cudagraph_pool(self, pool: Optional[PoolId] = None) -> Iterator[PoolId]:
        """Get the ID of the pool to capture CUDA graphs into, which sleeps with the tags.  Each `pool` of vLLM has a separate one."""
        if pool not in self._graph_pools:
            self._graph_pools[pool] = torch.cuda.MemPool(), torch.cuda.current_device()
        with self._current(GRAPHS):
            yield self._graph_pools[pool][0].id

    @contextlib.contextmanager
    def _current(self, name: str) -> Iterator[None]:
        previous, self.current_tag = self.current_tag, name
        try:
            yield
        finally:
            self.current_tag = previous

    def use_cudagraph_pool(self, pool: Optional[PoolId] = None) -> "contextlib.AbstractContextManager[PoolId]":
        """Call cudagraph_pool(), which has this name in versions of vLLM after 0.33."""
        return self.cudagraph_pool(pool)

    def release_cudagraph_pool(self, pool: Optional[PoolId] = None) -> None:
        """Release the memory of a graph pool, after its graphs were destroyed."""
        if self._graph_pools.pop(pool, None) is not None:
            if not self._graph_pools:
                self._asleep.pop(GRAPHS, None)
            gc.collect()
            torch.cuda.empty_cache()

    def release_pools(self) -> None:
        """Drop all graph pools.  Pools of xseg need no particular order at the end of the process."""
        self._graph_pools.clear()
        self._asleep.pop(GRAPHS, None)

    close = release_pools

    def get_current_usage(self) -> int:
        """Get the reserved bytes of all tags and graph pools; 0 for those that sleep."""
        return sum(pool.statistics().reserved_bytes.all.current for name in (*self._tags, GRAPHS) for pool in self._pools_of(name))

    @property
    def pointer_to_data(self) -> Dict[int, Any]:
        """The segments by address, in the form of vLLM's attribute, which its tests and other programs read.

        `handle` is (device, bytes, address, None): vLLM's functions that unmap memory reject it.
        """
        result: Dict[int, Any] = {}
        for name in self._used():
            for pool in self._pools_of(name):
                for block in xseg.torch.allocator().blocks(pool=pool):
                    if block.state != BlockState.UNMAPPED:
                        size = result[block.segment_base].handle[1] if block.segment_base in result else 0
                        result[block.segment_base] = types.SimpleNamespace(
                            handle=(block.device, size + block.bytes, block.segment_base, None), tag=name,
                            is_asleep=name in self._asleep, cpu_backup_tensor=None)
        return result

    # --- Sleep. ---

    def sleep(self, offload_tags: Optional[Tags] = None) -> None:
        """Release the memory of all tags.  Contents of `offload_tags` are copied to host memory, the others discarded."""
        offloaded = _set_of(offload_tags, (self.default_tag,))
        used_bytes = self.get_current_usage()
        self._pause({name: "host" if name in offloaded else "nothing" for name in self._used()})
        logger.info("xseg: sleep released %.2f GiB", (used_bytes - self.get_current_usage()) / (1 << 30))
        gc.collect()
        torch.cuda.empty_cache()

    def discard(self, tags: Tags) -> None:
        """Release the memory of these tags without a copy of the contents."""
        self._pause(dict.fromkeys(_set_of(tags, ()) & set(self._used()), "nothing"))

    def wake_up(self, tags: Optional[Tags] = None) -> None:
        """Map memory again, at the same addresses: of all tags, or of these and of those that cannot be deferred."""
        gc.collect()
        torch.cuda.empty_cache()
        for name in [name for name in self._asleep if tags is None or name in _set_of(tags, ()) or name not in DEFERRABLE]:
            self._resume(name)
        self._run_after_map()

    def _used(self) -> List[str]:
        """Get all tags with pools."""
        return [name for name in (*sorted(self._tags), GRAPHS) if self._pools_of(name)]

    def _pools_of(self, name: str) -> List[Pool]:
        if name != GRAPHS:
            return [pool for _, pool in xseg.torch.tags(name)]
        return [xseg.torch.pool(pool, device) for pool, device in self._graph_pools.values()]

    def _resume(self, name: str) -> None:
        for pool in self._pools_of(name):
            try:
                with contextlib.suppress(ArgumentError):  # it is not paused
                    pool.resume()
            except (NoMemoryError, NoAddressesError, LimitError) as error:  # a RuntimeError, as vLLM's is
                raise torch.OutOfMemoryError(str(error)) from error
        del self._asleep[name]

    def _pause(self, keep_by_tag: Dict[str, str]) -> None:
        for name, keep in keep_by_tag.items():
            if self._asleep.get(name, keep) != keep:
                logger.warning("xseg: tag is already asleep, %s; its contents remain as they were kept", name)
        awake = {name: keep for name, keep in keep_by_tag.items() if name not in self._asleep}
        self._run_before_unmap(awake)
        for name, keep in awake.items():
            self._asleep[name] = keep
            try:
                for pool in self._pools_of(name):
                    torch.cuda.synchronize(pool.device)
                    with contextlib.suppress(PausedError):
                        pool.pause(keep)
            except Exception:  # the tag stays awake, and so do the tags after it
                self._resume(name)
                self._run_after_map()
                raise

    # --- Hooks of tags. ---

    def register_tag_hooks(self, tag: str, before_unmap: Callable[[], None], after_map: Callable[[], None]) -> Callable[[], None]:
        """Call before_unmap() before memory of a tag is released, and after_map() after each wake_up() that leaves it mapped.

        Returns a function that removes them.  vLLM after 0.33 has a function of this name in vllm.device_allocator, whose hooks
        are called as well.
        """
        hooks = (before_unmap, after_map)
        self._hooks.setdefault(tag, []).append(hooks)
        return lambda: self._hooks[tag].remove(hooks)

    def _engine(self) -> Any:
        """Get the module of vLLM with tag hooks, or None."""
        import vllm.device_allocator as engine  # pylint: disable=import-outside-toplevel,import-error
        return engine if hasattr(engine, "run_before_unmap_hooks") else None

    def _allocations(self) -> List[Any]:
        """A list for vLLM's functions, which read the tag and the state of each allocation."""
        return [types.SimpleNamespace(tag=name, is_asleep=name in self._asleep) for name in self._used()]

    def _run_before_unmap(self, tags: Iterable[str]) -> None:
        engine = self._engine()
        if engine is not None:
            engine.run_before_unmap_hooks(self._allocations(), tuple(tags))
        for name in tags:
            for before_unmap, _ in self._hooks.get(name, ()):
                before_unmap()

    def _run_after_map(self) -> None:
        engine = self._engine()
        if engine is not None:
            engine.run_after_map_hooks(self._allocations())
        for name, hooks in self._hooks.items():
            if name not in self._asleep:
                for _, after_map in hooks:
                    after_map()
