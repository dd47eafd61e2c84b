/* SPDX-License-Identifier: MIT */
/*
 * The figures of the pools of a device, row by row: metrics (figures.h) and `xseg top` (published.h) tell the same of a pool
 * because both have it from here.
 *
 * They are read while everything runs, so those of one device may be of slightly different moments.  Memory is told by
 * the pool that it belongs to: of a pool, `reserved` is live + pending + cached, where blocks that it has lent count as
 * its own.  The blocks of a paused pool are live without being reserved.
 *
 * Locking: takes TABLE for each pool, and REGISTRATIONS once something was registered; no lock that an allocation takes.
 */
#ifndef XSEG_CORE_POOL_FIGURES_H
#define XSEG_CORE_POOL_FIGURES_H

#include "src/core/device/device.h"

/* So many private pools of a device, at most, have a row each. */
#define XSEG_POOL_FIGURES_OWN 128u

/* The most rows of a device that are no private pool's own. */
#define XSEG_POOL_FIGURES_COMMON 4u

/* Whose figures a row has, in the order of the rows. */
enum xseg_pool_figures_of {
    XSEG_POOL_FIGURES_DEFAULT, /* the default pool */
    XSEG_POOL_FIGURES_GUARDED, /* blocks with a segment of their own (unmap_on_free, guard_page) */
    XSEG_POOL_FIGURES_PRIVATE, /* a private pool; the oldest comes first */
    XSEG_POOL_FIGURES_OTHERS,  /* younger private pools, together */
    XSEG_POOL_FIGURES_ENDED    /* retired pools whose memory is all cached, together */
};

struct xseg_pool_figures {
    enum xseg_pool_figures_of of;
    uint32_t count;                           /* of OTHERS: how many pools; else 1 */
    uint32_t number;                          /* of a private pool, from 1 on; else 0 */
    const char *label;                        /* what the pool, or the row, is called */
    uint64_t live, pending, cached, reserved; /* bytes */
    uint64_t registered;                      /* bytes, see xseg/stats.h */
    uint64_t limit;                           /* on `reserved`, bytes; UINT64_MAX: no limit */
    const struct xseg_pool *pool;             /* for its peaks; NULL: of OTHERS and ENDED */
};

/* Gets a row, which it may use until it returns. */
typedef void xseg_pool_figures_visitor(void *self, const struct xseg_pool_figures *figures);

/*
 * Visit the rows of a device: the default pool; guarded blocks, if there ever were any; private pools; others and
 * ended ones, if there are any.
 *
 * own:     so many private pools have a row each, the oldest ones; at most XSEG_POOL_FIGURES_OWN
 * Returns: how many private pools there are
 * Cost:    a few words read of each pool and arena; no host memory is taken
 */
size_t xseg_pool_figures_visit(struct xseg_device *device, size_t own,
                               xseg_pool_figures_visitor *visit, void *self);

#endif
