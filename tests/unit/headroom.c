/* SPDX-License-Identifier: MIT */
/* The headroom of random points, compared with its definition (src/tools/replay/headroom.h), which is computed for each e. */
#include "src/tools/replay/headroom.h"

#include "tests/support/test.h"

#define POINTS 9000

/* A linear congruential generator. */
static uint64_t random_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1;
    return *state >> 33;
}

struct points {
    uint64_t allocated[POINTS], reserved[POINTS];
    size_t count;
};

/* The smallest valid c for an e, in 1/HEADROOM_UNIT bytes. */
static headroom_sum c_of(const struct points *points, uint32_t e)
{
    headroom_sum c = 0;

    for (size_t i = 0; i < points->count; i++) {
        const headroom_sum excess = (headroom_sum)points->reserved[i] - points->allocated[i];
        const headroom_sum needed = excess * HEADROOM_UNIT - (headroom_sum)points->allocated[i] * e;

        c = needed > c ? needed : c;
    }
    return c;
}

/* The sum of the bound over all points, without the part that is the same for every e. */
static headroom_sum total_of(const struct points *points, uint32_t e)
{
    headroom_sum total = c_of(points, e) * (headroom_sum)points->count;

    for (size_t i = 0; i < points->count; i++)
        total += (headroom_sum)points->allocated[i] * e;
    return total;
}

/* Expect the pair of the definition, whose e is at most max_e. */
static void expect_pair(const struct points *points, uint32_t max_e)
{
    struct headroom headroom = {0};
    struct headroom_pair pair;
    headroom_sum min_total = total_of(points, 0);
    uint32_t e = 0;

    for (size_t i = 0; i < points->count; i++)
        assert_true(headroom_add(&headroom, points->allocated[i], points->reserved[i]));
    pair = headroom_find(&headroom);
    for (uint32_t candidate = 1; candidate <= max_e; candidate++)
        if (total_of(points, candidate) < min_total) {
            min_total = total_of(points, candidate);
            e = candidate;
        }
    assert_int_equal(pair.e, e);
    assert_int_equal(pair.c, (uint64_t)((c_of(points, e) + HEADROOM_UNIT - 1) / HEADROOM_UNIT));
    headroom_fini(&headroom);
}

TEST(random_points_have_the_pair_of_the_definition)
{
    static struct points points;
    uint64_t random = 1;

    for (int round = 0; round < 200; round++) {
        const uint64_t scale = 1 + random_next(&random) % 1000, slope = random_next(&random) % 300;

        points.count = 1 + random_next(&random) % 40;
        for (size_t i = 0; i < points.count; i++) {
            points.allocated[i] = random_next(&random) % (scale * scale);
            points.reserved[i] = points.allocated[i] + points.allocated[i] * slope / 100 +
                                 random_next(&random) % scale;
        }
        expect_pair(&points, 4000);
    }
}

TEST(many_points_are_reduced)
{
    static struct points points;
    uint64_t random = 7;

    points.count = POINTS;
    /* All points of a parabola are on its hull. */
    for (size_t i = 0; i < POINTS; i++) {
        points.allocated[i] = i * 1000000;
        points.reserved[i] = points.allocated[i] + i * (2 * (uint64_t)POINTS - i);
    }
    expect_pair(&points, 50);
    for (size_t i = 0; i < POINTS; i++) {
        points.allocated[i] = random_next(&random) % 1000000;
        points.reserved[i] = points.allocated[i] + random_next(&random) % 50000;
    }
    expect_pair(&points, 50);
}

TEST(edge_cases)
{
    struct headroom headroom = {0};
    struct points points = {.count = 1, .allocated = {0}, .reserved = {0}};

    assert_int_equal(headroom_find(&headroom).c, 0);
    headroom_fini(&headroom);
    expect_pair(&points, 3);
    points.reserved[0] = UINT64_C(1) << 59;
    expect_pair(&points, 3);
    points.count = 2;
    points.allocated[1] = points.reserved[1] = UINT64_C(1) << 59;
    expect_pair(&points, 3);
    /* Reserved memory below allocated memory, as with blocks in a fallback pool, needs no headroom. */
    points = (struct points){.count = 1, .allocated = {5}, .reserved = {3}};
    expect_pair(&points, 3);
}
