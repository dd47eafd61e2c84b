/* SPDX-License-Identifier: MIT */
#include "src/core/pools/share.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/cache/walk.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"
#include "src/core/pools/page_trial.h"
#include "src/core/pools/pause.h"
#include "src/core/pools/share_header.h"
#include "src/core/reclaim/mapping.h"
#include "vmm/foreign.h"
#include "vmm/peer.h"

_Static_assert(XSEG_DRIVER_UUID_BYTES == sizeof(((struct xseg_share_header *)0)->device),
               "a header holds a UUID");

struct xseg_export {
    struct xseg_list link;
    struct xseg_device *device;
    struct xseg_segment *segment;
    struct xseg_offer *offer; /* that it is part of, or NULL */
    bool is_own;              /* of the call that makes it, which has not returned yet */
    uint64_t address;
    uint32_t first, count; /* granules */
};

struct xseg_import {
    struct xseg_list link;
    struct xseg_foreign foreign;
    uint64_t address;      /* of the block */
    uint64_t page_bytes[]; /* [foreign.pages] */
};

/* --- The records. --- */

void xseg_sharing_init(struct xseg_sharing *sharing)
{
    memset(sharing, 0, sizeof(*sharing));
    xseg_list_init(&sharing->exports);
    xseg_list_init(&sharing->imports);
}

void xseg_sharing_fini(struct xseg_sharing *sharing)
{
    XSEG_LIST_FOR_SAFE(node, &sharing->exports)
    {
        free(XSEG_CONTAINER(node, struct xseg_export, link));
    }
    XSEG_LIST_FOR_SAFE(node, &sharing->imports)
    {
        free(XSEG_CONTAINER(node, struct xseg_import, link));
    }
}

static size_t import_bytes(const struct xseg_import *record)
{
    return sizeof(*record) + record->foreign.pages * sizeof(record->page_bytes[0]);
}

static void note_host_bytes(struct xseg_device *device, size_t more, size_t less)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_ASSERT(xseg_sharing_host_bytes(device->sharing) + more >= less);
    atomic_fetch_add_explicit(&device->sharing->host_bytes, (uint64_t)more - less,
                              memory_order_relaxed);
}

xseg_status xseg_share_expect_none(struct xseg_device *device)
{
    const struct xseg_sharing *sharing = device->sharing;

    if (xseg_context_is_lost(&device->context))
        return XSEG_OK;
    xseg_lock_take(&device->growth_lock);
    const bool exports = !xseg_list_is_empty(&sharing->exports);
    const bool imports = !xseg_list_is_empty(&sharing->imports);
    xseg_lock_give(&device->growth_lock);
    if (exports)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory of device %d is exported: xseg_export_close() it first",
                         device->context.ordinal);
    if (imports)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory is imported to device %d: xseg_import_close() it first",
                         device->context.ordinal);
    return XSEG_OK;
}

/* --- Who exports. --- */

/* Get the number of this exporter, and the device's UUID. */
static xseg_status know_device(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (!sharing->has_uuid)
        status = xseg_driver_uuid(&device->context, sharing->uuid);
    sharing->has_uuid |= status == XSEG_OK;
    while (status == XSEG_OK && sharing->exporter == 0)
        if (getrandom(&sharing->exporter, sizeof(sharing->exporter), 0) < 0)
            return xseg_fail(XSEG_ERR_DRIVER, "the system has no random number for an exporter");
    return status;
}

/* --- Exporting. --- */

/* Find the live block that starts at an address. */
static xseg_status find_block(const struct xseg_extent *extent, uint64_t address,
                              struct xseg_part *out)
{
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    xseg_arena_lock(arena);
    *out = xseg_walk_at(extent, address);
    xseg_arena_unlock(arena);
    if (out->state == XSEG_BLOCK_LIVE && out->base == address)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_NOT_LIVE, "no live block starts at %#" PRIx64 ": export whole blocks",
                     address);
}

