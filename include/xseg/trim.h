/* SPDX-License-Identifier: MIT */
/*
 * Giving cached memory back to the driver, page by page.
 *
 * Threads: any.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_TRIM_H
#define XSEG_TRIM_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which memory is meant.  Start from XSEG_WHERE_ANY: every device, pool and stream. */
struct xseg_where {
    size_t struct_bytes;    /* sizeof(struct xseg_where) */
    int device;             /* CUDA ordinal, or -1 for all that are open */
    bool one_stream;        /* only memory of `stream` */
    xseg_stream stream;     /* read if one_stream */
    struct xseg_pool *pool; /* only this private pool; NULL for all pools */
};
/* clang-format off */
#define XSEG_WHERE_ANY {sizeof(struct xseg_where), -1, false, NULL, NULL}
/* clang-format on */

/** How to trim.  Start from XSEG_TRIM_OPTIONS_INIT. */
struct xseg_trim_options {
    size_t struct_bytes; /* sizeof(struct xseg_trim_options) */
    /* true: wait for pending blocks and for the streams of cached memory, as PyTorch's empty_cache
     * does.  false: never wait; memory whose stream still works stays. */
    bool wait;
    /* Give back no more than it takes until so much is taken of what is meant, for each device;
     * 0: everything that is idle. */
    uint64_t leave_bytes;
    /* Only what has been idle for so many milliseconds; 0: whatever its age.  Ages are known while
     * something decays (docs/services.md), else from the first such trim on. */
    uint64_t idle_ms;
};
/* clang-format off */
#define XSEG_TRIM_OPTIONS_INIT {sizeof(struct xseg_trim_options), false, 0, 0}
/* clang-format on */

/** What a trim did.  All figures are counted bytes.  Set struct_bytes before the call. */
struct xseg_trimmed {
    size_t struct_bytes;
    uint64_t returned;     /* given back to the driver */
    uint64_t kept_partial; /* cached, but on pages or in segments that also hold blocks in use */
    uint64_t kept_busy;    /* cached, but its stream has not finished */
    uint64_t kept_pool;    /* cached in private pools that are left alone */
    uint64_t kept_pending; /* freed blocks that another stream may still use */
    uint64_t kept_refused; /* the driver refused to take it; tried again at the next trim */
    uint64_t kept_capture; /* cached, but a capture is under way on its device */
    uint64_t kept_asked;   /* idle, but within leave_bytes, or not for idle_ms */
    /* Still taken of what was meant: reserved, and for whole devices idle pages and what the driver
     * refused. */
    uint64_t left;
    uint64_t kept_pinned;   /* cached, but pinned with xseg_pin() */
    uint64_t kept_exported; /* cached, but exported with xseg_export(), and not pinned */
};
/* clang-format off */
#define XSEG_TRIMMED_INIT {sizeof(struct xseg_trimmed), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */

