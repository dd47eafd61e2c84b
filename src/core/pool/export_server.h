/* SPDX-License-Identifier: MIT */
/*
 * The server of exports: a thread that resolves export tokens at an abstract Unix socket (export_wire.h), for importers
 * of the same user.
 *
 * A device's first xseg_export() starts the server; it runs until the device closes.  It handles one request at a time.
 * A client has 2 seconds to send its request, and 2 to receive each reply; the stop of the server cuts the first wait
 * short.  The thread blocks all signals.  A forked child has no such thread.
 *
 * Locking: the device memory lock for the start; none for the stop, since the thread may wait for that lock.
 */
#ifndef XSEG_CORE_EXPORT_SERVER_H
#define XSEG_CORE_EXPORT_SERVER_H

#include <pthread.h>
#include <stdbool.h>

#include "src/core/pool/export_wire.h"

struct xseg_export_server {
    pthread_t thread;
    int socket; /* listens */
    int stop;   /* event descriptor: readable once the thread has to end */
    bool runs;
    /*
     * Fill in the reply with the pages of a run from number `first` on, and make their descriptors, which the server
     * closes.  Called by the thread, without a lock.
     */
    void (*answer)(void *self, const struct xseg_export_token *token, uint64_t first,
                   struct xseg_export_reply *reply, int fd[XSEG_EXPORT_BATCH]);
    void *self;
};

/*
 * Start the thread at the address of an exporter, unless it runs.  `answer` and `self` are set.
 *
 * Returns: XSEG_OK; XSEG_ERR_FILE (no socket), XSEG_ERR_HOST_MEMORY (no thread)
 */
xseg_status xseg_export_server_start(struct xseg_export_server *server, uint64_t exporter);

/* Stop the thread, and wait for its end, if it runs. */
void xseg_export_server_stop(struct xseg_export_server *server);

#endif
