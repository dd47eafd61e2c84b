# SPDX-License-Identifier: MIT
"""Results of calls, as named tuples.  The public headers document the members, which have the same names.

None replaces the number for "unlimited" and "unknown".  Streams, pools and addresses are integers; 0: none.
"""
import ctypes
import enum
from typing import Any, List, NamedTuple, Optional, Type, TypeVar

from xseg import _structs
from xseg._arguments import converted
from xseg._statistics import Groups, Stat, Statistics

NONE = 2**64 - 1


class TrimResult(NamedTuple):
    """Result of a trim, in bytes, see xseg/reclaim.h."""

    released: int
    kept_fragmented: int
    kept_busy: int
    kept_pool: int
    kept_pending: int
    kept_failed: int
    kept_capture: int
    kept_by_options: int
    remaining: int
    kept_pinned: int
    kept_exported: int


class Limits(NamedTuple):
    """Limits of a device or a pool, in bytes, see xseg/reclaim.h."""

    hard_bytes: Optional[int]
    soft_bytes: Optional[int]
    keep_bytes: int
    fraction: float
    rejection_fraction: float


class BlockState(enum.IntEnum):
    """State of a block, see xseg/allocator.h."""

    ALLOCATED = _structs.XSEG_BLOCK_ALLOCATED
    PENDING_FREE = _structs.XSEG_BLOCK_PENDING_FREE
    CACHED = _structs.XSEG_BLOCK_CACHED
    UNMAPPED = _structs.XSEG_BLOCK_UNMAPPED
    CLAIMED = _structs.XSEG_BLOCK_CLAIMED


class BlockInfo(NamedTuple):
    """A block and its neighborhood, see xseg/allocator.h."""

    base: int
    bytes: int
    requested: int
    state: BlockState
    device: int
    stream: int
    pool: int
    is_small: bool
    is_expandable: bool
    segment_base: int
    segment_bytes: int
    segment_mapped: int
    free_before: int
    free_after: int
    unmapped_before: int
    unmapped_after: int
    generation: int
    is_paused: bool
    age_ms: Optional[int]
    fallback_pool: int
    stack: int
    frames: int
    label: Optional[str]
    user: int


class ReasonKind(enum.IntEnum):
    """Reason why memory is reserved, see xseg/stats.h."""

    ALLOCATED = _structs.XSEG_REASON_ALLOCATED
    PENDING = _structs.XSEG_REASON_PENDING
    CLAIMED = _structs.XSEG_REASON_CLAIMED
    PINNED = _structs.XSEG_REASON_PINNED
    POOL = _structs.XSEG_REASON_POOL
    CAPTURE = _structs.XSEG_REASON_CAPTURE
    STREAM = _structs.XSEG_REASON_STREAM
    KEEP = _structs.XSEG_REASON_KEEP
    DECAY = _structs.XSEG_REASON_DECAY
    POLICY = _structs.XSEG_REASON_POLICY
    EXPORTED = _structs.XSEG_REASON_EXPORTED
    REGISTERED = _structs.XSEG_REASON_REGISTERED
    ABOVE_SHARE = _structs.XSEG_REASON_ABOVE_SHARE


class Reason(NamedTuple):
    """A run of pages, or a classic segment, with the reason why it is not free, see xseg/stats.h."""

    kind: ReasonKind
    device: int
    stream: int
    pool: int
    is_small: bool
    is_expandable: bool
    base: int
    bytes: int
    allocated_bytes: int
    pending_bytes: int
    claimed_bytes: int
    cached_bytes: int
    allocated_blocks: int
    block: int
    block_bytes: int
    block_requested: int
    waits_for: int
    has_waits_for: bool
    age_ms: Optional[int]
    block_age_ms: Optional[int]
    fallback_pool: int
    registered_bytes: int
    is_single_page: bool


