/* SPDX-License-Identifier: MIT */
/*
 * Exports: the records of a device, their tokens and handles, and the sharing state (share.h).
 *
 * Locking: the device memory lock.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "src/core/pool/share.h"
#include "src/core/reclaim/mapping.h"
#include "vmm/alias.h"

_Static_assert(XSEG_FABRIC_HANDLE_SIZE == XSEG_DRIVER_FABRIC_BYTES, "sizes of fabric handles");

struct xseg_export {
    struct xseg_list link;
    struct xseg_device *device;
    struct xseg_segment *segment;
    uint64_t address;      /* of the block */
    uint32_t first, count; /* granules of the run */
};

/* --- Init and fini. --- */

void xseg_sharing_fini(struct xseg_sharing *sharing)
{
    XSEG_ASSERT(!sharing->server.is_running);
    XSEG_LIST_FOR_SAFE(node, &sharing->exports)
    {
        free(XSEG_CONTAINER(node, struct xseg_export, link));
    }
    xseg_share_free_imports(sharing);
}

void xseg_sharing_update_host_bytes(struct xseg_device *device, size_t added, size_t removed)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(xseg_sharing_host_bytes(device->sharing) + added >= removed);
    atomic_fetch_add_explicit(&device->sharing->host_bytes, (uint64_t)added - removed,
                              memory_order_relaxed);
}

xseg_status xseg_share_check_none(struct xseg_device *device)
{
    const struct xseg_sharing *sharing = device->sharing;

    if (xseg_context_is_lost(&device->context))
        return XSEG_OK;
    xseg_mutex_lock(&device->memory_lock);
    const bool exports = !xseg_list_is_empty(&sharing->exports);
    const bool imports = !xseg_list_is_empty(&sharing->imports);
    xseg_mutex_unlock(&device->memory_lock);
    if (exports)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory of device %d is exported; xseg_export_close() it first",
                         device->context.ordinal);
    if (imports)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory is imported to device %d; xseg_import_close() it first",
                         device->context.ordinal);
    return XSEG_OK;
}

xseg_status xseg_sharing_get_uuid(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!sharing->has_uuid)
        status = xseg_driver_uuid(&device->context, sharing->uuid);
    sharing->has_uuid |= status == XSEG_OK;
    return status;
}

/* --- Runs and handles. --- */

/* Find the allocated block that starts at an address. */
static xseg_status find_exported_block(const struct xseg_extent *extent, uint64_t address,
                                       struct xseg_block_view *out)
{
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_biased_lock_lock(&arena->lock);
    *out = xseg_extent_view_at(extent, address);
    xseg_biased_lock_unlock(&arena->lock);
    if (out->state == XSEG_BLOCK_ALLOCATED && out->base == address)
        return XSEG_OK;
    if (out->state == XSEG_BLOCK_CLAIMED)
        return xseg_mapping_fail_claimed(address);
    return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                     "address is not the start of an allocated block, %#" PRIx64
                     "; export whole blocks",
                     address);
}

static xseg_status check_exportable(const struct xseg_extent *extent, uint64_t address,
                                    bool is_fallback)
{
    const struct xseg_arena *arena = extent->arena;

    if (xseg_context_is_lost(&arena->device->context))
        return xseg_driver_fail_lost(&arena->device->context);
    if (!xseg_extent_is_expandable(extent))
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "address is in a classic segment, %#" PRIx64
                         "; only memory allocated with expandable_segments:True can be exported",
                         address);
    const bool is_exportable = xseg_segment_has_property(&extent->segment, XSEG_PAGE_EXPORTABLE);
    if (!is_exportable && arena->device->sharing->exportable.result == XSEG_PAGE_PROBE_UNSUPPORTED)
        return xseg_page_probe_fail_export(arena->device->sharing);
    if (!is_exportable || is_fallback)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "memory is not exportable, %#" PRIx64
                         "; allocate it from an exportable pool, or set exportable:True for the "
                         "default pool",
                         address);
    return XSEG_OK;
}

/* Find the run under the allocated block that starts at an address; nothing is retained.
 * offset: set to the offset of the block in the run */
static xseg_status find_run(struct xseg_extent *extent, uint64_t address,
                            struct xseg_export *record, uint64_t *offset)
{
    struct xseg_segment *segment = &extent->segment;
    struct xseg_block_view block = {0};
    xseg_status status = xseg_pool_check_running(extent->arena->pool);

