/* SPDX-License-Identifier: MIT */
/*
 * Hits: the shortest way from a door to a block and back.
 *
 * Most calls are plain: a request without wishes, on a stream that is known, for the default pool, while
 * no capture and no route is on the device, and the block is there.  So is one that names a pool, if nothing
 * is pending.  What makes a call anything else is looked at here once, in a few words; then it takes the
 * general way (device.h, allocator.h), which comes to the same result for plain calls as well.  The general
 * way takes some 500 instructions more.
 *
 * What is inline here is what the doors contain: the way to the arena by a shortcut, and by what rules it
 * serves.
 */
#ifndef XSEG_CORE_HIT_H
#define XSEG_CORE_HIT_H

#include "src/core/allocator.h"
#include "src/core/plain.h"

/* Serve a plain request from what is cached; false, and nothing has changed, if that cannot be done.
 * has_asked: whether what is pending has been looked at; else it is left alone */
bool xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, uint64_t bytes,
                    xseg_stream stream, void **out, bool *has_asked);

/* The same from a pool that somebody holds, for a request that names it and has no other wish. */
bool xseg_hit_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool, uint64_t bytes,
                       xseg_stream stream, void **out);

/* Serve a plain request from a locked arena: the address, or 0 */
uint64_t xseg_hit_serve(const struct xseg_config *config, struct xseg_arena *arena, uint64_t bytes);

/* Free a block that nothing else uses; false, and nothing has changed, if that cannot be done. */
bool xseg_hit_free(struct xseg_allocator *allocator, const void *pointer);

/* The same at an address of an extent that the look-up found, and whose arena is locked. */
bool xseg_hit_free_at(struct xseg_arena *arena, struct xseg_extent *extent, uint64_t address);

/* The arena of a stream's plain requests of a kind, if a shortcut leads to it; else NULL.
 * way: by what rules */
static inline struct xseg_arena *xseg_hit_arena(struct xseg_allocator *allocator, int ordinal,
                                                xseg_stream handle, bool is_small,
                                                enum xseg_stream_way *way)
{
    const struct xseg_known_stream *stream =
        xseg_shortcuts_find(&allocator->shortcuts, ordinal, handle);

    if (__builtin_expect(stream == NULL, 0))
        return NULL;
    struct xseg_arena *arena =
        atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);
    if (__builtin_expect(arena == NULL, 0))
        return NULL;
    *way = atomic_load_explicit(&stream->way, memory_order_relaxed);
    return arena;
}

/* Whether something is pending on an arena's device, so that a request has to look at it first; or the device is
 * lost. */
static inline bool xseg_hit_is_hindered(const struct xseg_arena *arena)
{
    return !xseg_word_is(&arena->device->context.hindrances, 0);
}

/* Serve a plain request from a locked large arena, where it is known by what rules: the address, or 0. */
static inline uint64_t xseg_hit_large(struct xseg_arena *arena, uint64_t bytes,
                                      enum xseg_stream_way way)
{
    return way == XSEG_WAY_CLASSIC ? xseg_arena_hit_classic(arena, bytes)
                                   : xseg_arena_hit_expandable(arena, bytes);
}

#endif
