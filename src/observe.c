/* SPDX-License-Identifier: MIT */
#include "xseg/observe.h"

#include <inttypes.h>

#include "src/core/front/allocator_config.h"
#include "src/entry.h"

xseg_status xseg_observer_add(struct xseg_allocator *allocator,
                              const struct xseg_observer *observer, uint64_t *id)
{
    struct xseg_observer chosen = XSEG_OBSERVER_INIT;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(
        observer != NULL && id != NULL &&
            XSEG_ENTRY_UNDERSTANDS(observer, struct xseg_observer, came),
        "xseg_observer_add: the observer or id is NULL, or the observer is of unknown "
        "size: start from XSEG_OBSERVER_INIT");
    XSEG_ENTRY_REQUIRE(observer->short_of_memory != NULL || observer->out_of_memory != NULL ||
                           observer->rejected != NULL || observer->trace != NULL ||
                           observer->leaving != NULL || observer->came != NULL,
                       "xseg_observer_add: the observer has no function");
    XSEG_ENTRY_TAKE(&chosen, observer);
    return xseg_allocator_observe(allocator, &chosen, id);
}

xseg_status xseg_observer_remove(struct xseg_allocator *allocator, uint64_t id)
{
    XSEG_ENTRY(allocator);
    return xseg_allocator_unobserve(allocator, id);
}
