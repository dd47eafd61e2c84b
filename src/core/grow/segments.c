/* SPDX-License-Identifier: MIT */
#include "src/core/grow/segments.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/grow/fallback_chain.h"
#include "src/core/grow/growth.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/reclaim.h"

/* The budget of addresses of all devices: half of the 47 bits. */
#define ALL_ADDRESSES (2 * XSEG_GROWTH_ADDRESSES)

/* The maximum number of segments of an arena in quarantine.  When it is exceeded, the older half is destroyed. */
#define QUARANTINE_MAX 4096u

_Static_assert(XSEG_GROWTH_ADDRESSES >> XSEG_PAGE_MAP_ADDRESS_BITS == 0,
               "the page map covers the budget of addresses");
_Static_assert(QUARANTINE_MAX >= 2, "half of a quarantine has a segment");

/* --- Extents of new segments. --- */

/* Get an extent for a new segment of an arena; NULL on host allocation failure, with an error message. */
static struct xseg_extent *acquire_extent(struct xseg_arena *arena)
{
    struct xseg_list *spare = &arena->device->spare_extents;
    struct xseg_extent *extent;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_list_is_empty(spare)) {
        extent = aligned_alloc(_Alignof(struct xseg_extent), sizeof(*extent));
        if (extent == NULL) {
            (void)xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, segment record");
            return NULL;
        }
        memset(extent, 0, sizeof(*extent));
    } else {
        extent = XSEG_LIST_FIRST(spare, struct xseg_extent, link);
        xseg_list_remove(&extent->link);
    }
    xseg_list_init(&extent->link);
    extent->arena = arena;
    extent->oversize = false;
    extent->registered = 0;
    extent->elastic = NULL;
    return extent;
}

/* Return an extent whose segment was not created to the spare extents. */
static void return_spare_extent(struct xseg_extent *extent)
{
    XSEG_ASSERT(xseg_list_is_empty(&extent->link));
    xseg_list_insert(&extent->arena->device->spare_extents, &extent->link);
}

/* Assign the next positions of the device to an extent (block.h). */
static void assign_positions(struct xseg_extent *extent)
{
    struct xseg_device *device = xseg_device_of(extent);

    extent->position = device->next_position;
    device->next_position += extent->segment.bytes >> XSEG_START_SHIFT;
}

void xseg_growth_renew_positions(struct xseg_extent *extent)
{
    struct xseg_arena *arena = extent->arena;
    struct xseg_block *unmapped = extent->first;
    const uint64_t end = extent->segment.base + extent->segment.bytes;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(unmapped->state == XSEG_BLOCK_UNMAPPED && xseg_block_is_whole(unmapped));
    if (xseg_extent_position(extent, end) == arena->device->next_position)
        return;
    const struct xseg_tree_key old_key = xseg_tree_key_of(unmapped, false);
    xseg_tree_remove(arena->records, &arena->unmapped_blocks, unmapped, &old_key);
    assign_positions(extent);
    const struct xseg_tree_key new_key = xseg_tree_key_of(unmapped, false);
    xseg_tree_insert(arena->records, &arena->unmapped_blocks, unmapped, &new_key);
}

