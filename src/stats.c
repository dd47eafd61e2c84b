/* SPDX-License-Identifier: MIT */
#include "xseg/stats.h"

#include <stdlib.h>
#include <string.h>

#include "src/core/block/recorder.h"
#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "src/core/pool/share.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/register/register.h"
#include "src/core/report/explain.h"
#include "src/core/report/heap_copy.h"
#include "src/core/report/memory_stats.h"
#include "src/entry.h"

/* Find the device that `scope` selects, and its private pool or NULL. */
static xseg_status find_scope(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                              struct xseg_device **out, struct xseg_pool **pool)
{
    struct xseg_scope chosen = XSEG_SCOPE_ALL;

    XSEG_ENTRY_REQUIRE(scope != NULL, "scope is NULL");
    const xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    if (status != XSEG_OK)
        return status;
    if (chosen.one_stream)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "scope selects a stream; statistics are of a device or a private pool");
    *pool = chosen.pool;
    if (chosen.pool != NULL) {
        *out = chosen.pool->device;
        return XSEG_OK;
    }
    return xseg_allocator_device(allocator, chosen.device, out);
}

/* Add the members that modules above `device` count.  Host bytes require system calls, so they are
 * read only if the caller's structure has the member. */
static void add_module_statistics(struct xseg_device *device, bool has_host_bytes,
                                  struct xseg_statistics *stats)
{
    struct xseg_registrations *registrations = device->allocator->registrations;

    if (has_host_bytes)
        stats->host_bytes = xseg_device_host_bytes(device);
    stats->imported_bytes = xseg_sharing_imported(device->sharing);
    stats->registered_bytes = xseg_registrations_bytes(registrations, device->context.ordinal);
}

xseg_status xseg_stats_get(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                           struct xseg_statistics *out)
{
    struct xseg_device *device = NULL;
    struct xseg_pool *pool = NULL;
    struct xseg_statistics stats;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_OUT(out);
    xseg_status status = find_scope(allocator, scope, &device, &pool);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device != NULL);
    if (pool == NULL) {
        xseg_counters_read_device(device, &stats);
        add_module_statistics(
            device, out->struct_size > offsetof(struct xseg_statistics, host_bytes), &stats);
    } else {
        xseg_counters_read_pool(pool, &stats);
        stats.registered_bytes =
            xseg_registrations_pool_bytes(allocator->registrations, device->context.ordinal, pool);
    }
    XSEG_ENTRY_COPY_OUT(out, &stats);
    return XSEG_OK;
}

xseg_status xseg_stats_reset(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                             unsigned what)
{
    struct xseg_device *device = NULL;
    struct xseg_pool *pool = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(
        what != 0 && (what & ~(unsigned)(XSEG_RESET_PEAK | XSEG_RESET_ACCUMULATED)) == 0,
        "unknown statistics, %#x; use XSEG_RESET_PEAK and XSEG_RESET_ACCUMULATED", what);
    const xseg_status status = find_scope(allocator, scope, &device, &pool);
    if (status != XSEG_OK)
        return status;
    if (pool != NULL)
        xseg_counters_reset_pool(pool, what);
    else
        xseg_counters_reset_device(device, what);
    return XSEG_OK;
}

xseg_status xseg_driver_calls(struct xseg_allocator *allocator, struct xseg_driver_call *calls,
                              size_t capacity, size_t *count)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(calls != NULL || capacity == 0, "calls is NULL, capacity %zu", capacity);
    const size_t total = xseg_driver_call_counts(allocator->driver, calls, capacity);
    if (count != NULL)
        *count = total;
    return XSEG_OK;
}

/* Compute the free memory from the memory of other processes as of the last query of the driver,
 * and the current memory of this allocator. */
static void read_free_memory(const struct xseg_device *device, uint64_t now,
                             struct xseg_device_stats *stats)
{
    uint64_t used_elsewhere = 0, age = 0;

    stats->free_bytes = stats->free_age_ms = UINT64_MAX;
    if (!xseg_timestamped_read(&device->used_elsewhere, now, &used_elsewhere, &age))
        return;
    stats->free_bytes =
        stats->total_bytes - xseg_min(stats->total_bytes, used_elsewhere + stats->physical_bytes);
    stats->free_age_ms = age / UINT64_C(1000000);
}

static void read_device_statistics(struct xseg_allocator *allocator, int ordinal, uint64_t now,
                                   struct xseg_device_stats *stats)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);

    memset(stats, 0, sizeof(*stats));
    stats->device = ordinal;
    if (device == NULL)
        return;
    const struct xseg_counters counters = xseg_counters_of_device(device);
    const uint64_t page_cache = xseg_page_cache_bytes(&device->page_cache);
    stats->is_open = true;
    stats->is_lost = xseg_context_is_lost(&device->context);
    stats->total_bytes = device->context.total_bytes;
    stats->limit_bytes = xseg_device_limit(device);
    stats->physical_bytes =
        counters.reserved + page_cache + xseg_unreleased_bytes(&device->unreleased);
    stats->reserved_bytes = counters.reserved;
    stats->allocated_bytes = counters.allocated;
    stats->pending_bytes = counters.pending;
    stats->idle_bytes = counters.cached + page_cache;
    stats->free_min_bytes = xseg_device_free_min(device, xseg_allocator_config(allocator));
    stats->is_integrated = device->context.is_integrated;
    read_free_memory(device, now, stats);
}

