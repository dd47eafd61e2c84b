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

static struct sums sum_up(const struct xseg_budget_party *party, unsigned count)
{
    struct sums sums = {0, 0};

    for (unsigned i = 0; i < count; i++) {
        sums.named += party[i].named_share;
        sums.unnamed += party[i].named_share == 0;
    }
    return sums;
}

/* a * b / c without overflow, for b <= c below 2^53: the error is a few bytes in 2^53. */
static uint64_t part_of(uint64_t a, uint64_t b, uint64_t c)
{
    return c == 0 ? 0 : (uint64_t)((long double)a * (long double)b / (long double)c);
}

/* Bytes of the share of a party: those without a name split what the others leave; what is too much is scaled down. */
static uint64_t share_of(const struct xseg_budget_party *party, const struct sums *sums,
                         uint64_t total)
{
    if (party->named_share != 0)
        return part_of(total, party->named_share, xseg_max(sums->named, WHOLE));
    const uint64_t left = WHOLE - xseg_min(sums->named, WHOLE);
    return part_of(total, left, WHOLE * sums->unnamed);
}

static uint64_t above(uint64_t bytes, uint64_t bound)
{
    return bytes - xseg_min(bytes, bound);
}

/* What a party wants of its own, up to its share. */
static uint64_t wants_own(const struct xseg_budget_party *party, uint64_t share)
{
    return xseg_min(party->wanted, above(share, party->taken));
}

/* Of what a party wants, that for which it makes no pages yet. */
static uint64_t misses(const struct xseg_budget_party *party)
{
    return above(party->wanted, party->growing);
}

/* What a party could give of borrowed memory, and of all memory above its floor. */
static uint64_t gives_borrowed(const struct xseg_budget_party *party, uint64_t share)
{
    return xseg_min(party->idle, above(party->taken, xseg_max(share, party->floor)));
}

static uint64_t gives_any(const struct xseg_budget_party *party)
{
    return party->wanted != 0 ? 0 : xseg_min(party->idle, above(party->taken, party->floor));
}

/* The part of a need that falls to one of those who could give `all` together; rounded up. */
static uint64_t part_to_give(uint64_t need, uint64_t own, uint64_t all)
{
    if (need == 0)
        return 0;
    return need >= all ? own : xseg_min(own, part_of(need, own, all) + 1);
}

/* What all want together, beyond what is free, and could give. */
struct needs {
    uint64_t own, more; /* wanted up to shares, and beyond */
    uint64_t borrowed;  /* idle and borrowed */
    uint64_t rest;      /* idle above the floors, beside what is given in the first round */
};

static uint64_t first_part(const struct needs *needs, const struct xseg_budget_party *party,
                           uint64_t share)
{
    return part_to_give(needs->own, gives_borrowed(party, share), needs->borrowed);
}

/* What a party could give in the second round. */
static uint64_t second_room(const struct needs *needs, const struct xseg_budget_party *party,
                            uint64_t share)
{
    const uint64_t most = xseg_max(gives_borrowed(party, share), gives_any(party));

    return party->wanted != 0 ? 0 : above(most, first_part(needs, party, share));
}

static struct needs find_needs(const struct xseg_budget_party *party, unsigned count,
                               const struct sums *sums, uint64_t total, uint64_t free)
{
    struct needs needs = {0};

    for (unsigned i = 0; i < count; i++) {
        const uint64_t share = share_of(&party[i], sums, total), missed = misses(&party[i]);
        const uint64_t own = xseg_min(missed, wants_own(&party[i], share));

        needs.own += own;
        needs.more += missed - own;
        needs.borrowed += gives_borrowed(&party[i], share);
    }
    needs.more = above(needs.more, above(free, needs.own));
    needs.own = above(needs.own, free);
    for (unsigned i = 0; i < count; i++)
        needs.rest += second_room(&needs, &party[i], share_of(&party[i], sums, total));
    return needs;
}

struct xseg_budget_split xseg_budget_split(const struct xseg_budget_party *party, unsigned count,
                                           unsigned own, uint64_t total, uint64_t free)
{
    const struct sums sums = sum_up(party, count);
    const struct needs needs = find_needs(party, count, &sums, total, free);
    const uint64_t share = share_of(&party[own], &sums, total);
    struct xseg_budget_split split = {
        .share = share, .borrowed = above(party[own].taken, share), .exceeds = sums.named > WHOLE};
    uint64_t theirs_wanted = 0;

    XSEG_ASSERT(own < count);
    for (unsigned i = 0; i < count; i++) {
        const uint64_t theirs = share_of(&party[i], &sums, total);

        if (i == own)
            continue;
        theirs_wanted += wants_own(&party[i], theirs);
        split.others_idle += xseg_max(gives_borrowed(&party[i], theirs), gives_any(&party[i]));
    }
    split.spare = theirs_wanted == 0 ? UINT64_MAX : above(free, theirs_wanted);
    split.give = first_part(&needs, &party[own], share) +
                 part_to_give(above(needs.own, needs.borrowed) + needs.more,
                              second_room(&needs, &party[own], share), needs.rest);
    XSEG_ASSERT(split.give <= party[own].idle);
    return split;
}
