/* SPDX-License-Identifier: MIT */
/*
 * Streams of a range: those for which granules were committed.  Work of theirs may use the memory until it is
 * decommitted, so a pause asks about them.
 *
 * A stream whose entry belongs to another one by now has passed, and is dropped.
 *
 * Locking: the device memory lock.
 */
#ifndef XSEG_CORE_RANGE_STREAMS_H
#define XSEG_CORE_RANGE_STREAMS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "src/core/stream/streams.h"

struct xseg_range_stream {
    struct xseg_known_stream *stream;
    uint64_t number;
};

struct xseg_range_streams {
    struct xseg_range_stream *kept; /* [capacity] */
    size_t count;
    atomic_size_t capacity; /* may be read without the device memory lock */
};

/* Note a stream for which granules are committed.  False without host memory. */
bool xseg_range_streams_add(struct xseg_range_streams *streams, struct xseg_known_stream *stream);

/* Have the driver asked about all of them (xseg_known_stream.is_asked). */
void xseg_range_streams_query(const struct xseg_range_streams *streams);

void xseg_range_streams_fini(struct xseg_range_streams *streams);

#endif
