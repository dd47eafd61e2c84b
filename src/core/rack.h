/* SPDX-License-Identifier: MIT */
/*
 * A rack: the cached cells of one small arena that are smaller than XSEG_CELLS_WIDE, searchable best
 * fit: smallest size first, and among equal sizes the lowest address.
 *
 * Every size in quanta has a bin, and no bin has a node: a bit in `sizes` says that there is such a
 * cell, two levels of bits lead to the first sheet that has one, the sheet's bin to the word, and the
 * bits of that word to the cell.  So a search, an insertion and a removal touch a handful of words,
 * whatever the number of cells.
 *
 * Sheets have a *rank*: their place in the order of addresses.  One that ends leaves its rank empty;
 * one that comes in between moves the others, which computes all bits anew.
 *
 * Invariants; xseg_rack_audit() checks them:
 *   RACK-1  ranks rise with the addresses of their sheets.
 *   RACK-2  a bit is set exactly when there is something of that size below it.
 *
 * Locking: ARENA.  `capacity` changes under GROWTH as well.
 */
#ifndef XSEG_CORE_RACK_H
#define XSEG_CORE_RACK_H

#include "src/core/cells.h"

/* A cached cell; none if its size is 0. */
struct xseg_cell {
    struct xseg_extent *extent;
    uint32_t quantum; /* of the extent, where it begins */
    uint32_t quanta;  /* its size */
};

struct xseg_rack {
    uint64_t sizes[XSEG_CELLS_WIDE / 64]; /* that have a cell */
    uint32_t ranks, capacity;             /* in use; there is room for */
    uint32_t gone;                        /* in use, but empty */
    uint32_t words, tops;                 /* of bits a size has, in each level */
    struct xseg_sheet **sheet;            /* [capacity]; all of this is one piece of host memory */
    uint64_t *bits;                       /* [XSEG_CELLS_WIDE][words]: ranks that have the size */
    uint64_t *top;                        /* [XSEG_CELLS_WIDE][tops]: words of `bits` */
    size_t host_bytes;
};

/*
 * Make room for a number of sheets more: what a larger rack needs, or NULL with XSEG_OK if there is
 * room.  GROWTH is held, no other lock.  Returns false without host memory.
 */
bool xseg_rack_make_room(const struct xseg_rack *rack, uint32_t count, void **room);

/* Take over what xseg_rack_make_room() made; returns what is to be freed without the lock. */
void *xseg_rack_take_room(struct xseg_rack *rack, uint32_t count, void *room);

void xseg_rack_fini(struct xseg_rack *rack);

/* Add a sheet, for which there is room; remove one that has no cells left. */
void xseg_rack_add(struct xseg_rack *rack, struct xseg_sheet *sheet);
void xseg_rack_remove(struct xseg_rack *rack, const struct xseg_sheet *sheet);

/* The best fit for a size, or none. */
struct xseg_cell xseg_rack_find_from(const struct xseg_rack *rack, uint32_t quanta);

/* The cell that comes after one of the rack by size and address, or none. */
struct xseg_cell xseg_rack_next(const struct xseg_rack *rack, const struct xseg_cell *cell);

/* The bits of a word where a cached cell of a size begins. */
uint64_t xseg_rack_starts(const struct xseg_sheet *sheet, uint32_t word, uint32_t quanta);

bool xseg_rack_audit(const struct xseg_rack *rack, struct xseg_finding *finding);

static inline bool xseg_rack_is_empty(const struct xseg_rack *rack)
{
    return (rack->sizes[0] | rack->sizes[1] | rack->sizes[2] | rack->sizes[3]) == 0;
}

/* A cell has become cached, and its bits say so. */
static inline void xseg_rack_insert(struct xseg_rack *rack, struct xseg_sheet *sheet,
                                    uint32_t quantum, uint32_t quanta)
{
    uint64_t *bin = &sheet->bin[quanta];

    if (*bin == 0) {
        rack->bits[quanta * rack->words + sheet->rank / 64] |= xseg_cells_bit(sheet->rank);
        rack->top[quanta * rack->tops + sheet->rank / 4096] |= xseg_cells_bit(sheet->rank / 64);
        rack->sizes[quanta / 64] |= xseg_cells_bit(quanta);
    }
    *bin |= xseg_cells_bit(quantum / 64);
}

void xseg_rack_forget(struct xseg_rack *rack, const struct xseg_sheet *sheet, uint32_t quanta);

/* A cell that is still marked as cached leaves the rack. */
static inline void xseg_rack_remove_cell(struct xseg_rack *rack, struct xseg_sheet *sheet,
                                         uint32_t quantum, uint32_t quanta)
{
    const uint32_t word = quantum / 64 % XSEG_CELLS_WORDS;

    /* Two that are this long cannot begin in one word. */
    if (quanta < 64 && (xseg_rack_starts(sheet, word, quanta) & ~xseg_cells_bit(quantum)) != 0)
        return;
    sheet->bin[quanta] &= ~((uint64_t)1 << word);
    if (sheet->bin[quanta] == 0)
        xseg_rack_forget(rack, sheet, quanta);
}

static inline struct xseg_cell xseg_rack_find(const struct xseg_rack *rack, uint32_t quanta)
{
    struct xseg_cell none = {0};

    if (quanta >= XSEG_CELLS_WIDE)
        return none;
    return xseg_rack_find_from(rack, quanta);
}

#endif
