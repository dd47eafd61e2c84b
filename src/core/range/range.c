/* SPDX-License-Identifier: MIT */
#include "src/core/range/range.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "src/core/device/device.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/segments.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/reclaim.h"

#define DEFAULT_PAGE_BYTES (2 * XSEG_MIB)

_Static_assert(XSEG_SEGMENT_TABLES_BYTES + XSEG_ELASTIC_BYTES <= 40,
               "host memory of a granule, of which a range may have 16 million");

void xseg_ranges_init(struct xseg_ranges *ranges)
{
    xseg_list_init(&ranges->states);
    ranges->handles = NULL;
}

static void free_state(struct xseg_range_state *state, uint32_t granules)
{
    struct xseg_elastic *elastic = &state->elastic;

    xseg_demand_zero_free(elastic->batch, granules * XSEG_ELASTIC_BYTES);
    free(state->stream);
    free(state);
}

void xseg_ranges_fini(struct xseg_ranges *ranges)
{
    struct xseg_range *range = ranges->handles, *next;

    for (; range != NULL; range = next) {
        next = range->next;
        XSEG_ASSERT(range->state == NULL);
        free(range);
    }
}

uint64_t xseg_ranges_host_bytes(const struct xseg_extent *extent)
{
    const struct xseg_elastic *elastic = extent->elastic;
    const size_t granules = extent->segment.granules;

    return sizeof(struct xseg_range) + sizeof(struct xseg_range_state) +
           atomic_load_explicit(&elastic->range->stream_capacity, memory_order_relaxed) *
               sizeof(struct xseg_range_stream) +
           xseg_demand_zero_resident(elastic->batch, granules * XSEG_ELASTIC_BYTES);
}

/* --- Reserving. --- */

static xseg_status check_size(const struct xseg_device *device, uint64_t bytes, uint64_t page_bytes)
{
    const uint64_t reserved = atomic_load_explicit(&device->addresses, memory_order_relaxed);

    if (page_bytes % device->context.granularity != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "page_bytes is not a multiple of the granularity of device %d, %" PRIu64
                         " bytes; use multiples of %" PRIu64 " bytes",
                         device->context.ordinal, page_bytes, device->context.granularity);
    if (bytes == 0 || bytes % page_bytes != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "size is not a multiple of the page size, %" PRIu64
                         " bytes; use multiples of %" PRIu64 " bytes",
                         bytes, page_bytes);
    if (bytes > XSEG_GROWTH_ADDRESSES)
        return xseg_fail(XSEG_ERR_NO_ADDRESSES,
                         "size exceeds the virtual addresses of a device, %" PRIu64
                         " bytes; reserve at most %" PRIu64 " bytes (%" PRIu64 " TiB)",
                         bytes, XSEG_GROWTH_ADDRESSES, XSEG_GROWTH_ADDRESSES >> 40);
    if (reserved > XSEG_GROWTH_ADDRESSES - bytes)
        return xseg_fail(XSEG_ERR_NO_ADDRESSES,
                         "out of virtual addresses on device %d, %" PRIu64
                         " bytes requested; %" PRIu64 " of %" PRIu64 " bytes (%" PRIu64
                         " TiB) reserved, release other ranges or reserve a smaller one",
                         device->context.ordinal, bytes, reserved, XSEG_GROWTH_ADDRESSES,
                         XSEG_GROWTH_ADDRESSES >> 40);
    return XSEG_OK;
}

/* Returns NULL on host allocation failure. */
static struct xseg_range_state *create_state(uint32_t granules)
{
    struct xseg_range_state *state = calloc(1, sizeof(*state));
    uint32_t *tables = state == NULL ? NULL : xseg_demand_zero_alloc(granules * XSEG_ELASTIC_BYTES);

    if (tables == NULL) {
        free(state);
        return NULL;
    }
    state->elastic.range = state;
    state->elastic.batch = tables;
    state->elastic.holds = tables + granules;
    state->elastic.use = (uint8_t *)(tables + 2 * (size_t)granules);
    xseg_list_init(&state->link);
    xseg_list_init(&state->elastic.retained);
    xseg_list_init(&state->elastic.retained_link);
    return state;
}

