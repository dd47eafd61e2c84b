/* SPDX-License-Identifier: MIT */
#include "src/core/block/recorder.h"

#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/clock.h"
#include "src/core/block/arena.h"
#include "src/core/block/page_map.h"
#include "src/core/stats/observers.h"

/* --- Origins. --- */

/* A stamp counts units of 2^24 nanoseconds. */
#define TICK_SHIFT 24u

/* Maximum lead of a stamp over a time that was read just before the stamp was written. */
#define TICKS_AHEAD ((uint32_t)1 << 16)

typedef atomic_uint_least32_t stamp_word; /* 0: unknown */

typedef atomic_uint_least64_t user_word; /* 0: none */

_Static_assert(sizeof(stamp_word) == 4, "stamps wrap at 2^32");

/* The origin of a block.  Its members are written separately, so a reader without the arena's lock
 * may see those of two blocks. */
struct origin_record {
    atomic_uint_least32_t stack, frames, label;
};

/* The tables of a chunk. */
enum table {
    STAMPS,  /* stamp_word */
    ORIGINS, /* struct origin_record */
    USERS,   /* user_word */
    TABLES
};

static const size_t record_bytes[TABLES] = {sizeof(stamp_word), sizeof(struct origin_record),
                                            sizeof(user_word)};

/* The tables of XSEG_ORIGINS_CHUNK indexes. */
struct chunk {
    _Atomic(void *) table[TABLES]; /* [XSEG_ORIGINS_CHUNK] each, or NULL */
};

struct xseg_origins {
    uint32_t chunks;
    atomic_size_t host_bytes;
    struct chunk chunk[];
};

static uint32_t time_to_ticks(uint64_t now)
{
    const uint32_t ticks = (uint32_t)((now >> TICK_SHIFT) + 1);

    return ticks == 0 ? 1 : ticks;
}

/* The current time for stamps. */
static uint64_t read_time(const struct xseg_clock *clock)
{
    return xseg_clock_coarse(clock) | 1;
}

uint64_t xseg_origins_now_if_enabled(const struct xseg_clock *clock,
                                     const struct xseg_config *config)
{
    return config->history != XSEG_HISTORY_NOTHING ? read_time(clock) : 0;
}

/* --- Tables: the first thread that needs a table allocates it. --- */

/* Get the index of an address in the tables of its extent. */
static uint64_t origin_index(const struct xseg_extent *extent, uint64_t address)
{
    XSEG_ASSERT(address - extent->segment.base < extent->segment.bytes);
    return (address - extent->segment.base) >>
           (extent->has_starts ? XSEG_START_SHIFT : XSEG_SLOT_SHIFT);
}

/* Get the origins of an extent, which the first call allocates; NULL on host allocation failure. */
static struct xseg_origins *get_origins(struct xseg_extent *extent)
{
    struct xseg_origins *origins = atomic_load_explicit(&extent->origins, memory_order_acquire);
    const uint64_t last = extent->segment.base + extent->segment.bytes - 1;
    const uint64_t chunks = origin_index(extent, last) / XSEG_ORIGINS_CHUNK + 1;
    struct xseg_origins *allocated;

    if (origins != NULL)
        return origins;
    allocated = calloc(1, sizeof(*allocated) + chunks * sizeof(allocated->chunk[0]));
    if (allocated == NULL)
        return NULL;
    XSEG_ASSERT(chunks > 0 && chunks <= UINT32_MAX);
    allocated->chunks = (uint32_t)chunks;
    atomic_init(&allocated->host_bytes, sizeof(*allocated) + chunks * sizeof(allocated->chunk[0]));
    if (atomic_compare_exchange_strong(&extent->origins, &origins, allocated))
        return allocated;
    free(allocated);
    return origins;
}

/* Get a table of the chunk of an index, which the first call allocates; NULL on host allocation
 * failure. */
