/* SPDX-License-Identifier: MIT */
/*
 * Export and import: runs of pages of exportable pools for other processes, and runs of other processes here.
 *
 * An export retains the pages under a block (segment.h) until the export is closed, also after the block is freed.  Its
 * token (export_wire.h) is computed from the run, so all exports of one run have the same token, and the token is valid as
 * long as one of them is open.  The device's server (export_server.h) resolves tokens: it makes descriptors for a request
 * and closes them.  import.h has the other side.
 *
 * Locking: the device memory lock; `imported`, `host_bytes` and `is_owed` may be read without it.  The server
 * locks it for each batch of pages.
 */
#ifndef XSEG_CORE_SHARE_H
#define XSEG_CORE_SHARE_H

#include "src/base/check.h"
#include "src/base/list.h"
#include "src/core/pool/export_server.h"

struct xseg_device;

/* Whether the driver makes pages of a property on a device. */
enum xseg_page_probe_verdict {
    XSEG_PAGE_PROBE_UNTRIED,
    XSEG_PAGE_PROBE_WORKS,
    XSEG_PAGE_PROBE_REFUSED
};

/* The trial of a property; see page_probe.h. */
struct xseg_page_probe {
    enum xseg_page_probe_verdict verdict;
    bool is_wanted; /* the default pool is to have it, once the trial has worked */
    bool is_owed;   /* memory was too short for the trial */
    char why[160];  /* the reason of a refusal */
};

/* State of sharing of a device. */
struct xseg_sharing {
    struct xseg_list exports, imports;
    atomic_uint_fast64_t imported;   /* bytes of imports */
    atomic_uint_fast64_t host_bytes; /* of the records in the lists */
    struct xseg_page_probe exporting, rdma;
    atomic_bool is_owed;       /* one of the trials is */
    char why_no_fabric[160];   /* the reason, if only fabric handles are refused */
    uint64_t exporter, secret; /* random (export_wire.h); 0: not needed yet */
    bool has_uuid;
    uint8_t uuid[XSEG_DRIVER_UUID_BYTES];
    struct xseg_export_server server;
};

void xseg_sharing_init(struct xseg_device *device, struct xseg_sharing *sharing);

/* Stop the server, and free the records of exports, which only a lost device still has.  No lock is held. */
void xseg_sharing_fini(struct xseg_sharing *sharing);

/* Determine the UUID of the device (`uuid`).  The device memory lock is held. */
xseg_status xseg_sharing_add_device(struct xseg_device *device);

/* Count the host memory of records.  The device memory lock is held. */
void xseg_sharing_update_host_bytes(struct xseg_device *device, size_t more, size_t less);

static inline uint64_t xseg_sharing_imported(const struct xseg_sharing *sharing)
{
    return atomic_load_explicit(&sharing->imported, memory_order_relaxed);
}

static inline uint64_t xseg_sharing_host_bytes(const struct xseg_sharing *sharing)
{
    return atomic_load_explicit(&sharing->host_bytes, memory_order_relaxed);
}

/* The pages of a run, as the caller wants them. */
struct xseg_share_pages {
    enum xseg_handle_type type;
    struct xseg_page_handle *handle; /* [capacity]; NULL: only the count */
    size_t capacity;
    size_t count;          /* is set: pages of the run */
    uint64_t block_offset; /* is set: of the block in the run, in bytes */
};

/* As xseg_export(), xseg_export_handles() and xseg_export_close() of the public header.  No lock is held. */
xseg_status xseg_share_export(struct xseg_allocator *allocator, uint64_t address,
                              struct xseg_export_token *token, uint64_t *offset);
xseg_status xseg_share_export_handles(struct xseg_allocator *allocator, uint64_t address,
                                      struct xseg_share_pages *pages);
xseg_status xseg_share_unexport(struct xseg_allocator *allocator, uint64_t address);

/* Whether nothing is exported or imported: XSEG_OK, XSEG_ERR_BUSY.  No lock is held. */
xseg_status xseg_share_check_none(struct xseg_device *device);

#endif
