/* SPDX-License-Identifier: MIT */
/*
 * History and snapshots: events of blocks and segments with call stacks and labels, and snapshot files in PyTorch's
 * format.
 *
 *     static bool print_event(void *context, const struct xseg_history_entry *entry)
 *     {
 *         (void)context;
 *         printf("%d %p %llu\n", entry->action, entry->base, (unsigned long long)entry->bytes);
 *         return true; // Continues with the next event.
 *     }
 *     xseg_config_set(allocator, "history:all,history_stacks:alloc");
 *     xseg_for_each_event(allocator, 0, print_event, NULL, NULL);
 *     xseg_snapshot(allocator, "snapshot.pickle", NULL); // For PyTorch's memory visualizer.
 *
 * Five configuration keys select what is recorded; xseg_config_set() changes them at run time:
 *
 *     history         nothing (default); state: time, stack and label of each allocated block; all: events as well.
 *     history_stacks  none (default); state: stacks of allocated blocks; alloc: also of ALLOC, SEGMENT_ALLOC,
 *                     SEGMENT_MAP, RESUME, BUDGET_REQUEST and OOM; all: of all events.
 *     history_events  number of events that are kept for each stream and pool, separately for small and large segments.
 *     history_skip    actions that are not recorded.
 *     block_user      False (default); True: the user value of each request (struct xseg_request).
 *
 * Terms:
 *   event     one change of a block or segment (enum xseg_history_action).
 *   stack     a call stack of the process.  Equal stacks are stored once, under one ID.
 *   frames    an ID by which the user's hook identifies frames of an interpreter, such as Python frames.
 *   label     a string that the user attaches to a thread.  Events and blocks of the thread have its label.
 *   sweep     the detection of labels and frames that are no longer used, in a call of the user.
 */
#ifndef XSEG_HISTORY_H
#define XSEG_HISTORY_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Kind of an event.  The first eight have the names, numbers and meanings of enum xseg_trace_action. */
enum xseg_history_action {
    XSEG_HISTORY_ALLOC,          /* a block is allocated */
    XSEG_HISTORY_FREE_REQUESTED, /* the user frees the block */
    XSEG_HISTORY_FREE_COMPLETED, /* the block is cached: no stream uses it */
    XSEG_HISTORY_SEGMENT_ALLOC,  /* a classic segment is allocated */
    XSEG_HISTORY_SEGMENT_FREE,   /* a classic segment is released */
    XSEG_HISTORY_SEGMENT_MAP,    /* a run of an expandable segment is mapped */
    XSEG_HISTORY_SEGMENT_UNMAP,  /* a run of an expandable segment is unmapped */
    XSEG_HISTORY_OOM,            /* a request fails (num_ooms) */
    XSEG_HISTORY_REMAP,          /* cause of the next release at `base`: the page is moved */
    XSEG_HISTORY_DECAY,          /* cause of the next release at `base`: decay */
    XSEG_HISTORY_TRIM,           /* cause of the next release at `base`: a trim */
    XSEG_HISTORY_PAUSE,          /* memory of a pool is unmapped because the pool is paused */
    XSEG_HISTORY_RESUME,         /* memory of a paused pool is mapped again */
    XSEG_HISTORY_ANNOTATION,     /* xseg_history_annotate() */
    XSEG_HISTORY_BUDGET_REQUEST, /* a request begins to wait for other processes (budget_file) */
    XSEG_HISTORY_BUDGET_RELEASE, /* cause of the next release at `base`: demand of other processes */
    XSEG_HISTORY_ACTIONS         /* number of kinds; later versions have more */
};

/** An event. */
struct xseg_history_entry {
    size_t struct_size; /* sizeof(struct xseg_history_entry) of the library */
    enum xseg_history_action action;
    int device;
    xseg_stream stream;
    uint32_t pool;       /* ID of the private pool that has the memory; 0: default pool */
    bool is_fallback;    /* block of the default pool in memory of `pool` (use_on_oom) */
    void *base;          /* start address; NULL if the event has none */
    uint64_t bytes;      /* size; OOM: free memory; BUDGET_REQUEST: demand */
    uint64_t requested;  /* ALLOC, FREE_*, OOM: requested size; otherwise as `bytes` */
    uint64_t time_ns;    /* time of xseg_options.clock, or of CLOCK_MONOTONIC */
    uint32_t order;      /* events of segments, annotations: sequence number; otherwise 0 */
    uint32_t stack;      /* ID of the stack, for xseg_history_stack(); 0: not recorded */
    uint32_t frames;     /* frame ID of the hook; 0: none */
    int thread;          /* thread ID of the kernel */
    const char *label;   /* label of the thread; ANNOTATION: the annotation; NULL: none */
    uint64_t pool_id[2]; /* id of the pool's options; {0, 0}: none */
    void *user;          /* ALLOC, FREE_*, OOM: user value of the request; NULL: not recorded */
};

