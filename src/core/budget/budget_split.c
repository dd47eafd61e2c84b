/* SPDX-License-Identifier: MIT */
#include "src/core/budget/budget.h"

#include "src/base/align.h"
#include "src/base/check.h"

#define FULL_SHARE ((uint64_t)XSEG_SHARED_BUDGET_FULL_SHARE)

/* Sums over all members. */
struct sums {
    uint64_t configured;   /* sum of configured shares, in millionths */
    unsigned unconfigured; /* number of members without a configured share */
};

static struct sums sum_shares(const struct xseg_budget_member *member, unsigned count)
{
    struct sums sums = {0, 0};

    for (unsigned i = 0; i < count; i++) {
        sums.configured += member[i].configured_share;
        sums.unconfigured += member[i].configured_share == 0;
    }
    return sums;
}

/* a * b / c without overflow, for b <= c < 2^53.  The error is a few bytes in 2^53. */
static uint64_t scale_bytes(uint64_t a, uint64_t b, uint64_t c)
{
    return c == 0 ? 0 : (uint64_t)((long double)a * (long double)b / (long double)c);
}

/* The share of a member in bytes.  Members without a configured share divide the remainder.  If the
 * configured shares exceed 1, they are scaled down. */
static uint64_t compute_share(const struct xseg_budget_member *member, const struct sums *sums,
                              uint64_t total)
{
    if (member->configured_share != 0)
        return scale_bytes(total, member->configured_share, xseg_max(sums->configured, FULL_SHARE));
    const uint64_t remaining = FULL_SHARE - xseg_min(sums->configured, FULL_SHARE);
    return scale_bytes(total, remaining, FULL_SHARE * sums->unconfigured);
}

static uint64_t excess_over(uint64_t bytes, uint64_t limit)
{
    return bytes - xseg_min(bytes, limit);
}

/* The entitled demand of a member: up to its share. */
static uint64_t demand_within_share(const struct xseg_budget_member *member, uint64_t share)
{
    return xseg_min(member->demand, excess_over(share, member->physical));
}

/* The part of a member's demand for which no pages are being created. */
static uint64_t demand_without_pages(const struct xseg_budget_member *member)
{
    return excess_over(member->demand, member->growing);
}

/* Idle bytes that a member could release: those above its share, or all above its minimum. */
static uint64_t releasable_above_share(const struct xseg_budget_member *member, uint64_t share)
{
    return xseg_min(member->idle,
                    excess_over(member->physical, xseg_max(share, member->min_bytes)));
}

static uint64_t releasable_above_min(const struct xseg_budget_member *member)
{
    return member->demand != 0
               ? 0
               : xseg_min(member->idle, excess_over(member->physical, member->min_bytes));
}

/* The part of a demand that is requested from a member that could release `own` of `total` bytes,
 * rounded up. */
static uint64_t proportional_part(uint64_t demand, uint64_t own, uint64_t total)
{
    if (demand == 0)
        return 0;
    return demand >= total ? own : xseg_min(own, scale_bytes(demand, own, total) + 1);
}

/* The demands of all members beyond free memory, and the bytes that they could release. */
struct demands {
    uint64_t entitled;    /* demand up to shares */
    uint64_t excess;      /* demand beyond shares */
    uint64_t above_share; /* idle and above shares */
    uint64_t above_min;   /* idle and above minimums, without the bytes of the first step */
};

/* Bytes that a member releases in the first step. */
static uint64_t release_for_entitled(const struct demands *demands,
                                     const struct xseg_budget_member *member, uint64_t share)
{
    return proportional_part(demands->entitled, releasable_above_share(member, share),
                             demands->above_share);
}

/* Bytes that a member could release in the second step, in addition to those of the first step. */
static uint64_t releasable_for_excess(const struct demands *demands,
                                      const struct xseg_budget_member *member, uint64_t share)
{
    const uint64_t max =
        xseg_max(releasable_above_share(member, share), releasable_above_min(member));

    return member->demand != 0 ? 0 : excess_over(max, release_for_entitled(demands, member, share));
}

static struct demands sum_demands(const struct xseg_budget_member *member, unsigned count,
                                  const struct sums *sums, uint64_t total, uint64_t free)
{
    struct demands demands = {0};

    for (unsigned i = 0; i < count; i++) {
        const uint64_t share = compute_share(&member[i], sums, total),
                       demand = demand_without_pages(&member[i]);
        const uint64_t entitled = xseg_min(demand, demand_within_share(&member[i], share));

        demands.entitled += entitled;
        demands.excess += demand - entitled;
        demands.above_share += releasable_above_share(&member[i], share);
    }
    demands.excess = excess_over(demands.excess, excess_over(free, demands.entitled));
    demands.entitled = excess_over(demands.entitled, free);
    for (unsigned i = 0; i < count; i++)
        demands.above_min +=
            releasable_for_excess(&demands, &member[i], compute_share(&member[i], sums, total));
    return demands;
}

struct xseg_budget_split xseg_budget_split(const struct xseg_budget_member *member, unsigned count,
                                           unsigned own, uint64_t total, uint64_t free)
{
    const struct sums sums = sum_shares(member, count);
    const struct demands demands = sum_demands(member, count, &sums, total, free);
    const uint64_t share = compute_share(&member[own], &sums, total);
    struct xseg_budget_split split = {.share = share,
                                      .above_share = excess_over(member[own].physical, share),
                                      .exceeds = sums.configured > FULL_SHARE};
    uint64_t others_demand = 0;

    XSEG_ASSERT(own < count);
    for (unsigned i = 0; i < count; i++) {
        const uint64_t member_share = compute_share(&member[i], &sums, total);

        if (i == own)
            continue;
        others_demand += demand_within_share(&member[i], member_share);
        split.others_idle += xseg_max(releasable_above_share(&member[i], member_share),
                                      releasable_above_min(&member[i]));
    }
    split.spare = others_demand == 0 ? UINT64_MAX : excess_over(free, others_demand);
    split.release =
        release_for_entitled(&demands, &member[own], share) +
        proportional_part(excess_over(demands.entitled, demands.above_share) + demands.excess,
                          releasable_for_excess(&demands, &member[own], share), demands.above_min);
    XSEG_ASSERT(split.release <= member[own].idle);
    return split;
}
