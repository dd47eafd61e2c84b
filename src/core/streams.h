/* SPDX-License-Identifier: MIT */
/*
 * The streams that a device has met.
 *
 * A stream is known by its handle, which leads to its entry through a table that is read without a
 * lock, so that a hit asks the driver nothing.  So a stream must outlive its memory: a handle that
 * the driver gives out again is taken for the old stream.  The legacy
 * default stream has two handles, NULL and 1.  The handle of the per-thread default stream, 2, means
 * another stream in each thread, so the driver is asked for its number each time.
 *
 * Locking: insertion under TABLE; finding needs none.  Entries stay until the device closes.
 */
#ifndef XSEG_CORE_STREAMS_H
#define XSEG_CORE_STREAMS_H

#include <stdatomic.h>

#include "src/base/list.h"
#include "src/base/lock.h"
#include "vmm/driver.h"

#define XSEG_STREAMS_BUCKETS 64u

struct xseg_arena;

struct xseg_known_stream {
    _Atomic(struct xseg_known_stream *) next; /* in its bucket */
    xseg_stream handle;
    uint64_t number; /* never used for another stream */
    /* The default pool's arenas: small, large.  Made when first needed. */
    _Atomic(struct xseg_arena *) arena[2];
    /* Freed blocks that wait for it, oldest first, and its place among the streams that are waited
     * for; guarded by PENDING. */
    struct xseg_list uses, waiting;
};

struct xseg_streams {
    struct xseg_context *context;
    struct xseg_lock *table_lock; /* TABLE */
    _Atomic(struct xseg_known_stream *) bucket[XSEG_STREAMS_BUCKETS];
};

void xseg_streams_init(struct xseg_streams *streams, struct xseg_context *context,
                       struct xseg_lock *table_lock);
void xseg_streams_fini(struct xseg_streams *streams);

/*
 * The entry of a handle, made if the device meets it for the first time.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER (no such stream), XSEG_ERR_HOST_MEMORY
 * Cost:    none for a stream that is known; else cuStreamGetId.  Always cuStreamGetId for the
 *          per-thread default stream.
 */
xseg_status xseg_streams_get(struct xseg_streams *streams, xseg_stream handle,
                             struct xseg_known_stream **out);

/*
 * Whether the calling thread can queue work on a stream that outlives the call: it can name the
 * stream, and the stream is not being captured.
 */
bool xseg_streams_is_open(struct xseg_context *context, const struct xseg_known_stream *stream);

/*
 * Wait for an open stream, without spoiling the capture of another one.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_streams_wait(struct xseg_context *context, const struct xseg_known_stream *stream);

/* Whether the calling thread can name this stream: others' per-thread streams it cannot. */
xseg_status xseg_streams_can_name(struct xseg_context *context,
                                  const struct xseg_known_stream *stream, bool *can);

#endif
