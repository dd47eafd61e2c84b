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

/* Number of bytes read back at a time. */
#define PIECE_BYTES ((uint64_t)256 * XSEG_KIB)
#define SHOWN_BYTES 16u

_Static_assert(PIECE_BYTES % sizeof(uint32_t) == 0, "pieces are compared by words");

void xseg_debug_fill_init(struct xseg_debug_fill *fill, struct xseg_allocator *allocator)
{
    XSEG_ASSERT(allocator != NULL);
    fill->allocator = allocator;
    atomic_init(&fill->reads, XSEG_DEBUG_FILL_UNPROBED);
    atomic_init(&fill->has_filled, false);
    xseg_mutex_init(&fill->lock, XSEG_RANK_LEAF);
}

/* --- The set of filled ranges. --- */

/* Remove [begin, end) from the set.  On host allocation failure, the rest of a divided range is
 * removed as well. */
static void remove_range(struct xseg_debug_fill *fill, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(fill->lock)
{
    struct xseg_interval *node;

    while ((node = xseg_intervals_first(&fill->filled, begin, end)) != NULL) {
        struct xseg_interval *rest = NULL;
        const uint64_t rest_end = node->end;

        xseg_intervals_remove(&fill->filled, node);
        if (rest_end > end)
            rest = node->begin < begin ? malloc(sizeof(*rest)) : node;
        if (node->begin < begin) {
            node->end = begin;
            xseg_intervals_insert(&fill->filled, node);
        } else if (rest != node) {
            free(node);
        }
        if (rest != NULL) {
            *rest = (struct xseg_interval){.begin = end, .end = rest_end};
            xseg_intervals_insert(&fill->filled, rest);
        }
    }
}

/* Add [begin, end), which does not overlap the set, and coalesce it with adjacent ranges. */
static void add_range(struct xseg_debug_fill *fill, uint64_t begin, uint64_t end)
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
                              bool filled)
{
    if (!filled && !atomic_load(&fill->has_filled))
        return;
    xseg_mutex_lock(&fill->lock);
    remove_range(fill, begin, end);
    if (filled)
        add_range(fill, begin, end);
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
    const bool filled = node != NULL && node->begin <= begin && node->end >= end;
    remove_range(fill, begin, end);
    atomic_store(&fill->has_filled, fill->filled.root != NULL);
    xseg_mutex_unlock(&fill->lock);
    return filled;
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
    const bool filled =
        xseg_debug_fill_is_on(arena) && !xseg_context_is_lost(context) &&
        xseg_streams_accepts_work(context, xseg_arena_stream(arena)) &&
        xseg_driver_fill(context, block->base, block->bytes, XSEG_DEBUG_FILL_PATTERN,
                         xseg_arena_stream(arena)->handle) == XSEG_OK;
    update_filled_set(arena->device->fill, block->base, xseg_block_end(block), filled);
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
    uint64_t count, first; /* number of bytes that differ; offset of the first one */
    unsigned char found[SHOWN_BYTES];
    unsigned shown;
};

static bool read_back(const struct xseg_arena *arena, uint64_t address, uint64_t bytes, void *host)
{
    struct xseg_context *context = &arena->device->context;

    /* A read that succeeds without writing leaves zeros. */
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

/* Add the differences of a piece at `offset` of a block.  A piece consists of whole words. */
static void compare_piece(struct difference *difference, const unsigned char *piece,
                          uint64_t offset, uint64_t bytes)
{
    const uint32_t word = XSEG_DEBUG_FILL_PATTERN;

    XSEG_ASSERT(bytes != 0 && bytes % sizeof(word) == 0 && offset % sizeof(word) == 0);
    /* The usual case, checked by memcmp: the first word matches, and each word equals the previous
     * one. */
    if (memcmp(piece, &word, sizeof(word)) == 0 &&
        memcmp(piece, piece + sizeof(word), bytes - sizeof(word)) == 0)
        return;
    for (uint64_t i = 0; i < bytes; i++) {
        if (piece[i] == pattern_at(i))
            continue;
        if (difference->count++ == 0) {
            difference->first = offset + i;
            difference->shown = (unsigned)xseg_min(bytes - i, SHOWN_BYTES);
            memcpy(difference->found, piece + i, difference->shown);
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
        !read_back(arena, result->base, sizeof(word), &word))
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
    XSEG_ASSERT(difference->shown <= SHOWN_BYTES && difference->first < result->bytes);
    for (unsigned i = 0; i < difference->shown; i++)
        xseg_strbuf_printf(&text, " %02x", difference->found[i]);
    (void)xseg_history_print_free(&device->history, address, "; last ", &text);
    atomic_fetch_add_explicit(&device->overwrites, 1, memory_order_relaxed);
    xseg_log_line(&device->fill->allocator->log, XSEG_LOG_ERROR, "%s", buffer);
}

/*
 * Whether memory of the device can be read back, so that a difference is an overwrite.  The probe
 * overwrites the first word of the block, so it runs after the first piece with a difference was
 * read.
 */
static bool can_read_back(const struct xseg_alloc_result *result)
{
    atomic_uint *reads = &result->arena->device->fill->reads;

    if (atomic_load(reads) == XSEG_DEBUG_FILL_UNPROBED)
        atomic_store(reads, probe_read_back(result));
    return atomic_load(reads) == XSEG_DEBUG_FILL_READABLE;
}

/* Read a block and compare it; false if the block could not be read. */
static bool find_difference(const struct xseg_alloc_result *result, struct difference *difference)
{
    const uint64_t max = xseg_min(result->bytes, PIECE_BYTES);
    unsigned char *piece = malloc(max);
    bool is_read = piece != NULL;

    for (uint64_t offset = 0; is_read && offset < result->bytes; offset += max) {
        const uint64_t bytes = xseg_min(result->bytes - offset, max);

        is_read = read_back(result->arena, result->base + offset, bytes, piece);
        if (is_read)
            compare_piece(difference, piece, offset, bytes);
        is_read = is_read && (difference->count == 0 || can_read_back(result));
    }
    free(piece);
    return is_read;
}

static void check_pattern(const struct xseg_alloc_result *result)
{
    const struct xseg_arena *arena = result->arena;
    struct difference difference = {0};

    if (!xseg_debug_fill_is_on(arena) ||
        atomic_load(&arena->device->fill->reads) == XSEG_DEBUG_FILL_UNREADABLE ||
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
    const bool can = !arena->is_paused;
    arena->fills += can;
    xseg_biased_lock_unlock(&arena->lock);
    return can;
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
    /* The size is rounded up to whole words: a block's size is a multiple of 512 bytes. */
    if (zeroed)
        status = xseg_driver_fill(&arena->device->context, result->base,
                                  xseg_round_up(result->requested, sizeof(uint32_t)), 0,
                                  xseg_arena_stream(arena)->handle);
    end_fill(arena);
    return status;
}
