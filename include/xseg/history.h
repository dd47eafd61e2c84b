/* SPDX-License-Identifier: MIT */
/*
 * History: what happened to blocks and segments, with the call stacks behind it.
 *
 * Five keys of the configuration say what is kept; xseg_configure() changes them while the programme runs.
 *
 *     history           nothing (default); state: of each live block when and by which stack it was allocated;
 *                       all: events, too
 *     history_stacks    which call stacks are taken: none (default); state: for live blocks; alloc: and for the
 *                       events that take memory; all: for all events
 *     history_events    how many events are kept for each stream and pool, small and large apart
 *     history_skip      actions that are not kept
 *     block_user        False (default); True: of each live block the word of its request, and in its events
 *
 * Terms:
 *   event    one thing that happened, see enum xseg_history_action
 *   stack    a call stack of the process, kept once however many events have it; named by a number
 *   frames   a number that the user's hook gives to frames of its own, such as Python's
 *   label    a text of the user's that holds for a thread until it is ended
 *
 * Threads: any, unless a function says otherwise.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_HISTORY_H
#define XSEG_HISTORY_H

#include "xseg/mapping.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What happened.  The first eight are PyTorch's, and have the numbers of enum xseg_trace_action. */
enum xseg_history_action {
    XSEG_HISTORY_ALLOC,          /* a block is handed out */
    XSEG_HISTORY_FREE_REQUESTED, /* its user has freed it */
    XSEG_HISTORY_FREE_COMPLETED, /* no stream uses it any more: it is cached */
    XSEG_HISTORY_SEGMENT_ALLOC,  /* a classic segment is there */
    XSEG_HISTORY_SEGMENT_FREE,   /* it is gone */
    XSEG_HISTORY_SEGMENT_MAP,    /* addresses of an expandable segment have memory */
    XSEG_HISTORY_SEGMENT_UNMAP,  /* they have none any more */
    XSEG_HISTORY_OOM,            /* a request was refused for want of memory (num_ooms) */
    /* Why memory goes; the next event of the same `base` takes it away. */
    XSEG_HISTORY_STEAL, /* another arena takes it */
    XSEG_HISTORY_DECAY, /* it was idle for too long */
    XSEG_HISTORY_TRIM,  /* it was asked back */
    /* The memory of a paused pool has gone from these addresses.  Without a RESUME if the pool has ended meanwhile. */
    XSEG_HISTORY_PAUSE,
    XSEG_HISTORY_RESUME,     /* these addresses of a paused pool have memory again */
    XSEG_HISTORY_ANNOTATION, /* xseg_history_annotate() */
    /* A request begins to wait for memory that other processes leave idle (share_budget).  What the thread does next on
     * the device, an ALLOC or an OOM as a rule, says when that was over. */
    XSEG_HISTORY_ASK,
    /* Why memory goes, as STEAL, DECAY and TRIM: it was idle, and other processes wanted it. */
    XSEG_HISTORY_GIVE,
    XSEG_HISTORY_ACTIONS /* how many there are; a later release may have more */
};

/** An event.  Texts of labels end; the functions that hand out entries say when. */
struct xseg_history_entry {
    size_t struct_bytes; /* sizeof(struct xseg_history_entry), as the library knows it */
    enum xseg_history_action action;
    int device;
    xseg_stream stream;
    uint32_t
        pool; /* number of the private pool whose memory it is, from 1 on; 0: the default pool's */
    bool is_lent; /* the block is the default pool's, in memory of that pool (pool.h) */
    void *base;   /* NULL: the event is about no memory */
    uint64_t
        bytes; /* of the block or of the piece of a segment; OOM: that the device had free, in whole 512; ASK: wanted */
    uint64_t
        requested; /* ALLOC, FREE_*: what the user asked for; OOM: what was refused; else `bytes` */
    uint64_t time_ns; /* by xseg_options.clock, or of CLOCK_MONOTONIC */
    uint32_t order; /* memory that passes between streams draws rising numbers; 0: none was drawn */
    uint32_t stack; /* for xseg_history_stack(); 0: none was taken, or it found no room */
    uint32_t frames;   /* of the user's hook; 0: none */
    int thread;        /* the kernel's number of the thread */
    const char *label; /* of the thread; of ANNOTATION its text; NULL: none */
    uint64_t
        pool_id[2]; /* the user's own name for the pool (struct xseg_pool_options); {0, 0}: none */
    /* With the key block_user: ALLOC, FREE_*: the word of the block's request (struct xseg_request); OOM: of the request
     * that was refused; else NULL.  NULL also without a word, and where the request came before the key was set or
     * while xseg_configure() changed a key of the history. */
    void *user;
};

