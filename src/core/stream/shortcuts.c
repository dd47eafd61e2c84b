/* SPDX-License-Identifier: MIT */
#include "src/core/stream/shortcuts.h"

#include "src/base/check.h"
#include "src/base/fork.h"

#define TABLE_BYTES (XSEG_SHORTCUTS * sizeof(_Atomic(struct xseg_known_stream *)))

bool xseg_shortcuts_init(struct xseg_shortcuts *shortcuts, struct xseg_lock *lock)
{
    XSEG_ASSERT(lock != NULL && lock->rank == XSEG_RANK_TABLE);
    shortcuts->lock = lock;
    shortcuts->stream = xseg_fork_wiped(TABLE_BYTES, &shortcuts->are_wiped);
    return shortcuts->stream != NULL;
}

void xseg_shortcuts_fini(struct xseg_shortcuts *shortcuts)
{
    xseg_fork_unmap(shortcuts->stream, TABLE_BYTES);
    shortcuts->stream = NULL;
}

void xseg_shortcuts_add(struct xseg_shortcuts *shortcuts, struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *place =
        &shortcuts->stream[xseg_shortcuts_place(stream->ordinal, stream->handle)];

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(stream->ordinal >= 0 && shortcuts->stream != NULL);
    if (xseg_shortcuts_want(shortcuts, stream->ordinal, stream->handle))
        atomic_store_explicit(place, stream, memory_order_release);
}

void xseg_shortcuts_drop(struct xseg_shortcuts *shortcuts, const struct xseg_known_stream *stream)
{
    _Atomic(struct xseg_known_stream *) *place =
        &shortcuts->stream[xseg_shortcuts_place(stream->ordinal, stream->handle)];

    xseg_lock_take(shortcuts->lock);
    if (atomic_load_explicit(place, memory_order_relaxed) == stream)
        atomic_store_explicit(place, NULL, memory_order_release);
    xseg_lock_give(shortcuts->lock);
}

void xseg_shortcuts_drop_all(struct xseg_shortcuts *shortcuts, int ordinal)
{
    xseg_lock_take(shortcuts->lock);
    for (unsigned i = 0; i < XSEG_SHORTCUTS; i++) {
        const struct xseg_known_stream *stream =
            atomic_load_explicit(&shortcuts->stream[i], memory_order_relaxed);

        if (stream != NULL && (ordinal < 0 || stream->ordinal == ordinal))
            atomic_store_explicit(&shortcuts->stream[i], NULL, memory_order_release);
    }
    xseg_lock_give(shortcuts->lock);
}