xseg_status xseg_device_stats_get(struct xseg_allocator *allocator,
                                  struct xseg_device_stats *devices, size_t entry_bytes,
                                  size_t capacity, size_t *count)
{
    struct xseg_device_stats stats;

    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(devices != NULL || capacity == 0, "devices is NULL, capacity %zu", capacity);
    XSEG_ENTRY_REQUIRE(entry_bytes >= sizeof(size_t) && entry_bytes <= XSEG_ENTRY_STRUCT_MAX &&
                           entry_bytes % sizeof(size_t) == 0,
                       "entry_bytes is unknown, %zu; set it to sizeof(struct xseg_device_stats)",
                       entry_bytes);
    const uint64_t now = xseg_clock_coarse(&allocator->clock);
    const size_t total = (size_t)allocator->device_count;
    for (size_t i = 0; i < xseg_min(total, capacity); i++) {
        read_device_statistics(allocator, (int)i, now, &stats);
        stats.struct_size = xseg_min(entry_bytes, sizeof(stats));
        memcpy((char *)devices + entry_bytes * i, &stats, stats.struct_size);
    }
    if (count != NULL)
        *count = total;
    return XSEG_OK;
}

xseg_status xseg_for_each_mapping(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                  bool (*visit)(void *context, const struct xseg_mapping *mapping),
                                  void *context)
{
    struct xseg_mapping_list list = {0};
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(visit != NULL, "visit is NULL");
    xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    for (int i = 0; status == XSEG_OK && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_scope_device(allocator, &chosen, i);
        struct xseg_selection selection;

        if (device == NULL)
            continue;
        status = xseg_scope_select(device, &chosen, &selection);
        if (status == XSEG_OK)
            status = xseg_mapping_collect(device, selection.pool, selection.stream, &list);
    }
    for (size_t i = 0; status == XSEG_OK && i < list.count; i++)
        if (!visit(context, &list.mapping[i]))
            break;
    free(list.mapping);
    return status;
}

#define BATCH 128u /* blocks that are copied at a time, under the lock of their arena */

/* --- Walking. --- */

struct walk {
    struct xseg_selection selection;
    bool (*visit)(void *context, const struct xseg_block_info *block);
    void *context;
    uint64_t now;                  /* of recorder.h */
    struct xseg_block_info *batch; /* [BATCH] */
    bool ended;
};

static void visit_arena_blocks(struct walk *walk, struct xseg_arena *arena)
{
    uint64_t cursor = 0;
    size_t count;

    if (walk->selection.stream != NULL && walk->selection.stream != xseg_arena_stream(arena))
        return;
    while (!walk->ended && (count = xseg_block_info_list(arena, walk->selection.pool, &cursor,
                                                         walk->now, walk->batch, BATCH)) > 0)
        for (size_t i = 0; i < count && !walk->ended; i++)
            walk->ended = !walk->visit(walk->context, &walk->batch[i]);
}

xseg_status xseg_for_each_block(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                bool (*visit)(void *context, const struct xseg_block_info *block),
                                void *context)
{
    struct walk walk = {.visit = visit, .context = context};
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(visit != NULL, "visit is NULL");
    xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    if (status != XSEG_OK)
        return status;
    walk.now = xseg_origins_now_if_enabled(&allocator->clock, xseg_allocator_config(allocator));
    walk.batch = malloc(BATCH * sizeof(*walk.batch));
    if (walk.batch == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, blocks of a walk");
    xseg_history_labels_begin_reading(&allocator->history.labels);
    for (int i = 0; status == XSEG_OK && !walk.ended && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_scope_device(allocator, &chosen, i);

        if (device == NULL)
            continue;
        status = xseg_scope_select(device, &chosen, &walk.selection);
        if (status == XSEG_OK)
            XSEG_DEVICE_FOR_ARENAS(arena, device)
            {
                visit_arena_blocks(&walk, arena);
            }
    }
    xseg_history_labels_end_reading(&allocator->history.labels);
    free(walk.batch);
    return status;
}

/* --- Explaining. --- */

static const struct {
    const char *text;
    size_t sum; /* offset of the sum of this kind in struct xseg_explain_result */
} kinds[] = {
    [XSEG_REASON_ALLOCATED] = {"contains an allocated block",
                               offsetof(struct xseg_explain_result, allocated)},
    [XSEG_REASON_PENDING] = {"contains a freed block that another stream may still use",
                             offsetof(struct xseg_explain_result, pending)},
    [XSEG_REASON_CLAIMED] = {"contains a block that another thread is freeing",
                             offsetof(struct xseg_explain_result, claimed)},
    [XSEG_REASON_POOL] = {"idle, but in a private pool that is retained",
                          offsetof(struct xseg_explain_result, pool)},
    [XSEG_REASON_PINNED] = {"idle, but pinned", offsetof(struct xseg_explain_result, pinned)},
    [XSEG_REASON_CAPTURE] = {"idle, but a capture is active on the device",
                             offsetof(struct xseg_explain_result, capture)},
    [XSEG_REASON_STREAM] = {"idle, but the work of its stream has not completed",
                            offsetof(struct xseg_explain_result, stream)},
    [XSEG_REASON_KEEP] = {"idle, kept by keep_mb or keep_window_s",
                          offsetof(struct xseg_explain_result, keep)},
    [XSEG_REASON_DECAY] = {"idle, released by decay", offsetof(struct xseg_explain_result, decay)},
    [XSEG_REASON_POLICY] = {"idle, released only by a trim or under memory pressure",
                            offsetof(struct xseg_explain_result, policy)},
    [XSEG_REASON_EXPORTED] = {"idle, but exported", offsetof(struct xseg_explain_result, exported)},
    [XSEG_REASON_REGISTERED] = {"idle, but pinned by a registration",
                                offsetof(struct xseg_explain_result, registered)},
    [XSEG_REASON_ABOVE_SHARE] = {"idle, above the share of this process in the budget",
                                 offsetof(struct xseg_explain_result, above_share)},
};

const char *xseg_reason_message(enum xseg_reason_kind kind)
{
    return (unsigned)kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind].text : "unknown";
}

