/* SPDX-License-Identifier: MIT */
/*
 * Stranded memory: what is cached on a page that cannot go back to the driver, because a live block lies there.
 *
 * A watcher of a course adds up, for each site and over time, what its blocks strand.  A site is whatever the caller
 * makes of a block: a line of code, a label.
 *
 *   page      one of an expandable segment (course.h), or a whole classic segment
 *   stranded  the cached bytes of a page on which blocks are live.  These share it equally, large or small
 *   beside    the cached bytes of a page on which no block is live, but some are pending
 *   idle      all other cached bytes
 *
 * All sums are whole numbers of byte-microseconds, so that they add up exactly:
 *
 * STRANDED-1  reserved - live = pending + beside + idle + stranded, and stranded is the sum of all sites.
 *
 * What cannot be shared equally, less than a byte-microsecond for each block, goes to the block that leaves the page
 * last.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_FRAGMENTATION_H
#define TOOLS_FRAGMENTATION_H

#include "src/tools/replay_model/replay_model.h"

/* Bytes times microseconds. */
__extension__ typedef unsigned __int128 fragmentation_sum;

struct fragmentation_site {
    fragmentation_sum fragmented, allocated;
    uint64_t allocated_bytes; /* now */
    uint64_t peak_bytes;      /* live at the peak; valid behind fragmentation_finish() */
    uint64_t blocks;          /* that were live at some time */
    uint64_t lived_us;        /* of all of them together */
    uint64_t peak_version;    /* the peak that peak_bytes is of */
};

/* The number of a block's site, below site_count. */
typedef uint32_t fragmentation_site_of(const void *context, const struct replay_model_block *block);

struct fragmentation {
    struct replay_model *model;
    struct fragmentation_site *sites; /* [site_count] */
    size_t site_count;
    fragmentation_site_of *site_of;
    const void *context;
    fragmentation_sum reserved, allocated, pending, near_pending, fragmented,
        idle; /* idle: behind fragmentation_finish() */
    uint64_t since_us, began_us;
    uint64_t duration_us; /* behind fragmentation_play(); 1 where is_instant */
    bool is_instant;      /* no time has passed: the sums are bytes of the state at the end */
    struct {
        uint64_t reserved, allocated, time_us, version;
        size_t event; /* how many events came before it */
    } peak; /* the most that was reserved; of several such moments the one with most live */
    struct ordered pages; /* by half of where they begin; classic segments behind all others */
    struct fragmentation_page *page;
    uint32_t page_room;
    struct fragmentation_block *block; /* by the course's slots */
    uint32_t block_room;
    bool out_of_memory; /* host memory ran out: sums are wrong */
};

/*
 * Watch a course from where it is.
 *
 * Returns: false without host memory; there is nothing to end then
 */
bool fragmentation_init(struct fragmentation *fragmentation, struct replay_model *model,
                        size_t site_count, fragmentation_site_of *site_of, const void *context);
void fragmentation_fini(struct fragmentation *fragmentation);

/* Play the next event.  Returns as replay_model_step() does.  Cost: O(log n). */
bool fragmentation_step(struct fragmentation *fragmentation);

/* Account for all blocks up to a time, which must not lie before the last event.  Nothing is played behind it. */
void fragmentation_finish(struct fragmentation *fragmentation, uint64_t now_us);

/*
 * Watch a course to its end, and account for all of it.
 *
 * Returns: false without host memory; there is nothing to end then but the course
 */
bool fragmentation_play(struct fragmentation *fragmentation, struct replay_model *model,
                        size_t site_count, fragmentation_site_of *site_of, const void *context);

#endif
