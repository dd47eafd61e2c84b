/* SPDX-License-Identifier: MIT */
/*
 * A shelf: the cached blocks of one arena, searchable best fit: smallest size first, and among
 * equal sizes the lowest address.
 *
 * Sizes below 1 MiB have a bin each; above, 256 bins an octave, so that a bin holds sizes within
 * 0.4 % of each other.  A bitmap finds the next bin that has anything; a bin is a small tree.
 *
 * Invariants:
 *   SHELF-1  a bin's bit is set exactly when the bin has a block.
 *   SHELF-2  every block lies in the bin of its size and is cached.
 *
 * Locking: the arena's.
 */
#ifndef XSEG_CORE_SHELF_H
#define XSEG_CORE_SHELF_H

#include "src/base/bits.h"
#include "src/core/block.h"

#define XSEG_SHELF_EXACT   2048u /* bins of 512 bytes below 1 MiB */
#define XSEG_SHELF_OCTAVES 30u   /* 1 MiB up to 1 PiB */
#define XSEG_SHELF_BINS    (XSEG_SHELF_EXACT + XSEG_SHELF_OCTAVES * 256u)
#define XSEG_SHELF_WORDS   ((XSEG_SHELF_BINS + 63) / 64)

struct xseg_shelf {
    struct xseg_bits filled;
    uint64_t storage[XSEG_SHELF_WORDS + (XSEG_SHELF_WORDS + 63) / 64];
    struct xseg_block *bin[XSEG_SHELF_BINS];
};

/* The shelf must be zeroed. */
void xseg_shelf_init(struct xseg_shelf *shelf);

/* The block must be cached and on no shelf. */
void xseg_shelf_insert(struct xseg_shelf *shelf, struct xseg_block *block);

/* The block must be on this shelf. */
void xseg_shelf_remove(struct xseg_shelf *shelf, struct xseg_block *block);

/* The best fit for `bytes`, or NULL.  It stays on the shelf. */
struct xseg_block *xseg_shelf_find(const struct xseg_shelf *shelf, uint64_t bytes);

/* The first block that is not below (bytes, base), or NULL. */
struct xseg_block *xseg_shelf_from(const struct xseg_shelf *shelf, uint64_t bytes, uint64_t base);

/* The block that comes after this one by size and address, or NULL. */
struct xseg_block *xseg_shelf_next(const struct xseg_shelf *shelf, const struct xseg_block *block);

bool xseg_shelf_audit(const struct xseg_shelf *shelf, struct xseg_finding *finding);

#endif
