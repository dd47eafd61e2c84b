/* SPDX-License-Identifier: MIT */
#include "xseg/share.h"

#include "src/core/instance/instance.h"
#include "src/core/pool/share.h"
#include "src/entry.h"

/* Return an address to the caller. */
static void return_address(void **out, uint64_t address)
{
    *out = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

xseg_status xseg_export(struct xseg_allocator *allocator, void *ptr,
                        struct xseg_export_token *token, uint64_t *offset)
{
    uint64_t ignored;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL && token != NULL, "%s is NULL", ptr == NULL ? "ptr" : "token");
    return xseg_share_export(allocator, (uintptr_t)ptr, token, offset != NULL ? offset : &ignored);
}

static xseg_status check_type(enum xseg_handle_type type)
{
    XSEG_ENTRY_REQUIRE(type == XSEG_HANDLE_FD || type == XSEG_HANDLE_FABRIC,
                       "unknown value of enum xseg_handle_type, %d", (int)type);
    return XSEG_OK;
}

xseg_status xseg_export_handles(struct xseg_allocator *allocator, void *ptr,
                                enum xseg_handle_type type, struct xseg_page_handle *handles,
                                size_t capacity, size_t *count, uint64_t *offset)
{
    struct xseg_share_pages pages = {.type = type, .handle = handles, .capacity = capacity};

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL && count != NULL, "%s is NULL", ptr == NULL ? "ptr" : "count");
    XSEG_ENTRY_REQUIRE(handles != NULL || capacity == 0, "handles is NULL, capacity %zu", capacity);
    xseg_status status = check_type(type);
    if (status != XSEG_OK)
        return status;
    status = xseg_share_export_handles(allocator, (uintptr_t)ptr, &pages);
    if (pages.count != 0)
        *count = pages.count;
    if (status == XSEG_OK && offset != NULL)
        *offset = pages.block_offset;
    return status;
}

xseg_status xseg_export_close(struct xseg_allocator *allocator, void *ptr)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL, "ptr is NULL");
    return xseg_share_close_export(allocator, (uintptr_t)ptr);
}

xseg_status xseg_import(struct xseg_allocator *allocator, int device,
                        const struct xseg_export_token *token, void **base)
{
    struct xseg_export_pages pages;
    struct xseg_device *found = NULL;
    uint64_t address = 0;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(token != NULL && base != NULL, "%s is NULL",
                       token == NULL ? "token" : "base");
    xseg_status status = xseg_allocator_device(allocator, device, &found);
    if (status == XSEG_OK)
        status = xseg_export_resolve(token, &pages);
    if (status != XSEG_OK)
        return status;
    status =
        xseg_share_import(found, XSEG_HANDLE_FD, pages.handle, pages.count, pages.device, &address);
    xseg_export_pages_close(&pages);
    if (status == XSEG_OK)
        return_address(base, address);
    return status;
}

xseg_status xseg_import_handles(struct xseg_allocator *allocator, int device,
                                enum xseg_handle_type type, const struct xseg_page_handle *handles,
                                size_t count, void **base)
{
    struct xseg_device *found = NULL;
    uint64_t address = 0;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(handles != NULL && base != NULL, "%s is NULL",
                       handles == NULL ? "handles" : "base");
    xseg_status status = check_type(type);
    if (status == XSEG_OK)
        status = xseg_allocator_device(allocator, device, &found);
    if (status == XSEG_OK)
        status = xseg_share_import(found, type, handles, count, NULL, &address);
    if (status == XSEG_OK)
        return_address(base, address);
    return status;
}

xseg_status xseg_import_close(struct xseg_allocator *allocator, void *base)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(base != NULL, "base is NULL");
    return xseg_share_close_import(allocator, (uintptr_t)base);
}

xseg_status xseg_peer_allow(struct xseg_allocator *allocator, int owner, int peer)
{
    struct xseg_device *has = NULL, *uses = NULL;

    XSEG_ENTRY(allocator);
    xseg_status status = xseg_allocator_device(allocator, owner, &has);
    if (status == XSEG_OK)
        status = xseg_allocator_device(allocator, peer, &uses);
    if (status != XSEG_OK)
        return status;
    XSEG_ENTRY_REQUIRE(has != uses, "owner and peer are the same device, %d; pass two devices",
                       owner);
    return xseg_peers_allow(has, uses);
}
