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
static bool may_fail(struct worker *worker, const struct tag *tag, xseg_status status)
{
    switch (status) {
    case XSEG_ERR_NO_MEMORY:
    case XSEG_ERR_LIMIT:
        return true;
    case XSEG_ERR_PAUSED:
        return worker->world->tags > 0;
    case XSEG_ERR_ARGUMENT:
        return tag != NULL && tag->features & FEATURE(RELEASED);
    default:
        return false;
    }
}

/* Expect that the block overlaps no other block of this worker; world_check() compares those of all workers. */
static void expect_apart(const struct worker *worker, const struct block *made)
{
    for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
        const struct block *block = &worker->block[i];

        if (block->ptr != NULL && block != made && block->ptr < made->ptr + made->bytes &&
            made->ptr < block->ptr + block->bytes)
            failure("a block of %zu bytes at %p overlaps one of %zu bytes at %p", made->bytes,
                    (void *)made->ptr, block->bytes, (void *)block->ptr);
    }
}

/* The library's information about a new block; its pool is the target of the route or capture. */
static void expect_described(struct worker *worker, struct block *block, const struct tag *named)
{
    struct xseg_block_info info = {sizeof(info)};

    CHECK_OK(CALL(xseg_block_query, worker->world->allocator,
                  block->ptr + below(worker, block->bytes), &info));
    CHECK(info.base == block->ptr);
    CHECK(info.state == XSEG_BLOCK_ALLOCATED);
    CHECK(info.requested == block->bytes);
    CHECK(info.bytes >= block->bytes);
    CHECK(info.device == block->device);
    if (!block->home->is_per_thread && info.stream != block->home->handle)
        failure("the block at %p is of stream %p instead of %p", (void *)block->ptr,
                (void *)info.stream, (void *)block->home->handle);
    CHECK(named == NULL || info.pool == named->pool);
    block->tag = info.pool == NULL ? NULL : find_tag(worker->world, info.pool);
    CHECK((block->tag == NULL) == (info.pool == NULL));
}

static void work_on_new(struct worker *worker, struct block *block, bool is_zeroed)
{
    if (!block_enter(block))
        return;
    if (is_zeroed && !block->home->is_captured) {
        const struct kernel kernel = {KERNEL_ZERO, block->ptr, block->ptr, block->bytes, 0};

        kernel_launch(&kernel, block->device, block->home->handle, 1000);
    }
    if (!chance(worker, 8))
        block_work(worker, block, block->home, true);
    block_leave(block);
}

static xseg_status request_block(struct worker *worker, struct block *block, struct tag *tag,
                                 uint64_t *features, void **ptr)
{
    struct xseg_request request = {sizeof(request)};
    xseg_stream handle = block->home->handle;

    if (handle == NULL && chance(worker, 3))
        handle = (xseg_stream)1;
    if (tag == NULL && chance(worker, 2))
        return CALL(xseg_alloc, worker->world->allocator, block->device, block->bytes, handle, ptr);
    request.device = block->device;
    request.bytes = block->bytes;
    request.stream = handle;
    request.pool = tag == NULL ? NULL : tag->pool;
    request.user = word_of(request.bytes);
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
    struct tag *tag = chance(worker, 2) ? any_own_tag(worker) : NULL;
    struct block *block = free_block(worker), made = {0};
    const uint64_t epoch = fault_epoch();
    uint64_t features = 0;
    void *ptr = NULL;

    if (block == NULL)
        return;
    made.device = tag == NULL ? any_device(worker) : tag->device;
    made.home = any_stream(worker, made.device);
    made.bytes = any_size(worker);
    worker->held = block;
    const xseg_status status = request_block(worker, &made, tag, &features, &ptr);
    worker->held = NULL;
    failure_note(worker->number, "alloc %zu bytes, device %d, stream %p, pool %p: %d, %p",
                 made.bytes, made.device, (void *)made.home->handle,
                 tag == NULL ? NULL : (void *)tag->pool, status, ptr);
    note_features(world, features, made.device, tag, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || may_fail(worker, tag, status) || !fault_was_none(epoch));
    if (status != XSEG_OK) {
        CHECK(ptr == NULL);
        return;
    }
    made.ptr = ptr;
    made.last = made.home;
    made.features = features | (world->features & (FEATURE(GUARD) | FEATURE(UNMAP)));
    expect_apart(worker, &made);
    expect_described(worker, &made, tag);
    if (made.tag != tag)
        note_features(world, features, made.device, made.tag, NULL, true);
    *block = made;
    work_on_new(worker, block, features & FEATURE(ZEROED));
}

