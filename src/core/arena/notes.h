/* SPDX-License-Identifier: MIT */
/*
 * Notes: what is written down of each block and segment, at the moment when its arena changes.
 *
 * A note goes to up to three places, as the settings of the history say: an event to the arena's ring, an entry to
 * the observers with `on_trace`, and, of a block that is handed out, its origin.
 *
 *     if (xseg_notes_are_kept(arena))
 *         xseg_notes_alloc(arena, &grant, requested);
 *
 * Locking: ARENA of the arena is held, so the notes of an arena have the order of what happened.  GROWTH as well
 * for segments: there memory may pass to another arena, and the note draws a number.
 */
#ifndef XSEG_CORE_NOTES_H
#define XSEG_CORE_NOTES_H

#include "src/core/arena/arena.h"
#include "src/core/history/history.h"

/* A block as a note describes it. */
struct xseg_noted_block {
    uint64_t base, bytes, requested;
    bool is_lent; /* the default pool holds it, see flags.h */
};

/* Whether anything is noted of blocks and segments. */
static inline bool xseg_notes_are_kept(const struct xseg_arena *arena)
{
    return __builtin_expect(xseg_history_settings(arena->history) != 0, 0);
}

/* A block is handed out. */
void xseg_notes_alloc(struct xseg_arena *arena, const struct xseg_noted_block *block);

/* A block is freed, and is cached at once: FREE_REQUESTED and FREE_COMPLETED. */
void xseg_notes_free(struct xseg_arena *arena, const struct xseg_noted_block *block);

/* An action on a block that has a record. */
void xseg_notes_block(struct xseg_arena *arena, const struct xseg_block *block,
                      enum xseg_history_action action);

/* A block that has a record is freed, and is cached at once. */
static inline void xseg_notes_free_of(struct xseg_arena *arena, const struct xseg_block *block)
{
    if (!xseg_notes_are_kept(arena))
        return;
    xseg_notes_block(arena, block, XSEG_HISTORY_FREE_REQUESTED);
    xseg_notes_block(arena, block, XSEG_HISTORY_FREE_COMPLETED);
}

/* An action on memory of a segment; GROWTH is held, too. */
void xseg_notes_segment(const struct xseg_extent *extent, enum xseg_history_action action,
                        uint64_t base, uint64_t bytes);

/* Memory of a segment goes: its cause, then the action.  Both name one stream.  GROWTH is held, too. */
void xseg_notes_gone(const struct xseg_extent *extent, enum xseg_history_action cause,
                     enum xseg_history_action action, uint64_t base, uint64_t bytes);

/* Evicted pages of a segment end.  The history had a PAUSE of them; observers with `on_trace`, who know of no pauses, hear
 * that they are unmapped.  GROWTH is held, too. */
void xseg_notes_forgotten(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* A request begins to wait for so many bytes of other processes. */
void xseg_notes_ask(struct xseg_arena *arena, uint64_t bytes);

/* A request was refused, while the device had so many bytes free. */
void xseg_notes_oom(struct xseg_arena *arena, uint64_t requested, uint64_t free_bytes);

#endif
