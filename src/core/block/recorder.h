/* SPDX-License-Identifier: MIT */
/*
 * The recorder: writes changes of blocks and segments to the history at the moment when the arena
 * changes.
 *
 * The settings of the history (history.h) select up to three destinations: an event in the ring of
 * the arena, a trace entry for observers with `on_trace`, and the origin of an allocated block
 * (origins.h).
 *
 *     if (xseg_recorder_is_enabled(arena))
 *         xseg_recorder_alloc(arena, &block);
 *
 * Locking: the caller holds the arena's lock, so the events of an arena are in the order of the
 * changes.  Events of segments also require the device memory lock, because memory may move to
 * another arena and the event draws a global sequence number.
 */
#ifndef XSEG_CORE_RECORDER_H
#define XSEG_CORE_RECORDER_H

#include "src/core/block/arena.h"
#include "src/core/history/history.h"

/* A block as events describe it. */
struct xseg_recorded_block {
    uint64_t base, bytes, requested;
    bool is_fallback; /* the block has XSEG_BLOCK_FALLBACK */
};

/* Whether the history records anything about blocks and segments. */
static inline bool xseg_recorder_is_enabled(const struct xseg_arena *arena)
{
    return __builtin_expect(xseg_history_settings(arena->history) != 0, 0);
}

/* Record an allocation. */
void xseg_recorder_alloc(struct xseg_arena *arena, const struct xseg_recorded_block *block);

/* Record a free after which the block is immediately cached: FREE_REQUESTED and FREE_COMPLETED. */
void xseg_recorder_free(struct xseg_arena *arena, const struct xseg_recorded_block *block);

/* Record an action on a block. */
void xseg_recorder_block(struct xseg_arena *arena, const struct xseg_block *block,
                         enum xseg_history_action action);

/* xseg_recorder_free() if the recorder is enabled. */
static inline void xseg_recorder_free_if_enabled(struct xseg_arena *arena,
                                                 const struct xseg_block *block)
{
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_free(arena, &(struct xseg_recorded_block){block->base, block->bytes,
                                                                block->requested,
                                                                xseg_block_is_fallback(block)});
}

/* Record an action on memory of a segment; requires the device memory lock, too. */
void xseg_recorder_segment(const struct xseg_extent *extent, enum xseg_history_action action,
                           uint64_t base, uint64_t bytes);

/* Record that memory of a segment is unmapped: the cause, then the action, with the same stream.
 * Requires the device memory lock, too. */
void xseg_recorder_unmapped(const struct xseg_extent *extent, enum xseg_history_action cause,
                            enum xseg_history_action action, uint64_t base, uint64_t bytes);

/* Report released evicted pages of a segment.  The history contains their PAUSE; observers with
 * `on_trace` receive no pauses, so they receive SEGMENT_UNMAP here.  Requires the device memory
 * lock, too. */
void xseg_recorder_discarded(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* Record that a request waits for other processes to release `bytes`. */
void xseg_recorder_budget_request(struct xseg_arena *arena, uint64_t bytes);

/* Record an out-of-memory failure; the device has `free_bytes`. */
void xseg_recorder_oom(struct xseg_arena *arena, uint64_t requested, uint64_t free_bytes);

#endif
