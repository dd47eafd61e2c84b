/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/stress/exercise/kernel.h"
#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"
#include "xseg/sim.h"

/* --- Allocation. --- */

/* Whether a request may fail with this status when no fault is active. */
static bool may_fail(struct worker *worker, const struct pool *pool, xseg_status status)
{
    switch (status) {
    case XSEG_ERR_NO_MEMORY:
    case XSEG_ERR_LIMIT:
        return true;
    case XSEG_ERR_PAUSED:
        return worker->world->pools > 0;
    case XSEG_ERR_ARGUMENT:
        return pool != NULL && pool->features & FEATURE(RELEASED);
    default:
        return false;
    }
}

/* Expect that a new block overlaps no other block of this worker; world_check() compares the blocks of all workers. */
static void expect_no_overlap(const struct worker *worker, const struct block *new_block)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
        const struct block *block = &worker->block[i];

        if (block->ptr != NULL && block != new_block &&
            block->ptr < new_block->ptr + new_block->bytes &&
            new_block->ptr < block->ptr + block->bytes)
            failure("a block of %zu bytes at %p overlaps one of %zu bytes at %p", new_block->bytes,
                    (void *)new_block->ptr, block->bytes, (void *)block->ptr);
    }
}

/* Check the library's description of a new block, and read the pool of the block: the target of a route or a capture may
 * have served the request. */
static void expect_block_info(struct worker *worker, struct block *block,
                              const struct pool *requested_pool)
{
    struct xseg_block_info info = {sizeof(info)};

    CHECK_OK(CALL(xseg_block_query, worker->world->allocator,
                  block->ptr + below(worker, block->bytes), &info));
    CHECK(info.base == block->ptr);
    CHECK(info.state == XSEG_BLOCK_ALLOCATED);
    CHECK(info.requested == block->bytes);
    CHECK(info.bytes >= block->bytes);
    CHECK(info.device == block->device);
    if (!block->stream->is_per_thread && info.stream != block->stream->handle)
        failure("the block at %p is of stream %p instead of %p", (void *)block->ptr,
                (void *)info.stream, (void *)block->stream->handle);
    CHECK(requested_pool == NULL || info.pool == requested_pool->handle);
    block->pool = info.pool == NULL ? NULL : find_pool(worker->world, info.pool);
    CHECK((block->pool == NULL) == (info.pool == NULL));
}

static void queue_first_work(struct worker *worker, struct block *block, bool is_zeroed)
{
    if (!block_lock_contents(block))
        return;
    if (is_zeroed && !block->stream->is_captured) {
        const struct kernel kernel = {KERNEL_ZERO, block->ptr, block->ptr, block->bytes, 0};

        kernel_launch(&kernel, block->device, block->stream->handle, 1000);
    }
    if (!chance(worker, 8))
        block_queue_work(worker, block, block->stream, true);
    block_unlock_contents(block);
}

static xseg_status request_block(struct worker *worker, struct block *block, struct pool *pool,
                                 uint64_t *features, void **ptr)
{
    struct xseg_request request = {sizeof(request)};
    xseg_stream handle = block->stream->handle;

    if (handle == NULL && chance(worker, 3))
        handle = (xseg_stream)1;
    if (pool == NULL && chance(worker, 2))
        return CALL(xseg_alloc, worker->world->allocator, block->device, block->bytes, handle, ptr);
    request.device = block->device;
    request.bytes = block->bytes;
    request.stream = handle;
    request.pool = pool == NULL ? NULL : pool->handle;
    request.user = user_of(request.bytes);
    if (chance(worker, 6)) {
        request.alignment = (size_t)1 << below(worker, 25);
        *features |= request.alignment > 512 ? FEATURE(ALIGNED) : 0;
    }
    if (chance(worker, 6)) {
        request.zeroed = true;
        *features |= FEATURE(ZEROED);
    }
    const xseg_status status = CALL(xseg_alloc_with, worker->world->allocator, &request, ptr);
    CHECK(status != XSEG_OK || request.alignment == 0 || (uintptr_t)*ptr % request.alignment == 0);
    return status;
}

