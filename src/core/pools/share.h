/* SPDX-License-Identifier: MIT */
/*
 * Sharing: blocks of exportable pools for other processes, and memory of others here.
 *
 * An *export* holds the pages beneath a block (segment.h) until the export is closed, even if the block
 * is freed before.  An *import* is foreign memory (foreign.h), which is in no arena.
 *
 * A share has a header and a table of page sizes in one piece, so that it can be sent as it is.
 *
 * Locking: GROWTH of the device; `imported` and `host_bytes` may be read without it.
 */
#ifndef XSEG_CORE_SHARE_H
#define XSEG_CORE_SHARE_H

#include "src/base/check.h"
#include "src/base/list.h"
#include "vmm/driver.h"
#include "xseg/share.h"

struct xseg_device;

/* Whether the driver makes and exports shareable memory on a device. */
enum xseg_share_verdict { XSEG_SHARE_UNTRIED, XSEG_SHARE_WORKS, XSEG_SHARE_REFUSED };

/* State of sharing of a device. */
struct xseg_sharing {
    struct xseg_list exports, imports;
    atomic_uint_fast64_t imported;   /* bytes of imports */
    atomic_uint_fast64_t host_bytes; /* of the records in the lists */
    enum xseg_share_verdict verdict;
    char why[160];     /* the reason, if sharing is refused */
    uint64_t exporter; /* random number of this exporter; 0: not needed yet */
    bool has_uuid;
    uint8_t uuid[XSEG_DRIVER_UUID_BYTES];
};

void xseg_sharing_init(struct xseg_sharing *sharing);

/* Free the records that are left, which is so on a lost device only. */
void xseg_sharing_fini(struct xseg_sharing *sharing);

static inline uint64_t xseg_sharing_imported(const struct xseg_sharing *sharing)
{
    return atomic_load_explicit(&sharing->imported, memory_order_relaxed);
}

static inline uint64_t xseg_sharing_host_bytes(const struct xseg_sharing *sharing)
{
    return atomic_load_explicit(&sharing->host_bytes, memory_order_relaxed);
}

/*
 * Whether a pool may be exportable: once per device a page is tried.  No lock is held.
 *
 * Returns: XSEG_OK, also when memory is short, which says nothing; XSEG_ERR_UNSUPPORTED with the
 *          driver's reason; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 * Cost:    one create, export and release
 */
xseg_status xseg_share_try(struct xseg_device *device);

/* As xseg_export() and so on of the public header.  No lock is held. */
xseg_status xseg_share_export(struct xseg_allocator *allocator, uint64_t address,
                              struct xseg_share *out);
xseg_status xseg_share_unexport(struct xseg_allocator *allocator, uint64_t address);
xseg_status xseg_share_import(struct xseg_device *device, const struct xseg_share *share,
                              uint64_t *address);
xseg_status xseg_share_unimport(struct xseg_allocator *allocator, uint64_t address);

/* Whether nothing is exported or imported: XSEG_OK, XSEG_ERR_BUSY.  No lock is held. */
xseg_status xseg_share_expect_none(struct xseg_device *device);

/* --- The share itself, which knows no device. --- */

/* The descriptors and the header of a share that is being made. */
static inline int *xseg_share_fds(const struct xseg_share *share)
{
    XSEG_ASSERT(share != NULL);
    return (int *)(uintptr_t)share->fd; /* NOLINT(performance-no-int-to-ptr) */
}

static inline struct xseg_share_header *xseg_share_head(const struct xseg_share *share)
{
    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    return (struct xseg_share_header *)(uintptr_t)share->header;
}

#endif
