/* SPDX-License-Identifier: MIT */
/* The checks while no operation is active.  The blocks that the library reports are compared with the blocks of the workers,
 * the statistics of devices and pools, the explanation, the mappings and the accounting of the driver; and the audits of the
 * library pass. */
#include <stdlib.h>
#include <string.h>

#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "tests/stress/exercise/world.h"
#include "xseg/sim.h"

#define RANGES_MAX 65536u
#define TRIES_MAX  50u

struct address_range {
    const char *base;
    size_t bytes;
};

/* Sums of allocated blocks, of pending blocks, and of all mapped bytes. */
struct sums {
    uint64_t allocated, allocated_bytes, active, active_bytes, requested, reserved;
};

/* The state of a device as the library reports it. */
struct state {
    struct world *world;
    int device;
    struct xseg_statistics stats;
    struct xseg_explain_result explained;
    struct sums sums[XSEG_STAT_GROUPS];
    uint64_t paused, explained_bytes, mapped;
    bool has_claimed_blocks; /* the background thread is freeing a block */
    struct xseg_block_info *block;
    unsigned blocks;
    struct address_range *mapping;
    unsigned mappings;
};

/* --- Reading the state. --- */

static void add_to_sums(struct sums *sums, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED) {
        sums->allocated++;
        sums->allocated_bytes += block->bytes;
    }
    if (block->state == XSEG_BLOCK_ALLOCATED || block->state == XSEG_BLOCK_PENDING_FREE) {
        sums->active++;
        sums->active_bytes += block->bytes;
        sums->requested += block->requested;
    }
    if (!block->is_paused)
        sums->reserved += block->bytes;
}

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct state *state = context;

    CHECK(block->device == state->device);
    CHECK(block->bytes > 0);
    state->has_claimed_blocks = state->has_claimed_blocks || block->state == XSEG_BLOCK_CLAIMED;
    if (block->state == XSEG_BLOCK_UNMAPPED)
        return true;
    add_to_sums(&state->sums[XSEG_STAT_ALL], block);
    add_to_sums(&state->sums[block->is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE], block);
    if (block->is_paused)
        state->paused += block->bytes;
    CHECK(state->blocks < RANGES_MAX);
    state->block[state->blocks++] = *block;
    return true;
}

static bool add_reason(void *context, const struct xseg_reason *reason)
{
    struct state *state = context;

    CHECK(reason->bytes == reason->allocated_bytes + reason->pending_bytes + reason->claimed_bytes +
                               reason->cached_bytes);
    state->explained_bytes += reason->bytes;
    return true;
}

static bool add_mapping(void *context, const struct xseg_mapping *mapping)
{
    struct state *state = context;

    CHECK(mapping->generation != 0 && mapping->bytes % mapping->page_bytes == 0);
    CHECK(state->mappings < RANGES_MAX);
    state->mapping[state->mappings++] = (struct address_range){mapping->base, mapping->bytes};
    state->mapped += mapping->bytes;
    return true;
}

static void read_stats(struct state *state, struct xseg_statistics *stats)
{
    const struct xseg_scope scope = {sizeof(scope), .device = state->device};

    *stats = (struct xseg_statistics){.struct_size = sizeof(*stats)};
    CHECK_OK(CALL(xseg_stats_get, state->world->allocator, &scope, stats));
}

/* Returns false if the state has changed during the queries, which only the background thread can cause. */
static bool read_state(struct state *state)
{
    struct xseg_allocator *allocator = state->world->allocator;
    const struct xseg_scope scope = {sizeof(scope), .device = state->device};
    struct xseg_statistics after;

    memset(state->sums, 0, sizeof(state->sums));
    state->paused = state->explained_bytes = state->mapped = 0;
    state->blocks = state->mappings = 0;
    state->has_claimed_blocks = false;
    state->explained =
        (struct xseg_explain_result){.struct_size = sizeof(struct xseg_explain_result)};
    read_stats(state, &state->stats);
    CHECK_OK(CALL(xseg_for_each_block, allocator, &scope, add_block, state));
    CHECK_OK(CALL(xseg_explain, allocator, &scope, add_reason, state, &state->explained));
    CHECK_OK(CALL(xseg_for_each_mapping, allocator, &scope, add_mapping, state));
    read_stats(state, &after);
    /* Queries may allocate host memory. */
    after.host_bytes = state->stats.host_bytes;
    return !state->has_claimed_blocks && memcmp(&after, &state->stats, sizeof(after)) == 0;
}

/* --- Comparing. --- */

static int by_base(const void *first, const void *second)
{
    const struct address_range *a = first, *b = second;

    return a->base < b->base ? -1 : a->base > b->base;
}

