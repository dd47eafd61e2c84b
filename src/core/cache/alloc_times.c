/* SPDX-License-Identifier: MIT */
#include "src/core/cache/alloc_times.h"

#include <stdlib.h>

#include "src/base/clock.h"
#include "src/core/cache/arena.h"
#include "src/core/cache/page_map.h"

#define TICK_SHIFT 24u

/* How far a stamp may be ahead of a time: it was written just after the time was read. */
#define TICKS_AHEAD ((uint32_t)1 << 16)

typedef atomic_uint_least32_t stamp; /* 0: unknown */

_Static_assert(sizeof(stamp) == 4, "stamps start over at 2^32");

struct xseg_alloc_times {
    uint32_t chunks;
    atomic_size_t host_bytes;
    _Atomic(stamp *) chunk[];
};

static uint32_t tick_of(uint64_t now)
{
    const uint32_t tick = (uint32_t)((now >> TICK_SHIFT) + 1);

    return tick == 0 ? 1 : tick;
}

uint64_t xseg_alloc_times_now(const struct xseg_clock *clock, const struct xseg_config *config)
{
    return config->block_ages ? xseg_clock_coarse(clock) | 1 : 0;
}

/* --- Tables: the first thread that needs one makes it. --- */

static uint64_t place_of(const struct xseg_extent *extent, uint64_t address)
{
    XSEG_ASSERT(address - extent->segment.base < extent->segment.bytes);
    return (address - extent->segment.base) >>
           (extent->has_cells ? XSEG_CELLS_SHIFT : XSEG_SLOT_SHIFT);
}

static struct xseg_alloc_times *get_table(struct xseg_extent *extent)
{
    struct xseg_alloc_times *alloc_times =
        atomic_load_explicit(&extent->alloc_times, memory_order_acquire);
    const uint64_t chunks = place_of(extent, extent->segment.base + extent->segment.bytes - 1) /
                                XSEG_ALLOC_TIMES_CHUNK +
                            1;
    struct xseg_alloc_times *made;

    if (alloc_times != NULL)
        return alloc_times;
    made = calloc(1, sizeof(*made) + chunks * sizeof(made->chunk[0]));
    if (made == NULL)
        return NULL;
    XSEG_ASSERT(chunks > 0 && chunks <= UINT32_MAX);
    made->chunks = (uint32_t)chunks;
    atomic_init(&made->host_bytes, sizeof(*made) + chunks * sizeof(made->chunk[0]));
    if (atomic_compare_exchange_strong(&extent->alloc_times, &alloc_times, made))
        return made;
    free(made);
    return alloc_times;
}

static stamp *get_chunk(struct xseg_alloc_times *alloc_times, uint64_t number)
{
    XSEG_ASSERT(number < alloc_times->chunks);
    stamp *chunk = atomic_load_explicit(&alloc_times->chunk[number], memory_order_acquire);
    stamp *made;

    if (chunk != NULL)
        return chunk;
    made = calloc(XSEG_ALLOC_TIMES_CHUNK, sizeof(*made));
    if (made == NULL)
        return NULL;
    if (atomic_compare_exchange_strong(&alloc_times->chunk[number], &chunk, made)) {
        atomic_fetch_add(&alloc_times->host_bytes, XSEG_ALLOC_TIMES_CHUNK * sizeof(*made));
        return made;
    }
    free(made);
    return chunk;
}

void xseg_alloc_times_fini(struct xseg_extent *extent)
{
    struct xseg_alloc_times *alloc_times = atomic_load(&extent->alloc_times);

    for (uint32_t i = 0; alloc_times != NULL && i < alloc_times->chunks; i++)
        free(atomic_load(&alloc_times->chunk[i]));
    free(alloc_times);
    atomic_store(&extent->alloc_times, NULL);
}

uint64_t xseg_alloc_times_host_bytes(const struct xseg_extent *extent)
{
    const struct xseg_alloc_times *alloc_times =
        atomic_load_explicit(&extent->alloc_times, memory_order_acquire);

    return alloc_times == NULL ? 0 : atomic_load(&alloc_times->host_bytes);
}

/* --- Stamps. --- */

void xseg_alloc_times_note(struct xseg_extent *extent, uint64_t address, uint64_t now)
{
    const uint64_t place = place_of(extent, address);
    struct xseg_alloc_times *alloc_times = get_table(extent);
    stamp *chunk =
        alloc_times == NULL ? NULL : get_chunk(alloc_times, place / XSEG_ALLOC_TIMES_CHUNK);

    XSEG_ASSERT(now != 0);
    if (chunk != NULL)
        atomic_store_explicit(&chunk[place % XSEG_ALLOC_TIMES_CHUNK], tick_of(now),
                              memory_order_relaxed);
}

void xseg_alloc_times_note_at(const struct xseg_page_map *page_map, uint64_t address, uint64_t now)
{
    xseg_alloc_times_note(xseg_page_map_find(page_map, address), address, now);
}

uint64_t xseg_alloc_times_age(const struct xseg_extent *extent, uint64_t address, uint64_t now)
{
    const struct xseg_alloc_times *alloc_times =
        atomic_load_explicit(&extent->alloc_times, memory_order_acquire);
    const uint64_t place = place_of(extent, address);
    stamp *chunk = alloc_times == NULL || now == 0
                       ? NULL
                       : atomic_load_explicit(&alloc_times->chunk[place / XSEG_ALLOC_TIMES_CHUNK],
                                              memory_order_acquire);
    const uint32_t born =
        chunk == NULL
            ? 0
            : atomic_load_explicit(&chunk[place % XSEG_ALLOC_TIMES_CHUNK], memory_order_relaxed);
    const uint32_t ticks = tick_of(now) - born;

    XSEG_ASSERT(alloc_times == NULL || place / XSEG_ALLOC_TIMES_CHUNK < alloc_times->chunks);
    if (born == 0)
        return XSEG_ALLOC_TIMES_UNKNOWN;
    return ticks > UINT32_MAX - TICKS_AHEAD ? 0
                                            : ((uint64_t)ticks << TICK_SHIFT) / UINT64_C(1000000);
}

/* --- Forgetting. --- */

static void forget_extent(const struct xseg_extent *extent)
{
    struct xseg_alloc_times *alloc_times = atomic_load(&extent->alloc_times);

    for (uint32_t i = 0; alloc_times != NULL && i < alloc_times->chunks; i++) {
        stamp *chunk = atomic_load(&alloc_times->chunk[i]);

        for (uint32_t at = 0; chunk != NULL && at < XSEG_ALLOC_TIMES_CHUNK; at++)
            atomic_store_explicit(&chunk[at], 0, memory_order_relaxed);
    }
}

void xseg_alloc_times_forget(struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        forget_extent(XSEG_CONTAINER(node, struct xseg_extent, link));
    }
}