void step_alloc(struct worker *worker)
{
    struct world *world = worker->world;
    struct pool *pool = chance(worker, 2) ? any_own_pool(worker) : NULL;
    struct block *block = any_free_slot(worker), new_block = {0};
    const uint64_t epoch = fault_epoch();
    uint64_t features = 0;
    void *ptr = NULL;

    if (block == NULL)
        return;
    new_block.device = pool == NULL ? any_device(worker) : pool->device;
    new_block.stream = any_stream(worker, new_block.device);
    new_block.bytes = any_size(worker);
    worker->block_in_use = block;
    const xseg_status status = request_block(worker, &new_block, pool, &features, &ptr);
    worker->block_in_use = NULL;
    failure_record(worker->number, "alloc %zu bytes, device %d, stream %p, pool %p: %d, %p",
                   new_block.bytes, new_block.device, (void *)new_block.stream->handle,
                   pool == NULL ? NULL : (void *)pool->handle, status, ptr);
    record_features(world, features, new_block.device, pool, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || may_fail(worker, pool, status) || !fault_was_none(epoch));
    if (status != XSEG_OK) {
        CHECK(ptr == NULL);
        return;
    }
    new_block.ptr = ptr;
    new_block.last_stream = new_block.stream;
    new_block.features = features | (world->features & (FEATURE(GUARD) | FEATURE(UNMAP)));
    expect_no_overlap(worker, &new_block);
    expect_block_info(worker, &new_block, pool);
    if (new_block.pool != pool)
        record_features(world, features, new_block.device, new_block.pool, NULL, true);
    *block = new_block;
    queue_first_work(worker, block, features & FEATURE(ZEROED));
}

/* --- Free. --- */

/* Compare the contents of a block before it is freed. */
static void read_block(struct worker *worker, struct block *block)
{
    if (!block->is_written || block->last_stream == NULL || block->last_stream->is_captured ||
        !block_lock_contents(block))
        return;
    block_queue_work(worker, block, block->last_stream, false);
    block_unlock_contents(block);
}

static void record_free(struct worker *worker, const struct block *block, xseg_status status)
{
    failure_record(worker->number, "free %p of %zu bytes, device %d, pool %p: %d",
                   (void *)block->ptr, block->bytes, block->device,
                   block->pool == NULL ? NULL : (void *)block->pool->handle, status);
    record_features(worker->world, 0, block->device, block->pool, block, status == XSEG_OK);
}

void free_block(struct worker *worker, struct block *block)
{
    struct world *world = worker->world;
    const uint64_t epoch = fault_epoch();
    char *ptr = block->ptr;

    if (chance(worker, 2))
        read_block(worker, block);
    const xseg_status status = CALL(xseg_free, world->allocator, ptr);
    record_free(worker, block, status);
    CHECK(status == XSEG_OK || (!fault_was_none(epoch) && status != XSEG_ERR_NOT_ALLOCATED));
    if (status == XSEG_OK) {
        block->ptr = NULL;
        /* Free the block twice, unless another thread may have allocated it since. */
        if (world->options.threads == 1 && chance(worker, 16))
            CHECK(CALL(xseg_free, world->allocator, ptr) == XSEG_ERR_NOT_ALLOCATED);
    } else {
        struct xseg_block_info info = {sizeof(info)};

        CHECK_OK(CALL(xseg_block_query, world->allocator, ptr, &info));
        CHECK(info.base == ptr && info.state == XSEG_BLOCK_ALLOCATED);
    }
}

void step_free(struct worker *worker)
{
    struct block *block = any_block(worker);

    if (block != NULL)
        free_block(worker, block);
}

