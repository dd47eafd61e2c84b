/* SPDX-License-Identifier: MIT */
/*
 * History and snapshots: events of blocks and segments with call stacks and labels, and files in PyTorch's format.
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
 *     history         nothing (default); state: time and stack of each live block; all: events as well.
 *     history_stacks  none (default); state: stacks of live blocks; alloc: also of ALLOC, SEGMENT_ALLOC, SEGMENT_MAP,
 *                     RESUME, BUDGET_REQUEST and OOM; all: of all events.
 *     history_events  number of events that are kept for each stream and pool, separately for small and large memory.
 *     history_skip    actions that are not recorded.
 *     block_user      False (default); True: the user value of each request (struct xseg_request).
 *
 * Terms:
 *   event   one change of a block or segment (enum xseg_history_action).
 *   stack   a call stack of the process.  Equal stacks are stored once and identified by a number.
 *   frames  a number by which the user's hook identifies frames of an interpreter, such as Python frames.
 *   label   a string that the user attaches to a thread.
 */
#ifndef XSEG_HISTORY_H
#define XSEG_HISTORY_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Kind of an event.  The first eight are PyTorch's and have the numbers of enum xseg_trace_action. */
enum xseg_history_action {
    XSEG_HISTORY_ALLOC,          /* a block is allocated */
    XSEG_HISTORY_FREE_REQUESTED, /* the user frees the block */
    XSEG_HISTORY_FREE_COMPLETED, /* the block is cached: no stream uses it */
    XSEG_HISTORY_SEGMENT_ALLOC,  /* a classic segment is allocated */
    XSEG_HISTORY_SEGMENT_FREE,   /* a classic segment is released */
    XSEG_HISTORY_SEGMENT_MAP,    /* a run of an expandable segment is mapped */
    XSEG_HISTORY_SEGMENT_UNMAP,  /* a run of an expandable segment is unmapped */
    XSEG_HISTORY_OOM,            /* a request fails (num_ooms) */
    /* The reason of a release; the next event with the same `base` is the release. */
    XSEG_HISTORY_REMAP, /* the page is moved to another stream or pool */
    XSEG_HISTORY_DECAY, /* the memory has been idle for too long */
    XSEG_HISTORY_TRIM,  /* a trim */
    XSEG_HISTORY_PAUSE, /* memory of a paused pool is unmapped; no RESUME follows if the pool is destroyed */
    XSEG_HISTORY_RESUME,     /* memory of a paused pool is mapped again */
    XSEG_HISTORY_ANNOTATION, /* xseg_history_annotate() */
    XSEG_HISTORY_BUDGET_REQUEST, /* a request begins to wait for idle memory of other processes (budget_file) */
    XSEG_HISTORY_BUDGET_RELEASE, /* the reason of a release: other processes demand the memory */
    XSEG_HISTORY_ACTIONS         /* number of kinds; later versions have more */
};

/** An event. */
struct xseg_history_entry {
    size_t struct_size; /* sizeof(struct xseg_history_entry) of the library */
    enum xseg_history_action action;
    int device;
    xseg_stream stream;
    uint32_t pool;      /* ID of the private pool that has the memory, from 1; 0: default pool */
    bool is_fallback;   /* the block is of the default pool, in memory of `pool` (use_on_oom) */
    void *base;         /* start address; NULL if the event has none */
    uint64_t bytes;     /* size; OOM: free memory, a multiple of 512; BUDGET_REQUEST: demand */
    uint64_t requested; /* ALLOC, FREE_*, OOM: requested size; otherwise `bytes` */
    uint64_t time_ns;   /* of xseg_options.clock, or CLOCK_MONOTONIC */
    uint32_t order; /* sequence number of an event of a segment or an annotation; 0: other events */
    uint32_t stack; /* for xseg_history_stack(); 0: not recorded */
    uint32_t frames;     /* of the hook; 0: none */
    int thread;          /* thread ID of the kernel */
    const char *label;   /* label of the thread; ANNOTATION: its string; NULL: none */
    uint64_t pool_id[2]; /* id of the pool's options; {0, 0}: none */
    /* ALLOC, FREE_*, OOM, with the key block_user: user value of the request.  NULL also if the request preceded the
     * key, or was made while xseg_config_set() changed a key of the history. */
    void *user;
};