    if (status == XSEG_OK)
        status = find_exported_block(extent, address, &block);
    if (status == XSEG_OK)
        status = check_exportable(extent, address, block.is_fallback);
    if (status != XSEG_OK)
        return status;
    *record = (struct xseg_export){
        .device = extent->arena->device, .segment = segment, .address = address};
    record->count =
        xseg_segment_pages_overlapping(segment, address - segment->base,
                                       xseg_block_view_end(&block) - segment->base, &record->first);
    XSEG_ASSERT(record->count != 0);
    *offset = address - segment->base - record->first * segment->granule_bytes;
    return XSEG_OK;
}

/* The pages of `count` granules of a segment that are not later than a generation. */
struct page_set {
    const struct xseg_segment *segment;
    uint32_t first, count; /* granules */
    uint64_t generation;
};

static struct page_set pages_of_run(const struct xseg_export *record)
{
    return (struct page_set){record->segment, record->first, record->count, UINT64_MAX};
}

static bool find_page(const struct page_set *pages, uint32_t *granule)
{
    return xseg_segment_find_exported(pages->segment, granule, pages->first + pages->count,
                                      pages->generation);
}

static uint64_t count_pages(const struct page_set *pages)
{
    uint64_t count = 0;

    for (uint32_t granule = pages->first; find_page(pages, &granule);
         granule += pages->segment->length[granule])
        count++;
    XSEG_ASSERT(count != 0);
    return count;
}

static void close_descriptors(struct xseg_page_handle *handle, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        (void)close(handle[i].fd);
        handle[i].fd = -1;
    }
}

static xseg_status create_handle(const struct xseg_segment *segment, uint32_t granule,
                                 enum xseg_handle_type type, struct xseg_page_handle *handle)
{
    handle->fd = -1;
    return type == XSEG_HANDLE_FABRIC
               ? xseg_driver_export_fabric(segment->context, xseg_alias_handle(segment, granule),
                                           handle->fabric)
               : xseg_driver_export(segment->context, xseg_alias_handle(segment, granule),
                                    &handle->fd);
}

static xseg_status fail_handle(xseg_status status, const struct page_set *pages, uint64_t page,
                               enum xseg_handle_type type)
{
    xseg_fail_append(", page %" PRIu64 " of %" PRIu64 "; %s", page + 1, count_pages(pages),
                     type == XSEG_HANDLE_FD
                         ? "each page needs a file descriptor, see ulimit -n"
                         : "pages created before the probe of fabric handles have none, trim "
                           "and allocate again");
    return status;
}

/* Create handles for pages [first, first + count) of a set, all or none. */
static xseg_status create_handles(const struct page_set *pages, enum xseg_handle_type type,
                                  uint64_t first, size_t count, struct xseg_page_handle *handle)
{
    const struct xseg_segment *segment = pages->segment;
    uint32_t granule = pages->first;

    for (uint64_t page = 0; page < first + count; page++) {
        const bool is_found = find_page(pages, &granule);

        XSEG_ASSERT(is_found);
        if (page >= first) {
            struct xseg_page_handle *out = &handle[page - first];
            const xseg_status status = create_handle(segment, granule, type, out);

            if (status != XSEG_OK) {
                close_descriptors(handle, type == XSEG_HANDLE_FD ? page - first : 0);
                return fail_handle(status, pages, page, type);
            }
            out->offset = (granule - pages->first) * segment->granule_bytes;
            out->size = segment->length[granule] * segment->granule_bytes;
        }
        granule += segment->length[granule];
    }
    return XSEG_OK;
}

/* --- Exports. --- */

/* Retain the pages of a run, and create a record of the export. */
static xseg_status create_export(const struct xseg_export *run, struct xseg_export **out)
{
    struct xseg_export *record = malloc(sizeof(*record));

    if (record == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, export record");
    *record = *run;
    const xseg_status status = xseg_segment_export(run->segment, run->first, run->count);
    if (status != XSEG_OK) {
        free(record);
        return status;
    }
    xseg_list_insert(&run->device->sharing->exports, &record->link);
    xseg_sharing_update_host_bytes(run->device, sizeof(*record), 0);
    *out = record;
    return XSEG_OK;
}

static void destroy_export(struct xseg_export *record)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_segment_unexport(record->segment, record->first, record->count);
    xseg_list_remove(&record->link);
    xseg_sharing_update_host_bytes(record->device, 0, sizeof(*record));
    free(record);
}

