/* SPDX-License-Identifier: MIT */
/*
 * Imports: runs of pages, or all pages of a segment, of other processes or of this process, mapped
 * on a device (share.h).
 *
 * Locking: the device memory lock.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/grow/growth.h"
#include "src/core/pending/pending.h"
#include "src/core/pool/share.h"
#include "vmm/imported.h"

/* The maximum number of pages of an import (fs.nr_open). */
#define PAGES_MAX ((size_t)1 << 20)

struct xseg_import {
    struct xseg_list link;
    struct xseg_imported imported;
    uint64_t mapped_bytes;            /* of all pages */
    struct xseg_export_fields token;  /* of a segment; kind RUN: of a run, or of handles */
    int connection;                   /* of a segment: socket of the exporter; else -1 */
    uint32_t count;                   /* calls that imported the segment; else 1 */
    struct xseg_imported_page page[]; /* [imported.pages] */
};

static size_t record_bytes(const struct xseg_import *record)
{
    return sizeof(*record) + record->imported.pages * sizeof(record->page[0]);
}

static bool is_segment_import(const struct xseg_import *record)
{
    return record->token.kind == XSEG_EXPORT_SEGMENT;
}

static void free_import(struct xseg_import *record)
{
    /* The shutdown ends the connection also if a forked child has a copy of the descriptor. */
    if (record->connection >= 0) {
        (void)shutdown(record->connection, SHUT_RDWR);
        (void)close(record->connection);
    }
    free(record);
}

void xseg_share_free_imports(struct xseg_sharing *sharing)
{
    XSEG_LIST_FOR_SAFE(node, &sharing->imports)
    {
        free_import(XSEG_CONTAINER(node, struct xseg_import, link));
    }
}

static const char *format_uuid(const uint8_t uuid[XSEG_DRIVER_UUID_BYTES],
                               char text[2 * XSEG_DRIVER_UUID_BYTES + 1])
{
    for (unsigned i = 0; i < XSEG_DRIVER_UUID_BYTES; i++)
        (void)snprintf(&text[(size_t)2 * i], 3, "%02x", uuid[i]);
    return text;
}

static xseg_status check_import_device(struct xseg_device *device, const uint8_t *uuid)
{
    char exporter_uuid[2 * XSEG_DRIVER_UUID_BYTES + 1], device_uuid[2 * XSEG_DRIVER_UUID_BYTES + 1];
    xseg_status status = XSEG_OK;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (!xseg_device_makes_pages(device))
        return xseg_growth_fail_unpaged(device);
    if (uuid != NULL)
        status = xseg_sharing_get_uuid(device);
    if (status != XSEG_OK || uuid == NULL ||
        memcmp(uuid, device->sharing->uuid, XSEG_DRIVER_UUID_BYTES) == 0)
        return status;
    return xseg_fail(
        XSEG_ERR_ARGUMENT,
        "memory is on another device, UUID %s; device %d has UUID %s, pass the ordinal "
        "of the other device",
        format_uuid(uuid, exporter_uuid), device->context.ordinal,
        format_uuid(device->sharing->uuid, device_uuid));
}

/* The pages to map. */
struct import_source {
    enum xseg_handle_type type;
    const struct xseg_page_handle *handle; /* [count] */
    size_t count;
    const uint8_t *uuid;                    /* of the device that has the memory; NULL: unknown */
    const struct xseg_export_fields *token; /* of a segment; NULL: a run */
    int connection;                         /* to the exporter of a segment */
};

/* Check that a page has the size and the alignment of pages, and does not overlap the pages before
 * it.  The pages of a run have no gaps. */
static bool is_valid_page(const struct xseg_device *device, const struct import_source *source,
                          const struct xseg_page_handle *page, uint64_t end)
{
    const uint64_t granularity = device->context.granularity;

    return (source->token == NULL ? page->offset == end
                                  : page->offset >= end && page->offset % granularity == 0) &&
           page->size != 0 && page->size % granularity == 0 &&
           page->offset <= XSEG_EXPORT_BYTES_MAX &&
           page->size <= XSEG_EXPORT_BYTES_MAX - page->offset;
}

