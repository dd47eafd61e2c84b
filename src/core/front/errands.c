/* SPDX-License-Identifier: MIT */
#include "src/core/front/errands.h"

#include "src/core/inspect/publisher.h"

void xseg_errands_run(struct xseg_allocator *allocator)
{
    xseg_publisher_run(allocator);
}