static xseg_status check_extent(const struct xseg_extent *extent, uint64_t address, bool is_lent)
{
    const struct xseg_arena *arena = extent->arena;

    if (xseg_context_is_lost(&arena->device->context))
        return xseg_driver_fail_lost(&arena->device->context);
    if (!xseg_extent_is_expandable(extent))
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "%#" PRIx64 " lies in a classic segment: only what is allocated with "
                         "expandable_segments:True can be exported",
                         address);
    const bool is_exportable = xseg_segment_has(&extent->segment, XSEG_PAGE_EXPORTABLE);
    if (!is_exportable && arena->device->sharing->exporting.verdict == XSEG_PAGE_TRIAL_REFUSED)
        return xseg_page_trial_refuse(arena->device->sharing);
    if (!is_exportable || is_lent)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "%#" PRIx64
                         " was not allocated from an exportable pool: memory is made for "
                         "that or is not; exportable:True says so for the default pool",
                         address);
    return XSEG_OK;
}

static uint64_t count_pages(const struct xseg_export *record)
{
    const uint32_t *length = record->segment->length;
    uint64_t pages = 0;

    for (uint32_t at = record->first; at < record->first + record->count; at += length[at])
        pages++;
    XSEG_ASSERT(pages != 0);
    return pages;
}

/* Make what stands for a page, which starts at a granule. */
static xseg_status export_page(const struct xseg_segment *segment, uint32_t at,
                               const struct xseg_share *share, size_t page)
{
    struct xseg_share_header *header = xseg_share_head(share);

    if (header->kind == XSEG_SHARE_FABRIC)
        return xseg_driver_export_fabric(segment->context, segment->handle[at],
                                         xseg_share_fabric(header)[page]);
    return xseg_driver_export(segment->context, segment->handle[at], &xseg_share_fds(share)[page]);
}

/* Make a descriptor or fabric handle for each page, and note its size.  Kind and number are in the header. */
static xseg_status export_pages(const struct xseg_export *record, const struct xseg_share *share)
{
    const struct xseg_segment *segment = record->segment;
    struct xseg_share_header *header = xseg_share_head(share);
    uint32_t at = record->first;

    for (size_t i = 0; i < header->page_count; i++) {
        const xseg_status status = export_page(segment, at, share, i);

        if (status != XSEG_OK) {
            xseg_fail_add(" for page %zu of %" PRIu64 "%s", i + 1, header->page_count,
                          share->fd_count != 0
                              ? "; each takes a file descriptor: see ulimit -n"
                              : "; a page that was made before fabric handles "
                                "could be tried has none: trim, and allocate again");
            return status;
        }
        XSEG_ASSERT(segment->length[at] != 0 && at < record->first + record->count);
        xseg_share_table(header)[i] = segment->length[at] * segment->granule_bytes;
        at += segment->length[at];
    }
    return XSEG_OK;
}

static void write_header(const struct xseg_export *record, const struct xseg_part *block,
                         const struct xseg_sharing *sharing, struct xseg_share *share)
{
    const struct xseg_segment *segment = record->segment;
    struct xseg_share_header *header = xseg_share_head(share);
    const uint64_t begin = record->first * segment->granule_bytes;
    const uint64_t end = begin + record->count * segment->granule_bytes;

    XSEG_ASSERT(sharing->has_uuid && sharing->exporter != 0);
    memcpy(header->magic, XSEG_SHARE_MAGIC, sizeof(header->magic));
    memcpy(header->device, sharing->uuid, sizeof(header->device));
    header->version = XSEG_SHARE_VERSION;
    header->header_bytes = share->header_bytes;
    header->exporter = sharing->exporter;
    header->process = getpid();
    header->segment = xseg_segment_number(segment);
    header->generation = xseg_segment_generation(segment, begin, end);
    header->page_offset = begin;
    header->block_offset = block->base - segment->base - begin;
    XSEG_ASSERT(block->base >= segment->base + begin &&
                block->base + block->bytes <= segment->base + end);
    header->block_bytes = block->bytes;
    header->requested_bytes = block->requested;
}

/* Hold the pages and complete the share, or do neither. */
static xseg_status hold_and_tell(struct xseg_device *device, struct xseg_export *record,
                                 const struct xseg_part *block, enum xseg_share_kind kind,
                                 struct xseg_share *out)
{
    struct xseg_share share = XSEG_SHARE_INIT;
    xseg_status status = know_device(device);

