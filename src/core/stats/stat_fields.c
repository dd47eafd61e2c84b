/* SPDX-License-Identifier: MIT */
#include "src/core/stats/stat_fields.h"

#include <stddef.h>

/* The offset of each count in the public structure. */
static const size_t offsets[] = {
    [XSEG_COUNT_ALLOCATION] = offsetof(struct xseg_statistics, allocation),
    [XSEG_COUNT_SEGMENT] = offsetof(struct xseg_statistics, segment),
    [XSEG_COUNT_ACTIVE] = offsetof(struct xseg_statistics, active),
    [XSEG_COUNT_INACTIVE_SPLIT] = offsetof(struct xseg_statistics, inactive_split),
    [XSEG_COUNT_ALLOCATED_BYTES] = offsetof(struct xseg_statistics, allocated_bytes),
    [XSEG_COUNT_RESERVED_BYTES] = offsetof(struct xseg_statistics, reserved_bytes),
    [XSEG_COUNT_ACTIVE_BYTES] = offsetof(struct xseg_statistics, active_bytes),
    [XSEG_COUNT_INACTIVE_SPLIT_BYTES] = offsetof(struct xseg_statistics, inactive_split_bytes),
    [XSEG_COUNT_REQUESTED_BYTES] = offsetof(struct xseg_statistics, requested_bytes),
    [XSEG_COUNT_OVERSIZE_ALLOCATION] = offsetof(struct xseg_statistics, oversize_allocations),
    [XSEG_COUNT_OVERSIZE_SEGMENT] = offsetof(struct xseg_statistics, oversize_segments),
};

unsigned xseg_stat_fields_count(enum xseg_count what)
{
    return what == XSEG_COUNT_OVERSIZE_ALLOCATION || what == XSEG_COUNT_OVERSIZE_SEGMENT
               ? 1
               : XSEG_STAT_GROUPS;
}

struct xseg_stat *xseg_stat_fields_of(struct xseg_statistics *stats, enum xseg_count what)
{
    return (struct xseg_stat *)(void *)((char *)stats + offsets[what]);
}
