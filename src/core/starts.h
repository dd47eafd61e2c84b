/* SPDX-License-Identifier: MIT */
/*
 * Starts: where the live blocks of one extent start, and which they are.
 *
 * The extent is cut into slots, each of which leads to the one live or pending block that starts in
 * it.  A slot is 1 MiB, since large blocks are larger than that, and so no two start in the same slot;
 * a block that is alone in its segment may be smaller.  Slots come in chunks of 4096, the last one with
 * as many as are left, made when memory is first mapped there: a classic segment of 20 MiB has one of 20.
 * A hit reads or writes one slot; who looks for the last start before an address reads backwards, chunk by
 * chunk where they are empty.
 *
 * Invariants:
 *   START-1  a chunk counts its starts.
 *
 * Locking: the arena's, except for xseg_starts_cover(), which GROWTH covers: a chunk is complete
 * before it can be seen.
 */
#ifndef XSEG_CORE_STARTS_H
#define XSEG_CORE_STARTS_H

#include <stdatomic.h>

#include "src/base/align.h"
#include "src/base/check.h"

#define XSEG_STARTS_SLOTS 4096u /* in a chunk, but for the last */
#define XSEG_STARTS_SHIFT 20u

/* The longest extent: a table of 2^16 chunks, beyond all that a device addresses. */
#define XSEG_STARTS_MAX ((uint64_t)65536 * XSEG_STARTS_SLOTS << XSEG_STARTS_SHIFT)

struct xseg_block;

struct xseg_starts_chunk {
    uint32_t count; /* slots that lead to a block */
    struct xseg_block *slot[];
};

/* Not to be moved. */
struct xseg_starts {
    uint32_t slots;  /* in all */
    uint32_t chunks; /* that hold them */
    _Atomic(struct xseg_starts_chunk *) *chunk;
    _Atomic(struct xseg_starts_chunk *) only; /* where `chunk` points if there is one */
    atomic_size_t host_bytes;
};

/* Returns false without host memory, or for more than XSEG_STARTS_MAX bytes. */
bool xseg_starts_init(struct xseg_starts *starts, uint64_t bytes);
void xseg_starts_fini(struct xseg_starts *starts);

/* Make the chunks of offsets [begin, end).  Returns false without host memory. */
bool xseg_starts_cover(struct xseg_starts *starts, uint64_t begin, uint64_t end);

static inline struct xseg_starts_chunk *xseg_starts_chunk_at(const struct xseg_starts *starts,
                                                             uint64_t offset)
{
    return atomic_load_explicit(&starts->chunk[(offset >> XSEG_STARTS_SHIFT) / XSEG_STARTS_SLOTS],
                                memory_order_acquire);
}

/* A block starts at an offset, where nothing else starts. */
static inline void xseg_starts_add(struct xseg_starts *starts, uint64_t offset,
                                   struct xseg_block *block)
{
    struct xseg_starts_chunk *chunk = xseg_starts_chunk_at(starts, offset);

    XSEG_ASSERT(chunk->slot[(offset >> XSEG_STARTS_SHIFT) % XSEG_STARTS_SLOTS] == NULL);
    chunk->count++;
    chunk->slot[(offset >> XSEG_STARTS_SHIFT) % XSEG_STARTS_SLOTS] = block;
}

/* A block that starts at an offset does so no longer.  In the chunk of that: */
static inline void xseg_starts_remove_in(struct xseg_starts_chunk *chunk, uint64_t offset)
{
    chunk->count--;
    chunk->slot[(offset >> XSEG_STARTS_SHIFT) % XSEG_STARTS_SLOTS] = NULL;
}

static inline void xseg_starts_remove(struct xseg_starts *starts, uint64_t offset)
{
    xseg_starts_remove_in(xseg_starts_chunk_at(starts, offset), offset);
}

/* What the slot of an offset leads to, or NULL: the block may start elsewhere in the slot.  In the chunk of
 * that, which may be missing: */
static inline struct xseg_block *xseg_starts_in(const struct xseg_starts_chunk *chunk,
                                                uint64_t offset)
{
    return chunk == NULL ? NULL : chunk->slot[(offset >> XSEG_STARTS_SHIFT) % XSEG_STARTS_SLOTS];
}

static inline struct xseg_block *xseg_starts_at(const struct xseg_starts *starts, uint64_t offset)
{
    return xseg_starts_in(xseg_starts_chunk_at(starts, offset), offset);
}

/* The last start in the slots up to that of an offset, or NULL. */
struct xseg_block *xseg_starts_before(const struct xseg_starts *starts, uint64_t offset);

bool xseg_starts_audit(const struct xseg_starts *starts, struct xseg_finding *finding);

#endif
