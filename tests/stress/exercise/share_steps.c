/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/kernel.h"
#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"
#include "tests/support/exported_handles.h"

void step_pin(struct worker *worker)
{
    struct block *block = any_block(worker);
    struct pin *pin = &worker->pin[below(worker, WORLD_PINS)];

    if (block == NULL || pin->ptr != NULL)
        return;
    const size_t offset = below(worker, block->bytes);
    const size_t bytes = 1 + below(worker, block->bytes - offset);
    const uint64_t epoch = fault_epoch();
    const xseg_status status = CALL(xseg_pin, worker->world->allocator, block->ptr + offset, bytes);

    failure_record(worker->number, "pin %zu bytes at %p: %d", bytes, (void *)(block->ptr + offset),
                   status);
    record_features(worker->world, FEATURE(PIN), block->device, block->pool, block,
                    status == XSEG_OK);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_PAUSED && block->pool != NULL));
    if (status != XSEG_OK)
        return;
    mark_block(block, FEATURE(PIN));
    *pin = (struct pin){block->ptr + offset, bytes};
}

void step_unpin(struct worker *worker)
{
    struct pin *pin = &worker->pin[below(worker, WORLD_PINS)];

    if (pin->ptr == NULL)
        return;
    CHECK_OK(CALL(xseg_unpin, worker->world->allocator, pin->ptr, pin->bytes));
    failure_record(worker->number, "unpin %zu bytes at %p", pin->bytes, (const void *)pin->ptr);
    pin->ptr = NULL;
}

/* --- Exports and imports. --- */

/* Compare the imported memory with the contents of the exported block. */
static void read_import(struct share *share, const struct block *block)
{
    const unsigned epoch = block->pool == NULL ? 0 : atomic_load(&block->pool->epoch);
    const struct kernel kernel = {KERNEL_READ, share->imported, block->ptr, block->bytes,
                                  block->number};

    if (!block->is_written || block->epoch != epoch || block->last_stream == NULL ||
        block->last_stream->is_captured)
        return;
    kernel_launch(&kernel, block->device, block->last_stream->handle, 1000);
    share->stream = block->last_stream;
}

/* Export a block by a token, or by raw handles if token is NULL.  The caller closes the handles. */
static xseg_status export_block(struct xseg_allocator *allocator, void *ptr,
                                struct exported_handles *exported, struct xseg_export_token *token)
{
    if (token != NULL)
        return CALL(xseg_export, allocator, ptr, token, &exported->offset);
    const xseg_status status =
        CALL(xseg_export_handles, allocator, ptr, exported->type, exported->handle, EXPORTED_MAX,
             &exported->count, &exported->offset);
    CHECK(status != XSEG_ERR_ARGUMENT);
    exported->count = status == XSEG_OK ? exported->count : 0;
    return status;
}

/* Import an exported block by a token, or by raw handles if token is NULL. */
static void import_share(struct worker *worker, struct share *share,
                         struct exported_handles *exported, const struct xseg_export_token *token,
                         struct block *block)
{
    const uint64_t epoch = fault_epoch();
    const xseg_status status =
        token != NULL
            ? CALL(xseg_import, worker->world->allocator, block->device, token, &share->base)
            : CALL(xseg_import_handles, worker->world->allocator, block->device, exported->type,
                   exported->handle, exported->count, &share->base);

    share->imported = status == XSEG_OK ? (char *)share->base + exported->offset : NULL;
    failure_record(worker->number, "import of %p: %d, %p", (void *)block->ptr, status,
                   share->imported);
    record_features(worker->world, FEATURE(IMPORT) | FEATURE(EXPORT), block->device, block->pool,
                    block, status == XSEG_OK);
    /* UNSUPPORTED: a fault during the probe of the device has made all its segments classic. */
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_UNSUPPORTED && fault_count() != 0));
    export_handles_close(exported);
    if (status != XSEG_OK)
        return;
    if (block_lock_contents(block)) {
        read_import(share, block);
        block_unlock_contents(block);
    }
    mark_block(block, FEATURE(IMPORT));
}

/* Export the segment of a block, and import it.  The export is closed with the pool of the block. */
static void share_segment(struct worker *worker, struct share *share, const struct block *block)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    const uint64_t epoch = fault_epoch();
    struct xseg_export_token token;
    void *base = NULL;
    xseg_status status = CALL(xseg_export_segment, allocator, block->ptr, &token);

    failure_record(worker->number, "export the segment of %p: %d", (void *)block->ptr, status);
    if (status == XSEG_OK) {
        worker->world->had_shares = true;
        status = CALL(xseg_import, allocator, block->device, &token, &base);
        failure_record(worker->number, "import of the segment: %d, %p", status, base);
    }
    /* UNSUPPORTED: the pool is not exportable or has been released, or a fault during the probe of the device has made
     * all its segments classic.  PAUSED, NOT_ALLOCATED: another thread pauses the pool. */
    CHECK(status == XSEG_OK || !fault_was_none(epoch) || status == XSEG_ERR_PAUSED ||
          status == XSEG_ERR_UNSUPPORTED || status == XSEG_ERR_NOT_ALLOCATED);
    if (status == XSEG_OK)
        *share = (struct share){.imported = base, .base = base, .device = block->device};
}

