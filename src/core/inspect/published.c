/* SPDX-License-Identifier: MIT */
#include "src/core/inspect/published.h"

#include <string.h>

#include "src/core/inspect/pool_figures.h"

/* The least rows of a device's pools, whatever the number of devices. */
#define ROWS_LEAST (XSEG_PUBLISHED_POOLS / XSEG_PUBLISHED_DEVICES)

_Static_assert(ROWS_LEAST >= XSEG_POOL_FIGURES_COMMON, "each device has its rows");
_Static_assert(XSEG_PUBLISHED_POOLS <= XSEG_POOL_FIGURES_OWN + XSEG_POOL_FIGURES_COMMON,
               "rows that would stay empty");
_Static_assert(sizeof(((struct xseg_pool *)NULL)->label) <= XSEG_PUBLISHED_LABEL,
               "a label fits in");

static uint64_t rest_of(uint64_t whole, uint64_t part)
{
    return whole > part ? whole - part : 0;
}

/* --- Pools. --- */

/* The rows of one device, while they are made. */
struct rows {
    struct xseg_published_frame *frame;
    struct xseg_published_device *device;
};

/* Where pools share a row, its peak is what it has now. */
static uint64_t peak_of(const struct xseg_pool_figures *figures)
{
    const struct xseg_pool *pool = figures->pool;

    /* Memory may come between the two looks. */
    return pool == NULL ? figures->reserved
                        : xseg_max(figures->reserved,
                                   atomic_load_explicit(&pool->reserved_peak[XSEG_STAT_ALL],
                                                        memory_order_relaxed));
}

static void add_row(void *self, const struct xseg_pool_figures *figures)
{
    static const enum xseg_published_kind kinds[] = {
        [XSEG_POOL_FIGURES_DEFAULT] = XSEG_PUBLISHED_DEFAULT,
        [XSEG_POOL_FIGURES_GUARDED] = XSEG_PUBLISHED_GUARDED,
        [XSEG_POOL_FIGURES_PRIVATE] = XSEG_PUBLISHED_PRIVATE,
        [XSEG_POOL_FIGURES_OTHERS] = XSEG_PUBLISHED_OTHERS,
        [XSEG_POOL_FIGURES_ENDED] = XSEG_PUBLISHED_ENDED,
    };
    const struct rows *rows = self;
    struct xseg_published_pool *row = &rows->frame->pools[rows->frame->pool_count++];

    XSEG_ASSERT(rows->frame->pool_count <= XSEG_PUBLISHED_POOLS);
    *row = (struct xseg_published_pool){
        .ordinal = rows->device->ordinal,
        .kind = kinds[figures->of],
        .count = figures->count,
        .number = figures->number,
        .live = figures->live,
        .pending = figures->pending,
        .cached = figures->cached,
        .reserved = figures->reserved,
        .reserved_peak = peak_of(figures),
        .registered = figures->registered,
        .limit = figures->limit,
    };
    memcpy(row->label, figures->label, strlen(figures->label));
    rows->device->cached += row->cached;
    rows->device->registered += row->registered;
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
        .rejections = atomic_load_explicit(&device->rejections, memory_order_relaxed),
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
        struct rows rows = {.frame = frame, .device = &frame->devices[i]};

        read_device(open[i], rows.device);
        (void)xseg_pool_figures_visit(
            open[i], XSEG_PUBLISHED_POOLS / count - XSEG_POOL_FIGURES_COMMON, add_row, &rows);
    }
}
