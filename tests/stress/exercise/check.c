/* SPDX-License-Identifier: MIT */
/* The oracle: when no operation is active, all views agree. The walk over blocks is compared with the workers'
 * blocks, the statistics of devices and pools, the explanation, the mappings, the driver's accounting, and the
 * library's audits. */
#include <stdlib.h>
#include <string.h>

#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "tests/stress/exercise/world.h"
#include "xseg/sim.h"

#define PIECES_MOST 65536u
#define TRIES       50u

struct piece {
    const char *base;
    size_t bytes;
};

/* Sums of allocated blocks, of pending blocks, and of all mapped bytes. */
struct sums {
    uint64_t live, live_bytes, active, active_bytes, requested, reserved;
};

struct view {
    struct world *world;
    int device;
    struct xseg_statistics stats;
    struct xseg_explain_result explained;
    struct sums sums[XSEG_STAT_GROUPS];
    uint64_t paused, explained_bytes, mapped;
    bool is_moving; /* the background thread is freeing a block */
    struct xseg_block_info *block;
    unsigned blocks;
    struct piece *mapping;
    unsigned mappings;
};

/* --- Gathering. --- */

static void add(struct sums *sums, const struct xseg_block_info *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED) {
        sums->live++;
        sums->live_bytes += block->bytes;
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
    struct view *view = context;

    CHECK(block->device == view->device);
    CHECK(block->bytes > 0);
    view->is_moving = view->is_moving || block->state == XSEG_BLOCK_CLAIMED;
    if (block->state == XSEG_BLOCK_UNMAPPED)
        return true;
    add(&view->sums[XSEG_STAT_ALL], block);
    add(&view->sums[block->is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE], block);
    if (block->is_paused)
        view->paused += block->bytes;
    CHECK(view->blocks < PIECES_MOST);
    view->block[view->blocks++] = *block;
    return true;
}

static bool add_reason(void *context, const struct xseg_reason *reason)
{
    struct view *view = context;

    CHECK(reason->bytes == reason->allocated_bytes + reason->pending_bytes + reason->claimed_bytes +
                               reason->cached_bytes);
    view->explained_bytes += reason->bytes;
    return true;
}

static bool add_mapping(void *context, const struct xseg_mapping *mapping)
{
    struct view *view = context;

    CHECK(mapping->generation != 0 && mapping->bytes % mapping->page_bytes == 0);
    CHECK(view->mappings < PIECES_MOST);
    view->mapping[view->mappings++] = (struct piece){mapping->base, mapping->bytes};
    view->mapped += mapping->bytes;
    return true;
}

static void read_stats(struct view *view, struct xseg_statistics *stats)
{
    const struct xseg_scope scope = {sizeof(scope), .device = view->device};

    *stats = (struct xseg_statistics){.struct_size = sizeof(*stats)};
    CHECK_OK(CALL(xseg_stats_get, view->world->allocator, &scope, stats));
}

/* Whether nothing has changed in the meantime, for example by the background thread. */
static bool gather(struct view *view)
{
    struct xseg_allocator *allocator = view->world->allocator;
    const struct xseg_scope scope = {sizeof(scope), .device = view->device};
    struct xseg_statistics after;

    memset(view->sums, 0, sizeof(view->sums));
    view->paused = view->explained_bytes = view->mapped = 0;
    view->blocks = view->mappings = 0;
    view->is_moving = false;
    view->explained =
        (struct xseg_explain_result){.struct_size = sizeof(struct xseg_explain_result)};
    read_stats(view, &view->stats);
    CHECK_OK(CALL(xseg_for_each_block, allocator, &scope, add_block, view));
    CHECK_OK(CALL(xseg_explain, allocator, &scope, add_reason, view, &view->explained));
    CHECK_OK(CALL(xseg_for_each_mapping, allocator, &scope, add_mapping, view));
    read_stats(view, &after);
    /* Queries may allocate host memory. */
    after.host_bytes = view->stats.host_bytes;
    return !view->is_moving && memcmp(&after, &view->stats, sizeof(after)) == 0;
}

/* --- Comparing. --- */

static int by_base(const void *one, const void *other)
{
    const struct piece *a = one, *b = other;

    return a->base < b->base ? -1 : a->base > b->base;
}