/*
 * Register an extent as one claimed block: allocate its tables, assign positions, and add the extent to the page map and to its
 * arena.  On failure the segment is destroyed, and the extent is returned to the spare extents.
 *
 * is_mapped: whether the memory of the segment is mapped
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
static xseg_status register_extent(struct xseg_extent *extent, bool is_mapped)
{
    struct xseg_arena *arena = extent->arena;
    struct xseg_device *device = arena->device;
    bool is_registered = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && extent->segment.bytes > 0);
    if (!xseg_extent_init(extent))
        goto end_segment;
    assign_positions(extent);
    if (is_mapped && !xseg_page_map_populate(device->page_map, extent, 0, extent->segment.bytes))
        goto end_tables;
    extent->segment.owner = xseg_pool_owner(arena->pool);
    extent->segment.properties = xseg_pool_properties(arena->pool);
    atomic_store_explicit(&extent->base, extent->segment.base, memory_order_relaxed);
    xseg_biased_lock_lock(&arena->lock);
    if (xseg_arena_reserve_records(arena, &arena->blocks, 2)) {
        xseg_mutex_lock(&device->page_map->lock);
        is_registered = xseg_page_map_insert(device->page_map, extent);
        xseg_mutex_unlock(&device->page_map->lock);
    }
    if (is_registered)
        (void)xseg_arena_add_extent(arena, extent);
    xseg_biased_lock_unlock(&arena->lock);
    if (is_registered)
        xseg_pool_add_reference(arena->pool);
    XSEG_ASSERT(!is_registered || extent->first->state == XSEG_BLOCK_CLAIMED);
    if (is_registered)
        return XSEG_OK;

end_tables:
    xseg_biased_lock_lock(&arena->lock);
    xseg_extent_fini(extent);
    xseg_biased_lock_unlock(&arena->lock);
end_segment:
    (void)xseg_segment_destroy(&extent->segment);
    return_spare_extent(extent);
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, segment tables");
}

/* Register a new expandable segment, which is unmapped, and count its addresses.  status: the result of the reservation */
static xseg_status register_reserved_extent(struct xseg_extent *extent, xseg_status status)
{
    struct xseg_device *device = extent->arena->device;
    struct xseg_pool *pool = extent->arena->pool;
    const uint64_t bytes = extent->segment.reserved_bytes;

    XSEG_ASSERT(status != XSEG_OK || bytes >= extent->segment.bytes);
    if (status == XSEG_OK)
        status = register_extent(extent, false);
    else
        return_spare_extent(extent);
    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&device->addresses, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->addresses, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&device->page_map->addresses, bytes, memory_order_relaxed);
    return XSEG_OK;
}

xseg_status xseg_growth_reserve_elastic(struct xseg_arena *arena,
                                        const struct xseg_segment_reservation *reservation,
                                        struct xseg_elastic *elastic, struct xseg_extent **out)
{
    struct xseg_device *device = arena->device;
    struct xseg_extent *extent = acquire_extent(arena);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (extent == NULL)
        return XSEG_ERR_HOST_MEMORY;
    extent->elastic = elastic;
    const xseg_status status = register_reserved_extent(
        extent, xseg_segment_reserve_range(&extent->segment, &device->context, &device->page_cache,
                                           reservation));
    if (status == XSEG_OK)
        *out = extent;
    return status;
}

/* --- Classic segments. --- */

/* Whether an address range that a memory function returned overlaps no segment. */
static bool is_unused_range(const struct xseg_device *device, uint64_t base, uint64_t bytes)
{
    const uint64_t last = base + bytes - 1;
    bool is_unused = true;

    XSEG_ASSERT(bytes > 0);
    if (last < base || last >> XSEG_PAGE_MAP_ADDRESS_BITS != 0)
        return false;
    xseg_mutex_lock(&device->page_map->lock);
    for (uint64_t address = base; is_unused && address <= last;
         address = (address | (2 * XSEG_MIB - 1)) + 1)
        is_unused = !xseg_page_map_overlaps(device->page_map, address,
                                            xseg_min(last, address | (2 * XSEG_MIB - 1)));
    xseg_mutex_unlock(&device->page_map->lock);
    return is_unused;
}

