/* SPDX-License-Identifier: MIT */
#include "src/core/latest.h"

#include "src/base/check.h"
#include "src/core/allocator.h"

/* Words of ranks that a rack has for each size.  With one, of 64 sheets for 128 MiB, what a pair looks at is in
 * the second cache, and waiting less is not worth the instructions.  Builds with all checks have it in small
 * arenas as well: so every test has been run with it. */
#if XSEG_CHECKS >= 3
#define VAST_WORDS 1u
#else
#define VAST_WORDS 2u
#endif

static atomic_uintptr_t *frees_of(const struct xseg_arena *arena)
{
    return arena->device->allocator->frees;
}

void xseg_latest_begin(struct xseg_arena *arena, struct xseg_extent *extent)
{
    struct xseg_latest *latest = &arena->small.latest;
    uintptr_t how = XSEG_FREES_PLAINLY;

    if (arena->small.way != XSEG_SMALL_PLAIN || arena->small.rack.words < VAST_WORDS ||
        !xseg_extent_is_expandable(extent) ||
        !atomic_compare_exchange_strong(frees_of(arena), &how, (uintptr_t)arena))
        return;
    latest->base = extent->segment.base;
    latest->all_quanta = extent->segment.bytes >> XSEG_CELLS_SHIFT;
    latest->sheets = extent->cells.sheet;
    arena->small.way = XSEG_SMALL_VAST;
    atomic_store_explicit(&arena->counts.totals->may_owe, true, memory_order_relaxed);
}

void xseg_latest_settle(struct xseg_arena *arena)
{
    xseg_latest_cache(&arena->small.latest, &arena->small.rack);
    xseg_counts_settle(&arena->counts);
}

void xseg_latest_end(struct xseg_arena *arena)
{
    uintptr_t how = (uintptr_t)arena;

    if (arena->small.way != XSEG_SMALL_VAST)
        return;
    xseg_latest_settle(arena);
    arena->small.latest.all_quanta = 0;
    arena->small.way = XSEG_SMALL_PLAIN;
    (void)atomic_compare_exchange_strong(frees_of(arena), &how, XSEG_FREES_PLAINLY);
}

void xseg_latest_end_with(struct xseg_arena *arena, const struct xseg_extent *extent)
{
    if (arena->small.latest.all_quanta != 0 && arena->small.latest.base == extent->segment.base)
        xseg_latest_end(arena);
}
