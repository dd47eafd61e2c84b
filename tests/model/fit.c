/* SPDX-License-Identifier: MIT */
/*
 * Random programs that compare the choice of blocks with PyTorch's rules in their simplest form: an array of blocks in the
 * order of addresses, which is scanned for each request.
 *
 * The rules: best fit by size, then by the registration of segments, then by address.  A block that can still grow is skipped
 * if the next block is smaller when both have grown.  Growth uses the first unmapped range that is long enough, by
 * registration and address, and finally empty segments, which are registered again.  Blocks are split and coalesced.  The
 * order of the driver's addresses (ascending, descending or shuffled) has no effect.
 *
 * Requests are small and large, for expandable segments, classic segments or both.  They use either entry point, on two
 * streams and in a pool with no_split, with alignments, uses by other streams and trims.  After each step every address and
 * every current value and peak equals that of the model, and the audits pass.
 */
#include <inttypes.h>

#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "tests/support/env.h"
#include "tests/support/random_program.h"

#define BLOCKS_MAX    4096u
#define ALLOCATED_MAX 300u
#define OWNERS        3u /* two streams, and a pool that does not split, on the first of them */
#define USERS         2u
#define NONE          UINT32_MAX

/* A block of the segment that begins at `segment`. */
struct block {
    uint64_t base, bytes, requested;
    uint64_t segment, segment_bytes;
    uint64_t registered;   /* number of the registration of its segment */
    uint64_t event[USERS]; /* pending: number of kernels on each stream for which it waits */
    uint64_t freed;        /* pending: number of earlier frees */
    enum xseg_block_state state;
    bool expandable;
    bool used[USERS]; /* allocated: the stream uses it; pending: it waits for the stream's event */
};

struct arena {
    struct block block[BLOCKS_MAX];
    unsigned count;
    bool is_small, splits;
};

struct env {
    struct xseg_allocator *allocator;
    xseg_stream owner[OWNERS], user[USERS];
    struct xseg_pool *pool;                     /* of the last owner */
    struct arena arena[OWNERS][2];              /* small, large */
    uint64_t launched[USERS], completed[USERS]; /* number of kernels */
    uint64_t peak[4];                           /* of the first four statistics in expect_stats() */
    uint64_t grown, shrunk;     /* number of allocations and releases of device memory */
    uint64_t registered, freed; /* number of registrations of segments, and of frees */
    struct {
        uint64_t base;
        struct arena *arena;
    } allocated[ALLOCATED_MAX];
    unsigned count;
    bool expandable;             /* as configured */
    struct arena *changed_arena; /* by the last step; NULL: all */
};

/* Allocation parameters.  span: bytes that contain an aligned block of `bytes` at any 512-byte boundary. */
struct params {
    uint64_t bytes, requested, alignment, span;
    bool expandable;
};

static uint64_t seed_state;

static uint64_t below(uint64_t bound)
{
    return rng_next(&seed_state) % bound;
}

/* --- The array. --- */

static uint64_t end_of(const struct block *block)
{
    return block->base + block->bytes;
}

/* The adjacent blocks in the same segment, or NULL. */
static struct block *next_block(struct arena *arena, struct block *block)
{
    struct block *next = block + 1;

    return next < arena->block + arena->count && next->segment == block->segment ? next : NULL;
}

static struct block *previous_block(struct arena *arena, struct block *block)
{
    return block > arena->block && block[-1].segment == block->segment ? block - 1 : NULL;
}

static void insert_block(struct arena *arena, unsigned index, const struct block *block)
{
    const struct block copy = *block;

    assert_true(arena->count < BLOCKS_MAX);
    memmove(&arena->block[index + 1], &arena->block[index], (arena->count - index) * sizeof(copy));
    arena->block[index] = copy;
    arena->count++;
}

static void remove_block(struct arena *arena, unsigned index)
{
    arena->count--;
    memmove(&arena->block[index], &arena->block[index + 1],
            (arena->count - index) * sizeof(struct block));
}

