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

static atomic_uint_fast64_t counts[FEATURE_COUNT][FEATURE_COUNT][2];

/* Exclusive features: a pool or a block that has the first one cannot have those of the set. */
static const struct {
    enum feature first;
    uint64_t excluded_set;
} exclusions[] = {
    {FEATURE_MEMORY_FUNCTIONS, FEATURE(EXPORTABLE) | FEATURE(IMPORT)},
    {FEATURE_PAUSE_NOTHING, FEATURE(PAUSE_HOST) | FEATURE(PAUSE_FILE)},
    {FEATURE_PAUSE_HOST, FEATURE(PAUSE_FILE)},
    {FEATURE_PAGES_SMALL, FEATURE(PAGES_AUTO)},
};

static bool are_exclusive(unsigned first, unsigned second)
{
    for (unsigned i = 0; i < sizeof(exclusions) / sizeof(exclusions[0]); i++)
        if ((exclusions[i].first == first && exclusions[i].excluded_set >> second & 1) ||
            (exclusions[i].first == second && exclusions[i].excluded_set >> first & 1))
            return true;
    return false;
}

void feature_combine(uint64_t set, bool served)
{
    for (uint64_t remaining = set; remaining != 0; remaining &= remaining - 1) {
        const int first = __builtin_ctzll(remaining);

        for (uint64_t rest = remaining & (remaining - 1); rest != 0; rest &= rest - 1)
            atomic_fetch_add_explicit(&counts[first][__builtin_ctzll(rest)][served], 1,
                                      memory_order_relaxed);
    }
}

static uint64_t times(unsigned first, unsigned second)
{
    return counts[first][second][0] + counts[first][second][1];
}

void feature_print(void)
{
    (void)printf("# pairs of features: successful + failed calls\n");
    for (unsigned first = 0; first < FEATURE_COUNT; first++)
        for (unsigned second = first + 1; second < FEATURE_COUNT; second++)
            (void)printf("# %-16s %-16s %8" PRIu64 " + %" PRIu64 "%s\n", names[first],
                         names[second], (uint64_t)counts[first][second][1],
                         (uint64_t)counts[first][second][0],
                         are_exclusive(first, second) ? "  (excluded)" : "");
}

unsigned feature_pairs(unsigned *combined_pairs)
{
    unsigned count = 0;

    *combined_pairs = 0;
    for (unsigned first = 0; first < FEATURE_COUNT; first++)
        for (unsigned second = first + 1; second < FEATURE_COUNT; second++) {
            count += !are_exclusive(first, second);
            *combined_pairs += !are_exclusive(first, second) && times(first, second) > 0;
        }
    return count;
}

/* The first pair that is exclusive or not, and was combined or not; NULL: none. */
static const char *find_pair(bool excluded, bool are_combined)
{
    static char text[64];

    for (unsigned first = 0; first < FEATURE_COUNT; first++)
        for (unsigned second = first + 1; second < FEATURE_COUNT; second++)
            if (are_exclusive(first, second) == excluded &&
                (times(first, second) > 0) == are_combined) {
                (void)snprintf(text, sizeof(text), "%s with %s", names[first], names[second]);
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
