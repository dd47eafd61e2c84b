/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/feature.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

static const char *const names[FEATURE_COUNT] = {
#define FEATURE_NAME_(id, name) name,
    FEATURE_MAP(FEATURE_NAME_)
#undef FEATURE_NAME_
};

static atomic_uint_fast64_t combined[FEATURE_COUNT][FEATURE_COUNT][2];

/* Pairs that exclude each other: a pool or a block with one cannot have the other. */
static const struct {
    enum feature one;
    uint64_t others;
} never[] = {
    {FEATURE_OWN, FEATURE(EXPORTABLE) | FEATURE(IMPORT)},
    {FEATURE_AWAY_NOTHING, FEATURE(AWAY_HOST) | FEATURE(AWAY_FILE)},
    {FEATURE_AWAY_HOST, FEATURE(AWAY_FILE)},
    {FEATURE_PAGES_SMALL, FEATURE(PAGES_AUTO)},
};

static bool is_never(unsigned one, unsigned other)
{
    for (unsigned i = 0; i < sizeof(never) / sizeof(never[0]); i++)
        if ((never[i].one == one && never[i].others >> other & 1) ||
            (never[i].one == other && never[i].others >> one & 1))
            return true;
    return false;
}

void feature_combine(uint64_t set, bool served)
{
    for (uint64_t left = set; left != 0; left &= left - 1) {
        const int one = __builtin_ctzll(left);

        for (uint64_t more = left & (left - 1); more != 0; more &= more - 1)
            atomic_fetch_add_explicit(&combined[one][__builtin_ctzll(more)][served], 1,
                                      memory_order_relaxed);
    }
}

static uint64_t times(unsigned one, unsigned other)
{
    return combined[one][other][0] + combined[one][other][1];
}

void feature_print(void)
{
    (void)printf("# pairs of features: successful + failed calls\n");
    for (unsigned one = 0; one < FEATURE_COUNT; one++)
        for (unsigned other = one + 1; other < FEATURE_COUNT; other++)
            (void)printf("# %-16s %-16s %8" PRIu64 " + %" PRIu64 "%s\n", names[one], names[other],
                         (uint64_t)combined[one][other][1], (uint64_t)combined[one][other][0],
                         is_never(one, other) ? "  (excluded)" : "");
}

unsigned feature_pairs(unsigned *reached)
{
    unsigned count = 0;

    *reached = 0;
    for (unsigned one = 0; one < FEATURE_COUNT; one++)
        for (unsigned other = one + 1; other < FEATURE_COUNT; other++) {
            count += !is_never(one, other);
            *reached += !is_never(one, other) && times(one, other) > 0;
        }
    return count;
}

/* The first pair with this exclusion and combination; or NULL. */
static const char *find_pair(bool excluded, bool are_combined)
{
    static char text[64];

    for (unsigned one = 0; one < FEATURE_COUNT; one++)
        for (unsigned other = one + 1; other < FEATURE_COUNT; other++)
            if (is_never(one, other) == excluded && (times(one, other) > 0) == are_combined) {
                (void)snprintf(text, sizeof(text), "%s with %s", names[one], names[other]);
                return text;
            }
    return NULL;
}

const char *feature_missing_pair(void)
{
    return find_pair(false, false);
}

const char *feature_excluded_pair(void)
{
    return find_pair(true, true);
}
