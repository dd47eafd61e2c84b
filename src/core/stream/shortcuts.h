/* SPDX-License-Identifier: MIT */
/*
 * Shortcuts: from a stream's handle straight to its entry, for requests that nothing stands against.
 *
 * A plain request has to ask whether its configuration is plain, its device open, its stream known,
 * and whether a route or a capture could send it elsewhere.  The answers change rarely, so they are
 * given beforehand: a stream has a shortcut only while all of them are yes.  Whatever makes one a no
 * drops the shortcut before it returns; later a plain request that took the longer way (hit.c) makes it
 * again.
 *
 * The table is wiped in a forked child, so nobody has to ask about that either; where the kernel
 * cannot do that, there are no shortcuts.
 *
 * Invariants:
 *   SHORT-1  a stream with a shortcut is there, its device open and without a route, and the
 *            configuration in force has plain hits, and its `way` is what that says; but for what a call
 *            that has not returned changes.
 *
 * Locking: entries change under TABLE; reading one needs no lock.  What an entry leads to stays until
 * the allocator closes.
 */
#ifndef XSEG_CORE_SHORTCUTS_H
#define XSEG_CORE_SHORTCUTS_H

#include "src/core/stream/streams.h"

/* A page of them.  Streams that share a place take turns never: the first one keeps it. */
#define XSEG_SHORTCUTS 512u
_Static_assert(XSEG_SHORTCUTS == 1u << (64 - 55),
               "xseg_shortcuts_place() keeps the upper nine bits");

struct xseg_shortcuts {
    struct xseg_lock *lock;                      /* TABLE */
    _Atomic(struct xseg_known_stream *) *stream; /* [XSEG_SHORTCUTS] */
    bool are_wiped;                              /* in a child */
};

/* Returns false without host memory. */
bool xseg_shortcuts_init(struct xseg_shortcuts *shortcuts, struct xseg_lock *lock);
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

/* Drop that of a stream; of all of a device, or of all, if `ordinal` is below 0.  Takes the lock. */
void xseg_shortcuts_drop(struct xseg_shortcuts *shortcuts, const struct xseg_known_stream *stream);
void xseg_shortcuts_drop_all(struct xseg_shortcuts *shortcuts, int ordinal);

#endif
