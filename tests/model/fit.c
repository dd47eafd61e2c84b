/* SPDX-License-Identifier: MIT */
/*
 * Best fit against PyTorch's rules in their simplest form: an array of blocks in the order of addresses, scanned for
 * each request.  Best fit by size, then by the registration of segments, then by address.  A block that can still grow
 * is skipped if the next block is effectively smaller.  Growth uses the first unmapped range that is long enough, by
 * registration and address, and finally empty segments, which are registered again.  Blocks are split and coalesced.
 * The result does not depend on the order of the driver's addresses: ascending, descending or shuffled.  Requests are
 * small and large, for expandable segments, classic segments or both.  They use either entry point, on two streams and
 * in a pool with no_split, with alignments, uses by other streams and trims.  After each step every address and every
 * current value and peak is that of the model, and the audits pass.
 */

#include <inttypes.h>

#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "tests/support/env.h"
#include "tests/support/random_program.h"

#define PARTS   4096u
#define HELD    300u
#define OWNERS  3u /* two streams, and a pool that does not split, on the first of them */
#define USERS   2u
#define NOWHERE UINT32_MAX

/* A block, in the segment that begins at `segment`. */
struct part {
    uint64_t base, bytes, requested;
    uint64_t segment, segment_bytes;
    uint64_t registered;   /* how many registrations of segments there had been */
    uint64_t event[USERS]; /* pending: pieces of work on each stream that it waits for */
    uint64_t freed;        /* pending: how many blocks had been freed before */
    enum xseg_block_state state;
    bool expandable, used[USERS]; /* used: live; pending: it waits for the stream's event */
};

struct arena {
    struct part part[PARTS];
    unsigned count;
    bool is_small, splits;
};

struct env {
    struct xseg_allocator *allocator;
    xseg_stream owner[OWNERS], user[USERS];
    struct xseg_pool *pool;                  /* of the last owner */
    struct arena arena[OWNERS][2];           /* small, large */
    uint64_t launched[USERS], passed[USERS]; /* pieces of work */
    uint64_t peak[4];                        /* of the first statistics in expect_stats() */
    uint64_t grown, shrunk, registered, freed;
    struct {
        uint64_t base;
        struct arena *arena;
    } held[HELD];
    unsigned count;
    bool expandable;       /* as configured now */
    struct arena *touched; /* by the last step; NULL: any */
};

struct wish {
    uint64_t bytes, requested, alignment, span;
    bool expandable;
};

static uint64_t seed_state;

static uint64_t below(uint64_t bound)
{
    return rng_next(&seed_state) % bound;
}

/* --- The array. --- */

static uint64_t end_of(const struct part *part)
{
    return part->base + part->bytes;
}

/* The neighbor in the same segment, or NULL. */
static struct part *next_to(struct arena *arena, struct part *part)
{
    struct part *next = part + 1;

    return next < arena->part + arena->count && next->segment == part->segment ? next : NULL;
}

static struct part *before(struct arena *arena, struct part *part)
{
    return part > arena->part && part[-1].segment == part->segment ? part - 1 : NULL;
}

static void insert(struct arena *arena, unsigned at, const struct part *part)
{
    const struct part copy = *part;

    assert_true(arena->count < PARTS);
    memmove(&arena->part[at + 1], &arena->part[at], (arena->count - at) * sizeof(copy));
    arena->part[at] = copy;
    arena->count++;
}

static void drop(struct arena *arena, unsigned at)
{
    arena->count--;
    memmove(&arena->part[at], &arena->part[at + 1], (arena->count - at) * sizeof(struct part));
}

/* Split a part at an address inside it. */
static void split(struct arena *arena, unsigned at, uint64_t address)
{
    struct part rest = arena->part[at];

    if (address <= rest.base || address >= end_of(&rest))
        return;
    arena->part[at].bytes = address - rest.base;
    rest.bytes = end_of(&rest) - address;
    rest.base = address;
    insert(arena, at + 1, &rest);
}

/* Split a part; the part with the index `stays` loses its requested size. */
static void split_off(struct arena *arena, unsigned at, uint64_t address, unsigned stays)
{
    const unsigned count = arena->count;

    split(arena, at, address);
    if (arena->count != count)
        arena->part[stays].requested = 0;
}

/* Set the state of a part and coalesce it with neighbors in the same state; returns its new index.  The coalesced part
 * has the requested size of this part. */
