/* SPDX-License-Identifier: MIT */
#include "src/core/inspect/figures.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/budget/budget.h"

/* Rows of a device, at most. */
#define ROWS_MOST (XSEG_POOL_FIGURES_OWN + XSEG_POOL_FIGURES_COMMON)

/* --- Pools. --- */

/* Make room for the rows of one more device. */
static xseg_status make_room(struct xseg_figures *figures)
{
    const size_t room = figures->pools + ROWS_MOST;
    struct xseg_figures_pool *rows = realloc(figures->pool, room * sizeof(*rows));

    if (rows == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the figures of %zu pools", room);
    figures->pool = rows;
    figures->pool_room = room;
    return XSEG_OK;
}

/* The rows of one device, while they are made. */
struct rows {
    struct xseg_figures *figures;
    int device;
    uint64_t now;
};

/* The name that the user has given to a pool; the label has it in quotes. */
static void copy_name(struct xseg_figures_pool *row, const char *label)
{
    const size_t length = strlen(label);

    memset(row->name, 0, sizeof(row->name));
    if (label[0] == '"')
        memcpy(row->name, label + 1, length - 2);
}

static void add_row(void *self, const struct xseg_pool_figures *figures)
{
    const struct rows *rows = self;
    struct xseg_figures_pool *row = &rows->figures->pool[rows->figures->pools++];

    XSEG_ASSERT(rows->figures->pools <= rows->figures->pool_room);
    row->of = figures->of;
    row->device = rows->device;
    row->number = figures->number;
    copy_name(row, figures->label);
    row->live = figures->live;
    row->pending = figures->pending;
    row->cached = figures->cached;
    row->reserved = figures->reserved;
    row->registered = figures->registered;
    row->limit = figures->limit;
    row->recent_peak = figures->pool == NULL ? XSEG_FIGURES_NONE
                                             : xseg_recent_peak_read(&figures->pool->recent,
                                                                     rows->now, row->reserved);
}

/* --- Devices and calls. --- */

static void read_dated(const struct xseg_dated *dated, uint64_t now, uint64_t *bytes, uint64_t *age)
{
    *bytes = *age = XSEG_FIGURES_NONE;
    (void)xseg_dated_read(dated, now, bytes, age);
}

static void read_budget(const struct xseg_device *device, struct xseg_figures_device *row)
{
    struct xseg_budget_device *budget = device->budget;

    row->share = row->borrowed = row->wanted = row->others = XSEG_FIGURES_NONE;
    row->asks = row->served = row->given = XSEG_FIGURES_NONE;
    row->has_part = XSEG_FIGURES_NONE;
    if (xseg_allocator_config(device->allocator)->share_budget[0] != '\0')
        row->has_part = xseg_budget_has_part(device);
    if (!xseg_budget_is_open(device))
        return;
    row->wanted = atomic_load_explicit(&budget->wanted, memory_order_relaxed);
    row->asks = atomic_load_explicit(&budget->asks, memory_order_relaxed);
    row->served = atomic_load_explicit(&budget->served, memory_order_relaxed);
    row->given = atomic_load_explicit(&budget->returned, memory_order_relaxed);
    row->share = atomic_load_explicit(&budget->share, memory_order_relaxed);
    if (row->share == UINT64_MAX)
        return;
    row->borrowed = xseg_budget_borrowed(device);
    const unsigned others = atomic_load_explicit(&budget->others, memory_order_relaxed);
    row->others = others == XSEG_BUDGET_UNKNOWN ? XSEG_FIGURES_NONE : others;
}

static void read_device(struct xseg_device *device, uint64_t now, struct xseg_figures_device *row)
{
    row->device = device->context.ordinal;
    row->total = device->context.total_bytes;
    row->limit = xseg_device_limit(device);
    row->page_cache = xseg_pages_bytes(&device->pages);
    row->stuck = xseg_leftovers_bytes(&device->leftovers);
    row->paused = atomic_load_explicit(&device->evicted, memory_order_relaxed);
    row->recent_peak = xseg_recent_peak_read(
        &device->recent, now, atomic_load_explicit(&device->reserved, memory_order_relaxed));
    read_dated(&device->stranded, now, &row->stranded, &row->stranded_age);
    read_dated(&device->used_elsewhere, now, &row->used_elsewhere, &row->used_elsewhere_age);
    row->ooms = atomic_load_explicit(&device->ooms, memory_order_relaxed);
    row->rejections = atomic_load_explicit(&device->rejections, memory_order_relaxed);
    row->retries = atomic_load_explicit(&device->retries, memory_order_relaxed);
    read_budget(device, row);
}

static void read_calls(struct xseg_driver *driver, struct xseg_figures *figures)
{
    struct xseg_driver_call counts[XSEG_DRIVER_CALLS_MOST];

    figures->calls = xseg_driver_call_counts(driver, counts, XSEG_DRIVER_CALLS_MOST);
    XSEG_ASSERT(figures->calls <= XSEG_DRIVER_CALLS_MOST);
    for (size_t i = 0; i < figures->calls; i++) {
        struct xseg_figures_call *row = &figures->call[i];

        row->name = counts[i].name;
        row->count = counts[i].count;
        row->failed = counts[i].failed;
        if (!xseg_driver_call_time(driver, i, &row->spent))
            row->spent = XSEG_FIGURES_NONE;
    }
}

static xseg_status add_device(struct xseg_figures *figures, struct xseg_device *device,
                              uint64_t now)
{
    struct rows rows = {.figures = figures, .device = device->context.ordinal, .now = now};
    struct xseg_figures_device *row = &figures->device[figures->devices];
    const xseg_status status = make_room(figures);

    if (status != XSEG_OK)
        return status;
    row->pools = xseg_pool_figures_visit(device, XSEG_POOL_FIGURES_OWN, add_row, &rows);
    read_device(device, now, row);
    figures->devices++;
    return XSEG_OK;
}

xseg_status xseg_figures_take(struct xseg_allocator *allocator, struct xseg_figures *out)
{
    const uint64_t now = xseg_clock_coarse(&allocator->clock);
    xseg_status status = XSEG_OK;

    *out = (struct xseg_figures){0};
    read_calls(allocator->driver, out);
    out->device = calloc((size_t)allocator->device_count, sizeof(*out->device));
    if (out->device == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the figures of %d devices",
                         allocator->device_count);
    for (int i = 0; status == XSEG_OK && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            status = add_device(out, device, now);
    }
    return status;
}

void xseg_figures_end(struct xseg_figures *figures)
{
    free(figures->device);
    free(figures->pool);
    *figures = (struct xseg_figures){0};
}
