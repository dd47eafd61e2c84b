/* SPDX-License-Identifier: MIT */
#include "src/core/cache/births.h"

#include <stdlib.h>

#include "src/base/clock.h"
#include "src/core/cache/arena.h"
#include "src/core/cache/lookup.h"

#define TICK_SHIFT 24u

/* Stamps that lie as little ahead of a time were written just after it was read. */
#define TICKS_AHEAD ((uint32_t)1 << 16)

typedef atomic_uint_least32_t stamp; /* 0: unknown */

struct xseg_births {
    uint32_t chunks;
    atomic_size_t host_bytes;
    _Atomic(stamp *) chunk[];
};

static uint32_t tick_of(uint64_t now)
{
    const uint32_t tick = (uint32_t)((now >> TICK_SHIFT) + 1);

    return tick == 0 ? 1 : tick;
}

uint64_t xseg_births_now(const struct xseg_clock *clock, const struct xseg_config *config)
{
    return config->block_ages ? xseg_clock_coarse(clock) | 1 : 0;
}

/* --- Tables: whoever comes first makes one, and the others take it. --- */

static uint64_t place_of(const struct xseg_extent *extent, uint64_t address)
{
    return (address - extent->segment.base) >>
           (extent->has_cells ? XSEG_CELLS_SHIFT : XSEG_STARTS_SHIFT);
}

static struct xseg_births *get_table(struct xseg_extent *extent)
{
    struct xseg_births *births = atomic_load_explicit(&extent->births, memory_order_acquire);
    const uint64_t chunks =
        place_of(extent, extent->segment.base + extent->segment.bytes - 1) / XSEG_BIRTHS_CHUNK + 1;
    struct xseg_births *made;

    if (births != NULL)
        return births;
    made = calloc(1, sizeof(*made) + chunks * sizeof(made->chunk[0]));
    if (made == NULL)
        return NULL;
    made->chunks = (uint32_t)chunks;
    atomic_init(&made->host_bytes, sizeof(*made) + chunks * sizeof(made->chunk[0]));
    if (atomic_compare_exchange_strong(&extent->births, &births, made))
        return made;
    free(made);
    return births;
}

static stamp *get_chunk(struct xseg_births *births, uint64_t number)
{
    stamp *chunk = atomic_load_explicit(&births->chunk[number], memory_order_acquire);
    stamp *made;

    if (chunk != NULL)
        return chunk;
    made = calloc(XSEG_BIRTHS_CHUNK, sizeof(*made));
    if (made == NULL)
        return NULL;
    if (atomic_compare_exchange_strong(&births->chunk[number], &chunk, made)) {
        atomic_fetch_add(&births->host_bytes, XSEG_BIRTHS_CHUNK * sizeof(*made));
        return made;
    }
    free(made);
    return chunk;
}

void xseg_births_fini(struct xseg_extent *extent)
{
    struct xseg_births *births = atomic_load(&extent->births);

    for (uint32_t i = 0; births != NULL && i < births->chunks; i++)
        free(atomic_load(&births->chunk[i]));
    free(births);
    atomic_store(&extent->births, NULL);
}

uint64_t xseg_births_host_bytes(const struct xseg_extent *extent)
{
    const struct xseg_births *births = atomic_load_explicit(&extent->births, memory_order_acquire);

    return births == NULL ? 0 : atomic_load(&births->host_bytes);
}

/* --- Stamps. --- */

void xseg_births_note(struct xseg_extent *extent, uint64_t address, uint64_t now)
{
    const uint64_t place = place_of(extent, address);
    struct xseg_births *births = get_table(extent);
    stamp *chunk = births == NULL ? NULL : get_chunk(births, place / XSEG_BIRTHS_CHUNK);

    if (chunk != NULL)
        atomic_store_explicit(&chunk[place % XSEG_BIRTHS_CHUNK], tick_of(now),
                              memory_order_relaxed);
}

void xseg_births_note_at(const struct xseg_lookup *lookup, uint64_t address, uint64_t now)
{
    xseg_births_note(xseg_lookup_find(lookup, address), address, now);
}

uint64_t xseg_births_age(const struct xseg_extent *extent, uint64_t address, uint64_t now)
{
    const struct xseg_births *births = atomic_load_explicit(&extent->births, memory_order_acquire);
    const uint64_t place = place_of(extent, address);
    stamp *chunk =
        births == NULL || now == 0
            ? NULL
            : atomic_load_explicit(&births->chunk[place / XSEG_BIRTHS_CHUNK], memory_order_acquire);
    const uint32_t born = chunk == NULL ? 0
                                        : atomic_load_explicit(&chunk[place % XSEG_BIRTHS_CHUNK],
                                                               memory_order_relaxed);
    const uint32_t ticks = tick_of(now) - born;

    if (born == 0)
        return XSEG_BIRTHS_UNKNOWN;
    return ticks > UINT32_MAX - TICKS_AHEAD ? 0
                                            : ((uint64_t)ticks << TICK_SHIFT) / UINT64_C(1000000);
}

/* --- Forgetting. --- */

static void forget_extent(const struct xseg_extent *extent)
{
    struct xseg_births *births = atomic_load(&extent->births);

    for (uint32_t i = 0; births != NULL && i < births->chunks; i++) {
        stamp *chunk = atomic_load(&births->chunk[i]);

        for (uint32_t at = 0; chunk != NULL && at < XSEG_BIRTHS_CHUNK; at++)
            atomic_store_explicit(&chunk[at], 0, memory_order_relaxed);
    }
}

void xseg_births_forget(struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        forget_extent(XSEG_CONTAINER(node, struct xseg_extent, link));
    }
}