void step_export(struct worker *worker)
{
    struct world *world = worker->world;
    struct share *share = &worker->share[below(worker, WORLD_SHARES)];
    struct block *block = any_block(worker);
    struct exported_handles exported;
    struct xseg_export_token token;

    /* Prefer a block that can be exported. */
    for (unsigned i = 0; i < 8 && !world->is_exportable && block != NULL &&
                         (block->pool == NULL || !(block->pool->features & FEATURE(EXPORTABLE)));
         i++)
        block = any_block(worker);
    if (block == NULL || share->exported != NULL || share->imported != NULL)
        return;
    if (block->pool != NULL && chance(worker, 8)) {
        share_segment(worker, share, block);
        return;
    }
    const uint64_t epoch = fault_epoch();
    const bool by_token = chance(worker, 2);

    exported.type = XSEG_HANDLE_FD;
    exported.count = 0;
    const xseg_status status =
        export_block(world->allocator, block->ptr, &exported, by_token ? &token : NULL);
    failure_record(worker->number, "export %p: %d", (void *)block->ptr, status);
    record_features(world, FEATURE(EXPORT), block->device, block->pool, block, status == XSEG_OK);
    CHECK(status == XSEG_OK || status == XSEG_ERR_UNSUPPORTED || !fault_was_none(epoch) ||
          (status == XSEG_ERR_PAUSED && block->pool != NULL));
    if (status != XSEG_OK)
        return;
    CHECK(world->is_exportable ||
          (block->pool != NULL && block->pool->features & FEATURE(EXPORTABLE)));
    world->had_shares = true;
    mark_block(block, FEATURE(EXPORT));
    *share = (struct share){.exported = block->ptr, .device = block->device};
    import_share(worker, share, &exported, by_token ? &token : NULL, block);
}

static struct block *find_block(struct worker *worker, const void *ptr)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++)
        if (worker->block[i].ptr == ptr)
            return &worker->block[i];
    return NULL;
}

static void close_import(struct worker *worker, struct share *share)
{
    struct block *block = share->exported == NULL ? NULL : find_block(worker, share->exported);
    const uint64_t epoch = fault_epoch();

    if (block != NULL && block->features & FEATURE(IMPORT) && block_lock_contents(block)) {
        read_import(share, block);
        block_unlock_contents(block);
    }
    /* A capturing stream cannot be synchronized, so its earlier work may still use the memory. */
    if (share->stream != NULL && share->stream->is_captured)
        return;
    if (share->stream != NULL)
        driver_finish(share->device, share->stream->handle);
    share->stream = NULL;
    const xseg_status status = CALL(xseg_import_close, worker->world->allocator, share->base);
    failure_record(worker->number, "end of the import %p: %d", share->imported, status);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || !fault_was_none(epoch));
    if (status == XSEG_OK)
        share->imported = NULL;
}

void close_share(struct worker *worker, struct share *share)
{
    if (share->imported != NULL)
        close_import(worker, share);
    if (share->exported != NULL) {
        CHECK_OK(CALL(xseg_export_close, worker->world->allocator, share->exported));
        failure_record(worker->number, "end of the export %p", share->exported);
    }
    share->exported = NULL;
}

/* Close an export, an import or both, in either order. */
void step_export_close(struct worker *worker)
{
    struct share *share = &worker->share[below(worker, WORLD_SHARES)];

    if (share->exported != NULL && share->imported != NULL && chance(worker, 2)) {
        CHECK_OK(CALL(xseg_export_close, worker->world->allocator, share->exported));
        share->exported = NULL;
        return;
    }
    close_share(worker, share);
}

/* --- Peers. --- */

/* Let a peer access a block, and wait for it: the library does not know of this work. */
static void queue_peer_work(struct worker *worker, const struct block *block, int peer)
{
    const struct stream *stream = &worker->own[peer][below(worker, WORLD_OWN)];

    if (stream->is_captured)
        return;
    driver_work(peer, stream->handle, 1 + below(worker, 100000), block->ptr, block->bytes);
    driver_finish(peer, stream->handle);
}

void step_peer(struct worker *worker)
{
    struct world *world = worker->world;
    struct block *block = any_block(worker);
    const int peer = any_device(worker);

    if (block == NULL)
        return;
    const int owner = block->device;
    const uint64_t epoch = fault_epoch();
    const xseg_status status = CALL(xseg_peer_allow, world->allocator, owner, peer);
    failure_record(worker->number, "access to device %d for device %d: %d", owner, peer, status);
    if (owner == peer) {
        CHECK(status == XSEG_ERR_ARGUMENT);
        return;
    }
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY ||
          (status == XSEG_ERR_UNSUPPORTED && world->without_peers) || !fault_was_none(epoch));
    CHECK(status != XSEG_OK || !world->without_peers);
    if (status == XSEG_OK)
        atomic_store(&world->allowed[owner][peer], true);
    if (atomic_load(&world->allowed[owner][peer]) && block_lock_contents(block)) {
        queue_peer_work(worker, block, peer);
        block_unlock_contents(block);
    }
}