    if (status == XSEG_OK && kind == XSEG_SHARE_FABRIC)
        status = xseg_page_trial_fabric(device);
    if (status != XSEG_OK)
        return status;
    if (!xseg_share_make(&share, kind, count_pages(record)))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a share");
    xseg_share_head(&share)->kind = kind;
    xseg_share_head(&share)->page_count = count_pages(record);
    status = xseg_segment_export(record->segment, record->first, record->count);
    if (status != XSEG_OK)
        goto free_share;
    status = export_pages(record, &share);
    if (status != XSEG_OK)
        goto unexport;
    write_header(record, block, device->sharing, &share);
    *out = share;
    return XSEG_OK;

unexport:
    xseg_segment_unexport(record->segment, record->first, record->count);
free_share:
    xseg_share_free(&share);
    return status;
}

/* Export the live block that starts at an address.  GROWTH is held. */
static xseg_status export_block(struct xseg_extent *extent, uint64_t address,
                                enum xseg_share_kind kind, struct xseg_share *out,
                                struct xseg_export **own)
{
    struct xseg_segment *segment = &extent->segment;
    struct xseg_device *device = extent->arena->device;
    struct xseg_part block = {0};
    xseg_status status = xseg_pool_check_running(extent->arena->pool);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (status == XSEG_OK)
        status = find_block(extent, address, &block);
    if (status == XSEG_OK)
        status = check_extent(extent, address, block.is_lent);
    if (status != XSEG_OK)
        return status;
    struct xseg_export *record = malloc(sizeof(*record));
    if (record == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for an export");
    *record = (struct xseg_export){
        .device = device, .segment = segment, .is_own = own != NULL, .address = address};
    record->count = xseg_segment_pages_under(segment, address - segment->base,
                                             xseg_part_end(&block) - segment->base, &record->first);
    XSEG_ASSERT(record->count != 0);
    status = hold_and_tell(device, record, &block, kind, out);
    if (status != XSEG_OK) {
        free(record);
        return status;
    }
    xseg_list_insert(&device->sharing->exports, &record->link);
    note_host_bytes(device, sizeof(*record), 0);
    if (own != NULL)
        *own = record;
    return XSEG_OK;
}

xseg_status xseg_share_export(struct xseg_allocator *allocator, uint64_t address,
                              enum xseg_share_kind kind, struct xseg_share *out,
                              struct xseg_export **own) XSEG_UNCHECKED
{
    struct xseg_extent *extent = xseg_mapping_hold(allocator, address);

    XSEG_ASSERT(extent == NULL || xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (extent == NULL)
        return xseg_fail(XSEG_ERR_NOT_LIVE, "%#" PRIx64 " is not memory of this allocator",
                         address);
    const xseg_status status = export_block(extent, address, kind, out, own);
    xseg_lock_give(&extent->arena->device->growth_lock);
    return status;
}

/* --- Taking exports back. --- */

void xseg_share_set_offer(struct xseg_export *own, struct xseg_offer *offer)
{
    struct xseg_device *device = own->device;

    xseg_lock_take(&device->growth_lock);
    XSEG_ASSERT(own->is_own && offer != NULL);
    own->offer = offer;
    own->is_own = false;
    xseg_lock_give(&device->growth_lock);
}

static void end_export(struct xseg_export *record)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    xseg_segment_unexport(record->segment, record->first, record->count);
    xseg_list_remove(&record->link);
    note_host_bytes(record->device, 0, sizeof(*record));
    free(record);
}

void xseg_share_withdraw(struct xseg_export *own)
{
    struct xseg_device *device = own->device;

    xseg_lock_take(&device->growth_lock);
    XSEG_ASSERT(own->is_own);
    end_export(own);
    xseg_lock_give(&device->growth_lock);
}

/* The export at an address that ends next, or NULL. */
static struct xseg_export *find_export(struct xseg_device *device, uint64_t address)
{
    struct xseg_export *offered = NULL;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_LIST_FOR(node, &device->sharing->exports)
    {
        struct xseg_export *record = XSEG_CONTAINER(node, struct xseg_export, link);

