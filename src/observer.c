/* SPDX-License-Identifier: MIT */
#include "xseg/observer.h"

#include <inttypes.h>

#include "src/core/instance/instance.h"
#include "src/entry.h"

xseg_status xseg_observer_add(struct xseg_allocator *allocator,
                              const struct xseg_observer *observer, uint64_t *id)
{
    struct xseg_observer chosen = {sizeof(chosen)};

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(observer != NULL && id != NULL, "%s is NULL",
                       observer == NULL ? "observer" : "id");
    XSEG_ENTRY_IN(observer, struct xseg_observer, on_map);
    XSEG_ENTRY_REQUIRE(observer->on_low_memory != NULL || observer->on_out_of_memory != NULL ||
                           observer->on_rejected != NULL || observer->on_trace != NULL ||
                           observer->on_unmap != NULL || observer->on_map != NULL,
                       "all callbacks of the observer are NULL; set at least one");
    XSEG_ENTRY_TAKE(&chosen, observer);
    return xseg_allocator_add_observer(allocator, &chosen, id);
}

xseg_status xseg_observer_remove(struct xseg_allocator *allocator, uint64_t id)
{
    XSEG_ENTRY(allocator);
    return xseg_allocator_remove_observer(allocator, id);
}
