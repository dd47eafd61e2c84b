/* SPDX-License-Identifier: MIT */
/*
 * Elastic ranges: reserved virtual addresses whose pages the user commits and decommits.
 *
 * A range is an elastic extent (block.h) in the arena that its pool has for large blocks on the
 * default stream.  One page is one granule long.  The public header xseg/range.h defines the terms
 * and the state of a granule that each call requires:
 *
 *                   commit                    decommit
 *     empty ------------------> allocated -----------------> pending unmap
 *       ^      maps a page          ^      records an event        |  |
 *       |                           +----------- recommit ---------+  |
 *       +----------- poll: the event is complete, no reference -------+
 *
 * A call that releases the device memory lock while it works on granules claims them first.  A
 * claimed granule is rejected by every other call with XSEG_ERR_BUSY, so the call can settle its
 * granules without a second check.
 *
 * The user has a handle, struct xseg_range.  All other data is in struct xseg_range_state, which
 * exists until the range is released.  The handle stays until the device closes, so a call with a
 * released handle fails instead of reading freed memory.
 *
 * An aliased page is mapped by several granules, of one range or of several ranges of a pool
 * (vmm/alias.h).  The pool is charged for the page until its last mapping is removed.  The range
 * that committed the page is charged for it as long as that range maps it.  The page is in use
 * while one of its granules is allocated; after that it is pending unmap.
 *
 * Prepared pages are idle pages in the page cache that only their range can map.  A quota reserves
 * bytes of the device's limits for the range without creating pages.
 *
 * A pause must query every stream whose work may use memory of a range, so a range lists the
 * streams for which granules were committed.  An entry is stale once the ID of the known stream
 * has changed: the stream with the former ID has been synchronized.
 *
 * Guarantees:
 *   - A call succeeds for all granules that it names, or changes nothing.
 *   - A page is unmapped only after the stream of its decommit has reached the event, and never
 *     while the granule is held, pinned or exported.
 *   - A commit whose granules are all pending unmap on its own stream makes no driver call.
 *   - A call is O(granules that it names); it does not visit the rest of the range.
 *
 * Locking: the device memory lock guards all data of ranges.  A change of `use` requires the
 * arena lock as well, so a walk that holds either lock sees consistent states.
 */
#ifndef XSEG_CORE_RANGE_H
#define XSEG_CORE_RANGE_H

#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "src/core/stream/streams.h"
#include "xseg/range.h"

struct xseg_range {
    struct xseg_device *device;     /* constant */
    struct xseg_range *next;        /* the handle that was created before this one */
    struct xseg_range_state *state; /* NULL: released */
};

/* A stream for which granules were committed. */
struct xseg_range_stream {
    struct xseg_known_stream *stream;
    uint64_t id; /* the ID of the stream at the time of the commit */
};

struct xseg_range_state {
    struct xseg_elastic elastic; /* of the extent */
    struct xseg_extent *extent;
    struct xseg_pool *pool; /* retained */
    struct xseg_range *range;
    struct xseg_list link; /* in the list of the device */
    uint64_t limit;        /* maximum of `elastic.charged` in bytes; UINT64_MAX: unlimited */
    uint64_t recommits;    /* granules that were recommitted */
    struct xseg_range_stream *stream; /* [stream_capacity] */
    size_t stream_count;
    atomic_size_t stream_capacity; /* may be read without the device memory lock */
};

/* The ranges of a device. */
struct xseg_ranges {
    struct xseg_list states; /* in the order of reservation */
    struct xseg_range *handles;
};

void xseg_ranges_init(struct xseg_ranges *ranges);

/* Free the handles, and the states that a lost device still has. */
void xseg_ranges_fini(struct xseg_ranges *ranges);

/* --- Implementations of the public functions xseg_range_*(); no lock is held. --- */

/* The caller retains the pool; on success the range owns this reference. */
xseg_status xseg_ranges_reserve(struct xseg_pool *pool, uint64_t bytes,
                                const struct xseg_range_options *options, struct xseg_range **out);
