/* SPDX-License-Identifier: MIT */
#include "src/core/stats/counts_audit.h"

#include <inttypes.h>

#include "src/base/check.h"

static uint64_t quota_of(const struct xseg_counts *counts, enum xseg_count what)
{
    return atomic_load_explicit(&counts->quota[what], memory_order_relaxed);
}

static bool audit(const struct xseg_counts *counts, struct xseg_violation *violation)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    for (enum xseg_count what = 0; counts->rests && what < XSEG_COUNTS; what++) {
        const uint64_t current = xseg_counts_current(counts, what);

        XSEG_INVARIANT(violation, "COUNT-2", current == quota_of(counts, what),
                       "at rest, quantity %d is %" PRIu64 ", its quota %" PRIu64, (int)what,
                       current, quota_of(counts, what));
    }
    return true;
}

bool xseg_counts_audit(const struct xseg_counts *counts, struct xseg_violation *violation)
{
    xseg_mutex_lock(&counts->totals->lock);
    const bool holds = audit(counts, violation);
    xseg_mutex_unlock(&counts->totals->lock);
    return holds;
}

static bool audit_resting(const struct xseg_totals *totals, struct xseg_violation *violation)
{
    uint64_t sum[XSEG_STAT_GROUPS][XSEG_COUNTS] = {{0}};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_STATS));
    XSEG_LIST_FOR(node, &totals->resting)
    {
        const struct xseg_counts *counts = XSEG_CONTAINER(node, struct xseg_counts, link);

        for (enum xseg_count what = 0; what < XSEG_COUNTS; what++)
            sum[counts->group][what] += quota_of(counts, what);
    }
    for (enum xseg_stat_group group = 0; group < XSEG_STAT_GROUPS; group++)
        for (enum xseg_count what = 0; what < XSEG_COUNTS; what++)
            XSEG_INVARIANT(violation, "COUNT-2",
                           sum[group][what] == totals->resting_current[group][what],
                           "quantity %d of those at rest is %" PRIu64 ", summed up %" PRIu64,
                           (int)what, sum[group][what], totals->resting_current[group][what]);
    return true;
}

bool xseg_totals_audit(struct xseg_totals *totals, struct xseg_violation *violation)
{
    xseg_mutex_lock(&totals->lock);
    const bool holds = audit_resting(totals, violation);
    xseg_mutex_unlock(&totals->lock);
    return holds;
}