/* --- Free. --- */

/* The last access before a block is freed. */
static void read_block(struct worker *worker, struct block *block)
{
    if (!block->is_written || block->last == NULL || block->last->is_captured ||
        !block_enter(block))
        return;
    block_work(worker, block, block->last, false);
    block_leave(block);
}

static void record_free(struct worker *worker, const struct block *block, xseg_status status)
{
    failure_note(worker->number, "free %p of %zu bytes, device %d, pool %p: %d", (void *)block->ptr,
                 block->bytes, block->device, block->tag == NULL ? NULL : (void *)block->tag->pool,
                 status);
    note_features(worker->world, 0, block->device, block->tag, block, status == XSEG_OK);
}

void free_block_of(struct worker *worker, struct block *block)
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
        /* Only if no other thread can have allocated it in the meantime. */
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
        free_block_of(worker, block);
}

/* Work on streams that are not recorded with the library, and events after it. */
void step_free_after(struct worker *worker)
{
    struct world *world = worker->world;
    struct block *block = any_block(worker);
    xseg_event events[2];
    size_t count = 0;

    if (block == NULL)
        return;
    const bool is_reached = block_enter(block);
    for (unsigned i = 0; i < 2; i++) {
        const struct stream *stream = any_stream(worker, block->device);

        if (stream->is_captured || block->is_out_of_reach ||
            (block->last != NULL && block->last->is_captured))
            continue;
        if (block->last != NULL && block->last != stream)
            driver_wait(block->device, stream->handle, block->last->handle);
        if (is_reached)
            driver_work(block->device, stream->handle, 1 + below(worker, 10000000), block->ptr,
                        block->bytes);
        events[count++] = driver_event(block->device, stream->handle);
    }
    if (is_reached)
        block_leave(block);
    const uint64_t epoch = fault_epoch();
    const xseg_status status =
        CALL(xseg_free_after, world->allocator, block->ptr, count == 0 ? NULL : events, count);
    block->features |= FEATURE(FREE_AFTER);
    record_free(worker, block, status);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || !fault_was_none(epoch));
    for (size_t i = 0; i < count; i++) {
        /* The block is still allocated and may be freed another way: no work may use it then. */
        if (status != XSEG_OK)
            finish_streams(worker);
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
            free_block_of(worker, &worker->block[(first + i) % WORLD_BLOCKS]);
}

/* --- Use. --- */

void step_touch(struct worker *worker)
{
    struct block *block = any_block(worker);

    if (block == NULL || !block_enter(block))
        return;
    struct stream *stream = any_stream(worker, block->device);
    const bool writes = chance(worker, 3);

    failure_note(worker->number, "%s %p of %zu bytes on stream %p", writes ? "write" : "read",
                 (void *)block->ptr, block->bytes, (void *)stream->handle);
    block_work(worker, block, stream, writes);
    block_leave(block);
    note_features(worker->world, 0, block->device, block->tag, block, true);
}

/* A use that fails; also of a block whose memory is evicted. */
void step_use(struct worker *worker)
{
    struct block *block = any_block(worker);
    const uint64_t epoch = fault_epoch();

    if (block == NULL)
        return;
    const struct stream *stream = any_stream(worker, block->device);
    const xseg_status status =
        CALL(xseg_record_stream, worker->world->allocator, block->ptr, stream->handle);

    block->features |= FEATURE(USE);
    failure_note(worker->number, "use %p on stream %p: %d", (void *)block->ptr,
                 (void *)stream->handle, status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
}

/* Invalid input is rejected, and changes nothing. */
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
    if (block_enter(block)) {
        CHECK(CALL(xseg_pin, allocator, block->ptr, SIZE_MAX / 2) == XSEG_ERR_ARGUMENT);
        block_leave(block);
    }
    CHECK(CALL(xseg_export_close, allocator, block->ptr + 512) == XSEG_ERR_NOT_ALLOCATED);
}
