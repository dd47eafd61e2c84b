/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/hit_alloc.h"

#include "src/base/error.h"
#include "src/core/alloc/hit_step.h"
#include "src/core/alloc/hit_stream.h"
#include "src/core/alloc/slow_path.h"
#include "src/core/block/fast_path.h"
#include "src/core/instance/history_sweep.h"
#include "src/core/instance/instance.h"

/* --- Where the hit path is left. --- */

/* Continue on the slow path (slow_path.h) after an arena had no block for the request.
 * has_polled: whether pending blocks were polled before the search */
XSEG_HIT_STEP continue_on_slow_path(struct xseg_arena *arena, void **out, size_t bytes,
                                    bool has_polled)
{
    struct xseg_device *device = arena->device;
    struct xseg_alloc_params params = {
        .config = xseg_allocator_config(device->allocator),
        .arena = arena,
        .stream = xseg_arena_stream(arena)->handle,
        .requested = bytes,
        .has_polled = has_polled,
    };
    XSEG_OPERATION("xseg_alloc");

    return xseg_slow_path_alloc(device, &params, out);
}

/* Take the slow path without an arena. */
static xseg_status alloc_on_slow_path(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                                      xseg_stream stream, void **out)
{
    struct xseg_request request = {sizeof(request)};
    XSEG_OPERATION("xseg_alloc");

    request.device = ordinal;
    request.bytes = bytes;
    request.stream = stream;
    return xseg_slow_path_alloc_request(allocator, &request, NULL, out);
}

/* Try the stream's entry (hit_stream.h), then take the slow path. */
XSEG_HIT_STEP leave(struct xseg_allocator *allocator, int ordinal, size_t bytes, xseg_stream stream,
                    void **out)
{
    struct xseg_arena *searched = NULL;
    bool has_polled = false;
    const xseg_status status = xseg_allocator_check(allocator);

    if (status != XSEG_OK)
        return status;
    xseg_allocator_gather(allocator, NULL);
    if (xseg_hit_stream_alloc(allocator, ordinal, bytes, stream, out, &searched, &has_polled))
        return XSEG_OK;
    return searched != NULL ? continue_on_slow_path(searched, out, bytes, has_polled)
                            : alloc_on_slow_path(allocator, ordinal, bytes, stream, out);
}

/* Take the slow path after an arena had no block for the request. */
XSEG_HIT_STEP leave_arena(struct xseg_arena *arena, void **out, size_t bytes)
{
    struct xseg_allocator *allocator = arena->device->allocator;
    const xseg_status status = xseg_allocator_check(allocator);

    if (status != XSEG_OK)
        return status;
    xseg_allocator_gather(allocator, NULL);
    return continue_on_slow_path(arena, out, bytes, false);
}

/* Give the lock back, and the user the address.
 * base: 0 if the arena has not served the request */
static inline xseg_status finish(struct xseg_arena *arena, void **out, size_t bytes, uint64_t base)
    XSEG_RELEASES(arena->lock)
{
    XSEG_ASSERT(base % XSEG_SIZE_UNIT == 0);
    xseg_biased_lock_unlock_owner(&arena->lock);
    if (__builtin_expect(base == 0, 0))
        return leave_arena(arena, out, bytes);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* --- Small blocks. --- */

XSEG_HIT_STEP small(struct xseg_arena *arena, void **out, size_t bytes, bool expandable)
    XSEG_RELEASES(arena->lock)
{
    XSEG_ASSERT(arena->is_small && bytes > 0 && bytes <= XSEG_SIZE_SMALL_MAX);
    return finish(arena, out, bytes, xseg_small_hit_plain(arena, bytes, expandable));
}

/* --- Large blocks. --- */

XSEG_HIT_STEP large(struct xseg_arena *arena, void **out, size_t bytes, bool expandable)
    XSEG_RELEASES(arena->lock)
{
    XSEG_ASSERT(!arena->is_small && bytes > XSEG_SIZE_SMALL_MAX);
    return finish(arena, out, bytes, xseg_fast_alloc_plain(arena, bytes, expandable));
}

/* --- Ways around. --- */

static uint64_t serve(struct xseg_arena *arena, size_t bytes) XSEG_REQUIRES(arena->lock)
{
    return xseg_hit_stream_serve(xseg_allocator_config(arena->device->allocator), arena, bytes);
}

/* Slow path while blocks are pending, or the device may be lost: looks at the events, then serves the request.  The
 * look may find that the device is lost. */
XSEG_HIT_STEP after_look(struct xseg_arena *arena, void **out, size_t bytes)
{
    struct xseg_device *device = arena->device;
    uint64_t base = 0;

    xseg_allocator_gather(device->allocator, NULL);
    xseg_slow_path_poll_pending(arena, xseg_allocator_config(device->allocator));
    xseg_arena_lock(arena);
    if (__builtin_expect(!xseg_context_is_lost(&device->context), 1))
        base = serve(arena, bytes);
    xseg_arena_unlock(arena);
    if (__builtin_expect(base == 0, 0))
        return continue_on_slow_path(arena, out, bytes, true);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* Serve a request from an arena that several threads use, or with a configuration that has more rules. */
XSEG_HIT_STEP from_shared(struct xseg_arena *arena, void **out, size_t bytes)
{
    xseg_allocator_gather(arena->device->allocator, NULL);
    xseg_arena_lock(arena);
    const uint64_t base = serve(arena, bytes);
    xseg_arena_unlock(arena);
    if (__builtin_expect(base == 0, 0))
        return leave_arena(arena, out, bytes);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* --- The beginning. --- */

static inline __attribute__((always_inline)) xseg_status
by_shortcut(struct xseg_allocator *allocator, int ordinal, size_t bytes, xseg_stream handle,
            void **out, bool is_small)
{
    const struct xseg_known_stream *stream =
        xseg_stream_cache_find(&allocator->stream_cache, ordinal, handle);

    if (__builtin_expect(stream == NULL, 0))
        return leave(allocator, ordinal, bytes, handle, out);
    struct xseg_arena *arena =
        atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);
    if (__builtin_expect(arena == NULL, 0))
        return leave(allocator, ordinal, bytes, handle, out);
    XSEG_ASSERT(arena->is_small == is_small && !arena->is_private);
    const enum xseg_fast_path_mode fast_path_mode =
        atomic_load_explicit(&stream->fast_path_mode, memory_order_relaxed);
    if (__builtin_expect(!xseg_single_writer_equals(&arena->device->context.slow_path, 0), 0))
        return after_look(arena, out, bytes);
    if (__builtin_expect(fast_path_mode == XSEG_FAST_PATH_BY_CONFIG, 0) ||
        !xseg_biased_lock_trylock_owner(&arena->lock))
        return from_shared(arena, out, bytes);
    return is_small ? small(arena, out, bytes, fast_path_mode == XSEG_FAST_PATH_EXPANDABLE)
                    : large(arena, out, bytes, fast_path_mode == XSEG_FAST_PATH_EXPANDABLE);
}

XSEG_HIT_STEP by_shortcut_large(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                                xseg_stream stream, void **out)
{
    if (__builtin_expect(bytes - 1 >= XSEG_SIZE_MAX - 1, 0))
        return leave(allocator, ordinal, bytes, stream, out);
    return by_shortcut(allocator, ordinal, bytes, stream, out, false);
}

xseg_status xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                           xseg_stream stream, void **out)
{
    if (bytes - 1 >= XSEG_SIZE_SMALL_MAX)
        return by_shortcut_large(allocator, ordinal, bytes, stream, out);
    return by_shortcut(allocator, ordinal, bytes, stream, out, true);
}