/* Allocate a classic segment, from the driver or from the memory function of the pool. */
static xseg_status allocate_classic_segment(struct xseg_arena *arena, struct xseg_segment *segment,
                                            uint64_t bytes)
{
    struct xseg_device *device = arena->device;
    xseg_status status;

    if (!arena->pool->has_own_memory)
        return xseg_segment_allocate(segment, &device->context, &device->page_cache, bytes);
    status = xseg_segment_allocate_from_callback(segment, &device->context, &device->page_cache,
                                                 bytes, &arena->pool->options.memory,
                                                 xseg_arena_stream(arena)->handle);
    if (status != XSEG_OK)
        xseg_fail_append(", pool %s", xseg_pool_label(arena->pool));
    if (status != XSEG_OK || is_unused_range(device, segment->base, bytes))
        return status;
    status = xseg_fail(
        XSEG_ERR_ARGUMENT,
        "memory function of pool %s returned an address that is in use or is not a device "
        "address, %#" PRIx64 " for %" PRIu64 " bytes",
        xseg_pool_label(arena->pool), segment->base, bytes);
    (void)xseg_segment_destroy(segment);
    return status;
}

xseg_status xseg_growth_classic(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                struct xseg_alloc_result *out)
{
    const uint64_t bytes = params->segment_bytes;
    XSEG_ASSERT(bytes >= params->span);
    xseg_status status = xseg_pool_check_running(arena->pool);

    if (status == XSEG_OK)
        status = xseg_growth_check(arena->pool, bytes, 0);
    if (status != XSEG_OK)
        return status;
    struct xseg_extent *extent = acquire_extent(arena);
    if (extent == NULL)
        return XSEG_ERR_HOST_MEMORY;
    status = allocate_classic_segment(arena, &extent->segment, bytes);
    if (status != XSEG_OK) {
        return_spare_extent(extent);
        return status;
    }
    status = register_extent(extent, true);
    if (status != XSEG_OK)
        return status;
    xseg_pool_record_growth(arena, bytes);
    xseg_debug_fill_claimed(extent->first);
    xseg_notify_map(extent, extent->segment.base, bytes);
    xseg_biased_lock_lock(&arena->lock);
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_segment(extent, XSEG_HISTORY_SEGMENT_ALLOC, extent->segment.base, bytes);
    extent->oversize = bytes >= params->config->max_split_bytes;
    xseg_counts_increase(&arena->counts, XSEG_COUNT_SEGMENT, 1);
    xseg_counts_increase(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
    if (extent->oversize)
        xseg_counts_increase(&arena->counts, XSEG_COUNT_OVERSIZE_SEGMENT, 1);
    const bool has_records = xseg_arena_reserve_records(arena, &arena->blocks, 2);
    struct xseg_block *block = xseg_arena_settle(arena, extent->first);
    XSEG_ASSERT(!has_records || block != NULL);
    if (has_records)
        *out = xseg_arena_allocate_block(arena, block, params);
    xseg_biased_lock_unlock(&arena->lock);
    return has_records ? XSEG_OK : xseg_arena_fail_host_memory();
}

/* --- Expandable segments. --- */

static xseg_status check_page_size(const struct xseg_device *device, uint64_t page)
{
    if (page % device->context.granularity == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_UNSUPPORTED,
                     "page size is not a multiple of the granularity of device %d, %" PRIu64
                     " bytes; use multiples of %" PRIu64 " bytes",
                     device->context.ordinal, page, device->context.granularity);
}

/* The sizes of the address range of a new segment, in whole pages. */
struct range_size {
    uint64_t bytes;
    uint64_t min; /* used if the driver cannot reserve `bytes` */
};

/* Get the number of bytes that the configuration specifies for the range of a segment, at most `max`. */
static uint64_t configured_range_bytes(const struct xseg_device *device,
                                       const struct xseg_config *config, uint64_t max)
{
    const struct xseg_config_reserve *reserve = &config->expandable_segments_reserve;
    const double unit = reserve->in_gib ? (double)XSEG_GIB : (double)device->context.total_bytes;
    const double bytes = reserve->amount * unit;

    /* Compared as a double, since the product can exceed an integer. */
    return reserve->amount == 0 || bytes >= (double)max ? max : (uint64_t)bytes;
}

/*
 * Choose the range of a new segment.  PyTorch reserves 9/8 of the device, so that one segment can hold all of its memory with
 * unmapped ranges in between.  A segment of small blocks has at most 512 GiB; when the segment is full, another one is added.
 * When the budget of the device or of all devices runs low, each new segment reserves an eighth of the remaining budget.
 * expandable_segments_reserve specifies smaller segments, but a segment is never too short for the request.
 */
static struct range_size choose_range_size(const struct xseg_device *device,
                                           const struct xseg_alloc_params *params, uint64_t page,
                                           uint64_t max)
{
    const uint64_t total = device->context.total_bytes;
    const uint64_t full = xseg_min(xseg_round_up(total + total / 8, page), max / page * page);
    const uint64_t used = atomic_load_explicit(&device->addresses, memory_order_relaxed);
    const uint64_t used_by_all =
        atomic_load_explicit(&device->page_map->addresses, memory_order_relaxed);
    const uint64_t remaining =
        xseg_min(XSEG_GROWTH_ADDRESSES - xseg_min(used, XSEG_GROWTH_ADDRESSES),
                 ALL_ADDRESSES - xseg_min(used_by_all, ALL_ADDRESSES));
    const uint64_t configured =
        xseg_round_up(configured_range_bytes(device, params->config, full), page);
    const uint64_t min = xseg_min(
        xseg_round_up(xseg_max(params->span, xseg_min(configured, XSEG_GIB / 2)), page), full);

    XSEG_ASSERT(page > 0 && min > 0 && min % page == 0);
    return (struct range_size){xseg_max(min, xseg_min(configured, remaining / 8 / page * page)),
                               min};
}

/* Reserve a range, or its minimum if the driver is out of addresses. */
static xseg_status reserve_range(struct xseg_device *device, struct xseg_segment *segment,
                                 const struct range_size *range, uint64_t page)
{
    XSEG_ASSERT(range->min <= range->bytes && range->bytes % page == 0);
    const xseg_status status =
        xseg_segment_reserve(segment, &device->context, &device->page_cache, range->bytes, page);

    if (status != XSEG_ERR_NO_ADDRESSES || range->bytes == range->min)
        return status;
    return xseg_segment_reserve(segment, &device->context, &device->page_cache, range->min, page);
}

xseg_status xseg_growth_add_segment(struct xseg_arena *arena,
                                    const struct xseg_alloc_params *params)
{
    struct xseg_device *device = arena->device;
    const uint64_t page =
        arena->is_small ? XSEG_SIZE_SMALL_SEGMENT : params->config->large_segment_bytes;
    const struct range_size range = choose_range_size(
        device, params, page, arena->has_starts ? XSEG_STARTS_MAX : XSEG_PAGE_MAP_EXTENT_MAX);
    xseg_status status;

    XSEG_ASSERT(params->expandable && !arena->is_guarded);
    if (params->span > range.bytes)
        return xseg_oom_cause_fail(arena->pool, XSEG_OOM_CAUSE_DEVICE, params->span);
    status = check_page_size(device, page);
    if (status != XSEG_OK)
        return status;
    struct xseg_extent *extent = acquire_extent(arena);
    if (extent == NULL)
        return XSEG_ERR_HOST_MEMORY;
    status =
        register_reserved_extent(extent, reserve_range(device, &extent->segment, &range, page));
    if (status != XSEG_OK)
        return status;
    xseg_biased_lock_lock(&arena->lock);
    (void)xseg_arena_settle(arena, extent->first);
    xseg_biased_lock_unlock(&arena->lock);
    return XSEG_OK;
}

/* --- Segments for one block. --- */

/* Reserve and register a segment for one block.  *out: the claimed, unmapped block; unchanged on an error */
static xseg_status reserve_block_segment(struct xseg_arena *arena,
                                         const struct xseg_segment_reservation *reservation,
                                         struct xseg_block **out)
{
    struct xseg_device *device = arena->device;
    xseg_status status = check_page_size(device, reservation->page_bytes);

    if (status != XSEG_OK)
        return status;
    struct xseg_extent *extent = acquire_extent(arena);
    if (extent == NULL)
        return XSEG_ERR_HOST_MEMORY;
    status = register_reserved_extent(extent,
                                      xseg_segment_reserve_range(&extent->segment, &device->context,
                                                                 &device->page_cache, reservation));
    if (status == XSEG_OK)
        *out = extent->first;
    XSEG_ASSERT(status != XSEG_OK || ((*out)->state == XSEG_BLOCK_CLAIMED && !(*out)->mapped));
    return status;
}

/* Claim the block of an unmapped segment for a single page with this size and alignment; NULL if there is none. */
static struct xseg_block *claim_single_page_range(struct xseg_arena *arena, uint64_t bytes,
                                                  uint64_t alignment)
{
    struct xseg_block *unmapped = NULL;

    xseg_biased_lock_lock(&arena->lock);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (unmapped == NULL && extent->first->state == XSEG_BLOCK_UNMAPPED &&
            extent->segment.bytes == bytes && extent->segment.page_bytes == bytes &&
            extent->segment.base % alignment == 0)
            unmapped = extent->first;
    }
    if (unmapped != NULL) {
        xseg_growth_renew_positions(unmapped->extent);
        (void)xseg_arena_claim(arena, unmapped);
    }
    xseg_biased_lock_unlock(&arena->lock);
    return unmapped;
}

