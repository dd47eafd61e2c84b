/* SPDX-License-Identifier: MIT */
/*
 * Size arithmetic: the constants and the rounding of PyTorch's CUDA caching allocator (versions up
 * to 2.15), number for number.
 */
#ifndef XSEG_CORE_SIZE_H
#define XSEG_CORE_SIZE_H

#include "src/base/align.h"
#include "src/core/config/config.h"

/* The size of every block is a multiple of this unit, and no smaller remainder is split off. */
#define XSEG_SIZE_UNIT ((uint64_t)512)
/* The largest rounded size that the small pool serves. */
#define XSEG_SIZE_SMALL_MAX XSEG_MIB
/* The size of a small classic segment, and of a page of a small expandable segment. */
#define XSEG_SIZE_SMALL_SEGMENT (2 * XSEG_MIB)
/* A request of at least this size gets its own classic segment, rounded up to a step of 2 MiB. */
#define XSEG_SIZE_OWN_SEGMENT  (10 * XSEG_MIB)
#define XSEG_SIZE_SEGMENT_STEP (2 * XSEG_MIB)
/* A request above this size always fails: PyTorch's "1EB". */
#define XSEG_SIZE_MAX ((uint64_t)1 << 60)

_Static_assert(XSEG_SIZE_SMALL_MAX <= XSEG_SIZE_SMALL_SEGMENT &&
                   XSEG_SIZE_SMALL_MAX % XSEG_SIZE_UNIT == 0,
               "a small segment holds every small block");

/* The size of the block for a request, a multiple of XSEG_SIZE_UNIT.  bytes: 1 to XSEG_SIZE_MAX. */
uint64_t xseg_size_round(const struct xseg_config *config, uint64_t bytes);

/* The size of a new classic segment for a rounded size. */
uint64_t xseg_size_segment(const struct xseg_config *config, uint64_t rounded);

static inline bool xseg_size_is_small(uint64_t rounded)
{
    return rounded <= XSEG_SIZE_SMALL_MAX;
}

#endif