static xseg_status get_range_arena(struct xseg_pool *pool, struct xseg_arena **out)
{
    struct xseg_known_stream *stream = NULL;
    const xseg_status status = xseg_streams_find_or_add(&pool->device->streams, NULL, &stream);

    return status == XSEG_OK ? xseg_pool_arena(pool, stream, false, out) : status;
}

static xseg_status reserve_addresses(struct xseg_range_state *state, struct xseg_arena *arena,
                                     uint64_t bytes, uint64_t page_bytes)
{
    const struct xseg_segment_reservation reservation = {
        .bytes = bytes,
        .page_bytes = page_bytes,
        .granule_bytes = page_bytes,
        .tail_bytes = xseg_round_up(bytes, XSEG_SEGMENT_ALIGNMENT) - bytes,
        .alignment = XSEG_SEGMENT_ALIGNMENT,
    };
    xseg_status status = check_size(arena->device, bytes, page_bytes);

    if (status == XSEG_OK && xseg_context_is_lost(&arena->device->context))
        status = xseg_driver_fail_lost(&arena->device->context);
    if (status == XSEG_OK)
        status = xseg_growth_reserve_elastic(arena, &reservation, &state->elastic, &state->extent);
    return status;
}

static xseg_status check_pool(const struct xseg_pool *pool)
{
    const struct xseg_device *device = pool->device;

    if (!xseg_device_makes_pages(device))
        return xseg_growth_fail_unpaged(device);
    if (pool->has_own_memory)
        return xseg_fail(
            XSEG_ERR_ARGUMENT,
            "pool %s has memory functions; ranges need a pool without memory functions",
            xseg_pool_label(pool));
    return XSEG_OK;
}

xseg_status xseg_ranges_reserve(struct xseg_pool *pool, uint64_t bytes,
                                const struct xseg_range_options *options, struct xseg_range **out)
{
    struct xseg_device *device = pool->device;
    const uint64_t page_bytes = options->page_bytes == 0 ? DEFAULT_PAGE_BYTES : options->page_bytes;
    struct xseg_arena *arena = NULL;
    xseg_status status = check_pool(pool);

    if (status == XSEG_OK)
        status = check_size(device, bytes, page_bytes);
    if (status == XSEG_OK)
        status = get_range_arena(pool, &arena);
    if (status != XSEG_OK)
        return status;
    const uint32_t granules = (uint32_t)(bytes / page_bytes);
    struct xseg_range *range = calloc(1, sizeof(*range));
    struct xseg_range_state *state = create_state(granules);
    if (range == NULL || state == NULL) {
        status =
            xseg_fail(XSEG_ERR_HOST_MEMORY,
                      "out of host memory, tables of a range of %" PRIu32 " granules", granules);
        goto free_all;
    }
    state->pool = pool;
    state->range = range;
    state->limit = options->limit_bytes == 0 ? UINT64_MAX : options->limit_bytes;
    xseg_mutex_lock(&device->memory_lock);
    status = reserve_addresses(state, arena, bytes, page_bytes);
    if (status == XSEG_OK) {
        range->device = device;
        range->state = state;
        range->next = device->ranges->handles;
        device->ranges->handles = range;
        xseg_list_insert(&device->ranges->states, &state->link);
    }
    xseg_mutex_unlock(&device->memory_lock);
    if (status == XSEG_OK) {
        *out = range;
        return XSEG_OK;
    }

free_all:
    if (state != NULL)
        free_state(state, granules);
    free(range);
    return status;
}

/* --- Streams of a range. --- */

static uint64_t load_stream_id(const struct xseg_known_stream *stream)
{
    return atomic_load_explicit(&stream->id, memory_order_acquire);
}

static bool is_stream_current(const struct xseg_range_stream *entry)
{
    return load_stream_id(entry->stream) == entry->id;
}