/* Before a new segment is reserved, unmapped segments of other sizes release their addresses, so that such segments do not
 * accumulate. */
xseg_status xseg_growth_single_page(struct xseg_arena *arena,
                                    const struct xseg_alloc_params *params,
                                    struct xseg_alloc_result *out)
{
    const uint64_t granule = arena->device->context.granularity;
    const struct xseg_segment_reservation reservation = {
        .bytes = xseg_round_up(params->bytes, granule),
        .page_bytes = xseg_round_up(params->bytes, granule),
        .alignment = xseg_max(granule, params->alignment),
    };
    struct xseg_candidate candidate = {.missing = reservation.bytes};
    xseg_status status = xseg_pool_check_running(arena->pool);

    if (status != XSEG_OK)
        return status;
    candidate.first = claim_single_page_range(arena, reservation.bytes, reservation.alignment);
    if (candidate.first == NULL && !xseg_pending_captures(arena->device->pending))
        (void)xseg_reclaim_destroy_all_unmapped(arena);
    if (candidate.first == NULL)
        status = reserve_block_segment(arena, &reservation, &candidate.first);
    if (status != XSEG_OK)
        return status;
    candidate.last = candidate.first;
    struct xseg_extent *extent = candidate.first->extent;
    const struct xseg_page_filter filter = {.properties = extent->segment.properties};
    const uint64_t covered = xseg_candidate_covered(&candidate, &filter);
    status = xseg_growth_finish(arena, params, &candidate,
                                xseg_growth_check(arena->pool, reservation.bytes, covered), out);
    if (status != XSEG_OK && !xseg_pending_captures(arena->device->pending))
        (void)xseg_reclaim_destroy_unmapped(extent);
    return status;
}

