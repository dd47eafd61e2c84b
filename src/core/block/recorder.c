/* SPDX-License-Identifier: MIT */
#include "src/core/block/recorder.h"

#include "src/base/align.h"
#include "src/core/block/origins.h"
#include "src/core/block/page_map.h"
#include "src/core/stats/observers.h"

_Static_assert((int)XSEG_HISTORY_OOM == (int)XSEG_TRACE_OOM &&
                   (int)XSEG_HISTORY_SEGMENT_UNMAP == (int)XSEG_TRACE_SEGMENT_UNMAP,
               "the first actions have the numbers that observers know");

/* The events that a free notes at once. */
#define FREES (1u << XSEG_HISTORY_FREE_REQUESTED | 1u << XSEG_HISTORY_FREE_COMPLETED)

/* No second action: of xseg_history_append(). */
#define NOTHING XSEG_HISTORY_ACTIONS

/* What the notes of one call have in common. */
struct noting {
    struct xseg_arena *arena;
    const struct xseg_history_context *context; /* the calling thread's */
    uint64_t settings;
    /* Read once, since another stream may take over an arena's entry between two notes that belong together. */
    xseg_stream stream;
    uint64_t time; /* 0: now */
};

static inline struct noting begin(struct xseg_arena *arena)
{
    return (struct noting){.arena = arena,
                           .context = xseg_history_context(),
                           .settings = xseg_history_settings(arena->history),
                           .stream = xseg_arena_stream(arena)->handle};
}

/* --- Where a note goes. --- */

static __attribute__((noinline)) void tell(const struct noting *noting, struct xseg_pool *pool,
                                           enum xseg_history_action action, uint64_t base,
                                           uint64_t bytes)
{
    const struct xseg_history *history = noting->arena->history;
    const struct xseg_trace_entry entry = {
        .struct_size = sizeof(entry),
        .action = (enum xseg_trace_action)action,
        .device = history->device,
        .stream = noting->stream,
        .pool = pool,
        .base = (void *)(uintptr_t)base, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = bytes,
    };

    if (action <= XSEG_HISTORY_OOM)
        xseg_observers_enqueue(history->observers, &entry);
}

/* An event, without what xseg_history_append() fills in.
 * order, pool: see event.h */
static inline __attribute__((always_inline)) struct xseg_history_event
event_of(const struct noting *noting, enum xseg_history_action action,
         const struct xseg_recorded_block *block, uint32_t order, uint32_t pool)
{
    return (struct xseg_history_event){
        .time = noting->time,
        .base = block->base,
        .requested = block->requested,
        .stream = (uint64_t)(uintptr_t)noting->stream,
        .size = xseg_history_event_size(block->bytes) & XSEG_HISTORY_SIZE_MASK,
        .order = order,
        .pool = pool,
        .flags = (block->is_fallback ? XSEG_HISTORY_FALLBACK : 0) |
                 (noting->arena->evicted != 0 ? XSEG_HISTORY_EVICTED : 0),
        .action = (uint8_t)action,
    };
}

/* order, pool: of the event, see event.h
 * then:        of xseg_history_append() */
static inline __attribute__((always_inline)) void
note(const struct noting *noting, enum xseg_history_action action, enum xseg_history_action then,
     const struct xseg_recorded_block *block, uint32_t order, uint32_t pool)
{
    struct xseg_arena *arena = noting->arena;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    xseg_history_append(arena->history, &arena->ring, noting->settings, noting->context,
                        event_of(noting, action, block, order, pool), then);
}

static inline bool keeps_users(const struct noting *noting)
{
    return __builtin_expect((noting->settings & XSEG_HISTORY_USERS) != 0, 0);
}

/* The word of the request that an event is about: that of the call, or the one that the block carries. */
static uint64_t user_of(const struct noting *noting, enum xseg_history_action action, uint64_t base)
{
    if (action == XSEG_HISTORY_ALLOC || action == XSEG_HISTORY_OOM)
        return xseg_history_user_of(noting->context, noting->settings);
    return action <= XSEG_HISTORY_FREE_COMPLETED
               ? xseg_origins_user(xseg_page_map_find(noting->arena->page_map, base), base)
               : 0;
}

