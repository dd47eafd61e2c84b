/* SPDX-License-Identifier: MIT */
#include "src/core/budget/budget.h"

#include "src/base/align.h"
#include "src/base/check.h"

#define WHOLE ((uint64_t)XSEG_SHARED_BUDGET_WHOLE_SHARE)

/* Sums over all members. */
struct sums {
    uint64_t named;   /* the sum of configured shares, in millionths */
    unsigned unnamed; /* the number of members without a configured share */
};

static struct sums sum_shares(const struct xseg_budget_member *member, unsigned count)
{
    struct sums sums = {0, 0};

    for (unsigned i = 0; i < count; i++) {
        sums.named += member[i].named_share;
        sums.unnamed += member[i].named_share == 0;
    }
    return sums;
}

/* a * b / c without overflow, for b <= c < 2^53.  The error is a few bytes in 2^53. */
static uint64_t scale_bytes(uint64_t a, uint64_t b, uint64_t c)
{
    return c == 0 ? 0 : (uint64_t)((long double)a * (long double)b / (long double)c);
}

/* The share of a member in bytes.  Members without a configured share split the remainder.  If the
 * configured shares exceed 1, they are scaled down. */
static uint64_t compute_share(const struct xseg_budget_member *member, const struct sums *sums,
                              uint64_t total)
{
    if (member->named_share != 0)
        return scale_bytes(total, member->named_share, xseg_max(sums->named, WHOLE));
    const uint64_t left = WHOLE - xseg_min(sums->named, WHOLE);
    return scale_bytes(total, left, WHOLE * sums->unnamed);
}

static uint64_t excess_over(uint64_t bytes, uint64_t bound)
{
    return bytes - xseg_min(bytes, bound);
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

/* Idle bytes that a member could release: bytes above its share, or all bytes above its minimum. */
static uint64_t releasable_above_share(const struct xseg_budget_member *member, uint64_t share)
{
    return xseg_min(member->idle, excess_over(member->physical, xseg_max(share, member->floor)));
}

static uint64_t releasable_above_min(const struct xseg_budget_member *member)
{
    return member->demand != 0
               ? 0
               : xseg_min(member->idle, excess_over(member->physical, member->floor));
}

/* The part of a demand for a member that could release `own` of `all` bytes, rounded up. */
static uint64_t proportional_part(uint64_t demand, uint64_t own, uint64_t all)
{
    if (demand == 0)
        return 0;
    return demand >= all ? own : xseg_min(own, scale_bytes(demand, own, all) + 1);
}

/* The demands of all members beyond free memory, and the bytes that they could release. */
struct demands {
    uint64_t own, more;   /* entitled, and beyond shares */
    uint64_t above_share; /* idle and above shares */
    uint64_t rest;        /* idle above minimums, without the bytes of the first step */
};

static uint64_t release_for_shares(const struct demands *demands,
                                   const struct xseg_budget_member *member, uint64_t share)
{
    return proportional_part(demands->own, releasable_above_share(member, share),
                             demands->above_share);
}

/* Bytes that a member could release in the second step. */
static uint64_t releasable_for_rest(const struct demands *demands,
                                    const struct xseg_budget_member *member, uint64_t share)
{
    const uint64_t max =
        xseg_max(releasable_above_share(member, share), releasable_above_min(member));

    return member->demand != 0 ? 0 : excess_over(max, release_for_shares(demands, member, share));
}

static struct demands sum_demands(const struct xseg_budget_member *member, unsigned count,
                                  const struct sums *sums, uint64_t total, uint64_t free)
{
    struct demands demands = {0};

    for (unsigned i = 0; i < count; i++) {
        const uint64_t share = compute_share(&member[i], sums, total),
                       demand = demand_without_pages(&member[i]);
        const uint64_t own = xseg_min(demand, demand_within_share(&member[i], share));

        demands.own += own;
        demands.more += demand - own;
        demands.above_share += releasable_above_share(&member[i], share);
    }
    demands.more = excess_over(demands.more, excess_over(free, demands.own));
    demands.own = excess_over(demands.own, free);
    for (unsigned i = 0; i < count; i++)
        demands.rest +=
            releasable_for_rest(&demands, &member[i], compute_share(&member[i], sums, total));
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
                                      .exceeds = sums.named > WHOLE};
    uint64_t others_demand = 0;

    XSEG_ASSERT(own < count);
    for (unsigned i = 0; i < count; i++) {
        const uint64_t share_of_member = compute_share(&member[i], &sums, total);

        if (i == own)
            continue;
        others_demand += demand_within_share(&member[i], share_of_member);
        split.others_idle += xseg_max(releasable_above_share(&member[i], share_of_member),
                                      releasable_above_min(&member[i]));
    }
    split.spare = others_demand == 0 ? UINT64_MAX : excess_over(free, others_demand);
    split.release =
        release_for_shares(&demands, &member[own], share) +
        proportional_part(excess_over(demands.own, demands.above_share) + demands.more,
                          releasable_for_rest(&demands, &member[own], share), demands.rest);
    XSEG_ASSERT(split.release <= member[own].idle);
    return split;
}
