/* SPDX-License-Identifier: MIT */
#include "src/core/cache/small/sheets.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/align.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

#define HUGE_PAGE (2 * XSEG_MIB)

/* So many sheets are host memory of their own each. */
#define ALONE 16u

/* In front of its sheets; as long as a cache line, so that they are aligned to one. */
struct xseg_sheets_batch {
    _Alignas(64) struct xseg_sheets_batch *next;
};

#define IN_BATCH ((HUGE_PAGE - sizeof(struct xseg_sheets_batch)) / sizeof(struct xseg_sheet))

_Static_assert(sizeof(struct xseg_sheet) / 64 % 2 == 1,
               "sheets an even number of cache lines apart would share a few sets of a cache");

void xseg_sheets_fini(struct xseg_sheets *sheets)
{
    struct xseg_sheets_batch *next;

    for (struct xseg_sheets_batch *batch = sheets->batches; batch != NULL; batch = next) {
        next = batch->next;
        free(batch);
    }
    memset(sheets, 0, sizeof(*sheets));
}

static bool make_batch(struct xseg_sheets *sheets)
{
    const bool is_alone = sheets->made < ALONE;
    const size_t bytes = sizeof(struct xseg_sheets_batch) + sizeof(struct xseg_sheet);
    struct xseg_sheets_batch *batch =
        is_alone ? aligned_alloc(64, bytes) : aligned_alloc(HUGE_PAGE, HUGE_PAGE);

    if (batch == NULL)
        return false;
    batch->next = sheets->batches;
    sheets->batches = batch;
    sheets->fresh = (struct xseg_sheet *)(void *)(batch + 1);
    sheets->left = is_alone ? 1 : (uint32_t)IN_BATCH;
    return true;
}

/* One that was never used. */
static struct xseg_sheet *take_fresh(struct xseg_sheets *sheets)
{
    if (sheets->left == 0 && !make_batch(sheets))
        return NULL;
    struct xseg_sheet *sheet = sheets->fresh++;
    memset(sheet, 0, sizeof(*sheet));
    /* All of it is used from here on: only now a huge page takes no more than what is there. */
    if (--sheets->left == 0 && sheets->made >= ALONE &&
        madvise(sheets->batches, HUGE_PAGE, MADV_HUGEPAGE) == 0)
        (void)madvise(sheets->batches, HUGE_PAGE, MADV_COLLAPSE); /* or the kernel does it, later */
    sheets->made++;
    atomic_fetch_add_explicit(&sheets->host_bytes, sizeof(*sheet), memory_order_relaxed);
    return sheet;
}

struct xseg_sheet *xseg_sheets_take(struct xseg_sheets *sheets, struct xseg_extent *extent,
                                    uint32_t number)
{
    struct xseg_sheet *sheet = sheets->spare;

    if (sheet != NULL) {
        sheets->spare = (struct xseg_sheet *)(void *)sheet->extent;
        memset(sheet, 0, sizeof(*sheet));
    } else {
        sheet = take_fresh(sheets);
        if (sheet == NULL)
            return NULL;
    }
    sheet->extent = extent;
    sheet->number = number;
    return sheet;
}

void xseg_sheets_put(struct xseg_sheets *sheets, struct xseg_sheet *sheet)
{
    sheet->extent = (struct xseg_extent *)(void *)sheets->spare;
    sheets->spare = sheet;
}