/* note() where it is called less often, or events have words; twice in line is enough. */
static __attribute__((noinline)) void note_rare(const struct noting *noting,
                                                enum xseg_history_action action,
                                                const struct xseg_recorded_block *block,
                                                uint32_t order, uint32_t pool)
{
    struct xseg_history_event event;

    if (!keeps_users(noting)) {
        note(noting, action, NOTHING, block, order, pool);
        return;
    }
    event = event_of(noting, action, block, order, pool);
    xseg_history_append_with_user(noting->arena->history, &noting->arena->ring, noting->settings,
                                  noting->context, &event, user_of(noting, action, block->base));
}

/* The pool that users see as a block's holder. */
static struct xseg_pool *holder(const struct xseg_arena *arena, bool is_fallback)
{
    return is_fallback || !arena->is_private || arena->is_guarded ? NULL : arena->pool;
}

static inline void tell_of(const struct noting *noting, enum xseg_history_action action,
                           const struct xseg_recorded_block *block)
{
    if (__builtin_expect((noting->settings & XSEG_HISTORY_TRACED) != 0, 0))
        tell(noting, holder(noting->arena, block->is_fallback), action, block->base,
             block->requested);
}

static inline void note_block(const struct noting *noting, enum xseg_history_action action,
                              const struct xseg_recorded_block *block)
{
    tell_of(noting, action, block);
    if (xseg_history_settings_record(noting->settings, action))
        note_rare(noting, action, block, 0, noting->arena->pool_number);
}

/* --- Notes. --- */

/* Ticks for which a reading of the coarse clock holds: less than a millisecond. */
#define COARSE_TICKS ((uint64_t)1 << 19)

/* The time for an origin, which need not be exact.  The event before it has read a clock already. */
static inline uint64_t origin_time(const struct noting *noting)
{
    const struct xseg_history_store *store = noting->arena->history->store;
    struct xseg_history_ring *ring = noting->arena->ring;

    if (noting->time == 0 || !store->uses_cycle_counter || ring == NULL)
        return xseg_origins_now(&store->clock);
    if (__builtin_expect(noting->time - ring->coarse_ticks >= COARSE_TICKS, 0)) {
        ring->coarse_ns = xseg_origins_now(&store->clock);
        ring->coarse_ticks = noting->time;
    }
    return ring->coarse_ns;
}

static inline void note_origin(const struct noting *noting, uint64_t base)
{
    const struct xseg_history_store *store = noting->arena->history->store;
    const struct xseg_history_context *context = noting->context;
    const bool has_stack = (noting->settings & XSEG_HISTORY_ORIGIN_STACK) != 0 &&
                           xseg_history_context_is_of(context, noting->settings);
    const struct xseg_origin origin = {
        .stack = has_stack ? context->gathered.stack : 0,
        .frames = has_stack ? context->gathered.frames : 0,
        .label = xseg_history_label_of(context, store),
    };
    const bool is_known = (origin.stack | origin.frames | origin.label) != 0;

    if (xseg_origins_record(xseg_page_map_find(noting->arena->page_map, base), base,
                            origin_time(noting), is_known ? &origin : NULL) &&
        noting->arena->origins++ == 0)
        (void)atomic_fetch_or(&noting->arena->free_actions, XSEG_ARENA_ORIGINS);
}

/* xseg_recorder_alloc() where words are kept. */
static __attribute__((noinline)) void note_alloc_with(struct xseg_arena *arena,
                                                      const struct xseg_recorded_block *block)
{
    struct noting noting = begin(arena);

    noting.time = xseg_history_store_now(arena->history->store);
    note_block(&noting, XSEG_HISTORY_ALLOC, block);
    if ((noting.settings & XSEG_HISTORY_ORIGINS) != 0)
        note_origin(&noting, block->base);
    xseg_origins_record_user(xseg_page_map_find(arena->page_map, block->base), block->base,
                             user_of(&noting, XSEG_HISTORY_ALLOC, block->base));
}

