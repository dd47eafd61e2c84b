/* SPDX-License-Identifier: MIT */
#include "src/core/inspect/published.h"

#include <stdio.h>

/* The least rows of a device's pools, whatever the number of devices. */
#define ROWS_LEAST 3u

_Static_assert(ROWS_LEAST *XSEG_PUBLISHED_DEVICES <= XSEG_PUBLISHED_POOLS,
               "each device has its rows");
_Static_assert(sizeof(((struct xseg_pool_body *)NULL)->label) <= XSEG_PUBLISHED_LABEL,
               "a label fits in");

static uint64_t rest_of(uint64_t whole, uint64_t part)
{
    return whole > part ? whole - part : 0;
}

/* --- Pools. --- */

static void add_arena(void *self, struct xseg_arena *arena)
{
    struct xseg_published_pool *row = self;
    const uint64_t live = xseg_counts_current(&arena->counts, XSEG_COUNT_ALLOCATED_BYTES);

    row->live += live;
    row->pending += rest_of(xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE_BYTES), live);
}

static enum xseg_published_kind kind_of(const struct xseg_pool *pool)
{
    return !pool->is_private  ? XSEG_PUBLISHED_DEFAULT
           : pool->is_guarded ? XSEG_PUBLISHED_GUARDED
           : pool->is_orphans ? XSEG_PUBLISHED_ENDED
                              : XSEG_PUBLISHED_PRIVATE;
}

static struct xseg_published_pool read_pool(struct xseg_pool_body *body)
{
    static const char *const labels[] = {
        [XSEG_PUBLISHED_DEFAULT] = "default",
        [XSEG_PUBLISHED_GUARDED] = "guarded",
        [XSEG_PUBLISHED_ENDED] = "ended",
    };
    struct xseg_published_pool row = {
        .ordinal = (int32_t)body->device->context.ordinal,
        .kind = kind_of(atomic_load(&body->pool)),
        .count = 1,
        .number = body->number,
        .reserved = atomic_load_explicit(&body->reserved, memory_order_relaxed),
        .limit = atomic_load_explicit(&body->limit, memory_order_relaxed),
    };

    xseg_pool_visit_arenas(body, add_arena, &row);
    row.cached = rest_of(row.reserved, row.live + row.pending);
    /* Memory may come between the two looks. */
    row.reserved_peak =
        xseg_max(row.reserved,
                 atomic_load_explicit(&body->reserved_peak[XSEG_STAT_ALL], memory_order_relaxed));
    (void)snprintf(row.label, sizeof(row.label), "%s",
                   row.kind == XSEG_PUBLISHED_PRIVATE ? body->label : labels[row.kind]);
    return row;
}

/* Add a pool to the row of those that have none of their own. */
static void add_to_others(struct xseg_published_pool *others, const struct xseg_published_pool *row)
{
    others->count++;
    others->live += row->live;
    others->pending += row->pending;
    others->cached += row->cached;
    others->reserved += row->reserved;
    others->reserved_peak = xseg_max(others->reserved_peak, others->reserved);
}

/* Note a pool in the device's rows, of which the last adds up the pools beyond them.  Memory of ended pools is shown
 * where there is any. */
static void note_pool(struct xseg_published_pool *rows, uint32_t most, uint32_t *count,
                      const struct xseg_published_pool *row)
{
    if (row->kind == XSEG_PUBLISHED_ENDED && row->reserved == 0)
        return;
    if (*count < most - 1) {
        rows[(*count)++] = *row;
        return;
    }
    struct xseg_published_pool *others = &rows[most - 1];
    if (*count < most) {
        *others = (struct xseg_published_pool){
            .ordinal = row->ordinal,
            .kind = XSEG_PUBLISHED_OTHERS,
            .limit = UINT64_MAX,
            .label = "others",
        };
        *count = most;
    }
    add_to_others(others, row);
}

/* Read the pools of a device.  Returns how many rows they have; *cached: what is cached in all of them */
static uint32_t read_pools(struct xseg_device *device, struct xseg_published_pool *rows,
                           uint32_t most, uint64_t *cached)
{
    uint32_t count = 0;

    *cached = 0;
    xseg_retire_begin_visit(device);
    for (struct xseg_pool_body *body = &device->pool_body; body != NULL;
         body = body == &device->pool_body ? atomic_load(&device->private_pools)
                                           : atomic_load(&body->next)) {
        const struct xseg_published_pool row = read_pool(body);

        *cached += row.cached;
        note_pool(rows, most, &count, &row);
    }
    xseg_retire_end_visit(device);
    return count;
}

/* --- Devices. --- */

static void read_device(struct xseg_device *device, struct xseg_published_device *row)
{
    const struct xseg_stat live =
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATED_BYTES);
    const struct xseg_stat active =
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_ACTIVE_BYTES);
    const struct xseg_stat reserved =
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_RESERVED_BYTES);

    *row = (struct xseg_published_device){
        .ordinal = (int32_t)device->context.ordinal,
        .live = live.current,
        .pending = rest_of(active.current, live.current),
        .reserved = reserved.current,
        .live_peak = live.peak,
        .reserved_peak = reserved.peak,
        .page_cache = xseg_pages_bytes(&device->pages),
        .stuck = xseg_leftovers_bytes(&device->leftovers),
        .paused = atomic_load_explicit(&device->evicted, memory_order_relaxed),
        .limit = xseg_device_limit(device),
        .total = device->context.total_bytes,
        .ooms = atomic_load_explicit(&device->ooms, memory_order_relaxed),
        .retries = atomic_load_explicit(&device->retries, memory_order_relaxed),
    };
}

void xseg_published_fill(struct xseg_allocator *allocator, struct xseg_published_frame *frame)
{
    struct xseg_device *open[XSEG_PUBLISHED_DEVICES];
    uint32_t count = 0;

    for (int i = 0; i < allocator->device_count && count < XSEG_PUBLISHED_DEVICES; i++) {
        open[count] = xseg_allocator_open_device(allocator, i);
        count += open[count] != NULL;
    }
    frame->device_count = count;
    frame->pool_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t most = XSEG_PUBLISHED_POOLS / count;

        XSEG_ASSERT(most >= ROWS_LEAST);
        read_device(open[i], &frame->devices[i]);
        frame->pool_count +=
            read_pools(open[i], &frame->pools[frame->pool_count], most, &frame->devices[i].cached);
    }
}
