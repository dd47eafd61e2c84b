/* SPDX-License-Identifier: MIT */
#include "xseg/range.h"

#include <string.h>

#include "src/core/instance/instance.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/reclaim.h"
#include "src/core/report/snapshot.h"
#include "src/entry.h"

/* Returns from the entry point unless the range's allocator can be used by this process. */
#define ENTRY_RANGE(range)                                        \
    XSEG_OPERATION(__func__);                                     \
    do {                                                          \
        if ((range) == NULL)                                      \
            return xseg_fail(XSEG_ERR_ARGUMENT, "range is NULL"); \
        if (xseg_fork_guard_is_child((range)->device->fork))      \
            return xseg_allocator_fail_forked();                  \
        xseg_housekeeping_run((range)->device->allocator);        \
        xseg_allocator_gather((range)->device->allocator, NULL);  \
    } while (0)

/* End a call: notify observers and run the housekeeping. */
static xseg_status end_call(const struct xseg_range *range, xseg_status status)
{
    xseg_housekeeping_end_call(range->device->allocator);
    return status;
}

/* Retain the pool of a new range: the pool that the options name, or a new one. */
static xseg_status retain_pool(struct xseg_device *device, const struct xseg_range_options *options,
                               struct xseg_pool **out)
{
    struct xseg_pool_options pool_options = {sizeof(pool_options)};

    if (options->pool == NULL) {
        pool_options.exportable = options->exportable;
        pool_options.rdma = options->rdma;
        pool_options.name = options->name;
        return xseg_device_create_pool(device, &pool_options, out);
    }
    XSEG_ENTRY_REQUIRE(options->pool->device == device,
                       "pool is of another device or allocator, pool %s; use a pool of device %d",
                       xseg_pool_label(options->pool), device->context.ordinal);
    XSEG_ENTRY_REQUIRE(!options->exportable && !options->rdma && options->name == NULL,
                       "%s is set together with pool; set it in the options of the pool",
                       options->exportable ? "exportable"
                       : options->rdma     ? "rdma"
                                           : "name");
    XSEG_ENTRY_REQUIRE(xseg_pool_try_retain(options->pool), "pool has been released");
    *out = options->pool;
    return XSEG_OK;
}

xseg_status xseg_range_reserve(struct xseg_allocator *allocator, int device, uint64_t bytes,
                               const struct xseg_range_options *options, struct xseg_range **out)
{
    struct xseg_range_options chosen = {sizeof(chosen)};
    struct xseg_device *found = NULL;
    struct xseg_pool *pool = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(out != NULL, "out is NULL");
    XSEG_ENTRY_IN(options, struct xseg_range_options, name);
    if (options != NULL)
        XSEG_ENTRY_COPY_IN(&chosen, options);
    XSEG_ENTRY_NAME(chosen.name);
    xseg_status status = xseg_allocator_device(allocator, device, &found);
    if (status == XSEG_OK)
        status = retain_pool(found, &chosen, &pool);
    if (status != XSEG_OK)
        return status;
    status = xseg_ranges_reserve(pool, bytes, &chosen, out);
    if (status != XSEG_OK)
        (void)xseg_release_pool(pool);
    xseg_housekeeping_end_call(allocator);
    return status;
}

xseg_status xseg_range_release(struct xseg_range *range)
{
    ENTRY_RANGE(range);
    return end_call(range, xseg_ranges_release(range));
}

xseg_status xseg_range_commit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                              xseg_stream stream)
{
    ENTRY_RANGE(range);
    struct xseg_range_oom oom = {.arena = NULL};
    const xseg_status status = xseg_ranges_commit(range, offset, bytes, stream, &oom);
    if (oom.arena != NULL)
        xseg_oom_report(oom.arena, &oom.params, status, false);
    if (oom.retained != NULL)
        (void)xseg_release_pool(oom.retained);
    return end_call(range, status);
}

xseg_status xseg_range_decommit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                xseg_stream stream)
{
    ENTRY_RANGE(range);
    return end_call(range, xseg_ranges_decommit(range, offset, bytes, stream));
}

xseg_status xseg_range_prepare(struct xseg_range *range, uint64_t bytes)
{
    ENTRY_RANGE(range);
    return end_call(range, xseg_ranges_prepare(range, bytes));
}

xseg_status xseg_range_set_quota(struct xseg_range *range, uint64_t bytes)
{
    ENTRY_RANGE(range);
    return end_call(range, xseg_ranges_set_quota(range, bytes));
}

xseg_status xseg_range_hold(struct xseg_range *range, uint64_t offset, uint64_t bytes)
{
    ENTRY_RANGE(range);
    return xseg_ranges_hold(range, offset, bytes);
}

xseg_status xseg_range_unhold(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                              xseg_stream stream)
{
    ENTRY_RANGE(range);
    return end_call(range, xseg_ranges_unhold(range, offset, bytes, stream));
}

xseg_status xseg_range_alias(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                             struct xseg_range *from, uint64_t from_offset)
{
    ENTRY_RANGE(range);
    XSEG_ENTRY_REQUIRE(from != NULL, "from is NULL");
    return end_call(range, xseg_ranges_alias(range, offset, bytes, from, from_offset));
}

xseg_status xseg_range_query(struct xseg_range *range, struct xseg_range_info *out)
{
    struct xseg_range_info info = {sizeof(info)};

    ENTRY_RANGE(range);
    XSEG_ENTRY_OUT(out);
    const xseg_status status = xseg_ranges_query(range, &info);
    if (status == XSEG_OK)
        XSEG_ENTRY_COPY_OUT(out, &info);
    return status;
}