/** How much of the history there is. */
struct xseg_history_summary {
    size_t struct_bytes;  /* sizeof(struct xseg_history_summary) */
    uint64_t events;      /* that there were to walk */
    uint64_t lost;        /* overwritten by newer ones, for want of room (history_events) */
    uint64_t stacks;      /* distinct ones, since the allocator was opened */
    uint64_t stacks_lost; /* that found no room, or no host memory */
    uint64_t
        stack_bytes; /* of host memory for stacks, which struct xseg_statistics does not count */
};
/* clang-format off */
#define XSEG_HISTORY_SUMMARY_INIT {sizeof(struct xseg_history_summary), 0, 0, 0, 0, 0}
/* clang-format on */

/**
 * Walk over the events of a device, or of all, from the oldest to the newest.
 *
 * The events are those of one moment for each device, while threads go on.  Events that are overwritten before they
 * were copied count as lost.  Memory that passed between streams goes by `order`, all else by time.
 *
 * @param device   -1: all devices that are open
 * @param visit    called with no lock held; false ends the walk.  Labels of entries stay until the walk is over, which
 *                 keeps all texts meanwhile
 * @param context  its first argument
 * @param summary  NULL, or from XSEG_HISTORY_SUMMARY_INIT
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT; XSEG_ERR_HOST_MEMORY: a copy takes 64 bytes an event, 72 with block_user;
 *          XSEG_ERR_FORKED
 * Cost:    no driver call.  Takes GROWTH and each arena's lock for a moment.
 */
XSEG_API XSEG_NODISCARD xseg_status
xseg_history_walk(struct xseg_allocator *allocator, int device,
                  bool (*visit)(void *context, const struct xseg_history_entry *entry),
                  void *context, struct xseg_history_summary *summary);

/**
 * Forget all events so far, and what was lost.  Live blocks keep when and where they were allocated.
 *
 * @param device  -1: all devices that are open
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Cost:    no driver call
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_history_clear(struct xseg_allocator *allocator,
                                                       int device);

/** Where a frame of a stack lies.  Texts stay as long as the allocator. */
struct xseg_history_frame {
    size_t struct_bytes;  /* sizeof(struct xseg_history_frame), as the library knows it */
    const void *pc;       /* the return address */
    const char *module;   /* path of the file; NULL: in none */
    const char *build_id; /* of the file, in hexadecimal digits; NULL: it has none */
    uint64_t offset;      /* in the file's addresses, as addr2line and libdw count */
    const char *function; /* NULL: not found, or no snapshot was written since */
    uint64_t function_offset;
    const char *source; /* source file; NULL: not looked up or not found */
    uint32_t line;      /* in it; 0: unknown */
};

/**
 * Visit the frames of a stack, the innermost first.  Functions, files and lines are those that xseg_snapshot() has looked up.
 *
 * @param stack  as an entry or a block has it
 * @param visit  false ends the visit
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT: there is no stack of this number; XSEG_ERR_FORKED
 * Cost:    no driver call, no lock.  Modules that were unloaded keep their paths and build IDs.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_history_stack(
    struct xseg_allocator *allocator, uint32_t stack,
    bool (*visit)(void *context, const struct xseg_history_frame *frame), void *context);

/**
 * By what call stacks are taken: "libunwind", or on aarch64 "frame records"; or "backtrace", the C library's, some 25 times
 * slower, where libunwind.so.8 (Debian: libunwind8) cannot be opened.  The log says that once, when an allocator begins to take stacks.
 *
 * @param allocator  NULL: as any allocator of the process would take them
 *
 * Returns: NULL while the allocator takes no stacks (history_stacks), and in a forked child
 * Cost:    opens the library the first time
 */
