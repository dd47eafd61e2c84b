/* SPDX-License-Identifier: MIT */
/*
 * A bump allocator: records of any size from one reserved range of addresses, front to back, never
 * given back.
 *
 * Addresses are reserved at once and get memory as they are needed.  A record is never moved, so a thread
 * that learns of one may read it without a lock, and 32 bits name it: its handle.
 *
 * Invariants:
 *   BUMP-1  first <= used <= open <= bytes, and used is a multiple of XSEG_BUMP_UNIT.
 *
 * Locking: the owner's lock covers xseg_bump_alloc(); everything else takes none.
 */
#ifndef XSEG_BASE_BUMP_H
#define XSEG_BASE_BUMP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/check.h"

/* What records are aligned to, and the unit of handles. */
#define XSEG_BUMP_UNIT      ((size_t)8)
#define XSEG_BUMP_MAX_BYTES ((size_t)UINT32_MAX * XSEG_BUMP_UNIT)

struct xseg_bump {
    char *base;
    size_t bytes;         /* that are reserved */
    size_t open;          /* that have memory */
    atomic_size_t used;   /* that are in records; what is before the first has the handle 0 */
    atomic_bool was_full; /* a record did not fit in what is reserved */
};

/* bytes: at most XSEG_BUMP_MAX_BYTES; rounded up to whole pages.  Returns: false without host memory */
bool xseg_bump_init(struct xseg_bump *bump, size_t bytes);
void xseg_bump_fini(struct xseg_bump *bump);

/* A record of zeros.  Returns: NULL if it does not fit in what is reserved, or there is no host memory */
void *xseg_bump_alloc(struct xseg_bump *bump, size_t bytes);

/* What is left for records. */
static inline size_t xseg_bump_remaining(const struct xseg_bump *bump)
{
    return bump->bytes - atomic_load_explicit(&bump->used, memory_order_relaxed);
}

static inline uint32_t xseg_bump_handle(const struct xseg_bump *bump, const void *record)
{
    return (uint32_t)((size_t)((const char *)record - bump->base) / XSEG_BUMP_UNIT);
}

static inline void *xseg_bump_at(const struct xseg_bump *bump, uint32_t handle)
{
    return bump->base + handle * XSEG_BUMP_UNIT;
}

/* Host bytes that are in use, whole pages of them. */
size_t xseg_bump_resident(const struct xseg_bump *bump);

bool xseg_bump_audit(const struct xseg_bump *bump, struct xseg_finding *finding);

#endif
