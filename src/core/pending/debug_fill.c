/* SPDX-License-Identifier: MIT */
#include "src/core/pending/pending.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/device/device.h"
#include "src/core/history/history.h"

/* Number of bytes that one copy reads back. */
#define CHUNK_BYTES       ((uint64_t)256 * XSEG_KIB)
#define MAX_PRINTED_BYTES 16u

_Static_assert(CHUNK_BYTES % sizeof(uint32_t) == 0, "chunks are compared by words");

void xseg_debug_fill_init(struct xseg_debug_fill *fill, struct xseg_allocator *allocator)
{
    XSEG_ASSERT(allocator != NULL);
    fill->allocator = allocator;
    atomic_init(&fill->read_back, XSEG_DEBUG_FILL_UNPROBED);
    atomic_init(&fill->has_filled, false);
    xseg_mutex_init(&fill->lock, XSEG_RANK_LEAF);
}

/* --- The set of filled ranges. --- */

/* Remove [begin, end) from the set.  On host allocation failure, the remainder of a divided range
 * is removed as well. */
static void remove_filled_range(struct xseg_debug_fill *fill, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(fill->lock)
{
    struct xseg_interval *node;

    while ((node = xseg_intervals_first(&fill->filled, begin, end)) != NULL) {
        struct xseg_interval *remainder = NULL;
        const uint64_t remainder_end = node->end;

        xseg_intervals_remove(&fill->filled, node);
        if (remainder_end > end)
            remainder = node->begin < begin ? malloc(sizeof(*remainder)) : node;
        if (node->begin < begin) {
            node->end = begin;
            xseg_intervals_insert(&fill->filled, node);
        } else if (remainder != node) {
            free(node);
        }
        if (remainder != NULL) {
            *remainder = (struct xseg_interval){.begin = end, .end = remainder_end};
            xseg_intervals_insert(&fill->filled, remainder);
        }
    }
}

/* Add [begin, end), which does not overlap the set, and coalesce it with adjacent ranges. */
static void add_filled_range(struct xseg_debug_fill *fill, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(fill->lock)
{
    struct xseg_interval *node = malloc(sizeof(*node)), *neighbor;

    if (node == NULL)
        return;
    while ((neighbor = xseg_intervals_first(&fill->filled, begin - 1, end + 1)) != NULL) {
        xseg_intervals_remove(&fill->filled, neighbor);
        begin = xseg_min(begin, neighbor->begin);
        end = xseg_max(end, neighbor->end);
        free(neighbor);
    }
    *node = (struct xseg_interval){.begin = begin, .end = end};
    xseg_intervals_insert(&fill->filled, node);
}

static void update_filled_set(struct xseg_debug_fill *fill, uint64_t begin, uint64_t end,
                              bool is_filled)
{
    if (!is_filled && !atomic_load(&fill->has_filled))
        return;
    xseg_mutex_lock(&fill->lock);
    remove_filled_range(fill, begin, end);
    if (is_filled)
        add_filled_range(fill, begin, end);
    atomic_store(&fill->has_filled, fill->filled.root != NULL);
    xseg_mutex_unlock(&fill->lock);
}

/* Remove a range from the set.  Returns whether the whole range was in the set. */
static bool remove_if_filled(struct xseg_debug_fill *fill, uint64_t begin, uint64_t end)
{
    if (!atomic_load(&fill->has_filled))
        return false;
    xseg_mutex_lock(&fill->lock);
    const struct xseg_interval *node = xseg_intervals_first(&fill->filled, begin, end);
    const bool was_filled = node != NULL && node->begin <= begin && node->end >= end;
    remove_filled_range(fill, begin, end);
    atomic_store(&fill->has_filled, fill->filled.root != NULL);
    xseg_mutex_unlock(&fill->lock);
    return was_filled;
}

void xseg_debug_fill_discard(struct xseg_debug_fill *fill)
{
    update_filled_set(fill, 0, UINT64_MAX, false);
}

void xseg_debug_fill_fini(struct xseg_debug_fill *fill)
{
    xseg_debug_fill_discard(fill);
    xseg_mutex_fini(&fill->lock);
}

bool xseg_debug_fill_is_on(const struct xseg_arena *arena)
{
    return xseg_allocator_config(arena->device->fill->allocator)->debug_fill &&
           !arena->pool->is_private;
}

/* --- Fill. --- */

void xseg_debug_fill_claimed(struct xseg_block *block)
{
    const struct xseg_arena *arena = block->extent->arena;
    struct xseg_context *context = &arena->device->context;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
    const bool is_filled =
        xseg_debug_fill_is_on(arena) && !xseg_context_is_lost(context) &&
        xseg_streams_accepts_work(context, xseg_arena_stream(arena)) &&
        xseg_driver_fill(context, block->base, block->bytes, XSEG_DEBUG_FILL_PATTERN,
                         xseg_arena_stream(arena)->handle) == XSEG_OK;
    update_filled_set(arena->device->fill, block->base, xseg_block_end(block), is_filled);
}

void xseg_debug_fill_freed(struct xseg_block *block)
{
    struct xseg_block *next;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    for (; block != NULL; block = next) {
        struct xseg_arena *arena = block->extent->arena;

        XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
        next = block->chain;
        block->chain = NULL;
        xseg_debug_fill_claimed(block);
        xseg_biased_lock_lock(&arena->lock);
        xseg_arena_free_pending(arena, block);
        xseg_biased_lock_unlock(&arena->lock);
    }
}

/* --- Check. --- */

/* Differences between a block and the pattern. */
struct difference {
    uint64_t count, first; /* number of bytes that differ; offset of the first of them */
    unsigned char found[MAX_PRINTED_BYTES];
    unsigned printed; /* number of bytes in `found` */
};

static bool read_back_memory(const struct xseg_arena *arena, uint64_t address, uint64_t bytes,
                             void *host)
{
    struct xseg_context *context = &arena->device->context;

    /* A driver that reports success without a copy leaves zeros. */
    memset(host, 0, bytes);
    return xseg_driver_copy_to_host(context, host, address, bytes,
                                    xseg_arena_stream(arena)->handle) == XSEG_OK &&
           xseg_driver_stream_synchronize(context, xseg_arena_stream(arena)->handle) == XSEG_OK;
}

static unsigned char pattern_at(uint64_t offset)
{
    const uint32_t word = XSEG_DEBUG_FILL_PATTERN;

    return ((const unsigned char *)&word)[offset % sizeof(word)];
}

/* Add the differences of a chunk at `offset` of a block.  A chunk consists of whole words. */
static void compare_chunk(struct difference *difference, const unsigned char *chunk,
                          uint64_t offset, uint64_t bytes)
{
    const uint32_t word = XSEG_DEBUG_FILL_PATTERN;

    XSEG_ASSERT(bytes != 0 && bytes % sizeof(word) == 0 && offset % sizeof(word) == 0);
    /* The usual case, checked by memcmp: the first word matches, and each word equals the previous
     * one. */
    if (memcmp(chunk, &word, sizeof(word)) == 0 &&
        memcmp(chunk, chunk + sizeof(word), bytes - sizeof(word)) == 0)
        return;
    for (uint64_t i = 0; i < bytes; i++) {
        if (chunk[i] == pattern_at(i))
            continue;
        if (difference->count++ == 0) {
            difference->first = offset + i;
            difference->printed = (unsigned)xseg_min(bytes - i, MAX_PRINTED_BYTES);
            memcpy(difference->found, chunk + i, difference->printed);
        }
    }
}

/* Probe with the first word of a block whether memory of the device can be read back. */
static enum xseg_debug_fill_read_back probe_read_back(const struct xseg_alloc_result *result)
{
    const struct xseg_arena *arena = result->arena;
    uint32_t word = 0;

    if (xseg_driver_fill(&arena->device->context, result->base, sizeof(word),
                         XSEG_DEBUG_FILL_PATTERN, xseg_arena_stream(arena)->handle) != XSEG_OK ||
        !read_back_memory(arena, result->base, sizeof(word), &word))
        return XSEG_DEBUG_FILL_UNPROBED;
    return word == XSEG_DEBUG_FILL_PATTERN ? XSEG_DEBUG_FILL_READABLE : XSEG_DEBUG_FILL_UNREADABLE;
}

static void report_overwrite(const struct xseg_alloc_result *result,
                             const struct difference *difference)
{
    const struct xseg_arena *arena = result->arena;
    struct xseg_device *device = arena->device;
    const uint64_t address = result->base + difference->first;
    struct xseg_strbuf text;
    char buffer[896];

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_strbuf_printf(&text,
                       "device %d: freed memory was overwritten, %" PRIu64 " of %" PRIu64
                       " bytes at %#" PRIx64 " (stream %p), first at %#" PRIx64 ", offset %" PRIu64
                       ", found",
                       device->context.ordinal, difference->count, result->bytes, result->base,
                       (void *)xseg_arena_stream(arena)->handle, address, difference->first);
    XSEG_ASSERT(difference->printed <= MAX_PRINTED_BYTES && difference->first < result->bytes);
    for (unsigned i = 0; i < difference->printed; i++)
        xseg_strbuf_printf(&text, " %02x", difference->found[i]);
    (void)xseg_history_print_free(&device->history, address, "; last ", &text);
    atomic_fetch_add_explicit(&device->overwrites, 1, memory_order_relaxed);
    xseg_log_line(&device->fill->allocator->log, XSEG_LOG_ERROR, "%s", buffer);
}

/*
 * Whether memory of the device can be read back, so that a difference is an overwrite.  The probe
 * overwrites the first word of the block, so it runs after the read of the first chunk with a
 * difference.
 */
static bool can_read_back(const struct xseg_alloc_result *result)
{
    atomic_uint *read_back_state = &result->arena->device->fill->read_back;

    if (atomic_load(read_back_state) == XSEG_DEBUG_FILL_UNPROBED)
        atomic_store(read_back_state, probe_read_back(result));
    return atomic_load(read_back_state) == XSEG_DEBUG_FILL_READABLE;
}

/* Read a block and compare it; false if the block could not be read. */
static bool find_difference(const struct xseg_alloc_result *result, struct difference *difference)
{
    const uint64_t max = xseg_min(result->bytes, CHUNK_BYTES);
    unsigned char *chunk = malloc(max);
    bool success = chunk != NULL;

    for (uint64_t offset = 0; success && offset < result->bytes; offset += max) {
        const uint64_t bytes = xseg_min(result->bytes - offset, max);

        success = read_back_memory(result->arena, result->base + offset, bytes, chunk);
        if (success)
            compare_chunk(difference, chunk, offset, bytes);
        success = success && (difference->count == 0 || can_read_back(result));
    }
    free(chunk);
    return success;
}

static void check_pattern(const struct xseg_alloc_result *result)
{
    const struct xseg_arena *arena = result->arena;
    struct difference difference = {0};

    if (!xseg_debug_fill_is_on(arena) ||
        atomic_load(&arena->device->fill->read_back) == XSEG_DEBUG_FILL_UNREADABLE ||
        !xseg_streams_accepts_work(&arena->device->context, xseg_arena_stream(arena)))
        return;
    if (find_difference(result, &difference) && difference.count != 0)
        report_overwrite(result, &difference);
}

/* --- Allocation. --- */

/* Prevent a pause of the pool until end_fill().  Returns false if a pause has begun. */
static bool begin_fill(struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    const bool is_allowed = !arena->is_paused;
    arena->fills += is_allowed;
    xseg_biased_lock_unlock(&arena->lock);
    return is_allowed;
}

static void end_fill(struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    XSEG_ASSERT(arena->fills != 0);
    arena->fills--;
    xseg_biased_lock_unlock(&arena->lock);
}

xseg_status xseg_debug_fill_allocated(const struct xseg_alloc_result *result, bool zeroed,
                                      bool *is_paused)
{
    struct xseg_arena *arena = result->arena;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(result->base != 0 && result->requested <= result->bytes);
    *is_paused = !begin_fill(arena);
    if (*is_paused)
        return XSEG_OK;
    if (remove_if_filled(arena->device->fill, result->base, result->base + result->bytes))
        check_pattern(result);
    /* The size is rounded up to whole words, which are inside the block, because a block size is a
     * multiple of 512 bytes. */
    if (zeroed)
        status = xseg_driver_fill(&arena->device->context, result->base,
                                  xseg_round_up(result->requested, sizeof(uint32_t)), 0,
                                  xseg_arena_stream(arena)->handle);
    end_fill(arena);
    return status;
}