/** Size of the history. */
struct xseg_history_summary {
    size_t struct_size;   /* sizeof(struct xseg_history_summary) */
    uint64_t events;      /* events of the walk */
    uint64_t lost;        /* events that newer events have replaced (history_events) */
    uint64_t stacks;      /* distinct stacks since xseg_open() */
    uint64_t stacks_lost; /* stacks that were not recorded: table full, or out of host memory */
    uint64_t stack_bytes; /* host memory of stacks, which struct xseg_statistics does not contain */
};

/**
 * Visit the events of one or all devices, from the oldest to the newest.
 *
 * The events of a device are those of one moment.  Events that are replaced before they are copied count as lost.
 * Events with an `order` are sorted by it, other events by time.  Labels are valid until the function returns.
 *
 * @param device   CUDA ordinal; -1: all open devices.
 * @param visit    called without a lock for each event, which is valid during the call; returns false to end the walk.
 * @param context  first argument of visit.
 * @param summary  receives the size of the history; may be NULL.
 *
 * Cost: no driver call.  Host memory of 64 bytes per event, 72 with block_user.  Locks the device, and the cache of
 *       each stream, briefly.
 */
XSEG_API xseg_status xseg_for_each_event(struct xseg_allocator *allocator, int device,
                                         bool (*visit)(void *context,
                                                       const struct xseg_history_entry *entry),
                                         void *context, struct xseg_history_summary *summary);

/**
 * Discard all recorded events and the count of lost ones.  Live blocks keep their time and stack.
 *
 * @param device  CUDA ordinal; -1: all open devices.
 *
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_history_clear(struct xseg_allocator *allocator, int device);

/** A frame of a call stack.  Strings are valid until xseg_close(). */
struct xseg_history_frame {
    size_t struct_size;       /* sizeof(struct xseg_history_frame) of the library */
    const void *pc;           /* return address */
    const char *module;       /* path of the ELF file; NULL: none */
    const char *build_id;     /* of the file, in hexadecimal digits; NULL: none */
    uint64_t offset;          /* address in the file, as for addr2line and libdw */
    const char *function;     /* NULL: not found, or not looked up yet */
    uint64_t function_offset; /* offset from the start of the function */
    const char *source;       /* source file; NULL: not found, or not looked up yet */
    uint32_t line;            /* line in the source file; 0: unknown */
};

/**
 * Visit the frames of a stack, the innermost first.
 *
 * xseg_snapshot() looks up functions, files and lines.  Modules that were unloaded keep their paths and build IDs.
 *
 * @param stack    number of an event or a block.
 * @param visit    called for each frame; returns false to end the walk.
 * @param context  first argument of visit.
 *
 * @return XSEG_ERR_ARGUMENT  also: no stack has this number.
 * Cost: no driver call, no lock.
 */
XSEG_API xseg_status xseg_history_stack(struct xseg_allocator *allocator, uint32_t stack,
                                        bool (*visit)(void *context,
                                                      const struct xseg_history_frame *frame),
                                        void *context);

/**
 * Get the method by which call stacks are recorded.
 *
 * The methods are "libunwind", "frame records" (aarch64) and "backtrace".  The last is that of the C library, which is
 * about 25 times slower; it is used if libunwind.so.8 (Debian: libunwind8) cannot be opened, and the log reports that
 * once.
 *
 * @param allocator  NULL: the method that any allocator of the process would use.
 *
 * @return a static string; NULL while the allocator records no stacks, and in a forked child.
 * Cost: the first call opens the library.
 */
XSEG_API const char *xseg_history_stack_method(struct xseg_allocator *allocator);

/** Callbacks that identify frames of an interpreter, such as Python. */
struct xseg_history_hook {
    size_t struct_size; /* sizeof(struct xseg_history_hook) */
    void *context;      /* first argument of each callback */
    /* Returns the number of the calling thread's frames, or 0.  Called for each recorded stack, without a lock. */
    uint32_t (*gather)(void *context);
    /* Writes the frames of a number as text of at most `bytes` with terminator; false: unknown number.  May be NULL. */
    bool (*name)(void *context, uint32_t frames, char *text, size_t bytes);
    /* Reports that numbers which are not in `kept` are unused; see xseg_history_set_hook().  May be NULL. */
    void (*discard)(void *context, const uint32_t *kept, size_t count);
};

