/* SPDX-License-Identifier: MIT */
/*
 * A week of a service that registers 40 GiB in 300 ranges: each hour some ranges are replaced, requests grow and trim the
 * rest of the device, and each night the pool of half of the ranges is paused and resumed.  The ranges are registered
 * with the simulator, which ends the process where memory goes beneath them.
 */
#include <stdlib.h>

#include "tests/support/env.h"
#include "tests/support/rng.h"

#define RANGES   300u
#define HOURS    168u
#define REPLACED 4u   /* ranges an hour */
#define REQUESTS 64u  /* live at once, beside the ranges */
#define STEPS    100u /* allocations and frees an hour */
#define TOTAL    (40 * 1024 * MIB)

struct range {
    struct xseg_pool *pool;
    void *block;
    size_t bytes;
    uint64_t id;
};

struct week {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool[2];
    struct range range[RANGES];
    void *request[REQUESTS];
    uint64_t random;
    uint64_t entered, registered;
    uint64_t appeared; /* ranges whose memory came: they were made, or their pool was resumed */
};

static uint64_t below(struct week *week, uint64_t bound)
{
    return rng_next(&week->random) % bound;
}

static bool enter(void *context, struct xseg_registered *run)
{
    struct week *week = context;
    uint64_t id = 0;

    if (xseg_sim_register((uintptr_t)run->base, run->bytes, XSEG_SIM_NCCL, &id) != XSEG_OK)
        abort();
    run->handle = (void *)(uintptr_t)id;
    week->entered++;
    week->registered += run->bytes;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    struct week *week = context;

    if (xseg_sim_unregister((uintptr_t)run->handle) != XSEG_OK)
        abort();
    week->registered -= run->bytes;
}

static void make_range(struct week *week, struct range *range)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = week, .enter = enter,
                                       .leave = leave};

    range->block = env_alloc_in(week->allocator, range->pool, range->bytes, NULL);
    assert_ok(xseg_register(week->allocator, range->block, range->bytes, &registrar, &range->id));
    week->appeared++;
}

static void end_range(struct week *week, struct range *range)
{
    assert_ok(xseg_unregister(week->allocator, range->id));
    env_free(week->allocator, range->block);
}

/* 300 ranges of 16 to 256 MiB, and the last one fills up. */
static void make_ranges(struct week *week)
{
    uint64_t left = TOTAL;

    for (unsigned i = 0; i < RANGES; i++) {
        struct range *range = &week->range[i];
        const uint64_t mean = left / (RANGES - i);

        range->pool = week->pool[i % 2];
        range->bytes = i + 1 == RANGES ? left : mean / 4 + below(week, mean + mean / 2);
        left -= range->bytes;
        make_range(week, range);
    }
    assert_int_equal(week->registered, TOTAL);
}

/* Requests of all sizes, of the default pool: some grow, and a trim gives what is idle back. */
static void serve(struct week *week)
{
    for (unsigned i = 0; i < STEPS; i++) {
        void **request = &week->request[below(week, REQUESTS)];

        if (*request != NULL)
            env_free(week->allocator, *request);
        *request =
            *request != NULL ? NULL : env_alloc(week->allocator, 4096u << below(week, 15), NULL);
    }
    assert_ok(xseg_trim(week->allocator, NULL, NULL, NULL));
}

static void pass_hour(struct week *week, unsigned hour)
{
    struct xseg_pool *pool = week->pool[hour / 24 % 2];

    serve(week);
    for (unsigned i = 0; i < REPLACED; i++) {
        struct range *range = &week->range[below(week, RANGES)];

        end_range(week, range);
        make_range(week, range);
    }
    if (hour % 24 != 3)
        return;
    /* What is registered of the pool leaves, and comes back with its memory. */
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_true(week->registered < TOTAL * 3 / 4);
    serve(week);
    assert_ok(xseg_pool_resume(pool));
    week->appeared += RANGES / 2;
}

TEST(a_week_with_300_registered_ranges)
{
    static struct week week;
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 80 * 1024 * MIB};

    week = (struct week){.random = 4711};
    week.allocator = env_open_on(&settings, "expandable_segments:True,rdma:True");
    for (unsigned i = 0; i < 2; i++)
        assert_ok(xseg_pool_create(week.allocator, 0, NULL, &week.pool[i]));
    make_ranges(&week);
    for (unsigned hour = 0; hour < HOURS; hour++) {
        pass_hour(&week, hour);
        assert_int_equal(week.registered, TOTAL);
        assert_int_equal(env_stats(week.allocator).registered_bytes, TOTAL);
        assert_int_equal(xseg_sim_registered(), TOTAL);
    }
    /* Each time its memory comes, a range is one run, but for a few. */
    assert_true(week.entered * 100 <= week.appeared * 105);
    for (unsigned i = 0; i < RANGES; i++)
        end_range(&week, &week.range[i]);
    for (unsigned i = 0; i < REQUESTS; i++)
        if (week.request[i] != NULL)
            env_free(week.allocator, week.request[i]);
    for (unsigned i = 0; i < 2; i++)
        assert_ok(xseg_pool_release(week.pool[i]));
    env_close(week.allocator);
}