/* Split a block at an address inside it; other addresses have no effect. */
static void split_block(struct arena *arena, unsigned index, uint64_t address)
{
    struct block remainder = arena->block[index];

    if (address <= remainder.base || address >= end_of(&remainder))
        return;
    arena->block[index].bytes = address - remainder.base;
    remainder.bytes = end_of(&remainder) - address;
    remainder.base = address;
    insert_block(arena, index + 1, &remainder);
}

/* Split a block, and clear the requested size of one of its two parts. */
static void split_off(struct arena *arena, unsigned index, uint64_t address, unsigned unsized_index)
{
    const unsigned count = arena->count;

    split_block(arena, index, address);
    if (arena->count != count)
        arena->block[unsized_index].requested = 0;
}

/* Set the state of a block and coalesce it with adjacent blocks in the same state; returns its new index.  The coalesced
 * block has the requested size of this block. */
static unsigned set_state(struct arena *arena, unsigned index, enum xseg_block_state state)
{
    struct block *block = &arena->block[index], *next = next_block(arena, block),
                 *previous = previous_block(arena, block);

    block->state = state;
    memset(block->used, 0, sizeof(block->used));
    if (next != NULL && next->state == state) {
        block->bytes += next->bytes;
        remove_block(arena, index + 1);
    }
    if (previous != NULL && previous->state == state) {
        previous->bytes += block->bytes;
        previous->requested = block->requested;
        remove_block(arena, index);
        index--;
    }
    return index;
}

static unsigned block_at(const struct arena *arena, uint64_t base)
{
    for (unsigned i = 0; i < arena->count; i++)
        if (arena->block[i].base == base)
            return i;
    fail_msg("no block begins at %#llx", (unsigned long long)base);
    return NONE;
}

/* --- The rules. --- */

/* Whether a block is after another one in the order of registration, then of addresses. */
static bool is_after(const struct block *block, const struct block *other)
{
    return block->registered > other->registered ||
           (block->registered == other->registered && block->base > other->base);
}

/* The smallest cached block of at least this size; of equal sizes the first one.  after: of the blocks of exactly this size
 * only those after this block; NULL: all. */
static unsigned next_cached(const struct arena *arena, uint64_t bytes, const struct block *after)
{
    unsigned best = NONE;

    for (unsigned i = 0; i < arena->count; i++) {
        const struct block *block = &arena->block[i],
                           *found = &arena->block[best == NONE ? 0 : best];

        if (block->state == XSEG_BLOCK_CACHED &&
            (block->bytes > bytes ||
             (block->bytes == bytes && (after == NULL || is_after(block, after)))) &&
            (best == NONE || block->bytes < found->bytes ||
             (block->bytes == found->bytes && is_after(found, block))))
            best = i;
    }
    return best;
}

/* The size of a block with the unmapped range after it. */
static uint64_t effective_bytes(struct arena *arena, unsigned index)
{
    const struct block *next = next_block(arena, &arena->block[index]);

    return arena->block[index].bytes +
           (next != NULL && next->state == XSEG_BLOCK_UNMAPPED ? next->bytes : 0);
}

/* The cached block that serves a request, or NONE: the best fit that is not skipped because it can still grow. */
static unsigned best_fit(struct arena *arena, const struct params *params)
{
    unsigned index = next_cached(arena, params->span, NULL);

    while (index != NONE && arena->block[index].expandable) {
        const unsigned next = next_cached(arena, arena->block[index].bytes, &arena->block[index]);

        if (params->expandable &&
            (next == NONE || effective_bytes(arena, next) >= effective_bytes(arena, index)))
            break;
        index = next;
    }
    return index;
}

static uint64_t page_bytes(const struct arena *arena)
{
    return (arena->is_small ? 2 : 20) * MIB;
}

/* Map the first pages of an unmapped range. */
static unsigned map_pages(struct env *env, struct arena *arena, unsigned index, uint64_t bytes)
{
    env->grown++;
    split_off(arena, index, arena->block[index].base + xseg_round_up(bytes, page_bytes(arena)),
              index + 1);
    return set_state(arena, index, XSEG_BLOCK_CACHED);
}

