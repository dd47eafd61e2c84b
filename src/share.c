/* SPDX-License-Identifier: MIT */
#include "xseg/share.h"

#include <string.h>

#include "src/core/front/allocator_open.h"
#include "src/core/pools/offer.h"
#include "src/core/pools/offer_import.h"
#include "src/core/pools/share.h"
#include "src/core/pools/share_header.h"
#include "src/core/pools/share_socket.h"
#include "src/entry.h"

xseg_status xseg_export(struct xseg_allocator *allocator, void *ptr, enum xseg_share_kind kind,
                        struct xseg_share *out)
{
    struct xseg_share made = XSEG_SHARE_INIT;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL && out != NULL, "xseg_export: %s is NULL",
                       ptr == NULL ? "ptr" : "out");
    XSEG_ENTRY_REQUIRE(kind == XSEG_SHARE_FD || kind == XSEG_SHARE_FABRIC,
                       "xseg_export: %d is no value of enum xseg_share_kind", (int)kind);
    XSEG_ENTRY_REQUIRE(XSEG_ENTRY_UNDERSTANDS(out, struct xseg_share, fd_count),
                       "xseg_export: out->struct_bytes is %zu: start from XSEG_SHARE_INIT",
                       out->struct_bytes);
    const xseg_status status = xseg_share_export(allocator, (uintptr_t)ptr, kind, &made, NULL);
    if (status == XSEG_OK)
        XSEG_ENTRY_FILL(out, &made);
    return status;
}

xseg_status xseg_export_close(struct xseg_allocator *allocator, void *ptr)
{
    struct xseg_offer *offer = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL, "xseg_export_close: ptr is NULL");
    const xseg_status status = xseg_share_unexport(allocator, (uintptr_t)ptr, &offer);
    if (offer != NULL)
        xseg_offer_close(allocator, offer);
    return status;
}

void xseg_share_end(struct xseg_share *share)
{
    struct xseg_share known = XSEG_SHARE_INIT;

    if (share == NULL || !XSEG_ENTRY_UNDERSTANDS(share, struct xseg_share, fd_count))
        return;
    XSEG_ENTRY_TAKE(&known, share);
    xseg_share_free(&known);
    XSEG_ENTRY_FILL(share, &known);
}

/* Read a share that the caller gives. */
static xseg_status take_share(const char *who, const struct xseg_share *share,
                              struct xseg_share *known)
{
    XSEG_ENTRY_REQUIRE(share != NULL, "%s: the share is NULL", who);
    XSEG_ENTRY_REQUIRE(XSEG_ENTRY_UNDERSTANDS(share, struct xseg_share, fd_count),
                       "%s: share->struct_bytes is %zu: start from XSEG_SHARE_INIT", who,
                       share->struct_bytes);
    XSEG_ENTRY_REQUIRE(share->fd != NULL || share->fd_count == 0, "%s: share->fd is NULL", who);
    XSEG_ENTRY_TAKE(known, share);
    return XSEG_OK;
}

xseg_status xseg_import(struct xseg_allocator *allocator, int device,
                        const struct xseg_share *share, void **out)
{
    struct xseg_share known = XSEG_SHARE_INIT;
    struct xseg_device *found = NULL;
    uint64_t address = 0;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(out != NULL, "xseg_import: out is NULL");
    xseg_status status = take_share("xseg_import", share, &known);
    if (status == XSEG_OK)
        status = xseg_allocator_device(allocator, device, &found);
    if (status == XSEG_OK)
        status = xseg_share_import(found, &known, &address);
    if (status == XSEG_OK)
        *out = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    return status;
}

xseg_status xseg_export_text(struct xseg_allocator *allocator, void *ptr, char *text, size_t bytes,
                             size_t *needed)
{
    char written[XSEG_SHARE_TEXT_BYTES];
    size_t used = sizeof(written);

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL, "xseg_export_text: ptr is NULL");
    XSEG_ENTRY_REQUIRE(text != NULL || bytes == 0, "xseg_export_text: text is NULL");
    xseg_status status = XSEG_OK;
    if (bytes >= sizeof(written))
        status = xseg_offer_make(allocator, (uintptr_t)ptr, written, &used);
    else if (text != NULL)
        status = xseg_fail(XSEG_ERR_ARGUMENT,
                           "xseg_export_text: a text takes up to %zu bytes, and there is room for "
                           "%zu: see XSEG_SHARE_TEXT_BYTES",
                           sizeof(written), bytes);
    if (status == XSEG_OK && bytes != 0)
        memcpy(text, written, used);
    if (needed != NULL)
        *needed = used;
    return status;
}

xseg_status xseg_import_text(struct xseg_allocator *allocator, int device, const char *text,
                             void **out)
{
    struct xseg_share share = XSEG_SHARE_INIT;
    struct xseg_device *found = NULL;
    uint64_t address = 0;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(text != NULL && out != NULL, "xseg_import_text: %s is NULL",
                       text == NULL ? "text" : "out");
    xseg_status status = xseg_allocator_device(allocator, device, &found);
    if (status == XSEG_OK)
        status = xseg_offer_import(text, &share);
    if (status == XSEG_OK)
        status = xseg_share_import(found, &share, &address);
    xseg_share_free(&share);
    if (status == XSEG_OK)
        *out = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    return status;
}

xseg_status xseg_import_close(struct xseg_allocator *allocator, void *ptr)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL, "xseg_import_close: ptr is NULL");
    return xseg_share_unimport(allocator, (uintptr_t)ptr);
}

xseg_status xseg_share_send(int socket, const struct xseg_share *share)
{
    struct xseg_share known = XSEG_SHARE_INIT;

    const xseg_status status = take_share("xseg_share_send", share, &known);
    return status == XSEG_OK ? xseg_share_post(socket, &known) : status;
}

xseg_status xseg_share_receive(int socket, struct xseg_share *out)
{
    struct xseg_share came = XSEG_SHARE_INIT;

    XSEG_ENTRY_REQUIRE(out != NULL && XSEG_ENTRY_UNDERSTANDS(out, struct xseg_share, fd_count),
                       "xseg_share_receive: out is NULL or of unknown size: start from "
                       "XSEG_SHARE_INIT");
    const xseg_status status = xseg_share_fetch(socket, &came);
    if (status == XSEG_OK)
        XSEG_ENTRY_FILL(out, &came);
    return status;
}
