/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/garbage.h"

#include "src/base/span.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/config/size.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/notice.h"
#include "src/core/reclaim/trim.h"
#include "src/core/reclaim/trim_steps.h"

/* The state of one round of a collection over the arenas. */
struct round {
    struct xseg_device *device;
    uint32_t now;         /* searches so far */
    uint64_t ages, count; /* of the blocks that could go: sum of their ages, and their number */
    uint64_t freed;       /* bytes */
};

static uint32_t age_of(const struct round *round, const struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    return round->now - block->born;
}

static bool is_meant(const struct round *round, const struct xseg_arena *arena)
{
    return arena->pool == &round->device->pool && !arena->is_small;
}

static void add_ages(void *self, struct xseg_arena *arena)
{
    struct round *round = self;
    const struct xseg_block *block;
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, position = 0;

    if (!is_meant(round, arena))
        return;
    xseg_arena_lock(arena);
    while ((block = xseg_arena_cached_from(arena, bytes, position)) != NULL) {
        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        if (!xseg_trim_can_go(block))
            continue;
        round->ages += age_of(round, block);
        round->count++;
    }
    xseg_arena_unlock(arena);
}

static bool is_old(void *self, const struct xseg_block *block)
{
    const struct round *round = self;

    XSEG_ASSERT(round->count > 0);
    /* Blocks of the average age or above go.  A product is compared, since the average may be a fraction. */
    return age_of(round, block) * round->count >= round->ages;
}

/* Whether claimed blocks may go: an unmap needs an idle stream; cuMemFree waits for the device by itself. */
static bool may_go(struct xseg_arena *arena, const struct xseg_block *claimed)
{
    bool idle = false;

    while (claimed != NULL && !xseg_extent_is_expandable(claimed->extent))
        claimed = claimed->right;
    return claimed == NULL ||
           (xseg_trim_is_idle(arena->device, xseg_arena_stream(arena), true, &idle) == XSEG_OK &&
            idle);
}

static void free_old(void *self, struct xseg_arena *arena)
{
    struct round *round = self;
    const struct xseg_trim_wish wish = {XSEG_SIZE_SMALL_SEGMENT, UINT64_MAX, is_old, round};
    struct xseg_block *claimed, *next;
    uint64_t bytes = 0;

    if (!is_meant(round, arena))
        return;
    xseg_arena_lock(arena);
    claimed = xseg_trim_claim(arena, &wish, &bytes);
    xseg_arena_unlock(arena);
    if (claimed == NULL)
        return;
    if (!may_go(arena, claimed) || !xseg_notice_leave(arena->device, claimed)) {
        xseg_trim_put_back(arena, claimed);
        return;
    }
    for (; claimed != NULL; claimed = next) {
        next = claimed->right;
        claimed->right = NULL;
        round->freed += xseg_trim_give(claimed, false, XSEG_HISTORY_TRIM);
    }
}

/* Free old blocks until no more than `trigger` bytes are taken, or none can go. */
static void collect(struct xseg_device *device, uint64_t trigger)
{
    struct round round;

    do {
        round = (struct round){.device = device, .now = atomic_load(&device->searches)};
        if (xseg_device_physical(device) <= trigger)
            return;
        xseg_device_visit_arenas(device, add_ages, &round);
        if (round.count == 0)
            return;
        xseg_device_visit_arenas(device, free_old, &round);
    } while (round.freed != 0);
}

void xseg_garbage_collect(struct xseg_device *device, const struct xseg_config *config)
{
    const uint64_t trigger =
        (uint64_t)(config->garbage_collection_threshold * (double)xseg_device_limit(device));
    const int ordinal = device->context.ordinal;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && config->garbage_collection_threshold > 0);
    if (xseg_pending_captures(device->pending) || xseg_device_physical(device) <= trigger)
        return;
    XSEG_SPAN_BEGIN(trim, ordinal, atomic_load_explicit(&device->reserved, memory_order_relaxed));
    collect(device, trigger);
    XSEG_SPAN_END(trim, ordinal, XSEG_OK);
}
