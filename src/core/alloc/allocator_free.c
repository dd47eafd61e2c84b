/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/allocator_free.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/core/alloc/device_route.h"
#include "src/core/alloc/slow_path.h"
#include "src/core/arena/live.h"
#include "src/core/arena/recorder.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/extent_blocks.h"
#include "src/core/cache/walk.h"
#include "src/core/grow/guarded.h"
#include "src/core/history/history.h"
#include "src/core/instance/history_sweep.h"
#include "src/core/pending/debug_fill.h"
#include "src/core/pending/pending.h"
#include "src/core/pending/stream_retirement.h"
#include "src/core/small/cell.h"
#include "src/core/small/small_free.h"
#include "src/core/small/tract.h"

/* --- From an address to its block. --- */

static const char *const state_text[] = {
    [XSEG_BLOCK_ALLOCATED] = "an allocated block",
    [XSEG_BLOCK_PENDING_FREE] = "a freed block that another stream still uses",
    [XSEG_BLOCK_CACHED] = "cached memory",
    [XSEG_BLOCK_UNMAPPED] = "unmapped addresses of a segment",
    [XSEG_BLOCK_CLAIMED] = "memory that another thread is freeing, mapping or unmapping",
};

/* Set the error message for an address that is not the start of an allocated block.  The arena's lock is held. */
static xseg_status fail_not_live(const struct xseg_extent *extent, uint64_t address, bool *is_free)
{
    const struct xseg_part part = xseg_walk_at(extent, address);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT((size_t)part.state < XSEG_COUNT_OF(state_text) && state_text[part.state] != NULL);
    *is_free = part.state != XSEG_BLOCK_ALLOCATED && extent->elastic == NULL;
    if (extent->elastic != NULL)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                         "address belongs to a range, %#" PRIx64
                         "; release memory of a range by xseg_range_decommit()",
                         address);
    if (part.state == XSEG_BLOCK_ALLOCATED)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                         "address is not the start of a block, %#" PRIx64 " at offset %" PRIu64
                         " of the block at %#" PRIx64 "; pass the start",
                         address, address - part.base, part.base);
    return xseg_fail(XSEG_ERR_NOT_ALLOCATED, "block is not allocated, %#" PRIx64 " in %s", address,
                     part.state == XSEG_BLOCK_UNMAPPED && extent->arena->is_guarded
                         ? "memory that has been freed and unmapped"
                         : state_text[part.state]);
}

/* Append to the error message when the address was freed, if the history of a device contains the free. */
static xseg_status add_free(struct xseg_allocator *allocator, uint64_t address)
{
    struct xseg_strbuf text;
    char buffer[768];

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL &&
            xseg_history_print_free(&device->history, address, "; last ", &text)) {
            xseg_fail_append("%s", buffer);
            return XSEG_ERR_NOT_ALLOCATED;
        }
    }
    xseg_fail_append("; check for a double free or an invalid pointer");
    return XSEG_ERR_NOT_ALLOCATED;
}

/* A live block: a record, or a cell. */
struct live {
    struct xseg_extent *extent;
    struct xseg_arena *arena;
    struct xseg_block *record; /* NULL: a cell */
    uint32_t quantum;          /* of the cell */
};

/*
 * Find the live block that starts at an address, and lock its arena.
 *
 * status:  set to XSEG_ERR_NOT_ALLOCATED if there is none
 * Returns: whether the arena is locked; the compiler follows that, but not how it comes about
 */
static inline bool lock_live(struct xseg_allocator *allocator, const void *pointer,
                             struct live *live, xseg_status *status) XSEG_TRIES(live->arena->lock)
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer;
    struct xseg_extent *extent = xseg_extent_lock_at(&allocator->page_map, address);

    if (__builtin_expect(extent == NULL, 0)) {
        (void)xseg_allocator_fail_foreign(address);
        *status = add_free(allocator, address);
        return false;
    }
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    live->extent = extent;
    live->arena = extent->arena;
    live->record = NULL;
    if (extent->has_cells && xseg_live_find_cell(extent, address, &live->quantum))
        return true;
    live->record = xseg_extent_block_at(extent, address);
    if (__builtin_expect(live->record != NULL && live->record->state == XSEG_BLOCK_ALLOCATED, 1))
        return true;
    bool is_free = false;
    *status = fail_not_live(extent, address, &is_free);
    xseg_arena_unlock(live->arena);
    if (is_free)
        *status = add_free(allocator, address);
    return false;
}

