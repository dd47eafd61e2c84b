/* SPDX-License-Identifier: MIT */
/*
 * The allocator: open, allocate, free, ask about a block, close.
 *
 * One xseg_allocator serves every device of one driver.  Several may live in a process; they share
 * nothing but the loaded driver.  Devices are opened when they are first named: the primary context
 * is retained, and create, map, set-access and unmap are tried once to see what the driver can do.
 *
 * Words:
 *   page      one physical allocation of the driver: 2 MiB under small blocks, 20 MiB under large
 *   segment   a range of device addresses with the pages mapped into it
 *   hole      an unmapped stretch of a segment
 *   block     a run of addresses in one segment: live (the user holds it), pending (freed, but
 *             another stream may still use it), cached (free and mapped), or a hole
 *   pool      a wall around some allocations; every device has a default pool (see pool.h)
 *   hit       an allocation or free that is served without the driver
 *
 * Stream order: a block that was allocated on a stream and freed may be handed out again for that
 * stream at once, because work of one stream runs in order.  Work of other streams on the block
 * must be announced with xseg_use() (stream.h) before the block is freed.  Before a stream is
 * destroyed, xseg_stream_gone() must be called if blocks were ever allocated or used on it.
 *
 * Threads: every function may be called from any thread at any time, except where its comment says
 *          otherwise.
 * Fork:    in a forked child every function that returns a status returns XSEG_ERR_FORKED and does
 *          nothing; the child cannot use the parent's device memory.  Nor can it open an allocator of
 *          its own, since a driver that the parent has started does not work there: XSEG_ERR_DRIVER.
 *          Fork before the first xseg_open(), or start the child by exec.
 * Signals: a signal handler may call xseg_status_text() and nothing else of the library: the thread that it
 *          interrupts may be inside a call, with a lock held.  For the same reason no handler may leave
 *          a call by longjmp().  The library installs no handler.
 * dlclose: leaves the library mapped, so a thread may be inside a call meanwhile; handles stay good.
 * Environment: XSEG_DRIVER, XSEG_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF are read as an
 *          allocator opens, except in a set-user-ID process (AT_SECURE), whose user is not to set it up:
 *          there the defaults hold, and one log line names what is ignored.
 * Lost:    after an error from which a device does not recover (an illegal address and its like), a
 *          reset of its context, or the driver's shutdown at exit, whatever needs that device's
 *          memory returns XSEG_ERR_DEVICE_LOST without asking the driver again; frees, statistics
 *          and xseg_close() go on working on the host side.
 * Errors:  on any error the user's blocks, pools and settings are as before.  What the library keeps
 *          for the next call may be different: cached memory may have gone back to the driver, or
 *          moved; addresses may be reserved (address_bytes), a device open, and host memory taken
 *          (host_bytes).  Failures are counted.  Out-parameters are written only on success.
 *          xseg_error_text() has details.
 */
#ifndef XSEG_ALLOCATOR_H
#define XSEG_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's own tags: a CUstream or cudaStream_t, and a CUevent or cudaEvent_t, pass uncast.  The NULL
 * stream is the legacy default stream. */
typedef struct CUstream_st *xseg_stream;
typedef struct CUevent_st *xseg_event;

struct xseg_allocator;
struct xseg_pool;

enum xseg_log_level {
    XSEG_LOG_ERROR,   /* something was lost or could not be undone */
    XSEG_LOG_WARNING, /* a fallback was taken, or a key has no effect here */
    XSEG_LOG_INFO     /* once per device, when it is opened */
};

