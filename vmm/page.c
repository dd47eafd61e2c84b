/* SPDX-License-Identifier: MIT */
#include "vmm/page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

void xseg_pages_init(struct xseg_pages *pages, struct xseg_context *context,
                     struct xseg_leftovers *leftovers)
{
    memset(pages, 0, sizeof(*pages));
    pages->context = context;
    pages->leftovers = leftovers;
}

void xseg_pages_fini(struct xseg_pages *pages)
{
    free(pages->idle);
    pages->idle = NULL;
    pages->count = pages->capacity = 0;
}

uint64_t xseg_pages_idle(const struct xseg_pages *pages, uint64_t page_bytes)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < pages->count; i++)
        bytes += pages->idle[i].bytes == page_bytes ? page_bytes : 0;
    return bytes;
}

bool xseg_pages_take(struct xseg_pages *pages, uint64_t page_bytes, uint64_t *handle)
{
    for (size_t i = pages->count; i-- > 0;) {
        if (pages->idle[i].bytes != page_bytes)
            continue;
        *handle = pages->idle[i].handle;
        pages->idle[i] = pages->idle[--pages->count];
        atomic_fetch_sub_explicit(&pages->bytes, page_bytes, memory_order_relaxed);
        return true;
    }
    return false;
}

/* Room for one page more. */
static bool make_room(struct xseg_pages *pages)
{
    if (pages->count < pages->capacity)
        return true;
    const size_t capacity = pages->capacity == 0 ? 64 : pages->capacity * 2;
    struct xseg_page *idle = realloc(pages->idle, capacity * sizeof(*idle));
    if (idle == NULL)
        return false;
    pages->idle = idle;
    pages->capacity = capacity;
    return true;
}

static void add(struct xseg_pages *pages, uint64_t page_bytes, uint64_t handle)
{
    pages->idle[pages->count++] = (struct xseg_page){handle, page_bytes};
    atomic_fetch_add_explicit(&pages->bytes, page_bytes, memory_order_relaxed);
}

xseg_status xseg_pages_make(struct xseg_pages *pages, uint64_t page_bytes)
{
    uint64_t handle = 0;

    if (!make_room(pages))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory to remember a page");
    const xseg_status status = xseg_driver_create(pages->context, page_bytes, &handle);
    if (status == XSEG_OK)
        add(pages, page_bytes, handle);
    return status;
}

xseg_status xseg_pages_put(struct xseg_pages *pages, uint64_t page_bytes, uint64_t handle,
                           bool keep)
{
    if (keep && make_room(pages)) {
        add(pages, page_bytes, handle);
        return XSEG_OK;
    }
    return xseg_leftovers_give(pages->leftovers, XSEG_LEFTOVER_PAGE, handle, page_bytes);
}

void xseg_pages_shrink(struct xseg_pages *pages, uint64_t bytes)
{
    while (xseg_pages_bytes(pages) > bytes) {
        const struct xseg_page page = pages->idle[--pages->count];

        atomic_fetch_sub_explicit(&pages->bytes, page.bytes, memory_order_relaxed);
        (void)xseg_pages_put(pages, page.bytes, page.handle, false);
    }
}

bool xseg_pages_audit(const struct xseg_pages *pages, struct xseg_finding *finding)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < pages->count; i++)
        bytes += pages->idle[i].bytes;
    XSEG_HOLDS(finding, "PAGES-1", bytes == xseg_pages_bytes(pages),
               "bytes says %" PRIu64 ", idle are %" PRIu64, xseg_pages_bytes(pages), bytes);
    return true;
}