static void *get_table(struct xseg_origins *origins, uint64_t index, enum table kind)
{
    XSEG_ASSERT(index / XSEG_ORIGINS_CHUNK < origins->chunks);
    _Atomic(void *) *entry = &origins->chunk[index / XSEG_ORIGINS_CHUNK].table[kind];
    void *table = atomic_load_explicit(entry, memory_order_acquire);
    void *allocated;

    if (table != NULL)
        return table;
    allocated = calloc(XSEG_ORIGINS_CHUNK, record_bytes[kind]);
    if (allocated == NULL)
        return NULL;
    if (atomic_compare_exchange_strong(entry, &table, allocated)) {
        atomic_fetch_add(&origins->host_bytes, XSEG_ORIGINS_CHUNK * record_bytes[kind]);
        return allocated;
    }
    free(allocated);
    return table;
}

/* Find a table of the chunk of an index; NULL if it was not allocated. */
static void *find_table(const struct xseg_origins *origins, uint64_t index, enum table kind)
{
    XSEG_ASSERT(origins == NULL || index / XSEG_ORIGINS_CHUNK < origins->chunks);
    return origins == NULL
               ? NULL
               : atomic_load_explicit(&origins->chunk[index / XSEG_ORIGINS_CHUNK].table[kind],
                                      memory_order_acquire);
}

static struct xseg_origins *load_origins(const struct xseg_extent *extent)
{
    return atomic_load_explicit(&extent->origins, memory_order_acquire);
}

void xseg_origins_fini(struct xseg_extent *extent)
{
    struct xseg_origins *origins = atomic_load(&extent->origins);

    for (uint32_t i = 0; origins != NULL && i < origins->chunks; i++)
        for (unsigned kind = 0; kind < TABLES; kind++)
            free(atomic_load(&origins->chunk[i].table[kind]));
    free(origins);
    atomic_store(&extent->origins, NULL);
}

uint64_t xseg_origins_host_bytes(const struct xseg_extent *extent)
{
    const struct xseg_origins *origins = load_origins(extent);

    return origins == NULL ? 0 : atomic_load(&origins->host_bytes);
}

/* --- Stamps and origins. --- */

static void store_origin(struct origin_record *record, const struct xseg_origin *origin)
{
    atomic_store_explicit(&record->stack, origin->stack, memory_order_relaxed);
    atomic_store_explicit(&record->frames, origin->frames, memory_order_relaxed);
    atomic_store_explicit(&record->label, origin->label, memory_order_relaxed);
}

bool xseg_origins_record(struct xseg_extent *extent, uint64_t address, uint64_t now,
                         const struct xseg_origin *origin)
{
    const uint64_t index = origin_index(extent, address);
    struct xseg_origins *origins = get_origins(extent);
    stamp_word *stamps = origins == NULL ? NULL : get_table(origins, index, STAMPS);

    XSEG_ASSERT(now != 0);
    if (stamps == NULL)
        return false;
    stamp_word *stamp = &stamps[index % XSEG_ORIGINS_CHUNK];
    const bool is_new = atomic_load_explicit(stamp, memory_order_relaxed) == 0;
    atomic_store_explicit(stamp, time_to_ticks(now), memory_order_relaxed);
    struct origin_record *records = origin == NULL ? NULL : get_table(origins, index, ORIGINS);
    if (records != NULL)
        store_origin(&records[index % XSEG_ORIGINS_CHUNK], origin);
    return is_new;
}

bool xseg_origins_clear(const struct xseg_extent *extent, uint64_t address)
{
    static const struct xseg_origin no_origin;
    const struct xseg_origins *origins = load_origins(extent);
    const uint64_t index = origin_index(extent, address);
    stamp_word *stamps = find_table(origins, index, STAMPS);

    if (stamps == NULL ||
        atomic_load_explicit(&stamps[index % XSEG_ORIGINS_CHUNK], memory_order_relaxed) == 0)
        return false;
    atomic_store_explicit(&stamps[index % XSEG_ORIGINS_CHUNK], 0, memory_order_relaxed);
    struct origin_record *records = find_table(origins, index, ORIGINS);
    if (records != NULL)
        store_origin(&records[index % XSEG_ORIGINS_CHUNK], &no_origin);
    return true;
}