/* The size of the candidate range: the adjacent cached and unmapped blocks from a block on. */
static uint64_t available_bytes(struct arena *arena, unsigned index)
{
    uint64_t bytes = 0;

    for (struct block *block = &arena->block[index];
         block != NULL &&
         (block->state == XSEG_BLOCK_CACHED || block->state == XSEG_BLOCK_UNMAPPED);
         block = next_block(arena, block))
        bytes += block->bytes;
    return bytes;
}

static bool is_empty_segment(const struct block *block)
{
    return block->state == XSEG_BLOCK_UNMAPPED && block->bytes == block->segment_bytes;
}

/* The next unmapped range in the order of registration and addresses, with empty segments last; after: NULL for the first
 * one. */
static unsigned next_unmapped(const struct arena *arena, const struct block *after)
{
    unsigned best = NONE;

    for (unsigned i = 0; i < arena->count; i++) {
        const struct block *block = &arena->block[i],
                           *found = &arena->block[best == NONE ? 0 : best];
        const int is_empty = is_empty_segment(block);

        if (block->state != XSEG_BLOCK_UNMAPPED ||
            (after != NULL && (is_empty < is_empty_segment(after) ||
                               (is_empty == is_empty_segment(after) && !is_after(block, after)))))
            continue;
        if (best == NONE || is_empty < is_empty_segment(found) ||
            (is_empty == is_empty_segment(found) && is_after(found, block)))
            best = i;
    }
    return best;
}

/* Grow from the first unmapped range that is long enough. */
static unsigned grow(struct env *env, struct arena *arena, const struct params *params)
{
    for (unsigned i = next_unmapped(arena, NULL); i != NONE;
         i = next_unmapped(arena, &arena->block[i])) {
        unsigned index = i;
        const struct block *previous = previous_block(arena, &arena->block[i]);

        if (previous != NULL && previous->state == XSEG_BLOCK_CACHED)
            index--;
        if (available_bytes(arena, index) < params->span)
            continue;
        if (is_empty_segment(&arena->block[index])) {
            arena->block[index].registered = ++env->registered;
            arena->block[index].requested = 0;
        }
        if (arena->block[index].state == XSEG_BLOCK_UNMAPPED)
            index = map_pages(env, arena, index, xseg_min(params->span, arena->block[index].bytes));
        while (arena->block[index].bytes < params->span)
            index = map_pages(
                env, arena, index + 1,
                xseg_min(params->span - arena->block[index].bytes, arena->block[index + 1].bytes));
        return index;
    }
    return NONE;
}

/* Allocate from a cached block; returns the address. */
static uint64_t allocate_from(struct env *env, struct arena *arena, unsigned index,
                              const struct params *params)
{
    const uint64_t base = xseg_round_up(arena->block[index].base, params->alignment);

    if (base != arena->block[index].base) {
        split_block(arena, index, base);
        arena->block[index].requested = arena->block[index].bytes;
        index++;
    }
    const uint64_t remainder = arena->block[index].bytes - params->bytes;
    if (arena->splits &&
        (arena->is_small || params->expandable ? remainder >= 512 : remainder > MIB))
        split_block(arena, index, base + params->bytes);
    arena->block[index].state = XSEG_BLOCK_ALLOCATED;
    arena->block[index].requested = params->requested;
    assert_true(env->count < ALLOCATED_MAX);
    env->allocated[env->count].arena = arena;
    env->allocated[env->count++].base = base;
    return base;
}

/* --- Steps of the model and the library. --- */