/* Free a block after events, which follow work on up to two streams that the library does not know. */
void step_free_after(struct worker *worker)
{
    struct world *world = worker->world;
    struct block *block = any_block(worker);
    xseg_event events[2];
    size_t count = 0;

    if (block == NULL)
        return;
    const bool is_reached = block_lock_contents(block);
    for (unsigned i = 0; i < 2; i++) {
        const struct stream *stream = any_stream(worker, block->device);

        if (stream->is_captured || block->has_foreign_work ||
            (block->last_stream != NULL && block->last_stream->is_captured))
            continue;
        if (block->last_stream != NULL && block->last_stream != stream)
            driver_wait(block->device, stream->handle, block->last_stream->handle);
        if (is_reached)
            driver_work(block->device, stream->handle, 1 + below(worker, 10000000), block->ptr,
                        block->bytes);
        events[count++] = driver_event(block->device, stream->handle);
    }
    if (is_reached)
        block_unlock_contents(block);
    const uint64_t epoch = fault_epoch();
    const xseg_status status =
        CALL(xseg_free_after, world->allocator, block->ptr, count == 0 ? NULL : events, count);
    block->features |= FEATURE(FREE_AFTER);
    record_free(worker, block, status);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || !fault_was_none(epoch));
    for (size_t i = 0; i < count; i++) {
        /* The block is still allocated, and xseg_free() would not wait for the work. */
        if (status != XSEG_OK)
            synchronize_streams(worker);
        driver_event_destroy(events[i]);
    }
    if (status == XSEG_OK)
        block->ptr = NULL;
}

void step_burst(struct worker *worker)
{
    const unsigned first = (unsigned)below(worker, WORLD_BLOCKS);

    for (unsigned i = 0; i < WORLD_BLOCKS / 3; i++)
        if (worker->block[(first + i) % WORLD_BLOCKS].ptr != NULL)
            free_block(worker, &worker->block[(first + i) % WORLD_BLOCKS]);
}

/* --- Use. --- */

void step_access(struct worker *worker)
{
    struct block *block = any_block(worker);

    if (block == NULL || !block_lock_contents(block))
        return;
    struct stream *stream = any_stream(worker, block->device);
    const bool writes = chance(worker, 3);

    failure_record(worker->number, "%s %p of %zu bytes on stream %p", writes ? "write" : "read",
                   (void *)block->ptr, block->bytes, (void *)stream->handle);
    block_queue_work(worker, block, stream, writes);
    block_unlock_contents(block);
    record_features(worker->world, 0, block->device, block->pool, block, true);
}

/* Record a use without work, also for a block of a paused pool. */
void step_record_stream(struct worker *worker)
{
    struct block *block = any_block(worker);
    const uint64_t epoch = fault_epoch();

    if (block == NULL)
        return;
    const struct stream *stream = any_stream(worker, block->device);
    const xseg_status status =
        CALL(xseg_record_stream, worker->world->allocator, block->ptr, stream->handle);

    block->features |= FEATURE(USE);
    failure_record(worker->number, "use %p on stream %p: %d", (void *)block->ptr,
                   (void *)stream->handle, status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
}

/* Invalid input is rejected and has no effect. */
void step_invalid(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    struct block *block = any_block(worker);
    const struct xseg_request request = {sizeof(request), .bytes = 1, .alignment = 3};
    void *ptr = NULL;

    CHECK(CALL(xseg_alloc_with, allocator, &request, &ptr) == XSEG_ERR_ARGUMENT);
    CHECK(CALL(xseg_alloc, allocator, 99, 1, NULL, &ptr) == XSEG_ERR_ARGUMENT);
    CHECK(CALL(xseg_alloc, allocator, 0, 0, NULL, &ptr) == XSEG_OK && ptr == NULL);
    CHECK_OK(CALL(xseg_free, allocator, NULL));
    if (block == NULL || block->bytes <= 512)
        return;
    CHECK(CALL(xseg_free, allocator, block->ptr + 512) == XSEG_ERR_NOT_ALLOCATED);
    CHECK(CALL(xseg_record_stream, allocator, block->ptr + 512, NULL) == XSEG_ERR_NOT_ALLOCATED);
    if (block_lock_contents(block)) {
        CHECK(CALL(xseg_pin, allocator, block->ptr, SIZE_MAX / 2) == XSEG_ERR_ARGUMENT);
        block_unlock_contents(block);
    }
    CHECK(CALL(xseg_export_close, allocator, block->ptr + 512) == XSEG_ERR_NOT_ALLOCATED);
}
