/* SPDX-License-Identifier: MIT */
/*
 * Observers: functions of the user's that are told, or asked, while the library works.
 *
 * No observer is called with a lock of the library held.  Each is called in the thread whose call
 * caused it, but for `trace`, see there.  Observers may call the library, except where their comment
 * says otherwise.  A request that is made from within an observer is served as usual, but no observer
 * is told of it or asked.  Memory that comes or goes is the exception: `leaving` and `came` are told
 * of it in any case.
 *
 * Threads: any; several threads may be in one observer at once.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_OBSERVE_H
#define XSEG_OBSERVE_H

#include "xseg/mapping.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A request that could not be served so far.  Valid during the call. */
struct xseg_shortage {
    size_t struct_bytes; /* sizeof(struct xseg_shortage), as the library knows it */
    int device;
    xseg_stream stream;
    struct xseg_pool *pool; /* the private pool that the request was for, or NULL */
    uint64_t bytes;         /* that were asked for */
    xseg_status status;     /* XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT or XSEG_ERR_NO_ADDRESSES */
    unsigned attempt;       /* short_of_memory: how often this request has asked before */
    bool is_capturing; /* a capture is under way on the device: what is freed waits for its end */
    uint64_t allowed_bytes; /* that the library may take: its limit, or the device's memory */
    uint64_t free_bytes;    /* of the device; 0 if the driver did not say */
    const char *text;       /* as xseg_error_text() will say it; so far, for short_of_memory */
    uint64_t
        block_bytes; /* of the block that would serve it: rounded, as roundup_power2_divisions says */
    uint64_t
        segment_bytes; /* of the classic segment that would be made for it; PyTorch says that it tried to
                             * allocate so much, also where segments are expandable */
};

enum xseg_trace_action {
    XSEG_TRACE_ALLOC,          /* a block is handed out */
    XSEG_TRACE_FREE_REQUESTED, /* the user has freed it */
    XSEG_TRACE_FREE_COMPLETED, /* no stream uses it any more: it is cached */
    XSEG_TRACE_SEGMENT_ALLOC,  /* a classic segment is there */
    XSEG_TRACE_SEGMENT_FREE,   /* it is gone */
    XSEG_TRACE_SEGMENT_MAP,    /* addresses of an expandable segment have memory */
    XSEG_TRACE_SEGMENT_UNMAP,  /* they have none any more */
    XSEG_TRACE_OOM             /* a request was refused for want of memory (num_ooms) */
};

/** Something that has happened.  Valid during the call. */
struct xseg_trace_entry {
    size_t struct_bytes; /* sizeof(struct xseg_trace_entry), as the library knows it */
    enum xseg_trace_action action;
    int device;
    xseg_stream stream; /* of the block or segment */
    struct xseg_pool
        *pool;      /* the private pool that holds it, or NULL: also what is lent (pool.h) */
    void *base;     /* NULL for XSEG_TRACE_OOM */
    uint64_t bytes; /* ALLOC, FREE_*: what the user asked for; else all of it */
};

/** What to be told.  Start from XSEG_OBSERVER_INIT; NULL for what is of no interest. */
struct xseg_observer {
    size_t struct_bytes; /* sizeof(struct xseg_observer) */
    void *context;       /* first argument of each */
    /*
     * Memory is short, and neither what is cached nor the driver has served the request.  Free what
     * can be spared, here or elsewhere, and return true: then the request is tried again.  A request
     * asks at most XSEG_ASKS_MOST times.
     */
    bool (*short_of_memory)(void *context, const struct xseg_shortage *shortage);
    /* A request was refused (num_ooms), after everything else was tried. */
    void (*out_of_memory)(void *context, const struct xseg_shortage *shortage);
    /* A request was refused at once (num_oom_rejections, see throw_on_cudamalloc_oom). */
    void (*rejected)(void *context, const struct xseg_shortage *shortage);
    /*
     * Everything that happens to blocks and segments, in its order.  One thread at a time delivers,
     * soon after the fact and before its own call returns: it may bring what others have caused.
     * Entries that are queued are delivered before `leaving` or `came` is called, unless another thread is at it.
     * Without host memory entries are left out.  It must not allocate or free with this allocator.
     */
    void (*trace)(void *context, const struct xseg_trace_entry *entry);
    /*
     * Memory is about to go from beneath some addresses: trimmed, moved to another stream or pool,
     * or its pool is paused.  No work is queued on it.  Let go of what is registered there; it goes
     * when all observers have returned.  Should it stay after all, since the driver refuses, a
     * capture has begun meanwhile, or a callback of a registration runs for it in another thread,
     * `came` says so, with the same generation.
     */
    void (*leaving)(void *context, const struct xseg_mapping *mapping);
    /* Addresses have memory, and nobody has been given any of it; or a pool was resumed. */
    void (*came)(void *context, const struct xseg_mapping *mapping);
};
/* clang-format off */
#define XSEG_OBSERVER_INIT {sizeof(struct xseg_observer), NULL, NULL, NULL, NULL, NULL, NULL, NULL}
/* clang-format on */

/** How often one request asks short_of_memory at the most. */
#define XSEG_ASKS_MOST 8

/**
 * Observe an allocator.
 *
 * @param observer  copied; observers are called in the order in which they came
 * @param id        for xseg_unobserve(); not 0
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (of unknown size, or without any function),
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 * Cost:    no driver call.  An observer without `trace` costs nothing until memory is short or comes
 *          and goes; with it every allocation and free takes a lock that all threads share.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_observe(struct xseg_allocator *allocator,
                                                 const struct xseg_observer *observer,
                                                 uint64_t *id);

/**
 * End an observation.  Once this has returned, none of the observer's functions runs or is called.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (there is no such observer), XSEG_ERR_BUSY (called from within
 *          the observer itself, or from within another callback while the observer runs), XSEG_ERR_FORKED
 * Threads: any; waits until other threads have left the observer's functions
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_unobserve(struct xseg_allocator *allocator, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
