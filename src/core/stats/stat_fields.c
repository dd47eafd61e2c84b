/* SPDX-License-Identifier: MIT */
#include "src/core/stats/stat_fields.h"

#include <stddef.h>

#define GROUPS(member)       (sizeof(((struct xseg_statistics *)0)->member) / sizeof(struct xseg_stat))
#define FIELD(count, member) [count] = {offsetof(struct xseg_statistics, member), GROUPS(member)},

static const struct {
    size_t offset;
    unsigned groups;
} fields[] = {XSEG_COUNTS_TABLE(FIELD)};

unsigned xseg_stat_fields_count(enum xseg_count what)
{
    return fields[what].groups;
}

struct xseg_stat *xseg_stat_fields_of(struct xseg_statistics *stats, enum xseg_count what)
{
    return (struct xseg_stat *)(void *)((char *)stats + fields[what].offset);
}
