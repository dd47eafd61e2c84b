/* SPDX-License-Identifier: MIT */
/*
 * An account of a device: where its memory is when a request has been refused.
 *
 *     total = free + others + taken
 *     taken = live + pending + cached + partial + held + pinned + exported + moving + reusable + stuck
 *
 * The account is of one moment, because the device memory lock is held: no memory is mapped or unmapped meanwhile.  The
 * blocks of each arena are read under its lock.
 *
 * Locking: the device memory lock is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_OOM_ACCOUNT_H
#define XSEG_CORE_OOM_ACCOUNT_H

#include "src/core/device/device.h"

/* Where the memory of a device is, in bytes. */
struct xseg_oom_account {
    uint64_t total, free, others; /* free: by the driver, or computed if it does not answer */
    uint64_t taken;
    uint64_t live, pending;
    uint64_t cached;           /* by pools that may shrink: in whole pages or segments */
    uint64_t partial;          /* cached by pools that may shrink, on pages beside blocks in use */
    uint64_t held;             /* cached by pools with a holder */
    uint64_t pinned, exported; /* cached by pools that may shrink, in pages that stay */
    uint64_t moving;           /* being freed or moved by other threads */
    uint64_t reusable;         /* idle pages, mapped nowhere */
    uint64_t unknown;          /* memory that the driver did not take back */

    /* Parts of the members above that would be free in whole pages or segments under a condition. */
    uint64_t held_whole;    /* held: if the pools had no holder */
    uint64_t pending_whole; /* pending: if the other streams had passed */
    uint64_t small_whole;   /* partial: if all pages were small */
    uint64_t split_whole;   /* partial, of classic segments: if they were expandable */
    uint64_t
        split_small; /* partial, of classic segments: if they were expandable and all pages were small */

    uint64_t longest; /* the longest cached block of the arena that asked */
    uint64_t missing; /* what the request would have to map or allocate, at least */

    const struct xseg_arena *asked;
    uint64_t large_page; /* page of an expandable segment of large blocks */
};

/*
 * Fill in the account for a request that an arena could not serve.
 *
 * Cost: one question about the device's memory; a walk over all blocks of the device
 */
void xseg_oom_account_collect(struct xseg_oom_account *account, struct xseg_arena *asked,
                              const struct xseg_alloc_params *params);

/* Add an account to a message: "; 100.00 MiB needed from the driver, ..." */
void xseg_oom_account_add(struct xseg_strbuf *text, const struct xseg_oom_account *account);

#endif
