/* SPDX-License-Identifier: MIT */
/*
 * The background thread: makes the looks of decay.h on every open device, so that memory comes back in
 * a lull, and calls of the user need not look.  There is none unless background_thread asks for it.
 *
 * It holds no lock but GROWTH during a look, takes no signals, and ends before the allocator does.  A
 * forked child has none, and cannot use the allocator anyway.
 *
 * Locking: starting and ending it is the owner's, under DRIVER.
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
 * Start the thread; nothing happens if it runs.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY (the system gives no thread)
 */
xseg_status xseg_background_start(struct xseg_allocator *allocator);

/* End the thread and wait for that; nothing happens if none runs. */
void xseg_background_end(struct xseg_allocator *allocator);

#endif