uint64_t xseg_origins_age(const struct xseg_extent *extent, uint64_t address, uint64_t now)
{
    const uint64_t index = origin_index(extent, address);
    stamp_word *stamps = now == 0 ? NULL : find_table(load_origins(extent), index, STAMPS);
    const uint32_t stamp =
        stamps == NULL
            ? 0
            : atomic_load_explicit(&stamps[index % XSEG_ORIGINS_CHUNK], memory_order_relaxed);
    const uint32_t ticks = time_to_ticks(now) - stamp;

    if (stamp == 0)
        return XSEG_ORIGINS_UNKNOWN;
    return ticks > UINT32_MAX - TICKS_AHEAD ? 0
                                            : ((uint64_t)ticks << TICK_SHIFT) / XSEG_MILLISECOND;
}

struct xseg_origin xseg_origins_of(const struct xseg_extent *extent, uint64_t address)
{
    const uint64_t index = origin_index(extent, address);
    const struct origin_record *records = find_table(load_origins(extent), index, ORIGINS);

    if (records == NULL)
        return (struct xseg_origin){.stack = 0};
    const struct origin_record *record = &records[index % XSEG_ORIGINS_CHUNK];
    return (struct xseg_origin){
        .stack = atomic_load_explicit(&record->stack, memory_order_relaxed),
        .frames = atomic_load_explicit(&record->frames, memory_order_relaxed),
        .label = atomic_load_explicit(&record->label, memory_order_relaxed),
    };
}

/* --- User values. --- */

void xseg_origins_record_user(struct xseg_extent *extent, uint64_t address, uint64_t user)
{
    const uint64_t index = origin_index(extent, address);
    /* The value 0 allocates no table, but overwrites the value of an earlier block in a table that
     * exists. */
    struct xseg_origins *origins = user == 0 ? NULL : get_origins(extent);
    user_word *users = origins == NULL ? find_table(load_origins(extent), index, USERS)
                                       : get_table(origins, index, USERS);

    if (users != NULL)
        atomic_store_explicit(&users[index % XSEG_ORIGINS_CHUNK], user, memory_order_relaxed);
}

uint64_t xseg_origins_user(const struct xseg_extent *extent, uint64_t address)
{
    const uint64_t index = origin_index(extent, address);
    user_word *users = find_table(load_origins(extent), index, USERS);

    return users == NULL
               ? 0
               : atomic_load_explicit(&users[index % XSEG_ORIGINS_CHUNK], memory_order_relaxed);
}

void xseg_origins_discard_users(struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_origins *origins =
            load_origins(XSEG_CONTAINER(node, struct xseg_extent, link));

        for (uint32_t i = 0; origins != NULL && i < origins->chunks; i++) {
            user_word *users = atomic_load(&origins->chunk[i].table[USERS]);

            for (uint32_t entry = 0; users != NULL && entry < XSEG_ORIGINS_CHUNK; entry++)
                atomic_store_explicit(&users[entry], 0, memory_order_relaxed);
        }
    }
}

/* --- Visit. --- */

static void visit_extent_origins(const struct xseg_origins *origins,
                                 void (*visit)(void *self, uint32_t frames, uint32_t label),
                                 void *self)
{
    for (uint32_t i = 0; origins != NULL && i < origins->chunks; i++) {
        const struct origin_record *records =
            atomic_load_explicit(&origins->chunk[i].table[ORIGINS], memory_order_acquire);

        for (uint32_t entry = 0; records != NULL && entry < XSEG_ORIGINS_CHUNK; entry++)
            visit(self, atomic_load_explicit(&records[entry].frames, memory_order_relaxed),
                  atomic_load_explicit(&records[entry].label, memory_order_relaxed));
    }
}

void xseg_origins_visit(const struct xseg_arena *arena,
                        void (*visit)(void *self, uint32_t frames, uint32_t label), void *self)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        visit_extent_origins(load_origins(XSEG_CONTAINER(node, struct xseg_extent, link)), visit,
                             self);
    }
}

/* --- Recorder. --- */

_Static_assert((int)XSEG_HISTORY_OOM == (int)XSEG_TRACE_OOM &&
                   (int)XSEG_HISTORY_SEGMENT_UNMAP == (int)XSEG_TRACE_SEGMENT_UNMAP,
               "the first actions have the values of enum xseg_trace_action");

/* The events of a free without a pending phase. */
#define FREE_EVENTS (1u << XSEG_HISTORY_FREE_REQUESTED | 1u << XSEG_HISTORY_FREE_COMPLETED)

