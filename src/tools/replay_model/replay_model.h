/* SPDX-License-Identifier: MIT */
/*
 * The course of a device: the state of its memory, played forward through the events of a recording.
 *
 * The state before the first event is found by taking all events back from the segments at the end, as PyTorch's viewer
 * does.  An event that cannot be taken back, because events before or between are missing, is left out and counted;
 * so each event that is played finds what it changes.
 *
 * Terms:
 *   range  a run of addresses with memory: a classic segment, or all adjacent mapped memory of one stream, pool and
 *          page size in expandable segments
 *   block  live, or pending: freed by the user, and not by all streams
 *
 * COURSE-1  Ranges do not overlap.  Blocks do not overlap, and each lies in memory of one kind, expandable or classic.
 * COURSE-2  Behind the last event the state is that of the segments, but for blocks that were left out.
 *
 * A block has the size that the segments say.  That of a block which was freed is in no file: it is what was asked for,
 * rounded up to 512 bytes, and ends where the next block begins.
 *
 * The page of expandable memory is what the driver maps and takes back as one piece, 2 MiB or a large one: 20 MiB, or
 * large_segment_size_mb of the file's configuration.  No file names it, so it follows from sizes: memory has large pages
 * if it came, or was there before the first event, as a multiple of them.  It has pages of 2 MiB in a segment that the
 * file calls small, where a part of another size was unmapped, and everywhere with page_size:small.
 *
 * Locking: none; a course belongs to one thread.
 */
#ifndef TOOLS_COURSE_H
#define TOOLS_COURSE_H

#include "src/tools/containers/ordered.h"
#include "src/tools/reading/recording.h"

struct course_block {
    uint64_t address, bytes, stream;
    uint64_t requested;          /* bytes that were asked for */
    uint64_t since_us;           /* when it became what it is; course.now_us at the beginning */
    uint32_t stack, label, pool; /* of its allocation, where they are known */
    bool is_pending;
    bool is_older; /* allocated before the first event */
};

struct course_range {
    uint64_t start, end, stream;
    uint64_t page; /* bytes of each page, from the start on; 0: it is classic */
    uint32_t pool;
    bool is_expandable;
};

/*
 * A watcher hears of changes; each function may be NULL.  A slot belongs to a block as long as the block is there, and
 * is below course.blocks.room.  A range is told as it comes and goes, not as it is joined to others.
 */
struct course_watcher {
    void *self;
    void (*block_comes)(void *self, uint32_t slot, const struct course_block *block);
    void (*block_is_freed)(void *self, uint32_t slot,
                           const struct course_block *block); /* now pending */
    void (*block_leaves)(void *self, uint32_t slot, const struct course_block *block);
    void (*range_comes)(void *self, const struct course_range *range);  /* it is there already */
    void (*range_leaves)(void *self, const struct course_range *range); /* it is there no more */
};

/* Allocated blocks that are left out since no segment of the file contains them. */
struct course_dropped {
    uint64_t blocks, bytes;
};

struct course {
    const struct recording_device *device;
    struct ordered blocks; /* by address */
    struct course_block *block;
    struct ordered ranges; /* by start */
    struct course_range *range;
    uint32_t block_room, range_room;
    struct course_watcher watcher;
    uint64_t reserved, live, pending; /* bytes now */
    uint64_t now_us;                  /* never goes back */
    uint64_t large_page;              /* bytes */
    size_t at;                        /* events so far */
    size_t left_out;                  /* events, blocks and segments that do not fit the others */
    struct course_dropped dropped;
    uint8_t *plan; /* of each event: how it is played */
    struct course_exception *exceptions;
    size_t exception_count;
    bool has_times;    /* else its time is ticks */
    uint64_t ticks;    /* events so far; a free and its completion right behind it are one */
    bool has_requests; /* else a block lives until its free is complete */
    bool lacks_memory; /* host memory ran out: the state is wrong from there on */
};

/*
 * The state before the first event of a device of a recording, both of which must live as long.
 *
 * Returns: false without host memory; there is nothing to end then
 * Cost:    O(log n) an event, and a byte of host memory for each
 */
bool course_init(struct course *course, const struct recording *recording,
                 const struct recording_device *device);

/* The state at the end alone: a course without events. */
bool course_init_at_end(struct course *course, const struct recording *recording,
                        const struct recording_device *device);

void course_fini(struct course *course);

/* Count events, whatever their times: has_times is false then.  Before the first step alone. */
void course_count_events(struct course *course);

/* Tell a watcher from now on; first of all ranges and blocks that are there, as if they came. */
void course_watch(struct course *course, const struct course_watcher *watcher);

/* The time up to which the state is as it is now: that of the next event, or now. */
uint64_t course_next_us(const struct course *course);

/* Play the next event.  Returns false behind the last one, and where host memory runs out. */
bool course_step(struct course *course);

/* Report blocks that were left out on standard error.  Returns whether there are any. */
bool course_report_dropped(const char *file, const struct course_dropped *dropped);

/* The block that holds an address, or NULL.  Good until the next step.  Cost: O(log n). */
const struct course_block *course_block_at(const struct course *course, uint64_t address);

#endif
