/* SPDX-License-Identifier: MIT */
#include "xseg/pool.h"

#include <string.h>

#include "src/core/alloc/alloc.h"
#include "src/core/config/config.h"
#include "src/core/instance/instance.h"
#include "src/core/pool/checkpoint.h"
#include "src/core/pool/pause.h"
#include "src/core/reclaim/reclaim.h"
#include "src/entry.h"

xseg_status xseg_pool_create(struct xseg_allocator *allocator, int device,
                             const struct xseg_pool_options *options, struct xseg_pool **out)
{
    struct xseg_pool_options chosen = {sizeof(chosen)};
    struct xseg_device *found = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(out != NULL, "out is NULL");
    XSEG_ENTRY_IN(options, struct xseg_pool_options, memory);
    if (options != NULL)
        XSEG_ENTRY_COPY_IN(&chosen, options);
    XSEG_ENTRY_REQUIRE((chosen.memory.alloc == NULL) == (chosen.memory.free == NULL),
                       "memory.%s is NULL; set both memory functions, or none",
                       chosen.memory.alloc == NULL ? "alloc" : "free");
    XSEG_ENTRY_REQUIRE(!chosen.exportable || chosen.memory.alloc == NULL,
                       "exportable with memory functions; only pages of the driver can be "
                       "exported");
    XSEG_ENTRY_REQUIRE((!chosen.rdma && !chosen.single_page) || chosen.memory.alloc == NULL,
                       "%s with memory functions; only pages of the driver can have this "
                       "property",
                       chosen.rdma ? "rdma" : "single_page");
    XSEG_ENTRY_NAME(chosen.name);
    const xseg_status status = xseg_allocator_device(allocator, device, &found);
    return status == XSEG_OK ? xseg_device_create_pool(found, &chosen, out) : status;
}

xseg_status xseg_alloc_at(struct xseg_pool *pool, size_t bytes, xseg_stream stream, void *address,
                          void **out)
{
    const uint64_t target = (uint64_t)(uintptr_t)address;

    XSEG_ENTRY_POOL(pool);
    XSEG_ENTRY_REQUIRE(out != NULL, "out is NULL");
    XSEG_ENTRY_REQUIRE(target != 0 && target % XSEG_SIZE_UNIT == 0,
                       "address is NULL or not aligned, %p; use a multiple of %u", address,
                       (unsigned)XSEG_SIZE_UNIT);
    XSEG_ENTRY_REQUIRE(!xseg_pool_is_retired(pool), "pool has been released");
    if (bytes == 0) {
        *out = NULL;
        return XSEG_OK;
    }
    struct xseg_alloc_params params = {
        .config = xseg_allocator_config(pool->device->allocator),
        .pool = pool,
        .stream = stream,
        .address = target,
        .requested = bytes,
    };
    return xseg_slow_path_alloc(pool->device, &params, out);
}

xseg_status xseg_pool_set(struct xseg_pool *pool, enum xseg_pool_setting setting, bool on)
{
    XSEG_ENTRY_POOL(pool);
    XSEG_ENTRY_REQUIRE(setting == XSEG_POOL_NO_SPLIT || setting == XSEG_POOL_USE_ON_OOM ||
                           setting == XSEG_POOL_SINGLE_PAGE,
                       "unknown value of enum xseg_pool_setting, %d", (int)setting);
    XSEG_ENTRY_REQUIRE(!xseg_pool_is_retired(pool), "pool has been released");
    XSEG_ENTRY_REQUIRE(setting != XSEG_POOL_SINGLE_PAGE || !pool->has_own_memory,
                       "single_page with memory functions; only pages of the driver can have this "
                       "property");
    if (setting == XSEG_POOL_SINGLE_PAGE)
        return xseg_pool_set_single(pool, on);
    if (setting == XSEG_POOL_NO_SPLIT)
        atomic_store_explicit(&pool->no_split, on, memory_order_relaxed);
    else
        atomic_store_explicit(&pool->allows_fallback, on, memory_order_relaxed);
    return XSEG_OK;
}

xseg_status xseg_pool_retain(struct xseg_pool *pool)
{
    XSEG_ENTRY_POOL(pool);
    XSEG_ENTRY_REQUIRE(xseg_pool_try_retain(pool), "pool has been released");
    return XSEG_OK;
}

xseg_status xseg_pool_release(struct xseg_pool *pool)
{
    XSEG_ENTRY_POOL(pool);
    XSEG_ENTRY_REQUIRE(xseg_release_pool(pool), "pool has been released");
    return XSEG_OK;
}

xseg_status xseg_route_begin(struct xseg_pool *pool,
                             bool (*accepts)(void *context, xseg_stream stream), void *context)
{
    XSEG_ENTRY_POOL(pool);
    return xseg_route_start(pool, accepts, context);
}