/** How to open an allocator.  Start from XSEG_OPTIONS_INIT; zero is the default throughout. */
struct xseg_options {
    size_t struct_bytes; /* sizeof(struct xseg_options) */
    /* The driver library to load, as for dlopen(); copied.  NULL: the environment's XSEG_DRIVER
     * (ignored in a set-user-ID process), else libcuda.so.1. */
    const char *driver;
    /* Where log lines go, without a newline; called with no lock held.  NULL: warnings and errors
     * go to standard error. */
    void (*log)(void *context, enum xseg_log_level level, const char *line);
    void *log_context;
    /* The time that idle memory goes back by, in nanoseconds from any start; it must not go back.  Any
     * thread may call it, with locks held: it must not call the library.  NULL: the system's monotonic
     * clock.  It is read when memory comes from the driver or goes back, when the driver says how much is
     * free, by metrics.h and explain.h, while something decays, and with history and free_history. */
    uint64_t (*clock)(void *context);
    void *clock_context;
};
/* clang-format off */
#define XSEG_OPTIONS_INIT {sizeof(struct xseg_options), NULL, NULL, NULL, NULL, NULL}
/* clang-format on */

/**
 * Open an allocator.
 *
 * @param config   configuration string (docs/options.md), or NULL: then the first of the
 *                 environment's XSEG_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF, PYTORCH_ALLOC_CONF that
 *                 is set wins whole; nothing is merged.  Without a string, and where the argument
 *                 or XSEG_ALLOC_CONF does not name it, expandable_segments is True; a PYTORCH_*
 *                 string that does not name it means False, as it does to PyTorch.
 * @param options  NULL for the defaults
 * @param out      the allocator; the caller closes it with xseg_close()
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT     out is NULL, or options->struct_bytes is not a known size
 *          XSEG_ERR_CONFIG       the text names the key, the value and the position
 *          XSEG_ERR_NO_DRIVER    the text names the library, or the entry point that is missing
 *          XSEG_ERR_DRIVER       cuInit or the device count failed
 *          XSEG_ERR_HOST_MEMORY
 * Cost:    loads the driver; cuInit, cuDriverGetVersion, cuDeviceGetCount.  No context is made.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_open(const char *config,
                                              const struct xseg_options *options,
                                              struct xseg_allocator **out);

/**
 * Close an allocator: all memory goes back to the driver and the handle ends.
 *
 * Waits for work on pending blocks.  Private pools that the caller still holds end with it.
 *
 * Returns: XSEG_OK               the handle is gone (NULL is fine, too)
 *          XSEG_ERR_BUSY         live blocks: the text lists the first ones; or pinned pages; the handle
 *                                stays usable
 *          XSEG_ERR_DRIVER       the driver refused to take something back; it stays accounted for,
 *                                the handle stays and xseg_close() can be called again
 *          XSEG_ERR_HOST_MEMORY  there was none to wait for a block that was freed in a capture; as above
 *          XSEG_ERR_FORKED
 * Threads: no other call on this allocator may be under way or follow.
 * Cost:    waits for the streams of cached memory; unmaps, releases and frees everything.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_close(struct xseg_allocator *allocator);

/**
 * Change the keys that a configuration string names; the others stay.
 *
 * All or nothing: a string with any error changes nothing.  Segments that exist keep their page
 * size; expandable_segments switched off leaves existing expandable memory to its live blocks.
 * per_process_memory_fraction applies to devices opened later and to those already open.
 *
 * A hard_limit_mb below what is taken gives idle memory back at once.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_CONFIG, XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 * Cost:    no driver call, unless more than hard_limit_mb is taken.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_configure(struct xseg_allocator *allocator,
                                                   const char *config);

/**
 * The configuration in force; it can be given to xseg_open() again.  Every key is spelled out, but
 * for those that are off or unlimited, for which PyTorch's grammar has no word.
 *
 * @param text    where it goes, cut to fit and always terminated; NULL when bytes is 0
 * @param needed  NULL, or the size in bytes that the whole text takes, terminator included
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_configuration(struct xseg_allocator *allocator, char *text,
                                                       size_t bytes, size_t *needed);

/**
 * Where the configuration came from: "argument", "XSEG_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
 * "PYTORCH_ALLOC_CONF" or "default".
 *
 * Returns: a string that lives as long as the library; "" for a NULL allocator.
 * Cost:    no driver call, no lock.
 */
XSEG_API const char *xseg_configuration_source(const struct xseg_allocator *allocator);

