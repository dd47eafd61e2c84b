/* SPDX-License-Identifier: MIT */
/*
 * The thread that serves offers at a socket in no file system, to processes of the same user: for importers that the
 * system does not let take descriptors out of this process.
 *
 * It begins with the first offer of an allocator, and ends when that closes.  It serves one request at a time; each has
 * 2 seconds to come and 2 to be answered.  It calls no driver, and takes no signals.  A forked child has no such thread.
 *
 * Locking: the caller's, of start and end.
 */
#ifndef XSEG_CORE_OFFER_SERVER_H
#define XSEG_CORE_OFFER_SERVER_H

#include <pthread.h>

#include "src/core/pools/offer_form.h"

struct xseg_offer_server {
    pthread_t thread;
    int64_t process;
    uint64_t number; /* random, in the name of the socket */
    int socket;      /* listens */
    int wake;        /* an event file: the thread is to end */
    bool runs;
    /* Answers a request.  Called by the thread. */
    void (*answer)(void *self, int socket, const struct xseg_offer_token *token);
    void *self;
};

/*
 * Start the thread; nothing happens if it runs already.  `answer` and `self` are set.
 *
 * Returns: XSEG_OK; XSEG_ERR_FILE (the system gives no socket), XSEG_ERR_HOST_MEMORY (no thread)
 */
xseg_status xseg_offer_server_start(struct xseg_offer_server *server);

/* End the thread and wait for its end, 4 seconds at most; nothing happens if it does not run. */
void xseg_offer_server_end(struct xseg_offer_server *server);

#endif
