/* SPDX-License-Identifier: MIT */
/*
 * Elastic extents: addresses of a user, beneath which memory comes and goes by the granule (range.h).
 *
 *     granule   0     1     2     3     4     5     6     7
 *     use     [live][live][    ][leav][leav][    ][live][    ] ...
 *
 * Live granules are committed.  Leaving ones were decommitted, and a stream may still use their memory.
 *
 * An elastic extent has one block for all of its addresses, which stays busy: nothing is cut from it, and no trim
 * looks into it.  What its granules are used for stands here.  A walk (walk.h) shows runs of granules as blocks:
 * live, pending, busy, or holes.
 *
 * The granules of the segment are the range's pages, so each page is one granule long.
 *
 * Invariants, while no granule is claimed; xseg_arena_audit() checks them:
 *   ELASTIC-1  a granule is live or leaving exactly if it is mapped or evicted.
 *   ELASTIC-2  a granule has a batch exactly if it is leaving.
 *   ELASTIC-3  `live` and `leaving` are the granules in those uses; `own` is the bytes of these, less `alias_bytes`
 *              of the segment.
 *
 * Locking: the device memory lock, and ARENA of the extent's arena as well for changes of `use`; either suffices for reading.
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
    XSEG_ELASTIC_EMPTY,     /* no memory is to be here */
    XSEG_ELASTIC_ALLOCATED, /* committed */
    XSEG_ELASTIC_UNMAPPING, /* decommitted; goes once its stream has passed */
    XSEG_ELASTIC_CLAIMED    /* a call works on it, and lets locks go meanwhile */
};

struct xseg_elastic {
    struct xseg_range_state *range;
    uint8_t *use;    /* [granules] */
    uint32_t *batch; /* [granules]: number of the batch that it leaves with; 0: none */
    uint32_t *holds; /* [granules]: how often it is held by captures */
    uint32_t live, pending_unmaps; /* granules in these uses */
    uint64_t own;                  /* bytes of physical pages that the range is charged for */
    uint64_t coming;               /* bytes that a commit is getting */
    uint64_t quota, promised;      /* see xseg_elastic_set_bytes() */
    /* Batches whose granules are all held, pinned or exported, and the place of this extent among those with such batches
     * (pending_unmap.h). */
    struct xseg_list parked, parked_link;
    uint64_t
        parked_at; /* a count of released references, as of the time when the first batch was parked */
};

/*
 * Set the bytes of physical pages that an extent is charged for and that a commit is getting.  What is left of its quota is
 * promised, and taken from what others of the device may have.
 *
 * all: what is promised on the device
 */
static inline void xseg_elastic_set_bytes(struct xseg_elastic *elastic, uint64_t own,
                                          uint64_t coming, uint64_t *all)
{
    const uint64_t used = own + coming;
    const uint64_t promised = elastic->quota - xseg_min(elastic->quota, used);

    elastic->own = own;
    elastic->coming = coming;
    *all += promised - elastic->promised;
    elastic->promised = promised;
}

/* Bytes of the tables of a granule. */
#define XSEG_ELASTIC_BYTES (2 * sizeof(uint32_t) + sizeof(uint8_t))

#endif