static unsigned become(struct arena *arena, unsigned at, enum xseg_block_state state)
{
    struct part *part = &arena->part[at], *next = next_to(arena, part), *prev = before(arena, part);

    part->state = state;
    memset(part->used, 0, sizeof(part->used));
    if (next != NULL && next->state == state) {
        part->bytes += next->bytes;
        drop(arena, at + 1);
    }
    if (prev != NULL && prev->state == state) {
        prev->bytes += part->bytes;
        prev->requested = part->requested;
        drop(arena, at);
        at--;
    }
    return at;
}

static unsigned part_at(const struct arena *arena, uint64_t base)
{
    for (unsigned i = 0; i < arena->count; i++)
        if (arena->part[i].base == base)
            return i;
    fail_msg("nothing begins at %#llx", (unsigned long long)base);
    return NOWHERE;
}

/* --- The rules. --- */

/* Whether a part is after another in the order of registration, then of addresses. */
static bool is_after(const struct part *part, const struct part *other)
{
    return part->registered > other->registered ||
           (part->registered == other->registered && part->base > other->base);
}

/* The first cached part of this many bytes after a part that has as many; NULL: any. */
static unsigned part_from(const struct arena *arena, uint64_t bytes, const struct part *after)
{
    unsigned best = NOWHERE;

    for (unsigned i = 0; i < arena->count; i++) {
        const struct part *part = &arena->part[i],
                          *found = &arena->part[best == NOWHERE ? 0 : best];

        if (part->state == XSEG_BLOCK_CACHED &&
            (part->bytes > bytes ||
             (part->bytes == bytes && (after == NULL || is_after(part, after)))) &&
            (best == NOWHERE || part->bytes < found->bytes ||
             (part->bytes == found->bytes && is_after(found, part))))
            best = i;
    }
    return best;
}

/* The size that a part could grow to. */
static uint64_t effective_bytes(struct arena *arena, unsigned at)
{
    const struct part *next = next_to(arena, &arena->part[at]);

    return arena->part[at].bytes +
           (next != NULL && next->state == XSEG_BLOCK_UNMAPPED ? next->bytes : 0);
}

static unsigned find(struct arena *arena, const struct wish *wish)
{
    unsigned at = part_from(arena, wish->span, NULL);

    while (at != NOWHERE && arena->part[at].expandable) {
        const unsigned next = part_from(arena, arena->part[at].bytes, &arena->part[at]);

        if (wish->expandable &&
            (next == NOWHERE || effective_bytes(arena, next) >= effective_bytes(arena, at)))
            break;
        at = next;
    }
    return at;
}

static uint64_t page_bytes(const struct arena *arena)
{
    return (arena->is_small ? 2 : 20) * MIB;
}

/* Map the required part of an unmapped range, in whole pages. */
static unsigned map(struct env *env, struct arena *arena, unsigned at, uint64_t bytes)
{
    env->grown++;
    split_off(arena, at, arena->part[at].base + xseg_round_up(bytes, page_bytes(arena)), at + 1);
    return become(arena, at, XSEG_BLOCK_CACHED);
}

/* End of the cached and unmapped parts from here. */
static uint64_t reach(struct arena *arena, unsigned at)
{
    uint64_t bytes = 0;

    for (struct part *part = &arena->part[at];
         part != NULL && (part->state == XSEG_BLOCK_CACHED || part->state == XSEG_BLOCK_UNMAPPED);
         part = next_to(arena, part))
        bytes += part->bytes;
    return bytes;
}

static bool is_empty_segment(const struct part *part)
{
    return part->state == XSEG_BLOCK_UNMAPPED && part->bytes == part->segment_bytes;
}

/* The first unmapped range after a part, with empty segments last; NULL: the first of all. */
static unsigned next_unmapped(const struct arena *arena, const struct part *after)
{
    unsigned best = NOWHERE;

    for (unsigned i = 0; i < arena->count; i++) {
        const struct part *part = &arena->part[i],
                          *found = &arena->part[best == NOWHERE ? 0 : best];
        const int empty = is_empty_segment(part);

        if (part->state != XSEG_BLOCK_UNMAPPED ||
            (after != NULL && (empty < is_empty_segment(after) ||
                               (empty == is_empty_segment(after) && !is_after(part, after)))))
            continue;
        if (best == NOWHERE || empty < is_empty_segment(found) ||
            (empty == is_empty_segment(found) && is_after(found, part)))
            best = i;
    }
    return best;
}