/*
 * lock_live() for a block that is to have a record: a cell is isolated.  The lock may be given for a moment to stock
 * records.
 *
 * status: XSEG_ERR_HOST_MEMORY as well
 */
static bool lock_record(struct xseg_allocator *allocator, const void *pointer, struct live *live,
                        xseg_status *status) XSEG_TRIES(live->arena->lock)
{
    while (lock_live(allocator, pointer, live, status)) {
        if (live->record != NULL)
            return true;
        if (live->arena->blocks.free_count >= 2) {
            live->record = xseg_tract_isolate(live->arena, live->extent, live->quantum);
            return true;
        }
        const bool stocked = xseg_arena_reserve_records(live->arena, &live->arena->blocks, 2);
        xseg_arena_unlock(live->arena);
        if (!stocked) {
            *status = xseg_arena_fail_host_memory();
            return false;
        }
    }
    return false;
}

/* --- Freeing a block, and noting its uses. --- */

/* Whether frees in an arena have more to do than the hit path does; uses of a block aside. */
static inline bool is_watched(const struct xseg_config *config, const struct xseg_arena *arena)
{
    return config->has_free_checks | arena->is_guarded;
}

/* Free a busy block.  No lock is held. */
static xseg_status free_busy(struct xseg_block *block, const struct xseg_config *config)
{
    struct xseg_arena *arena = block->extent->arena;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
    if (arena->is_guarded)
        return xseg_guarded_free(block);
    if (block->uses != NULL)
        return xseg_pending_free(arena->device->pending, block,
                                 config->graph_capture_record_stream_reuse);
    xseg_debug_fill_claimed(block);
    xseg_arena_lock(arena);
    xseg_recorder_free_of(arena, block);
    xseg_arena_free(arena, block);
    xseg_arena_unlock(arena);
    return XSEG_OK;
}

/* Free a block that the hit path cannot free: one with uses, or one of a watched arena (is_watched()). */
static xseg_status free_slowly(struct xseg_allocator *allocator, const void *pointer,
                               const struct xseg_config *config)
{
    struct live live = {0};
    xseg_status status = XSEG_OK;

    if (!lock_record(allocator, pointer, &live, &status))
        return status;
    XSEG_ASSERT(live.record != NULL && live.record->state == XSEG_BLOCK_ALLOCATED);
    live.record->state = XSEG_BLOCK_CLAIMED;
    xseg_arena_unlock(live.arena);
    return free_busy(live.record, config);
}

/* Note that a live block is freed.  Its arena's lock is held. */
static __attribute__((noinline)) void note_free(const struct live *live)
{
    struct xseg_recorded_block block;

    if (live->record != NULL) {
        xseg_recorder_free_of(live->arena, live->record);
        return;
    }
    const struct xseg_cells *cells = &live->extent->cells;
    block.base = xseg_cell_address_of(live->extent, live->quantum);
    block.bytes = xseg_cell_bytes_of(xseg_cells_next(cells, live->quantum + 1) - live->quantum);
    block.requested = xseg_cells_requested(cells, live->quantum);
    block.is_fallback = false;
    xseg_recorder_free(live->arena, &block);
}

xseg_status xseg_allocator_free(struct xseg_allocator *allocator, const void *pointer)
{
    struct live live = {0};
    xseg_status status = XSEG_OK;

    xseg_allocator_gather(allocator, NULL);
    if (__builtin_expect(!lock_live(allocator, pointer, &live, &status), 0))
        return status;
    struct xseg_arena *arena = live.arena;
    const struct xseg_config *config = xseg_allocator_config(allocator);
    if (__builtin_expect(is_watched(config, arena), 0) ||
        (live.record != NULL && live.record->uses != NULL)) {
        xseg_arena_unlock(live.arena);
        status = free_slowly(allocator, pointer, config);
    } else {
        if (xseg_recorder_is_enabled(arena))
            note_free(&live);
        if (live.record == NULL) {
            const bool is_freed = xseg_small_free(live.arena, live.extent, live.quantum);

            XSEG_ASSERT(is_freed);
        } else {
            xseg_arena_free(live.arena, live.record);
        }
        xseg_arena_unlock(live.arena);
    }
    if (__builtin_expect(config->has_call_epilogue, 0))
        xseg_slow_path_end_call(arena->device, config);
    return status;
}

