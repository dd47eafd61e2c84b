/* SPDX-License-Identifier: MIT */
#include "src/core/block/origins.h"

#include <stdlib.h>

#include "src/base/clock.h"
#include "src/core/block/arena.h"

#define TICK_SHIFT 24u

/* How far a stamp may be ahead of a time: it was written just after the time was read. */
#define TICKS_AHEAD ((uint32_t)1 << 16)

typedef atomic_uint_least32_t word; /* 0: unknown */

typedef atomic_uint_least64_t user_word; /* 0: none */

_Static_assert(sizeof(word) == 4, "stamps start over at 2^32");

/* Who allocated a block.  The parts are written one by one: a reader without the arena's lock may see two blocks'. */
struct call {
    word stack, frames, label;
};

struct chunk {
    _Atomic(word *) stamps;       /* [XSEG_ORIGINS_CHUNK], or NULL */
    _Atomic(struct call *) calls; /* [XSEG_ORIGINS_CHUNK], or NULL */
    _Atomic(user_word *) users;   /* [XSEG_ORIGINS_CHUNK], or NULL */
};

struct xseg_origins {
    uint32_t chunks;
    atomic_size_t host_bytes;
    struct chunk chunk[];
};

static uint32_t tick_of(uint64_t now)
{
    const uint32_t tick = (uint32_t)((now >> TICK_SHIFT) + 1);

    return tick == 0 ? 1 : tick;
}

uint64_t xseg_origins_now(const struct xseg_clock *clock)
{
    return xseg_clock_coarse(clock) | 1;
}

uint64_t xseg_origins_now_by(const struct xseg_clock *clock, const struct xseg_config *config)
{
    return config->history != XSEG_HISTORY_NOTHING ? xseg_origins_now(clock) : 0;
}

/* --- Tables: the first thread that needs one makes it. --- */

static uint64_t place_of(const struct xseg_extent *extent, uint64_t address)
{
    XSEG_ASSERT(address - extent->segment.base < extent->segment.bytes);
    return (address - extent->segment.base) >>
           (extent->has_starts ? XSEG_START_SHIFT : XSEG_SLOT_SHIFT);
}

static struct xseg_origins *get_table(struct xseg_extent *extent)
{
    struct xseg_origins *origins = atomic_load_explicit(&extent->origins, memory_order_acquire);
    const uint64_t chunks =
        place_of(extent, extent->segment.base + extent->segment.bytes - 1) / XSEG_ORIGINS_CHUNK + 1;
    struct xseg_origins *made;

    if (origins != NULL)
        return origins;
    made = calloc(1, sizeof(*made) + chunks * sizeof(made->chunk[0]));
    if (made == NULL)
        return NULL;
    XSEG_ASSERT(chunks > 0 && chunks <= UINT32_MAX);
    made->chunks = (uint32_t)chunks;
    atomic_init(&made->host_bytes, sizeof(*made) + chunks * sizeof(made->chunk[0]));
    if (atomic_compare_exchange_strong(&extent->origins, &origins, made))
        return made;
    free(made);
    return origins;
}

static word *get_stamps(struct xseg_origins *origins, uint64_t number)
{
    XSEG_ASSERT(number < origins->chunks);
    word *stamps = atomic_load_explicit(&origins->chunk[number].stamps, memory_order_acquire);
    word *made;

    if (stamps != NULL)
        return stamps;
    made = calloc(XSEG_ORIGINS_CHUNK, sizeof(*made));
    if (made == NULL)
        return NULL;
    if (atomic_compare_exchange_strong(&origins->chunk[number].stamps, &stamps, made)) {
        atomic_fetch_add(&origins->host_bytes, XSEG_ORIGINS_CHUNK * sizeof(*made));
        return made;
    }
    free(made);
    return stamps;
}

static struct call *get_calls(struct xseg_origins *origins, uint64_t number)
{
    XSEG_ASSERT(number < origins->chunks);
    struct call *calls = atomic_load_explicit(&origins->chunk[number].calls, memory_order_acquire);
    struct call *made;

    if (calls != NULL)
        return calls;
    made = calloc(XSEG_ORIGINS_CHUNK, sizeof(*made));
    if (made == NULL)
        return NULL;
    if (atomic_compare_exchange_strong(&origins->chunk[number].calls, &calls, made)) {
        atomic_fetch_add(&origins->host_bytes, XSEG_ORIGINS_CHUNK * sizeof(*made));
        return made;
    }
    free(made);
    return calls;
}