/* xseg_history_append(): no second action. */
#define NO_ACTION XSEG_HISTORY_ACTIONS

/* The state that all events of one call share. */
struct recording {
    struct xseg_arena *arena;
    const struct xseg_history_context *context; /* the calling thread's */
    uint64_t settings;
    /* Read once, because another stream may acquire the arena's entry between two events of one
     * call. */
    xseg_stream stream;
    uint64_t time; /* 0: xseg_history_append() reads the clock */
};

static inline struct recording begin_recording(struct xseg_arena *arena)
{
    return (struct recording){.arena = arena,
                              .context = xseg_history_context(),
                              .settings = xseg_history_store_settings(arena->history->store),
                              .stream = xseg_arena_stream(arena)->handle};
}

/* --- Destinations of an event. --- */

static __attribute__((noinline)) void enqueue_trace_entry(const struct recording *recording,
                                                          struct xseg_pool *pool,
                                                          enum xseg_history_action action,
                                                          uint64_t base, uint64_t bytes)
{
    const struct xseg_history *history = recording->arena->history;
    const struct xseg_trace_entry entry = {
        .struct_size = sizeof(entry),
        .action = (enum xseg_trace_action)action,
        .device = history->device,
        .stream = recording->stream,
        .pool = pool,
        .base = (void *)(uintptr_t)base, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = bytes,
    };

    if (action <= XSEG_HISTORY_OOM)
        xseg_observers_enqueue(history->observers, &entry);
}

/* Initialize an event, except the members that xseg_history_append() sets.
 * order, pool: see event.h */
static inline __attribute__((always_inline)) struct xseg_history_event
make_event(const struct recording *recording, enum xseg_history_action action,
           const struct xseg_recorded_block *block, uint32_t order, uint32_t pool)
{
    return (struct xseg_history_event){
        .time = recording->time,
        .base = block->base,
        .requested = block->requested,
        .stream = (uint64_t)(uintptr_t)recording->stream,
        .size = xseg_history_event_size(block->bytes) & XSEG_HISTORY_SIZE_MASK,
        .order = order,
        .pool = pool,
        .flags = (block->is_fallback ? XSEG_HISTORY_FALLBACK : 0) |
                 (recording->arena->evicted != 0 ? XSEG_HISTORY_EVICTED : 0),
        .action = (uint8_t)action,
    };
}

/* order, pool:   of the event, see event.h
 * second_action: `then` of xseg_history_append() */
static inline __attribute__((always_inline)) void
append_event(const struct recording *recording, enum xseg_history_action action,
             enum xseg_history_action second_action, const struct xseg_recorded_block *block,
             uint32_t order, uint32_t pool)
{
    struct xseg_arena *arena = recording->arena;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    xseg_history_append(arena->history, &arena->ring, recording->settings, recording->context,
                        make_event(recording, action, block, order, pool), second_action);
}

static inline bool records_users(const struct recording *recording)
{
    return __builtin_expect((recording->settings & XSEG_HISTORY_USERS) != 0, 0);
}

/* Get the user value of an event: that of the calling request, or that of the block. */
static uint64_t event_user(const struct recording *recording, enum xseg_history_action action,
                           uint64_t base)
{
    if (action == XSEG_HISTORY_ALLOC || action == XSEG_HISTORY_OOM)
        return xseg_history_user_of(recording->context, recording->settings);
    return action <= XSEG_HISTORY_FREE_COMPLETED
               ? xseg_origins_user(xseg_page_map_find(recording->arena->page_map, base), base)
               : 0;
}

/* append_event() for rare events and for events with user values, out of line to limit the code
 * size. */
static __attribute__((noinline)) void
append_event_out_of_line(const struct recording *recording, enum xseg_history_action action,
                         const struct xseg_recorded_block *block, uint32_t order, uint32_t pool)
{
    struct xseg_history_event event;

    if (!records_users(recording)) {
        append_event(recording, action, NO_ACTION, block, order, pool);
        return;
    }
    event = make_event(recording, action, block, order, pool);
    xseg_history_append_with_user(recording->arena->history, &recording->arena->ring,
                                  recording->settings, recording->context, &event,
                                  event_user(recording, action, block->base));
}