static void remove_stale_streams(struct xseg_range_state *state)
{
    size_t count = 0;

    for (size_t i = 0; i < state->stream_count; i++)
        if (is_stream_current(&state->stream[i]))
            state->stream[count++] = state->stream[i];
    state->stream_count = count;
}

/* Returns false on host allocation failure. */
static bool reserve_stream_entry(struct xseg_range_state *state)
{
    const size_t old_capacity = atomic_load_explicit(&state->stream_capacity, memory_order_relaxed);

    if (state->stream_count == old_capacity)
        remove_stale_streams(state);
    if (state->stream_count < old_capacity)
        return true;
    const size_t capacity = old_capacity == 0 ? 4 : 2 * old_capacity;
    struct xseg_range_stream *stream = realloc(state->stream, capacity * sizeof(*stream));

    if (stream == NULL)
        return false;
    state->stream = stream;
    atomic_store_explicit(&state->stream_capacity, capacity, memory_order_relaxed);
    return true;
}

bool xseg_range_add_stream(struct xseg_range_state *state, struct xseg_known_stream *stream)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (size_t i = state->stream_count; i-- > 0;)
        if (state->stream[i].stream == stream && is_stream_current(&state->stream[i]))
            return true;
    if (!reserve_stream_entry(state))
        return false;
    state->stream[state->stream_count++] =
        (struct xseg_range_stream){stream, load_stream_id(stream)};
    return true;
}

void xseg_range_mark_streams(const struct xseg_range_state *state)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (size_t i = 0; i < state->stream_count; i++)
        if (is_stream_current(&state->stream[i]))
            state->stream[i].stream->is_queried = true;
}

/* --- Runs of granules. --- */

xseg_status xseg_range_check_handle(const struct xseg_range *range)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return range->state == NULL ? xseg_fail(XSEG_ERR_ARGUMENT, "range has been released") : XSEG_OK;
}

xseg_status xseg_range_find_run(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                struct xseg_range_run *out)
{
    const xseg_status status = xseg_range_check_handle(range);

    if (status != XSEG_OK)
        return status;
    const struct xseg_segment *segment = &range->state->extent->segment;
    const uint64_t page_bytes = segment->granule_bytes;
    if (offset % page_bytes != 0 || bytes % page_bytes != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "size or offset is not a multiple of the page size, %" PRIu64
                         " bytes at offset %" PRIu64 "; the page size is %" PRIu64 " bytes",
                         bytes, offset, page_bytes);
    if (offset > segment->bytes || bytes > segment->bytes - offset)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "size exceeds the range, %" PRIu64 " bytes at offset %" PRIu64
                         "; the range has %" PRIu64 " bytes",
                         bytes, offset, segment->bytes);
    *out = (struct xseg_range_run){range->state, range->state->extent,
                                   (uint32_t)(offset / page_bytes), (uint32_t)(bytes / page_bytes)};
    return XSEG_OK;
}

static const char *const use_names[] = {
    [XSEG_ELASTIC_EMPTY] = "not committed",
    [XSEG_ELASTIC_ALLOCATED] = "committed",
    [XSEG_ELASTIC_UNMAPPING] = "pending unmap",
    [XSEG_ELASTIC_CLAIMED] = "claimed by another call",
};

xseg_status xseg_range_fail_use(const struct xseg_range_run *run, uint32_t granule,
                                const char *advice)
{
    const uint8_t use = run->extent->elastic->use[granule];

    XSEG_ASSERT((size_t)use < XSEG_COUNT_OF(use_names));
    return xseg_fail(use == XSEG_ELASTIC_CLAIMED ? XSEG_ERR_BUSY : XSEG_ERR_ARGUMENT,
                     "granule is %s, offset %" PRIu64 "; %s", use_names[use],
                     granule * run->extent->segment.granule_bytes,
                     use == XSEG_ELASTIC_CLAIMED ? "retry after that call has returned" : advice);
}