static user_word *get_users(struct xseg_origins *origins, uint64_t number)
{
    XSEG_ASSERT(number < origins->chunks);
    user_word *users = atomic_load_explicit(&origins->chunk[number].users, memory_order_acquire);
    user_word *made;

    if (users != NULL)
        return users;
    made = calloc(XSEG_ORIGINS_CHUNK, sizeof(*made));
    if (made == NULL)
        return NULL;
    if (atomic_compare_exchange_strong(&origins->chunk[number].users, &users, made)) {
        atomic_fetch_add(&origins->host_bytes, XSEG_ORIGINS_CHUNK * sizeof(*made));
        return made;
    }
    free(made);
    return users;
}

void xseg_origins_fini(struct xseg_extent *extent)
{
    struct xseg_origins *origins = atomic_load(&extent->origins);

    for (uint32_t i = 0; origins != NULL && i < origins->chunks; i++) {
        free(atomic_load(&origins->chunk[i].stamps));
        free(atomic_load(&origins->chunk[i].calls));
        free(atomic_load(&origins->chunk[i].users));
    }
    free(origins);
    atomic_store(&extent->origins, NULL);
}

uint64_t xseg_origins_host_bytes(const struct xseg_extent *extent)
{
    const struct xseg_origins *origins =
        atomic_load_explicit(&extent->origins, memory_order_acquire);

    return origins == NULL ? 0 : atomic_load(&origins->host_bytes);
}

/* --- Notes. --- */

static void note_call(struct call *call, const struct xseg_origin *origin)
{
    atomic_store_explicit(&call->stack, origin->stack, memory_order_relaxed);
    atomic_store_explicit(&call->frames, origin->frames, memory_order_relaxed);
    atomic_store_explicit(&call->label, origin->label, memory_order_relaxed);
}

bool xseg_origins_record(struct xseg_extent *extent, uint64_t address, uint64_t now,
                         const struct xseg_origin *origin)
{
    const uint64_t place = place_of(extent, address), number = place / XSEG_ORIGINS_CHUNK;
    struct xseg_origins *origins = get_table(extent);
    word *stamps = origins == NULL ? NULL : get_stamps(origins, number);

    XSEG_ASSERT(now != 0);
    if (stamps == NULL)
        return false;
    word *stamp = &stamps[place % XSEG_ORIGINS_CHUNK];
    const bool is_new = atomic_load_explicit(stamp, memory_order_relaxed) == 0;
    atomic_store_explicit(stamp, tick_of(now), memory_order_relaxed);
    struct call *calls = origin == NULL ? NULL : get_calls(origins, number);
    if (calls != NULL)
        note_call(&calls[place % XSEG_ORIGINS_CHUNK], origin);
    return is_new;
}

bool xseg_origins_clear(const struct xseg_extent *extent, uint64_t address)
{
    static const struct xseg_origin none;
    struct xseg_origins *origins = atomic_load_explicit(&extent->origins, memory_order_acquire);
    const uint64_t place = place_of(extent, address);
    struct chunk *chunk = origins == NULL ? NULL : &origins->chunk[place / XSEG_ORIGINS_CHUNK];
    word *stamps =
        chunk == NULL ? NULL : atomic_load_explicit(&chunk->stamps, memory_order_acquire);

    if (stamps == NULL ||
        atomic_load_explicit(&stamps[place % XSEG_ORIGINS_CHUNK], memory_order_relaxed) == 0)
        return false;
    atomic_store_explicit(&stamps[place % XSEG_ORIGINS_CHUNK], 0, memory_order_relaxed);
    struct call *calls = atomic_load_explicit(&chunk->calls, memory_order_acquire);
    if (calls != NULL)
        note_call(&calls[place % XSEG_ORIGINS_CHUNK], &none);
    return true;
}

