/* SPDX-License-Identifier: MIT */
#include "src/core/sheets.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/align.h"

#define HUGE_PAGE (2 * XSEG_MIB)

/* In front of its sheets; as long as a cache line, so that they are aligned to one. */
struct xseg_sheets_batch {
    _Alignas(64) struct xseg_sheets_batch *next;
};

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
    const uint32_t most =
        (HUGE_PAGE - sizeof(struct xseg_sheets_batch)) / sizeof(struct xseg_sheet);
    const uint32_t count = (uint32_t)xseg_min(sheets->made / 4 + 1, most);
    const bool is_huge = count == most;
    const size_t needed =
        sizeof(struct xseg_sheets_batch) + (size_t)count * sizeof(struct xseg_sheet);
    const size_t bytes = is_huge ? HUGE_PAGE : needed;
    struct xseg_sheets_batch *batch = aligned_alloc(is_huge ? HUGE_PAGE : 64, bytes);

    if (batch == NULL)
        return false;
    if (is_huge)
        (void)madvise(batch, bytes, MADV_HUGEPAGE); /* without one it is only slower */
    batch->next = sheets->batches;
    sheets->batches = batch;
    sheets->made += count;
    atomic_fetch_add_explicit(&sheets->host_bytes, bytes, memory_order_relaxed);
    struct xseg_sheet *sheet = (struct xseg_sheet *)(void *)(batch + 1);
    for (uint32_t i = count; i-- > 0;)
        xseg_sheets_put(sheets, &sheet[i]);
    return true;
}

struct xseg_sheet *xseg_sheets_take(struct xseg_sheets *sheets, struct xseg_extent *extent,
                                    uint32_t number)
{
    if (sheets->spare == NULL && !make_batch(sheets))
        return NULL;
    struct xseg_sheet *sheet = sheets->spare;
    sheets->spare = (struct xseg_sheet *)(void *)sheet->extent;
    memset(sheet, 0, sizeof(*sheet));
    sheet->extent = extent;
    sheet->number = number;
    return sheet;
}

void xseg_sheets_put(struct xseg_sheets *sheets, struct xseg_sheet *sheet)
{
    sheet->extent = (struct xseg_extent *)(void *)sheets->spare;
    sheets->spare = sheet;
}