/* Create the record of an import, which is not mapped yet, and check the pages. */
static xseg_status create_import(struct xseg_device *device, const struct import_source *source,
                                 struct xseg_import **out)
{
    struct xseg_import *record =
        calloc(1, sizeof(*record) + source->count * sizeof(record->page[0]));

    if (record == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, import record of %zu pages",
                         source->count);
    record->imported.context = &device->context;
    record->imported.unreleased = &device->unreleased;
    record->imported.page = record->page;
    record->imported.pages = source->count;
    record->connection = -1;
    record->count = 1;
    for (size_t i = 0; i < source->count; i++) {
        const struct xseg_page_handle *page = &source->handle[i];

        if (!is_valid_page(device, source, page, record->imported.bytes)) {
            free(record);
            return xseg_fail(XSEG_ERR_ARGUMENT,
                             "page %zu is invalid, %" PRIu64 " bytes at offset %" PRIu64
                             "; pages %s, in multiples of %" PRIu64 " bytes on device %d",
                             i, page->size, page->offset,
                             source->token == NULL ? "follow each other without gaps"
                                                   : "do not overlap",
                             device->context.granularity, device->context.ordinal);
        }
        record->page[i] = (struct xseg_imported_page){page->offset, page->size};
        record->imported.bytes = page->offset + page->size;
        record->mapped_bytes += page->size;
    }
    *out = record;
    return XSEG_OK;
}

/* Map pages.  The device memory lock is held. */
static xseg_status map_import(struct xseg_device *device, const struct import_source *source,
                              uint64_t *address)
{
    struct xseg_import *record = NULL;
    xseg_status status = check_import_device(device, source->uuid);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status == XSEG_OK)
        status = create_import(device, source, &record);
    if (status != XSEG_OK)
        return status;
    status = xseg_imported_map(&record->imported, source->type, source->handle);
    if (status != XSEG_OK) {
        free(record);
        return status;
    }
    XSEG_ASSERT(record->imported.base != 0);
    if (source->token != NULL) {
        record->token = *source->token;
        record->connection = source->connection;
    }
    *address = record->imported.base;
    xseg_list_insert(&device->sharing->imports, &record->link);
    xseg_sharing_update_host_bytes(device, record_bytes(record), 0);
    atomic_fetch_add_explicit(&device->sharing->imported, record->mapped_bytes,
                              memory_order_relaxed);
    return XSEG_OK;
}

xseg_status xseg_share_import_handles(struct xseg_device *device, enum xseg_handle_type type,
                                      const struct xseg_page_handle *handle, size_t count,
                                      uint64_t *address)
{
    const struct import_source source = {.type = type, .handle = handle, .count = count};

    if (count == 0 || count > PAGES_MAX)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "number of pages is out of range, %zu; pass 1 to %zu pages", count,
                         PAGES_MAX);
    for (size_t i = 0; type == XSEG_HANDLE_FD && i < count; i++)
        if (fcntl(handle[i].fd, F_GETFD) < 0)
            return xseg_fail(XSEG_ERR_ARGUMENT, "descriptor of page %zu is not open, %d", i,
                             handle[i].fd);
    xseg_mutex_lock(&device->memory_lock);
    const xseg_status status = map_import(device, &source, address);
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

/* Find the import of a segment with the same pages, or NULL.  The device memory lock is held. */
static struct xseg_import *find_same_import(struct xseg_device *device,
                                            const struct xseg_export_fields *token)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &device->sharing->imports)
    {
        struct xseg_import *record = XSEG_CONTAINER(node, struct xseg_import, link);

        if (is_segment_import(record) && record->token.exporter == token->exporter &&
            record->token.secret == token->secret && record->token.segment == token->segment &&
            record->token.generation == token->generation && record->token.size == token->size)
            return record;
    }
    return NULL;
}

/* Count another import of a segment that is already mapped.  Returns false if the segment is not
 * mapped, or if the device is lost.  The device memory lock is held. */
static bool retain_import(struct xseg_device *device, const struct xseg_export_fields *token,
                          uint64_t *address)
{
    struct xseg_import *record = find_same_import(device, token);

    if (record == NULL || record->count == UINT32_MAX || xseg_context_is_lost(&device->context))
        return false;
    record->count++;
    *address = record->imported.base;
    return true;
}