/* Note that a stream uses the live block at an address.  The arena's lock may be given to stock records. */
static xseg_status note_use(struct xseg_allocator *allocator, const void *pointer,
                            struct xseg_known_stream *stream, bool captured)
{
    for (;;) {
        struct live live = {0};
        xseg_status status = XSEG_OK;

        if (!lock_live(allocator, pointer, &live, &status))
            return status;
        if (stream == xseg_arena_stream(live.arena)) {
            xseg_arena_unlock(live.arena);
            return XSEG_OK;
        }
        const bool stocked = xseg_arena_reserve_records(live.arena, &live.arena->uses, 1);
        xseg_arena_unlock(live.arena);
        if (!stocked)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, stream use of a block");
        if (!lock_record(allocator, pointer, &live, &status))
            return status;
        const bool ready = live.arena->uses.free_count > 0;
        XSEG_ASSERT(live.record != NULL);
        if (ready)
            xseg_pending_record_stream(live.arena, live.record, stream, captured);
        xseg_arena_unlock(live.arena);
        if (ready)
            return XSEG_OK;
    }
}

/* The device of a live block. */
static xseg_status find_device(struct xseg_allocator *allocator, const void *pointer,
                               struct xseg_device **out)
{
    struct live live = {0};
    xseg_status status = XSEG_OK;

    if (!lock_live(allocator, pointer, &live, &status))
        return status;
    XSEG_ASSERT(live.arena->device->allocator == allocator);
    *out = live.arena->device;
    xseg_arena_unlock(live.arena);
    return XSEG_OK;
}

xseg_status xseg_allocator_record_stream(struct xseg_allocator *allocator, const void *pointer,
                                         xseg_stream stream)
{
    struct xseg_known_stream *known = NULL;
    struct xseg_device *device = NULL;
    bool captured = false;
    xseg_status status = find_device(allocator, pointer, &device);

    if (status == XSEG_OK)
        status = xseg_stream_retirement_get(device, stream, &known);
    if (status == XSEG_OK)
        status = xseg_device_is_captured(device, known, &captured);
    return status == XSEG_OK ? note_use(allocator, pointer, known, captured) : status;
}

/* Let the side stream wait for the events that are not complete.  *side: NULL if all events are */
static xseg_status wait_aside(struct xseg_device *device, const xseg_event *events, size_t count,
                              struct xseg_known_stream **side)
{
    for (size_t i = 0; i < count; i++) {
        xseg_status status;
        bool done = false;
        int mode = 0;

        if (events[i] == NULL)
            return xseg_fail(XSEG_ERR_ARGUMENT, "events[%zu] is NULL", i);
        status = xseg_driver_relax_capture_mode(&device->context, &mode);
        if (status != XSEG_OK)
            return status;
        status = xseg_driver_event_query(&device->context, events[i], &done);
        xseg_driver_restore_capture_mode(&device->context, mode);
        if (status == XSEG_OK && !done && *side == NULL)
            status = xseg_device_side_stream(device, side);
        if (status == XSEG_OK && !done)
            status = xseg_driver_stream_wait_event(&device->context, (*side)->handle, events[i]);
        if (status != XSEG_OK)
            return status;
    }
    return XSEG_OK;
}

xseg_status xseg_allocator_free_after(struct xseg_allocator *allocator, const void *pointer,
                                      const xseg_event *events, size_t count)
{
    struct xseg_known_stream *side = NULL;
    struct xseg_device *device = NULL;
    xseg_status status = find_device(allocator, pointer, &device);

    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device != NULL);
    if (xseg_pending_captures(device->pending))
        return xseg_fail(XSEG_ERR_BUSY,
                         "capture is active on device %d; end it first, since events cannot be "
                         "queried during a capture",
                         device->context.ordinal);
    status = wait_aside(device, events, count, &side);
    if (status == XSEG_OK && side != NULL)
        status = note_use(allocator, pointer, side, false);
    return status == XSEG_OK ? xseg_allocator_free(allocator, pointer) : status;
}