static void expect_apart(struct piece *piece, unsigned count)
{
    qsort(piece, count, sizeof(*piece), by_base);
    for (unsigned i = 1; i < count; i++)
        if (piece[i - 1].base + piece[i - 1].bytes > piece[i].base)
            failure("%zu bytes at %p overlap %zu bytes at %p", piece[i - 1].bytes,
                    (const void *)piece[i - 1].base, piece[i].bytes, (const void *)piece[i].base);
}

static void expect_blocks_apart(const struct view *view)
{
    struct piece *piece = calloc(view->blocks + 1, sizeof(*piece));

    CHECK(piece != NULL);
    for (unsigned i = 0; i < view->blocks; i++)
        piece[i] = (struct piece){view->block[i].base, view->block[i].bytes};
    expect_apart(piece, view->blocks);
    free(piece);
}

static void expect_equal(const struct view *view, const char *what, uint64_t one, uint64_t other)
{
    if (one != other)
        failure("device %d: %s: %llu is not %llu", view->device, what, (unsigned long long)one,
                (unsigned long long)other);
}

static void check_group(const struct view *view, unsigned group)
{
    const struct xseg_statistics *stats = &view->stats;
    const struct sums *sums = &view->sums[group];

    expect_equal(view, "live blocks", stats->allocation[group].current, sums->live);
    expect_equal(view, "live bytes", stats->allocated_bytes[group].current, sums->live_bytes);
    expect_equal(view, "active blocks", stats->active[group].current, sums->active);
    expect_equal(view, "active bytes", stats->active_bytes[group].current, sums->active_bytes);
    expect_equal(view, "requested bytes", stats->requested_bytes[group].current, sums->requested);
    expect_equal(view, "reserved bytes", stats->reserved_bytes[group].current, sums->reserved);
    const struct xseg_stat *each[] = {
        &stats->allocation[group],      &stats->segment[group],
        &stats->active[group],          &stats->inactive_split[group],
        &stats->allocated_bytes[group], &stats->reserved_bytes[group],
        &stats->active_bytes[group],    &stats->inactive_split_bytes[group],
        &stats->requested_bytes[group],
    };
    for (unsigned i = 0; i < COUNT_OF(each); i++) {
        CHECK(each[i]->peak >= each[i]->current);
        if (!view->world->was_reset)
            expect_equal(view, "totals", each[i]->current, each[i]->allocated - each[i]->freed);
    }
}

static void check_explained(const struct view *view)
{
    const struct xseg_explain_result *sums = &view->explained;
    const uint64_t reserved = view->stats.reserved_bytes[XSEG_STAT_ALL].current;

    expect_equal(view, "explained", sums->reserved, reserved);
    expect_equal(view, "reasons", view->explained_bytes, reserved);
    expect_equal(view, "kinds of reasons",
                 sums->allocated + sums->pending + sums->claimed + sums->pool + sums->pinned +
                     sums->capture + sums->stream + sums->keep + sums->decay + sums->policy +
                     sums->exported + sums->registered,
                 reserved);
    expect_equal(view, "mapped", view->mapped, reserved);
    expect_equal(view, "paused", view->stats.paused_bytes, view->paused);
    expect_equal(view, "the page cache", sums->page_cache, view->stats.idle_page_bytes);
    expect_equal(view, "stuck", sums->unreleased, view->stats.unreleased_bytes);
    expect_equal(view, "physical", view->stats.physical_bytes,
                 reserved + view->stats.idle_page_bytes + view->stats.unreleased_bytes);
    CHECK(view->stats.overwrites == 0);
}

/* The driver's accounting. Released memory that importers still hold is excluded. */
static void check_driver(const struct view *view)
{
    const uint64_t used = xseg_sim_used((unsigned)view->device);

    if (view->world->had_shares)
        CHECK(used >= view->stats.physical_bytes);
    else
        expect_equal(view, "used of the device", used, view->stats.physical_bytes);
}

/* --- What the workers have. --- */

static const struct xseg_block_info *find_block(const struct view *view, const void *base)
{
    for (unsigned i = 0; i < view->blocks; i++)
        if (view->block[i].base == base)
            return &view->block[i];
    return NULL;
}

