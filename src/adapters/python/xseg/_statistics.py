# SPDX-License-Identifier: MIT
"""Statistics, as named tuples.

Printed from include/xseg by tests/lint/declarations.py --write: do not edit it here.
"""
from typing import NamedTuple, Optional


class Stat(NamedTuple):
    """A statistic: current value, peak, and the sums of all increases and decreases."""

    current: int
    peak: int
    allocated: int
    freed: int


class Groups(NamedTuple):
    """A statistic of all blocks, of blocks in small segments, and of blocks in large segments."""

    all: Stat
    small: Stat
    large: Stat


class Statistics(NamedTuple):
    """Statistics of one device or private pool, see xseg/stats.h."""

    allocation: Groups
    segment: Groups
    active: Groups
    inactive_split: Groups
    allocated_bytes: Groups
    reserved_bytes: Groups
    active_bytes: Groups
    inactive_split_bytes: Groups
    requested_bytes: Groups
    oversize_allocations: Stat
    oversize_segments: Stat
    num_alloc_retries: int
    num_ooms: int
    num_sync_all_streams: int
    num_device_alloc: int
    num_device_free: int
    max_split_size: Optional[int]
    device_bytes: int
    limit_bytes: Optional[int]
    physical_bytes: int
    unreleased_bytes: int
    address_bytes: int
    host_bytes: int
    overwrites: int
    num_oom_rejections: int
    idle_page_bytes: int
    paused_bytes: int
    imported_bytes: int
    registered_bytes: int
