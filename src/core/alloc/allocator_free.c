/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/alloc.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/grow/segments.h"
#include "src/core/history/history.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"

/* --- From an address to its block. --- */

static const char *const state_descriptions[] = {
    [XSEG_BLOCK_ALLOCATED] = "an allocated block",
    [XSEG_BLOCK_PENDING_FREE] = "a freed block that another stream still uses",
    [XSEG_BLOCK_CACHED] = "cached memory",
    [XSEG_BLOCK_UNMAPPED] = "unmapped addresses of a segment",
    [XSEG_BLOCK_CLAIMED] = "memory that another thread is freeing, mapping or unmapping",
};

/* Set the error message for an address that is not the start of an allocated block.  The arena's lock is held.
 * may_be_freed: set to whether the address may have been freed */
static xseg_status fail_not_allocated(const struct xseg_extent *extent, uint64_t address,
                                      bool *may_be_freed)
{
    const struct xseg_block_view view = xseg_extent_view_at(extent, address);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT((size_t)view.state < XSEG_COUNT_OF(state_descriptions) &&
                state_descriptions[view.state] != NULL);
    *may_be_freed = view.state != XSEG_BLOCK_ALLOCATED && extent->elastic == NULL;
    if (extent->elastic != NULL)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                         "address belongs to a range, %#" PRIx64
                         "; release memory of a range by xseg_range_decommit()",
                         address);
    if (view.state == XSEG_BLOCK_ALLOCATED)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                         "address is not the start of a block, %#" PRIx64 " at offset %" PRIu64
                         " of the block at %#" PRIx64 "; pass the start",
                         address, address - view.base, view.base);
    return xseg_fail(XSEG_ERR_NOT_ALLOCATED, "block is not allocated, %#" PRIx64 " in %s", address,
                     view.state == XSEG_BLOCK_UNMAPPED && extent->arena->is_guarded
                         ? "memory that has been freed and unmapped"
                         : state_descriptions[view.state]);
}

/* Append the last free of the address to the error message if the history of a device contains it; else a hint. */
static xseg_status append_last_free(struct xseg_allocator *allocator, uint64_t address)
{
    struct xseg_strbuf message;
    char buffer[768];

    xseg_strbuf_init(&message, buffer, sizeof(buffer));
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL &&
            xseg_history_print_free(&device->history, address, "; last ", &message)) {
            xseg_fail_append("%s", buffer);
            return XSEG_ERR_NOT_ALLOCATED;
        }
    }
    xseg_fail_append("; check for a double free or an invalid pointer");
    return XSEG_ERR_NOT_ALLOCATED;
}

/* An allocated block whose arena is locked. */
struct locked_block {
    struct xseg_arena *arena;
    struct xseg_block *block;
};

/*
 * Find the allocated block that starts at an address, and lock its arena.
 *
 * status:  set to XSEG_ERR_NOT_ALLOCATED if no allocated block starts there
 * Returns: whether the arena is locked
 */
static inline bool lock_allocated_block(struct xseg_allocator *allocator, const void *pointer,
                                        struct locked_block *locked, xseg_status *status)
    XSEG_TRIES(locked->arena->lock)
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer;
    struct xseg_extent *extent = xseg_arena_lock_at(&allocator->page_map, address);

    if (__builtin_expect(extent == NULL, 0)) {
        (void)xseg_allocator_fail_foreign(address);
        *status = append_last_free(allocator, address);
        return false;
    }
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    locked->arena = extent->arena;
    locked->block = xseg_extent_block_at(extent, address);
    if (__builtin_expect(locked->block != NULL && locked->block->state == XSEG_BLOCK_ALLOCATED, 1))
        return true;
    bool may_be_freed = false;
    *status = fail_not_allocated(extent, address, &may_be_freed);
    xseg_biased_lock_unlock(&locked->arena->lock);
    if (may_be_freed)
        *status = append_last_free(allocator, address);
    return false;
}

/* --- Free. --- */

/* Whether a free in an arena must claim its block even if no other stream uses the block: for checks of the configuration, or
 * because the arena is guarded. */
static inline bool must_claim_blocks(const struct xseg_config *config,
                                     const struct xseg_arena *arena)
{
    return config->has_free_checks | arena->is_guarded;
}

/* Allocate a record of a stream use, and unlock the arena. */
static xseg_status reserve_use_record(const struct locked_block *locked)
    XSEG_RELEASES(locked->arena->lock)
{
    const bool reserved = xseg_arena_reserve_records(locked->arena, &locked->arena->uses, 1);

    xseg_biased_lock_unlock(&locked->arena->lock);
    return reserved ? XSEG_OK
                    : xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, stream use of a block");
}

/* Free a claimed block.  No lock is held. */
static xseg_status free_claimed(struct xseg_block *block, const struct xseg_config *config)
{
    struct xseg_arena *arena = block->extent->arena;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
    if (arena->is_guarded)
        return xseg_guarded_free(block);
    if (block->uses != NULL)
        return xseg_pending_free(arena->device->pending, block,
                                 config->graph_capture_record_stream_reuse);
    xseg_debug_fill_claimed(block);
    xseg_biased_lock_lock(&arena->lock);
    xseg_recorder_free_if_enabled(arena, block);
    xseg_arena_free(arena, block);
    xseg_biased_lock_unlock(&arena->lock);
    return XSEG_OK;
}

/* Free a block that no other stream uses, and unlock its arena. */
static inline void free_unused(const struct locked_block *locked) XSEG_RELEASES(locked->arena->lock)
{
    xseg_recorder_free_if_enabled(locked->arena, locked->block);
    xseg_arena_free(locked->arena, locked->block);
    xseg_biased_lock_unlock(&locked->arena->lock);
}

