/* SPDX-License-Identifier: MIT */
/* Where the counts stand in the public statistics. */
#ifndef XSEG_CORE_STAT_FIELDS_H
#define XSEG_CORE_STAT_FIELDS_H

#include "src/core/stats/counts.h"
#include "xseg/stats.h"

/* How many entries a count has there: one for each group, or one alone. */
unsigned xseg_stat_fields_count(enum xseg_count what);

/* The first of these entries. */
struct xseg_stat *xseg_stat_fields_of(struct xseg_statistics *stats, enum xseg_count what);

#endif