/* Allocate from the claimed block of a guarded segment (segments.h), at its start or at its end; the remainder is cached. */
static struct xseg_alloc_result allocate_guarded_block(struct xseg_arena *arena,
                                                       struct xseg_block *block,
                                                       const struct xseg_alloc_params *params)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && block->bytes >= params->bytes);
    const uint64_t offset =
        params->at_end ? xseg_round_down(block->bytes - params->bytes, params->alignment) : 0;

    if (offset == 0)
        return xseg_arena_allocate_block(arena, xseg_arena_settle(arena, block), params);
    struct xseg_block *tail = xseg_arena_split_block(arena, block, offset);
    const struct xseg_alloc_result result =
        xseg_arena_allocate_block(arena, xseg_arena_settle(arena, tail), params);
    (void)xseg_arena_settle(arena, block);
    return result;
}

xseg_status xseg_growth_guarded(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                struct xseg_alloc_result *out)
{
    const uint64_t page = XSEG_SIZE_SMALL_SEGMENT, bytes = xseg_round_up(params->bytes, page);
    const struct xseg_segment_reservation reservation = {bytes, page, page,
                                                         xseg_max(page, params->alignment), 0};
    struct xseg_candidate candidate = {.missing = bytes, .small = true};
    const struct xseg_page_filter filter = {.properties = xseg_pool_properties(arena->pool)};
    const uint64_t idle = xseg_page_cache_usable_bytes(&arena->device->page_cache,
                                                       arena->device->context.granularity, &filter);
    xseg_status status = xseg_growth_check(arena->pool, bytes, xseg_min(bytes, idle));

    XSEG_ASSERT(arena->is_guarded);
    if (status == XSEG_OK)
        status = reserve_block_segment(arena, &reservation, &candidate.first);
    if (status != XSEG_OK)
        return status;
    struct xseg_block *block = candidate.last = candidate.first;
    struct xseg_extent *extent = block->extent;
    status = xseg_candidate_map(&candidate);
    xseg_candidate_notify(&candidate);
    xseg_biased_lock_lock(&arena->lock);
    const bool has_records = xseg_arena_reserve_records(arena, &arena->blocks, 3);
    if (status != XSEG_OK || !has_records) {
        (void)xseg_candidate_settle(arena, &candidate, true);
    } else {
        block->mapped = true;
        xseg_counts_increase(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
        *out = allocate_guarded_block(arena, block, params);
    }
    xseg_biased_lock_unlock(&arena->lock);
    if (status != XSEG_OK)
        (void)xseg_reclaim_destroy_unmapped(extent);
    else if (!has_records)
        status = xseg_arena_fail_host_memory();
    return status;
}

/* --- Guarded blocks. --- */

/* Get the pool of guarded blocks of a device, which is created on first use. */
static xseg_status get_guarded_pool(struct xseg_device *device, struct xseg_pool **out)
{
    struct xseg_pool_options options = {sizeof(options)};
    xseg_status status = XSEG_OK;

    /* A guarded block replaces a block of the default pool, so its pages have the same properties. */
    options.exportable = device->pool.options.exportable;
    options.rdma = device->pool.options.rdma;
    xseg_mutex_lock(&device->memory_lock);
    struct xseg_pool *pool = atomic_load_explicit(&device->guarded_pool, memory_order_relaxed);
    /* Another thread may have created the pool concurrently. */
    if (pool == NULL) {
        status = xseg_pools_create(device, &options, true, &pool);
        if (status == XSEG_OK)
            atomic_store_explicit(&device->guarded_pool, pool, memory_order_release);
    }
    XSEG_ASSERT(status != XSEG_OK || pool->is_guarded);
    if (status == XSEG_OK)
        *out = pool;
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

xseg_status xseg_guarded_choose(struct xseg_alloc_params *params)
{
    const struct xseg_arena *arena = params->arena;
    struct xseg_device *device = arena->device;
    struct xseg_pool *pool = atomic_load_explicit(&device->guarded_pool, memory_order_acquire);

    XSEG_ASSERT(!params->is_guarded && params->is_small == arena->is_small);
    if (!params->expandable || !xseg_device_makes_pages(device) || arena->pool->is_private ||
        !xseg_streams_accepts_work(&device->context, xseg_arena_stream(arena)))
        return XSEG_OK;
    xseg_status status = pool != NULL ? XSEG_OK : get_guarded_pool(device, &pool);
    if (status == XSEG_OK)
        status = xseg_pool_arena(pool, xseg_arena_stream(arena), params->is_small, &params->arena);
    XSEG_ASSERT(status != XSEG_OK || params->arena->is_guarded);
    if (status == XSEG_OK) {
        params->is_guarded = true;
        params->at_end = params->config->guard_page;
    }
    return status;
}

static bool synchronize_stream(const struct xseg_arena *arena,
                               const struct xseg_known_stream *stream)
{
    struct xseg_context *context = &arena->device->context;

    return xseg_streams_accepts_work(context, stream) &&
           xseg_driver_stream_synchronize(context, stream->handle) == XSEG_OK;
}

/* Synchronize all streams that use a claimed block; false if this thread cannot synchronize one of them. */
static bool synchronize_streams_of(const struct xseg_block *block)
{
    const struct xseg_arena *arena = block->extent->arena;
    bool is_idle = !xseg_context_is_lost(&arena->device->context) &&
                   synchronize_stream(arena, xseg_arena_stream(arena));

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
    for (const struct xseg_stream_use *use = block->uses; use != NULL && is_idle; use = use->next)
        is_idle = synchronize_stream(arena, use->stream);
    return is_idle;
}

/* Cache a claimed block, or make it pending.  If the segment is idle and has no other block, claim the block again:
 * *claimed. */
static xseg_status cache_guarded_block(struct xseg_block *block, bool is_idle,
                                       struct xseg_block **claimed)
{
    struct xseg_extent *extent = block->extent;
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
    if (block->uses != NULL) {
        const xseg_status status = xseg_pending_free(arena->device->pending, block, false);

        if (status != XSEG_OK)
            return status;
        xseg_pending_poll(arena->device->pending);
        xseg_biased_lock_lock(&arena->lock);
    } else {
        xseg_biased_lock_lock(&arena->lock);
        xseg_recorder_free_if_enabled(arena, block);
        xseg_arena_free(arena, block);
    }
    block = extent->first;
    if (is_idle && block->state == XSEG_BLOCK_CACHED && block->next == NULL &&
        !xseg_segment_has_retained(&extent->segment)) {
        xseg_arena_claim(arena, block);
        *claimed = block;
    }
    XSEG_ASSERT(*claimed == NULL || xseg_block_is_whole(*claimed));
    /* The list of extents is in the order in which their blocks were freed. */
    xseg_list_remove(&extent->link);
    xseg_list_insert(&arena->extents, &extent->link);
    xseg_biased_lock_unlock(&arena->lock);
    return XSEG_OK;
}

xseg_status xseg_guarded_free(struct xseg_block *block)
{
    struct xseg_arena *arena = block->extent->arena;
    const uint64_t page_cache_max =
        xseg_allocator_config(arena->device->allocator)->page_cache_bytes;
    struct xseg_block *claimed = NULL;

    XSEG_ASSERT(arena->is_guarded && block->state == XSEG_BLOCK_CLAIMED);
    xseg_mutex_lock(&arena->device->memory_lock);
    const bool is_idle = synchronize_streams_of(block);
    const xseg_status status = cache_guarded_block(block, is_idle, &claimed);
    if (claimed != NULL && !xseg_notify_unmap(arena->device, claimed))
        xseg_reclaim_settle(claimed);
    else if (claimed != NULL)
        (void)xseg_reclaim_release_block(claimed, page_cache_max != 0, XSEG_HISTORY_SEGMENT_UNMAP);
    xseg_page_cache_shrink_unprepared(&arena->device->page_cache, page_cache_max);
    if (status == XSEG_OK && ++arena->quarantined > QUARANTINE_MAX) {
        xseg_reclaim_destroy_some_unmapped(arena, QUARANTINE_MAX / 2);
        arena->quarantined -= QUARANTINE_MAX / 2;
    }
    XSEG_ASSERT(arena->quarantined <= QUARANTINE_MAX);
    xseg_mutex_unlock(&arena->device->memory_lock);
    return status;
}
