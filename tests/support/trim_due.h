/* SPDX-License-Identifier: MIT */
/* xseg_trim() with due_only, as the timer of a service calls it. */
#ifndef XSEG_TESTS_TRIM_DUE_H
#define XSEG_TESTS_TRIM_DUE_H

#include "xseg/reclaim.h"

/* max_us: at least 1 */
static inline xseg_status trim_due(struct xseg_allocator *allocator, uint64_t max_us)
{
    const struct xseg_trim_options options = {
        .struct_size = sizeof(options), .due_only = true, .max_us = max_us};

    return xseg_trim(allocator, NULL, &options, NULL);
}

#endif