        if (record->address != address || record->is_own)
            continue;
        if (record->offer == NULL)
            return record;
        offered = offered == NULL ? record : offered;
    }
    return offered;
}

static bool close_export(struct xseg_device *device, uint64_t address, struct xseg_offer **offer)
{
    struct xseg_export *record = find_export(device, address);

    if (record == NULL)
        return false;
    *offer = record->offer;
    end_export(record);
    return true;
}

xseg_status xseg_share_unexport(struct xseg_allocator *allocator, uint64_t address,
                                struct xseg_offer **offer)
{
    bool closed = false;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    for (int i = 0; i < allocator->device_count && !closed; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL)
            continue;
        xseg_lock_take(&device->growth_lock);
        closed = close_export(device, address, offer);
        xseg_lock_give(&device->growth_lock);
    }
    return closed ? XSEG_OK
                  : xseg_fail(XSEG_ERR_NOT_LIVE, "nothing is exported at %#" PRIx64, address);
}

/* --- Importing. --- */

/* Write the bytes of a UUID as hexadecimal digits. */
static const char *spell(const uint8_t uuid[XSEG_DRIVER_UUID_BYTES],
                         char text[2 * XSEG_DRIVER_UUID_BYTES + 1])
{
    for (unsigned i = 0; i < XSEG_DRIVER_UUID_BYTES; i++)
        (void)snprintf(&text[(size_t)2 * i], 3, "%02x", uuid[i]);
    return text;
}

static xseg_status check_device(struct xseg_device *device, const struct xseg_share_header *header)
{
    char theirs[2 * XSEG_DRIVER_UUID_BYTES + 1], ours[2 * XSEG_DRIVER_UUID_BYTES + 1];
    xseg_status status;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (!xseg_device_makes_pages(device))
        return xseg_fail(XSEG_ERR_UNSUPPORTED, "device %d has no virtual memory management",
                         device->context.ordinal);
    status = know_device(device);
    /* Memory that came over the fabric may be of a device of another host. */
    if (status != XSEG_OK || header->kind == XSEG_SHARE_FABRIC ||
        memcmp(header->device, device->sharing->uuid, 16) == 0)
        return status;
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "the memory is of device %s, and device %d is %s: name that "
                     "one",
                     spell(header->device, theirs), device->context.ordinal,
                     spell(device->sharing->uuid, ours));
}

static xseg_status check_files(const struct xseg_share *share)
{
    for (size_t i = 0; i < share->fd_count; i++)
        if (fcntl(share->fd[i], F_GETFD) < 0)
            return xseg_fail(XSEG_ERR_ARGUMENT, "share->fd[%zu] is %d, which is not open here", i,
                             share->fd[i]);
    return XSEG_OK;
}

/* Make the record of an import that is not mapped yet. */
static struct xseg_import *make_import(struct xseg_device *device,
                                       const struct xseg_share_header *header)
{
    const size_t pages = (size_t)header->page_count;
    struct xseg_import *record = calloc(1, sizeof(*record) + pages * sizeof(record->page_bytes[0]));

    XSEG_ASSERT(pages != 0);
    if (record == NULL) {
        (void)xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for an import of %zu pages", pages);
        return NULL;
    }
    memcpy(record->page_bytes, header + 1, pages * sizeof(record->page_bytes[0]));
    record->foreign.context = &device->context;
    record->foreign.leftovers = &device->leftovers;
    record->foreign.page_bytes = record->page_bytes;
    record->foreign.pages = pages;
    for (size_t i = 0; i < pages; i++)
        record->foreign.bytes += record->page_bytes[i];
    return record;
}

static xseg_status check_pages(const struct xseg_import *record)
{
    const uint64_t granularity = record->foreign.context->granularity;

    for (size_t i = 0; i < record->foreign.pages; i++)
        if (record->page_bytes[i] % granularity != 0)
            return xseg_fail(
                XSEG_ERR_ARGUMENT,
                "page %zu of the share has %" PRIu64 " bytes: device %d maps multiples of %" PRIu64,
                i, record->page_bytes[i], record->foreign.context->ordinal, granularity);
    return XSEG_OK;
}