class ExplainResult(NamedTuple):
    """Reserved bytes by reason, see xseg/stats.h; `reasons` lists the runs of pages."""

    reserved: int
    allocated: int
    pending: int
    claimed: int
    pool: int
    pinned: int
    capture: int
    stream: int
    keep: int
    decay: int
    policy: int
    in_allocated_blocks: int
    page_cache: int
    unreleased: int
    exported: int
    registered: int
    single_page_padding: int
    above_share: int
    reasons: List[Reason]


class BudgetEntry(NamedTuple):
    """Statistics of one device as one process publishes them in a budget file, see xseg/budget.h."""

    slot: int
    pid: int
    program: Optional[str]
    is_readable: bool
    uuid: Optional[str]
    physical_bytes: int
    idle_bytes: int
    demand_bytes: int
    share_millionths: int
    min_bytes: int
    released_bytes: int


class ConfigKey(NamedTuple):
    """A key of the configuration string, see xseg/allocator.h."""

    name: str
    values: str
    description: str
    value: str
    default_value: str
    is_set: bool
    is_default: bool
    has_effect: bool


class DriverCall(NamedTuple):
    """Number of calls of one driver entry point."""

    name: str
    count: int  # type: ignore[assignment]
    failed: int


class DeviceStats(NamedTuple):
    """Memory of a device, see xseg/stats.h.  If is_open is false, the members after is_lost are 0."""

    device: int
    is_open: bool
    is_lost: bool
    total_bytes: int
    limit_bytes: Optional[int]
    physical_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    pending_bytes: int
    idle_bytes: int
    free_bytes: Optional[int]
    free_age_ms: Optional[int]
    free_min_bytes: int
    is_integrated: bool


class RangeInfo(NamedTuple):
    """State of a range, see xseg/range.h."""

    base: int
    bytes: int
    page_bytes: int
    device: int
    pool: int
    limit_bytes: Optional[int]
    quota_bytes: int
    committed_bytes: int
    pending_unmap_bytes: int
    mapped_bytes: int
    physical_bytes: int
    prepared_bytes: int
    recommits: int


Record = TypeVar("Record", bound=tuple)
ENUMS = {"state": BlockState, "kind": ReasonKind}


def _plain(value: Any, kind: Any, name: str = "") -> Any:
    """Convert a member of a structure to a value of Python."""
    if name in ENUMS:
        return ENUMS[name](value) if value in ENUMS[name]._value2member_map_ else value  # a newer library can have more values
    if isinstance(value, _structs.xseg_stat):
        return Stat(value.current, value.peak, value.allocated, value.freed)
    if isinstance(value, ctypes.Array):
        return Groups(*(_plain(element, None) for element in value))
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if value is None and kind is ctypes.c_void_p:
        return 0
    return None if kind is ctypes.c_uint64 and value == NONE else value


def record(kind: Type[Record], structure: ctypes.Structure, **additional: Any) -> Record:
    """Convert a structure that the library has filled to a named tuple."""
    types = dict(structure._fields_)  # type: ignore[arg-type,misc]
    values = {name: _plain(getattr(structure, name), types[name], name) for name in kind._fields  # type: ignore[attr-defined]
              if name in types}
    values.update(additional)
    return kind(**values)


def assign(target: ctypes.Structure, **values: Any) -> None:
    """Set members of a structure; ArgumentError: a value does not fit the type of its member, and no member has changed."""
    kinds, name_of = dict(target._fields_), type(target).__name__  # type: ignore[arg-type,misc]
    converted_values = {name: converted(value, kinds[name], f"{name_of}: {'size' if name == 'bytes' else name}")
               for name, value in values.items()}
    for name, value in converted_values.items():
        setattr(target, name, value)


def structure(kind: Type[ctypes.Structure], **values: Any) -> Any:
    """Create a structure with its size, its initial values and these values.  ArgumentError: as assign()."""
    target = kind(**getattr(kind, "START", {}))
    assign(target, struct_size=ctypes.sizeof(kind), **values)
    return target


def scope(device: int = -1, stream: Optional[int] = None, pool: Optional[int] = None) -> Any:
    """Create the scope of a call; the default is all memory."""
    return structure(_structs.xseg_scope, device=device, one_stream=stream is not None, stream=stream or 0,
                     pool=pool or 0)
