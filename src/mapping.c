/* SPDX-License-Identifier: MIT */
#include "xseg/mapping.h"

#include <stdlib.h>

#include "src/core/reclaim/mapping.h"
#include "src/entry.h"
#include "src/scope.h"

static xseg_status check_part(const void *ptr, size_t bytes)
{
    XSEG_ENTRY_REQUIRE(ptr != NULL, "ptr is NULL");
    XSEG_ENTRY_REQUIRE(bytes != 0, "bytes is 0");
    XSEG_ENTRY_REQUIRE(bytes <= UINTPTR_MAX - (uintptr_t)ptr,
                       "bytes exceeds the address space, %zu", bytes);
    return XSEG_OK;
}

xseg_status xseg_pin(struct xseg_allocator *allocator, const void *ptr, size_t bytes)
{
    XSEG_ENTRY(allocator);
    const xseg_status status = check_part(ptr, bytes);
    return status == XSEG_OK ? xseg_mapping_pin(allocator, (uintptr_t)ptr, bytes) : status;
}

xseg_status xseg_unpin(struct xseg_allocator *allocator, const void *ptr, size_t bytes)
{
    XSEG_ENTRY(allocator);
    const xseg_status status = check_part(ptr, bytes);
    return status == XSEG_OK ? xseg_mapping_unpin(allocator, (uintptr_t)ptr, bytes) : status;
}

xseg_status xseg_for_each_mapping(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                  bool (*visit)(void *context, const struct xseg_mapping *mapping),
                                  void *context)
{
    struct xseg_mapping_list list = {0};
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(visit != NULL, "visit is NULL");
    xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    for (int i = 0; status == XSEG_OK && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_scope_device(allocator, &chosen, i);
        struct xseg_selection selection;

        if (device == NULL)
            continue;
        status = xseg_scope_select(device, &chosen, &selection);
        if (status == XSEG_OK)
            status = xseg_mapping_collect(device, selection.pool, selection.stream, &list);
    }
    for (size_t i = 0; status == XSEG_OK && i < list.count; i++)
        if (!visit(context, &list.mapping[i]))
            break;
    free(list.mapping);
    return status;
}