bool xseg_range_all_have_use(const struct xseg_range_run *run, enum xseg_elastic_use use,
                             uint32_t *first)
{
    const uint8_t *granule_use = run->extent->elastic->use;

    for (*first = run->first; *first < run->first + run->count; ++*first)
        if (granule_use[*first] != use)
            return false;
    return true;
}

xseg_status xseg_range_check_claims(const struct xseg_range_run *run)
{
    const uint8_t *use = run->extent->elastic->use;

    for (uint32_t granule = run->first; granule < run->first + run->count; granule++)
        if (use[granule] == XSEG_ELASTIC_CLAIMED)
            return xseg_range_fail_use(run, granule, "");
    return XSEG_OK;
}

/* --- Query. --- */

xseg_status xseg_ranges_query(struct xseg_range *range, struct xseg_range_info *out)
{
    struct xseg_device *device = range->device;

    xseg_mutex_lock(&device->memory_lock);
    const xseg_status status = xseg_range_check_handle(range);
    const struct xseg_range_state *state = range->state;
    if (status != XSEG_OK) {
        xseg_mutex_unlock(&device->memory_lock);
        return status;
    }
    const struct xseg_segment *segment = &state->extent->segment;
    const struct xseg_elastic *elastic = &state->elastic;
    const struct xseg_page_kind prepared = {segment->page_bytes, segment->properties, state};
    *out = (struct xseg_range_info){
        .struct_size = sizeof(*out),
        .base = (void *)(uintptr_t)segment->base, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = segment->bytes,
        .page_bytes = segment->page_bytes,
        .device = device->context.ordinal,
        .pool = state->pool,
        .limit_bytes = state->limit,
        .quota_bytes = elastic->quota,
        .committed_bytes = elastic->allocated * segment->granule_bytes,
        .pending_unmap_bytes = elastic->pending_unmaps * segment->granule_bytes,
        .mapped_bytes = atomic_load_explicit(&segment->mapped, memory_order_relaxed),
        .physical_bytes = state->pool->state == XSEG_POOL_PAUSED ? 0 : elastic->charged,
        .prepared_bytes = xseg_page_cache_kind_bytes(&device->page_cache, prepared),
        .recommits = state->recommits,
    };
    xseg_mutex_unlock(&device->memory_lock);
    return XSEG_OK;
}

/* --- Release. --- */

static bool has_references(const struct xseg_range_state *state)
{
    const uint32_t *holds = state->elastic.holds;

    for (uint32_t granule = 0; granule < state->extent->segment.granules; granule++)
        if (holds[granule] != 0)
            return true;
    return xseg_segment_has_retained(&state->extent->segment);
}

static bool has_claims(const struct xseg_range_state *state)
{
    return memchr(state->elastic.use, XSEG_ELASTIC_CLAIMED, state->extent->segment.granules) !=
           NULL;
}

/* Check that a range can be released once the events of its granules that are pending unmap are
 * complete.  The device memory lock is held. */
static xseg_status check_release(const struct xseg_range_state *state)
{
    const struct xseg_device *device = state->range->device;
    const struct xseg_elastic *elastic = &state->elastic;
    const uint64_t page_bytes = state->extent->segment.granule_bytes;

    if (elastic->allocated != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory of the range is committed, %" PRIu64 " bytes; decommit it first",
                         elastic->allocated * page_bytes);
    if (has_references(state))
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory of the range is held, pinned or exported; unhold, unpin and close "
                         "the exports first");
    if (state->extent->registered != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "addresses of the range are registered; xseg_unregister() them first");
    if (elastic->pending_unmaps != 0 && xseg_pending_captures(device->pending))
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory of the range is pending unmap during a capture, %" PRIu64
                         " bytes on device %d; release the range after the capture",
                         elastic->pending_unmaps * page_bytes, device->context.ordinal);
    return has_claims(state)
               ? xseg_fail(XSEG_ERR_BUSY,
                           "range is claimed by another call; retry after that call has returned")
               : XSEG_OK;
}

