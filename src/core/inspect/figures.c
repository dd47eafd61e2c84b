/* SPDX-License-Identifier: MIT */
#include "src/core/inspect/figures.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

/* Rows of a device, at most, that are no user's private pool. */
#define OTHER_ROWS 4u

/* --- Pools. --- */

static void add_arena(void *self, struct xseg_arena *arena)
{
    struct xseg_pool_figures *row = self;
    const struct xseg_counts *counts = &arena->counts;

    row->live += xseg_counts_current(counts, XSEG_COUNT_ALLOCATED_BYTES);
    row->pending += xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE_BYTES).current;
    row->cached += xseg_arena_cached_bytes(arena);
    row->reserved += xseg_counts_current(counts, XSEG_COUNT_RESERVED_BYTES);
}

/* Add a row with nothing in it.  There is room. */
static struct xseg_pool_figures *add_row(struct xseg_figures *figures, enum xseg_figures_of of,
                                         int device)
{
    struct xseg_pool_figures *row = &figures->pool[figures->pools++];

    XSEG_ASSERT(figures->pools <= figures->pool_room);
    memset(row, 0, sizeof(*row));
    row->of = of;
    row->device = device;
    row->recent_peak = row->limit = XSEG_FIGURES_NONE;
    return row;
}

/* The name that the user has given to a pool; the label has it in quotes. */
static void copy_name(struct xseg_pool_figures *row, const struct xseg_pool_body *body)
{
    const size_t length = strnlen(body->label, sizeof(body->label));

    if (length > 2 && body->label[0] == '"')
        memcpy(row->name, body->label + 1, length - 2);
}

static void fill_row(struct xseg_pool_figures *row, struct xseg_pool_body *body, uint64_t now)
{
    xseg_pool_visit_arenas(body, add_arena, row);
    row->recent_peak = xseg_recent_peak_read(
        &body->recent, now, atomic_load_explicit(&body->reserved, memory_order_relaxed));
    row->limit = atomic_load_explicit(&body->limit, memory_order_relaxed);
}

/* Whether a body is a user's private pool, and not one of the device's own. */
static bool is_users(const struct xseg_pool_body *body)
{
    const struct xseg_pool *pool = body->pool;

    return !pool->is_guarded && !pool->is_orphans;
}

static size_t count_pools(const struct xseg_pool_body *newest)
{
    size_t count = 0;

    for (const struct xseg_pool_body *body = newest; body != NULL; body = atomic_load(&body->next))
        count += is_users(body);
    return count;
}

/* Make room for the rows of one more device. */
static xseg_status make_room(struct xseg_figures *figures, size_t pools)
{
    const size_t room = figures->pools + OTHER_ROWS + xseg_min(pools, XSEG_FIGURES_POOLS);
    struct xseg_pool_figures *rows = realloc(figures->pool, room * sizeof(*rows));

    if (rows == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the figures of %zu pools",
                         pools);
    figures->pool = rows;
    figures->pool_room = room;
    return XSEG_OK;
}

/* The rows of one device, while they are made. */
struct rows {
    struct xseg_figures *figures;
    uint64_t now;
    /* Of the user's private pools, in the order of the list, which has the newest first: how many share figures, and
     * how many behind them have their own. */
    size_t sharing, own;
    struct xseg_pool_figures other, ended; /* what pools share */
};

static void read_pool(struct rows *rows, struct xseg_pool_body *body)
{
    const int ordinal = body->device->context.ordinal;

    if (body->pool->is_orphans) {
        xseg_pool_visit_arenas(body, add_arena, &rows->ended);
    } else if (body->pool->is_guarded) {
        fill_row(add_row(rows->figures, XSEG_FIGURES_GUARDED, ordinal), body, rows->now);
    } else if (rows->sharing > 0 || rows->own == 0) {
        rows->sharing -= rows->sharing > 0;
        xseg_pool_visit_arenas(body, add_arena, &rows->other);
    } else {
        struct xseg_pool_figures *row = add_row(rows->figures, XSEG_FIGURES_PRIVATE, ordinal);

        rows->own--;
        row->number = body->number;
        copy_name(row, body);
        fill_row(row, body, rows->now);
    }
}

/* Add a row that pools share, if they have anything. */
static void add_shared(struct xseg_figures *figures, enum xseg_figures_of of, int device,
                       const struct xseg_pool_figures *sums)
{
    struct xseg_pool_figures *row;

    if (sums->reserved == 0 && sums->live == 0)
        return;
    row = add_row(figures, of, device);
    row->live = sums->live;
    row->pending = sums->pending;
    row->cached = sums->cached;
    row->reserved = sums->reserved;
}

/* Rows of all pools, of the private ones from `newest` on: those that are made meanwhile come before it in the list. */
static void read_pools(struct xseg_figures *figures, struct xseg_device *device,
                       struct xseg_pool_body *newest, size_t count, uint64_t now)
{
    const int ordinal = device->context.ordinal;
    const size_t own = xseg_min(count, XSEG_FIGURES_POOLS);
    struct rows rows = {.figures = figures, .now = now, .sharing = count - own, .own = own};

    fill_row(add_row(figures, XSEG_FIGURES_DEFAULT, ordinal), &device->pool_body, now);
    for (struct xseg_pool_body *body = newest; body != NULL; body = atomic_load(&body->next))
        read_pool(&rows, body);
    add_shared(figures, XSEG_FIGURES_OTHER, ordinal, &rows.other);
    add_shared(figures, XSEG_FIGURES_ENDED, ordinal, &rows.ended);
}

/* --- Devices and calls. --- */

static void read_dated(const struct xseg_dated *dated, uint64_t now, uint64_t *bytes, uint64_t *age)
{
    *bytes = *age = XSEG_FIGURES_NONE;
    (void)xseg_dated_read(dated, now, bytes, age);
}

static void read_device(struct xseg_device *device, uint64_t now, struct xseg_device_figures *row)
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
}

static void read_calls(struct xseg_driver *driver, struct xseg_figures *figures)
{
    struct xseg_driver_call counts[XSEG_DRIVER_CALLS_MOST];

    figures->calls = xseg_driver_call_counts(driver, counts, XSEG_DRIVER_CALLS_MOST);
    XSEG_ASSERT(figures->calls <= XSEG_DRIVER_CALLS_MOST);
    for (size_t i = 0; i < figures->calls; i++) {
        struct xseg_call_figures *row = &figures->call[i];

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
    struct xseg_device_figures *row = &figures->device[figures->devices];

    xseg_retire_begin_visit(device);
    struct xseg_pool_body *newest = atomic_load(&device->private_pools);
    const size_t count = count_pools(newest);
    const xseg_status status = make_room(figures, count);
    if (status == XSEG_OK) {
        read_pools(figures, device, newest, count, now);
        read_device(device, now, row);
        row->pools = count;
        figures->devices++;
    }
    xseg_retire_end_visit(device);
    return status;
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
