/* SPDX-License-Identifier: MIT */
/*
 * Shortcuts: a table from a stream's handle to its entry, for plain requests.
 *
 * A request is plain if its configuration has plain hits, its device is open, its stream is known, and
 * no route or capture could send it elsewhere.  These facts change rarely, so they are checked in
 * advance: a stream has a shortcut only while all of them hold.  A call that makes one of them false
 * drops the shortcut before it returns.  A plain request that took the longer way (hit_stream.c) makes the
 * shortcut again.
 *
 * The kernel wipes the table in a forked child, so a hit need not check for a fork.  Where the kernel
 * cannot do that, there are no shortcuts.
 *
 * Invariants, but for changes by a call that has not returned:
 *   SHORT-1  a stream with a shortcut is there, and its device is open and has no route; the
 *            configuration in force has plain hits, and the stream's `way`
 *            is the way that this configuration asks for.
 *
 * Locking: entries change under TABLE; reading them needs no lock.  Entries of streams stay until the
 * allocator closes.
 */
#ifndef XSEG_CORE_SHORTCUTS_H
#define XSEG_CORE_SHORTCUTS_H

#include "src/core/stream/streams.h"

/* Places in the table, one page.  Of streams that share a place, the first one keeps it. */
#define XSEG_SHORTCUTS 512u
_Static_assert(XSEG_SHORTCUTS == 1u << (64 - 55),
               "xseg_shortcuts_place() keeps the upper nine bits");

struct xseg_shortcuts {
    struct xseg_lock *lock;                      /* TABLE */
    _Atomic(struct xseg_known_stream *) *stream; /* [XSEG_SHORTCUTS] */
    bool are_wiped;                              /* whether a forked child gets the table wiped */
};

/* Returns false without host memory. */
bool xseg_shortcuts_init(struct xseg_shortcuts *shortcuts, struct xseg_lock *lock);
/* End the table.  The structure may also be all zeros, or one whose init found no host memory. */
void xseg_shortcuts_fini(struct xseg_shortcuts *shortcuts);

static inline unsigned xseg_shortcuts_place(int ordinal, xseg_stream handle)
{
    return (unsigned)(((uintptr_t)handle + (unsigned)ordinal) * UINT64_C(0x9E3779B97F4A7C15) >> 55);
}

/* The stream of a device and a handle, if it has a shortcut; else NULL. */
static inline struct xseg_known_stream *xseg_shortcuts_find(const struct xseg_shortcuts *shortcuts,
                                                            int ordinal, xseg_stream handle)
{
    struct xseg_known_stream *stream = atomic_load_explicit(
        &shortcuts->stream[xseg_shortcuts_place(ordinal, handle)], memory_order_acquire);

    return stream != NULL &&
                   atomic_load_explicit(&stream->handle, memory_order_relaxed) == handle &&
                   stream->ordinal == ordinal
               ? stream
               : NULL;
}

/* Whether a handle's place is empty. */
static inline bool xseg_shortcuts_want(const struct xseg_shortcuts *shortcuts, int ordinal,
                                       xseg_stream handle)
{
    return shortcuts->are_wiped &&
           atomic_load_explicit(&shortcuts->stream[xseg_shortcuts_place(ordinal, handle)],
                                memory_order_relaxed) == NULL;
}

/* Give a stream its shortcut, if its place is empty.  The lock is held. */
void xseg_shortcuts_add(struct xseg_shortcuts *shortcuts, struct xseg_known_stream *stream);

/* Drop the shortcut of a stream; of all streams of a device, or of all devices if `ordinal` is
 * negative.  Takes the lock. */
void xseg_shortcuts_drop(struct xseg_shortcuts *shortcuts, const struct xseg_known_stream *stream);
void xseg_shortcuts_drop_all(struct xseg_shortcuts *shortcuts, int ordinal);

#endif
