/* SPDX-License-Identifier: MIT */
/* Elastic ranges: calls that must succeed, on granules of PAGE bytes. */
#ifndef XSEG_TESTS_RANGES_H
#define XSEG_TESTS_RANGES_H

#include "tests/support/env.h"
#include "xseg/range.h"

#define PAGE (2 * MIB)

/* By its plain C types; CUmemLocation is a kind (1: device) and an ID. */
struct location {
    int kind, number;
};
int cuMemGetAccess(unsigned long long *flags, const struct location *location,
                   unsigned long long address);

/* Access rights of a device at an address. */
enum { READ = 1, WRITE = 3 };

static inline unsigned access_at(const void *address, int device)
{
    const struct location location = {1, device};
    unsigned long long flags = 0;

    assert_int_equal(cuMemGetAccess(&flags, &location, (uintptr_t)address), 0);
    return (unsigned)flags;
}

/* Two devices of 1 GiB with real contents. */
static inline struct xseg_allocator *open_devices(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.devices = 2;
    settings.memory_bytes = GIB;
    settings.real_bytes = true;
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

#endif
