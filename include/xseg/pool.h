/* SPDX-License-Identifier: MIT */
/*
 * Private pools: a wall around some allocations.
 *
 * Memory of a private pool is never handed out to requests of another pool, and is not given back
 * while somebody holds the pool.  A CUDA graph's memory, a tag's, a library's: each is a pool.
 * A pool belongs to one device and has its own small and large segments on each stream.
 *
 * Threads: any.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_POOL_H
#define XSEG_POOL_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Particulars of a pool.  Start from XSEG_POOL_OPTIONS_INIT. */
struct xseg_pool_options {
    size_t struct_bytes; /* sizeof(struct xseg_pool_options) */
};
/* clang-format off */
#define XSEG_POOL_OPTIONS_INIT {sizeof(struct xseg_pool_options)}
/* clang-format on */

/**
 * Make a private pool; the caller holds it once.
 *
 * @param device   CUDA ordinal
 * @param options  NULL for the defaults
 * @param out      give it to xseg_alloc_with(); let go of it with xseg_pool_release()
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER (the device could not
 *          be opened), XSEG_ERR_FORKED
 * Cost:    no driver call once the device is open.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_create(struct xseg_allocator *allocator, int device,
                                                     const struct xseg_pool_options *options,
                                                     struct xseg_pool **out);

/**
 * Hold a pool once more.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (NULL, or nobody holds it any more), XSEG_ERR_FORKED
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_retain(struct xseg_pool *pool);

/**
 * Let go of a pool once.
 *
 * After the last release the pool serves no more requests.  Its live blocks stay valid and are freed
 * as usual; its cached memory goes back at the next trim or when memory runs short.  The handle is
 * recognised, and refused, until the allocator closes.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (NULL, or nobody holds it any more), XSEG_ERR_FORKED
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_release(struct xseg_pool *pool);

#ifdef __cplusplus
}
#endif

#endif