xseg_status xseg_ranges_release(struct xseg_range *range);
xseg_status xseg_ranges_query(struct xseg_range *range, struct xseg_range_info *out);

/* An out-of-memory failure of a commit, from which the caller writes the report. */
struct xseg_range_oom {
    struct xseg_arena *arena; /* NULL: the commit did not run out of memory */
    struct xseg_alloc_params params;
    struct xseg_pool *retained; /* to be released after the report, or NULL */
};

xseg_status xseg_ranges_commit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                               xseg_stream stream, struct xseg_range_oom *oom);
xseg_status xseg_ranges_prepare(struct xseg_range *range, uint64_t bytes);
xseg_status xseg_ranges_set_quota(struct xseg_range *range, uint64_t bytes);
xseg_status xseg_ranges_decommit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                 xseg_stream stream);
xseg_status xseg_ranges_hold(struct xseg_range *range, uint64_t offset, uint64_t bytes);
xseg_status xseg_ranges_unhold(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                               xseg_stream stream);
xseg_status xseg_ranges_alias(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                              struct xseg_range *from, uint64_t from_offset);

/* --- All ranges of a device. --- */

/* Bytes of granules that are pending unmap and held.  The device memory lock is held. */
uint64_t xseg_ranges_held_bytes(struct xseg_device *device);

/* Destroy the ranges of a device that closes; they have no memory, unless the device is lost.  The
 * device memory lock is held. */
void xseg_ranges_destroy_all(struct xseg_device *device);

/* Host bytes of the range of an elastic extent.  The arena lock is held. */
uint64_t xseg_ranges_host_bytes(const struct xseg_extent *extent);

/* Mark the streams for which granules of a range were committed (is_queried of struct
 * xseg_known_stream).  The device memory lock is held. */
void xseg_range_mark_streams(const struct xseg_range_state *state);

/* Add a stream for which granules are committed.  Returns false on host allocation failure.  The
 * device memory lock is held. */
bool xseg_range_add_stream(struct xseg_range_state *state, struct xseg_known_stream *stream);

/* --- Runs of granules.  The device memory lock is held. --- */

struct xseg_range_run {
    struct xseg_range_state *state;
    struct xseg_extent *extent;
    uint32_t first, count;
};

/* Fail with XSEG_ERR_ARGUMENT if a range has been released. */
xseg_status xseg_range_check_handle(const struct xseg_range *range);

/* Get the granules of an offset and a size.  Fails with XSEG_ERR_ARGUMENT if these are not whole
 * granules of the range, or if the range has been released. */
xseg_status xseg_range_find_run(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                struct xseg_range_run *out);

/* Fail because of the state of a granule.  advice: the state that the call requires */
xseg_status xseg_range_fail_use(const struct xseg_range_run *run, uint32_t granule,
                                const char *advice);

/* Whether all granules of a run are in one state.  first: set to the first granule that is not */
bool xseg_range_all_have_use(const struct xseg_range_run *run, enum xseg_elastic_use use,
                             uint32_t *first);

/* Fail with XSEG_ERR_BUSY if a granule of a run is claimed. */
xseg_status xseg_range_check_claims(const struct xseg_range_run *run);

/* Recommit granules that are pending unmap, or that were claimed in that state, and whose pages
 * have no other mapping.  The caller sets their state. */
void xseg_range_recommit_run(const struct xseg_range_run *run);

/* Set allocated granules that got a batch from xseg_pending_unmap_begin() to pending unmap. */
void xseg_range_settle_decommit(const struct xseg_range_run *run);

static inline uint64_t xseg_range_bytes(const struct xseg_range_run *run)
{
    return run->count * run->extent->segment.granule_bytes;
}

static inline uint64_t xseg_range_base(const struct xseg_range_run *run)
{
    return run->extent->segment.base + run->first * run->extent->segment.granule_bytes;
}

#endif
