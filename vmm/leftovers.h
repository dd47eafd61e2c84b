/* SPDX-License-Identifier: MIT */
/*
 * Leftovers: what the driver would not take back.
 *
 * Undoing may fail too.  A physical page, an allocation, a mapping or a range whose release the driver refused
 * is kept here, counted, and offered again at the next trim and when the device closes, so that
 * nothing is lost.
 *
 * Invariants:
 *   LEFT-1  physical is the sum of the sizes of the pages and allocations kept, and of those that
 *           there was no host memory to keep.
 *
 * Locking: GROWTH of the device; `physical` may be read without it.
 */
#ifndef XSEG_VMM_LEFTOVERS_H
#define XSEG_VMM_LEFTOVERS_H

#include <stdatomic.h>

#include "src/base/check.h"
#include "vmm/driver.h"

enum xseg_leftover_kind {
    XSEG_LEFTOVER_PAGE,
    XSEG_LEFTOVER_ALLOCATION,
    XSEG_LEFTOVER_RANGE,
    XSEG_LEFTOVER_HOST,   /* pinned host memory */
    XSEG_LEFTOVER_MAPPING /* of memory that is not ours */
};

struct xseg_leftover {
    enum xseg_leftover_kind kind;
    uint64_t what; /* handle, or address, of the device or the host */
    uint64_t bytes;
    uint64_t
        mapped_at; /* of a page: where it is mapped still, so that it is not free before; or 0 */
};

struct xseg_leftovers {
    struct xseg_context *context;
    struct xseg_leftover *kept; /* [capacity] */
    size_t count, capacity;
    uint64_t lost;                 /* bytes that could not be kept */
    atomic_uint_fast64_t physical; /* bytes of device memory held */
    atomic_uint_fast64_t stuck;    /* bytes in stuck pages of all segments (segment.h) */
};

/* Device memory that is neither in use nor given back. */
static inline uint64_t xseg_leftovers_bytes(const struct xseg_leftovers *leftovers)
{
    return atomic_load_explicit(&leftovers->physical, memory_order_relaxed) +
           atomic_load_explicit(&leftovers->stuck, memory_order_relaxed);
}

/* Room is made ahead, so that keeping needs no host memory in all but the worst case. */
xseg_status xseg_leftovers_init(struct xseg_leftovers *leftovers, struct xseg_context *context);
void xseg_leftovers_fini(struct xseg_leftovers *leftovers);

/*
 * Give one thing back to the driver, or keep it.
 *
 * Returns: XSEG_OK when the driver took it; else the driver's error, and it is kept
 */
xseg_status xseg_leftovers_give(struct xseg_leftovers *leftovers, enum xseg_leftover_kind kind,
                                uint64_t what, uint64_t bytes);

/* The same of a page that is mapped: it is unmapped first. */
xseg_status xseg_leftovers_give_mapped(struct xseg_leftovers *leftovers, uint64_t handle,
                                       uint64_t address, uint64_t bytes);

/*
 * Unmap one mapping.  When the driver says no, it is asked whether there is one at all: a batch that
 * failed half-way may have unmapped it before.
 *
 * is_known: whether it is known what became of it; if so, a mapping whose unmap failed is still there
 */
xseg_status xseg_leftovers_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes,
                                 bool *is_known);

/* Offer everything again, in the order in which it was given.  Returns the first error; what was refused stays. */
xseg_status xseg_leftovers_retry(struct xseg_leftovers *leftovers);

bool xseg_leftovers_audit(const struct xseg_leftovers *leftovers, struct xseg_finding *finding);

#endif