/* Add a new segment, at the address that the library chose. */
static unsigned add_segment(struct env *env, struct arena *arena, const struct params *params,
                            void *ptr)
{
    const struct xseg_block_info info = env_block(env->allocator, ptr);
    struct block block = {.expandable = params->expandable};
    unsigned index = 0;

    block.base = block.segment = (uint64_t)(uintptr_t)info.segment_base;
    block.bytes = block.segment_bytes = info.segment_bytes;
    block.state = params->expandable ? XSEG_BLOCK_UNMAPPED : XSEG_BLOCK_CACHED;
    block.registered = ++env->registered;
    assert_int_equal(info.is_expandable, params->expandable);
    while (index < arena->count && arena->block[index].base < block.base)
        index++;
    assert_true(index == 0 || end_of(&arena->block[index - 1]) <= block.base);
    assert_true(index == arena->count || end_of(&block) <= arena->block[index].base);
    insert_block(arena, index, &block);
    if (params->expandable)
        return map_pages(env, arena, index, params->span);
    env->grown++;
    const uint64_t min_bytes = xseg_round_up(params->span, 2 * MIB);
    const uint64_t default_bytes = arena->is_small ? 2 * MIB
                                   : params->bytes < 10 * MIB
                                       ? 20 * MIB
                                       : xseg_round_up(params->bytes, 2 * MIB);
    assert_int_equal(block.bytes, xseg_max(min_bytes, default_bytes));
    return index;
}

/* The block that was freed first among the pending blocks that wait for a completed event of a stream, or NONE. */
static unsigned first_completed(struct env *env, unsigned user, struct arena **out)
{
    unsigned first = NONE;

    for (unsigned i = 0; i < OWNERS * 2; i++) {
        struct arena *arena = &env->arena[i / 2][i % 2];

        for (unsigned index = 0; index < arena->count; index++) {
            const struct block *block = &arena->block[index];

            if (block->state != XSEG_BLOCK_PENDING_FREE || !block->used[user] ||
                block->event[user] > env->completed[user] ||
                (first != NONE && (*out)->block[first].freed < block->freed))
                continue;
            first = index;
            *out = arena;
        }
    }
    return first;
}

/* Reclaim blocks whose events have completed: by stream, the newest stream first, and for each stream in the order of the
 * frees. */
static void poll_pending(struct env *env)
{
    struct arena *arena = NULL;
    unsigned index;

    for (unsigned user = USERS; user-- > 0;)
        while ((index = first_completed(env, user, &arena)) != NONE) {
            struct block *block = &arena->block[index];
            bool waits = false;

            block->used[user] = false;
            for (unsigned other = 0; other < USERS; other++)
                waits = waits || block->used[other];
            if (!waits)
                (void)set_state(arena, index, XSEG_BLOCK_CACHED);
        }
}

static size_t random_bytes(bool is_small)
{
    static const size_t max_bytes[] = {4 * KIB, 4 * KIB, 64 * KIB, 300 * KIB, MIB};

    if (is_small)
        return 1 + below(max_bytes[below(COUNT_OF(max_bytes))]);
    return MIB + 1 + below(below(4) == 0 ? 60 * MIB : 12 * MIB);
}

static void step_alloc(struct env *env)
{
    const unsigned owner = (unsigned)below(8) == 0 ? 2 : (unsigned)below(3) / 2;
    const bool is_small = below(6) != 0, is_simple = owner != 2 && below(2) == 0;
    struct arena *arena = &env->arena[owner][!is_small];
    void *ptr = NULL;

    if (env->count == ALLOCATED_MAX)
        return;
    struct xseg_request request = {sizeof(request), .bytes = random_bytes(is_small)};
    request.stream = env->owner[owner];
    request.pool = owner == 2 ? env->pool : NULL;
    request.alignment = !is_simple && below(8) == 0 ? (size_t)1 << below(22) : 0;
    struct params params = {.requested = request.bytes, .expandable = env->expandable};
    params.bytes = xseg_round_up(request.bytes, 512);
    params.alignment = xseg_max(request.alignment, 512);
    params.span = params.bytes + params.alignment - 512;
    env->changed_arena = arena;
    poll_pending(env);
    unsigned index = best_fit(arena, &params);
    if (index == NONE && env->expandable)
        index = grow(env, arena, &params);
    if (is_simple)
        ptr = env_alloc(env->allocator, request.bytes, request.stream);
    else
        assert_ok(xseg_alloc_with(env->allocator, &request, &ptr));
    if (index == NONE)
        index = add_segment(env, arena, &params, ptr);
    assert_int_equal((uintptr_t)ptr, allocate_from(env, arena, index, &params));
}

