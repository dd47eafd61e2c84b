/* SPDX-License-Identifier: MIT */
/*
 * Observers: callbacks for memory pressure, failed requests, events, and changes of mappings.
 *
 *     static bool shrink_cache(void *context, const struct xseg_oom_info *info)
 *     {
 *         return cache_shrink(context, info->bytes); // True retries the request.
 *     }
 *     struct xseg_observer observer = {sizeof(observer)};
 *     observer.context = cache;
 *     observer.on_low_memory = shrink_cache; // Runs before a request fails.
 *     xseg_observer_add(allocator, &observer, &id);
 *
 * Callbacks run without a lock of the library.  A callback runs in the thread whose call is its cause, or in the
 * background thread (key background_thread); `on_trace` can run in another thread.  Several threads can run one
 * callback concurrently.  A callback may call the library unless its comment says otherwise.  Requests from a callback
 * are served as usual, but do not cause `on_low_memory`, `on_out_of_memory` and `on_rejected`.
 */
#ifndef XSEG_OBSERVER_H
#define XSEG_OBSERVER_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Maximum number of calls of on_low_memory for one request. */
#define XSEG_LOW_MEMORY_CALLS_MAX 8

/** A request that failed, or that needs memory.  Valid during the callback. */
struct xseg_oom_info {
    size_t struct_size; /* sizeof(struct xseg_oom_info) of the library */
    int device;
    xseg_stream stream;
    struct xseg_pool *pool; /* private pool of the request; NULL: default pool */
    uint64_t bytes;         /* requested size */
    xseg_status status;     /* XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT or XSEG_ERR_NO_ADDRESSES */
    unsigned attempt;       /* on_low_memory: number of earlier calls for this request */
    bool is_capturing;      /* a capture is active on the device */
    uint64_t allowed_bytes; /* maximum of physical memory: the limit, or the memory of the device */
    uint64_t free_bytes;    /* free memory of the device; 0: none or unknown */
    const char *message;    /* error message; for on_low_memory the message so far */
    uint64_t block_bytes;   /* rounded size of the block */
    uint64_t segment_bytes; /* size that a new classic segment for the request would have */
};

/** Kind of a trace entry, as in PyTorch. */
enum xseg_trace_action {
    XSEG_TRACE_ALLOC,          /* a block is allocated */
    XSEG_TRACE_FREE_REQUESTED, /* the user frees the block */
    XSEG_TRACE_FREE_COMPLETED, /* the block is cached: no stream uses it */
    XSEG_TRACE_SEGMENT_ALLOC,  /* a classic segment is allocated */
    XSEG_TRACE_SEGMENT_FREE,   /* a classic segment is released */
    XSEG_TRACE_SEGMENT_MAP,    /* a run of an expandable segment is mapped */
    XSEG_TRACE_SEGMENT_UNMAP,  /* a run of an expandable segment is unmapped */
    XSEG_TRACE_OOM             /* a request fails (num_ooms) */
};

/** An event of a block or segment.  Valid during the callback. */
struct xseg_trace_entry {
    size_t struct_size; /* sizeof(struct xseg_trace_entry) of the library */
    enum xseg_trace_action action;
    int device;
    xseg_stream stream;     /* stream of the block or segment */
    struct xseg_pool *pool; /* private pool of the block or segment; NULL: default pool */
    void *base;             /* start address; OOM: NULL */
    uint64_t bytes;         /* ALLOC, FREE_*, OOM: requested size; otherwise size */
};

/** Callbacks of an observer; any may be NULL.  See xseg_observer_add(). */
struct xseg_observer {
    size_t struct_size; /* sizeof(struct xseg_observer) */
    void *context;      /* first argument of each callback */
    /* Frees memory for a request that cannot be served otherwise.  Returns true to retry the request. */
    bool (*on_low_memory)(void *context, const struct xseg_oom_info *info);
    /* Reports a request that failed (num_ooms). */
    void (*on_out_of_memory)(void *context, const struct xseg_oom_info *info);
    /* Reports a request that throw_on_cudamalloc_oom rejected (num_oom_rejections). */
    void (*on_rejected)(void *context, const struct xseg_oom_info *info);
    /* Reports an event of a block or segment. */
    void (*on_trace)(void *context, const struct xseg_trace_entry *entry);
    /* Reports memory that is about to be unmapped. */
    void (*on_unmap)(void *context, const struct xseg_mapping *mapping);
    /* Reports memory that was mapped, or that stays mapped after `on_unmap`. */
    void (*on_map)(void *context, const struct xseg_mapping *mapping);
};

/**
 * Add an observer.  Observers are called in the order in which they were added.
 *
 * on_low_memory: neither the cache nor, within the limits, the driver serves the request.  All observers are called,
 * and the request is retried if one returns true, at most XSEG_LOW_MEMORY_CALLS_MAX times.
 *
 * on_trace: one thread at a time delivers the events of all threads, in their order.  An event is delivered before its
 * call returns, and before a later `on_unmap` or `on_map`, unless another thread is delivering events.  On host
 * allocation failure events are omitted.  The callback must not allocate or free with this allocator.
 *
 * on_unmap: no work is queued on the memory.  The causes are trims, decay, remaps, decommits, pauses, and frees with
 * unmap_on_free or guard_page.  The memory is unmapped when all observers have returned.  It can stay mapped: if the
 * driver call fails, if a capture has begun, or if another thread runs a callback of a registration for the memory.
 * `on_map` then reports it with the same generation.
 *
 * on_map: the memory serves no request before all observers have returned.  The resume of a pool reports its memory.
 *
 * @param observer  callbacks, copied.
 * @param id        receives the ID for xseg_observer_remove(), not 0.
 *
 * @return XSEG_ERR_ARGUMENT  also: all callbacks are NULL.
 * Cost: no driver call.  With `on_trace` every allocation and free takes a lock that all threads share.
 */
XSEG_API xseg_status xseg_observer_add(struct xseg_allocator *allocator,
                                       const struct xseg_observer *observer, uint64_t *id);

/**
 * Remove an observer.  None of its callbacks runs after the return.
 *
 * @return XSEG_ERR_ARGUMENT  no observer has this ID.
 *         XSEG_ERR_BUSY      the calling thread runs a callback of this observer; or it runs another callback while a
 *                            thread runs a callback of this observer.
 * Threads: any; waits for callbacks of the observer in other threads.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_observer_remove(struct xseg_allocator *allocator, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
