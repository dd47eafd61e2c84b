/* SPDX-License-Identifier: MIT */
/*
 * Inspection: every block, and the reason why each page is not free.
 *
 *     static bool print_reason(void *context, const struct xseg_reason *reason)
 *     {
 *         (void)context;
 *         printf("%p: %zu bytes, %s\n", reason->base, reason->bytes, xseg_reason_message(reason->kind));
 *         return true; // Continues with the next reason.
 *     }
 *     xseg_explain(allocator, NULL, print_reason, NULL, NULL);
 *
 * These functions change nothing: they move no memory, query no event and synchronize no stream.  Callbacks run without
 * a lock and may call the library; their argument describes a moment before the call.
 */
#ifndef XSEG_EXPLAIN_H
#define XSEG_EXPLAIN_H

#include "xseg/trim.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Visit every block and every unmapped range, segment by segment in the order of addresses.
 *
 * A concurrent change during the walk may be reported in its old state, in its new state, or not at all.
 *
 * @param scope    scope; NULL: all memory.  A pool includes blocks of the default pool in its memory (use_on_oom).
 * @param visit    called for each block, which is valid during the call; returns false to end the walk.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK          also if visit ended the walk.
 *         XSEG_ERR_DRIVER  the stream of the scope does not exist.
 * Cost: no driver call.  Blocks are read in batches of 128, under a lock for which requests of the same pool and stream
 *       wait.
 */
XSEG_API xseg_status xseg_for_each_block(
    struct xseg_allocator *allocator, const struct xseg_scope *scope,
    bool (*visit)(void *context, const struct xseg_block_info *block), void *context);

/** Reason why memory is reserved.  If several apply, the first in this order: ALLOCATED, PENDING, CLAIMED,
 * REGISTERED, PINNED, EXPORTED, POOL, CAPTURE, STREAM, ABOVE_SHARE, KEEP, DECAY, POLICY. */
enum xseg_reason_kind {
    XSEG_REASON_ALLOCATED,  /* it contains a live block */
    XSEG_REASON_PENDING,    /* it contains a pending block */
    XSEG_REASON_CLAIMED,    /* another thread is freeing a block in it */
    XSEG_REASON_PINNED,     /* idle, but pinned (mapping.h) */
    XSEG_REASON_POOL,       /* idle, but in a private pool that is retained */
    XSEG_REASON_CAPTURE,    /* idle, but a capture is active on the device */
    XSEG_REASON_STREAM,     /* idle, but the work of its stream has not completed */
    XSEG_REASON_KEEP,       /* idle, and kept by keep_mb or keep_window_s */
    XSEG_REASON_DECAY,      /* idle, and released by decay at the latest at the age of idle_ms */
    XSEG_REASON_POLICY,     /* idle, and released only by xseg_trim() or under memory pressure */
    XSEG_REASON_EXPORTED,   /* idle, but exported (export.h) */
    XSEG_REASON_REGISTERED, /* idle, but pinned by a registration (registration.h) */
    XSEG_REASON_ABOVE_SHARE /* idle, above the share in the budget (budget_file), and released on request */
};

/** A run of adjacent pages with the same reason and block, or a classic segment. */
struct xseg_reason {
    size_t struct_size; /* sizeof(struct xseg_reason) of the library */
    enum xseg_reason_kind kind;
    int device;
    xseg_stream stream; /* stream of the memory */
    struct xseg_pool *
        pool; /* private pool of `block` (ALLOCATED, PENDING) or of the memory; NULL: default pool */
    bool is_small;      /* in small segments */
    bool is_expandable; /* pages; false: a classic segment */
    void *base;         /* start address */
    size_t bytes;       /* reserved bytes, the sum of the next four */
    size_t allocated_bytes, pending_bytes, claimed_bytes, cached_bytes;
    size_t allocated_blocks; /* live blocks in it, also in part */
    void *block; /* ALLOCATED, PENDING: the largest live or pending block; otherwise NULL */
    size_t block_bytes, block_requested; /* size and requested size of `block` */
    xseg_stream waits_for;               /* PENDING: a stream that used `block` */
    bool has_waits_for;                  /* waits_for is known */
    uint64_t age_ms;       /* time since the last free or map in it; UINT64_MAX: unknown */
    uint64_t block_age_ms; /* age of `block` as in struct xseg_block_info; UINT64_MAX: unknown */
    struct xseg_pool
        *fallback_pool;        /* pool whose memory `block` of the default pool uses, or NULL */
    uint64_t registered_bytes; /* in registrations (registration.h), counted for each one */
    bool is_single_page;       /* `block` has the whole page (single_page in pool.h) */
};

/** Sums in bytes.  Set struct_size before the call. */
struct xseg_explain_result {
    size_t struct_size; /* sizeof(struct xseg_explain_result) */
    uint64_t reserved;  /* sum of the kinds, equal to reserved_bytes of the statistics */
    uint64_t allocated, pending, claimed, pool, pinned, capture, stream, keep, decay,
        policy;                   /* by kind */
    uint64_t in_allocated_blocks; /* part of `allocated` that is in live blocks */
    uint64_t page_cache; /* not reserved: idle pages (page_cache_mb); 0 for a pool or stream */
    uint64_t unreleased; /* not reserved: pages that the driver did not release; likewise */
    uint64_t exported, registered; /* by kind */
    uint64_t single_page_padding;  /* part of in_allocated_blocks that single_page rounds up */
    uint64_t above_share;          /* by kind */
};
/* clang-format off */
#define XSEG_EXPLAIN_RESULT_INIT {sizeof(struct xseg_explain_result), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */

/**
 * Report why memory is not free.  Every reserved byte has one reason.
 *
 * No page of a device is mapped or unmapped while the device is examined, so the reasons add up to its reserved bytes.
 * Ages are known while a decay key or budget_file is set, from the first decay pass on.
 *
 * @param scope    scope; NULL: all memory.  A pool includes blocks of the default pool in its memory (use_on_oom).
 * @param visit    called for each reason, which is valid during the call; returns false to end the walk.  May be NULL.
 * @param context  first argument of visit.
 * @param out      receives the sums, up to out->struct_size bytes; may be NULL.
 *
 * @return XSEG_OK          also if visit ended the walk.
 *         XSEG_ERR_DRIVER  the stream of the scope does not exist.
 * Cost: a stream query for each stream with idle memory, and cuMemGetInfo with device_free_min_mb.  O(blocks): misses on
 *       the device wait during the call; hits and frees wait while the blocks of their pool and stream are visited.
 */
XSEG_API xseg_status xseg_explain(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                  bool (*visit)(void *context, const struct xseg_reason *reason),
                                  void *context, struct xseg_explain_result *out);

/**
 * Get the description of a reason, such as "a live block lies on it".
 *
 * @return a static string; "unknown" for other numbers.
 */
XSEG_API const char *xseg_reason_message(enum xseg_reason_kind kind);

#ifdef __cplusplus
}
#endif

#endif