XSEG_API const char *xseg_history_stacks_by(struct xseg_allocator *allocator);

/** The user's own frames, such as Python's.  Start from XSEG_HISTORY_HOOK_INIT. */
struct xseg_history_hook {
    size_t struct_bytes; /* sizeof(struct xseg_history_hook) */
    void *context;       /* first argument of each */
    /*
     * Number the frames of the calling thread; 0: none.  Called wherever a stack is taken, before any lock of the
     * library's is taken.  It must not call this allocator.
     */
    uint32_t (*gather)(void *context);
    /* Write the frames of a number as text, at most `bytes` with the NUL; false: the number is not known.  NULL is
     * fine. */
    bool (*name)(void *context, uint32_t frames, char *text, size_t bytes);
    /*
     * Numbers that were gathered last before the previous call of this function, and are not among `kept`, are in no
     * event and with no block any more.  Called with no lock held, by one thread at a time: by xseg_history_clear(),
     * where many stacks were taken, and where a new label or annotation finds the table of labels full.  It must not
     * call this allocator.  NULL: numbers are never forgotten.
     */
    void (*forget)(void *context, const uint32_t *kept, size_t count);
};
/* clang-format off */
#define XSEG_HISTORY_HOOK_INIT {sizeof(struct xseg_history_hook), NULL, NULL, NULL, NULL}
/* clang-format on */

/**
 * Set the hook.  The one before may still run in other threads when this returns; its functions must stay.
 *
 * @param hook  copied; NULL: none any more
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT: of unknown size, or without gather; XSEG_ERR_HOST_MEMORY; XSEG_ERR_FORKED
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_history_set_hook(struct xseg_allocator *allocator,
                                                          const struct xseg_history_hook *hook);

/**
 * Write a text into the history of a device, between its events.
 *
 * @param text  copied, at most 119 bytes of it
 *
 * Returns: XSEG_OK, also while no events are kept; XSEG_ERR_ARGUMENT; XSEG_ERR_HOST_MEMORY; XSEG_ERR_FORKED;
 *          XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST: the device could not be opened
 * Cost:    no driver call once the device is open; the text as in xseg_history_label()
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_history_annotate(struct xseg_allocator *allocator,
                                                          int device, const char *text);

/**
 * Give the calling thread a label: its events, and the blocks that it allocates, carry it until another call of this
 * function.  So a scope begins with its label, and ends with the one before:
 *
 *     const char *before = NULL;
 *     (void)xseg_history_label(allocator, "optimizer", &before);
 *     ...
 *     (void)xseg_history_label(allocator, before, NULL);
 *
 * Each distinct string is kept once, while it is in use: while a thread has it as its label, a recorded event or a block
 * has it, or it has been returned.  Strings that are not in use are dropped when the table of labels is full, so a service
 * may give each request a label of its own.  While 16 MiB of strings are in use (32 MiB during a walk or a snapshot), each counted in whole 8 bytes, a new string becomes "(other)".
 *
 * @param text    copied, at most 119 bytes of it; NULL: no label
 * @param before  NULL, or set to the label that the thread had.  Its text stays until the same thread gives this pointer
 *                back as `text` with `before` NULL, or one that it was handed out earlier; until it has been handed out
 *                32 more; or until it ends
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, also for a thread that is ending; XSEG_ERR_FORKED.  On an error the thread
 *          keeps the label that it had
 * Cost:    no driver call; one look-up, under a lock that is held for moments.  When the table is full, a sweep, O(events +
 *          blocks + labels), which waits for driver calls that are in progress
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_history_label(struct xseg_allocator *allocator,
                                                       const char *text, const char **before);

#ifdef __cplusplus
}
#endif

#endif
