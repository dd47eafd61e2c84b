/* SPDX-License-Identifier: MIT */
#include "vmm/imported.h"

#include <stdio.h>

#include "src/base/error.h"

/* --- Unmapping. --- */

/* Unmap the first `pages` pages, `bytes` long, and give the addresses back. */
static void withdraw(struct xseg_imported *foreign, size_t pages, uint64_t bytes)
{
    struct xseg_context *context = foreign->context;
    const bool together = pages > 1 && context->batches_unmap &&
                          xseg_driver_unmap(context, foreign->base, bytes) == XSEG_OK;
    uint64_t address = foreign->base;

    for (size_t i = 0; i < pages && !together; i++) {
        (void)xseg_unreleased_release(foreign->unreleased, XSEG_UNRELEASED_MAPPING, address,
                                      foreign->page_bytes[i]);
        address += foreign->page_bytes[i];
    }
    (void)xseg_unreleased_release(foreign->unreleased, XSEG_UNRELEASED_RANGE, foreign->base,
                                  foreign->bytes);
}

void xseg_imported_unmap(struct xseg_imported *foreign)
{
    withdraw(foreign, foreign->pages, foreign->bytes);
}

/* --- Mapping. --- */

static xseg_status map_page(struct xseg_imported *foreign, uint64_t address, uint64_t bytes,
                            enum xseg_handle_type type, const struct xseg_page_handle *from)
{
    uint64_t handle = 0;
    xseg_status status = type == XSEG_HANDLE_FD
                             ? xseg_driver_import(foreign->context, from->fd, &handle)
                             : xseg_driver_import_fabric(foreign->context, from->fabric, &handle);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_map(foreign->context, address, bytes, handle);
    /* The memory is another process's, so a leftover handle counts 0 bytes. */
    if (status == XSEG_OK) {
        (void)xseg_unreleased_release(foreign->unreleased, XSEG_UNRELEASED_PAGE, handle, 0);
        return XSEG_OK;
    }
    char reason[256];
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    (void)xseg_unreleased_release(foreign->unreleased, XSEG_UNRELEASED_PAGE, handle, 0);
    return xseg_fail(status, "%s", reason);
}

static xseg_status give_access(const struct xseg_imported *foreign)
{
    struct xseg_context *context = foreign->context;
    uint64_t address = foreign->base;
    xseg_status status = XSEG_ERR_DRIVER;

    if (foreign->pages == 1 || context->batches_access)
        status = xseg_driver_set_access(context, foreign->base, foreign->bytes);
    if (status == XSEG_OK || foreign->pages == 1)
        return status;
    status = XSEG_OK;
    for (size_t i = 0; i < foreign->pages && status == XSEG_OK; i++) {
        status = xseg_driver_set_access(context, address, foreign->page_bytes[i]);
        address += foreign->page_bytes[i];
    }
    return status;
}

xseg_status xseg_imported_map(struct xseg_imported *foreign, enum xseg_handle_type type,
                              const struct xseg_page_handle *handle)
{
    size_t mapped = 0;
    uint64_t bytes = 0;
    char reason[256];
    xseg_status status = xseg_driver_reserve(foreign->context, foreign->bytes, 0, &foreign->base);

    if (status != XSEG_OK)
        return status;
    while (mapped < foreign->pages && status == XSEG_OK) {
        status = map_page(foreign, foreign->base + bytes, foreign->page_bytes[mapped], type,
                          &handle[mapped]);
        if (status != XSEG_OK)
            break;
        bytes += foreign->page_bytes[mapped];
        mapped++;
    }
    if (status == XSEG_OK)
        status = give_access(foreign);
    if (status == XSEG_OK)
        return XSEG_OK;
    /* The undo may fail as well; the first reason is reported. */
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    withdraw(foreign, mapped, bytes);
    return xseg_fail(status, "%s", reason);
}
