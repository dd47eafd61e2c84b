/* SPDX-License-Identifier: MIT */
/*
 * Sharing of a device's memory: exports to other processes, imports from them, and peers, which are
 * other devices that access the memory.
 *
 * An export retains the pages under a block until the export is closed, also after the block is
 * freed.  The run of an export is the sequence of these pages.  Other processes get the run in one
 * of two ways:
 *
 *   - A token of 64 bytes identifies the run.  The token is computed from the run, so all exports
 *     of one run have the same token, and the token is valid as long as one of them is open.  A
 *     thread of the device resolves tokens: it creates file descriptors for one request and closes
 *     them.
 *   - Handles: the caller gets one file descriptor or fabric handle per page.
 *
 * An export of a segment retains all pages that are mapped in the segment at the time of the call,
 * and has no close: it ends when the pool is released or paused, or the allocator is closed.  Its
 * state is in struct xseg_segment (xseg_segment_export_mapped()).  Importers keep a connection
 * open, so that the exporter can count them.  A pause fails while an importer is connected.
 *
 * An import maps a run at new addresses (vmm/imported.h).  Its memory belongs to no arena.
 *
 * A peer has access rights to all pools and imports of the owner.  The rights of mapped memory are
 * set per mapping (vmm/peer.h).  Classic segments are allocations of the driver: the context of the
 * peer is enabled for all allocations of the owner's context.
 *
 * Pages have the properties `exportable` and `rdma` from their creation.  A device attribute does
 * not prove that the driver supports a property, so a probe creates a page with it, once per
 * device.  If memory is too low for the probe, it is deferred until the next growth.  A pool whose
 * own options require `exportable` fails if the probe fails.  If only the configuration requires a
 * property, and in any case for `rdma`, the pool gets pages without it, and one log line has the
 * reason.
 *
 * Locking: the device memory lock of the device that has the memory.  Atomic members of struct
 * xseg_sharing may be read without it.  The thread that resolves tokens locks it for each batch of
 * pages.
 */
#ifndef XSEG_CORE_SHARE_H
#define XSEG_CORE_SHARE_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "src/base/check.h"
#include "src/base/list.h"
#include "src/core/device/device.h"
#include "vmm/driver.h"
#include "xseg/share.h"

/* --- Export sockets. --- */

/*
 * The socket by which importers resolve export tokens: token layout, protocol, server and client.
 *
 *     importer (client)                          exporter (server)
 *     connect, struct xseg_export_token    --->  finds the export with this token
 *                                          <---  struct xseg_export_reply with up to
 *                                                XSEG_EXPORT_BATCH pages, and one file descriptor
 *                                                per page; repeated until all pages are sent
 *     a segment: keep the connection open        counts the importer
 *     close the connection                       ends the count, also if the importer has exited
 *
 * The socket is an abstract Unix socket of type SOCK_SEQPACKET, so each message arrives as a whole.
 * Both sides accept only processes of the same user, and check every field that they receive.  The
 * version in the token is the version of the protocol, too.
 *
 * The server is a thread of a device, which the first token of the device starts and which runs
 * until the device closes.  The server handles one request at a time, and polls the connections of
 * importers of segments.  A client has 2 seconds to send its request and 2 seconds to receive each
 * reply; stopping the server ends the first wait early.  The thread blocks all signals.  A forked
 * child has no such thread.
 *
 * The client has 10 seconds in total.  The client holds no lock, because the exporter can be the
 * same process.
 *
 * Locking: the device memory lock is held for the start of the server.  No lock is held for the
 * stop, since the thread may wait for the device memory lock.
 */

/* --- Protocol. --- */

#define XSEG_EXPORT_MAGIC "xseg"

/* Pages per reply: Linux passes up to 253 descriptors in a message. */
#define XSEG_EXPORT_BATCH 250u

/* The maximum size of an export, and the maximum offset in an export: the 47 bits of addresses that
 * every GPU has. */
#define XSEG_EXPORT_BYTES_MAX (UINT64_C(1) << 47)

/* The kinds of tokens. */
enum { XSEG_EXPORT_RUN, XSEG_EXPORT_SEGMENT };

