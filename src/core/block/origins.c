/* SPDX-License-Identifier: MIT */
#include "src/core/block/origins.h"

#include <stdlib.h>

#include "src/base/clock.h"
#include "src/core/block/arena.h"
#include "src/core/block/page_map.h"

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

/* Records of XSEG_ORIGINS_CHUNK places. */
struct chunk {
    _Atomic(void *) table[TABLES]; /* [XSEG_ORIGINS_CHUNK] each, or NULL */
};

struct xseg_origins {
    uint32_t chunks;
    atomic_size_t host_bytes;
    struct chunk chunk[];
};

static uint32_t ticks_of_time(uint64_t now)
{
    const uint32_t ticks = (uint32_t)((now >> TICK_SHIFT) + 1);

    return ticks == 0 ? 1 : ticks;
}

uint64_t xseg_origins_now(const struct xseg_clock *clock)
{
    return xseg_clock_coarse(clock) | 1;
}

uint64_t xseg_origins_now_if_enabled(const struct xseg_clock *clock,
                                     const struct xseg_config *config)
{
    return config->history != XSEG_HISTORY_NOTHING ? xseg_origins_now(clock) : 0;
}

/* --- Tables: the first thread that needs a table allocates it. --- */

/* The index of the place of an address. */
static uint64_t place_of_address(const struct xseg_extent *extent, uint64_t address)
{
    XSEG_ASSERT(address - extent->segment.base < extent->segment.bytes);
    return (address - extent->segment.base) >>
           (extent->has_starts ? XSEG_START_SHIFT : XSEG_SLOT_SHIFT);
}

/* The origins of an extent, which are allocated if there are none; NULL on host allocation
 * failure. */
