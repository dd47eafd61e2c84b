/* SPDX-License-Identifier: MIT */
#include "vmm/imported.h"

#include "src/base/error.h"

/* --- Runs of adjacent pages. --- */

struct page_run {
    uint64_t address, bytes;
    size_t first, count; /* pages */
};

/* Get the run that starts at a page, among the first `pages` pages; a run of 0 pages is the end. */
static struct page_run find_run(const struct xseg_imported *imported, size_t first, size_t pages)
{
    const struct xseg_imported_page *page = imported->page;
    struct page_run run = {.first = first};

    if (first == pages)
        return run;
    run.address = imported->base + page[first].offset;
    do
        run.bytes += page[first + run.count++].bytes;
    while (first + run.count < pages &&
           page[first + run.count].offset == page[first].offset + run.bytes);
    return run;
}

static struct page_run next_run(const struct xseg_imported *imported, struct page_run run,
                                size_t pages)
{
    return find_run(imported, run.first + run.count, pages);
}

/* --- Unmapping. --- */

/* Unmap the first `pages` pages, and release the VA range. */
static void unmap_pages(struct xseg_imported *imported, size_t pages)
{
    struct xseg_context *context = imported->context;

    for (struct page_run run = find_run(imported, 0, pages); run.count != 0;
         run = next_run(imported, run, pages)) {
        const bool is_batched = run.count > 1 && context->batches_unmap &&
                                xseg_driver_unmap(context, run.address, run.bytes) == XSEG_OK;

        for (size_t i = run.first; i < run.first + run.count && !is_batched; i++)
            (void)xseg_unreleased_release(
                imported->unreleased,
                (struct xseg_unreleased){XSEG_UNRELEASED_MAPPING,
                                         imported->base + imported->page[i].offset,
                                         imported->page[i].bytes, 0});
    }
    (void)xseg_unreleased_release(
        imported->unreleased,
        (struct xseg_unreleased){XSEG_UNRELEASED_RANGE, imported->base, imported->bytes, 0});
}

void xseg_imported_unmap(struct xseg_imported *imported)
{
    unmap_pages(imported, imported->pages);
}

/* --- Mapping. --- */

static xseg_status import_page(struct xseg_imported *imported, uint64_t address, uint64_t bytes,
                               enum xseg_handle_type type, const struct xseg_page_handle *source)
{
    struct xseg_fail_saved saved;
    uint64_t handle = 0;
    xseg_status status =
        type == XSEG_HANDLE_FD
            ? xseg_driver_import(imported->context, source->fd, &handle)
            : xseg_driver_import_fabric(imported->context, source->fabric, &handle);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_map(imported->context, address, bytes, handle);
    /* The mapping retains the memory.  Another process owns the memory, so an unreleased handle
     * counts 0 bytes. */
    xseg_fail_save(&saved);
    (void)xseg_unreleased_release(imported->unreleased,
                                  (struct xseg_unreleased){XSEG_UNRELEASED_PAGE, handle, 0, 0});
    if (status != XSEG_OK)
        xseg_fail_restore(&saved);
    return status;
}

static xseg_status set_run_access(const struct xseg_imported *imported, struct page_run run)
{
    struct xseg_context *context = imported->context;
    xseg_status status = XSEG_ERR_DRIVER;

    if (run.count == 1 || context->batches_access)
        status = xseg_driver_set_access(context, run.address, run.bytes);
    if (status == XSEG_OK || run.count == 1)
        return status;
    status = XSEG_OK;
    for (size_t i = run.first; i < run.first + run.count && status == XSEG_OK; i++)
        status = xseg_driver_set_access(context, imported->base + imported->page[i].offset,
                                        imported->page[i].bytes);
    return status;
}

xseg_status xseg_imported_map(struct xseg_imported *imported, enum xseg_handle_type type,
                              const struct xseg_page_handle *handle)
{
    struct xseg_fail_saved saved;
    size_t mapped = 0;
    xseg_status status =
        xseg_driver_reserve(imported->context, imported->bytes, 0, &imported->base);

    if (status != XSEG_OK)
        return status;
    while (mapped < imported->pages && status == XSEG_OK) {
        const struct xseg_imported_page *page = &imported->page[mapped];

        status = import_page(imported, imported->base + page->offset, page->bytes, type,
                             &handle[mapped]);
        mapped += status == XSEG_OK;
    }
    if (status == XSEG_OK)
        for (struct page_run run = find_run(imported, 0, imported->pages); run.count != 0;
             run = next_run(imported, run, imported->pages)) {
            status = set_run_access(imported, run);
            if (status != XSEG_OK)
                break;
        }
    if (status == XSEG_OK)
        return XSEG_OK;
    /* The roll-back may fail as well; the message of the first failure is reported. */
    xseg_fail_save(&saved);
    unmap_pages(imported, mapped);
    xseg_fail_restore(&saved);
    return status;
}

/* --- Access of peers. --- */

static xseg_status set_run_peer_access(const struct xseg_imported *imported, struct page_run run,
                                       const struct xseg_context *peer, bool is_allowed)
{
    struct xseg_context *context = imported->context;
    xseg_status result = XSEG_OK;

    if (run.count > 1 && context->batches_access &&
        xseg_driver_set_peer_access(context, peer->device, run.address, run.bytes, is_allowed) ==
            XSEG_OK)
        return XSEG_OK;
    for (size_t i = run.first; i < run.first + run.count && (result == XSEG_OK || !is_allowed);
         i++) {
        const xseg_status status = xseg_driver_set_peer_access(
            context, peer->device, imported->base + imported->page[i].offset,
            imported->page[i].bytes, is_allowed);

        result = status != XSEG_OK ? status : result;
    }
    return result;
}

xseg_status xseg_imported_set_peer_access(struct xseg_imported *imported,
                                          const struct xseg_context *peer, bool is_allowed)
{
    xseg_status result = XSEG_OK;

    for (struct page_run run = find_run(imported, 0, imported->pages); run.count != 0;
         run = next_run(imported, run, imported->pages)) {
        const xseg_status status = set_run_peer_access(imported, run, peer, is_allowed);

        result = status != XSEG_OK ? status : result;
        if (status != XSEG_OK && is_allowed)
            break;
    }
    return result;
}