static void step_free(struct env *env)
{
    if (env->count == 0)
        return;
    const unsigned i = (unsigned)below(env->count);
    struct arena *arena = env->allocated[i].arena;
    const unsigned index = block_at(arena, env->allocated[i].base);
    struct block *block = &arena->block[index];
    bool is_used = false;

    env->changed_arena = arena;
    env_free(env->allocator, (void *)(uintptr_t)block->base);
    env->allocated[i] = env->allocated[--env->count];
    for (unsigned user = 0; user < USERS; user++) {
        block->event[user] = env->launched[user];
        is_used = is_used || block->used[user];
    }
    block->freed = env->freed++;
    if (is_used)
        block->state = XSEG_BLOCK_PENDING_FREE;
    else
        (void)set_state(arena, index, XSEG_BLOCK_CACHED);
}

static void step_record_stream(struct env *env)
{
    const unsigned user = (unsigned)below(USERS);

    if (env->count == 0)
        return;
    const unsigned i = (unsigned)below(env->count);
    struct arena *arena = env->allocated[i].arena;
    struct block *block = &arena->block[block_at(arena, env->allocated[i].base)];
    env->changed_arena = arena;
    assert_ok(xseg_record_stream(env->allocator, (void *)(uintptr_t)block->base, env->user[user]));
    block->used[user] = true;
    if (below(2) == 0) {
        assert_ok(xseg_sim_launch(env->user[user], UINT64_MAX));
        env->launched[user]++;
    }
}

static void step_finish(struct env *env)
{
    const unsigned user = (unsigned)below(USERS);

    assert_ok(xseg_sim_finish(env->user[user]));
    env->completed[user] = env->launched[user];
}

/* Release the whole pages of a cached block, or an empty classic segment. */
static void trim_block(struct env *env, struct arena *arena, unsigned index)
{
    const struct block block = arena->block[index];
    const uint64_t page = page_bytes(arena);
    const uint64_t begin = block.segment + xseg_round_up(block.base - block.segment, page);
    const uint64_t end = block.segment + xseg_round_down(end_of(&block) - block.segment, page);

    if (!block.expandable && block.bytes == block.segment_bytes) {
        env->shrunk++;
        remove_block(arena, index);
        return;
    }
    if (!block.expandable || begin >= end)
        return;
    env->shrunk++;
    split_off(arena, index, end, index + 1);
    if (begin != block.base) {
        split_off(arena, index, begin, index);
        index++;
    }
    (void)set_state(arena, index, XSEG_BLOCK_UNMAPPED);
}

/* Trim the cached blocks in the order of size: the remainders of a block are smaller than all later blocks. */
static void trim_arena(struct env *env, struct arena *arena)
{
    unsigned index = next_cached(arena, 0, NULL);

    while (index != NONE) {
        const struct block block = arena->block[index];

        trim_block(env, arena, index);
        index = next_cached(arena, block.bytes, &block);
    }
}

