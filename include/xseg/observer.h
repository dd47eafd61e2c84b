/* SPDX-License-Identifier: MIT */
/*
 * Observers: callbacks on memory pressure, events, and changes of mappings.
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
 * Callbacks run without a lock of the library, in the thread whose call caused them (except `on_trace`), and several
 * threads can be in one callback.  A callback may call the library unless its comment says otherwise.  Requests from a
 * callback are served as usual, but do not cause `on_low_memory`, `on_out_of_memory` and `on_rejected`.
 */
#ifndef XSEG_OBSERVER_H
#define XSEG_OBSERVER_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A request that failed, or that needs memory.  Valid during the call. */
struct xseg_oom_info {
    size_t struct_size; /* sizeof(struct xseg_oom_info) of the library */
    int device;
    xseg_stream stream;
    struct xseg_pool *pool; /* private pool of the request, or NULL */
    uint64_t bytes;         /* requested size */
    xseg_status status;     /* XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT or XSEG_ERR_NO_ADDRESSES */
    unsigned attempt;       /* on_low_memory: number of earlier calls for this request */
    bool is_capturing;      /* a capture is active: freed blocks are pending until its end */
    uint64_t allowed_bytes; /* maximum of physical memory: the limit, or the memory of the device */
    uint64_t free_bytes;    /* free memory of the device; 0: unknown */
    const char *message;    /* error message, for on_low_memory as far as known */
    uint64_t block_bytes;   /* rounded size of the block */
    uint64_t segment_bytes; /* size of a new classic segment, also if segments are expandable */
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

/** An event.  Valid during the callback. */
struct xseg_trace_entry {
    size_t struct_size; /* sizeof(struct xseg_trace_entry) of the library */
    enum xseg_trace_action action;
    int device;
    xseg_stream stream;     /* stream of the block or segment */
    struct xseg_pool *pool; /* private pool of the block or segment; NULL: default pool */
    void *base;             /* start address; NULL for OOM */
    uint64_t bytes;         /* ALLOC, FREE_*: requested size; otherwise size */
};

/** Callbacks of an observer; any may be NULL. */
struct xseg_observer {
    size_t struct_size; /* sizeof(struct xseg_observer) */
    void *context;      /* first argument of each callback */
    /* A request is served neither by the cache nor, within the limits, by the driver.  The callback frees memory and
     * returns true to retry the request, at most XSEG_LOW_MEMORY_CALLS_MAX times per request. */
    bool (*on_low_memory)(void *context, const struct xseg_oom_info *shortage);
    /* A request failed (num_ooms). */
    void (*on_out_of_memory)(void *context, const struct xseg_oom_info *shortage);
    /* throw_on_cudamalloc_oom rejected a request (num_oom_rejections). */
    void (*on_rejected)(void *context, const struct xseg_oom_info *shortage);
    /* An event of a block or segment.  One thread at a time delivers the events in order, also those of other threads,
     * before its call returns, and before `on_unmap` and `on_map` are called unless another thread delivers.  On host
     * allocation failure events are omitted.  The callback must not allocate or free with this allocator. */
    void (*on_trace)(void *context, const struct xseg_trace_entry *entry);
    /* Memory is about to be unmapped, and no work is queued on it: trim, decay, remap, pause.  It is unmapped when all
     * observers have returned.  If it stays mapped after all (failed driver call, capture, callback of a registration in
     * another thread), `on_map` reports it with the same generation. */
    void (*on_unmap)(void *context, const struct xseg_mapping *mapping);
    /* Memory was mapped and serves no request yet, or a pool was resumed. */
    void (*on_map)(void *context, const struct xseg_mapping *mapping);
};

/** Maximum number of calls of on_low_memory for one request. */
#define XSEG_LOW_MEMORY_CALLS_MAX 8

/**
 * Add an observer.  Observers are called in the order in which they were added.
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
 * Remove an observer.  No callback of it runs after the return.
 *
 * @return XSEG_ERR_ARGUMENT  no observer has this ID.
 *         XSEG_ERR_BUSY      the call is from a callback of the observer, or from another callback while the observer
 *                            runs.
 * Threads: any; waits for callbacks of the observer in other threads.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_observer_remove(struct xseg_allocator *allocator, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
