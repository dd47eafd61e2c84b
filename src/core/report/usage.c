/* SPDX-License-Identifier: MIT */
#include "src/core/report/usage.h"

#include <string.h>

#include "src/core/device/counters.h"
#include "src/core/register/register.h"

_Static_assert(sizeof(((struct xseg_pool *)NULL)->label) <= XSEG_PUBLISHED_LABEL, "a label fits");

/* The rows of a device while its pools are visited. */
struct reading {
    struct xseg_device *device;
    struct xseg_published_device *out;
    uint64_t registered; /* registered bytes of the device that no row has yet */
    struct xseg_published_pool
        *ring; /* [own]; the newest pools come first, and the last ones stay */
    uint32_t own, count;
    struct xseg_published_pool guarded, others, ended;
    bool has_guarded;
};

/* --- One row. --- */

static struct xseg_published_pool begin_row(const struct xseg_device *device,
                                            enum xseg_published_kind kind, const char *label)
{
    struct xseg_published_pool row = {
        .ordinal = (int32_t)device->context.ordinal,
        .kind = (uint32_t)kind,
        .count = kind == XSEG_PUBLISHED_OTHERS ? 0 : 1,
        .limit = UINT64_MAX,
    };

    memcpy(row.label, label, strlen(label));
    return row;
}

/* Registered bytes of a pool, at most what no other row has: memory may be registered between two reads. */
static uint64_t take_registered(struct reading *reading, const struct xseg_pool *pool)
{
    struct xseg_registrations *registrations = reading->device->allocator->registrations;

    if (reading->registered == 0)
        return 0;
    const uint64_t bytes = xseg_min(
        reading->registered,
        xseg_registrations_pool_bytes(registrations, reading->device->context.ordinal, pool));
    reading->registered -= bytes;
    return bytes;
}

static struct xseg_published_pool read_pool(struct reading *reading, struct xseg_pool *pool,
                                            enum xseg_published_kind kind, const char *label)
{
    const struct xseg_counters counters = xseg_counters_of_pool(pool);
    struct xseg_published_pool row = begin_row(reading->device, kind, label);
    struct xseg_published_device *out = reading->out;

    row.number = pool->number;
    row.live = counters.allocated;
    row.pending = counters.pending;
    row.cached = counters.cached;
    row.reserved = counters.reserved;
    row.limit = xseg_pool_limit(pool);
    /* Memory may be mapped between the two reads. */
    row.reserved_peak =
        xseg_max(row.reserved,
                 atomic_load_explicit(&pool->reserved_peak[XSEG_STAT_ALL], memory_order_relaxed));
    if (kind != XSEG_PUBLISHED_GUARDED)
        row.registered = take_registered(reading, pool->is_private ? pool : NULL);
    out->live += row.live;
    out->pending += row.pending;
    out->cached += row.cached;
    out->reserved += row.reserved;
    return row;
}

/* Add a row to one of several pools, which has no peak and no limit of its own. */
static void merge(struct xseg_published_pool *into, const struct xseg_published_pool *row)
{
    into->live += row->live;
    into->pending += row->pending;
    into->cached += row->cached;
    into->reserved += row->reserved;
    into->reserved_peak = into->reserved;
    into->registered += row->registered;
}

/* --- All rows. --- */

/* Pools come with the newest first: the last `own` keep their rows. */
static void add_private(struct reading *reading, const struct xseg_published_pool *row)
{
    struct xseg_published_pool *place =
        reading->own == 0 ? NULL : &reading->ring[reading->count % reading->own];

    if (reading->count++ >= reading->own) {
        merge(&reading->others, place == NULL ? row : place);
        reading->others.count++;
    }
    if (place != NULL)
        *place = *row;
}

static void add_pool(struct reading *reading, struct xseg_pool *pool)
{
    if (pool->is_guarded) {
        reading->guarded = read_pool(reading, pool, XSEG_PUBLISHED_GUARDED, "guarded");
        reading->has_guarded = true;
        return;
    }
    const struct xseg_published_pool row =
        read_pool(reading, pool, XSEG_PUBLISHED_PRIVATE, pool->label);
    if (xseg_pool_is_retired(pool) && row.live == 0 && row.pending == 0)
        merge(&reading->ended, &row);
    else
        add_private(reading, &row);
}

static void reverse(struct xseg_published_pool *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        const struct xseg_published_pool row = rows[i];

        rows[i] = rows[count - 1 - i];
        rows[count - 1 - i] = row;
    }
}

/* Put the rows of private pools into order, the oldest first.  Returns their number. */
static uint32_t sort_ring(struct reading *reading)
{
    const uint32_t newer = reading->own == 0 ? 0 : reading->count % reading->own;

    if (reading->count < reading->own) {
        reverse(reading->ring, reading->count);
        return reading->count;
    }
    reverse(reading->ring, newer);
    reverse(reading->ring + newer, reading->own - newer);
    return reading->own;
}

static void read_device(struct xseg_device *device, struct xseg_published_device *out)
{
    *out = (struct xseg_published_device){
        .ordinal = (int32_t)device->context.ordinal,
        .page_cache = xseg_page_cache_bytes(&device->page_cache),
        .unreleased = xseg_unreleased_bytes(&device->unreleased),
        .paused = atomic_load_explicit(&device->evicted, memory_order_relaxed),
        .limit = xseg_device_limit(device),
        .total = device->context.total_bytes,
        .ooms = atomic_load_explicit(&device->ooms, memory_order_relaxed),
        .rejections = atomic_load_explicit(&device->rejections, memory_order_relaxed),
        .retries = atomic_load_explicit(&device->retries, memory_order_relaxed),
        .registered =
            xseg_registrations_bytes(device->allocator->registrations, device->context.ordinal),
    };
}

static uint32_t write_rows(struct reading *reading, struct xseg_published_pool *rows)
{
    uint32_t count = 1;

    if (reading->has_guarded)
        rows[count++] = reading->guarded;
    const uint32_t privates = sort_ring(reading);
    memmove(rows + count, reading->ring, privates * sizeof(*rows));
    count += privates;
    if (reading->others.count != 0)
        rows[count++] = reading->others;
    reading->ended.registered += reading->registered;
    if (reading->ended.reserved != 0 || reading->ended.live != 0)
        rows[count++] = reading->ended;
    return count;
}

uint32_t xseg_usage_read(struct xseg_device *device, struct xseg_published_device *out,
                         struct xseg_published_pool *rows, uint32_t own, uint64_t *privates)
{
    struct reading reading = {
        .device = device,
        .out = out,
        .ring = rows + 2,
        .own = own,
        .others = begin_row(device, XSEG_PUBLISHED_OTHERS, "others"),
        .ended = begin_row(device, XSEG_PUBLISHED_ENDED, "ended"),
    };

    read_device(device, out);
    reading.registered = out->registered;
    rows[0] = read_pool(&reading, &device->pool, XSEG_PUBLISHED_DEFAULT, "default");
    /* A pool that is created during the visits is before these in the list, and is left out. */
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;)
        add_pool(&reading, pool);
    out->live_peak = xseg_totals_peak(&device->totals, XSEG_COUNT_ALLOCATED_BYTES, out->live);
    out->reserved_peak =
        xseg_totals_peak(&device->totals, XSEG_COUNT_RESERVED_BYTES, out->reserved);
    if (privates != NULL)
        *privates = reading.count;
    return write_rows(&reading, rows);
}
