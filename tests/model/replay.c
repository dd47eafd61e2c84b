/* SPDX-License-Identifier: MIT */
#include "tests/model/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void replay_free(struct replay *replay)
{
    free(replay->block);
    free(replay->range);
    memset(replay, 0, sizeof(*replay));
}

struct replay replay_copy(const struct replay *replay)
{
    struct replay copy = *replay;

    copy.block = malloc((replay->blocks + 1) * sizeof(*copy.block));
    copy.range = malloc((replay->ranges + 1) * sizeof(*copy.range));
    assert_true(copy.block != NULL && copy.range != NULL);
    if (replay->blocks != 0)
        memcpy(copy.block, replay->block, replay->blocks * sizeof(*copy.block));
    if (replay->ranges != 0)
        memcpy(copy.range, replay->range, replay->ranges * sizeof(*copy.range));
    copy.block_capacity = replay->blocks + 1;
    copy.range_capacity = replay->ranges + 1;
    return copy;
}

static bool reject(struct replay *replay, const char *error, uint64_t base, uint64_t bytes)
{
    (void)snprintf(replay->error, sizeof(replay->error), "%s: %#" PRIx64 ", %" PRIu64 " bytes",
                   error, base, bytes);
    return false;
}

/* --- Memory. --- */

/* The first range that ends after an address. */
static size_t find_range(const struct replay *replay, uint64_t address)
{
    size_t low = 0, high = replay->ranges;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (replay->range[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has_memory(const struct replay *replay, uint64_t base, uint64_t end)
{
    const size_t index = find_range(replay, base);

    return index < replay->ranges && replay->range[index].base <= base &&
           end <= replay->range[index].end;
}

static void put_range(struct replay *replay, size_t index, struct replay_range range)
{
    if (replay->ranges == replay->range_capacity) {
        replay->range_capacity = replay->range_capacity * 2 + 16;
        replay->range = realloc(replay->range, replay->range_capacity * sizeof(range));
        assert_non_null(replay->range);
    }
    memmove(&replay->range[index + 1], &replay->range[index],
            (replay->ranges - index) * sizeof(range));
    replay->range[index] = range;
    replay->ranges++;
}

static void drop_range(struct replay *replay, size_t index)
{
    replay->ranges--;
    memmove(&replay->range[index], &replay->range[index + 1],
            (replay->ranges - index) * sizeof(replay->range[0]));
}

static bool add_memory(struct replay *replay, uint64_t base, uint64_t bytes)
{
    struct replay_range range = {base, base + bytes};
    size_t index = find_range(replay, base);

    if (index < replay->ranges && replay->range[index].base < range.end)
        return reject(replay, "memory is mapped twice", base, bytes);
    if (index < replay->ranges && replay->range[index].base == range.end) {
        range.end = replay->range[index].end;
        drop_range(replay, index);
    }
    if (index > 0 && replay->range[index - 1].end == range.base) {
        range.base = replay->range[--index].base;
        drop_range(replay, index);
    }
    put_range(replay, index, range);
    return true;
}

static bool remove_memory(struct replay *replay, uint64_t base, uint64_t bytes)
{
    const size_t index = find_range(replay, base);
    const uint64_t end = base + bytes;

    if (!has_memory(replay, base, end))
        return reject(replay, "unmapped memory is unmapped", base, bytes);
    const struct replay_range range = replay->range[index];
    drop_range(replay, index);
    if (end < range.end)
        put_range(replay, index, (struct replay_range){end, range.end});
    if (range.base < base)
        put_range(replay, index, (struct replay_range){range.base, base});
    return true;
}

/* --- Blocks. --- */

/* The first block that ends after an address. */
static size_t find_block(const struct replay *replay, uint64_t address)
{
    size_t low = 0, high = replay->blocks;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (replay->block[middle].base + replay->block[middle].bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has_block(const struct replay *replay, uint64_t base, uint64_t bytes)
{
    const size_t index = find_block(replay, base);

    return index < replay->blocks && replay->block[index].base < base + bytes;
}

static bool add_block(struct replay *replay, const struct replay_block *block)
{
    const size_t index = find_block(replay, block->base);

    if (block->bytes == 0 || block->requested > block->bytes)
        return reject(replay, "invalid size of a block", block->base, block->bytes);
    if (has_block(replay, block->base, block->bytes))
        return reject(replay, "a block overlaps another one", block->base, block->bytes);
    if (replay->blocks == replay->block_capacity) {
        replay->block_capacity = replay->block_capacity * 2 + 16;
        replay->block = realloc(replay->block, replay->block_capacity * sizeof(*block));
        assert_non_null(replay->block);
    }
    memmove(&replay->block[index + 1], &replay->block[index],
            (replay->blocks - index) * sizeof(*block));
    replay->block[index] = *block;
    replay->blocks++;
    return true;
}

static bool is_same_block(const struct replay_block *a, const struct replay_block *b)
{
    return a->base == b->base && a->bytes == b->bytes && a->requested == b->requested &&
           a->device == b->device && a->pool == b->pool && a->is_fallback == b->is_fallback &&
           a->is_pending == b->is_pending && a->user == b->user;
}

/* The index of a block with this description, or replay->blocks. */
static size_t index_of(struct replay *replay, const struct replay_block *block)
{
    const size_t index = find_block(replay, block->base);

    if (index < replay->blocks && is_same_block(&replay->block[index], block))
        return index;
    (void)reject(replay,
                 block->is_pending ? "there is no such pending block"
                                   : "there is no such allocated block",
                 block->base, block->bytes);
    return replay->blocks;
}

static bool remove_block(struct replay *replay, const struct replay_block *block)
{
    const size_t index = index_of(replay, block);

    if (index == replay->blocks)
        return false;
    replay->blocks--;
    memmove(&replay->block[index], &replay->block[index + 1],
            (replay->blocks - index) * sizeof(*block));
    return true;
}

/* Set an allocated block to pending, or a pending block to allocated. */
static bool set_pending(struct replay *replay, struct replay_block *block, bool is_pending)
{
    block->is_pending = !is_pending;
    const size_t index = index_of(replay, block);

    if (index == replay->blocks)
        return false;
    replay->block[index].is_pending = is_pending;
    return true;
}

/* --- Events. --- */

static struct replay_block block_of(const struct xseg_history_entry *entry)
{
    return (struct replay_block){
        .base = (uint64_t)(uintptr_t)entry->base,
        .bytes = entry->bytes,
        .requested = entry->requested,
        .device = entry->device,
        .pool = entry->pool,
        .is_fallback = entry->is_fallback,
        .is_pending = entry->action == XSEG_HISTORY_FREE_COMPLETED,
        .user = entry->user,
    };
}

static bool change_memory(struct replay *replay, const struct xseg_history_entry *entry,
                          bool is_mapped)
{
    const uint64_t base = (uint64_t)(uintptr_t)entry->base;
    /* Blocks of a paused pool keep their addresses. */
    const bool is_pause =
        entry->action == XSEG_HISTORY_PAUSE || entry->action == XSEG_HISTORY_RESUME;

    if (entry->bytes == 0 || entry->order == 0)
        return reject(replay, "memory without a size or a sequence number", base, entry->bytes);
    if (!is_pause && has_block(replay, base, entry->bytes))
        return reject(replay, "memory of a block is mapped or unmapped", base, entry->bytes);
    return is_mapped ? add_memory(replay, base, entry->bytes)
                     : remove_memory(replay, base, entry->bytes);
}

static bool allocate_block(struct replay *replay, const struct replay_block *block)
{
    if (!has_memory(replay, block->base, block->base + block->bytes))
        return reject(replay, "a block is in unmapped memory", block->base, block->bytes);
    return add_block(replay, block);
}

static bool replay_event(struct replay *replay, const struct xseg_history_entry *entry, bool undo)
{
    struct replay_block block = block_of(entry);

    switch (entry->action) {
    case XSEG_HISTORY_ALLOC:
        return undo ? remove_block(replay, &block) : allocate_block(replay, &block);
    case XSEG_HISTORY_FREE_REQUESTED:
        return set_pending(replay, &block, !undo);
    case XSEG_HISTORY_FREE_COMPLETED:
        /* Blocks of a paused pool may be freed as well. */
        return undo ? add_block(replay, &block) : remove_block(replay, &block);
    case XSEG_HISTORY_SEGMENT_ALLOC:
    case XSEG_HISTORY_SEGMENT_MAP:
    case XSEG_HISTORY_RESUME:
        return change_memory(replay, entry, !undo);
    case XSEG_HISTORY_SEGMENT_FREE:
    case XSEG_HISTORY_SEGMENT_UNMAP:
    case XSEG_HISTORY_PAUSE:
        return change_memory(replay, entry, undo);
    case XSEG_HISTORY_REMAP:
    case XSEG_HISTORY_DECAY:
    case XSEG_HISTORY_TRIM:
    case XSEG_HISTORY_BUDGET_RELEASE:
        return undo || has_memory(replay, block.base, block.base + block.bytes) ||
               reject(replay, "unmapped memory is to be released", block.base, block.bytes);
    case XSEG_HISTORY_OOM:
    case XSEG_HISTORY_ANNOTATION:
    case XSEG_HISTORY_BUDGET_REQUEST:
        return undo || block.base == 0 ||
               reject(replay, "an event without memory has an address", block.base, 0);
    case XSEG_HISTORY_ACTIONS:
        break;
    }
    return reject(replay, "unknown action", block.base, block.bytes);
}

bool replay_apply(struct replay *replay, const struct xseg_history_entry *entry)
{
    return replay_event(replay, entry, false);
}

bool replay_undo(struct replay *replay, const struct xseg_history_entry *entry)
{
    return replay_event(replay, entry, true);
}

/* --- The current state. --- */

struct reading {
    struct replay replay;
    struct xseg_pool *const *pools;
    unsigned count;
};

static uint32_t pool_id(const struct reading *reading, const struct xseg_pool *pool)
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
        assert_true(add_memory(&reading->replay, base, info->bytes));
    if (info->state == XSEG_BLOCK_ALLOCATED || info->state == XSEG_BLOCK_PENDING_FREE) {
        const struct replay_block block = {
            .base = base,
            .bytes = info->bytes,
            .requested = info->requested,
            .device = info->device,
            .pool =
                pool_id(reading, info->fallback_pool != NULL ? info->fallback_pool : info->pool),
            .is_fallback = info->fallback_pool != NULL,
            .is_pending = info->state == XSEG_BLOCK_PENDING_FREE,
            .user = info->user,
        };

        assert_true(add_block(&reading->replay, &block));
    }
    return true;
}

struct replay replay_read(struct xseg_allocator *allocator, struct xseg_pool *const *pools,
                          unsigned count)
{
    struct reading reading = {.pools = pools, .count = count};

    assert_int_equal(xseg_for_each_block(allocator, NULL, read_block, &reading), XSEG_OK);
    return reading.replay;
}

bool replay_equal(struct replay *replay, const struct replay *other)
{
    for (size_t i = 0; i < replay->blocks || i < other->blocks; i++) {
        const struct replay_block *block =
            i < replay->blocks ? &replay->block[i] : &other->block[i];

        if (i >= replay->blocks || i >= other->blocks || !is_same_block(block, &other->block[i]))
            return reject(replay, i < replay->blocks ? "a block differs" : "a block is missing",
                          block->base, block->bytes);
    }
    for (size_t i = 0; i < replay->ranges || i < other->ranges; i++) {
        const struct replay_range *range =
            i < replay->ranges ? &replay->range[i] : &other->range[i];

        if (i >= replay->ranges || i >= other->ranges || range->base != other->range[i].base ||
            range->end != other->range[i].end)
            return reject(replay, i < replay->ranges ? "memory differs" : "memory is missing",
                          range->base, range->end - range->base);
    }
    return true;
}
