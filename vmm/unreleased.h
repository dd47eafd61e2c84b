/* SPDX-License-Identifier: MIT */
/*
 * Unreleased memory: pages, allocations, mappings and VA ranges whose release failed in the driver.
 *
 * The driver can fail a release.  Callers of a release cannot handle that, so ownership passes to
 * the list: it records the handle or address and its size, and counts the memory in `physical`.
 * The next trim and the close of the device retry every release, oldest record first, so that
 * nothing leaks.  The first records are preallocated when the device is opened, so a failed release
 * rarely needs host memory.
 *
 * `unknown` counts the pages in unknown state of all segments (segment.h).  These pages are neither
 * usable nor released either, but they remain in the tables of their segments.
 *
 * Invariant, which xseg_unreleased_audit() checks:
 *   UNREL-1  `physical` is the size of the recorded pages and allocations, and of those that could
 *            not be recorded because host memory was exhausted.
 *
 * Locking: the device memory lock; `physical` and `unknown` may be read without it.
 */
#ifndef XSEG_VMM_UNRELEASED_H
#define XSEG_VMM_UNRELEASED_H

#include <stdatomic.h>

#include "src/base/check.h"
#include "vmm/driver.h"

enum xseg_unreleased_kind {
    XSEG_UNRELEASED_PAGE,
    XSEG_UNRELEASED_ALLOCATION, /* cuMemAlloc */
    XSEG_UNRELEASED_RANGE,
    XSEG_UNRELEASED_HOST,   /* pinned host memory */
    XSEG_UNRELEASED_MAPPING /* of imported memory */
};

struct xseg_unreleased {
    enum xseg_unreleased_kind kind;
    uint64_t object; /* handle, or address on the device or the host */
    uint64_t bytes;
    uint64_t mapped_at; /* of a page: the address to which it is still mapped; 0: none */
};

struct xseg_unreleased_list {
    struct xseg_context *context;
    struct xseg_unreleased *record; /* [capacity], oldest first */
    size_t count, capacity;
    uint64_t unrecorded;           /* bytes counted in `physical` without a record */
    atomic_uint_fast64_t physical; /* bytes of device memory */
    atomic_uint_fast64_t unknown;  /* bytes of pages in unknown state of all segments */
};

/* Device memory that is neither usable nor released. */
static inline uint64_t xseg_unreleased_bytes(const struct xseg_unreleased_list *unreleased)
{
    return atomic_load_explicit(&unreleased->physical, memory_order_relaxed) +
           atomic_load_explicit(&unreleased->unknown, memory_order_relaxed);
}

/* Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY */
xseg_status xseg_unreleased_init(struct xseg_unreleased_list *unreleased,
                                 struct xseg_context *context);
void xseg_unreleased_fini(struct xseg_unreleased_list *unreleased);

/*
 * Release an object to the driver, or add its record.  A page that is still mapped is unmapped
 * first.
 *
 * Returns: XSEG_OK if the object was released; else the driver's error
 */
xseg_status xseg_unreleased_release(struct xseg_unreleased_list *unreleased,
                                    struct xseg_unreleased record);

/*
 * Unmap one mapping.  After a failure the driver is queried whether the mapping exists: a batched
 * unmap that failed may have removed it.  A mapping that does not exist counts as unmapped.
 *
 * is_known: whether the query succeeded; if so, a failure means that the mapping still exists
 */
xseg_status xseg_unreleased_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes,
                                  bool *is_known);

/* Retry all recorded releases, oldest first.  Returns the first error; the records of failed
 * releases remain. */
xseg_status xseg_unreleased_retry(struct xseg_unreleased_list *unreleased);

bool xseg_unreleased_audit(const struct xseg_unreleased_list *unreleased,
                           struct xseg_violation *violation);

#endif
