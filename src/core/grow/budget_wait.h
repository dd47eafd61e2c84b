/* SPDX-License-Identifier: MIT */
/*
 * Asking: a request that the device cannot serve waits for memory that other processes leave idle (budget.h), and tries
 * again until it has it or the time is over.
 *
 *     struct xseg_budget_wait asking;
 *
 *     if (xseg_budget_wait_begin(&asking, arena, bytes, config))
 *         while (the request is short && xseg_budget_wait_retry(&asking))
 *             try again; with new pages only if asking.grows
 *     xseg_budget_wait_end(&asking, whether the request was served);
 *
 * What the others give back comes through the driver, where somebody else may be faster: hence the tries.  A growth that
 * fails makes pages and gives them back, which the others see as memory that is missing; so there is none before the device
 * has room for it, or for more than the last one found and no more comes.
 *
 * Locking: the device memory lock is held at each call, and let go in it; so other threads grow meanwhile, and everything may be different
 * afterwards.
 */
#ifndef XSEG_CORE_BUDGET_WAIT_H
#define XSEG_CORE_BUDGET_WAIT_H

#include "src/core/device/device.h"

struct xseg_budget_wait {
    struct xseg_device *device; /* NULL: nobody is asked */
    uint64_t bytes;
    uint64_t early, until; /* clock: the others have answered by now; the time is over */
    uint64_t tried, seen;  /* what was free at the last growth, and at the last look */
    bool by_limit;         /* a limit refused that growth, without a driver call */
    bool grows;            /* whether a growth may succeed now */
};

/*
 * Begin to ask, if that can help: there are others, it is the device or the budget that refuses, the device has so much at
 * all, and no capture is under way.
 *
 * arena: that the request is of, one of them if it is of several; the history notes ASK there
 * bytes: that the request needs
 */
bool xseg_budget_wait_begin(struct xseg_budget_wait *budget_wait, struct xseg_arena *arena,
                            uint64_t bytes, const struct xseg_config *config);

/*
 * Wait a moment; false when the time is over, nothing can come any more, or a capture has begun.
 *
 * Cost: one question about the device's memory
 */
bool xseg_budget_wait_retry(struct xseg_budget_wait *budget_wait);

/* Want no more.  served: whether the request has its memory */
void xseg_budget_wait_end(struct xseg_budget_wait *budget_wait, bool served);

#endif