/* Grow from the first unmapped range that is long enough. */
static unsigned grow(struct env *env, struct arena *arena, const struct wish *wish)
{
    for (unsigned i = next_unmapped(arena, NULL); i != NOWHERE;
         i = next_unmapped(arena, &arena->part[i])) {
        unsigned at = i;
        const struct part *prev = before(arena, &arena->part[i]);

        if (prev != NULL && prev->state == XSEG_BLOCK_CACHED)
            at--;
        if (reach(arena, at) < wish->span)
            continue;
        if (is_empty_segment(&arena->part[at])) {
            arena->part[at].registered = ++env->registered;
            arena->part[at].requested = 0;
        }
        if (arena->part[at].state == XSEG_BLOCK_UNMAPPED)
            at = map(env, arena, at, xseg_min(wish->span, arena->part[at].bytes));
        while (arena->part[at].bytes < wish->span)
            at = map(env, arena, at + 1,
                     xseg_min(wish->span - arena->part[at].bytes, arena->part[at + 1].bytes));
        return at;
    }
    return NOWHERE;
}

/* Allocate from a cached part; returns the address. */
static uint64_t allocate_from(struct env *env, struct arena *arena, unsigned at,
                              const struct wish *wish)
{
    const uint64_t base = xseg_round_up(arena->part[at].base, wish->alignment);

    if (base != arena->part[at].base) {
        split(arena, at, base);
        arena->part[at].requested = arena->part[at].bytes;
        at++;
    }
    const uint64_t rest = arena->part[at].bytes - wish->bytes;
    if (arena->splits && (arena->is_small || wish->expandable ? rest >= 512 : rest > MIB))
        split(arena, at, base + wish->bytes);
    arena->part[at].state = XSEG_BLOCK_ALLOCATED;
    arena->part[at].requested = wish->requested;
    assert_true(env->count < HELD);
    env->held[env->count].arena = arena;
    env->held[env->count++].base = base;
    return base;
}

/* --- Steps of the model and the library. --- */

/* Add a new segment, at the address that the library chose. */
static unsigned learn(struct env *env, struct arena *arena, const struct wish *wish, void *ptr)
{
    const struct xseg_block_info info = env_block(env->allocator, ptr);
    struct part part = {.expandable = wish->expandable};
    unsigned at = 0;

    part.base = part.segment = (uint64_t)(uintptr_t)info.segment_base;
    part.bytes = part.segment_bytes = info.segment_bytes;
    part.state = wish->expandable ? XSEG_BLOCK_UNMAPPED : XSEG_BLOCK_CACHED;
    part.registered = ++env->registered;
    assert_int_equal(info.is_expandable, wish->expandable);
    while (at < arena->count && arena->part[at].base < part.base)
        at++;
    assert_true(at == 0 || end_of(&arena->part[at - 1]) <= part.base);
    assert_true(at == arena->count || end_of(&part) <= arena->part[at].base);
    insert(arena, at, &part);
    if (wish->expandable)
        return map(env, arena, at, wish->span);
    env->grown++;
    const uint64_t least = xseg_round_up(wish->span, 2 * MIB);
    const uint64_t usual = arena->is_small          ? 2 * MIB
                           : wish->bytes < 10 * MIB ? 20 * MIB
                                                    : xseg_round_up(wish->bytes, 2 * MIB);
    assert_int_equal(part.bytes, xseg_max(least, usual));
    return at;
}

/* The pending part that was freed first among those that wait for a stream's event, if that event has completed. */
static unsigned first_completed(struct env *env, unsigned user, struct arena **out)
{
    unsigned first = NOWHERE;

    for (unsigned i = 0; i < OWNERS * 2; i++) {
        struct arena *arena = &env->arena[i / 2][i % 2];

        for (unsigned at = 0; at < arena->count; at++) {
            const struct part *part = &arena->part[at];

            if (part->state != XSEG_BLOCK_PENDING_FREE || !part->used[user] ||
                part->event[user] > env->passed[user] ||
                (first != NOWHERE && (*out)->part[first].freed < part->freed))
                continue;
            first = at;
            *out = arena;
        }
    }
    return first;
}

