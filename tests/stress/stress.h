/* SPDX-License-Identifier: MIT */
/* Helpers of stress tests: threads, random numbers, contents of blocks, a record of mappings, and final checks. */
#ifndef XSEG_TESTS_STRESS_H
#define XSEG_TESTS_STRESS_H

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"

#define CHECK_OK(call) CHECK((call) == XSEG_OK)

/* A random number of a worker, whose member `random` is the state. */
#define below(worker, bound) ((rng_next(&(worker)->random) >> 16) % (bound))

/* --- Threads. --- */

/* threads_start(thread, run, worker, count): start a thread for each element of an array of workers. */
#define threads_start(thread, run, worker, count) \
    threads_start_all((thread), (run), (worker), sizeof(*(worker)), (count))

static inline void threads_start_all(pthread_t *thread, void *(*run)(void *), void *worker,
                                     size_t bytes, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run, (char *)worker + i * bytes), 0);
}

static inline void threads_join(const pthread_t *thread, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
}

/* --- Contents: until it is freed, a block contains words that are derived from its address and size. --- */

static inline uint64_t block_signature(const void *ptr, size_t bytes)
{
    return ((uint64_t)(uintptr_t)ptr ^ bytes) * UINT64_C(0x9E3779B97F4A7C15);
}

/* The last word of a block; a block of less than 32 bytes has 512 bytes, and its third word is the last. */
static inline uint64_t *block_last_word(void *ptr, size_t bytes)
{
    return (uint64_t *)ptr + (bytes < 32 ? 2 : bytes / sizeof(uint64_t) - 1);
}

static inline void block_sign(void *ptr, size_t bytes)
{
    if (!ENV_HAS_BYTES)
        return;
    ((uint64_t *)ptr)[0] = bytes;
    ((uint64_t *)ptr)[1] = block_signature(ptr, bytes);
    *block_last_word(ptr, bytes) = ~block_signature(ptr, bytes);
}

static inline void block_check(void *ptr)
{
    if (!ENV_HAS_BYTES || ptr == NULL)
        return;
    const size_t bytes = ((uint64_t *)ptr)[0];
    CHECK(((uint64_t *)ptr)[1] == block_signature(ptr, bytes));
    CHECK(*block_last_word(ptr, bytes) == ~block_signature(ptr, bytes));
}

/* --- A record of mappings: no granule is mapped or unmapped twice, and no pinned granule is unmapped. --- */

enum { MAPPINGS_GRANULE = 2 << 20, MAPPINGS_GRANULES = 1 << 17 }; /* 256 GiB of addresses */

struct mappings {
    uintptr_t origin; /* the address of the first granule */
    atomic_uchar mapped[MAPPINGS_GRANULES];
    atomic_uint pins[MAPPINGS_GRANULES];
    atomic_uint notifications;
};

static inline size_t mappings_index(const struct mappings *mappings, const void *base)
{
    const size_t index = ((uintptr_t)base - mappings->origin) / MAPPINGS_GRANULE;

    CHECK((uintptr_t)base >= mappings->origin && index < MAPPINGS_GRANULES);
    return index;
}

static inline void mappings_record(struct mappings *mappings, const struct xseg_mapping *mapping,
                                   unsigned char is_mapped)
{
    const size_t first = mappings_index(mappings, mapping->base);

    for (size_t i = first; i < first + (mapping->bytes + MAPPINGS_GRANULE - 1) / MAPPINGS_GRANULE;
         i++) {
        CHECK(atomic_exchange(&mappings->mapped[i], is_mapped) != is_mapped);
        CHECK(is_mapped != 0 || atomic_load(&mappings->pins[i]) == 0);
    }
    atomic_fetch_add(&mappings->notifications, 1);
}

static inline void mappings_on_unmap(void *context, const struct xseg_mapping *mapping)
{
    mappings_record(context, mapping, 0);
}

static inline void mappings_on_map(void *context, const struct xseg_mapping *mapping)
{
    mappings_record(context, mapping, 1);
}

static inline uint64_t mappings_observe(struct xseg_allocator *allocator, struct mappings *mappings)
{
    return env_observe(allocator, .context = mappings, .on_unmap = mappings_on_unmap,
                       .on_map = mappings_on_map);
}

static inline void mappings_expect_none(const struct mappings *mappings)
{
    for (size_t i = 0; i < MAPPINGS_GRANULES; i++)
        assert_int_equal(atomic_load(&mappings->mapped[i]), 0);
}

/* The main function of a program with the arguments [LENGTH [SEED [CASE]]]. */
static inline int stress_main(int count, char **arguments, uint64_t *length, uint64_t *seed)
{
    if (count > 1)
        *length = strtoull(arguments[1], NULL, 10);
    if (count > 2)
        *seed = strtoull(arguments[2], NULL, 10);
    if (count > 3)
        test_select(arguments[3]);
    return test_run();
}

/* --- Final checks. --- */

/* Trim everything, and expect that no block and no memory remains; returns the statistics. */
static inline struct xseg_statistics expect_all_released(struct xseg_allocator *allocator)
{
    env_empty_cache(allocator);
    const struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.active[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.active_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.requested_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(stats.physical_bytes, 0);
    return stats;
}

#endif
