/* SPDX-License-Identifier: MIT */
#include "src/scope.h"

#include "src/entry.h"

xseg_status xseg_scope_check(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                             struct xseg_scope *out)
{
    *out = (struct xseg_scope)XSEG_SCOPE_ALL;
    if (scope == NULL)
        return XSEG_OK;
    XSEG_ENTRY_IN(scope, struct xseg_scope, pool);
    XSEG_ENTRY_TAKE(out, scope);
    XSEG_ENTRY_REQUIRE(out->device >= -1 && out->device < allocator->device_count,
                       "device %d does not exist; use 0 to %d, or -1 for all devices", out->device,
                       allocator->device_count - 1);
    XSEG_ENTRY_REQUIRE(out->pool == NULL || xseg_allocator_owns(allocator, out->pool),
                       "pool is of another allocator, %s", xseg_pool_label(out->pool));
    return XSEG_OK;
}

struct xseg_device *xseg_scope_device(struct xseg_allocator *allocator,
                                      const struct xseg_scope *scope, int ordinal)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);

    if ((scope->device >= 0 && scope->device != ordinal) || device == NULL ||
        (scope->pool != NULL && scope->pool->device != device))
        return NULL;
    return device;
}

xseg_status xseg_scope_select(struct xseg_device *device, const struct xseg_scope *scope,
                              struct xseg_selection *out)
{
    struct xseg_known_stream *stream = NULL;
    xseg_status status = XSEG_OK;

    if (scope->one_stream)
        status = xseg_streams_find_or_add(&device->streams, scope->stream, &stream);
    *out = (struct xseg_selection){scope->pool, stream};
    return status;
}