static void add_reason(struct xseg_explain_result *sums, const struct xseg_reason *reason)
{
    uint64_t *sum = (uint64_t *)(void *)((char *)sums + kinds[reason->kind].sum);

    *sum += reason->bytes;
    sums->reserved += reason->bytes;
    sums->in_allocated_blocks += reason->allocated_bytes;
    sums->single_page_padding += xseg_reason_single_page_padding(reason);
}

static bool is_reason_selected(const struct xseg_reason *reason,
                               const struct xseg_selection *selection)
{
    return (selection->pool == NULL || selection->pool == reason->pool ||
            selection->pool == reason->fallback_pool) &&
           (selection->stream == NULL || selection->stream->handle == reason->stream);
}

/* Remove the reasons from `first` on that are not selected, and sum the others up. */
static void filter_reasons(struct xseg_reason_list *reasons, size_t first,
                           const struct xseg_selection *selection, struct xseg_explain_result *sums)
{
    size_t selected = first;

    for (size_t i = first; i < reasons->count; i++)
        if (is_reason_selected(&reasons->list[i], selection)) {
            reasons->list[selected] = reasons->list[i];
            add_reason(sums, &reasons->list[selected++]);
        }
    reasons->count = selected;
}

static xseg_status explain_devices(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                   struct xseg_reason_list *reasons,
                                   struct xseg_explain_result *sums)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    xseg_status status = XSEG_OK;

    for (int i = 0; status == XSEG_OK && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_scope_device(allocator, scope, i);
        const size_t first = reasons->count;
        struct xseg_selection selection;

        if (device == NULL)
            continue;
        status = xseg_scope_select(device, scope, &selection);
        if (status == XSEG_OK)
            status = xseg_explain_device(device, config, reasons);
        if (status != XSEG_OK)
            break;
        filter_reasons(reasons, first, &selection, sums);
        if (scope->pool != NULL || scope->one_stream)
            continue;
        sums->page_cache += xseg_page_cache_bytes(&device->page_cache);
        sums->unreleased += xseg_unreleased_bytes(&device->unreleased);
    }
    return status;
}

xseg_status xseg_explain(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                         bool (*visit)(void *context, const struct xseg_reason *reason),
                         void *context, struct xseg_explain_result *out)
{
    struct xseg_explain_result sums = {sizeof(sums)};
    struct xseg_reason_list reasons = {0};
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    if (out != NULL)
        XSEG_ENTRY_OUT(out);
    xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    if (status == XSEG_OK)
        status = explain_devices(allocator, &chosen, &reasons, &sums);
    for (size_t i = 0; status == XSEG_OK && visit != NULL && i < reasons.count; i++)
        if (!visit(context, &reasons.list[i]))
            break;
    free(reasons.list);
    if (status == XSEG_OK && out != NULL)
        XSEG_ENTRY_COPY_OUT(out, &sums);
    return status;
}

xseg_status xseg_metrics(struct xseg_allocator *allocator, char *text, size_t bytes, size_t *needed)
{
    size_t total = 0;

    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(text != NULL || bytes == 0, "text is NULL, bytes %zu", bytes);
    const xseg_status status = xseg_metrics_write_text(allocator, text, bytes, &total);
    if (status == XSEG_OK && needed != NULL)
        *needed = total;
    return status;
}

xseg_status xseg_metrics_write(struct xseg_allocator *allocator, const char *path)
{
    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(path != NULL && path[0] != '\0', "path is NULL or empty");
    return xseg_metrics_write_file(allocator, path);
}