xseg_status xseg_route_end(struct xseg_pool *pool)
{
    XSEG_ENTRY_POOL(pool);
    return xseg_route_stop(pool);
}

xseg_status xseg_pool_checkpoint(struct xseg_pool *pool, struct xseg_checkpoint **out)
{
    XSEG_ENTRY_POOL(pool);
    XSEG_ENTRY_REQUIRE(out != NULL, "out is NULL");
    XSEG_ENTRY_REQUIRE(!xseg_pool_is_retired(pool), "pool has been released");
    return xseg_checkpoint_take(pool, out);
}

void xseg_checkpoint_destroy(struct xseg_checkpoint *checkpoint)
{
    xseg_checkpoint_free(checkpoint);
}

xseg_status xseg_pool_restore(struct xseg_pool *pool, const struct xseg_checkpoint *checkpoint,
                              void (*moved)(void *context, void *ptr, bool freed), void *context)
{
    XSEG_ENTRY_POOL(pool);
    XSEG_ENTRY_REQUIRE(checkpoint != NULL, "checkpoint is NULL");
    XSEG_ENTRY_REQUIRE(
        checkpoint->pool == pool && checkpoint->serial == pool->serial,
        "checkpoint is of another pool, pool %s; restore pool %s from its own checkpoint",
        checkpoint->label, xseg_pool_label(pool));
    XSEG_ENTRY_REQUIRE(!xseg_pool_is_retired(pool), "pool has been released");
    struct xseg_allocator *allocator = pool->device->allocator;
    const xseg_status status = xseg_checkpoint_restore(checkpoint, moved, context);
    xseg_housekeeping_run(allocator);
    return status;
}

xseg_status xseg_pool_check_live(struct xseg_pool *pool, void *const *ptrs, size_t count,
                                 bool *exactly)
{
    XSEG_ENTRY_POOL(pool);
    XSEG_ENTRY_REQUIRE(exactly != NULL, "exactly is NULL");
    XSEG_ENTRY_REQUIRE(ptrs != NULL || count == 0, "ptrs is NULL, count %zu", count);
    return xseg_checkpoint_compare(pool, ptrs, count, exactly);
}

xseg_status xseg_pool_pause(struct xseg_pool *pool, enum xseg_keep keep, const char *file)
{
    XSEG_ENTRY_POOL(pool);
    XSEG_ENTRY_REQUIRE(keep == XSEG_KEEP_NOTHING || keep == XSEG_KEEP_HOST ||
                           keep == XSEG_KEEP_FILE,
                       "unknown value of enum xseg_keep, %d", (int)keep);
    XSEG_ENTRY_REQUIRE((keep == XSEG_KEEP_FILE) == (file != NULL), "%s",
                       file == NULL ? "file is NULL, but keep is XSEG_KEEP_FILE"
                                    : "file is set, but keep is not XSEG_KEEP_FILE");
    struct xseg_allocator *allocator = pool->device->allocator;
    const xseg_status status = xseg_pause_pool(pool, keep, file);
    xseg_housekeeping_run(allocator);
    return status;
}

xseg_status xseg_pool_resume(struct xseg_pool *pool)
{
    XSEG_ENTRY_POOL(pool);
    struct xseg_allocator *allocator = pool->device->allocator;
    const xseg_status status = xseg_resume_pool(pool);
    xseg_housekeeping_run(allocator);
    return status;
}

xseg_status xseg_capture_begin(struct xseg_pool *pool, xseg_stream stream)
{
    XSEG_ENTRY_POOL(pool);
    return xseg_capture_start(pool, stream);
}

xseg_status xseg_capture_end(struct xseg_pool *pool)
{
    XSEG_ENTRY_POOL(pool);
    return xseg_capture_stop(pool);
}

xseg_status xseg_capture_mark(struct xseg_allocator *allocator, int device)
{
    struct xseg_device *found = NULL;

    XSEG_ENTRY(allocator);
    const xseg_status status = xseg_allocator_device(allocator, device, &found);
    return status == XSEG_OK ? xseg_capture_mark_device(found) : status;
}

xseg_status xseg_capture_unmark(struct xseg_allocator *allocator, int device)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(device >= 0 && device < allocator->device_count,
                       "device %d does not exist; the driver has devices 0 to %d", device,
                       allocator->device_count - 1);
    struct xseg_device *found = xseg_allocator_open_device(allocator, device);
    XSEG_ENTRY_REQUIRE(
        found != NULL && xseg_capture_unmark_device(found),
        "no capture is marked on device %d; match each call to one xseg_capture_mark()", device);
    return XSEG_OK;
}
