/* SPDX-License-Identifier: MIT */
/*
 * A refusal: what stood in the way of a growth, and the words that a sentence about it begins with.
 *
 * Locking: GROWTH is held by the caller.
 */
#ifndef XSEG_CORE_REFUSAL_H
#define XSEG_CORE_REFUSAL_H

#include "src/base/text.h"
#include "xseg/status.h"

struct xseg_config;
struct xseg_device;
struct xseg_pool;

enum xseg_refuser {
    XSEG_REFUSER_DRIVER, /* all checks passed; the driver, or the pool's own function, has none */
    XSEG_REFUSER_DEVICE, /* more than the device has beside what is taken */
    XSEG_REFUSER_HARD_LIMIT, /* hard_limit_mb, or xseg_limits() of the device */
    XSEG_REFUSER_FRACTION,   /* per_process_memory_fraction */
    XSEG_REFUSER_POOL        /* the pool's limit_bytes */
};

/* Which of the device's two limits refuses what is past both, or past the lower one. */
enum xseg_refuser xseg_refusal_of_limits(const struct xseg_device *device,
                                         const struct xseg_config *config);

/*
 * Note who refuses a growth of a pool by `more` bytes, with a sentence.
 *
 * Returns: XSEG_ERR_NO_MEMORY for the device, XSEG_ERR_LIMIT for a limit
 */
xseg_status xseg_refusal_fail(struct xseg_pool *pool, enum xseg_refuser refuser, uint64_t more);

/* Name what refuses, and how much, by device->refuser and the status: "device 0 has no room for 2.00 MiB". */
void xseg_refusal_add(struct xseg_text *text, const struct xseg_pool *pool, xseg_status status,
                      uint64_t bytes);

#endif
