/* SPDX-License-Identifier: MIT */
/*
 * The host memory of an arena's chunk maps (cells.h), made in batches and reused.
 *
 * A batch fills a huge page of the host.  It asks the kernel for the huge page when its last chunk map is taken, so
 * that host memory is never used for chunk maps that are not.  Huge pages matter at 10^6 live blocks, where a free
 * touches five places in 26 MB of chunk maps.  With pages of 4 KiB each place misses the translation cache as well,
 * which took a third of the free's time.  The first few chunk maps of an arena are allocated one by one.
 *
 * Locking: the device memory lock; a chunk map is put back under ARENA, too.
 */
#ifndef XSEG_CORE_CHUNK_MAPS_H
#define XSEG_CORE_CHUNK_MAPS_H

#include <stdatomic.h>

#include "src/core/block/cells.h"

struct xseg_chunk_maps_batch;

struct xseg_chunk_maps {
    struct xseg_chunk_map *spare; /* chained through `extent` */
    struct xseg_chunk_map *fresh; /* the first chunk map of the latest batch that was never taken */
    struct xseg_chunk_maps_batch *batches;
    uint32_t left; /* from `fresh` on */
    uint32_t made;
    atomic_size_t host_bytes; /* may be read without the lock */
};

/* Free all chunk maps. */
void xseg_chunk_maps_fini(struct xseg_chunk_maps *chunks);

/* An empty chunk map of an extent, which is not in its table yet; NULL without host memory. */
struct xseg_chunk_map *xseg_chunk_maps_take(struct xseg_chunk_maps *chunks,
                                            struct xseg_extent *extent, uint32_t number);

/* Put back a chunk map that is in no table and not in the bins. */
void xseg_chunk_maps_put(struct xseg_chunk_maps *chunks, struct xseg_chunk_map *chunk);

#endif