uint64_t xseg_origins_age(const struct xseg_extent *extent, uint64_t address, uint64_t now)
{
    const struct xseg_origins *origins =
        atomic_load_explicit(&extent->origins, memory_order_acquire);
    const uint64_t place = place_of(extent, address);
    word *stamps = origins == NULL || now == 0
                       ? NULL
                       : atomic_load_explicit(&origins->chunk[place / XSEG_ORIGINS_CHUNK].stamps,
                                              memory_order_acquire);
    const uint32_t gc_count_base =
        stamps == NULL
            ? 0
            : atomic_load_explicit(&stamps[place % XSEG_ORIGINS_CHUNK], memory_order_relaxed);
    const uint32_t ticks = tick_of(now) - gc_count_base;

    XSEG_ASSERT(origins == NULL || place / XSEG_ORIGINS_CHUNK < origins->chunks);
    if (gc_count_base == 0)
        return XSEG_ORIGINS_UNKNOWN;
    return ticks > UINT32_MAX - TICKS_AHEAD ? 0
                                            : ((uint64_t)ticks << TICK_SHIFT) / UINT64_C(1000000);
}

struct xseg_origin xseg_origins_of(const struct xseg_extent *extent, uint64_t address)
{
    const struct xseg_origins *origins =
        atomic_load_explicit(&extent->origins, memory_order_acquire);
    const uint64_t place = place_of(extent, address);
    const struct call *calls =
        origins == NULL ? NULL
                        : atomic_load_explicit(&origins->chunk[place / XSEG_ORIGINS_CHUNK].calls,
                                               memory_order_acquire);

    if (calls == NULL)
        return (struct xseg_origin){.stack = 0};
    const struct call *call = &calls[place % XSEG_ORIGINS_CHUNK];
    return (struct xseg_origin){
        .stack = atomic_load_explicit(&call->stack, memory_order_relaxed),
        .frames = atomic_load_explicit(&call->frames, memory_order_relaxed),
        .label = atomic_load_explicit(&call->label, memory_order_relaxed),
    };
}

/* The users of the chunk that an address is in, or NULL. */
static user_word *users_at(const struct xseg_extent *extent, uint64_t address)
{
    const struct xseg_origins *origins =
        atomic_load_explicit(&extent->origins, memory_order_acquire);

    return origins == NULL
               ? NULL
               : atomic_load_explicit(
                     &origins->chunk[place_of(extent, address) / XSEG_ORIGINS_CHUNK].users,
                     memory_order_acquire);
}

void xseg_origins_record_user(struct xseg_extent *extent, uint64_t address, uint64_t user)
{
    const uint64_t place = place_of(extent, address);
    /* To note 0 no table is made, but where there is one, the number of an earlier block must not stay in it. */
    struct xseg_origins *origins = user == 0 ? NULL : get_table(extent);
    user_word *users = origins == NULL ? users_at(extent, address)
                                       : get_users(origins, place / XSEG_ORIGINS_CHUNK);

    if (users != NULL)
        atomic_store_explicit(&users[place % XSEG_ORIGINS_CHUNK], user, memory_order_relaxed);
}

uint64_t xseg_origins_user(const struct xseg_extent *extent, uint64_t address)
{
    user_word *users = users_at(extent, address);

    return users == NULL
               ? 0
               : atomic_load_explicit(&users[place_of(extent, address) % XSEG_ORIGINS_CHUNK],
                                      memory_order_relaxed);
}

/* --- Forgetting. --- */

void xseg_origins_discard_users(struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_origins *origins =
            atomic_load(&XSEG_CONTAINER(node, struct xseg_extent, link)->origins);

        for (uint32_t i = 0; origins != NULL && i < origins->chunks; i++) {
            user_word *users = atomic_load(&origins->chunk[i].users);

            for (uint32_t at = 0; users != NULL && at < XSEG_ORIGINS_CHUNK; at++)
                atomic_store_explicit(&users[at], 0, memory_order_relaxed);
        }
    }
}

/* --- Visiting. --- */

static void visit_extent(const struct xseg_origins *origins,
                         void (*visit)(void *self, uint32_t frames, uint32_t label), void *self)
{
    for (uint32_t i = 0; origins != NULL && i < origins->chunks; i++) {
        const struct call *calls =
            atomic_load_explicit(&origins->chunk[i].calls, memory_order_acquire);

        for (uint32_t at = 0; calls != NULL && at < XSEG_ORIGINS_CHUNK; at++)
            visit(self, atomic_load_explicit(&calls[at].frames, memory_order_relaxed),
                  atomic_load_explicit(&calls[at].label, memory_order_relaxed));
    }
}

void xseg_origins_visit(const struct xseg_arena *arena,
                        void (*visit)(void *self, uint32_t frames, uint32_t label), void *self)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        visit_extent(atomic_load_explicit(&XSEG_CONTAINER(node, struct xseg_extent, link)->origins,
                                          memory_order_acquire),
                     visit, self);
    }
}