/* Get the pool that a trace entry reports for a block: NULL for the default pool. */
static struct xseg_pool *trace_pool(const struct xseg_arena *arena, bool is_fallback)
{
    return is_fallback || !arena->is_private || arena->is_guarded ? NULL : arena->pool;
}

static inline void trace_block(const struct recording *recording, enum xseg_history_action action,
                               const struct xseg_recorded_block *block)
{
    if (__builtin_expect((recording->settings & XSEG_HISTORY_TRACED) != 0, 0))
        enqueue_trace_entry(recording, trace_pool(recording->arena, block->is_fallback), action,
                            block->base, block->requested);
}

static inline void record_block_event(const struct recording *recording,
                                      enum xseg_history_action action,
                                      const struct xseg_recorded_block *block)
{
    trace_block(recording, action, block);
    if (xseg_history_settings_record(recording->settings, action))
        append_event_out_of_line(recording, action, block, 0, recording->arena->pool_id);
}

/* --- Events. --- */

/* Ticks for which a coarse time remains valid: less than a millisecond. */
#define COARSE_TICKS ((uint64_t)1 << 19)

/* Read the approximate time for an origin.  An event of the same call has already read a clock, so
 * its time is converted if possible. */
static inline uint64_t read_origin_time(const struct recording *recording)
{
    const struct xseg_history_store *store = recording->arena->history->store;
    struct xseg_history_ring *ring = recording->arena->ring;

    if (recording->time == 0 || !store->uses_cycle_counter || ring == NULL)
        return read_time(&store->clock);
    if (__builtin_expect(recording->time - ring->coarse_ticks >= COARSE_TICKS, 0)) {
        ring->coarse_ns = read_time(&store->clock);
        ring->coarse_ticks = recording->time;
    }
    return ring->coarse_ns;
}

static inline void record_block_origin(const struct recording *recording, uint64_t base)
{
    const struct xseg_history_store *store = recording->arena->history->store;
    const struct xseg_history_context *context = recording->context;
    const bool has_stack = (recording->settings & XSEG_HISTORY_ORIGIN_STACK) != 0 &&
                           xseg_history_context_matches(context, recording->settings);
    const struct xseg_origin origin = {
        .stack = has_stack ? context->gathered.stack : 0,
        .frames = has_stack ? context->gathered.frames : 0,
        .label = xseg_history_label_of(context, store),
    };
    const bool is_known = (origin.stack | origin.frames | origin.label) != 0;

    if (xseg_origins_record(xseg_page_map_find(recording->arena->page_map, base), base,
                            read_origin_time(recording), is_known ? &origin : NULL) &&
        recording->arena->origins++ == 0)
        (void)atomic_fetch_or(&recording->arena->free_actions, XSEG_ARENA_ORIGINS);
}

/* xseg_recorder_alloc() if user values are recorded. */
static __attribute__((noinline)) void
record_alloc_with_user(struct xseg_arena *arena, const struct xseg_recorded_block *block)
{
    struct recording recording = begin_recording(arena);

    recording.time = xseg_history_store_now(arena->history->store);
    record_block_event(&recording, XSEG_HISTORY_ALLOC, block);
    if ((recording.settings & XSEG_HISTORY_ORIGINS) != 0)
        record_block_origin(&recording, block->base);
    xseg_origins_record_user(xseg_page_map_find(arena->page_map, block->base), block->base,
                             event_user(&recording, XSEG_HISTORY_ALLOC, block->base));
}

void xseg_recorder_alloc(struct xseg_arena *arena, const struct xseg_recorded_block *block)
{
    struct recording recording = begin_recording(arena);

    XSEG_ASSERT(block->base != 0 && block->requested <= block->bytes);
    if (records_users(&recording)) {
        record_alloc_with_user(arena, block);
        return;
    }
    trace_block(&recording, XSEG_HISTORY_ALLOC, block);
    if (xseg_history_settings_record(recording.settings, XSEG_HISTORY_ALLOC)) {
        recording.time = xseg_history_store_now(arena->history->store);
        append_event(&recording, XSEG_HISTORY_ALLOC, NO_ACTION, block, 0, arena->pool_id);
    }
    if ((recording.settings & XSEG_HISTORY_ORIGINS) != 0)
        record_block_origin(&recording, block->base);
}