/* The content of a token, in the byte order of the host. */
struct xseg_export_fields {
    char magic[4]; /* XSEG_EXPORT_MAGIC, without the terminating zero */
    uint32_t version;
    uint64_t exporter;     /* random; in the name of the socket */
    uint64_t secret;       /* random; only in tokens */
    uint64_t segment;      /* unique in the exporter */
    uint64_t offset, size; /* in bytes; RUN: of the run in the segment; SEGMENT: offset of the
                              exported address, and end of the last page, in the segment */
    uint64_t generation;   /* the latest generation of the pages */
    uint32_t pid;          /* of the exporter, in its own namespace; for error messages */
    uint32_t kind;         /* RUN or SEGMENT */
};

struct xseg_export_reply {
    uint32_t status;     /* XSEG_OK, or the error of the exporter */
    uint32_t count;      /* pages and descriptors in this reply */
    uint64_t page_count; /* of the token, in all replies */
    uint8_t device[XSEG_DRIVER_UUID_BYTES];
    union {
        struct {
            uint64_t offset, size; /* in the run or the segment, in bytes */
        } page[XSEG_EXPORT_BATCH]; /* [count] */
        char error[256];           /* message of `status` */
    };
};

/* Check the fields of a token.  Returns XSEG_OK or XSEG_ERR_ARGUMENT. */
xseg_status xseg_export_token_read(const struct xseg_export_token *token,
                                   struct xseg_export_fields *out);

/* Get the address of an exporter's socket.  Returns its length. */
socklen_t xseg_export_address(uint64_t exporter, struct sockaddr_un *out);

/* --- Server. --- */

/* The descriptors that the thread polls: `stop`, the listening socket, connections of importers. */
struct xseg_export_connections {
    struct pollfd *pollfd;           /* [count] */
    struct xseg_export_token *token; /* [count]; unused for the first two */
    size_t count, capacity;
};