/* --- Tokens. --- */

/* Complete a token.  The caller has set kind, offset, size and generation of `fields`. */
static struct xseg_export_token create_token(const struct xseg_device *device,
                                             const struct xseg_segment *segment,
                                             struct xseg_export_fields fields)
{
    struct xseg_export_token token;

    memcpy(fields.magic, XSEG_EXPORT_MAGIC, sizeof(fields.magic));
    fields.version = XSEG_EXPORT_TOKEN_VERSION;
    fields.exporter = device->sharing->exporter;
    fields.secret = device->sharing->secret;
    fields.segment = xseg_segment_id(segment);
    fields.pid = (uint32_t)getpid();
    memcpy(token.byte, &fields, sizeof(fields));
    return token;
}

static struct xseg_export_token compute_token(const struct xseg_export *record)
{
    const uint64_t begin = record->first * record->segment->granule_bytes;
    const uint64_t end = begin + record->count * record->segment->granule_bytes;
    const struct xseg_export_fields fields = {
        .kind = XSEG_EXPORT_RUN,
        .offset = begin,
        .size = end - begin,
        .generation = xseg_segment_generation(record->segment, begin, end),
    };

    return create_token(record->device, record->segment, fields);
}

/* Find the end of the last page of a segment that is not later than a generation, in bytes.
 * latest: set to the latest generation of these pages */
static uint64_t find_last_page_end(const struct xseg_segment *segment, uint64_t generation,
                                   uint64_t *latest)
{
    uint64_t end = 0;

    *latest = 0;
    for (uint32_t granule = 0;
         xseg_segment_find_exported(segment, &granule, segment->granules, generation);
         granule += segment->length[granule]) {
        const uint64_t begin = granule * segment->granule_bytes;

        end = begin + segment->length[granule] * segment->granule_bytes;
        *latest = xseg_max(*latest, xseg_segment_generation(segment, begin, end));
    }
    return end;
}

/* Draw the exporter's ID and secret, and start its server. */
static xseg_status start_export_server(struct xseg_device *device)
{
    struct xseg_sharing *sharing = device->sharing;
    uint64_t random[2];
    xseg_status status = xseg_sharing_get_uuid(device);

    if (status != XSEG_OK)
        return status;
    if (sharing->exporter == 0) {
        if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
            return xseg_fail(XSEG_ERR_FILE, "getrandom failed, %s; retry", strerror(errno));
        sharing->exporter = random[0] | 1;
        sharing->secret = random[1];
    }
    return xseg_export_server_start(&sharing->server, sharing->exporter);
}

/* Find an open export with a token, or NULL.  The device memory lock is held. */
static struct xseg_export *find_export(struct xseg_device *device,
                                       const struct xseg_export_token *token)
{
    XSEG_LIST_FOR(node, &device->sharing->exports)
    {
        struct xseg_export *record = XSEG_CONTAINER(node, struct xseg_export, link);
        const struct xseg_export_token expected = compute_token(record);

        if (memcmp(&expected, token, sizeof(expected)) == 0)
            return record;
    }
    return NULL;
}

/* Find the segment with an ID, or NULL.  O(segments of the device). */
static struct xseg_segment *find_segment(struct xseg_device *device, uint64_t id)
{
    struct xseg_segment *found = NULL;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        XSEG_LIST_FOR(node, &arena->extents)
        {
            struct xseg_segment *segment = &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

            if (xseg_segment_is_expandable(segment) && xseg_segment_id(segment) == id)
                found = segment;
        }
    }
    return found;
}

/* Find the exported segment of a token, or NULL.  A token is valid as long as its pages are
 * exported, also if more pages were exported after them. */
static struct xseg_segment *find_exported_segment(struct xseg_device *device,
                                                  const struct xseg_export_token *token)
{
    struct xseg_export_fields fields;
    uint64_t latest = 0;

    memcpy(&fields, token->byte, sizeof(fields));
    struct xseg_segment *segment = find_segment(device, fields.segment);
    if (segment == NULL || fields.generation > segment->export_generation ||
        find_last_page_end(segment, fields.generation, &latest) != fields.size ||
        latest != fields.generation)
        return NULL;
    const struct xseg_export_token expected = create_token(device, segment, fields);
    return memcmp(&expected, token, sizeof(expected)) == 0 ? segment : NULL;
}