/* Reclaim completed blocks: by stream, the newest first, and on each in the order of the frees. */
static void poll_pending(struct env *env)
{
    struct arena *arena = NULL;
    unsigned at;

    for (unsigned user = USERS; user-- > 0;)
        while ((at = first_completed(env, user, &arena)) != NOWHERE) {
            struct part *part = &arena->part[at];
            bool waits = false;

            part->used[user] = false;
            for (unsigned other = 0; other < USERS; other++)
                waits = waits || part->used[other];
            if (!waits)
                (void)become(arena, at, XSEG_BLOCK_CACHED);
        }
}

static size_t random_bytes(bool is_small)
{
    static const size_t most[] = {4 * KIB, 4 * KIB, 64 * KIB, 300 * KIB, MIB};

    if (is_small)
        return 1 + below(most[below(COUNT_OF(most))]);
    return MIB + 1 + below(below(4) == 0 ? 60 * MIB : 12 * MIB);
}

static void step_alloc(struct env *env)
{
    const unsigned owner = (unsigned)below(8) == 0 ? 2 : (unsigned)below(3) / 2;
    const bool is_small = below(6) != 0, is_plain = owner != 2 && below(2) == 0;
    struct arena *arena = &env->arena[owner][!is_small];
    void *ptr = NULL;

    if (env->count == HELD)
        return;
    struct xseg_request request = {sizeof(request), .bytes = random_bytes(is_small)};
    request.stream = env->owner[owner];
    request.pool = owner == 2 ? env->pool : NULL;
    request.alignment = !is_plain && below(8) == 0 ? (size_t)1 << below(22) : 0;
    struct wish wish = {.requested = request.bytes, .expandable = env->expandable};
    wish.bytes = xseg_round_up(request.bytes, 512);
    wish.alignment = xseg_max(request.alignment, 512);
    wish.span = wish.bytes + wish.alignment - 512;
    env->touched = arena;
    poll_pending(env);
    unsigned at = find(arena, &wish);
    if (at == NOWHERE && env->expandable)
        at = grow(env, arena, &wish);
    if (is_plain)
        ptr = env_alloc(env->allocator, request.bytes, request.stream);
    else
        assert_ok(xseg_alloc_with(env->allocator, &request, &ptr));
    if (at == NOWHERE)
        at = learn(env, arena, &wish, ptr);
    assert_int_equal((uintptr_t)ptr, allocate_from(env, arena, at, &wish));
}

static void step_free(struct env *env)
{
    if (env->count == 0)
        return;
    const unsigned i = (unsigned)below(env->count);
    struct arena *arena = env->held[i].arena;
    const unsigned at = part_at(arena, env->held[i].base);
    struct part *part = &arena->part[at];
    bool is_used = false;

    env->touched = arena;
    env_free(env->allocator, (void *)(uintptr_t)part->base);
    env->held[i] = env->held[--env->count];
    for (unsigned user = 0; user < USERS; user++) {
        part->event[user] = env->launched[user];
        is_used = is_used || part->used[user];
    }
    part->freed = env->freed++;
    if (is_used)
        part->state = XSEG_BLOCK_PENDING_FREE;
    else
        (void)become(arena, at, XSEG_BLOCK_CACHED);
}

static void step_record_stream(struct env *env)
{
    const unsigned user = (unsigned)below(USERS);

    if (env->count == 0)
        return;
    const unsigned i = (unsigned)below(env->count);
    struct arena *arena = env->held[i].arena;
    struct part *part = &arena->part[part_at(arena, env->held[i].base)];
    env->touched = arena;
    assert_ok(xseg_record_stream(env->allocator, (void *)(uintptr_t)part->base, env->user[user]));
    part->used[user] = true;
    if (below(2) == 0) {
        assert_ok(xseg_sim_launch(env->user[user], UINT64_MAX));
        env->launched[user]++;
    }
}

static void step_finish(struct env *env)
{
    const unsigned user = (unsigned)below(USERS);

    assert_ok(xseg_sim_finish(env->user[user]));
    env->passed[user] = env->launched[user];
}

/* Release the whole pages of a cached part, or an empty classic segment. */
static void trim_part(struct env *env, struct arena *arena, unsigned at)
{
    const struct part part = arena->part[at];
    const uint64_t page = page_bytes(arena);
    const uint64_t begin = part.segment + xseg_round_up(part.base - part.segment, page);
    const uint64_t end = part.segment + xseg_round_down(end_of(&part) - part.segment, page);

    if (!part.expandable && part.bytes == part.segment_bytes) {
        env->shrunk++;
        drop(arena, at);
        return;
    }
    if (!part.expandable || begin >= end)
        return;
    env->shrunk++;
    split_off(arena, at, end, at + 1);
    if (begin != part.base) {
        split_off(arena, at, begin, at);
        at++;
    }
    (void)become(arena, at, XSEG_BLOCK_UNMAPPED);
}

