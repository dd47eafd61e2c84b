/* SPDX-License-Identifier: MIT */
/* The doors of blocks, of xseg/allocator.h, but for their frees (block_free.c). */
#include "xseg/allocator.h"

#include <string.h>

#include "src/core/hit.h"
#include "src/door.h"

/* The most that an address can be asked to be a multiple of. */
#define ALIGNMENT_MAX XSEG_GIB

/* The device of the pool that a request names, or of its number. */
static xseg_status find_device(struct xseg_allocator *allocator, const struct xseg_request *request,
                               struct xseg_device **out)
{
    if (request->pool == NULL)
        return xseg_allocator_device(allocator, request->device, out);
    XSEG_DOOR_REQUIRE(xseg_allocator_owns(allocator, request->pool),
                      "xseg_alloc_with: pool %s belongs to another allocator",
                      xseg_pool_label(request->pool));
    XSEG_DOOR_REQUIRE(!xseg_pool_is_retired(request->pool),
                      "xseg_alloc_with: nobody holds the pool any more");
    *out = request->pool->body->device;
    return XSEG_OK;
}

/* has_asked: what is pending has been looked at for this request */
static xseg_status alloc_as(struct xseg_allocator *allocator, const struct xseg_request *request,
                            void **out, bool has_asked)
{
    struct xseg_device *device = NULL;

    XSEG_DOOR_REQUIRE(out != NULL, "an allocation: out is NULL");
    XSEG_DOOR_REQUIRE(request->alignment == 0 || (xseg_is_power_of_two(request->alignment) &&
                                                  request->alignment <= ALIGNMENT_MAX),
                      "xseg_alloc_with: an alignment of %zu bytes: give a power of two up to 1 GiB",
                      request->alignment);
    const xseg_status status = find_device(allocator, request, &device);
    if (status != XSEG_OK)
        return status;
    if (request->pool != NULL && request->alignment <= XSEG_SIZE_QUANTUM && !request->zeroed &&
        xseg_hit_alloc_in(allocator, request->pool, request->bytes, request->stream, out))
        return XSEG_OK;
    if (request->bytes == 0) {
        *out = NULL;
        return XSEG_OK;
    }
    const struct xseg_device_request wanted = {
        .pool = request->pool,
        .config = xseg_allocator_config(allocator),
        .bytes = request->bytes,
        .alignment = request->alignment,
        .stream = request->stream,
        .zeroed = request->zeroed,
        .has_asked = has_asked,
    };
    return xseg_device_alloc(device, &wanted, out);
}

/* Members that the caller does not know keep their defaults. */
static struct xseg_request request_of(const struct xseg_request *given)
{
    struct xseg_request request = XSEG_REQUEST_INIT;

    if (__builtin_expect(given->struct_bytes == sizeof(request), 1))
        return *given;
    memcpy(&request, given, given->struct_bytes);
    return request;
}

xseg_status xseg_alloc_with(struct xseg_allocator *allocator, const struct xseg_request *given,
                            void **out)
{
    XSEG_DOOR(allocator);
    XSEG_DOOR_REQUIRE(given != NULL &&
                          (XSEG_DOOR_PUBLISHED(given, struct xseg_request) ||
                           XSEG_DOOR_PUBLISHED_BEFORE(given, struct xseg_request, zeroed)),
                      "xseg_alloc_with: the request is NULL or of unknown size: start from "
                      "XSEG_REQUEST_INIT");
    const struct xseg_request request = request_of(given);
    return alloc_as(allocator, &request, out, false);
}

/* A hit ends in one of these, the earlier the shorter. */

XSEG_DOOR_NEXT alloc_generally(struct xseg_allocator *allocator, int device, size_t bytes,
                               xseg_stream stream, void **out, bool has_asked)
{
    struct xseg_request request = XSEG_REQUEST_INIT;

    request.device = device;
    request.bytes = bytes;
    request.stream = stream;
    return alloc_as(allocator, &request, out, has_asked);
}

XSEG_DOOR_NEXT alloc_slowly(struct xseg_allocator *allocator, int device, size_t bytes,
                            xseg_stream stream, void **out)
{
    bool has_asked = false;

    XSEG_DOOR_OF(allocator, "xseg_alloc");
    if (out != NULL && xseg_hit_alloc(allocator, device, bytes, stream, out, &has_asked))
        return XSEG_OK;
    return alloc_generally(allocator, device, bytes, stream, out, has_asked);
}

static inline const struct xseg_config *config_of(const struct xseg_arena *arena)
{
    return xseg_allocator_config(arena->device->allocator);
}