static struct xseg_origins *get_origins(struct xseg_extent *extent)
{
    struct xseg_origins *origins = atomic_load_explicit(&extent->origins, memory_order_acquire);
    const uint64_t last = extent->segment.base + extent->segment.bytes - 1;
    const uint64_t chunks = place_of_address(extent, last) / XSEG_ORIGINS_CHUNK + 1;
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

/* A table of the chunk of a place, which is allocated if there is none; NULL on host allocation
 * failure. */
static void *get_table(struct xseg_origins *origins, uint64_t place, enum table kind)
{
    XSEG_ASSERT(place / XSEG_ORIGINS_CHUNK < origins->chunks);
    _Atomic(void *) *entry = &origins->chunk[place / XSEG_ORIGINS_CHUNK].table[kind];
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

/* A table of the chunk of a place, or NULL. */
static void *find_table(const struct xseg_origins *origins, uint64_t place, enum table kind)
{
    XSEG_ASSERT(origins == NULL || place / XSEG_ORIGINS_CHUNK < origins->chunks);
    return origins == NULL
               ? NULL
               : atomic_load_explicit(&origins->chunk[place / XSEG_ORIGINS_CHUNK].table[kind],
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
    const uint64_t place = place_of_address(extent, address);
    struct xseg_origins *origins = get_origins(extent);
    stamp_word *stamps = origins == NULL ? NULL : get_table(origins, place, STAMPS);

    XSEG_ASSERT(now != 0);
    if (stamps == NULL)
        return false;
    stamp_word *stamp = &stamps[place % XSEG_ORIGINS_CHUNK];
    const bool is_new = atomic_load_explicit(stamp, memory_order_relaxed) == 0;
    atomic_store_explicit(stamp, ticks_of_time(now), memory_order_relaxed);
    struct origin_record *records = origin == NULL ? NULL : get_table(origins, place, ORIGINS);
    if (records != NULL)
        store_origin(&records[place % XSEG_ORIGINS_CHUNK], origin);
    return is_new;
}

bool xseg_origins_clear(const struct xseg_extent *extent, uint64_t address)
{
    static const struct xseg_origin none;
    const struct xseg_origins *origins = load_origins(extent);
    const uint64_t place = place_of_address(extent, address);
    stamp_word *stamps = find_table(origins, place, STAMPS);

    if (stamps == NULL ||
        atomic_load_explicit(&stamps[place % XSEG_ORIGINS_CHUNK], memory_order_relaxed) == 0)
        return false;
    atomic_store_explicit(&stamps[place % XSEG_ORIGINS_CHUNK], 0, memory_order_relaxed);
    struct origin_record *records = find_table(origins, place, ORIGINS);
    if (records != NULL)
        store_origin(&records[place % XSEG_ORIGINS_CHUNK], &none);
    return true;
}

uint64_t xseg_origins_age(const struct xseg_extent *extent, uint64_t address, uint64_t now)
{
    const uint64_t place = place_of_address(extent, address);
    stamp_word *stamps = now == 0 ? NULL : find_table(load_origins(extent), place, STAMPS);
    const uint32_t stamp =
        stamps == NULL
            ? 0
            : atomic_load_explicit(&stamps[place % XSEG_ORIGINS_CHUNK], memory_order_relaxed);
    const uint32_t ticks = ticks_of_time(now) - stamp;

    if (stamp == 0)
        return XSEG_ORIGINS_UNKNOWN;
    return ticks > UINT32_MAX - TICKS_AHEAD ? 0
                                            : ((uint64_t)ticks << TICK_SHIFT) / UINT64_C(1000000);
}

struct xseg_origin xseg_origins_of(const struct xseg_extent *extent, uint64_t address)
{
    const uint64_t place = place_of_address(extent, address);
    const struct origin_record *records = find_table(load_origins(extent), place, ORIGINS);

    if (records == NULL)
        return (struct xseg_origin){.stack = 0};
    const struct origin_record *record = &records[place % XSEG_ORIGINS_CHUNK];
    return (struct xseg_origin){
        .stack = atomic_load_explicit(&record->stack, memory_order_relaxed),
        .frames = atomic_load_explicit(&record->frames, memory_order_relaxed),
        .label = atomic_load_explicit(&record->label, memory_order_relaxed),
    };
}

/* --- User values. --- */

void xseg_origins_record_user(struct xseg_extent *extent, uint64_t address, uint64_t user)
{
    const uint64_t place = place_of_address(extent, address);
    /* The value 0 allocates no table, but overwrites the value of an earlier block in a table that
     * exists. */
    struct xseg_origins *origins = user == 0 ? NULL : get_origins(extent);
    user_word *users = origins == NULL ? find_table(load_origins(extent), place, USERS)
                                       : get_table(origins, place, USERS);

    if (users != NULL)
        atomic_store_explicit(&users[place % XSEG_ORIGINS_CHUNK], user, memory_order_relaxed);
}

uint64_t xseg_origins_user(const struct xseg_extent *extent, uint64_t address)
{
    const uint64_t place = place_of_address(extent, address);
    user_word *users = find_table(load_origins(extent), place, USERS);

    return users == NULL
               ? 0
               : atomic_load_explicit(&users[place % XSEG_ORIGINS_CHUNK], memory_order_relaxed);
}

void xseg_origins_discard_users(struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_origins *origins =
            load_origins(XSEG_CONTAINER(node, struct xseg_extent, link));

        for (uint32_t i = 0; origins != NULL && i < origins->chunks; i++) {
            user_word *users = atomic_load(&origins->chunk[i].table[USERS]);

            for (uint32_t at = 0; users != NULL && at < XSEG_ORIGINS_CHUNK; at++)
                atomic_store_explicit(&users[at], 0, memory_order_relaxed);
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

        for (uint32_t at = 0; records != NULL && at < XSEG_ORIGINS_CHUNK; at++)
            visit(self, atomic_load_explicit(&records[at].frames, memory_order_relaxed),
                  atomic_load_explicit(&records[at].label, memory_order_relaxed));
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