/** Size of the history. */
struct xseg_history_summary {
    size_t struct_size;   /* sizeof(struct xseg_history_summary) */
    uint64_t events;      /* number of events of the walk */
    uint64_t lost;        /* number of events that newer events have replaced (history_events) */
    uint64_t stacks;      /* number of distinct stacks since xseg_open() */
    uint64_t stacks_lost; /* stacks that were not recorded: table full, or out of host memory */
    uint64_t stack_bytes; /* host memory of stacks, which struct xseg_statistics does not contain */
};

/**
 * Visit the events of one or all devices, from the oldest to the newest.
 *
 * The events of a device are those of one moment.  Events that are replaced before they are copied count as lost.
 * Events with an `order` are sorted by it, other events by time.  Labels are valid until the function returns.
 *
 * REMAP, DECAY, TRIM and BUDGET_RELEASE have the cause of a release.  The next event with the same `base` is the
 * release.  PAUSE is not followed by RESUME if the pool is destroyed while it is paused.
 *
 * The user value of an event is recorded while the key block_user is set.  It is NULL if the request preceded the key,
 * or was made while xseg_config_set() changed a key of the history.  `bytes` of OOM is a multiple of 512.
 *
 * @param device   CUDA ordinal; -1: all open devices.
 * @param visit    called without a lock for each event, which is valid during the callback; returns false to end the
 *                 walk.
 * @param context  first argument of visit.
 * @param summary  receives the size of the history; may be NULL.
 *
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call.  Host memory of 64 bytes per event, 72 with block_user.  The call locks the cache of each
 *       stream briefly.
 */
XSEG_API xseg_status xseg_for_each_event(struct xseg_allocator *allocator, int device,
                                         bool (*visit)(void *context,
                                                       const struct xseg_history_entry *entry),
                                         void *context, struct xseg_history_summary *summary);

/**
 * Discard all recorded events and the count of lost ones.  Allocated blocks keep their time, stack and label.
 *
 * @param device  CUDA ordinal; -1: all open devices.
 *
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call; one sweep.
 */
XSEG_API xseg_status xseg_history_clear(struct xseg_allocator *allocator, int device);

/** A frame of a call stack.  Strings are valid until xseg_close(). */
struct xseg_history_frame {
    size_t struct_size;       /* sizeof(struct xseg_history_frame) of the library */
    const void *pc;           /* return address */
    const char *module;       /* path of the ELF file; NULL: none */
    const char *build_id;     /* build ID of the file, in hexadecimal digits; NULL: none */
    uint64_t offset;          /* address in the file, as for addr2line and libdw */
    const char *function;     /* function name; NULL: not found, or not looked up yet */
    uint64_t function_offset; /* offset from the start of the function */
    const char *source;       /* source file; NULL: not found, or not looked up yet */
    uint32_t line;            /* line in the source file; 0: unknown */
};

/**
 * Visit the frames of a stack, the innermost first.
 *
 * Functions, files and lines are known after xseg_snapshot() has looked them up.  Modules that were unloaded keep their
 * paths and build IDs.
 *
 * @param stack    stack ID of an event or a block.
 * @param visit    called for each frame, which is valid during the callback; returns false to end the walk.
 * @param context  first argument of visit.
 *
 * @return XSEG_ERR_ARGUMENT  also: no stack has this ID.
 * Cost: no driver call, no lock.
 */
XSEG_API xseg_status xseg_history_stack(struct xseg_allocator *allocator, uint32_t stack,
                                        bool (*visit)(void *context,
                                                      const struct xseg_history_frame *frame),
                                        void *context);

/**
 * Get the method by which call stacks are recorded.
 *
 * The methods are "libunwind", "frame records" (aarch64) and "backtrace" (the C library).  "backtrace" is about 25
 * times slower than "libunwind".  It is used if libunwind.so.8 (Debian: libunwind8) cannot be opened, and the log
 * reports that once.
 *
 * @param allocator  NULL: the method that every allocator of the process would use.
 *
 * @return a static string; NULL while the allocator records no stacks, and in a forked child.
 * Cost: the first call opens libunwind.
 */
XSEG_API const char *xseg_history_stack_method(struct xseg_allocator *allocator);

/** Callbacks that identify frames of an interpreter, such as Python.  See xseg_history_set_hook(). */
struct xseg_history_hook {
    size_t struct_size; /* sizeof(struct xseg_history_hook) */
    void *context;      /* first argument of each callback */
    /* Returns the ID of the frames of the calling thread; 0: none. */
    uint32_t (*gather)(void *context);
    /* Writes frames as terminated text of up to `bytes`; false: unknown ID.  May be NULL. */
    bool (*name)(void *context, uint32_t frames, char *text, size_t bytes);
    /* Receives the frame IDs that are in use, after a sweep.  May be NULL. */
    void (*discard)(void *context, const uint32_t *kept, size_t count);
};