static bool retain_import_unlocked(struct xseg_device *device,
                                   const struct xseg_export_fields *token, uint64_t *address)
{
    xseg_mutex_lock(&device->memory_lock);
    const bool is_retained = retain_import(device, token, address);
    xseg_mutex_unlock(&device->memory_lock);
    return is_retained;
}

xseg_status xseg_share_import_token(struct xseg_device *device,
                                    const struct xseg_export_token *token, uint64_t *address)
{
    struct xseg_export_fields fields;
    struct xseg_export_pages pages;
    xseg_status status = xseg_export_token_read(token, &fields);
    const bool is_segment = status == XSEG_OK && fields.kind == XSEG_EXPORT_SEGMENT;

    if (status != XSEG_OK)
        return status;
    if (!is_segment || !retain_import_unlocked(device, &fields, address)) {
        status = xseg_export_resolve(token, &pages);
        if (status != XSEG_OK)
            return status;
        const struct import_source source = {
            .type = XSEG_HANDLE_FD,
            .handle = pages.handle,
            .count = pages.count,
            /* A segment may be on another device, as with CUDA's IPC; then the driver checks that
             * the devices have a peer connection. */
            .uuid = is_segment ? NULL : pages.device,
            .token = is_segment ? &fields : NULL,
            .connection = pages.connection,
        };
        xseg_mutex_lock(&device->memory_lock);
        /* Another thread may have imported the segment concurrently. */
        const bool is_retained = is_segment && retain_import(device, &fields, address);
        if (!is_retained)
            status = map_import(device, &source, address);
        xseg_mutex_unlock(&device->memory_lock);
        if (status == XSEG_OK && !is_retained)
            pages.connection = -1; /* owned by the record */
        xseg_export_pages_close(&pages);
    }
    if (status == XSEG_OK && is_segment)
        *address += fields.offset;
    return status;
}

/* Find the import of an address, or NULL.  The device memory lock is held. */
static struct xseg_import *find_import(struct xseg_device *device, uint64_t address)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &device->sharing->imports)
    {
        struct xseg_import *record = XSEG_CONTAINER(node, struct xseg_import, link);
        const uint64_t offset = address - record->imported.base;

        if (offset == 0 || (is_segment_import(record) && offset < record->imported.bytes))
            return record;
    }
    return NULL;
}

static xseg_status close_import(struct xseg_device *device, struct xseg_import *record)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(xseg_sharing_imported(device->sharing) >= record->mapped_bytes);
    if (record->count > 1) {
        record->count--;
        return XSEG_OK;
    }
    if (xseg_pending_captures(device->pending))
        return xseg_pending_fail_capture(device->pending);
    if (!xseg_context_is_lost(&device->context))
        xseg_imported_unmap(&record->imported);
    xseg_list_remove(&record->link);
    xseg_sharing_update_host_bytes(device, 0, record_bytes(record));
    atomic_fetch_sub_explicit(&device->sharing->imported, record->mapped_bytes,
                              memory_order_relaxed);
    free_import(record);
    return XSEG_OK;
}

xseg_status xseg_share_close_import(struct xseg_allocator *allocator, uint64_t address)
{
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);
        struct xseg_import *record;
        xseg_status status = XSEG_OK;

        if (device == NULL)
            continue;
        xseg_mutex_lock(&device->memory_lock);
        record = find_import(device, address);
        if (record != NULL)
            status = close_import(device, record);
        xseg_mutex_unlock(&device->memory_lock);
        if (record != NULL)
            return status;
    }
    return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                     "address is not imported, %#" PRIx64
                     "; pass the address that the import returned",
                     address);
}

xseg_status xseg_share_set_import_access(struct xseg_device *device,
                                         const struct xseg_context *peer, bool is_allowed)
{
    xseg_status result = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &device->sharing->imports)
    {
        struct xseg_import *record = XSEG_CONTAINER(node, struct xseg_import, link);
        const xseg_status status =
            xseg_imported_set_peer_access(&record->imported, peer, is_allowed);

        if (status != XSEG_OK && is_allowed)
            return status;
        result = status == XSEG_OK ? result : status;
    }
    return result;
}