static void expect_disjoint(struct address_range *range, unsigned count)
{
    qsort(range, count, sizeof(*range), by_base);
    for (unsigned i = 1; i < count; i++)
        if (range[i - 1].base + range[i - 1].bytes > range[i].base)
            failure("%zu bytes at %p overlap %zu bytes at %p", range[i - 1].bytes,
                    (const void *)range[i - 1].base, range[i].bytes, (const void *)range[i].base);
}

static void expect_disjoint_blocks(const struct state *state)
{
    struct address_range *range = calloc(state->blocks + 1, sizeof(*range));

    CHECK(range != NULL);
    for (unsigned i = 0; i < state->blocks; i++)
        range[i] = (struct address_range){state->block[i].base, state->block[i].bytes};
    expect_disjoint(range, state->blocks);
    free(range);
}

static void expect_equal(const struct state *state, const char *name, uint64_t actual,
                         uint64_t expected)
{
    if (actual != expected)
        failure("device %d: %s: %llu instead of %llu", state->device, name,
                (unsigned long long)actual, (unsigned long long)expected);
}

static void check_group(const struct state *state, unsigned group)
{
    const struct xseg_statistics *stats = &state->stats;
    const struct sums *sums = &state->sums[group];

    expect_equal(state, "allocated blocks", stats->allocation[group].current, sums->allocated);
    expect_equal(state, "allocated bytes", stats->allocated_bytes[group].current,
                 sums->allocated_bytes);
    expect_equal(state, "active blocks", stats->active[group].current, sums->active);
    expect_equal(state, "active bytes", stats->active_bytes[group].current, sums->active_bytes);
    expect_equal(state, "requested bytes", stats->requested_bytes[group].current, sums->requested);
    expect_equal(state, "reserved bytes", stats->reserved_bytes[group].current, sums->reserved);
    const struct xseg_stat *each[] = {
        &stats->allocation[group],      &stats->segment[group],
        &stats->active[group],          &stats->inactive_split[group],
        &stats->allocated_bytes[group], &stats->reserved_bytes[group],
        &stats->active_bytes[group],    &stats->inactive_split_bytes[group],
        &stats->requested_bytes[group],
    };
    for (unsigned i = 0; i < COUNT_OF(each); i++) {
        CHECK(each[i]->peak >= each[i]->current);
        if (!state->world->are_totals_reset)
            expect_equal(state, "totals", each[i]->current, each[i]->allocated - each[i]->freed);
    }
}

static void check_explained(const struct state *state)
{
    const struct xseg_explain_result *sums = &state->explained;
    const uint64_t reserved = state->stats.reserved_bytes[XSEG_STAT_ALL].current;

    expect_equal(state, "explained", sums->reserved, reserved);
    expect_equal(state, "reasons", state->explained_bytes, reserved);
    expect_equal(state, "kinds of reasons",
                 sums->allocated + sums->pending + sums->claimed + sums->pool + sums->pinned +
                     sums->capture + sums->stream + sums->keep + sums->decay + sums->policy +
                     sums->exported + sums->registered,
                 reserved);
    expect_equal(state, "mapped", state->mapped, reserved);
    expect_equal(state, "paused", state->stats.paused_bytes, state->paused);
    expect_equal(state, "the page cache", sums->page_cache, state->stats.idle_page_bytes);
    expect_equal(state, "unreleased", sums->unreleased, state->stats.unreleased_bytes);
    expect_equal(state, "physical", state->stats.physical_bytes,
                 reserved + state->stats.idle_page_bytes + state->stats.unreleased_bytes);
    CHECK(state->stats.overwrites == 0);
}

/* Compare with the accounting of the driver, which includes released memory that is still imported. */
static void check_driver(const struct state *state)
{
    const uint64_t used = xseg_sim_used((unsigned)state->device);

    if (state->world->had_shares)
        CHECK(used >= state->stats.physical_bytes);
    else
        expect_equal(state, "used of the device", used, state->stats.physical_bytes);
}

/* --- Comparison with the workers' blocks and pools. --- */

static const struct xseg_block_info *find_block(const struct state *state, const void *base)
{
    for (unsigned i = 0; i < state->blocks; i++)
        if (state->block[i].base == base)
            return &state->block[i];
    return NULL;
}

static void check_block(const struct state *state, const struct block *block)
{
    const struct xseg_block_info *info = find_block(state, block->ptr);

    if (info == NULL || info->state != XSEG_BLOCK_ALLOCATED)
        failure("the block at %p is not allocated", (const void *)block->ptr);
    CHECK(info->requested == block->bytes);
    CHECK(info->pool == (block->pool == NULL ? NULL : block->pool->handle));
    CHECK(info->is_paused == (block->pool != NULL && block->pool->is_inaccessible) ||
          (block->pool != NULL && block->pool->may_be_paused));
}

