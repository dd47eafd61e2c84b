/* SPDX-License-Identifier: MIT */
/*
 * Chunk maps: host memory for the chunk maps of an arena (cells.h), made in batches and used again.
 *
 * A batch fills a huge page of the host, and asks for one when its last chunk map is taken, so that none is
 * larger than what lies in it: at 10^6 live blocks a free touches five places in 26 MB of chunk maps, and
 * with pages of 4 KiB each of them misses the translation cache as well, which took a third of its
 * time.  The first few chunk maps of an arena are no batch.
 *
 * Locking: GROWTH; what is put back is so under ARENA, too.
 */
#ifndef XSEG_CORE_CHUNK_MAPS_H
#define XSEG_CORE_CHUNK_MAPS_H

#include <stdatomic.h>

#include "src/core/cache/small/cells.h"

struct xseg_chunk_maps_batch;

struct xseg_chunk_maps {
    struct xseg_chunk_map *spare; /* chained through `extent` */
    struct xseg_chunk_map *fresh; /* of the latest batch, the first that was never used */
    struct xseg_chunk_maps_batch *batches;
    uint32_t left; /* from `fresh` on */
    uint32_t made;
    atomic_size_t host_bytes; /* may be read without the lock */
};

/* Every chunk map goes with its batch. */
void xseg_chunk_maps_fini(struct xseg_chunk_maps *chunks);

/* An empty chunk map of an extent, which is not in its table yet; NULL without host memory. */
struct xseg_chunk_map *xseg_chunk_maps_take(struct xseg_chunk_maps *chunks,
                                            struct xseg_extent *extent, uint32_t number);

/* A chunk map is not used any more. */
void xseg_chunk_maps_put(struct xseg_chunk_maps *chunks, struct xseg_chunk_map *chunk);

#endif
