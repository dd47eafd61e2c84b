/* SPDX-License-Identifier: MIT */
/*
 * Sharing of a device's memory: exports to other processes, imports from them, and peers, which are
 * other devices that access the memory.
 *
 * An export retains the pages under a block until the export is closed, also after the block is
 * freed.  The run of an export is the sequence of these pages.  Other processes get the run in one
 * of two ways:
 *
 *   - A token of 64 bytes identifies the run.  It is computed from the run, so all exports of one
 *     run have the same token, and the token is valid as long as one of them is open.  A thread of
 *     the device resolves tokens (export_socket.h): it creates file descriptors for one request and
 *     closes them.
 *   - Handles: the caller gets one file descriptor or fabric handle per page.
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

#include "src/base/check.h"
#include "src/base/list.h"
#include "src/core/device/device.h"
#include "src/core/pool/export_socket.h"

enum xseg_page_probe_result {
    XSEG_PAGE_PROBE_NONE, /* no probe has completed */
    XSEG_PAGE_PROBE_SUPPORTED,
    XSEG_PAGE_PROBE_UNSUPPORTED
};

/* The probe of a page property. */
struct xseg_page_probe {
    enum xseg_page_probe_result result;
    bool is_configured; /* the default pool is to have the property if it is supported */
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
    uint64_t exporter, secret;  /* random numbers (export_socket.h); 0: not drawn yet */
    bool has_uuid;
    uint8_t uuid[XSEG_DRIVER_UUID_BYTES];
    struct xseg_export_server server;
};

void xseg_sharing_init(struct xseg_device *device, struct xseg_sharing *sharing);

/* Stop the server, and free the records of exports and imports that a lost device still has; their
 * mappings stay.  No lock is held. */
void xseg_sharing_fini(struct xseg_sharing *sharing);

/* Get the UUID of the device into `uuid`.  The device memory lock is held. */
xseg_status xseg_sharing_get_uuid(struct xseg_device *device);

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
xseg_status xseg_share_export_handles(struct xseg_allocator *allocator, uint64_t address,
                                      struct xseg_share_pages *pages);
xseg_status xseg_share_close_export(struct xseg_allocator *allocator, uint64_t address);

/* --- Imports: implementations of the public functions (import.c).  No lock is held. --- */

/* uuid: of the device that has the memory; NULL: unknown */
xseg_status xseg_share_import(struct xseg_device *device, enum xseg_handle_type type,
                              const struct xseg_page_handle *handle, size_t count,
                              const uint8_t *uuid, uint64_t *address);
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

/* Whether a probe is deferred.  No lock is needed. */
static inline bool xseg_page_probe_is_due(const struct xseg_sharing *sharing)
{
    return __builtin_expect(
        atomic_load_explicit(&sharing->has_deferred_probe, memory_order_relaxed), 0);
}

/* Run the deferred probes, before the device grows.  No lock is held. */
void xseg_page_probe_retry(struct xseg_device *device);

/* Probe whether memory of a device has fabric handles, as xseg_page_probe_export(), except that a
 * deferred probe is XSEG_ERR_UNSUPPORTED.  The device memory lock is held. */
xseg_status xseg_page_probe_fabric(struct xseg_device *device);

/* Fail because the probe of exports has failed. */
xseg_status xseg_page_probe_fail_export(const struct xseg_sharing *sharing);

#endif
