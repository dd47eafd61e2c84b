/* SPDX-License-Identifier: MIT */
#include "src/core/report/block_snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/arena/origins.h"
#include "vmm/evicted.h"

/* Addresses that blocks and runs may take: enough for 2^28 of them. */
#define RESERVED_BYTES ((size_t)16 << 30)

/* --- One segment. --- */

/* Whether the page at an address is evicted. */
static bool is_away(const struct xseg_segment *segment, uint64_t address)
{
    return xseg_segment_is_expandable(segment) &&
           xseg_segment_is_evicted(segment,
                                   (uint32_t)((address - segment->base) / segment->granule_bytes));
}

static struct xseg_block_snapshot_run *begin_run(struct xseg_block_snapshot *snapshot,
                                                 const struct xseg_part *part, bool away)
{
    const struct xseg_extent *extent = part->extent;
    const struct xseg_arena *arena = extent->arena;
    struct xseg_block_snapshot_run *run = xseg_bump_alloc(&snapshot->runs, sizeof(*run));

    if (run == NULL)
        return NULL;
    *run = (struct xseg_block_snapshot_run){
        .base = part->base,
        .pool = arena->pool_number,
        .stream = (uint64_t)(uintptr_t)xseg_arena_stream(arena)->handle,
        .is_small = arena->is_small,
        .is_expandable = xseg_extent_is_expandable(extent),
        .is_away = away,
    };
    snapshot->count++;
    return run;
}

/* A busy block is being freed, which is noted when it is done; but not of a block that was pending and is filled with a
 * pattern now (debug_fill), whose free was noted before. */
static enum xseg_block_state state_of(const struct xseg_part *part)
{
    return part->state == XSEG_BLOCK_CLAIMED ? XSEG_BLOCK_ALLOCATED : part->state;
}

static bool add_block(struct xseg_block_snapshot *snapshot, struct xseg_block_snapshot_run *run,
                      const struct xseg_part *part)
{
    const bool is_known = state_of(part) != XSEG_BLOCK_CACHED;
    const struct xseg_origin origin =
        is_known ? xseg_origins_of(part->extent, part->base) : (struct xseg_origin){0, 0, 0};
    struct xseg_block_snapshot_block *block = xseg_bump_alloc(&snapshot->blocks, sizeof(*block));

    if (block == NULL)
        return false;
    *block = (struct xseg_block_snapshot_block){
        .base = part->base,
        .bytes = part->bytes,
        .requested = part->requested,
        .stack = origin.stack,
        .frames = origin.frames,
        .label = origin.label,
        .state = (uint8_t)state_of(part),
    };
    if (run->count++ == 0)
        run->blocks = block;
    XSEG_ASSERT(run->base + run->bytes == part->base && block == run->blocks + run->count - 1);
    run->bytes += part->bytes;
    snapshot->live_blocks += block->state == XSEG_BLOCK_ALLOCATED;
    return true;
}

/* A run ends at an unmapped range, and where pages of a paused pool that are evicted meet others. */
static bool add_part(struct xseg_block_snapshot *snapshot, const struct xseg_part *part)
{
    const struct xseg_arena *arena = part->extent->arena;
    struct xseg_block_snapshot_run *run = snapshot->run;

    if (part->extent != snapshot->extent)
        run = NULL;
    snapshot->extent = part->extent;
    snapshot->run = NULL;
    if (part->state == XSEG_BLOCK_UNMAPPED)
        return true;
    const bool away = arena->is_paused && is_away(&part->extent->segment, part->base);
    if (run == NULL || run->is_away != away)
        run = begin_run(snapshot, part, away);
    if (run == NULL || !add_block(snapshot, run, part))
        return false;
    snapshot->run = run;
    return true;
}

/* --- All of them. --- */

static int compare_runs(const void *left, const void *right)
{
    const uint64_t a = (*(struct xseg_block_snapshot_run *const *)left)->base;
    const uint64_t b = (*(struct xseg_block_snapshot_run *const *)right)->base;

    return (a > b) - (a < b);
}

/* Runs lie one behind the other, in the order of arenas. */
static bool sort_runs(struct xseg_block_snapshot *snapshot)
{
    const size_t bytes = xseg_round_up(sizeof(struct xseg_block_snapshot_run), XSEG_BUMP_UNIT);
    char *first = xseg_bump_at(&snapshot->runs, 1);

    snapshot->list = malloc((snapshot->count + 1) * sizeof(*snapshot->list));
    for (size_t i = 0; snapshot->list != NULL && i < snapshot->count; i++)
        snapshot->list[i] = (struct xseg_block_snapshot_run *)(void *)(first + i * bytes);
    if (snapshot->list != NULL)
        qsort(snapshot->list, snapshot->count, sizeof(*snapshot->list), compare_runs);
    return snapshot->list != NULL;
}

static bool begin(struct xseg_block_snapshot *snapshot)
{
    memset(snapshot, 0, sizeof(*snapshot));
    return xseg_bump_init(&snapshot->blocks, RESERVED_BYTES) &&
           xseg_bump_init(&snapshot->runs, RESERVED_BYTES);
}

/* The results of the walk. */
struct taking {
    struct xseg_block_snapshot *snapshot;
    struct xseg_explaining *explaining;
    bool has_room;
};

static void visit(void *self, const struct xseg_part *part)
{
    struct taking *taking = self;

    taking->has_room = taking->has_room && add_part(taking->snapshot, part);
    xseg_explain_part(taking->explaining, part);
}

/* A block that one thread frees and another allocates is in one arena only if all arenas are locked together. */
static bool look(struct xseg_device *device, struct xseg_block_snapshot *snapshot,
                 struct xseg_explaining *explaining)
{
    struct taking taking = {snapshot, explaining, begin(snapshot)};

    struct xseg_arena *first = xseg_device_retain_arenas(device);
    xseg_device_history_begin_cut(device, &snapshot->ends);
    for (struct xseg_arena *arena = first; arena != NULL; arena = arena->held_next) {
        xseg_walk_arena(arena, visit, &taking);
        xseg_device_history_cut(arena);
    }
    xseg_device_release_arenas(first);
    return xseg_device_history_list_ends(device, &snapshot->ends) && taking.has_room &&
           sort_runs(snapshot);
}

xseg_status xseg_block_snapshot_take(struct xseg_device *device,
                                     struct xseg_block_snapshot *snapshot,
                                     struct xseg_explaining *explaining)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (look(device, snapshot, explaining))
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, snapshot of device %d",
                     device->context.ordinal);
}

uint64_t xseg_block_snapshot_host_bytes(const struct xseg_block_snapshot *snapshot)
{
    return xseg_bump_resident(&snapshot->blocks) + xseg_bump_resident(&snapshot->runs) +
           snapshot->count * sizeof(*snapshot->list);
}

void xseg_block_snapshot_fini(struct xseg_block_snapshot *snapshot)
{
    xseg_device_history_end(&snapshot->ends);
    free(snapshot->list);
    xseg_bump_fini(&snapshot->runs);
    xseg_bump_fini(&snapshot->blocks);
    memset(snapshot, 0, sizeof(*snapshot));
}