/* Map the pages of a share.  GROWTH is held. */
static xseg_status import_pages(struct xseg_device *device, struct xseg_share_header *header,
                                const int *file, uint64_t *address)
{
    const struct xseg_foreign_names names = {
        .file = header->kind == XSEG_SHARE_FD ? file : NULL,
        .fabric = (const uint8_t(*)[XSEG_DRIVER_FABRIC_BYTES])xseg_share_fabric(header),
    };
    xseg_status status = check_device(device, header);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (status != XSEG_OK)
        return status;
    struct xseg_import *record = make_import(device, header);
    if (record == NULL)
        return XSEG_ERR_HOST_MEMORY;
    status = check_pages(record);
    if (status == XSEG_OK)
        status = xseg_foreign_map(&record->foreign, &names);
    if (status != XSEG_OK) {
        free(record);
        return status;
    }
    XSEG_ASSERT(record->foreign.base != 0 && header->block_offset < record->foreign.bytes);
    *address = record->address = record->foreign.base + header->block_offset;
    xseg_list_insert(&device->sharing->imports, &record->link);
    note_host_bytes(device, import_bytes(record), 0);
    atomic_fetch_add_explicit(&device->sharing->imported, record->foreign.bytes,
                              memory_order_relaxed);
    return XSEG_OK;
}

xseg_status xseg_share_import(struct xseg_device *device, const struct xseg_share *share,
                              uint64_t *address)
{
    struct xseg_share_header *header = NULL;
    xseg_status status = xseg_share_copy(share->header, share->header_bytes, &header);

    if (status != XSEG_OK)
        return status;
    status = xseg_share_check_count(header, share->fd_count);
    if (status == XSEG_OK)
        status = check_files(share);
    if (status == XSEG_OK) {
        xseg_lock_take(&device->growth_lock);
        status = import_pages(device, header, share->fd, address);
        xseg_lock_give(&device->growth_lock);
    }
    free(header);
    return status;
}

/* Find the import of an address, or NULL.  GROWTH is held. */
static struct xseg_import *find_import(struct xseg_device *device, uint64_t address)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_LIST_FOR(node, &device->sharing->imports)
    {
        struct xseg_import *record = XSEG_CONTAINER(node, struct xseg_import, link);

        if (record->address == address)
            return record;
    }
    return NULL;
}

static xseg_status close_import(struct xseg_device *device, struct xseg_import *record)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_ASSERT(xseg_sharing_imported(device->sharing) >= record->foreign.bytes);
    if (xseg_pending_captures(device->pending))
        return xseg_fail(XSEG_ERR_BUSY,
                         "a capture is under way on device %d: nothing is unmapped before its end",
                         device->context.ordinal);
    if (!xseg_context_is_lost(&device->context))
        xseg_foreign_unmap(&record->foreign);
    xseg_list_remove(&record->link);
    note_host_bytes(device, 0, import_bytes(record));
    atomic_fetch_sub_explicit(&device->sharing->imported, record->foreign.bytes,
                              memory_order_relaxed);
    free(record);
    return XSEG_OK;
}

xseg_status xseg_share_unimport(struct xseg_allocator *allocator, uint64_t address)
{
    XSEG_ASSERT(!xseg_lock_is_any_held());
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);
        struct xseg_import *record;
        xseg_status status = XSEG_OK;

        if (device == NULL)
            continue;
        xseg_lock_take(&device->growth_lock);
        record = find_import(device, address);
        if (record != NULL)
            status = close_import(device, record);
        xseg_lock_give(&device->growth_lock);
        if (record != NULL)
            return status;
    }
    return xseg_fail(XSEG_ERR_NOT_LIVE, "nothing is imported at %#" PRIx64, address);
}

xseg_status xseg_share_set_peer(struct xseg_device *device, const struct xseg_context *peer,
                                bool is_allowed)
{
    xseg_status result = XSEG_OK;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_LIST_FOR(node, &device->sharing->imports)
    {
        struct xseg_import *record = XSEG_CONTAINER(node, struct xseg_import, link);
        const xseg_status status = xseg_peer_set_foreign(&record->foreign, peer, is_allowed);

        if (status != XSEG_OK && is_allowed)
            return status;
        result = status == XSEG_OK ? result : status;
    }
    return result;
}