/* Free the block at an address.  side_stream: another stream that uses the block, or NULL */
static xseg_status free_at(struct xseg_allocator *allocator, const void *pointer,
                           struct xseg_known_stream *side_stream)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    struct xseg_device *device = NULL;
    xseg_status status = XSEG_OK;

    for (;;) {
        struct locked_block locked = {0};

        if (__builtin_expect(!lock_allocated_block(allocator, pointer, &locked, &status), 0))
            return status;
        const uint32_t needed_records =
            side_stream != NULL && side_stream != xseg_arena_stream(locked.arena);
        device = locked.arena->device;
        if (__builtin_expect(!must_claim_blocks(config, locked.arena), 1) && needed_records == 0 &&
            locked.block->uses == NULL) {
            free_unused(&locked);
            break;
        }
        if (locked.arena->uses.free_count >= needed_records) {
            if (needed_records != 0)
                xseg_pending_record_stream(locked.arena, locked.block, side_stream, false);
            locked.block->state = XSEG_BLOCK_CLAIMED;
            xseg_biased_lock_unlock(&locked.arena->lock);
            status = free_claimed(locked.block, config);
            break;
        }
        status = reserve_use_record(&locked);
        if (status != XSEG_OK)
            return status;
    }
    if (__builtin_expect(config->has_call_epilogue, 0))
        xseg_slow_path_end_call(device, config);
    return status;
}

xseg_status xseg_allocator_free(struct xseg_allocator *allocator, const void *pointer)
{
    xseg_allocator_gather(allocator, NULL);
    return free_at(allocator, pointer, NULL);
}

/* --- Uses by other streams. --- */

/* Find the entry of a stream without a driver call; NULL if the stream is unknown or a capture is active. */
static struct xseg_known_stream *find_stream_fast(struct xseg_device *device, xseg_stream handle)
{
    return xseg_pending_captures(device->pending)
               ? NULL
               : xseg_streams_find_fast(&device->streams, handle);
}

xseg_status xseg_allocator_record_stream(struct xseg_allocator *allocator, const void *pointer,
                                         xseg_stream handle)
{
    struct xseg_known_stream *stream = NULL;
    xseg_status status = XSEG_OK;
    bool captured = false;

    do {
        struct locked_block locked = {0};

        if (!lock_allocated_block(allocator, pointer, &locked, &status))
            return status;
        struct xseg_device *device = locked.arena->device;
        if (stream == NULL)
            stream = find_stream_fast(device, handle);
        if (stream == NULL) {
            xseg_biased_lock_unlock(&locked.arena->lock);
            status = xseg_stream_retirement_get(device, handle, &stream);
            if (status == XSEG_OK)
                status = xseg_capture_has_stream(device, stream, &captured);
            continue;
        }
        if (stream == xseg_arena_stream(locked.arena)) {
            xseg_biased_lock_unlock(&locked.arena->lock);
            return XSEG_OK;
        }
        if (locked.arena->uses.free_count > 0) {
            xseg_pending_record_stream(locked.arena, locked.block, stream, captured);
            xseg_biased_lock_unlock(&locked.arena->lock);
            return XSEG_OK;
        }
        status = reserve_use_record(&locked);
    } while (status == XSEG_OK);
    return status;
}

/* --- Free after events. --- */

/* Find the device of an allocated block. */
static xseg_status find_block_device(struct xseg_allocator *allocator, const void *pointer,
                                     struct xseg_device **out)
{
    struct locked_block locked = {0};
    xseg_status status = XSEG_OK;

    if (!lock_allocated_block(allocator, pointer, &locked, &status))
        return status;
    XSEG_ASSERT(locked.arena->device->allocator == allocator);
    *out = locked.arena->device;
    xseg_biased_lock_unlock(&locked.arena->lock);
    return XSEG_OK;
}

/* Queue waits for the events that have not completed on the side stream.  *side_stream: unchanged if all events have
 * completed */
static xseg_status wait_for_events_on_side_stream(struct xseg_device *device,
                                                  const xseg_event *events, size_t count,
                                                  struct xseg_known_stream **side_stream)
{
    for (size_t i = 0; i < count; i++) {
        xseg_status status;
        bool has_completed = false;
        int mode = 0;

        if (events[i] == NULL)
            return xseg_fail(XSEG_ERR_ARGUMENT, "events[%zu] is NULL", i);
        status = xseg_driver_relax_capture_mode(&device->context, &mode);
        if (status != XSEG_OK)
            return status;
        status = xseg_driver_event_query(&device->context, events[i], &has_completed);
        xseg_driver_restore_capture_mode(&device->context, mode);
        if (status == XSEG_OK && !has_completed && *side_stream == NULL)
            status = xseg_side_stream_get(device, side_stream);
        if (status == XSEG_OK && !has_completed)
            status =
                xseg_driver_stream_wait_event(&device->context, (*side_stream)->handle, events[i]);
        if (status != XSEG_OK)
            return status;
    }
    return XSEG_OK;
}

xseg_status xseg_allocator_free_after(struct xseg_allocator *allocator, const void *pointer,
                                      const xseg_event *events, size_t count)
{
    struct xseg_known_stream *side_stream = NULL;
    struct xseg_device *device = NULL;
    xseg_status status = find_block_device(allocator, pointer, &device);

    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device != NULL);
    if (xseg_pending_captures(device->pending))
        return xseg_fail(XSEG_ERR_BUSY,
                         "capture is active on device %d; end it first, since events cannot be "
                         "queried during a capture",
                         device->context.ordinal);
    status = wait_for_events_on_side_stream(device, events, count, &side_stream);
    if (status != XSEG_OK)
        return status;
    xseg_allocator_gather(allocator, NULL);
    return free_at(allocator, pointer, side_stream);
}
