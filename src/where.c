/* SPDX-License-Identifier: MIT */
#include "src/where.h"

#include "src/entry.h"

xseg_status xseg_where_check(struct xseg_allocator *allocator, const struct xseg_scope *where,
                             struct xseg_scope *out)
{
    *out = (struct xseg_scope)XSEG_SCOPE_ALL;
    if (where == NULL)
        return XSEG_OK;
    XSEG_ENTRY_REQUIRE(XSEG_ENTRY_UNDERSTANDS(where, struct xseg_scope, pool),
                       "where->struct_size is %zu: start from XSEG_SCOPE_ALL", where->struct_size);
    XSEG_ENTRY_TAKE(out, where);
    XSEG_ENTRY_REQUIRE(out->device >= -1 && out->device < allocator->device_count,
                       "device %d: the driver shows devices 0 to %d, and -1 is all", out->device,
                       allocator->device_count - 1);
    XSEG_ENTRY_REQUIRE(out->pool == NULL || xseg_allocator_owns(allocator, out->pool),
                       "pool %s belongs to another allocator", xseg_pool_label(out->pool));
    return XSEG_OK;
}

struct xseg_device *xseg_where_device(struct xseg_allocator *allocator,
                                      const struct xseg_scope *where, int ordinal)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);

    if ((where->device >= 0 && where->device != ordinal) || device == NULL ||
        (where->pool != NULL && where->pool->device != device))
        return NULL;
    return device;
}

xseg_status xseg_where_select(struct xseg_device *device, const struct xseg_scope *where,
                              struct xseg_selection *out)
{
    struct xseg_known_stream *stream = NULL;
    xseg_status status = XSEG_OK;

    if (where->one_stream)
        status = xseg_streams_get(&device->streams, where->stream, &stream);
    *out = (struct xseg_selection){where->pool, stream};
    return status;
}
