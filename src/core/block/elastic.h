/* SPDX-License-Identifier: MIT */
/*
 * Elastic extents: virtual address ranges of users that commit and decommit memory by the granule
 * (range.h).
 *
 *     granule      0       1       2       3         4        5        6
 *     use     [  alloc][  alloc][  empty][unmapping][unmapping][  empty][  alloc] ...
 *
 * Allocated granules are committed.  Unmapping granules were decommitted, but a stream may still
 * use their memory.
 *
 * An elastic extent has one block for all of its addresses, which stays claimed: the arena never
 * splits it, and no trim reads it.  The `use` array has the use of each granule.  Views of the
 * extent (extent.h) present runs of granules as blocks: allocated, pending, claimed, or unmapped.
 *
 * The granules of the segment are the range's pages, so each page is one granule long.
 *
 * Charged bytes are those of the physical pages that count against the range.  The part of a quota
 * that is neither charged nor being committed is unused; the device does not use that memory for
 * other allocations.
 *
 * Invariants, while no granule is claimed; xseg_arena_audit() checks them:
 *   ELASTIC-1  a granule is allocated or unmapping exactly if it is mapped or evicted.
 *   ELASTIC-2  a granule has a batch exactly if it is unmapping.
 *   ELASTIC-3  `allocated` and `pending_unmaps` are the numbers of granules in those uses;
 *              `charged` is their bytes minus `alias_bytes` of the segment.
 *
 * Locking: the device memory lock, and the arena lock of the extent's arena as well for changes of
 * `use`; either suffices for reads.
 */
#ifndef XSEG_CORE_ELASTIC_H
#define XSEG_CORE_ELASTIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/list.h"

struct xseg_range_state;

enum xseg_elastic_use {
    XSEG_ELASTIC_EMPTY,     /* not committed */
    XSEG_ELASTIC_ALLOCATED, /* committed */
    XSEG_ELASTIC_UNMAPPING, /* decommitted; unmapped once its stream has completed */
    XSEG_ELASTIC_CLAIMED    /* in use by a call that releases the locks during its work */
};

struct xseg_elastic {
    struct xseg_range_state *range;
    uint8_t *use;                       /* [granules] */
    uint32_t *batch;                    /* [granules]: ID of the batch of pending unmaps; 0: none */
    uint32_t *holds;                    /* [granules]: number of holds by captures */
    uint32_t allocated, pending_unmaps; /* granules in these uses */
    uint64_t charged;                   /* bytes of physical pages that count against the range */
    uint64_t committing;                /* bytes that a commit allocates */
    uint64_t quota, unused_quota;       /* see xseg_elastic_set_bytes() */
    /* Batches whose granules are all held, pinned or exported, and the link of this extent in the
     * list of extents with such batches (pending_unmap.h). */
    struct xseg_list retained, retained_link;
    uint64_t retained_at; /* count of released references when the first batch was queued here */
};

/*
 * Set the charged bytes and the bytes that a commit allocates.  The rest of the quota is
 * unused, and not available to other allocations of the device.
 *
 * all: sum of the unused quotas on the device
 */
static inline void xseg_elastic_set_bytes(struct xseg_elastic *elastic, uint64_t charged,
                                          uint64_t committing, uint64_t *all)
{
    const uint64_t used = charged + committing;
    const uint64_t unused_quota = elastic->quota - xseg_min(elastic->quota, used);

    elastic->charged = charged;
    elastic->committing = committing;
    *all += unused_quota - elastic->unused_quota;
    elastic->unused_quota = unused_quota;
}

/* Bytes of the tables of a granule. */
#define XSEG_ELASTIC_BYTES (2 * sizeof(uint32_t) + sizeof(uint8_t))

#endif