/* By size: the remainders of a part are smaller than all parts that follow. */
static void trim_arena(struct env *env, struct arena *arena)
{
    unsigned at = part_from(arena, 0, NULL);

    while (at != NOWHERE) {
        const struct part part = arena->part[at];

        trim_part(env, arena, at);
        at = part_from(arena, part.bytes, &part);
    }
}

static void step_trim(struct env *env)
{
    const struct xseg_trim_options options = {sizeof(options), .wait = below(2) == 0};

    for (unsigned user = 0; options.wait && user < USERS; user++) {
        assert_ok(xseg_sim_finish(env->user[user]));
        env->passed[user] = env->launched[user];
    }
    assert_ok(xseg_trim(env->allocator, NULL, &options, NULL));
    poll_pending(env);
    /* A retained pool keeps its memory. */
    for (unsigned i = 0; i < (OWNERS - 1) * 2; i++)
        trim_arena(env, &env->arena[i / 2][i % 2]);
}

static void step_configure(struct env *env)
{
    env->expandable = !env->expandable;
    assert_ok(xseg_config_set(env->allocator, env->expandable ? "expandable_segments:True"
                                                              : "expandable_segments:False"));
}

/* --- Invariants. --- */

static void expect_parts(struct env *env, struct arena *arena)
{
    const struct xseg_extent *extent = NULL;
    struct xseg_block_view view = {0};
    struct xseg_violation violation = {0};

    for (unsigned i = 0; i < arena->count; i++) {
        const struct part *expected = &arena->part[i];

        if (before(arena, &arena->part[i]) == NULL) {
            assert_null(view.extent);
            extent = xseg_page_map_find(&env->allocator->page_map, expected->base);
            assert_non_null(extent);
            view = xseg_extent_first_view(extent);
        }
        assert_ptr_equal(view.extent, extent);
        assert_int_equal(view.base, expected->base);
        assert_int_equal(view.bytes, expected->bytes);
        assert_int_equal(view.state, expected->state);
        assert_int_equal(view.requested,
                         expected->state != XSEG_BLOCK_UNMAPPED ? expected->requested : 0);
        view = xseg_extent_next_view(&view);
    }
    assert_null(view.extent);
    if (extent != NULL && !xseg_arena_audit(extent->arena, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

/* Sums of the model's parts that a statistic counts, in the order of the table in expect_stats(). */
struct sums {
    uint64_t of[9];
};

static void add_arena(struct arena *arena, struct sums *sums)
{
    for (unsigned i = 0; i < arena->count; i++) {
        const struct part *part = &arena->part[i];
        const bool live = part->state == XSEG_BLOCK_ALLOCATED;
        const bool active = live || part->state == XSEG_BLOCK_PENDING_FREE;
        const bool fragment = part->state == XSEG_BLOCK_CACHED && !part->expandable &&
                              part->bytes != part->segment_bytes;
        const uint64_t each[] = {
            live,
            live ? part->bytes : 0,
            active ? part->bytes : 0,
            part->state != XSEG_BLOCK_UNMAPPED ? part->bytes : 0,
            active,
            !part->expandable && part->base == part->segment,
            fragment,
            fragment ? part->bytes : 0,
            active ? part->requested : 0,
        };

        for (unsigned k = 0; k < COUNT_OF(each); k++)
            sums->of[k] += each[k];
    }
}

static void expect_stats(struct env *env)
{
    const struct xseg_statistics stats = env_stats(env->allocator);
    struct sums group[XSEG_STAT_GROUPS] = {{{0}}};

    for (unsigned i = 0; i < OWNERS * 2; i++) {
        add_arena(&env->arena[i / 2][i % 2], &group[XSEG_STAT_ALL]);
        add_arena(&env->arena[i / 2][i % 2],
                  &group[i % 2 == 0 ? XSEG_STAT_SMALL : XSEG_STAT_LARGE]);
    }
    const struct xseg_stat *const stat[] = {
        stats.allocation,      stats.allocated_bytes,
        stats.active_bytes,    stats.reserved_bytes,
        stats.active,          stats.segment,
        stats.inactive_split,  stats.inactive_split_bytes,
        stats.requested_bytes,
    };
    for (unsigned k = 0; k < COUNT_OF(stat); k++)
        for (unsigned i = 0; i < XSEG_STAT_GROUPS; i++)
            if (stat[k][i].current != group[i].of[k])
                fail_msg("statistic %u of group %u is %" PRIu64 ", for %" PRIu64, k, i,
                         stat[k][i].current, group[i].of[k]);
    for (unsigned k = 0; k < COUNT_OF(env->peak); k++) {
        env->peak[k] = xseg_max(env->peak[k], group[XSEG_STAT_ALL].of[k]);
        assert_int_equal(stat[k][XSEG_STAT_ALL].peak, env->peak[k]);
    }
    assert_int_equal(stats.num_device_alloc, env->grown);
    assert_int_equal(stats.num_device_free, env->shrunk);
}

/* The library's report of a block and its neighbors. */
static void expect_block(struct env *env)
{
    if (env->count == 0)
        return;
    const unsigned i = (unsigned)below(env->count);
    struct arena *arena = env->held[i].arena;
    struct part *part = &arena->part[part_at(arena, env->held[i].base)];
    const struct xseg_block_info info =
        env_block(env->allocator, (void *)(uintptr_t)(part->base + below(part->bytes)));
    const struct part *next = next_to(arena, part), *prev = before(arena, part);

    assert_int_equal((uintptr_t)info.base, part->base);
    assert_int_equal(info.bytes, part->bytes);
    assert_int_equal(info.requested, part->requested);
    assert_int_equal(info.free_after,
                     next != NULL && next->state == XSEG_BLOCK_CACHED ? next->bytes : 0);
    assert_int_equal(info.free_before,
                     prev != NULL && prev->state == XSEG_BLOCK_CACHED ? prev->bytes : 0);
}

static void step(struct env *env)
{
    const uint64_t action = below(200);
    /* Phases of filling and draining create unmapped ranges. */
    const bool fills = program.step / 400 % 2 == 0;

    env->touched = NULL;
    if (action < (fills ? 110u : 70u))
        step_alloc(env);
    else if (action < 180)
        step_free(env);
    else if (action < 190)
        step_record_stream(env);
    else if (action < 196)
        step_finish(env);
    else if (action < 199)
        step_trim(env);
    else if (below(4) == 0)
        step_configure(env);
}

static void play(uint64_t seed, bool expandable)
{
    const unsigned long steps = program_number("XSEG_TEST_STEPS", 13000);
    struct env *env = calloc(1, sizeof(*env));
    char config[128];

    assert_non_null(env);
    program.seed = seed_state = seed;
    env->expandable = expandable;
    /* With history, allocation takes the slow path, which must choose the same blocks. */
    (void)snprintf(config, sizeof(config),
                   "expandable_segments:%s,history:%s,expandable_segments_reserve:%s",
                   expandable ? "True" : "False", seed % 2 == 0 ? "state" : "nothing",
                   seed % 4 < 2 ? "0.03" : "1.125");
    env->allocator = env_open_sim(config, .memory_bytes = 8 * GIB,
                                  .address_order = (enum xseg_sim_address_order)(seed % 3));
    env->owner[1] = env_stream();
    for (unsigned i = 0; i < USERS; i++)
        env->user[i] = env_stream();
    env->pool = env_pool_of(env->allocator, .no_split = true);
    for (unsigned i = 0; i < OWNERS * 2; i++) {
        env->arena[i / 2][i % 2].is_small = i % 2 == 0;
        env->arena[i / 2][i % 2].splits = i / 2 != 2;
    }
    for (program.step = 0; program.step < steps; program.step++) {
        step(env);
        expect_stats(env);
        expect_block(env);
        for (unsigned i = 0; i < OWNERS * 2; i++)
            if (program.step % 8 == 0 || env->touched == NULL ||
                env->touched == &env->arena[i / 2][i % 2])
                expect_parts(env, &env->arena[i / 2][i % 2]);
    }
    while (env->count > 0)
        env_free(env->allocator, (void *)(uintptr_t)env->held[--env->count].base);
    assert_ok(xseg_pool_release(env->pool));
    env_close(env->allocator, env->owner[1], env->user[0], env->user[1]);
    free(env);
    program.seed = 0;
}

TEST_PROGRAM(expandable_segments_are_chosen_by_pytorchs_rules)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        play(seed * 7919, true);
}

TEST_PROGRAM(classic_segments_are_chosen_by_pytorchs_rules)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        play(seed * 104729, false);
}
