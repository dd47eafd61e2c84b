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
 * Locking: the device memory lock of the device; `physical` may be read without it.
 */
#ifndef XSEG_VMM_UNRELEASED_H
#define XSEG_VMM_UNRELEASED_H

#include <stdatomic.h>

#include "src/base/check.h"
#include "vmm/driver.h"

enum xseg_unreleased_kind {
    XSEG_UNRELEASED_PAGE,
    XSEG_UNRELEASED_ALLOCATION,
    XSEG_UNRELEASED_RANGE,
    XSEG_UNRELEASED_HOST,   /* pinned host memory */
    XSEG_UNRELEASED_MAPPING /* of memory of another process */
};

struct xseg_unreleased {
    enum xseg_unreleased_kind kind;
    uint64_t what; /* handle, or address, of the device or the host */
    uint64_t bytes;
    uint64_t mapped_at; /* of a page: the address where it is still mapped; 0: it is not mapped */
};

struct xseg_unreleased_list {
    struct xseg_context *context;
    struct xseg_unreleased *kept; /* [capacity] */
    size_t count, capacity;
    uint64_t lost;                 /* bytes that could not be kept */
    atomic_uint_fast64_t physical; /* bytes of device memory held */
    atomic_uint_fast64_t unknown;  /* bytes in stuck pages of all segments (segment.h) */
};

/* Device memory that is neither in use nor given back. */
static inline uint64_t xseg_unreleased_bytes(const struct xseg_unreleased_list *unreleased)
{
    return atomic_load_explicit(&unreleased->physical, memory_order_relaxed) +
           atomic_load_explicit(&unreleased->unknown, memory_order_relaxed);
}

/* Begin.  Room is made ahead, so that keeping a leftover hardly ever needs host memory. */
xseg_status xseg_unreleased_init(struct xseg_unreleased_list *unreleased,
                                 struct xseg_context *context);
void xseg_unreleased_fini(struct xseg_unreleased_list *unreleased);

/*
 * Give one thing back to the driver, or keep it.
 *
 * Returns: XSEG_OK when the driver took the thing; else the driver's error, and the thing is kept
 */
xseg_status xseg_unreleased_release(struct xseg_unreleased_list *unreleased,
                                    enum xseg_unreleased_kind kind, uint64_t what, uint64_t bytes);

/* Unmap a page that is mapped, and give it back to the driver, or keep it. */
xseg_status xseg_unreleased_release_mapped(struct xseg_unreleased_list *unreleased, uint64_t handle,
                                           uint64_t address, uint64_t bytes);

/*
 * Unmap one mapping.  If the driver refuses, it is asked whether the mapping exists: a batch that failed
 * half-way may have unmapped it before.
 *
 * is_known: whether the driver could say so; then a mapping whose unmap failed still exists
 */
xseg_status xseg_unreleased_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes,
                                  bool *is_known);

/* Offer all leftovers to the driver again, in the order in which they came.  Returns the first error; those that are
 * refused stay. */
xseg_status xseg_unreleased_retry(struct xseg_unreleased_list *unreleased);

bool xseg_unreleased_audit(const struct xseg_unreleased_list *unreleased,
                           struct xseg_violation *violation);

#endif
