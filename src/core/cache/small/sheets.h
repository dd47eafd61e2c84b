/* SPDX-License-Identifier: MIT */
/*
 * Sheets: host memory for the sheets of an arena (cells.h), made in batches and used again.
 *
 * A batch fills a huge page of the host, and asks for one when its last sheet is taken, so that none is
 * larger than what lies in it: at 10^6 live blocks a free touches five places in 26 MB of sheets, and
 * with pages of 4 KiB each of them misses the translation cache as well, which took a third of its
 * time.  The first few sheets of an arena are no batch.
 *
 * Locking: GROWTH; what is put back is so under ARENA, too.
 */
#ifndef XSEG_CORE_SHEETS_H
#define XSEG_CORE_SHEETS_H

#include <stdatomic.h>

#include "src/core/cache/small/cells.h"

struct xseg_sheets_batch;

struct xseg_sheets {
    struct xseg_sheet *spare; /* chained through `extent` */
    struct xseg_sheet *fresh; /* of the latest batch, the first that was never used */
    struct xseg_sheets_batch *batches;
    uint32_t left; /* from `fresh` on */
    uint32_t made;
    atomic_size_t host_bytes; /* may be read without the lock */
};

/* Every sheet goes with its batch. */
void xseg_sheets_fini(struct xseg_sheets *sheets);

/* An empty sheet of an extent, which is not in its table yet; NULL without host memory. */
struct xseg_sheet *xseg_sheets_take(struct xseg_sheets *sheets, struct xseg_extent *extent,
                                    uint32_t number);

/* A sheet is not used any more. */
void xseg_sheets_put(struct xseg_sheets *sheets, struct xseg_sheet *sheet);

#endif
