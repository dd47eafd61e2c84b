/* SPDX-License-Identifier: MIT */
/*
 * An account of a device: where its memory is when a request has been refused.
 *
 *     total = free + of others + taken
 *     taken = live + pending + cached + partial + held + pinned + exported + moving
 *             + kept for reuse + not taken back by the driver
 *
 * All of it is of one moment, because GROWTH is held: nothing is mapped or unmapped meanwhile, and of
 * each arena all is read under its lock.
 *
 * Locking: GROWTH is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_ACCOUNT_H
#define XSEG_CORE_ACCOUNT_H

#include "src/core/device/device.h"

/* In bytes. */
struct xseg_account {
    uint64_t total, free, others; /* free: as the driver says, or would have to */
    uint64_t taken;
    uint64_t live, pending;
    uint64_t cached;           /* by pools that may shrink: in whole pages or segments */
    uint64_t partial;          /* the same, beside blocks in use */
    uint64_t held;             /* cached by pools that somebody holds */
    uint64_t pinned, exported; /* cached by pools that may shrink, in pages that stay */
    uint64_t moving;           /* being freed or moved by other threads */
    uint64_t reusable;         /* pages that are mapped nowhere */
    uint64_t stuck;            /* that the driver did not take back */

    /* Parts of those above that would come free in whole pages or segments if ... */
    uint64_t held_whole;    /* held: nobody held the pools any more */
    uint64_t pending_whole; /* pending: the other streams had passed */
    uint64_t small_whole;   /* partial: all pages were small */
    uint64_t
        split_whole; /* partial, of classic segments: they were expandable, wherever pages began */

    uint64_t longest; /* cached block of the arena that asked */
    uint64_t missing; /* what the request would have to map, or allocate, at least */

    const struct xseg_arena *asked;
    uint64_t large_page; /* of an expandable segment of large blocks */
};

/*
 * Take the account for a request that an arena could not serve.
 *
 * Cost: one question about the device's memory; a walk over all blocks of the device
 */
void xseg_account_take(struct xseg_account *account, struct xseg_arena *asked,
                       const struct xseg_need *need);

/* Write it: ": 100.00 MiB more are needed, ..." */
void xseg_account_add(struct xseg_text *text, const struct xseg_account *account);

#endif
