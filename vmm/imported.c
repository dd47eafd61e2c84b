/* SPDX-License-Identifier: MIT */
#include "vmm/imported.h"

#include <stdio.h>

#include "src/base/error.h"

/* --- Unmapping. --- */

/* Unmap the first `pages` pages, `bytes` long, and release the VA range. */
static void unmap_pages(struct xseg_imported *imported, size_t pages, uint64_t bytes)
{
    struct xseg_context *context = imported->context;
    const bool is_batched = pages > 1 && context->batches_unmap &&
                            xseg_driver_unmap(context, imported->base, bytes) == XSEG_OK;
    uint64_t address = imported->base;

    for (size_t i = 0; i < pages && !is_batched; i++) {
        (void)xseg_unreleased_release(
            imported->unreleased,
            (struct xseg_unreleased){XSEG_UNRELEASED_MAPPING, address, imported->page_bytes[i], 0});
        address += imported->page_bytes[i];
    }
    (void)xseg_unreleased_release(
        imported->unreleased,
        (struct xseg_unreleased){XSEG_UNRELEASED_RANGE, imported->base, imported->bytes, 0});
}

void xseg_imported_unmap(struct xseg_imported *imported)
{
    unmap_pages(imported, imported->pages, imported->bytes);
}

/* --- Mapping. --- */

static xseg_status import_page(struct xseg_imported *imported, uint64_t address, uint64_t bytes,
                               enum xseg_handle_type type, const struct xseg_page_handle *from)
{
    uint64_t handle = 0;
    xseg_status status = type == XSEG_HANDLE_FD
                             ? xseg_driver_import(imported->context, from->fd, &handle)
                             : xseg_driver_import_fabric(imported->context, from->fabric, &handle);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_map(imported->context, address, bytes, handle);
    /* Another process owns the memory, so an unreleased handle counts 0 bytes. */
    if (status == XSEG_OK) {
        (void)xseg_unreleased_release(imported->unreleased,
                                      (struct xseg_unreleased){XSEG_UNRELEASED_PAGE, handle, 0, 0});
        return XSEG_OK;
    }
    char reason[256];
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    (void)xseg_unreleased_release(imported->unreleased,
                                  (struct xseg_unreleased){XSEG_UNRELEASED_PAGE, handle, 0, 0});
    return xseg_fail(status, "%s", reason);
}

static xseg_status set_access(const struct xseg_imported *imported)
{
    struct xseg_context *context = imported->context;
    uint64_t address = imported->base;
    xseg_status status = XSEG_ERR_DRIVER;

    if (imported->pages == 1 || context->batches_access)
        status = xseg_driver_set_access(context, imported->base, imported->bytes);
    if (status == XSEG_OK || imported->pages == 1)
        return status;
    status = XSEG_OK;
    for (size_t i = 0; i < imported->pages && status == XSEG_OK; i++) {
        status = xseg_driver_set_access(context, address, imported->page_bytes[i]);
        address += imported->page_bytes[i];
    }
    return status;
}

xseg_status xseg_imported_map(struct xseg_imported *imported, enum xseg_handle_type type,
                              const struct xseg_page_handle *handle)
{
    size_t mapped = 0;
    uint64_t bytes = 0;
    char reason[256];
    xseg_status status =
        xseg_driver_reserve(imported->context, imported->bytes, 0, &imported->base);

    if (status != XSEG_OK)
        return status;
    while (mapped < imported->pages && status == XSEG_OK) {
        status = import_page(imported, imported->base + bytes, imported->page_bytes[mapped], type,
                             &handle[mapped]);
        if (status != XSEG_OK)
            break;
        bytes += imported->page_bytes[mapped];
        mapped++;
    }
    if (status == XSEG_OK)
        status = set_access(imported);
    if (status == XSEG_OK)
        return XSEG_OK;
    /* The roll-back may fail as well; the message of the first failure is reported. */
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    unmap_pages(imported, mapped, bytes);
    return xseg_fail(status, "%s", reason);
}

/* --- Access of peers. --- */

xseg_status xseg_imported_set_peer_access(struct xseg_imported *imported,
                                          const struct xseg_context *peer, bool is_allowed)
{
    struct xseg_context *context = imported->context;
    uint64_t address = imported->base;
    xseg_status result = XSEG_OK;

    if (imported->pages > 1 && context->batches_access &&
        xseg_driver_set_peer_access(context, peer->device, imported->base, imported->bytes,
                                    is_allowed) == XSEG_OK)
        return XSEG_OK;
    for (size_t i = 0; i < imported->pages && (result == XSEG_OK || !is_allowed); i++) {
        const xseg_status status = xseg_driver_set_peer_access(context, peer->device, address,
                                                               imported->page_bytes[i], is_allowed);

        result = status != XSEG_OK ? status : result;
        address += imported->page_bytes[i];
    }
    return result;
}
