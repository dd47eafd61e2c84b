/* SPDX-License-Identifier: MIT */
/*
 * One batch of granules that are pending unmap (pending_unmap.h): its number, and the list in which it waits.
 *
 * Locking: the device memory lock.
 */
#ifndef XSEG_CORE_UNMAP_BATCH_H
#define XSEG_CORE_UNMAP_BATCH_H

#include "src/core/block/elastic.h"
#include "src/core/reclaim/pending_unmap.h"

struct xseg_unmap_batch {
    struct xseg_list link; /* among all */
    struct xseg_list
        turn; /* among those of its stream, those without an event, or those whose stream has passed */
    struct xseg_extent *extent;
    struct xseg_known_stream *stream;
    uint64_t
        stream_number; /* of the stream; once another one has the entry, the stream has passed */
    xseg_event event;  /* NULL: not recorded yet, or is_over */
    uint32_t number;
    uint32_t first, count; /* granules that it began with */
    uint32_t left;         /* of these, how many it still has */
    bool is_over;          /* the stream has passed */
    bool
        is_worked; /* its memory is being taken away; the device memory lock may be let go meanwhile */
    bool is_parked;  /* `turn` is in the list of its extent */
    uint64_t look;   /* the last one in which it was looked at */
    uint64_t let_go; /* xseg_unmap_batch_released() when memory was last taken away */
};

/* Give a batch a number; false without host memory. */
bool xseg_unmap_batch_add(struct xseg_pending_unmap *pending_unmaps,
                          struct xseg_unmap_batch *batch);

/* Append a batch to the list that its state requires: of its stream, of those without an event, or of those whose
 * stream has passed. */
void xseg_unmap_batch_enlist(struct xseg_pending_unmap *pending_unmaps,
                             struct xseg_unmap_batch *batch);

/* End a batch that has no granule left. */
void xseg_unmap_batch_end(struct xseg_pending_unmap *pending_unmaps,
                          struct xseg_unmap_batch *batch);

/* The number of references to memory of an extent that were released. */
uint64_t xseg_unmap_batch_released(const struct xseg_extent *extent);

/* Keep a batch aside, none of whose granules may be unmapped, until a reference is released.  References that were released
 * while observers ran are not missed: the batch is examined again. */
void xseg_unmap_batch_park(struct xseg_pending_unmap *pending_unmaps,
                           struct xseg_unmap_batch *batch);

/* Let the next poll examine a batch. */
void xseg_unmap_batch_wake(struct xseg_unmap_batch *batch);

/* Wake the batches of extents in which a pin or an export was released. */
void xseg_unmap_batch_wake_all(struct xseg_pending_unmap *pending_unmaps);

#endif