struct xseg_export_server {
    pthread_t thread;
    struct xseg_export_connections connections; /* used by the thread only while it runs */
    int socket;                                 /* the listening socket */
    int stop; /* event descriptor; readable when the thread must stop */
    bool is_running;
    /*
     * Fill in a reply with the pages of a token from page `first` on, and create their descriptors,
     * which the server closes.  Called by the thread, without a lock.
     */
    void (*fill_reply)(void *self, const struct xseg_export_token *token, uint64_t first,
                       struct xseg_export_reply *reply, int fd[XSEG_EXPORT_BATCH]);
    /* Count an importer of a segment that connects, or that closes its connection.  Returns false
     * if the export has ended.  Called by the thread, without a lock. */
    bool (*count_importer)(void *self, const struct xseg_export_token *token, bool connects);
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
    int connection;                  /* of a segment: socket of the exporter; else -1 */
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

/* Close the descriptors and the connection, and free the list. */
void xseg_export_pages_close(struct xseg_export_pages *pages);

enum xseg_page_probe_result {
    XSEG_PAGE_PROBE_NONE, /* no probe has completed */
    XSEG_PAGE_PROBE_SUPPORTED,
    XSEG_PAGE_PROBE_UNSUPPORTED
};

/* The probe of a page property. */
struct xseg_page_probe {
    enum xseg_page_probe_result result;
    bool is_configured; /* the configuration requires the property for the default pool */
    bool is_deferred;   /* memory was too low for the probe */
    char reason[160];   /* of the result UNSUPPORTED */
};

/* The sharing state of a device. */
struct xseg_sharing {
    struct xseg_list exports, imports;
    atomic_uint_fast64_t imported;   /* bytes of imports */
    atomic_uint_fast64_t host_bytes; /* of the records in the lists */
    struct xseg_page_probe exportable, rdma;
    atomic_bool has_deferred_probe;
    char no_fabric_reason[160]; /* set if the driver exports descriptors, but no fabric handles */
    uint64_t exporter, secret;  /* random numbers; 0: not drawn yet */
    bool has_uuid;
    uint8_t uuid[XSEG_DRIVER_UUID_BYTES];
    struct xseg_export_server server;
};

void xseg_sharing_init(struct xseg_device *device, struct xseg_sharing *sharing);

/* Free the records of exports and imports that a lost device still has; their mappings stay.  The
 * server is stopped, and no lock is held. */
void xseg_sharing_fini(struct xseg_sharing *sharing);

/* Get the UUID of the device into `uuid`.  The device memory lock is held. */
xseg_status xseg_sharing_get_uuid(struct xseg_device *device);

/* Count the host memory of records that were added or removed.  The device memory lock is held. */
void xseg_sharing_update_host_bytes(struct xseg_device *device, size_t added, size_t removed);

static inline uint64_t xseg_sharing_imported(const struct xseg_sharing *sharing)
{
    return atomic_load_explicit(&sharing->imported, memory_order_relaxed);
}

static inline uint64_t xseg_sharing_host_bytes(const struct xseg_sharing *sharing)
{
    return atomic_load_explicit(&sharing->host_bytes, memory_order_relaxed);
}

/* Fail with XSEG_ERR_BUSY if memory of a device is exported or imported.  No lock is held. */
xseg_status xseg_share_check_none(struct xseg_device *device);

/* --- Exports: implementations of the public functions (export.c).  No lock is held. --- */

struct xseg_share_pages {
    enum xseg_handle_type type;
    struct xseg_page_handle *handle; /* [capacity]; NULL: only the count is returned */
    size_t capacity;
    size_t count;          /* out: pages of the run */
    uint64_t block_offset; /* out: offset of the block in the run, in bytes */
};

xseg_status xseg_share_export(struct xseg_allocator *allocator, uint64_t address,
                              struct xseg_export_token *token, uint64_t *offset);
xseg_status xseg_share_export_segment(struct xseg_allocator *allocator, uint64_t address,
                                      struct xseg_export_token *token);
xseg_status xseg_share_export_handles(struct xseg_allocator *allocator, uint64_t address,
                                      struct xseg_share_pages *pages);
xseg_status xseg_share_close_export(struct xseg_allocator *allocator, uint64_t address);

/* --- Imports: implementations of the public functions (import.c).  No lock is held. --- */

xseg_status xseg_share_import_token(struct xseg_device *device,
                                    const struct xseg_export_token *token, uint64_t *address);
xseg_status xseg_share_import_handles(struct xseg_device *device, enum xseg_handle_type type,
                                      const struct xseg_page_handle *handle, size_t count,
                                      uint64_t *address);
xseg_status xseg_share_close_import(struct xseg_allocator *allocator, uint64_t address);

void xseg_share_free_imports(struct xseg_sharing *sharing);

/* Grant a peer access to all imports of a device, or revoke it (vmm/peer.h).  The device memory
 * lock is held. */
xseg_status xseg_share_set_import_access(struct xseg_device *device,
                                         const struct xseg_context *peer, bool is_allowed);

/* --- Peers (peers.c).  No lock is held. --- */

/* Implementation of xseg_peer_allow() for two open devices. */
xseg_status xseg_peers_allow(struct xseg_device *owner, struct xseg_device *peer);

/* Enable the known peers again, after a close has failed and the contexts were created anew.  A
 * peer that the driver fails to enable is removed, so that the next xseg_peer_allow() retries all
 * of its steps.  Nothing is mapped on the device. */
void xseg_peers_renew(struct xseg_device *owner);

/* --- Probes of page properties (page_probe.c). --- */

/*
 * Probe whether memory of a device can be exported by file descriptors, and by fabric handles.
 * No lock but DRIVER is held.
 *
 * supported: false with XSEG_OK if the probe was deferred
 * Returns:   XSEG_OK; XSEG_ERR_UNSUPPORTED with the driver's reason; XSEG_ERR_DRIVER,
 *            XSEG_ERR_DEVICE_LOST
 * Cost:      one create, one or two exports, one release; one more create without fabric handles
 */
xseg_status xseg_page_probe_export(struct xseg_device *device, bool *supported);

/*
 * Probe whether network adapters can access memory of a device, and set `has_rdma` of its context.
 * A negative result is not an error: the first one writes a log line.  No lock but DRIVER is held.
 *
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 * Cost:    as the probe of xseg_context_open(), with pages that have the property
 */
xseg_status xseg_page_probe_rdma(struct xseg_device *device);

/* Run the deferred probes, before the device grows.  No lock is held. */
void xseg_page_probe_retry(struct xseg_device *device);

/* Probe whether memory of a device has fabric handles, as xseg_page_probe_export(), except that a
 * deferred probe is XSEG_ERR_UNSUPPORTED.  The device memory lock is held. */
xseg_status xseg_page_probe_fabric(struct xseg_device *device);

/* Fail because the probe of exports has failed. */
xseg_status xseg_page_probe_fail_export(const struct xseg_sharing *sharing);

#endif