/**
 * Allocate device memory on a device, ordered on a stream: from the pool that a capture or a route
 * under way sends the stream to (capture.h, pool.h), else from the default pool.
 *
 * @param device  CUDA ordinal
 * @param bytes   size; rounded up to 512 (or by roundup_power2_divisions).  0 gives NULL and
 *                success
 * @param stream  a stream of that device; NULL is the legacy default stream
 * @param out     the block's address, 512-byte aligned; the caller frees it with xseg_free()
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT      allocator or out is NULL, there is no such device, or the stream
 *                                 is of another device or context
 *          XSEG_ERR_NO_MEMORY     also after all idle cached memory of the device was given back; or
 *                                 refused at once, in a capture or with throw_on_cudamalloc_oom
 *          XSEG_ERR_LIMIT         per_process_memory_fraction, hard_limit_mb, what xseg_limits() has
 *                                 set for the device, or the pool's limit_bytes leaves no room; the
 *                                 text names which
 *          XSEG_ERR_NO_ADDRESSES  the driver has no addresses left, for a classic segment either
 *          XSEG_ERR_UNSUPPORTED   the device cannot map pages of the configured size
 *          XSEG_ERR_PAUSED        the pool is paused (pool.h)
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    a hit makes no driver call, except an event query for each stream on which freed blocks
 *          wait, two questions about a stream when the library meets it first, and one about the
 *          stream's capture while a capture is under way on the device.  A miss creates and maps
 *          the pages that are missing, and sets access once per contiguous run; or calls cuMemAlloc
 *          once (classic).  When the device is full: waits for pending blocks and for the streams
 *          of cached memory, gives that memory back, tries again; not so during a capture.
 *          With debug_fill a block is read back, which waits for its stream.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc(struct xseg_allocator *allocator, int device,
                                               size_t bytes, xseg_stream stream, void **out);

/** An allocation with its particulars.  Start from XSEG_REQUEST_INIT. */
struct xseg_request {
    size_t struct_bytes; /* sizeof(struct xseg_request) */
    int device;          /* CUDA ordinal; ignored when pool is given */
    size_t bytes;
    xseg_stream stream;
    struct xseg_pool *pool; /* NULL: as xseg_alloc() chooses */
    size_t alignment;       /* of the address: a power of two up to 1 GiB; 0: 512 bytes */
    bool zeroed;            /* the bytes are zero for work queued on the stream after the call */
    /* A word of the caller's, such as a pointer to what it knows of the block.  The library does not look behind it.
     * With the key block_user it is given back with the block (struct xseg_block_info) and with its events
     * (struct xseg_history_entry); without the key it is ignored. */
    void *user;
};
/* clang-format off */
#define XSEG_REQUEST_INIT {sizeof(struct xseg_request), 0, 0, NULL, NULL, 0, false, NULL}
/* clang-format on */

/**
 * Allocate as a request says.  Everything else is as for xseg_alloc().
 *
 * Zeroed memory is zeroed by work of the request's stream.  Other streams must be made to wait for
 * that, as for any work.  On a stream that is being captured the zeroing is a node of the graph: it
 * happens each time the graph runs, and not before.
 *
 * Returns: as xseg_alloc(); XSEG_ERR_DRIVER also when the block could not be zeroed: it has been
 *          freed again then, and the totals have counted it; XSEG_ERR_ARGUMENT also for a request of unknown size, an alignment that
 *          is no power of two or above 1 GiB, or a pool of another allocator.
 * Cost:    as xseg_alloc(); with an alignment above 512 bytes, a cached block or growth that is
 *          longer by up to the alignment is looked for, and what is left before the block stays
 *          cached.  Zeroed: one cuMemsetD32Async.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc_with(struct xseg_allocator *allocator,
                                                    const struct xseg_request *request, void **out);

/**
 * Free a block.
 *
 * It may be handed out again on its own stream at once.  If xseg_use() named other streams, it
 * waits until the work queued on them so far has finished.
 *
 * @param ptr  what xseg_alloc() gave; NULL is fine
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_NOT_LIVE  not the start of a live block; the text says what it is
 *          XSEG_ERR_DRIVER    an event could not be recorded; the block is still live
 *          XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 * Cost:    no driver call; with uses, one event record for each other stream, and an event made
 *          where none is idle.  With debug_fill a memset is queued; with unmap_on_free and guard_page
 *          the block's streams are waited for, and its pages unmapped and released.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_free(struct xseg_allocator *allocator, void *ptr);

enum xseg_block_state {
    XSEG_BLOCK_LIVE,    /* the user holds it */
    XSEG_BLOCK_PENDING, /* freed; another stream may still use it */
    XSEG_BLOCK_CACHED,  /* free and mapped */
    XSEG_BLOCK_HOLE,    /* addresses only */
    XSEG_BLOCK_BUSY     /* being freed, mapped or unmapped by another thread right now */
};