static void step_trim(struct env *env)
{
    const struct xseg_trim_options options = {sizeof(options), .wait = below(2) == 0};

    for (unsigned user = 0; options.wait && user < USERS; user++) {
        assert_ok(xseg_sim_finish(env->user[user]));
        env->completed[user] = env->launched[user];
    }
    assert_ok(xseg_trim(env->allocator, NULL, &options, NULL));
    poll_pending(env);
    /* A trim skips the retained pool. */
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

static void expect_arena(struct env *env, struct arena *arena)
{
    const struct xseg_extent *extent = NULL;
    struct xseg_block_view view = {0};
    struct xseg_violation violation = {0};

    for (unsigned i = 0; i < arena->count; i++) {
        const struct block *expected = &arena->block[i];

        if (previous_block(arena, &arena->block[i]) == NULL) {
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

/* The values of the statistics in the model, in the order of expect_stats(). */
struct sums {
    uint64_t value[9];
};

static void add_arena(struct arena *arena, struct sums *sums)
{
    for (unsigned i = 0; i < arena->count; i++) {
        const struct block *block = &arena->block[i];
        const bool is_allocated = block->state == XSEG_BLOCK_ALLOCATED;
        const bool is_active = is_allocated || block->state == XSEG_BLOCK_PENDING_FREE;
        const bool is_inactive_split = block->state == XSEG_BLOCK_CACHED && !block->expandable &&
                                       block->bytes != block->segment_bytes;
        const uint64_t each[] = {
            is_allocated,
            is_allocated ? block->bytes : 0,
            is_active ? block->bytes : 0,
            block->state != XSEG_BLOCK_UNMAPPED ? block->bytes : 0,
            is_active,
            !block->expandable && block->base == block->segment,
            is_inactive_split,
            is_inactive_split ? block->bytes : 0,
            is_active ? block->requested : 0,
        };

        for (unsigned k = 0; k < COUNT_OF(each); k++)
            sums->value[k] += each[k];
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
            if (stat[k][i].current != group[i].value[k])
                fail_msg("statistic %u of group %u is %" PRIu64 " instead of %" PRIu64, k, i,
                         stat[k][i].current, group[i].value[k]);
    for (unsigned k = 0; k < COUNT_OF(env->peak); k++) {
        env->peak[k] = xseg_max(env->peak[k], group[XSEG_STAT_ALL].value[k]);
        assert_int_equal(stat[k][XSEG_STAT_ALL].peak, env->peak[k]);
    }
    assert_int_equal(stats.num_device_alloc, env->grown);
    assert_int_equal(stats.num_device_free, env->shrunk);
}

/* Compare the library's description of a random block and its neighbors. */
static void expect_block(struct env *env)
{
    if (env->count == 0)
        return;
    const unsigned i = (unsigned)below(env->count);
    struct arena *arena = env->allocated[i].arena;
    struct block *block = &arena->block[block_at(arena, env->allocated[i].base)];
    const struct xseg_block_info info =
        env_block(env->allocator, (void *)(uintptr_t)(block->base + below(block->bytes)));
    const struct block *next = next_block(arena, block), *previous = previous_block(arena, block);

    assert_int_equal((uintptr_t)info.base, block->base);
    assert_int_equal(info.bytes, block->bytes);
    assert_int_equal(info.requested, block->requested);
    assert_int_equal(info.free_after,
                     next != NULL && next->state == XSEG_BLOCK_CACHED ? next->bytes : 0);
    assert_int_equal(info.free_before, previous != NULL && previous->state == XSEG_BLOCK_CACHED
                                           ? previous->bytes
                                           : 0);
}

static void step(struct env *env)
{
    const uint64_t action = below(200);
    /* Phases of filling and draining create unmapped ranges. */
    const bool fills = program.step / 400 % 2 == 0;

    env->changed_arena = NULL;
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

static void run_program(uint64_t seed, bool expandable)
{
    const unsigned long steps = program_number("XSEG_TEST_STEPS", 13000);
    struct env *env = calloc(1, sizeof(*env));
    char config[128];

    assert_non_null(env);
    program.seed = seed_state = seed;
    env->expandable = expandable;
    /* With history:state requests use the slow path, which must choose the same blocks. */
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
            if (program.step % 8 == 0 || env->changed_arena == NULL ||
                env->changed_arena == &env->arena[i / 2][i % 2])
                expect_arena(env, &env->arena[i / 2][i % 2]);
    }
    while (env->count > 0)
        env_free(env->allocator, (void *)(uintptr_t)env->allocated[--env->count].base);
    assert_ok(xseg_pool_release(env->pool));
    env_close(env->allocator, env->owner[1], env->user[0], env->user[1]);
    free(env);
    program.seed = 0;
}

TEST_PROGRAM(expandable_segments_are_chosen_by_pytorchs_rules)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        run_program(seed * 7919, true);
}

TEST_PROGRAM(classic_segments_are_chosen_by_pytorchs_rules)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        run_program(seed * 104729, false);
}