void xseg_recorder_free(struct xseg_arena *arena, const struct xseg_recorded_block *block)
{
    const struct recording recording = begin_recording(arena);

    XSEG_ASSERT(block->base != 0 && block->requested <= block->bytes);
    if ((recording.settings & (FREE_EVENTS | XSEG_HISTORY_USERS)) == FREE_EVENTS) {
        /* Both events use one clock read, which is half of the cost of an event. */
        trace_block(&recording, XSEG_HISTORY_FREE_REQUESTED, block);
        trace_block(&recording, XSEG_HISTORY_FREE_COMPLETED, block);
        append_event(&recording, XSEG_HISTORY_FREE_REQUESTED, XSEG_HISTORY_FREE_COMPLETED, block, 0,
                     arena->pool_id);
        return;
    }
    record_block_event(&recording, XSEG_HISTORY_FREE_REQUESTED, block);
    record_block_event(&recording, XSEG_HISTORY_FREE_COMPLETED, block);
}

void xseg_recorder_block(struct xseg_arena *arena, const struct xseg_block *block,
                         enum xseg_history_action action)
{
    const struct recording recording = begin_recording(arena);

    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED || block->state == XSEG_BLOCK_PENDING_FREE ||
                block->state == XSEG_BLOCK_CLAIMED);
    record_block_event(&recording, action,
                       &(struct xseg_recorded_block){block->base, block->bytes, block->requested,
                                                     xseg_block_is_fallback(block)});
}

static void record_segment_event(const struct recording *recording,
                                 const struct xseg_extent *extent, enum xseg_history_action action,
                                 uint64_t base, uint64_t bytes)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && bytes > 0);
    if ((recording->settings & XSEG_HISTORY_TRACED) != 0)
        enqueue_trace_entry(recording, trace_pool(extent->arena, false), action, base, bytes);
    if (xseg_history_settings_record(recording->settings, action))
        append_event_out_of_line(
            recording, action, &(struct xseg_recorded_block){base, bytes, bytes, false},
            xseg_history_next_order(recording->arena->history), recording->arena->pool_id);
}

void xseg_recorder_segment(const struct xseg_extent *extent, enum xseg_history_action action,
                           uint64_t base, uint64_t bytes)
{
    const struct recording recording = begin_recording(extent->arena);

    record_segment_event(&recording, extent, action, base, bytes);
}

void xseg_recorder_unmapped(const struct xseg_extent *extent, enum xseg_history_action cause,
                            enum xseg_history_action action, uint64_t base, uint64_t bytes)
{
    const struct recording recording = begin_recording(extent->arena);

    record_segment_event(&recording, extent, cause, base, bytes);
    record_segment_event(&recording, extent, action, base, bytes);
}

void xseg_recorder_discarded(const struct xseg_extent *extent, uint64_t base, uint64_t bytes)
{
    const struct recording recording = begin_recording(extent->arena);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && bytes > 0);
    if ((recording.settings & XSEG_HISTORY_TRACED) != 0)
        enqueue_trace_entry(&recording, trace_pool(extent->arena, false),
                            XSEG_HISTORY_SEGMENT_UNMAP, base, bytes);
}

void xseg_recorder_budget_request(struct xseg_arena *arena, uint64_t bytes)
{
    const struct recording recording = begin_recording(arena);
    const uint64_t size = xseg_round_up(bytes, (uint64_t)1 << XSEG_HISTORY_BYTES_SHIFT);

    record_block_event(&recording, XSEG_HISTORY_BUDGET_REQUEST,
                       &(struct xseg_recorded_block){.requested = size, .bytes = size});
}

void xseg_recorder_oom(struct xseg_arena *arena, uint64_t requested, uint64_t free_bytes)
{
    const struct recording recording = begin_recording(arena);

    record_block_event(
        &recording, XSEG_HISTORY_OOM,
        &(struct xseg_recorded_block){
            .requested = requested,
            .bytes = xseg_round_down(free_bytes, (uint64_t)1 << XSEG_HISTORY_BYTES_SHIFT)});
}
