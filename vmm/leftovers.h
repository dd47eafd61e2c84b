/* SPDX-License-Identifier: MIT */
/*
 * Leftovers: memory and addresses that the driver refused to take back.
 *
 * A release may fail.  A physical page, an allocation, a mapping or a range whose release the driver refused
 * is kept here and counted.  It is offered again at the next trim and when the device closes, so that
 * nothing is lost.
 *
 * Invariants:
 *   LEFT-1  physical is the sum of the sizes of the pages and allocations that are kept, and of those
 *           that could not be kept for want of host memory.
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
    XSEG_LEFTOVER_MAPPING /* of memory of another process */
};

struct xseg_leftover {
    enum xseg_leftover_kind kind;
    uint64_t what; /* handle, or address, of the device or the host */
    uint64_t bytes;
    uint64_t mapped_at; /* of a page: the address where it is still mapped; 0: it is not mapped */
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

/* Begin.  Room is made ahead, so that keeping a leftover hardly ever needs host memory. */
xseg_status xseg_leftovers_init(struct xseg_leftovers *leftovers, struct xseg_context *context);
void xseg_leftovers_fini(struct xseg_leftovers *leftovers);

/*
 * Give one thing back to the driver, or keep it.
 *
 * Returns: XSEG_OK when the driver took the thing; else the driver's error, and the thing is kept
 */
xseg_status xseg_leftovers_give(struct xseg_leftovers *leftovers, enum xseg_leftover_kind kind,
                                uint64_t what, uint64_t bytes);

/* Unmap a page that is mapped, and give it back to the driver, or keep it. */
xseg_status xseg_leftovers_give_mapped(struct xseg_leftovers *leftovers, uint64_t handle,
                                       uint64_t address, uint64_t bytes);

/*
 * Unmap one mapping.  If the driver refuses, it is asked whether the mapping exists: a batch that failed
 * half-way may have unmapped it before.
 *
 * is_known: whether the driver could say so; then a mapping whose unmap failed still exists
 */
xseg_status xseg_leftovers_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes,
                                 bool *is_known);

/* Offer all leftovers to the driver again, in the order in which they came.  Returns the first error; those that are
 * refused stay. */
xseg_status xseg_leftovers_retry(struct xseg_leftovers *leftovers);

bool xseg_leftovers_audit(const struct xseg_leftovers *leftovers, struct xseg_finding *finding);

#endif