static void check_block(const struct view *view, const struct block *block)
{
    const struct xseg_block_info *info = find_block(view, block->ptr);

    if (info == NULL || info->state != XSEG_BLOCK_ALLOCATED)
        failure("the block at %p is not live", (const void *)block->ptr);
    CHECK(info->requested == block->bytes);
    CHECK(info->pool == (block->tag == NULL ? NULL : block->tag->pool));
    CHECK(info->is_paused == (block->tag != NULL && block->tag->is_evicted) ||
          (block->tag != NULL && block->tag->may_be_paused));
}

static void check_held(const struct view *view)
{
    uint64_t count = 0;

    for (unsigned k = 0; k < view->world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_BLOCKS; i++) {
            const struct block *block = &view->world->worker[k].block[i];

            if (block->ptr != NULL && block->device == view->device) {
                check_block(view, block);
                count++;
            }
        }
    expect_equal(view, "blocks that are held", view->sums[XSEG_STAT_ALL].live, count);
}

static void check_pool(const struct view *view, const struct tag *tag)
{
    const struct xseg_scope scope = {sizeof(scope), .device = tag->device, .pool = tag->pool};
    struct xseg_statistics stats = {sizeof(stats)};
    struct sums sums = {0};
    uint64_t paused = 0;

    CHECK_OK(CALL(xseg_stats_get, view->world->allocator, &scope, &stats));
    for (unsigned i = 0; i < view->blocks; i++) {
        if (view->block[i].pool == tag->pool) {
            add(&sums, &view->block[i]);
            paused += view->block[i].is_paused ? view->block[i].bytes : 0;
        }
        /* Memory that it has lent is reserved by it. */
        if (view->block[i].fallback_pool == tag->pool)
            sums.reserved += view->block[i].bytes;
    }
    expect_equal(view, "live blocks of a pool", stats.allocation[0].current, sums.live);
    expect_equal(view, "live bytes of a pool", stats.allocated_bytes[0].current, sums.live_bytes);
    expect_equal(view, "active bytes of a pool", stats.active_bytes[0].current, sums.active_bytes);
    expect_equal(view, "reserved bytes of a pool", stats.reserved_bytes[0].current, sums.reserved);
    expect_equal(view, "paused bytes of a pool", stats.paused_bytes, paused);
}

static void check_pools(const struct view *view)
{
    struct world *world = view->world;

    for (unsigned k = 0; k < world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_TAGS; i++) {
            const struct tag *tag = world->worker[k].tag[i];

            if (tag != NULL && tag->device == view->device)
                check_pool(view, tag);
        }
}

/* --- All of it. --- */

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

static void check_device(struct view *view)
{
    unsigned tries = 0;

    while (!gather(view))
        if (++tries > TRIES) {
            /* Only the background thread can interfere. */
            CHECK(view->world->options.has_background_thread);
            return;
        }
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        check_group(view, group);
    check_explained(view);
    expect_blocks_apart(view);
    expect_apart(view->mapping, view->mappings);
    check_held(view);
    if (!view->world->options.has_background_thread) {
        check_driver(view);
        check_pools(view);
    }
    audit(view->world, view->device);
}

void world_check(struct world *world)
{
    const uint64_t epoch = fault_epoch();
    uint64_t held = 0, bytes = 0;
    struct view view = {.world = world,
                        .block = calloc(PIECES_MOST, sizeof(*view.block)),
                        .mapping = calloc(PIECES_MOST, sizeof(*view.mapping))};

    /* Statistics open a device, and an explanation queries streams: both may fail. */
    if (!fault_was_none(epoch))
        fault_lift();
    CHECK(view.block != NULL && view.mapping != NULL);
    for (view.device = 0; view.device < (int)world->options.devices; view.device++)
        check_device(&view);
    if (!world->had_second && !world->options.has_background_thread)
        check_calls(world);
    for (unsigned k = 0; k < world->options.threads; k++)
        for (unsigned i = 0; i < WORLD_BLOCKS; i++)
            if (world->worker[k].block[i].ptr != NULL) {
                held++;
                bytes += world->worker[k].block[i].bytes;
            }
    if (world->tracer != 0 && !world->options.has_background_thread) {
        CHECK((uint64_t)world->traced == held);
        CHECK((uint64_t)world->traced_bytes == bytes);
    }
    free(view.block);
    free(view.mapping);
}