/* While something is pending, which is looked at first, or the device is lost.  Its arena says who asks, as in
 * alloc_held(); what it says is asked again after the look, so that three registers are saved and not six. */
XSEG_DOOR_NEXT alloc_looking(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    uint64_t base = 0;

    xseg_device_look_at_pending(arena, config_of(arena));
    xseg_arena_lock(arena);
    const enum xseg_stream_way way =
        atomic_load_explicit(&xseg_arena_stream(arena)->way, memory_order_relaxed);
    /* The look may be what finds the device lost. */
    if (__builtin_expect(!xseg_context_is_lost(&arena->device->context), 1))
        base = !arena->is_small && way != XSEG_WAY_ASK
                   ? xseg_hit_large(arena, bytes, way)
                   : xseg_hit_serve(config_of(arena), arena, bytes);
    xseg_arena_unlock(arena);
    if (__builtin_expect(base == 0, 0))
        return alloc_generally(arena->device->allocator, arena->device->context.ordinal, bytes,
                               xseg_arena_stream(arena)->handle, out, true);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* From the arena that a shortcut leads to. */
XSEG_DOOR_NEXT alloc_from(struct xseg_allocator *allocator, int device, size_t bytes,
                          xseg_stream stream, void **out, struct xseg_arena *arena) XSEG_UNCHECKED
{
    xseg_arena_lock(arena);
    const uint64_t base = xseg_hit_serve(xseg_allocator_config(allocator), arena, bytes);
    xseg_arena_unlock(arena);
    if (__builtin_expect(base == 0, 0))
        return alloc_slowly(allocator, device, bytes, stream, out);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* From a small one that is locked, and has to ask by what rule.  Its arena says who asks: with fewer
 * arguments to keep, what comes before it does without saved registers. */
XSEG_DOOR_NEXT alloc_held(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    struct xseg_device *device = arena->device;
    const xseg_stream stream = xseg_arena_stream(arena)->handle;
    const uint64_t base = xseg_hit_serve(config_of(arena), arena, bytes);

    xseg_latch_give_own(&arena->lock);
    if (__builtin_expect(base == 0, 0))
        return alloc_slowly(device->allocator, device->context.ordinal, bytes, stream, out);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* What was handed out passes a limit. */
XSEG_DOOR_NEXT alloc_counted(struct xseg_arena *arena) XSEG_UNCHECKED
{
    xseg_counts_look_around_all(&arena->counts);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* From one that is locked, and whose rack has nothing that fits.  expandable: of the configuration */
XSEG_DOOR_NEXT alloc_wide(struct xseg_arena *arena, void **out, size_t bytes,
                          bool expandable) XSEG_UNCHECKED
{
    const uint64_t base = xseg_small_hit_wide(arena, bytes, expandable);

    if (__builtin_expect(base == 0, 0))
        return alloc_held(arena, out, bytes);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* A place has been found in one that is locked.  is_only: no other cell of its size begins in its word.
 * The sums come first and the limits last, so that less is kept meanwhile. */
static inline __attribute__((always_inline)) xseg_status
cut_at(struct xseg_arena *arena, void **out, size_t bytes, struct xseg_plain_place place,
       uint64_t size, uint64_t quanta, bool expandable, bool is_only) XSEG_UNCHECKED
{
    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    *out = (void *)(uintptr_t)xseg_plain_note_live(arena, place.sheet, place.index, quanta, bytes);
    if (!expandable)
        xseg_fragments_cut(&arena->counts, quanta << XSEG_CELLS_SHIFT,
                           (size - quanta) << XSEG_CELLS_SHIFT);
    if (is_only)
        xseg_rack_clear_lowest(&arena->small.rack, place.sheet, size);
    xseg_plain_cut(&arena->small.rack, place, size, quanta);
    if (__builtin_expect(xseg_counts_are_past_limits(&arena->counts), 0))
        return alloc_counted(arena);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

XSEG_DOOR_NEXT alloc_head(struct xseg_arena *arena, void **out, size_t bytes,
                          struct xseg_sheet *sheet, uint64_t index, uint64_t size) XSEG_UNCHECKED
{
    return cut_at(arena, out, bytes, xseg_plain_place_at(sheet, index), size,
                  xseg_plain_quanta(bytes), true, true);
}

XSEG_DOOR_NEXT alloc_head_classic(struct xseg_arena *arena, void **out, size_t bytes,
                                  struct xseg_sheet *sheet, uint64_t index,
                                  uint64_t size) XSEG_UNCHECKED
{
    return cut_at(arena, out, bytes, xseg_plain_place_at(sheet, index), size,
                  xseg_plain_quanta(bytes), false, true);
}

/* From a word whose first candidate for a size is none, or not the only one. */
static inline __attribute__((always_inline)) xseg_status
cut_among(struct xseg_arena *arena, void **out, size_t bytes, struct xseg_sheet *sheet,
          uint64_t size, bool expandable) XSEG_UNCHECKED
{
    const uint64_t number = (uint64_t)__builtin_ctzll(sheet->bin[size]);
    bool may_have_other = false;
    const struct xseg_plain_place place = xseg_plain_place_in(
        sheet, number, xseg_rack_pick_short(&sheet->word[number], size, &may_have_other));

    if (number == XSEG_CELLS_WORDS - 1 || xseg_plain_must_ask(place, size, expandable))
        return alloc_held(arena, out, bytes);
    return cut_at(arena, out, bytes, place, size, xseg_plain_quanta(bytes), expandable,
                  !may_have_other ||
                      !xseg_rack_has_other(sheet, (uint32_t)number, (uint32_t)size, place.bit));
}

XSEG_DOOR_NEXT alloc_among(struct xseg_arena *arena, void **out, size_t bytes,
                           struct xseg_sheet *sheet, uint64_t size) XSEG_UNCHECKED
{
    return cut_among(arena, out, bytes, sheet, size, true);
}

XSEG_DOOR_NEXT alloc_among_classic(struct xseg_arena *arena, void **out, size_t bytes,
                                   struct xseg_sheet *sheet, uint64_t size) XSEG_UNCHECKED
{
    return cut_among(arena, out, bytes, sheet, size, false);
}

/* From one where nothing but the frontier is cached. */
XSEG_DOOR_NEXT alloc_at_frontier(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    const uint64_t base = xseg_plain_cut_frontier(arena, bytes);

    if (__builtin_expect(base == 0, 0))
        return alloc_wide(arena, out, bytes, true);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    if (__builtin_expect(xseg_counts_are_past_limits(&arena->counts), 0))
        return alloc_counted(arena);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* From one that is locked, and whose rack has no cell below 64 quanta that fits. */
static inline __attribute__((always_inline)) xseg_status
alloc_from_long(struct xseg_arena *arena, void **out, size_t bytes, bool expandable) XSEG_UNCHECKED
{
    if (expandable && xseg_plain_is_frontier_all(arena))
        return alloc_at_frontier(arena, out, bytes);
    const uint64_t size = xseg_rack_fit(&arena->small.rack, (uint32_t)xseg_plain_quanta(bytes));
    if (size == 0)
        return alloc_wide(arena, out, bytes, expandable);
    struct xseg_sheet *sheet = xseg_plain_find_sheet(&arena->small.rack, size);
    const uint64_t number = (uint64_t)__builtin_ctzll(sheet->bin[size]);
    const struct xseg_plain_place place =
        xseg_plain_place_in(sheet, number, xseg_rack_last(&sheet->word[number]));
    if (__builtin_expect(xseg_plain_must_ask(place, size, expandable), 0))
        return alloc_held(arena, out, bytes);
    return expandable ? alloc_head(arena, out, bytes, sheet, place.index, size)
                      : alloc_head_classic(arena, out, bytes, sheet, place.index, size);
}

XSEG_DOOR_NEXT alloc_long(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    return alloc_from_long(arena, out, bytes, true);
}

XSEG_DOOR_NEXT alloc_long_classic(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    return alloc_from_long(arena, out, bytes, false);
}

/* From a sheet that has the best size; is_all: which is just what is asked for. */
static inline __attribute__((always_inline)) xseg_status
alloc_from_sheet(struct xseg_arena *arena, void **out, size_t bytes, struct xseg_sheet *sheet,
                 uint64_t size, bool is_all, bool expandable) XSEG_UNCHECKED
{
    bool is_it = false;
    const struct xseg_plain_place place = xseg_plain_find_only(sheet, size, &is_it);

    if (__builtin_expect(!is_it, 0))
        return expandable ? alloc_among(arena, out, bytes, sheet, size)
                          : alloc_among_classic(arena, out, bytes, sheet, size);
    if (__builtin_expect(xseg_plain_must_ask(place, size, expandable), 0))
        return alloc_held(arena, out, bytes);
    return cut_at(arena, out, bytes, place, size, is_all ? size : xseg_plain_quanta(bytes),
                  expandable, true);
}

XSEG_DOOR_NEXT alloc_fit(struct xseg_arena *arena, void **out, size_t bytes,
                         struct xseg_sheet *sheet, uint64_t size) XSEG_UNCHECKED
{
    return alloc_from_sheet(arena, out, bytes, sheet, size, true, true);
}

XSEG_DOOR_NEXT alloc_larger(struct xseg_arena *arena, void **out, size_t bytes,
                            struct xseg_sheet *sheet, uint64_t size) XSEG_UNCHECKED
{
    return alloc_from_sheet(arena, out, bytes, sheet, size, false, true);
}

XSEG_DOOR_NEXT alloc_fit_classic(struct xseg_arena *arena, void **out, size_t bytes,
                                 struct xseg_sheet *sheet, uint64_t size) XSEG_UNCHECKED
{
    return alloc_from_sheet(arena, out, bytes, sheet, size, false, false);
}

/* From one that is locked, by best fit. */
static inline __attribute__((always_inline)) xseg_status
alloc_fitting(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    const uint64_t quanta = xseg_plain_quanta(bytes);
    const uint64_t size = xseg_rack_fit_short(&arena->small.rack, quanta);

    if (size == 0)
        return alloc_long(arena, out, bytes);
    struct xseg_sheet *sheet = xseg_plain_find_sheet(&arena->small.rack, size);
    return size == quanta ? alloc_fit(arena, out, bytes, sheet, size)
                          : alloc_larger(arena, out, bytes, sheet, size);
}

XSEG_DOOR_NEXT alloc_settled(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED;

/* From a vast one with a latest cell. */
XSEG_DOOR_NEXT alloc_settling(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    xseg_latest_settle(arena);
    return alloc_settled(arena, out, bytes);
}

/* From a vast one, whose latest cell may be the best. */
XSEG_DOOR_NEXT alloc_settled(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    return arena->small.latest.sheet != NULL ? alloc_settling(arena, out, bytes)
                                             : alloc_fitting(arena, out, bytes);
}

/* The latest cell is the best, and just what is asked for: it has never been cached. */
XSEG_DOOR_NEXT alloc_latest(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    const struct xseg_latest cell = xseg_latest_take(&arena->small.latest);

    xseg_counts_settle(&arena->counts);
    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    *out =
        (void *)(uintptr_t)xseg_plain_note_live(arena, cell.sheet, cell.index, cell.quanta, bytes);
    if (__builtin_expect(xseg_counts_are_past_limits(&arena->counts), 0))
        return alloc_counted(arena);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* From a vast one whose rack has a cell of just the size: without the latest cell, which may still wait for its
 * word, unless that is the better one. */
XSEG_DOOR_NEXT alloc_vast_fit(struct xseg_arena *arena, void **out, size_t bytes,
                              uint64_t quanta) XSEG_UNCHECKED
{
    struct xseg_sheet *sheet = xseg_plain_find_sheet(&arena->small.rack, quanta);
    bool is_it = false;
    const struct xseg_plain_place place = xseg_plain_find_only(sheet, quanta, &is_it);

    if (__builtin_expect(!is_it || xseg_plain_must_ask(place, quanta, true) ||
                             xseg_counts_is_older(&arena->counts, &sheet->slack[place.index]),
                         0))
        return alloc_settled(arena, out, bytes);
    if (__builtin_expect(xseg_latest_is_better(&arena->small.latest, quanta, sheet, place.index),
                         0))
        return alloc_latest(arena, out, bytes);
    return cut_at(arena, out, bytes, place, quanta, quanta, true, true);
}

/* From one that is locked, and is not plain. */
XSEG_DOOR_NEXT alloc_vast(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    const uint64_t quanta = xseg_plain_quanta(bytes);

    if (__builtin_expect(arena->small.way != XSEG_SMALL_VAST, 0))
        return alloc_held(arena, out, bytes);
    if (xseg_rack_has_short(&arena->small.rack, quanta))
        return alloc_vast_fit(arena, out, bytes, quanta);
    return arena->small.latest.quanta == quanta ? alloc_latest(arena, out, bytes)
                                                : alloc_settled(arena, out, bytes);
}

/* From one that is locked. */
XSEG_DOOR_NEXT alloc_racked(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    if (arena->small.way != XSEG_SMALL_PLAIN)
        return alloc_vast(arena, out, bytes);
    return alloc_fitting(arena, out, bytes);
}

/* The same by the rules of classic segments, which a latest cell never serves. */
XSEG_DOOR_NEXT alloc_racked_classic(struct xseg_arena *arena, void **out,
                                    size_t bytes) XSEG_UNCHECKED
{
    if (__builtin_expect(arena->small.way != XSEG_SMALL_PLAIN, 0))
        return alloc_held(arena, out, bytes);
    const uint64_t size = xseg_rack_fit_short(&arena->small.rack, xseg_plain_quanta(bytes));

    if (size == 0)
        return alloc_long_classic(arena, out, bytes);
    return alloc_fit_classic(arena, out, bytes, xseg_plain_find_sheet(&arena->small.rack, size),
                             size);
}

/* Give a large arena its latch back, and the user what it has served; base: 0 if it has not. */
static inline xseg_status finish_large(struct xseg_arena *arena, void **out, size_t bytes,
                                       uint64_t base) XSEG_UNCHECKED
{
    xseg_latch_give_own(&arena->lock);
    if (__builtin_expect(base == 0, 0))
        return alloc_slowly(arena->device->allocator, arena->device->context.ordinal, bytes,
                            xseg_arena_stream(arena)->handle, out);
    *out = (void *)(uintptr_t)base; /* NOLINT(performance-no-int-to-ptr) */
    return XSEG_OK;
}

/* From a large one that is locked, by the rules that are known. */
XSEG_DOOR_NEXT alloc_large_held(struct xseg_arena *arena, void **out, size_t bytes) XSEG_UNCHECKED
{
    return finish_large(arena, out, bytes, xseg_arena_hit_expandable(arena, bytes));
}

XSEG_DOOR_NEXT alloc_large_classic(struct xseg_arena *arena, void **out,
                                   size_t bytes) XSEG_UNCHECKED
{
    return finish_large(arena, out, bytes, xseg_arena_hit_classic(arena, bytes));
}

/* From the arena that a shortcut leads to, by the rules that its stream is known to have. */
static inline __attribute__((always_inline)) xseg_status
alloc_by_way(struct xseg_allocator *allocator, int device, size_t bytes, xseg_stream stream,
             void **out, bool is_small) XSEG_UNCHECKED
{
    enum xseg_stream_way way = XSEG_WAY_ASK;
    struct xseg_arena *arena = xseg_hit_arena(allocator, device, stream, is_small, &way);

    if (__builtin_expect(arena == NULL, 0))
        return alloc_slowly(allocator, device, bytes, stream, out);
    if (__builtin_expect(xseg_hit_is_hindered(arena), 0))
        return alloc_looking(arena, out, bytes);
    if (way <= XSEG_WAY_CLASSIC) {
        if (way == XSEG_WAY_ASK || !xseg_latch_try_own(&arena->lock))
            return alloc_from(allocator, device, bytes, stream, out, arena);
        return is_small ? alloc_racked_classic(arena, out, bytes)
                        : alloc_large_classic(arena, out, bytes);
    }
    if (!xseg_latch_try_own(&arena->lock))
        return alloc_from(allocator, device, bytes, stream, out, arena);
    if (!is_small)
        return alloc_large_held(arena, out, bytes);
    return alloc_racked(arena, out, bytes);
}

XSEG_DOOR_NEXT alloc_large(struct xseg_allocator *allocator, int device, size_t bytes,
                           xseg_stream stream, void **out) XSEG_UNCHECKED
{
    if (__builtin_expect(bytes - 1 >= XSEG_SIZE_ABSURD - 1, 0))
        return alloc_slowly(allocator, device, bytes, stream, out);
    return alloc_by_way(allocator, device, bytes, stream, out, false);
}

xseg_status xseg_alloc(struct xseg_allocator *allocator, int device, size_t bytes,
                       xseg_stream stream, void **out) XSEG_UNCHECKED
{
    if (__builtin_expect(allocator == NULL || out == NULL, 0))
        return alloc_slowly(allocator, device, bytes, stream, out);
    if (bytes - 1 >= XSEG_SIZE_SMALL_MAX)
        return alloc_large(allocator, device, bytes, stream, out);
    return alloc_by_way(allocator, device, bytes, stream, out, true);
}

xseg_status xseg_block(struct xseg_allocator *allocator, const void *anywhere,
                       struct xseg_block_info *out)
{
    struct xseg_block_info info = XSEG_BLOCK_INFO_INIT;

    XSEG_DOOR(allocator);
    XSEG_DOOR_REQUIRE(
        out != NULL && XSEG_DOOR_KNOWS(out, struct xseg_block_info),
        "xseg_block: out is NULL or of unknown size: start from XSEG_BLOCK_INFO_INIT");
    const xseg_status status = xseg_allocator_describe(allocator, anywhere, &info);
    if (status != XSEG_OK)
        return status;
    info.struct_bytes = out->struct_bytes;
    memcpy(out, &info, out->struct_bytes);
    return XSEG_OK;
}
