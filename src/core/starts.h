/* SPDX-License-Identifier: MIT */
/*
 * Starts: where the live blocks of one extent start, and which they are.
 *
 * The extent is cut into slots, each of which holds the record index of the one live or pending
 * block that starts in it.  A slot is 1 MiB, since large blocks are larger than that, and so no two
 * start in the same slot; a block that is alone in its segment may be smaller.  Slots come in chunks of
 * 4096, made when memory is first mapped there; a bitmap per chunk, and one over the chunks, find the last start
 * before any address in a few steps.
 *
 * Invariants:
 *   START-1  a slot's bit is set exactly when the slot holds an index.
 *   START-2  a chunk's bit is set exactly when the chunk has a start.
 *
 * Locking: the arena's, except for xseg_starts_cover(), which GROWTH covers: a chunk is complete
 * before it can be seen.
 */
#ifndef XSEG_CORE_STARTS_H
#define XSEG_CORE_STARTS_H

#include <stdatomic.h>

#include "src/base/bits.h"
#include "src/base/check.h"

#define XSEG_STARTS_SLOTS 4096u /* in a chunk */

/* The longest extent that the bitmap over the chunks can hold. */
#define XSEG_STARTS_SHIFT 20u
#define XSEG_STARTS_MAX   ((uint64_t)XSEG_BITS_MAX * XSEG_STARTS_SLOTS << XSEG_STARTS_SHIFT)

struct xseg_starts_chunk;

struct xseg_starts {
    uint32_t slots;  /* in all */
    uint32_t chunks; /* in all */
    _Atomic(struct xseg_starts_chunk *) *chunk;
    struct xseg_bits filled; /* chunks that have a start */
    atomic_size_t host_bytes;
    void *memory; /* behind chunk and filled */
};

/* Returns false without host memory, or if `bytes` needs more than XSEG_BITS_MAX chunks. */
bool xseg_starts_init(struct xseg_starts *starts, uint64_t bytes);
void xseg_starts_fini(struct xseg_starts *starts);

/* Make the chunks of offsets [begin, end).  Returns false without host memory. */
bool xseg_starts_cover(struct xseg_starts *starts, uint64_t begin, uint64_t end);

/* The block with this index starts at an offset, where nothing else starts. */
void xseg_starts_add(struct xseg_starts *starts, uint64_t offset, uint32_t index);
void xseg_starts_remove(struct xseg_starts *starts, uint64_t offset);

/* The index in the slot of an offset, 0 if none: the block may start elsewhere in the slot. */
uint32_t xseg_starts_at(const struct xseg_starts *starts, uint64_t offset);

/* The index of the last start in the slots up to that of an offset, 0 if none. */
uint32_t xseg_starts_before(const struct xseg_starts *starts, uint64_t offset);

bool xseg_starts_audit(const struct xseg_starts *starts, struct xseg_finding *finding);

#endif
