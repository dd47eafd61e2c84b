/* SPDX-License-Identifier: MIT */
/*
 * Fragmentation: cached memory that cannot be released, because a block is allocated on its page, attributed to the
 * sites of the blocks.
 *
 * An observer of a replay model adds up the fragmented memory of each site over time.  The caller defines the site of
 * a block, such as a line of code or a label.
 *
 *   page          of an expandable segment (replay_model.h), or a whole classic segment.
 *   fragmented    cached bytes of a page with allocated blocks, divided equally among these blocks, large or small.
 *   near_pending  cached bytes of a page without allocated blocks and with pending blocks.
 *   idle          all other cached bytes.
 *
 * Sums are integers of byte-microseconds, so that they add up exactly:
 *
 * FRAGMENTATION-1  reserved - allocated = pending + near_pending + idle + fragmented, and fragmented is the sum of
 *                  all sites.
 *
 * The remainder of an equal division, less than a byte-microsecond per block, is attributed to the block that leaves
 * the page last.
 *
 * Locking: none; one thread uses it.
 */
#ifndef TOOLS_FRAGMENTATION_H
#define TOOLS_FRAGMENTATION_H

#include "src/tools/replay_model/replay_model.h"

/* The rows of a report that belong to no site. */
#define FRAGMENTATION_PENDING_ROW "pending: freed, but another stream may still use it"
#define FRAGMENTATION_IDLE_ROW    "idle: whole pages without a block"
#define FRAGMENTATION_TOTAL_ROW   "total of fragmented, pending and idle bytes"

/* Bytes times microseconds. */
__extension__ typedef unsigned __int128 fragmentation_sum;

struct fragmentation_site {
    fragmentation_sum fragmented, allocated;
    uint64_t allocated_bytes; /* now */
    uint64_t peak_bytes;      /* allocated at the peak; valid after fragmentation_finish() */
    uint64_t blocks;          /* number of allocations */
    uint64_t lived_us;        /* sum of their lifetimes */
    uint64_t peak_version;    /* of peak_bytes */
};

/* Get the index of a block's site, less than site_count. */
typedef uint32_t fragmentation_site_of(const void *context, const struct replay_model_block *block);

struct fragmentation {
    struct replay_model *model;
    struct fragmentation_site *sites; /* [site_count] */
    size_t site_count;
    fragmentation_site_of *site_of;
    const void *context;
    fragmentation_sum reserved, allocated, pending, near_pending, fragmented;
    fragmentation_sum idle; /* after fragmentation_finish() */
    uint64_t since_us, began_us;
    uint64_t duration_us; /* after fragmentation_play(); 1 if is_instant */
    bool is_instant;      /* no time passed: the sums are bytes of the state at the end */
    struct {
        uint64_t reserved, allocated, time_us, version;
        size_t event; /* number of events before it */
    } peak; /* the maximum of reserved; of several such times, the time with the most allocated bytes */
    struct ordered pages; /* by half of the start address; classic segments after all others */
    struct fragmentation_page *page;
    uint32_t page_capacity;
    struct fragmentation_block *block; /* by slot of the model */
    uint32_t block_capacity;
    bool out_of_memory; /* host memory: the sums are wrong */
};

/*
 * Observe a model from its current state.
 *
 * Returns: false if out of host memory; there is nothing to free then
 */
bool fragmentation_init(struct fragmentation *fragmentation, struct replay_model *model,
                        size_t site_count, fragmentation_site_of *site_of, const void *context);
void fragmentation_fini(struct fragmentation *fragmentation);

/* Replay the next event.  Returns as replay_model_step().  Cost: O(log n). */
bool fragmentation_step(struct fragmentation *fragmentation);

/* Account for all blocks until a time, which is not before the last event.  No step may follow. */
void fragmentation_finish(struct fragmentation *fragmentation, uint64_t now_us);

/* Observe a model to its end, and finish.  Returns false if out of host memory; only the model must be freed then. */
bool fragmentation_play(struct fragmentation *fragmentation, struct replay_model *model,
                        size_t site_count, fragmentation_site_of *site_of, const void *context);

#endif