/**
 * Set the callbacks for frames of an interpreter.
 *
 * No callback may call the allocator.  The previous callbacks can still run in other threads after the return, so their
 * code must stay loaded.
 *
 * gather: called for each recorded stack, without a lock.
 *
 * discard: receives the frame IDs that events and blocks use.  An ID that is not among them can be discarded if
 * `gather` has not returned it since the previous call of `discard`.  `discard` runs without a lock, in one thread at a
 * time, after a sweep.  A sweep runs in xseg_history_clear(), after many stacks were recorded, and when a new label or
 * annotation finds the table of labels full.
 *
 * @param hook  callbacks, copied; NULL: none.
 *
 * @return XSEG_ERR_ARGUMENT  also: gather is NULL.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_history_set_hook(struct xseg_allocator *allocator,
                                           const struct xseg_history_hook *hook);

/**
 * Record an annotation in the history of a device.
 *
 * The call has no effect while events or annotations are not recorded (history, history_skip).
 *
 * @param device  CUDA ordinal.
 * @param text    string, truncated to 119 bytes and copied.
 *
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call once the device is open.  The string is stored as by xseg_history_label().
 */
XSEG_API xseg_status xseg_history_annotate(struct xseg_allocator *allocator, int device,
                                           const char *text);

/**
 * Set the label of the calling thread.
 *
 * Events of the thread, and the blocks that it allocates, have this label.  A scope sets its label and restores the
 * previous one at its end:
 *
 *     const char *before = NULL; // Receives the label of the caller.
 *     xseg_history_label(allocator, "optimizer", &before);
 *     step();
 *     xseg_history_label(allocator, before, NULL);
 *
 * Each distinct string is stored once.  It is in use as the label of a thread, of an event or of a block, or as a
 * string that `before` has received.  A sweep discards unused strings when the table of labels is full, so a service
 * can use one label per request.  While 16 MiB of strings are in use (32 MiB during a walk or snapshot), a new string
 * becomes "(other)".
 *
 * The string that `before` receives is valid until the first of these events.
 *   - The thread restores the label: it passes the pointer as `text`, with `before` NULL.
 *   - The thread restores an earlier label in this way: the end of a scope ends all scopes inside it.
 *   - The thread has received 32 further labels by `before`.
 *   - The thread ends.
 *
 * @param text    string, truncated to 119 bytes and copied; NULL: no label.
 * @param before  receives the previous label; may be NULL.
 *
 * @return XSEG_ERR_HOST_MEMORY  also: the thread is ending.
 *         An error leaves the label unchanged.
 * Cost: no driver call; one lookup under a lock that is held briefly.  If the table is full, the call runs a sweep,
 *       which is O(events + blocks + labels) and waits for the device memory lock.
 */
XSEG_API xseg_status xseg_history_label(struct xseg_allocator *allocator, const char *text,
                                        const char **before);

/* --- Snapshots. --- */

/** Options of xseg_snapshot(). */
struct xseg_snapshot_options {
    size_t struct_size;  /* sizeof(struct xseg_snapshot_options) */
    bool without_events; /* write segments and blocks only */
    uint64_t host_bytes; /* maximum host memory for events; 0: see xseg_snapshot() */
    uint32_t max_ms;     /* time limit in milliseconds; 0: none */
};

/**
 * Write a snapshot file.
 *
 * The function names, files and lines of new stack frames are looked up first, in at most half of max_ms.  Their source
 * is the symbol table and the debug information of the module.  The lookup requires libdw.so.1, and a file of the
 * module with the same build ID.
 *
 * The blocks of a device are those of one moment, at which its events end.  Each device has its own moment.
 *
 * Events that exceed host_bytes or max_ms are omitted, the oldest first; the file contains the number of omitted
 * events.  An event needs 64 bytes.  The default of host_bytes is 64 MiB less the memory for blocks and pages, plus 64
 * bytes for each allocated block above 10^5.
 *
 * The file is written under a temporary name in the same directory and renamed when it is complete.  Devices, pipes and
 * /dev/stdout are written directly, and max_ms omits no events then.
 *
 * @param path     path of the file.
 * @param options  NULL for the defaults.
 *
 * @return XSEG_ERR_FILE  the file could not be written; an earlier file is unchanged.
 * Threads: any; waits for the device memory lock.
 * Cost: a stream query for each stream with idle memory, and cuMemGetInfo with device_free_min_mb.  O(blocks), during
 *       which hits and misses on the device wait.  Host memory: 40 bytes per block, 200 bytes per page, and host_bytes.
 *       Without max_ms the lookup of stack frames takes up to seconds, and host memory of the size of the debug
 *       information, which is also read from the system's directory of build IDs.
 */
XSEG_API xseg_status xseg_snapshot(struct xseg_allocator *allocator, const char *path,
                                   const struct xseg_snapshot_options *options);

#ifdef __cplusplus
}
#endif

#endif
