/* SPDX-License-Identifier: MIT */
#include "src/core/cache/small/chunk_maps.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/align.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

#define HUGE_PAGE (2 * XSEG_MIB)

/* So many chunk maps are host memory of their own each. */
#define ALONE 16u

/* In front of its chunk maps; as long as a cache line, so that they are aligned to one. */
struct xseg_chunk_maps_batch {
    _Alignas(64) struct xseg_chunk_maps_batch *next;
};

#define IN_BATCH \
    ((HUGE_PAGE - sizeof(struct xseg_chunk_maps_batch)) / sizeof(struct xseg_chunk_map))

_Static_assert(sizeof(struct xseg_chunk_map) / 64 % 2 == 1,
               "chunk maps an even number of cache lines apart would share a few sets of a cache");

void xseg_chunk_maps_fini(struct xseg_chunk_maps *chunks)
{
    struct xseg_chunk_maps_batch *next;

    for (struct xseg_chunk_maps_batch *batch = chunks->batches; batch != NULL; batch = next) {
        next = batch->next;
        free(batch);
    }
    memset(chunks, 0, sizeof(*chunks));
}

static bool make_batch(struct xseg_chunk_maps *chunks)
{
    const bool is_guarded = chunks->made < ALONE;
    const size_t bytes = sizeof(struct xseg_chunk_maps_batch) + sizeof(struct xseg_chunk_map);
    struct xseg_chunk_maps_batch *batch =
        is_guarded ? aligned_alloc(64, bytes) : aligned_alloc(HUGE_PAGE, HUGE_PAGE);

    if (batch == NULL)
        return false;
    batch->next = chunks->batches;
    chunks->batches = batch;
    chunks->fresh = (struct xseg_chunk_map *)(void *)(batch + 1);
    chunks->left = is_guarded ? 1 : (uint32_t)IN_BATCH;
    return true;
}

/* One that was never used. */
static struct xseg_chunk_map *take_fresh(struct xseg_chunk_maps *chunks)
{
    if (chunks->left == 0 && !make_batch(chunks))
        return NULL;
    struct xseg_chunk_map *chunk = chunks->fresh++;
    memset(chunk, 0, sizeof(*chunk));
    /* All of it is used from here on: only now a huge page takes no more than what is there. */
    if (--chunks->left == 0 && chunks->made >= ALONE &&
        madvise(chunks->batches, HUGE_PAGE, MADV_HUGEPAGE) == 0)
        (void)madvise(chunks->batches, HUGE_PAGE, MADV_COLLAPSE); /* or the kernel does it, later */
    chunks->made++;
    atomic_fetch_add_explicit(&chunks->host_bytes, sizeof(*chunk), memory_order_relaxed);
    return chunk;
}

struct xseg_chunk_map *xseg_chunk_maps_take(struct xseg_chunk_maps *chunks,
                                            struct xseg_extent *extent, uint32_t number)
{
    struct xseg_chunk_map *chunk = chunks->spare;

    if (chunk != NULL) {
        chunks->spare = (struct xseg_chunk_map *)(void *)chunk->extent;
        memset(chunk, 0, sizeof(*chunk));
    } else {
        chunk = take_fresh(chunks);
        if (chunk == NULL)
            return NULL;
    }
    chunk->extent = extent;
    chunk->number = number;
    return chunk;
}

void xseg_chunk_maps_put(struct xseg_chunk_maps *chunks, struct xseg_chunk_map *chunk)
{
    chunk->extent = (struct xseg_extent *)(void *)chunks->spare;
    chunks->spare = chunk;
}
