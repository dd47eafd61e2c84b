/* SPDX-License-Identifier: MIT */
/*
 * A refusal: which limit or part refused a growth, and the start of the error message.
 *
 * Locking: the device memory lock is held by the caller.
 */
#ifndef XSEG_CORE_OOM_CAUSE_H
#define XSEG_CORE_OOM_CAUSE_H

#include <stdbool.h>

#include "src/base/string_util.h"
#include "xseg/status.h"

struct xseg_device;
struct xseg_pool;

enum xseg_oom_cause {
    XSEG_OOM_CAUSE_DRIVER, /* no check refused: the driver, or the pool's own function, had no memory */
    XSEG_OOM_CAUSE_DEVICE,     /* more than the device has beside taken memory */
    XSEG_OOM_CAUSE_HARD_LIMIT, /* hard_limit_mb, or xseg_limits_set() of the device */
    XSEG_OOM_CAUSE_FRACTION,   /* per_process_memory_fraction */
    XSEG_OOM_CAUSE_BUDGET,     /* budget_file: others wait for their shares */
    XSEG_OOM_CAUSE_POOL,       /* the pool's limit_bytes */
    XSEG_OOM_CAUSE_REJECTION   /* throw_on_cudamalloc_oom, and no limit */
};

/* Whether a status says that memory, addresses or a limit were short. */
static inline bool xseg_oom_cause_is_memory_pressure(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
           status == XSEG_ERR_NO_ADDRESSES;
}

/* Whose limit of the device `limit` was, an xseg_device_allowance(): the budget's, which other threads change at any time,
 * that of the fraction, or the hard limit. */
enum xseg_oom_cause xseg_oom_cause_of_limit(const struct xseg_device *device, uint64_t limit);

/*
 * Record the refuser of a growth of a pool by `more` bytes, and set the error message.
 *
 * Returns: XSEG_ERR_NO_MEMORY for the device, XSEG_ERR_LIMIT for a limit
 */
xseg_status xseg_oom_cause_fail(struct xseg_pool *pool, enum xseg_oom_cause refuser, uint64_t more);

/* Add the start of an error message, by device->refuser and the status: "out of memory on device 0, 2.00 MiB requested". */
void xseg_oom_cause_add(struct xseg_strbuf *text, const struct xseg_pool *pool, xseg_status status,
                        uint64_t bytes);

#endif
