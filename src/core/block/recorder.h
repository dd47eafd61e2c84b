/* SPDX-License-Identifier: MIT */
/*
 * Notes: what is written down of each block and segment, at the moment when its arena changes.
 *
 * A note goes to up to three places, as the settings of the history say: an event to the arena's ring, an entry to
 * the observers with `on_trace`, and, of a block that is handed out, its origin.
 *
 *     if (xseg_recorder_is_enabled(arena))
 *         xseg_recorder_alloc(arena, &grant, requested);
 *
 * Locking: ARENA of the arena is held, so the notes of an arena have the order of what happened.  The device memory lock as well
 * for segments: there memory may pass to another arena, and the note draws a number.
 */
#ifndef XSEG_CORE_RECORDER_H
#define XSEG_CORE_RECORDER_H

#include "src/core/block/arena.h"
#include "src/core/history/history.h"

/* A block as a note describes it. */
struct xseg_recorded_block {
    uint64_t base, bytes, requested;
    bool is_fallback; /* the default pool holds it, see flags.h */
};

/* Whether anything is noted of blocks and segments. */
static inline bool xseg_recorder_is_enabled(const struct xseg_arena *arena)
{
    return __builtin_expect(xseg_history_settings(arena->history) != 0, 0);
}

/* A block is handed out. */
void xseg_recorder_alloc(struct xseg_arena *arena, const struct xseg_recorded_block *block);

/* A block is freed, and is cached at once: FREE_REQUESTED and FREE_COMPLETED. */
void xseg_recorder_free(struct xseg_arena *arena, const struct xseg_recorded_block *block);

/* An action on a block. */
void xseg_recorder_block(struct xseg_arena *arena, const struct xseg_block *block,
                         enum xseg_history_action action);

/* xseg_recorder_free(), if anything is noted. */
static inline void xseg_recorder_free_of(struct xseg_arena *arena, const struct xseg_block *block)
{
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_free(arena, &(struct xseg_recorded_block){block->base, block->bytes,
                                                                block->requested,
                                                                xseg_block_is_fallback(block)});
}

/* An action on memory of a segment; the device memory lock is held, too. */
void xseg_recorder_segment(const struct xseg_extent *extent, enum xseg_history_action action,
                           uint64_t base, uint64_t bytes);

/* Memory of a segment goes: its cause, then the action.  Both name one stream.  The device memory lock is held, too. */
void xseg_recorder_unmapped(const struct xseg_extent *extent, enum xseg_history_action cause,
                            enum xseg_history_action action, uint64_t base, uint64_t bytes);

/* Evicted pages of a segment end.  The history had a PAUSE of them; observers with `on_trace`, who know of no pauses, hear
 * that they are unmapped.  The device memory lock is held, too. */
void xseg_recorder_discarded(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* A request begins to wait for so many bytes of other processes. */
void xseg_recorder_query(struct xseg_arena *arena, uint64_t bytes);

/* A request was refused, while the device had so many bytes free. */
void xseg_recorder_oom(struct xseg_arena *arena, uint64_t requested, uint64_t free_bytes);

#endif