static void release_prepared_pages(struct xseg_range_state *state)
{
    const struct xseg_segment *segment = &state->extent->segment;
    const struct xseg_page_kind kind = {segment->page_bytes, segment->properties, state};

    while (xseg_page_cache_release_one(segment->page_cache, kind))
        ;
}

/* Destroy a range without mapped memory.  The device memory lock is held.  The caller releases the
 * pool after it has unlocked the device memory lock. */
static void destroy_range(struct xseg_range_state *state)
{
    struct xseg_device *device = state->range->device;
    const uint32_t granules = state->extent->segment.granules;

    state->elastic.quota = 0;
    xseg_elastic_set_bytes(&state->elastic, 0, 0, &device->unused_quota);
    release_prepared_pages(state);
    xseg_reclaim_destroy_elastic(state->extent);
    state->range->state = NULL;
    xseg_list_remove(&state->link);
    free_state(state, granules);
}

/* Wait until the memory that is pending unmap has been unmapped, then destroy the range.  The
 * device memory lock is held. */
static xseg_status release_range(struct xseg_range *range)
{
    struct xseg_range_state *state = range->state;
    struct xseg_segment *segment = &state->extent->segment;
    xseg_status status = xseg_pool_check_running(state->pool);

    if (status == XSEG_OK)
        status = check_release(state);
    if (status == XSEG_OK && state->elastic.pending_unmaps != 0)
        status = xseg_pending_unmap_wait(range->device, false);
    /* An observer that ran during the wait may have released the range, or committed memory. */
    if (status == XSEG_OK)
        status = xseg_range_check_handle(range);
    if (status == XSEG_OK)
        status = xseg_segment_retry_unknown(segment, 0, segment->granules);
    if (status == XSEG_OK)
        status = check_release(state);
    if (status != XSEG_OK)
        return status;
    if (state->elastic.pending_unmaps != 0)
        return xseg_fail(XSEG_ERR_DRIVER,
                         "memory of the range could not be unmapped, %" PRIu64
                         " bytes; release the range again",
                         state->elastic.pending_unmaps * segment->granule_bytes);
    destroy_range(state);
    return XSEG_OK;
}

xseg_status xseg_ranges_release(struct xseg_range *range)
{
    struct xseg_device *device = range->device;
    struct xseg_pool *pool = NULL;

    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = xseg_range_check_handle(range);
    if (status == XSEG_OK) {
        pool = range->state->pool;
        /* The driver calls of a lost device fail, so the state stays until the device closes. */
        if (xseg_context_is_lost(&device->context))
            range->state = NULL;
        else
            status = release_range(range);
    }
    xseg_mutex_unlock(&device->memory_lock);
    if (status == XSEG_OK)
        (void)xseg_release_pool(pool);
    return status;
}

uint64_t xseg_ranges_held_bytes(struct xseg_device *device)
{
    uint64_t bytes = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &device->ranges->states)
    {
        const struct xseg_range_state *state = XSEG_CONTAINER(node, struct xseg_range_state, link);
        const struct xseg_segment *segment = &state->extent->segment;

        for (uint32_t i = 0; i < segment->granules && state->elastic.pending_unmaps != 0; i++)
            if (state->elastic.batch[i] != 0 && state->elastic.holds[i] != 0)
                bytes += segment->granule_bytes;
    }
    return bytes;
}

void xseg_ranges_destroy_all(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR_SAFE(node, &device->ranges->states)
    {
        struct xseg_range_state *state = XSEG_CONTAINER(node, struct xseg_range_state, link);

        if (!xseg_context_is_lost(&device->context)) {
            if (state->elastic.pending_unmaps == 0 && state->extent->segment.unknown == 0)
                destroy_range(state);
            continue;
        }
        state->range->state = NULL;
        xseg_list_remove(&state->link);
        state->extent->elastic = NULL;
        free_state(state, state->extent->segment.granules);
    }
}
