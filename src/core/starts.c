/* SPDX-License-Identifier: MIT */
#include "src/core/starts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((uint64_t)XSEG_STARTS_SLOTS << XSEG_STARTS_SHIFT)

/* How many slots a chunk has. */
static uint32_t slots_of(const struct xseg_starts *starts, uint64_t number)
{
    const uint32_t left = starts->slots - (uint32_t)number * XSEG_STARTS_SLOTS;

    return left < XSEG_STARTS_SLOTS ? left : XSEG_STARTS_SLOTS;
}

bool xseg_starts_init(struct xseg_starts *starts, uint64_t bytes)
{
    memset(starts, 0, sizeof(*starts));
    if (bytes > XSEG_STARTS_MAX)
        return false;
    starts->slots =
        (uint32_t)((bytes + ((uint64_t)1 << XSEG_STARTS_SHIFT) - 1) >> XSEG_STARTS_SHIFT);
    starts->chunks = (uint32_t)((bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
    if (starts->chunks == 1) {
        starts->chunk = &starts->only;
        return true;
    }
    starts->chunk = calloc(starts->chunks, sizeof(*starts->chunk));
    atomic_init(&starts->host_bytes, starts->chunks * sizeof(*starts->chunk));
    return starts->chunk != NULL;
}

void xseg_starts_fini(struct xseg_starts *starts)
{
    for (uint32_t i = 0; i < starts->chunks; i++)
        free(atomic_load(&starts->chunk[i]));
    if (starts->chunk != &starts->only)
        free(starts->chunk);
    memset(starts, 0, sizeof(*starts));
}

bool xseg_starts_cover(struct xseg_starts *starts, uint64_t begin, uint64_t end)
{
    for (uint64_t number = begin / CHUNK_BYTES; number <= (end - 1) / CHUNK_BYTES; number++) {
        if (atomic_load_explicit(&starts->chunk[number], memory_order_relaxed) != NULL)
            continue;
        const size_t bytes = sizeof(struct xseg_starts_chunk) +
                             slots_of(starts, number) * sizeof(struct xseg_block *);
        struct xseg_starts_chunk *chunk = calloc(1, bytes);
        if (chunk == NULL)
            return false;
        atomic_fetch_add_explicit(&starts->host_bytes, bytes, memory_order_relaxed);
        atomic_store_explicit(&starts->chunk[number], chunk, memory_order_release);
    }
    return true;
}

/* The last start of a chunk in the slots below `end`, or NULL. */
static struct xseg_block *last_below(const struct xseg_starts_chunk *chunk, uint32_t end)
{
    while (chunk != NULL && chunk->count > 0 && end-- > 0)
        if (chunk->slot[end] != NULL)
            return chunk->slot[end];
    return NULL;
}

struct xseg_block *xseg_starts_before(const struct xseg_starts *starts, uint64_t offset)
{
    uint32_t end = (uint32_t)(offset >> XSEG_STARTS_SHIFT) % XSEG_STARTS_SLOTS + 1;

    for (uint64_t number = offset / CHUNK_BYTES + 1; number-- > 0; end = XSEG_STARTS_SLOTS) {
        struct xseg_block *block =
            last_below(atomic_load_explicit(&starts->chunk[number], memory_order_acquire), end);

        if (block != NULL)
            return block;
    }
    return NULL;
}

bool xseg_starts_audit(const struct xseg_starts *starts, struct xseg_finding *finding)
{
    for (uint32_t number = 0; number < starts->chunks; number++) {
        const struct xseg_starts_chunk *chunk = atomic_load(&starts->chunk[number]);
        uint32_t count = 0;

        for (uint32_t slot = 0; chunk != NULL && slot < slots_of(starts, number); slot++)
            count += chunk->slot[slot] != NULL;
        XSEG_HOLDS(finding, "START-1", chunk == NULL || chunk->count == count,
                   "chunk %" PRIu32 " has %" PRIu32 " starts, and counts %" PRIu32, number, count,
                   chunk == NULL ? 0 : chunk->count);
    }
    return true;
}
