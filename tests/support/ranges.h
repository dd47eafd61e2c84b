/* SPDX-License-Identifier: MIT */
/* Elastic ranges: calls that must succeed, on granules of PAGE bytes. */
#ifndef XSEG_TESTS_RANGES_H
#define XSEG_TESTS_RANGES_H

#include "tests/support/env.h"
#include "xseg/range.h"

#define PAGE (2 * MIB)

/* Two devices of 1 GiB with real contents. */
static inline struct xseg_allocator *open_devices(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2, .memory_bytes = GIB,
                                         .real_bytes = true};

    return env_open_with_clock(&settings, config);
}

static inline struct xseg_range_info info(struct xseg_range *range)
{
    struct xseg_range_info out = {sizeof(out)};

    assert_int_equal(xseg_range_query(range, &out), XSEG_OK);
    return out;
}

static inline void commit(struct xseg_range *range, unsigned first, unsigned count,
                          xseg_stream stream)
{
    assert_int_equal(xseg_range_commit(range, first * PAGE, count * PAGE, stream), XSEG_OK);
}

static inline void decommit(struct xseg_range *range, unsigned first, unsigned count,
                            xseg_stream stream)
{
    assert_int_equal(xseg_range_decommit(range, first * PAGE, count * PAGE, stream), XSEG_OK);
}

/* Map the page of a granule at another one. */
static inline void alias(struct xseg_range *to, unsigned first, struct xseg_range *from,
                         unsigned at)
{
    assert_int_equal(xseg_range_alias(to, first * PAGE, PAGE, from, at * PAGE), XSEG_OK);
}

static inline void release(struct xseg_range *range)
{
    assert_int_equal(xseg_range_release(range), XSEG_OK);
}

/* discard(range, stream, {first, count}, ...): decommit runs of granules, and release the range. */
#define discard(range, stream, ...)                                 \
    discard_runs(range, stream, (const unsigned[][2]){__VA_ARGS__}, \
                 COUNT_OF(((const unsigned[][2]){__VA_ARGS__})))

static inline void discard_runs(struct xseg_range *range, xseg_stream stream,
                                const unsigned (*runs)[2], size_t count)
{
    for (size_t i = 0; i < count; i++)
        decommit(range, runs[i][0], runs[i][1], stream);
    release(range);
}

#endif