/**
 * Set the callbacks for frames of an interpreter.
 *
 * No callback may call the allocator.  The previous callbacks can still run in other threads after the return, so their
 * code must stay loaded.
 *
 * `discard` receives the numbers that events and blocks still use.  A number that is not among them can be discarded if
 * `gather` has not returned it since the previous call of `discard`.  It runs without a lock, in one thread at a time:
 * in xseg_history_clear(), after many stacks were recorded, and when a new label or annotation finds the table of
 * labels full.
 *
 * @param hook  callbacks, copied; NULL: none.
 *
 * @return XSEG_ERR_ARGUMENT  also: gather is NULL.
 */
XSEG_API xseg_status xseg_history_set_hook(struct xseg_allocator *allocator,
                                           const struct xseg_history_hook *hook);

/**
 * Record an annotation in the history of a device.  Without a history of events the call has no effect.
 *
 * @param device  CUDA ordinal.
 * @param text    string, truncated to 119 bytes and copied.
 *
 * Cost: no driver call once the device is open; otherwise as xseg_history_label().
 */
XSEG_API xseg_status xseg_history_annotate(struct xseg_allocator *allocator, int device,
                                           const char *text);

/**
 * Set the label of the calling thread.  Its events, and the blocks that it allocates, have this label.
 *
 * A scope sets its label and restores the previous one at its end:
 *
 *     const char *before = NULL; // Receives the label of the caller.
 *     xseg_history_label(allocator, "optimizer", &before);
 *     step();
 *     xseg_history_label(allocator, before, NULL);
 *
 * Each distinct string is stored once while it is in use: as the label of a thread, in an event or a block, or in
 * `before`.  Unused strings are discarded when the table of labels is full, so a service can use one label per request.
 * While 16 MiB of strings are in use (32 MiB during a walk or snapshot), a new string becomes "(other)".
 *
 * @param text    string, truncated to 119 bytes and copied; NULL: no label.
 * @param before  receives the previous label; may be NULL.  The string is valid until the thread ends, has received 32
 *                further labels, or passes this pointer or one received earlier as `text` with `before` NULL.
 *
 * @return XSEG_ERR_HOST_MEMORY  also: the thread is ending.
 *         An error leaves the label unchanged.
 * Cost: no driver call; one lookup under a lock that is held briefly.  If the table is full, O(events + blocks +
 *       labels), and the call waits for driver calls in progress.
 */
XSEG_API xseg_status xseg_history_label(struct xseg_allocator *allocator, const char *text,
                                        const char **before);

/* --- Snapshots. --- */

/** Options of xseg_snapshot(). */
struct xseg_snapshot_options {
    size_t struct_size;  /* sizeof(struct xseg_snapshot_options) */
    bool without_events; /* write segments and blocks only */
    uint64_t host_bytes; /* host memory for events, 64 bytes each; 0: see xseg_snapshot() */
    uint32_t max_ms;     /* time limit in milliseconds; 0: none */
};

/**
 * Write a snapshot.
 *
 * Function names, files and lines of new stack frames are looked up first, in at most half of max_ms.  The source is
 * the symbol table and the debug information of the module, if libdw.so.1 is installed and the file has the same build
 * ID.  The blocks of a device are those of one moment, at which its events end; each device has its own moment.
 *
 * Events that exceed host_bytes or max_ms are omitted, the oldest first; the file contains their number.  By default
 * events get the rest of 64 MiB that blocks and pages leave, plus 64 bytes for each live block above 10^5.
 *
 * @param path     path of the file.  It is written under a temporary name in the same directory and renamed when it is
 *                 complete.  Devices, pipes and /dev/stdout are written directly, and max_ms omits no events.
 * @param options  NULL for the defaults.
 *
 * @return XSEG_ERR_FILE  the file could not be written; an earlier file is unchanged.
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