/**
 * Give idle cached memory back to the driver: whole classic segments, and whole pages of
 * expandable ones.  A segment keeps its addresses.  Where no stream and no pool is named, the page
 * cache (page_cache_mb) goes first.
 *
 * Private pools that somebody holds are left alone, unless `where` names one and no capture has ever
 * taken memory of it; and so is a whole device while a capture is under way on it.
 *
 * @param where    NULL for everything
 * @param options  NULL for the defaults: never waits
 * @param out      NULL, or filled in up to out->struct_bytes
 *
 * Returns: XSEG_OK           also when the driver refused part of it (out->kept_refused)
 *          XSEG_ERR_DRIVER   a stream could not be asked or waited for; what was given back by then
 *                            is in the statistics
 *          XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    for each stream with idle memory one query (or one wait) a pool and size class; for each contiguous run of
 *          idle pages one cuMemUnmap where the driver accepts that, and one cuMemRelease a page.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_trim(struct xseg_allocator *allocator,
                                              const struct xseg_where *where,
                                              const struct xseg_trim_options *options,
                                              struct xseg_trimmed *out);

/** How much may be taken, in bytes.  Start from XSEG_LIMIT_VALUES_INIT. */
struct xseg_limit_values {
    size_t struct_bytes; /* sizeof(struct xseg_limit_values) */
    /* No more than this is taken: a request that would need more is served from idle memory, or
     * refused with XSEG_ERR_LIMIT.  UINT64_MAX: no limit. */
    uint64_t hard_bytes;
    /* While more than this is taken, idle memory goes back whatever its age; no request fails for it.
     * UINT64_MAX: no limit.  Devices only. */
    uint64_t soft_bytes;
    uint64_t keep_bytes; /* idle memory stays while no more than this is reserved.  Devices only. */
    /* per_process_memory_fraction of this device: 0 to 1, and 1 is no limit.  Devices only.  To set it, set
     * has_fraction as well; a call that reads the limits of a device sets both. */
    double fraction;
    bool has_fraction; /* false: the fraction stays as it is */
    /* With throw_on_cudamalloc_oom a request that would make this device take more than this fraction of its memory, and
     * that no limit refuses, is refused at once: 0 to 1.  It starts as per_process_memory_fraction and is that again when
     * xseg_configure() names the key; `fraction` does not change it.  Devices only.  Read and set as `fraction`. */
    double rejection_fraction;
    bool has_rejection_fraction; /* false: rejection_fraction stays as it is */
};
/* clang-format off */
#define XSEG_LIMIT_VALUES_INIT {sizeof(struct xseg_limit_values), UINT64_MAX, UINT64_MAX, 0, 1, false, 1, false}
/* clang-format on */

/**
 * Read and set the limits of one device, or of one private pool.  Of a device they start as
 * hard_limit_mb, soft_limit_mb, keep_mb and per_process_memory_fraction say, and are as those say again when
 * xseg_configure() names them; of a pool the hard limit starts as its options say.  Of the hard limit and the
 * fraction the lower one counts; garbage_collection_threshold works while the fraction is below 1.
 *
 * A hard limit or a fraction below what is taken gives idle memory of a device back at once, as xseg_trim()
 * without waiting does.  Live blocks stay, and no request gets memory of the driver until enough is free.
 *
 * @param where  names a device or a private pool; no stream
 * @param set    the new limits; NULL changes nothing
 * @param was    NULL, or filled in up to was->struct_bytes with the limits before the call
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT     limits that contradict each other: keep <= soft <= hard must hold; a
 *                                fraction of either kind that is not from 0 to 1
 *          XSEG_ERR_UNSUPPORTED  soft_bytes, keep_bytes or the fraction of a pool, a stream
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER (the device could not be opened), XSEG_ERR_FORKED
 *          On an error nothing has changed.
 * Threads: any; waits for a growth or a trim of another thread on the same device
 * Cost:    no driver call, unless more than hard_bytes are taken
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_limits(struct xseg_allocator *allocator,
                                                const struct xseg_where *where,
                                                const struct xseg_limit_values *set,
                                                struct xseg_limit_values *was);

/**
 * Give idle memory back that is due by the configuration: idle_ms, soft_limit_mb, device_free_min_mb
 * (docs/services.md).  Allocations and frees do the same bit by bit; this is for the time in which none
 * come.  Without such a key nothing happens.
 *
 * @param budget_us  how long the driver may be kept busy, for each device, in microseconds: when it is
 *                   used up the rest stays for the next call.  At least one page goes.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Threads: any; waits for a growth or a trim of another thread on the same device, and for no stream
 * Cost:    as xseg_trim() that does not wait, for what is due
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_tick(struct xseg_allocator *allocator, uint64_t budget_us);

/**
 * Have memory ready: map pages (or allocate a classic segment) so that the next request of up to
 * `bytes` there is a hit.  Nothing happens where a cached block of that size is there already.
 *
 * @param where  names a device, or a pool; the stream is the legacy default one unless one_stream
 * @param bytes  of one future request; up to 1 MiB it is the small pool that is meant
 *
 * Returns: XSEG_OK, and what xseg_alloc() returns when it cannot grow
 * Cost:    as an allocation that misses; no allocation is counted.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_prewarm(struct xseg_allocator *allocator,
                                                 const struct xseg_where *where, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
