/* SPDX-License-Identifier: MIT */
/*
 * How processes split a device: what is whose, and what one gives when others want memory.
 *
 * Each process has a *share* of the device.  What it has above its share is *borrowed*.  A process that waits for memory
 * says how much it *wants*; up to its share it wants what is its own, beyond that what others leave idle.
 *
 * What is wanted is taken off what the driver has free, but for what pages are being made of, which is no longer free.  The
 * rest is asked of others, of idle memory:
 *
 *   1. of borrowed memory, for what processes want up to their shares
 *   2. of all memory above the floors, for the rest.  A process that wants some itself gives none here.
 *
 * Each is asked in proportion to what it could give, so each finds its own part by itself, from the same figures.
 * Figures that are old make it give too little, or too much, for a turn.
 *
 * Of free memory, what others want up to their shares is kept for them.  A process takes the rest of it, and memory up to
 * its own share.
 *
 * Only numbers are read here, and nothing is changed.
 */
#ifndef XSEG_CORE_BUDGET_SPLIT_H
#define XSEG_CORE_BUDGET_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

/* A process, as far as one device goes; in bytes. */
struct xseg_budget_participant {
    uint64_t taken, idle;     /* idle <= taken */
    uint64_t wanted, growing; /* growing <= wanted: pages are being made */
    uint64_t named_share;     /* parts of a million; 0: it has named none */
    uint64_t floor;           /* idle memory stays as long as no more than this is taken */
};

/* What a process finds for itself. */
struct xseg_budget_split {
    uint64_t share;       /* bytes */
    uint64_t above_share; /* taken above the share */
    uint64_t give;        /* idle bytes to be given back now */
    uint64_t others_idle; /* that others could give it */
    /* Free beyond what others want up to their shares; UINT64_MAX: they want none. */
    uint64_t spare;
    bool exceeds; /* the shares that were named come to more than the whole */
};

/*
 * Split a device.
 *
 * own:   which of the parties this process is
 * total: bytes of the device
 * free:  what the driver has free
 * Cost:  a few steps a party
 */
struct xseg_budget_split xseg_budget_split(const struct xseg_budget_participant *participant,
                                           unsigned count, unsigned own, uint64_t total,
                                           uint64_t free);

#endif
