/* SPDX-License-Identifier: MIT */
#include "xseg/pool.h"

#include "src/door.h"

xseg_status xseg_pool_create(struct xseg_allocator *allocator, int device,
                             const struct xseg_pool_options *options, struct xseg_pool **out)
{
    struct xseg_device *found = NULL;

    XSEG_DOOR(allocator);
    XSEG_DOOR_REQUIRE(out != NULL, "xseg_pool_create: out is NULL");
    XSEG_DOOR_REQUIRE(options == NULL || XSEG_DOOR_PUBLISHED(options, struct xseg_pool_options),
                      "xseg_pool_create: options->struct_bytes is %zu: start from "
                      "XSEG_POOL_OPTIONS_INIT",
                      options->struct_bytes);
    const xseg_status status = xseg_allocator_device(allocator, device, &found);
    return status == XSEG_OK ? xseg_device_make_pool(found, out) : status;
}

xseg_status xseg_pool_retain(struct xseg_pool *pool)
{
    XSEG_DOOR_REQUIRE(pool != NULL, "xseg_pool_retain: the pool is NULL");
    if (xseg_fork_is_child(pool->device->fork))
        return xseg_door_forked();
    XSEG_DOOR_REQUIRE(xseg_pool_hold(pool), "xseg_pool_retain: nobody holds the pool any more");
    return XSEG_OK;
}

xseg_status xseg_pool_release(struct xseg_pool *pool)
{
    XSEG_DOOR_REQUIRE(pool != NULL, "xseg_pool_release: the pool is NULL");
    if (xseg_fork_is_child(pool->device->fork))
        return xseg_door_forked();
    XSEG_DOOR_REQUIRE(xseg_pool_let_go(pool), "xseg_pool_release: nobody holds the pool any more");
    return XSEG_OK;
}
