/* SPDX-License-Identifier: MIT */
/*
 * Seeing where memory is: every block, and for every page why it is not free.
 *
 * Nothing here changes anything: no memory moves, no event is looked at, nothing is waited for.
 *
 * Threads: any.  Functions given to the library are called without a lock, so they may call it; they
 * see what was there a moment before.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_EXPLAIN_H
#define XSEG_EXPLAIN_H

#include "xseg/trim.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Visit every block, holes included, segment by segment in the order of addresses.
 *
 * While other threads allocate, each call is told what was true a moment before; what changes between
 * two calls may be told as it was, as it became, or not at all.
 *
 * @param where  NULL for everything; a device that has not been opened has no blocks.  A pool stands for
 *               its memory, with blocks in it that it has lent (use_on_oom)
 * @param visit  called for each block, which is valid during the call; false ends the walk
 *
 * Returns: XSEG_OK, also when visit ended it; XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_FORKED; XSEG_ERR_DRIVER (there is no such stream)
 * Cost:    no driver call.  An arena's lock is held for 128 blocks at a time.
 */
XSEG_API XSEG_NODISCARD xseg_status
xseg_walk(struct xseg_allocator *allocator, const struct xseg_where *where,
          bool (*visit)(void *context, const struct xseg_block_info *block), void *context);

/** Why memory is reserved.  Of several that hold, the first. */
enum xseg_reason_kind {
    XSEG_REASON_LIVE,    /* a live block lies on it */
    XSEG_REASON_PENDING, /* a block lies on it that was freed, and that another stream may still use */
    XSEG_REASON_BUSY,    /* another thread frees a block on it right now */
    XSEG_REASON_PINNED, /* idle, but pinned (mapping.h) */
    XSEG_REASON_POOL, /* idle, in a private pool that somebody holds: a graph's, a tag's, a user's */
    XSEG_REASON_CAPTURE,  /* idle, while a capture is under way on the device */
    XSEG_REASON_STREAM,   /* idle, but its stream has work queued, which may still use it */
    XSEG_REASON_FLOOR,    /* idle, and kept by keep_mb or keep_window_s */
    XSEG_REASON_DECAY,    /* idle, and goes back by itself, at the latest at the age of idle_ms */
    XSEG_REASON_POLICY,   /* idle, and nothing gives it back but xseg_trim() or a shortage */
    XSEG_REASON_EXPORTED, /* idle, but exported (export.h); looked at right behind PINNED */
    XSEG_REASON_REGISTERED, /* idle, but pinned by a registration (registration.h); looked at before PINNED */
    /* idle, but above the share of this process in its budget (share_budget): goes to others when they want it, the
     * oldest first; looked at right before FLOOR */
    XSEG_REASON_BORROWED
};

/** A page, a run of adjacent ones with the same reason and block, or a classic segment. */
struct xseg_reason {
    size_t struct_bytes; /* sizeof(struct xseg_reason), as the library knows it */
    enum xseg_reason_kind kind;
    int device;
    xseg_stream stream; /* whose memory it is */
    /* The private pool that it is in, or NULL.  LIVE and PENDING: the pool that holds `block`. */
    struct xseg_pool *pool;
    bool is_small; /* in the small pool */
    bool is_expandable;
    void *base;
    size_t bytes; /* reserved here; the four below add up to it */
    size_t live_bytes, pending_bytes, busy_bytes, cached_bytes;
    size_t live_blocks; /* that lie on it, also in part */
    /* LIVE: the largest of these; PENDING: the largest that was freed; else NULL. */
    void *block;
    size_t block_bytes, block_requested;
    xseg_stream waits_for; /* PENDING: a stream that the block waits for */
    bool has_waits_for;    /* whether that is known */
    /* How long no block on it has been freed and nothing mapped, in milliseconds: the age of idle
     * memory.  A live block that has its pages for itself is at most that old; one that shares a
     * page may be older, if others come and go beside it.  UINT64_MAX where ages are not known:
     * nothing decays (docs/services.md) and no share_budget is named, or nobody has looked yet. */
    uint64_t age_ms;
    /* LIVE, PENDING: the age of `block` itself, as struct xseg_block_info has it, and xseg_walk() tells
     * it of every block; UINT64_MAX where it is not known, as without the key history. */
    uint64_t block_age_ms;
    /* LIVE, PENDING: where the default pool holds `block`, but another pool lent the memory (use_on_oom),
     * that pool; else NULL.  To ask about a pool is to ask about the memory that it has lent, too. */
    struct xseg_pool *lender;
    /* Of `bytes`, what has entered a registration (registration.h); twice, if two registrations have it. */
    uint64_t registered_bytes;
    bool is_single_page; /* `block` has all of it, since its pool has single_page (pool.h) */
};

/** A summary in bytes.  Set struct_bytes before the call. */
struct xseg_explained {
    size_t struct_bytes; /* sizeof(struct xseg_explained) */
    uint64_t reserved;   /* what those by kind add up to: the statistics' reserved_bytes */
    uint64_t live, pending, busy, pool, pinned, capture, stream, floor, decay, policy; /* by kind */
    uint64_t live_itself; /* of `live`, what is in live blocks; the rest is beside them */
    uint64_t page_cache;  /* not reserved: pages kept for reuse (page_cache_mb) */
    uint64_t stuck;       /* not reserved: what the driver would not take back */
    uint64_t exported;    /* by kind */
    uint64_t registered;  /* by kind */
    /* Of `live_itself`, what blocks of pools with single_page have beyond what was asked for. */
    uint64_t single_page_rest;
    uint64_t borrowed; /* by kind */
};
/* clang-format off */
#define XSEG_EXPLAINED_INIT {sizeof(struct xseg_explained), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */

/**
 * Why is this memory not free?  Every reserved byte has one reason.
 *
 * Each device is looked at in one piece: no page is mapped or unmapped meanwhile, so what is told adds up
 * to its reserved bytes.  Blocks come and go in other arenas than the one that is looked at.
 *
 * @param where  NULL for everything
 * @param visit  called for each reason, which is valid during the call; false ends it.  NULL for none
 * @param out    NULL, or filled in up to out->struct_bytes.  page_cache and stuck are those of the
 *               devices; 0 where a pool or a stream is meant
 *
 * Returns: XSEG_OK, also when visit ended it; XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_FORKED; XSEG_ERR_DRIVER (there is no such stream)
 * Cost:    a stream query for each stream with idle memory; cuMemGetInfo with device_free_min_mb.
 *          A walk over all blocks, an arena's lock held for all of its own; misses wait.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_explain(struct xseg_allocator *allocator,
                                                 const struct xseg_where *where,
                                                 bool (*visit)(void *context,
                                                               const struct xseg_reason *reason),
                                                 void *context, struct xseg_explained *out);

/**
 * A reason in a few words: "a live block lies on it".
 *
 * Returns: a string that lives as long as the library; "unknown" for another number.
 */
XSEG_API const char *xseg_reason_text(enum xseg_reason_kind kind);

#ifdef __cplusplus
}
#endif

#endif