/** What an address belongs to.  Set struct_bytes before the call. */
struct xseg_block_info {
    size_t struct_bytes; /* sizeof(struct xseg_block_info) */
    void *base;          /* where the block starts */
    size_t bytes;        /* its size; usable in full when live */
    size_t requested;    /* requested size; of a cached block as in PyTorch's snapshots */
    enum xseg_block_state state;
    int device;
    /* Whose order its memory follows: the stream it was allocated on.  After xseg_stream_gone() that is
     * still the old handle, and once another stream has taken the memory over, that stream's. */
    xseg_stream stream;
    struct xseg_pool *pool; /* the private pool that holds it; NULL for the default pool */
    bool is_small;          /* in the small pool */
    /* The segment around it. */
    bool is_expandable;
    void *segment_base;
    size_t segment_bytes;  /* reserved addresses (expandable) or size (classic) */
    size_t segment_mapped; /* bytes backed by memory */
    /* What lies beside it: cached bytes directly before and after, and the holes beyond those (or
     * directly beside the block where nothing is cached). */
    size_t free_before, free_after;
    size_t hole_before, hole_after;
    /* Rises whenever other memory comes to lie beneath a page of it (mapping.h); 0 for a hole. */
    uint64_t generation;
    bool is_paused; /* its pool is paused, or about to be: there may be no memory */
    /* Live or pending: how long ago it was allocated, or restored from a checkpoint, in milliseconds,
     * 20 more or less.  UINT64_MAX where that is not known: without the key history, or where it
     * was allocated before the key was set. */
    uint64_t age_ms;
    /* Of a block of the default pool: the private pool that lent its memory when memory was short
     * (use_on_oom), else NULL.  Its handle may have been released since. */
    struct xseg_pool *lender;
    /* Live or pending, while the key history is not nothing: the stack that allocated it (history.h), the number of the
     * user's own frames, and the label of the thread; 0, 0 and NULL where there is none. */
    uint32_t stack, frames;
    const char *label; /* stays while the block is live or pending; see also history.h */
    /* Live or pending, with the key block_user: the word of its request (struct xseg_request), also after a checkpoint
     * was restored.  NULL without a word, and where the request came before the key was set. */
    void *user;
};
/* clang-format off */
#define XSEG_BLOCK_INFO_INIT {sizeof(struct xseg_block_info), NULL, 0, 0, XSEG_BLOCK_HOLE, 0, NULL, NULL, false, false, NULL, 0, 0, 0, 0, 0, 0, 0, false, 0, NULL, 0, 0, NULL, NULL}
/* clang-format on */

/**
 * What block does an address lie in, and what is free beside it?
 *
 * @param anywhere  any address in a segment, not only the start of a block
 * @param out       filled in up to out->struct_bytes, which the caller sets
 *
 * Returns: XSEG_OK, XSEG_ERR_NOT_LIVE (the address lies in no segment of this allocator),
 *          XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Cost:    no driver call.  O(1) for the start of a live block, and a number for each 2 MiB of it; from
 *          inside one a few table look-ups more; a walk over neighbouring free blocks elsewhere.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_block(struct xseg_allocator *allocator,
                                               const void *anywhere, struct xseg_block_info *out);

#ifdef __cplusplus
}
#endif

#endif
