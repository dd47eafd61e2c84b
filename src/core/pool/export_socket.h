/* SPDX-License-Identifier: MIT */
/*
 * The socket by which importers resolve export tokens: token layout, protocol, server and client.
 *
 *     importer (client)                          exporter (server)
 *     connect, struct xseg_export_token    --->  finds the export with this token
 *                                          <---  struct xseg_export_reply with up to
 *                                                XSEG_EXPORT_BATCH pages, and one file descriptor
 *                                                per page; repeated until the run is complete
 *
 * The socket is an abstract Unix socket of type SOCK_SEQPACKET, so each message arrives as a whole.
 * Both sides accept only processes of the same user, and check every field that they receive.  The
 * version in the token is the version of the protocol, too.
 *
 * The server is a thread of a device, which the first xseg_export() starts and which runs until the
 * device closes.  It handles one request at a time.  A client has 2 seconds to send its request and
 * 2 seconds to receive each reply; stopping the server ends the first wait early.  The thread
 * blocks all signals.  A forked child has no such thread.
 *
 * The client has 10 seconds in total.  It holds no lock, because the exporter can be the same
 * process.
 *
 * Locking: the device memory lock is held for the start of the server.  No lock is held for the
 * stop, since the thread may wait for the device memory lock.
 */
#ifndef XSEG_CORE_EXPORT_SOCKET_H
#define XSEG_CORE_EXPORT_SOCKET_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "vmm/driver.h"
#include "xseg/share.h"

/* --- Protocol. --- */

#define XSEG_EXPORT_MAGIC "xseg"

/* Pages per reply: Linux passes up to 253 descriptors in a message. */
#define XSEG_EXPORT_BATCH 250u

/* The content of a token, in the byte order of the host. */
struct xseg_export_fields {
    char magic[4]; /* XSEG_EXPORT_MAGIC, without the terminating zero */
    uint32_t version;
    uint64_t exporter;     /* random; in the name of the socket */
    uint64_t secret;       /* random; only in tokens */
    uint64_t segment;      /* unique in the exporter */
    uint64_t offset, size; /* of the run in the segment, in bytes */
    uint64_t generation;   /* the latest of the pages */
    uint32_t process;      /* ID of the exporter in its own namespace, for error messages */
    uint32_t reserved;     /* 0 */
};

struct xseg_export_reply {
    uint32_t status;     /* XSEG_OK, or the error of the exporter */
    uint32_t count;      /* pages and descriptors in this reply */
    uint64_t page_count; /* of the run */
    uint8_t device[XSEG_DRIVER_UUID_BYTES];
    union {
        uint64_t page_size[XSEG_EXPORT_BATCH]; /* [count], in bytes */
        char error[256];                       /* message of `status` */
    };
};

/* Check the fields of a token.  Returns XSEG_OK or XSEG_ERR_ARGUMENT. */
xseg_status xseg_export_token_read(const struct xseg_export_token *token,
                                   struct xseg_export_fields *out);

/* Get the address of an exporter's socket.  Returns its length. */
socklen_t xseg_export_address(uint64_t exporter, struct sockaddr_un *out);

/* --- Server. --- */

struct xseg_export_server {
    pthread_t thread;
    int socket; /* the listening socket */
    int stop;   /* event descriptor; readable when the thread must stop */
    bool is_running;
    /*
     * Fill in a reply with the pages of a run from page `first` on, and create their descriptors,
     * which the server closes.  Called by the thread, without a lock.
     */
    void (*fill_reply)(void *self, const struct xseg_export_token *token, uint64_t first,
                       struct xseg_export_reply *reply, int fd[XSEG_EXPORT_BATCH]);
    void *self;
};

/*
 * Start the thread at the address of an exporter, if it is not running.  `fill_reply` and `self`
 * are set.
 *
 * Returns: XSEG_OK; XSEG_ERR_FILE (no socket), XSEG_ERR_HOST_MEMORY (no thread)
 */
xseg_status xseg_export_server_start(struct xseg_export_server *server, uint64_t exporter);

/* Stop the thread if it is running, and wait for its end. */
void xseg_export_server_stop(struct xseg_export_server *server);

/* --- Client. --- */

/* The pages of a run that another process exports. */
struct xseg_export_pages {
    uint8_t device[XSEG_DRIVER_UUID_BYTES]; /* UUID of the device that has the memory */
    size_t count;
    struct xseg_page_handle *handle; /* [count], with file descriptors */
};

/*
 * Resolve a token.  No lock is held.
 *
 * out: the caller closes it
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (malformed token), XSEG_ERR_FILE (no reply),
 *          XSEG_ERR_HOST_MEMORY; the exporter's status: XSEG_ERR_NOT_ALLOCATED, XSEG_ERR_DRIVER
 */
xseg_status xseg_export_resolve(const struct xseg_export_token *token,
                                struct xseg_export_pages *out);

/* Close the descriptors, and free the list. */
void xseg_export_pages_close(struct xseg_export_pages *pages);

#endif