/* Find the pages of a valid token. */
static xseg_status find_pages(struct xseg_device *device, const struct xseg_export_token *token,
                              struct page_set *out)
{
    struct xseg_export_fields fields;
    const struct xseg_export *record = NULL;
    const struct xseg_segment *segment = NULL;

    memcpy(&fields, token->byte, sizeof(fields));
    if (fields.kind == XSEG_EXPORT_SEGMENT) {
        segment = find_exported_segment(device, token);
        if (segment != NULL)
            *out = (struct page_set){segment, 0, segment->granules, fields.generation};
    } else {
        record = find_export(device, token);
        if (record != NULL)
            *out = pages_of_run(record);
    }
    if (record == NULL && segment == NULL)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED, "export has been closed; export the memory again");
    return xseg_context_is_lost(&device->context) ? xseg_driver_fail_lost(&device->context)
                                                  : XSEG_OK;
}

static xseg_status fill_reply_pages(struct xseg_device *device,
                                    const struct xseg_export_token *token, uint64_t first,
                                    struct xseg_export_reply *reply, int *fd)
{
    struct xseg_page_handle handle[XSEG_EXPORT_BATCH];
    struct page_set pages;
    xseg_status status = find_pages(device, token, &pages);

    if (status != XSEG_OK)
        return status;
    const uint64_t page_count = count_pages(&pages);
    XSEG_ASSERT(first < page_count);
    const size_t count = xseg_min(page_count - first, XSEG_EXPORT_BATCH);
    status = create_handles(&pages, XSEG_HANDLE_FD, first, count, handle);
    if (status != XSEG_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        reply->page[i].offset = handle[i].offset;
        reply->page[i].size = handle[i].size;
        fd[i] = handle[i].fd;
    }
    reply->page_count = page_count;
    reply->count = (uint32_t)count;
    memcpy(reply->device, device->sharing->uuid, sizeof(reply->device));
    return XSEG_OK;
}

/* Implementation of fill_reply of struct xseg_export_server. */
static void fill_reply(void *self, const struct xseg_export_token *token, uint64_t first,
                       struct xseg_export_reply *reply, int fd[XSEG_EXPORT_BATCH])
{
    struct xseg_device *device = self;

    memset(reply, 0, sizeof(*reply));
    xseg_mutex_lock(&device->memory_lock);
    const xseg_status status = fill_reply_pages(device, token, first, reply, fd);
    xseg_mutex_unlock(&device->memory_lock);
    reply->status = (uint32_t)status;
    if (status != XSEG_OK)
        (void)snprintf(reply->error, sizeof(reply->error), "%s", xseg_fail_detail());
}

/* Implementation of count_importer of struct xseg_export_server. */
static bool count_importer(void *self, const struct xseg_export_token *token, bool connects)
{
    struct xseg_device *device = self;

    xseg_mutex_lock(&device->memory_lock);
    struct xseg_segment *segment = find_exported_segment(device, token);
    if (segment != NULL) {
        XSEG_ASSERT(connects || segment->importers != 0);
        connects ? segment->importers++ : segment->importers--;
    }
    xseg_mutex_unlock(&device->memory_lock);
    return segment != NULL;
}

void xseg_sharing_init(struct xseg_device *device, struct xseg_sharing *sharing)
{
    memset(sharing, 0, sizeof(*sharing));
    sharing->server.fill_reply = fill_reply;
    sharing->server.count_importer = count_importer;
    sharing->server.self = device;
    xseg_list_init(&sharing->exports);
    xseg_list_init(&sharing->imports);
}

/* --- Public functions. --- */

/* Find the extent of an address, and lock its device memory. */
static xseg_status lock_extent(struct xseg_allocator *allocator, uint64_t address,
                               struct xseg_extent **extent) XSEG_UNCHECKED
{
    *extent = xseg_mapping_lock_extent(allocator, address);
    return *extent != NULL ? XSEG_OK : xseg_allocator_fail_foreign(address);
}

static void unlock_extent(struct xseg_extent *extent) XSEG_UNCHECKED
{
    xseg_mutex_unlock(&extent->arena->device->memory_lock);
}

xseg_status xseg_share_export(struct xseg_allocator *allocator, uint64_t address,
                              struct xseg_export_token *token, uint64_t *offset)
{
    struct xseg_export run, *record = NULL;
    struct xseg_extent *extent;
    xseg_status status = lock_extent(allocator, address, &extent);

