/* SPDX-License-Identifier: MIT */
#include "src/core/block/chunk_maps.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/align.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

#define HUGE_PAGE (2 * XSEG_MIB)

/* How many chunk maps of an arena are allocated one by one before there are batches. */
#define SINGLE 16u

/* The head of a batch, in front of its chunk maps; one cache line, so that these are aligned to cache lines. */
struct xseg_chunk_maps_batch {
    _Alignas(64) struct xseg_chunk_maps_batch *next;
};

#define IN_BATCH \
    ((HUGE_PAGE - sizeof(struct xseg_chunk_maps_batch)) / sizeof(struct xseg_chunk_map))

_Static_assert(sizeof(struct xseg_chunk_maps_batch) == 64, "chunk maps begin with a cache line");
_Static_assert(IN_BATCH > 1, "a batch has several chunk maps");
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
    const bool is_single = chunks->made < SINGLE;
    const size_t bytes = sizeof(struct xseg_chunk_maps_batch) + sizeof(struct xseg_chunk_map);
    struct xseg_chunk_maps_batch *batch =
        is_single ? aligned_alloc(64, bytes) : aligned_alloc(HUGE_PAGE, HUGE_PAGE);

    XSEG_ASSERT(chunks->left == 0);
    if (batch == NULL)
        return false;
    batch->next = chunks->batches;
    chunks->batches = batch;
    chunks->fresh = (struct xseg_chunk_map *)(void *)(batch + 1);
    chunks->left = is_single ? 1 : (uint32_t)IN_BATCH;
    return true;
}

/* A chunk map that was never used; NULL without host memory. */
static struct xseg_chunk_map *take_fresh(struct xseg_chunk_maps *chunks)
{
    if (chunks->left == 0 && !make_batch(chunks))
        return NULL;
    struct xseg_chunk_map *chunk = chunks->fresh++;
    XSEG_ASSERT(chunks->left > 0 && (uintptr_t)chunk % 64 == 0);
    memset(chunk, 0, sizeof(*chunk));
    /* With its last chunk map taken, the whole batch is in use, so a huge page takes no more host memory. */
    if (--chunks->left == 0 && chunks->made >= SINGLE &&
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

    XSEG_ASSERT(chunk == NULL || chunks->made > 0);
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
    XSEG_ASSERT(chunk != NULL && chunk != chunks->spare && chunks->made > 0);
    chunk->extent = (struct xseg_extent *)(void *)chunks->spare;
    chunks->spare = chunk;
}
