/* SPDX-License-Identifier: MIT */
/*
 * The background thread makes the looks of decay.h on every open device, so that memory goes back while the
 * program makes no calls, and calls of the user need not look; and the turns of budget.h.  It only exists with the key
 * background_thread or budget_file.
 *
 * During a look the thread holds the device memory lock and no other lock; in turns BUDGET or the device memory lock.  It takes no signals, and ends before the allocator
 * does.  A forked child has no background thread, and cannot use the allocator anyway.
 *
 * Locking: the allocator starts and ends the thread, under DRIVER while it is in use.
 */
#ifndef XSEG_CORE_BACKGROUND_H
#define XSEG_CORE_BACKGROUND_H

#include <pthread.h>
#include <stdbool.h>

#include "xseg/status.h"

struct xseg_allocator;

struct xseg_background {
    pthread_t thread;
    pthread_mutex_t lock; /* of `ends`; nothing is locked inside */
    pthread_cond_t wake;
    bool runs, ends;
};

/*
 * Start the thread; nothing happens if it runs already.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY (the system gives no thread)
 */
xseg_status xseg_background_start(struct xseg_allocator *allocator);

/* End the thread and wait for its end; nothing happens if it does not run. */
void xseg_background_end(struct xseg_allocator *allocator);

#endif
