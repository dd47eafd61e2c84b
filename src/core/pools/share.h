/* SPDX-License-Identifier: MIT */
/*
 * Sharing: blocks of exportable pools for other processes, and memory of others here.
 *
 * An *export* holds the pages beneath a block (segment.h) until the export is closed, even if the block
 * is freed before.  An *import* is foreign memory (foreign.h), which is in no arena.
 *
 * A share has a header and a table of page sizes in one piece, so that it can be sent as it is.
 *
 * Locking: GROWTH of the device; `imported`, `host_bytes` and `is_owed` may be read without it.
 */
#ifndef XSEG_CORE_SHARE_H
#define XSEG_CORE_SHARE_H

#include "src/base/check.h"
#include "src/base/list.h"
#include "vmm/driver.h"
#include "xseg/share.h"

struct xseg_device;
struct xseg_export;
struct xseg_offer;

/* Whether the driver makes pages of a property on a device. */
enum xseg_page_trial_verdict {
    XSEG_PAGE_TRIAL_UNTRIED,
    XSEG_PAGE_TRIAL_WORKS,
    XSEG_PAGE_TRIAL_REFUSED
};

/* The trial of a property; see page_trial.h. */
struct xseg_page_trial {
    enum xseg_page_trial_verdict verdict;
    bool is_wanted; /* the default pool is to have it, once the trial has worked */
    bool is_owed;   /* memory was too short for the trial */
    char why[160];  /* the reason of a refusal */
};

/* State of sharing of a device. */
struct xseg_sharing {
    struct xseg_list exports, imports;
    atomic_uint_fast64_t imported;   /* bytes of imports */
    atomic_uint_fast64_t host_bytes; /* of the records in the lists */
    struct xseg_page_trial exporting, rdma;
    atomic_bool is_owed;     /* one of the trials is */
    char why_no_fabric[160]; /* the reason, if only fabric handles are refused */
    uint64_t exporter;       /* random number of this exporter; 0: not needed yet */
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
 * As xseg_export() of the public header.  No lock is held.
 *
 * own: NULL; or set to the export itself, which xseg_share_unexport() does not find before it has an offer
 */
xseg_status xseg_share_export(struct xseg_allocator *allocator, uint64_t address,
                              enum xseg_share_kind kind, struct xseg_share *out,
                              struct xseg_export **own);

/* Make an export part of an offer; or take it back, before it is.  No lock is held. */
void xseg_share_set_offer(struct xseg_export *own, struct xseg_offer *offer);
void xseg_share_withdraw(struct xseg_export *own);

/*
 * As xseg_export_close(): plain exports at the address come first, then those of offers; of each the oldest.  No lock is
 * held.
 *
 * offer: that of the export that was taken back, or NULL
 */
xseg_status xseg_share_unexport(struct xseg_allocator *allocator, uint64_t address,
                                struct xseg_offer **offer);

/* As xseg_import() and so on.  No lock is held. */
xseg_status xseg_share_import(struct xseg_device *device, const struct xseg_share *share,
                              uint64_t *address);
xseg_status xseg_share_unimport(struct xseg_allocator *allocator, uint64_t address);

/* Give a peer the right to read and write all imports of a device, or take it away, as peer.h of vmm says.  GROWTH is
 * held. */
xseg_status xseg_share_set_peer(struct xseg_device *device, const struct xseg_context *peer,
                                bool is_allowed);

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