void xseg_recorder_alloc(struct xseg_arena *arena, const struct xseg_recorded_block *block)
{
    struct noting noting = begin(arena);

    XSEG_ASSERT(block->base != 0 && block->requested <= block->bytes);
    if (keeps_users(&noting)) {
        note_alloc_with(arena, block);
        return;
    }
    tell_of(&noting, XSEG_HISTORY_ALLOC, block);
    if (xseg_history_settings_record(noting.settings, XSEG_HISTORY_ALLOC)) {
        noting.time = xseg_history_store_now(arena->history->store);
        note(&noting, XSEG_HISTORY_ALLOC, NOTHING, block, 0, arena->pool_number);
    }
    if ((noting.settings & XSEG_HISTORY_ORIGINS) != 0)
        note_origin(&noting, block->base);
}

void xseg_recorder_free(struct xseg_arena *arena, const struct xseg_recorded_block *block)
{
    const struct noting noting = begin(arena);

    XSEG_ASSERT(block->base != 0 && block->requested <= block->bytes);
    if ((noting.settings & (FREES | XSEG_HISTORY_USERS)) == FREES) {
        /* Both at one reading of the clock, which is half of what a note costs. */
        tell_of(&noting, XSEG_HISTORY_FREE_REQUESTED, block);
        tell_of(&noting, XSEG_HISTORY_FREE_COMPLETED, block);
        note(&noting, XSEG_HISTORY_FREE_REQUESTED, XSEG_HISTORY_FREE_COMPLETED, block, 0,
             arena->pool_number);
        return;
    }
    note_block(&noting, XSEG_HISTORY_FREE_REQUESTED, block);
    note_block(&noting, XSEG_HISTORY_FREE_COMPLETED, block);
}

void xseg_recorder_block(struct xseg_arena *arena, const struct xseg_block *block,
                         enum xseg_history_action action)
{
    const struct noting noting = begin(arena);

    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED || block->state == XSEG_BLOCK_PENDING_FREE ||
                block->state == XSEG_BLOCK_CLAIMED);
    note_block(&noting, action,
               &(struct xseg_recorded_block){block->base, block->bytes, block->requested,
                                             xseg_block_is_fallback(block)});
}

static void note_segment(const struct noting *noting, const struct xseg_extent *extent,
                         enum xseg_history_action action, uint64_t base, uint64_t bytes)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && bytes > 0);
    if ((noting->settings & XSEG_HISTORY_TRACED) != 0)
        tell(noting, holder(extent->arena, false), action, base, bytes);
    if (xseg_history_settings_record(noting->settings, action))
        note_rare(noting, action, &(struct xseg_recorded_block){base, bytes, bytes, false},
                  xseg_history_next_order(noting->arena->history), noting->arena->pool_number);
}

void xseg_recorder_segment(const struct xseg_extent *extent, enum xseg_history_action action,
                           uint64_t base, uint64_t bytes)
{
    const struct noting noting = begin(extent->arena);

    note_segment(&noting, extent, action, base, bytes);
}

void xseg_recorder_unmapped(const struct xseg_extent *extent, enum xseg_history_action cause,
                            enum xseg_history_action action, uint64_t base, uint64_t bytes)
{
    const struct noting noting = begin(extent->arena);

    note_segment(&noting, extent, cause, base, bytes);
    note_segment(&noting, extent, action, base, bytes);
}

void xseg_recorder_discarded(const struct xseg_extent *extent, uint64_t base, uint64_t bytes)
{
    const struct noting noting = begin(extent->arena);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && bytes > 0);
    if ((noting.settings & XSEG_HISTORY_TRACED) != 0)
        tell(&noting, holder(extent->arena, false), XSEG_HISTORY_SEGMENT_UNMAP, base, bytes);
}

void xseg_recorder_query(struct xseg_arena *arena, uint64_t bytes)
{
    const struct noting noting = begin(arena);
    const uint64_t wanted = xseg_round_up(bytes, (uint64_t)1 << XSEG_HISTORY_BYTES_SHIFT);

    note_block(&noting, XSEG_HISTORY_BUDGET_REQUEST,
               &(struct xseg_recorded_block){.requested = wanted, .bytes = wanted});
}

void xseg_recorder_oom(struct xseg_arena *arena, uint64_t requested, uint64_t free_bytes)
{
    const struct noting noting = begin(arena);

    note_block(&noting, XSEG_HISTORY_OOM,
               &(struct xseg_recorded_block){
                   .requested = requested,
                   .bytes = xseg_round_down(free_bytes, (uint64_t)1 << XSEG_HISTORY_BYTES_SHIFT)});
}