    if (status != XSEG_OK)
        return status;
    status = find_run(extent, address, &run, offset);
    if (status == XSEG_OK)
        status = start_export_server(run.device);
    if (status == XSEG_OK)
        status = create_export(&run, &record);
    if (status == XSEG_OK)
        *token = compute_token(record);
    unlock_extent(extent);
    return status;
}

/* Check that all mapped memory of the segment of an address can be exported. */
static xseg_status check_exportable_segment(const struct xseg_extent *extent, uint64_t address)
{
    const struct xseg_pool *pool = extent->arena->pool;
    xseg_status status = xseg_pool_check_running(pool);
    uint64_t latest;

    if (status == XSEG_OK)
        status = check_exportable(extent, address, false);
    if (status != XSEG_OK)
        return status;
    if (xseg_pool_is_retired(pool))
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "pool has been released; export its blocks by xseg_export()");
    if (address - extent->segment.base >= find_last_page_end(&extent->segment, UINT64_MAX, &latest))
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                         "address is after the last mapped page of its segment, %#" PRIx64,
                         address);
    return XSEG_OK;
}

xseg_status xseg_share_export_segment(struct xseg_allocator *allocator, uint64_t address,
                                      struct xseg_export_token *token)
{
    struct xseg_export_fields fields = {.kind = XSEG_EXPORT_SEGMENT};
    struct xseg_extent *extent;
    xseg_status status = lock_extent(allocator, address, &extent);

    if (status != XSEG_OK)
        return status;
    struct xseg_device *device = extent->arena->device;
    struct xseg_segment *segment = &extent->segment;
    status = check_exportable_segment(extent, address);
    if (status == XSEG_OK)
        status = start_export_server(device);
    if (status == XSEG_OK)
        status = xseg_segment_export_mapped(segment);
    if (status == XSEG_OK) {
        fields.offset = address - segment->base;
        fields.size = find_last_page_end(segment, UINT64_MAX, &fields.generation);
        *token = create_token(device, segment, fields);
    }
    unlock_extent(extent);
    return status;
}

static xseg_status export_run_handles(const struct xseg_export *run, struct xseg_share_pages *pages)
{
    struct xseg_export *record = NULL;
    xseg_status status = XSEG_OK;

    const struct page_set run_pages = pages_of_run(run);

    pages->count = (size_t)count_pages(&run_pages);
    if (pages->handle == NULL)
        return XSEG_OK;
    if (pages->capacity < pages->count)
        return xseg_fail(
            XSEG_ERR_ARGUMENT,
            "capacity is too small, %zu handles; the block has %zu pages, pass NULL to query "
            "the count",
            pages->capacity, pages->count);
    if (pages->type == XSEG_HANDLE_FABRIC)
        status = xseg_page_probe_fabric(run->device);
    if (status == XSEG_OK)
        status = create_export(run, &record);
    if (status != XSEG_OK)
        return status;
    status = create_handles(&run_pages, pages->type, 0, pages->count, pages->handle);
    if (status != XSEG_OK)
        destroy_export(record);
    return status;
}

xseg_status xseg_share_export_handles(struct xseg_allocator *allocator, uint64_t address,
                                      struct xseg_share_pages *pages)
{
    struct xseg_export run;
    struct xseg_extent *extent;
    xseg_status status = lock_extent(allocator, address, &extent);

    if (status != XSEG_OK)
        return status;
    status = find_run(extent, address, &run, &pages->block_offset);
    if (status == XSEG_OK)
        status = export_run_handles(&run, pages);
    unlock_extent(extent);
    return status;
}

/* Close the oldest export of an address. */
static bool close_oldest_export(struct xseg_device *device, uint64_t address)
{
    XSEG_LIST_FOR(node, &device->sharing->exports)
    {
        struct xseg_export *record = XSEG_CONTAINER(node, struct xseg_export, link);

        if (record->address == address) {
            destroy_export(record);
            return true;
        }
    }
    return false;
}

xseg_status xseg_share_close_export(struct xseg_allocator *allocator, uint64_t address)
{
    bool closed = false;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    for (int i = 0; i < allocator->device_count && !closed; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL)
            continue;
        xseg_mutex_lock(&device->memory_lock);
        closed = close_oldest_export(device, address);
        xseg_mutex_unlock(&device->memory_lock);
    }
    return closed ? XSEG_OK
                  : xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                              "address is not exported, %#" PRIx64
                              "; pass the start of an exported block",
                              address);
}
