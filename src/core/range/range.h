/* SPDX-License-Identifier: MIT */
/*
 * Ranges: reserving, finding and ending them, and what each call about one checks first.
 *
 * The user has a handle, which stays until the device closes, so that one release too many can be reported.  All other
 * state is the *body*, which ends with the release.  The addresses are an elastic extent (elastic.h) of the arena that
 * the range's pool has for large blocks on the default stream.
 *
 * Locking: the device memory lock guards bodies; it is taken by the functions, or held where they say so.
 */
#ifndef XSEG_CORE_RANGE_H
#define XSEG_CORE_RANGE_H

#include "src/core/block/elastic.h"
#include "src/core/device/device.h"
#include "src/core/range/range_streams.h"
#include "xseg/range.h"

struct xseg_range {
    struct xseg_device *device;    /* fixed */
    struct xseg_range *next;       /* the handle of the device that was made before */
    struct xseg_range_state *body; /* NULL: released */
};

struct xseg_range_state {
    struct xseg_elastic elastic; /* of the extent */
    struct xseg_extent *extent;
    struct xseg_pool *pool; /* held */
    struct xseg_range *range;
    struct xseg_list link; /* among the bodies of the device */
    uint64_t limit;        /* bytes of `elastic.own`; UINT64_MAX: none */
    uint64_t retaken;      /* granules taken back */
    struct xseg_range_streams streams;
};

/* The ranges of a device. */
struct xseg_ranges {
    struct xseg_list bodies;
    struct xseg_range *handles;
};

void xseg_ranges_init(struct xseg_ranges *ranges);

/* Free the handles, and the bodies of a lost device. */
void xseg_ranges_fini(struct xseg_ranges *ranges);

/* As xseg_range_reserve() of the public header, in a pool that is held.  No lock is held. */
xseg_status xseg_ranges_reserve(struct xseg_pool *pool, uint64_t bytes,
                                const struct xseg_range_options *options, struct xseg_range **out);

/* As xseg_range_release() and xseg_range_query().  No lock is held. */
xseg_status xseg_ranges_release(struct xseg_range *range);
xseg_status xseg_ranges_describe(struct xseg_range *range, struct xseg_range_info *out);

/* Bytes of granules that are pending unmap and held.  The device memory lock is held. */
uint64_t xseg_ranges_held_bytes(struct xseg_device *device);

/* End the ranges of a device that closes, which have no memory.  The device memory lock is held. */
void xseg_ranges_end_all(struct xseg_device *device);

/* Host bytes of the range of an elastic extent.  The arena's lock is held. */
uint64_t xseg_ranges_host_bytes(const struct xseg_extent *extent);

/* A run of granules of a range. */
struct xseg_range_run {
    struct xseg_range_state *body;
    struct xseg_extent *extent;
    uint32_t first, count;
};

/* Fail with XSEG_ERR_ARGUMENT if a range has been released.  The device memory lock is held. */
xseg_status xseg_range_check_handle(const struct xseg_range *range);

/*
 * Find the granules that a call names.  The device memory lock is held.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (not whole granules of the range, or it has been released)
 */
xseg_status xseg_range_find(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                            struct xseg_range_run *out);

/* Fail because of the state of a granule.  advice: the state that the call requires */
xseg_status xseg_range_fail_use(const struct xseg_range_run *run, uint32_t granule,
                                const char *advice);

/* Whether all granules of a run are used for one thing.  first: set to the first one that is not */
bool xseg_range_is_all(const struct xseg_range_run *run, enum xseg_elastic_use use,
                       uint32_t *first);

/* Fail with XSEG_ERR_BUSY if a granule of a run is claimed. */
xseg_status xseg_range_check_claims(const struct xseg_range_run *run);

/* Set what a run of granules is used for.  Takes ARENA. */
void xseg_range_set_use(const struct xseg_range_run *run, enum xseg_elastic_use use);

static inline uint64_t xseg_range_bytes(const struct xseg_range_run *run)
{
    return run->count * run->extent->segment.granule_bytes;
}

static inline uint64_t xseg_range_base(const struct xseg_range_run *run)
{
    return run->extent->segment.base + run->first * run->extent->segment.granule_bytes;
}

#endif
