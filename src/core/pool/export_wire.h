/* SPDX-License-Identifier: MIT */
/*
 * Wire format of exports: the layout of an export token, and the protocol of the exporter's socket.
 *
 *     importer                                   exporter
 *     connect, struct xseg_export_token    --->  the export whose token is equal
 *                                          <---  struct xseg_export_reply, with a descriptor for each of its pages,
 *                                                as often as the run needs
 *
 * The socket is an abstract Unix socket of type SOCK_SEQPACKET, so each message arrives whole.  Both sides accept only
 * processes of the same user.  The version of the token is that of the protocol as well.
 */
#ifndef XSEG_CORE_EXPORT_WIRE_H
#define XSEG_CORE_EXPORT_WIRE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "vmm/driver.h"
#include "xseg/share.h"

#define XSEG_EXPORT_MAGIC "xseg"

/* Pages per reply: Linux passes up to 253 descriptors with a message. */
#define XSEG_EXPORT_BATCH 250u

/* The content of a token, in the byte order of the host. */
struct xseg_export_fields {
    char magic[4]; /* XSEG_EXPORT_MAGIC, without the zero */
    uint32_t version;
    uint64_t exporter;     /* random; in the name of the socket */
    uint64_t secret;       /* random; nowhere else than in tokens */
    uint64_t segment;      /* unique in the exporter */
    uint64_t offset, size; /* of the run in the segment, in bytes */
    uint64_t generation;   /* the latest of the pages */
    uint32_t process;      /* ID of the exporter in its own namespace, for messages */
    uint32_t reserved;     /* 0 */
};

struct xseg_export_reply {
    uint32_t status;     /* XSEG_OK, or why there are no pages */
    uint32_t count;      /* pages of this reply, and descriptors */
    uint64_t page_count; /* of the run */
    uint8_t device[XSEG_DRIVER_UUID_BYTES];
    union {
        uint64_t page_size[XSEG_EXPORT_BATCH]; /* [count], in bytes */
        char why[256];                         /* the error message that belongs to status */
    };
};

/* Read a token.  Returns: XSEG_OK, XSEG_ERR_ARGUMENT */
xseg_status xseg_export_token_read(const struct xseg_export_token *token,
                                   struct xseg_export_fields *out);

/* The address of an exporter's socket; returns its length. */
socklen_t xseg_export_address(uint64_t exporter, struct sockaddr_un *out);

/* The process at the other end of a socket; for a client, the process that listens.  False on error, or if the process
 * belongs to another user. */
bool xseg_export_peer(int socket, struct ucred *out);

#endif