static void check_worker_blocks(const struct state *state)
{
    uint64_t count = 0;

    for (unsigned k = 0; k < state->world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
            const struct block *block = &state->world->worker[k].block[i];

            if (block->ptr != NULL && block->device == state->device) {
                check_block(state, block);
                count++;
            }
        }
    expect_equal(state, "blocks of the workers", state->sums[XSEG_STAT_ALL].allocated, count);
}

static void check_pool(const struct state *state, const struct pool *pool)
{
    const struct xseg_scope scope = {sizeof(scope), .device = pool->device, .pool = pool->handle};
    struct xseg_statistics stats = {sizeof(stats)};
    struct sums sums = {0};
    uint64_t paused = 0;

    CHECK_OK(CALL(xseg_stats_get, state->world->allocator, &scope, &stats));
    for (unsigned i = 0; i < state->blocks; i++) {
        if (state->block[i].pool == pool->handle) {
            add_to_sums(&sums, &state->block[i]);
            paused += state->block[i].is_paused ? state->block[i].bytes : 0;
        }
        /* The memory of a fallback allocation is reserved by the fallback pool. */
        if (state->block[i].fallback_pool == pool->handle)
            sums.reserved += state->block[i].bytes;
    }
    expect_equal(state, "allocated blocks of a pool", stats.allocation[0].current, sums.allocated);
    expect_equal(state, "allocated bytes of a pool", stats.allocated_bytes[0].current,
                 sums.allocated_bytes);
    expect_equal(state, "active bytes of a pool", stats.active_bytes[0].current, sums.active_bytes);
    expect_equal(state, "reserved bytes of a pool", stats.reserved_bytes[0].current, sums.reserved);
    expect_equal(state, "paused bytes of a pool", stats.paused_bytes, paused);
}

static void check_pools(const struct state *state)
{
    struct world *world = state->world;

    for (unsigned k = 0; k < world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_POOLS; i++) {
            const struct pool *pool = world->worker[k].pool[i];

            if (pool != NULL && pool->device == state->device)
                check_pool(state, pool);
        }
}

/* --- All checks. --- */

static void check_calls(struct world *world)
{
    static const char *const names[] = {"cuMemCreate",     "cuMemMap",       "cuMemUnmap",
                                        "cuMemRelease",    "cuMemSetAccess", "cuMemAddressReserve",
                                        "cuMemAddressFree"};
    struct xseg_driver_call calls[128];
    size_t count = 0;

    CHECK_OK(CALL(xseg_driver_calls, world->allocator, calls, 128, &count));
    for (size_t i = 0; i < count; i++)
        for (unsigned k = 0; k < COUNT_OF(names); k++)
            if (strcmp(calls[i].name, names[k]) == 0 && calls[i].count != xseg_sim_calls(names[k]))
                failure("%llu calls of %s instead of %llu", (unsigned long long)calls[i].count,
                        names[k], (unsigned long long)xseg_sim_calls(names[k]));
}

static void audit(struct world *world, int device)
{
    struct xseg_device *open = xseg_allocator_open_device(world->allocator, device);
    struct xseg_violation violation = {0};

    if (open != NULL && !xseg_device_audit(open, &violation))
        failure("%s: %s", violation.tag, violation.text);
}

static void check_device(struct state *state)
{
    unsigned tries = 0;

    while (!read_state(state))
        if (++tries > TRIES_MAX) {
            /* Only the background thread can interfere. */
            CHECK(state->world->options.has_background_thread);
            return;
        }
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        check_group(state, group);
    check_explained(state);
    expect_disjoint_blocks(state);
    expect_disjoint(state->mapping, state->mappings);
    check_worker_blocks(state);
    if (!state->world->options.has_background_thread) {
        check_driver(state);
        check_pools(state);
    }
    audit(state->world, state->device);
}

void world_check(struct world *world)
{
    const uint64_t epoch = fault_epoch();
    uint64_t blocks = 0, requested = 0;
    struct state state = {.world = world,
                          .block = calloc(RANGES_MAX, sizeof(*state.block)),
                          .mapping = calloc(RANGES_MAX, sizeof(*state.mapping))};

    /* Statistics open a device, and an explanation queries streams: faults could make both fail. */
    if (!fault_was_none(epoch))
        fault_lift();
    CHECK(state.block != NULL && state.mapping != NULL);
    for (state.device = 0; state.device < (int)world->options.devices; state.device++)
        check_device(&state);
    if (!world->had_second_allocator && !world->options.has_background_thread)
        check_calls(world);
    for (unsigned k = 0; k < world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_BLOCKS; i++)
            if (world->worker[k].block[i].ptr != NULL) {
                blocks++;
                requested += world->worker[k].block[i].bytes;
            }
    if (world->tracer != 0 && !world->options.has_background_thread) {
        CHECK((uint64_t)world->traced == blocks);
        CHECK((uint64_t)world->traced_bytes == requested);
    }
    free(state.block);
    free(state.mapping);
}
