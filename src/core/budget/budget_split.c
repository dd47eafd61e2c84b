/* SPDX-License-Identifier: MIT */
#include "src/core/budget/budget_split.h"

#include "src/base/align.h"
#include "src/base/check.h"

#define WHOLE UINT64_C(1000000)

/* Sums over all parties. */
struct sums {
    uint64_t named; /* shares that were named; parts of a million */
    unsigned unnamed;
};

static struct sums sum_up(const struct xseg_budget_participant *participant, unsigned count)
{
    struct sums sums = {0, 0};

    for (unsigned i = 0; i < count; i++) {
        sums.named += participant[i].named_share;
        sums.unnamed += participant[i].named_share == 0;
    }
    return sums;
}

/* a * b / c without overflow, for b <= c below 2^53: the error is a few bytes in 2^53. */
static uint64_t part_of(uint64_t a, uint64_t b, uint64_t c)
{
    return c == 0 ? 0 : (uint64_t)((long double)a * (long double)b / (long double)c);
}

/* Bytes of the share of a party: those without a name split what the others leave; what is too much is scaled down. */
static uint64_t share_of(const struct xseg_budget_participant *participant, const struct sums *sums,
                         uint64_t total)
{
    if (participant->named_share != 0)
        return part_of(total, participant->named_share, xseg_max(sums->named, WHOLE));
    const uint64_t left = WHOLE - xseg_min(sums->named, WHOLE);
    return part_of(total, left, WHOLE * sums->unnamed);
}

static uint64_t above(uint64_t bytes, uint64_t bound)
{
    return bytes - xseg_min(bytes, bound);
}

/* What a party wants of its own, up to its share. */
static uint64_t wants_own(const struct xseg_budget_participant *participant, uint64_t share)
{
    return xseg_min(participant->wanted, above(share, participant->taken));
}

/* Of what a party wants, that for which it makes no pages yet. */
static uint64_t misses(const struct xseg_budget_participant *participant)
{
    return above(participant->wanted, participant->growing);
}

/* What a party could give of borrowed memory, and of all memory above its floor. */
static uint64_t releases_above_share(const struct xseg_budget_participant *participant,
                                     uint64_t share)
{
    return xseg_min(participant->idle,
                    above(participant->taken, xseg_max(share, participant->floor)));
}

static uint64_t gives_any(const struct xseg_budget_participant *participant)
{
    return participant->wanted != 0
               ? 0
               : xseg_min(participant->idle, above(participant->taken, participant->floor));
}

/* The part of a need that falls to one of those who could give `all` together; rounded up. */
static uint64_t part_to_give(uint64_t params, uint64_t own, uint64_t all)
{
    if (params == 0)
        return 0;
    return params >= all ? own : xseg_min(own, part_of(params, own, all) + 1);
}

/* What all want together, beyond what is free, and could give. */
struct needs {
    uint64_t own, more;   /* wanted up to shares, and beyond */
    uint64_t above_share; /* idle and borrowed */
    uint64_t rest;        /* idle above the floors, beside what is given in the first round */
};

static uint64_t first_part(const struct needs *needs,
                           const struct xseg_budget_participant *participant, uint64_t share)
{
    return part_to_give(needs->own, releases_above_share(participant, share), needs->above_share);
}

/* What a party could give in the second round. */
static uint64_t second_room(const struct needs *needs,
                            const struct xseg_budget_participant *participant, uint64_t share)
{
    const uint64_t max = xseg_max(releases_above_share(participant, share), gives_any(participant));

    return participant->wanted != 0 ? 0 : above(max, first_part(needs, participant, share));
}

static struct needs find_needs(const struct xseg_budget_participant *participant, unsigned count,
                               const struct sums *sums, uint64_t total, uint64_t free)
{
    struct needs needs = {0};

    for (unsigned i = 0; i < count; i++) {
        const uint64_t share = share_of(&participant[i], sums, total),
                       missed = misses(&participant[i]);
        const uint64_t own = xseg_min(missed, wants_own(&participant[i], share));

        needs.own += own;
        needs.more += missed - own;
        needs.above_share += releases_above_share(&participant[i], share);
    }
    needs.more = above(needs.more, above(free, needs.own));
    needs.own = above(needs.own, free);
    for (unsigned i = 0; i < count; i++)
        needs.rest += second_room(&needs, &participant[i], share_of(&participant[i], sums, total));
    return needs;
}

struct xseg_budget_split xseg_budget_split(const struct xseg_budget_participant *participant,
                                           unsigned count, unsigned own, uint64_t total,
                                           uint64_t free)
{
    const struct sums sums = sum_up(participant, count);
    const struct needs needs = find_needs(participant, count, &sums, total, free);
    const uint64_t share = share_of(&participant[own], &sums, total);
    struct xseg_budget_split split = {.share = share,
                                      .above_share = above(participant[own].taken, share),
                                      .exceeds = sums.named > WHOLE};
    uint64_t theirs_wanted = 0;

    XSEG_ASSERT(own < count);
    for (unsigned i = 0; i < count; i++) {
        const uint64_t theirs = share_of(&participant[i], &sums, total);

        if (i == own)
            continue;
        theirs_wanted += wants_own(&participant[i], theirs);
        split.others_idle +=
            xseg_max(releases_above_share(&participant[i], theirs), gives_any(&participant[i]));
    }
    split.spare = theirs_wanted == 0 ? UINT64_MAX : above(free, theirs_wanted);
    split.give = first_part(&needs, &participant[own], share) +
                 part_to_give(above(needs.own, needs.above_share) + needs.more,
                              second_room(&needs, &participant[own], share), needs.rest);
    XSEG_ASSERT(split.give <= participant[own].idle);
    return split;
}
