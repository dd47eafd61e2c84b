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
#ifndef TOOLS_STRANDED_H
#define TOOLS_STRANDED_H

#include "src/tools/replay_model/replay_model.h"

/* Bytes times microseconds. */
__extension__ typedef unsigned __int128 stranded_sum;

struct stranded_site {
    stranded_sum stranded, live;
    uint64_t live_bytes;   /* now */
    uint64_t peak_bytes;   /* live at the peak; valid behind stranded_finish() */
    uint64_t blocks;       /* that were live at some time */
    uint64_t lived_us;     /* of all of them together */
    uint64_t peak_version; /* the peak that peak_bytes is of */
};

/* The number of a block's site, below site_count. */
typedef uint32_t stranded_site_of(const void *context, const struct course_block *block);

struct stranded {
    struct course *course;
    struct stranded_site *sites; /* [site_count] */
    size_t site_count;
    stranded_site_of *site_of;
    const void *context;
    stranded_sum reserved, live, pending, beside, stranded,
        idle; /* idle: behind stranded_finish() */
    uint64_t since_us, began_us;
    uint64_t duration_us; /* behind stranded_play(); 1 where is_moment */
    bool is_moment;       /* no time has passed: the sums are bytes of the state at the end */
    struct {
        uint64_t reserved, live, time_us, version;
        size_t event; /* how many events came before it */
    } peak; /* the most that was reserved; of several such moments the one with most live */
    struct ordered pages; /* by half of where they begin; classic segments behind all others */
    struct stranded_page *page;
    uint32_t page_room;
    struct stranded_block *block; /* by the course's slots */
    uint32_t block_room;
    bool lacks_memory; /* host memory ran out: sums are wrong */
};

/*
 * Watch a course from where it is.
 *
 * Returns: false without host memory; there is nothing to end then
 */
bool stranded_init(struct stranded *stranded, struct course *course, size_t site_count,
                   stranded_site_of *site_of, const void *context);
void stranded_fini(struct stranded *stranded);

/* Play the next event.  Returns as course_step() does.  Cost: O(log n). */
bool stranded_step(struct stranded *stranded);

/* Account for all blocks up to a time, which must not lie before the last event.  Nothing is played behind it. */
void stranded_finish(struct stranded *stranded, uint64_t now_us);

/*
 * Watch a course to its end, and account for all of it.
 *
 * Returns: false without host memory; there is nothing to end then but the course
 */
bool stranded_play(struct stranded *stranded, struct course *course, size_t site_count,
                   stranded_site_of *site_of, const void *context);

#endif
