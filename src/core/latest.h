/* SPDX-License-Identifier: MIT */
/*
 * The latest cell of a vast arena: freed, but not yet cached.
 *
 * A small arena is *vast* while its sheets are more than caches hold.  There an allocation and its free
 * are short beside what they wait for: the address, which the user's own table may have far away, and
 * then the word that it leads to.  A processor goes on meanwhile, into the next calls, but only as far as
 * its registers last, some 240 results of the 260 that such a pair took, and only with what does not wait
 * itself, since its schedulers hold some 95 instructions and 45 stores that do (bench-waits).  So in a vast arena
 *
 *   - a free is tried there first, by the addresses of one extent: the arena is known without a look-up, and
 *     only what is about the cell waits for the address;
 *   - the cell, if it is lone, becomes the *latest* one.  It is counted as free, and looks live.  The next free
 *     makes it cached, or whoever has to see it; by then all that this changes is in the cache;
 *   - an allocation for which the rack has just the size does not wait for it, unless it is the better choice:
 *     then it is live again at once;
 *   - what was requested of it is *due*: the free after the next reads where that is noted (counts.h), or whoever
 *     has to see it.
 *
 * At 10^6 live blocks a pair takes 15 to 21 % less with the first three, at 10^5 an eighth; with the last another
 * fifth and 5 %.  An allocator has one vast arena at most: the first that is so large while frees are plain.
 *
 * Invariants:
 *   LATEST-1  whoever takes an arena's lock with xseg_arena_lock() finds no latest cell.  The doors (block.c,
 *             block_free.c), which take it themselves, know of it.
 *   LATEST-2  nothing cached is beside it.
 *   LATEST-3  without a latest cell nothing is due.
 *
 * Locking: ARENA, but for what an allocator says of how frees begin.
 */
#ifndef XSEG_CORE_LATEST_H
#define XSEG_CORE_LATEST_H

#include "src/core/rack.h"

struct xseg_arena;

/* How a free begins, as the allocator's word says; any other value is the vast arena that it is tried in first. */
#define XSEG_FREES_GENERALLY ((uintptr_t)0)
#define XSEG_FREES_PLAINLY   ((uintptr_t)1)

struct xseg_latest {
    /* The extent that may have one: its address, quanta, and sheets; 0 quanta if there is none. */
    uint64_t base, all_quanta;
    struct xseg_sheet **sheets;
    /* The cell: the sheet that it begins in, NULL if there is none; the quantum of that; its size, up to 64,
     * 0 if there is none. */
    struct xseg_sheet *sheet;
    uint64_t index, quanta;
};

/* An arena has more sheets than before: it becomes vast if it has that many, its frees are plain, and its
 * allocator has no vast one. */
void xseg_latest_begin(struct xseg_arena *arena, struct xseg_extent *extent);

/* It is not vast any more, if it was. */
void xseg_latest_end(struct xseg_arena *arena);

/* The same if that is for an extent, which ends. */
void xseg_latest_end_with(struct xseg_arena *arena, const struct xseg_extent *extent);

/* The quantum of the extent at which an address lies; none that it has for any other address, since what
 * is below a quantum goes to the top: that saves the question for a multiple. */
static inline uint64_t xseg_latest_quantum(const struct xseg_latest *latest, uint64_t address)
{
    const uint64_t offset = address - latest->base;

    return offset >> XSEG_CELLS_SHIFT | offset << (64 - XSEG_CELLS_SHIFT);
}

/* A lone cell is free, and the latest one; there is none. */
static inline void xseg_latest_put(struct xseg_latest *latest, struct xseg_sheet *sheet,
                                   uint64_t index, uint64_t quanta)
{
    latest->sheet = sheet;
    latest->index = index;
    latest->quanta = quanta;
}

/* The latest cell is to be live again, and there is none. */
static inline struct xseg_latest xseg_latest_take(struct xseg_latest *latest)
{
    const struct xseg_latest cell = *latest;

    latest->sheet = NULL;
    latest->quanta = 0;
    return cell;
}

/* The latest cell, if there is one, becomes cached. */
static inline void xseg_latest_cache(struct xseg_latest *latest, struct xseg_rack *rack)
{
    if (latest->sheet == NULL)
        return;
    const struct xseg_latest cell = xseg_latest_take(latest);
    xseg_rack_put_lone(rack, cell.sheet, cell.index, cell.quanta);
}

/* The same, and nothing is due. */
void xseg_latest_settle(struct xseg_arena *arena);

/* Whether the latest cell fits a request of so many quanta better than the lowest cell of the rack that has
 * just as many: it is as good, and lower. */
static inline bool xseg_latest_is_better(const struct xseg_latest *latest, uint64_t quanta,
                                         const struct xseg_sheet *sheet, uint64_t index)
{
    return latest->quanta == quanta &&
           (latest->sheet == sheet ? latest->index < index : latest->sheet->rank < sheet->rank);
}

#endif
