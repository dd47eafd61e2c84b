/* SPDX-License-Identifier: MIT */
#include "tests/model/played.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void played_end(struct played *played)
{
    free(played->block);
    free(played->range);
    memset(played, 0, sizeof(*played));
}

struct played played_copy(const struct played *played)
{
    struct played copy = *played;

    copy.block = malloc((played->blocks + 1) * sizeof(*copy.block));
    copy.range = malloc((played->ranges + 1) * sizeof(*copy.range));
    assert_true(copy.block != NULL && copy.range != NULL);
    if (played->blocks != 0)
        memcpy(copy.block, played->block, played->blocks * sizeof(*copy.block));
    if (played->ranges != 0)
        memcpy(copy.range, played->range, played->ranges * sizeof(*copy.range));
    copy.block_room = played->blocks + 1;
    copy.range_room = played->ranges + 1;
    return copy;
}

static bool refuse(struct played *played, const char *what, uint64_t base, uint64_t bytes)
{
    (void)snprintf(played->why, sizeof(played->why), "%s: %#" PRIx64 ", %" PRIu64 " bytes", what,
                   base, bytes);
    return false;
}

/* --- Memory. --- */

/* Which range ends behind an address. */
static size_t find_range(const struct played *played, uint64_t address)
{
    size_t low = 0, high = played->ranges;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (played->range[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has_memory(const struct played *played, uint64_t base, uint64_t end)
{
    const size_t at = find_range(played, base);

    return at < played->ranges && played->range[at].base <= base && end <= played->range[at].end;
}

static void put_range(struct played *played, size_t at, struct played_range range)
{
    if (played->ranges == played->range_room) {
        played->range_room = played->range_room * 2 + 16;
        played->range = realloc(played->range, played->range_room * sizeof(range));
        assert_non_null(played->range);
    }
    memmove(&played->range[at + 1], &played->range[at], (played->ranges - at) * sizeof(range));
    played->range[at] = range;
    played->ranges++;
}

static void drop_range(struct played *played, size_t at)
{
    played->ranges--;
    memmove(&played->range[at], &played->range[at + 1],
            (played->ranges - at) * sizeof(played->range[0]));
}

static bool add_memory(struct played *played, uint64_t base, uint64_t bytes)
{
    struct played_range range = {base, base + bytes};
    size_t at = find_range(played, base);

    if (at < played->ranges && played->range[at].base < range.end)
        return refuse(played, "memory comes where some is", base, bytes);
    if (at < played->ranges && played->range[at].base == range.end) {
        range.end = played->range[at].end;
        drop_range(played, at);
    }
    if (at > 0 && played->range[at - 1].end == range.base) {
        range.base = played->range[--at].base;
        drop_range(played, at);
    }
    put_range(played, at, range);
    return true;
}

static bool remove_memory(struct played *played, uint64_t base, uint64_t bytes)
{
    const size_t at = find_range(played, base);
    const uint64_t end = base + bytes;

    if (!has_memory(played, base, end))
        return refuse(played, "memory goes where none is", base, bytes);
    const struct played_range range = played->range[at];
    drop_range(played, at);
    if (end < range.end)
        put_range(played, at, (struct played_range){end, range.end});
    if (range.base < base)
        put_range(played, at, (struct played_range){range.base, base});
    return true;
}

/* --- Blocks. --- */

/* Which block ends behind an address. */
static size_t find_block(const struct played *played, uint64_t address)
{
    size_t low = 0, high = played->blocks;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (played->block[middle].base + played->block[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has_block(const struct played *played, uint64_t base, uint64_t bytes)
{
    const size_t at = find_block(played, base);

    return at < played->blocks && played->block[at].base < base + bytes;
}

static bool add_block(struct played *played, const struct played_block *block)
{
    const size_t at = find_block(played, block->base);

    if (block->bytes == 0 || block->requested > block->bytes)
        return refuse(played, "a block has no such size", block->base, block->bytes);
    if (has_block(played, block->base, block->bytes))
        return refuse(played, "a block comes where one is", block->base, block->bytes);
    if (played->blocks == played->block_room) {
        played->block_room = played->block_room * 2 + 16;
        played->block = realloc(played->block, played->block_room * sizeof(*block));
        assert_non_null(played->block);
    }
    memmove(&played->block[at + 1], &played->block[at], (played->blocks - at) * sizeof(*block));
    played->block[at] = *block;
    played->blocks++;
    return true;
}

static bool is_same_block(const struct played_block *a, const struct played_block *b)
{
    return a->base == b->base && a->bytes == b->bytes && a->requested == b->requested &&
           a->device == b->device && a->pool == b->pool && a->is_lent == b->is_lent &&
           a->is_pending == b->is_pending && a->user == b->user;
}

/* The place of exactly this block, or `blocks`. */
static size_t place_of(struct played *played, const struct played_block *block)
{
    const size_t at = find_block(played, block->base);

    if (at < played->blocks && is_same_block(&played->block[at], block))
        return at;
    (void)refuse(played,
                 block->is_pending ? "there is no such pending block"
                                   : "there is no such live block",
                 block->base, block->bytes);
    return played->blocks;
}

static bool remove_block(struct played *played, const struct played_block *block)
{
    const size_t at = place_of(played, block);

    if (at == played->blocks)
        return false;
    played->blocks--;
    memmove(&played->block[at], &played->block[at + 1], (played->blocks - at) * sizeof(*block));
    return true;
}

/* A block goes from live to pending, or back. */
static bool turn(struct played *played, struct played_block *block, bool to_pending)
{
    block->is_pending = !to_pending;
    const size_t at = place_of(played, block);

    if (at == played->blocks)
        return false;
    played->block[at].is_pending = to_pending;
    return true;
}

/* --- Events. --- */

static struct played_block block_of(const struct xseg_history_entry *entry)
{
    return (struct played_block){
        .base = (uint64_t)(uintptr_t)entry->base,
        .bytes = entry->bytes,
        .requested = entry->requested,
        .device = entry->device,
        .pool = entry->pool,
        .is_lent = entry->is_fallback,
        .is_pending = entry->action == XSEG_HISTORY_FREE_COMPLETED,
        .user = entry->user,
    };
}

/* Memory comes or goes. */
static bool move(struct played *played, const struct xseg_history_entry *entry, bool comes)
{
    const uint64_t base = (uint64_t)(uintptr_t)entry->base;
    /* The blocks of a paused pool stay where its memory was. */
    const bool is_pause =
        entry->action == XSEG_HISTORY_PAUSE || entry->action == XSEG_HISTORY_RESUME;

    if (entry->bytes == 0 || entry->order == 0)
        return refuse(played, "memory of no size, or without a number", base, entry->bytes);
    if (!is_pause && has_block(played, base, entry->bytes))
        return refuse(played, "memory moves beneath a block", base, entry->bytes);
    return comes ? add_memory(played, base, entry->bytes)
                 : remove_memory(played, base, entry->bytes);
}

static bool come_to_be(struct played *played, const struct played_block *block)
{
    if (!has_memory(played, block->base, block->base + block->bytes))
        return refuse(played, "a block comes where no memory is", block->base, block->bytes);
    return add_block(played, block);
}

bool played_on(struct played *played, const struct xseg_history_entry *entry)
{
    struct played_block block = block_of(entry);

    switch (entry->action) {
    case XSEG_HISTORY_ALLOC:
        return come_to_be(played, &block);
    case XSEG_HISTORY_FREE_REQUESTED:
        return turn(played, &block, true);
    case XSEG_HISTORY_FREE_COMPLETED:
        return remove_block(played, &block);
    case XSEG_HISTORY_SEGMENT_ALLOC:
    case XSEG_HISTORY_SEGMENT_MAP:
    case XSEG_HISTORY_RESUME:
        return move(played, entry, true);
    case XSEG_HISTORY_SEGMENT_FREE:
    case XSEG_HISTORY_SEGMENT_UNMAP:
    case XSEG_HISTORY_PAUSE:
        return move(played, entry, false);
    case XSEG_HISTORY_REMAP:
    case XSEG_HISTORY_DECAY:
    case XSEG_HISTORY_TRIM:
    case XSEG_HISTORY_BUDGET_RELEASE:
        return has_memory(played, block.base, block.base + block.bytes) ||
               refuse(played, "memory is to go where none is", block.base, block.bytes);
    case XSEG_HISTORY_OOM:
    case XSEG_HISTORY_ANNOTATION:
    case XSEG_HISTORY_BUDGET_REQUEST:
        return block.base == 0 || refuse(played, "an event of no memory has some", block.base, 0);
    case XSEG_HISTORY_ACTIONS:
        break;
    }
    return refuse(played, "there is no such action", block.base, block.bytes);
}

bool played_back(struct played *played, const struct xseg_history_entry *entry)
{
    struct played_block block = block_of(entry);

    switch (entry->action) {
    case XSEG_HISTORY_ALLOC:
        return remove_block(played, &block);
    case XSEG_HISTORY_FREE_REQUESTED:
        return turn(played, &block, false);
    case XSEG_HISTORY_FREE_COMPLETED:
        /* The blocks of a paused pool may be freed, too. */
        return add_block(played, &block);
    case XSEG_HISTORY_SEGMENT_ALLOC:
    case XSEG_HISTORY_SEGMENT_MAP:
    case XSEG_HISTORY_RESUME:
        return move(played, entry, false);
    case XSEG_HISTORY_SEGMENT_FREE:
    case XSEG_HISTORY_SEGMENT_UNMAP:
    case XSEG_HISTORY_PAUSE:
        return move(played, entry, true);
    case XSEG_HISTORY_REMAP:
    case XSEG_HISTORY_DECAY:
    case XSEG_HISTORY_TRIM:
    case XSEG_HISTORY_OOM:
    case XSEG_HISTORY_ANNOTATION:
    case XSEG_HISTORY_BUDGET_REQUEST:
    case XSEG_HISTORY_BUDGET_RELEASE:
        return true;
    case XSEG_HISTORY_ACTIONS:
        break;
    }
    return refuse(played, "there is no such action", block.base, block.bytes);
}

/* --- The state as it is. --- */

struct reading {
    struct played played;
    struct xseg_pool *const *pools;
    unsigned count;
};

static uint32_t number_of(const struct reading *reading, const struct xseg_pool *pool)
{
    /* A later pool may have the address of a destroyed one. */
    for (unsigned i = reading->count; i > 0; i--)
        if (reading->pools[i - 1] == pool)
            return i;
    assert_null(pool);
    return 0;
}

static bool read_block(void *context, const struct xseg_block_info *info)
{
    struct reading *reading = context;
    const uint64_t base = (uint64_t)(uintptr_t)info->base;

    assert_int_not_equal(info->state, XSEG_BLOCK_CLAIMED);
    if (info->state != XSEG_BLOCK_UNMAPPED && !info->is_paused)
        assert_true(add_memory(&reading->played, base, info->bytes));
    if (info->state == XSEG_BLOCK_ALLOCATED || info->state == XSEG_BLOCK_PENDING_FREE) {
        const struct played_block block = {
            .base = base,
            .bytes = info->bytes,
            .requested = info->requested,
            .device = info->device,
            .pool =
                number_of(reading, info->fallback_pool != NULL ? info->fallback_pool : info->pool),
            .is_lent = info->fallback_pool != NULL,
            .is_pending = info->state == XSEG_BLOCK_PENDING_FREE,
            .user = info->user,
        };

        assert_true(add_block(&reading->played, &block));
    }
    return true;
}

struct played played_read(struct xseg_allocator *allocator, struct xseg_pool *const *pools,
                          unsigned count)
{
    struct reading reading = {.pools = pools, .count = count};

    assert_int_equal(xseg_for_each_block(allocator, NULL, read_block, &reading), XSEG_OK);
    return reading.played;
}

bool played_same(struct played *played, const struct played *other)
{
    for (size_t i = 0; i < played->blocks || i < other->blocks; i++) {
        const struct played_block *block =
            i < played->blocks ? &played->block[i] : &other->block[i];

        if (i >= played->blocks || i >= other->blocks || !is_same_block(block, &other->block[i]))
            return refuse(played, i < played->blocks ? "a block differs" : "a block is missing",
                          block->base, block->bytes);
    }
    for (size_t i = 0; i < played->ranges || i < other->ranges; i++) {
        const struct played_range *range =
            i < played->ranges ? &played->range[i] : &other->range[i];

        if (i >= played->ranges || i >= other->ranges || range->base != other->range[i].base ||
            range->end != other->range[i].end)
            return refuse(played, i < played->ranges ? "memory differs" : "memory is missing",
                          range->base, range->end - range->base);
    }
    return true;
}
