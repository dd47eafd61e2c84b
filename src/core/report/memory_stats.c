/* SPDX-License-Identifier: MIT */
#include "src/core/report/memory_stats.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/core/device/device.h"
#include "src/core/register/register.h"

/* Minimum interval between two samples without a change. */
#define MIN_INTERVAL_NS 10000000u

/* Minimum ratio of that interval to the duration of a measurement. */
#define MIN_INTERVAL_RATIO 100u

/* Maximum number of samples that a thread publishes in one call. */
#define MAX_ROUNDS 4u

/* Field of /proc/PID/stat with the start time of the process.  Field 2 is the name in parentheses,
 * which can contain spaces and parentheses. */
#define START_TIME_FIELD 22

_Static_assert(sizeof(((struct xseg_pool *)NULL)->label) <= XSEG_PUBLISHED_LABEL, "a label fits");
_Static_assert(XSEG_PUBLISHED_POOLS / XSEG_PUBLISHED_DEVICES >= XSEG_MEMORY_STATS_COMMON_ROWS,
               "each device has its rows");

/* The state while one device is read.  Pools are visited from the youngest to the oldest. */
struct stats_reader {
    struct xseg_device *device;
    struct xseg_published_device *out;
    uint64_t registered;              /* registered bytes that no row includes yet */
    struct xseg_published_pool *ring; /* [private_rows], the last visited private pools */
    uint32_t private_rows, private_pools;
    struct xseg_published_pool guarded, others, retired;
    bool has_guarded;
};

/* --- One row. --- */

static struct xseg_published_pool init_row(const struct xseg_device *device,
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

/* Claim the registered bytes of a pool for its row, at most the bytes that no row includes yet,
 * because memory may be registered between two reads. */
static uint64_t claim_registered_bytes(struct stats_reader *reader, const struct xseg_pool *pool)
{
    struct xseg_registrations *registrations = reader->device->allocator->registrations;

    if (reader->registered == 0)
        return 0;
    const uint64_t bytes = xseg_min(
        reader->registered,
        xseg_registrations_pool_bytes(registrations, reader->device->context.ordinal, pool));
    reader->registered -= bytes;
    return bytes;
}

static struct xseg_published_pool read_pool(struct stats_reader *reader, struct xseg_pool *pool,
                                            enum xseg_published_kind kind, const char *label)
{
    const struct xseg_counters counters = xseg_counters_of_pool(pool);
    struct xseg_published_pool row = init_row(reader->device, kind, label);
    struct xseg_published_device *out = reader->out;

    row.id = pool->id;
    row.allocated = counters.allocated;
    row.pending = counters.pending;
    row.cached = counters.cached;
    row.reserved = counters.reserved;
    row.limit = atomic_load_explicit(&pool->limit, memory_order_relaxed);
    /* Memory may be mapped between the two reads. */
    row.reserved_peak =
        xseg_max(row.reserved,
                 atomic_load_explicit(&pool->reserved_peak[XSEG_STAT_ALL], memory_order_relaxed));
    if (kind != XSEG_PUBLISHED_GUARDED)
        row.registered = claim_registered_bytes(reader, pool->is_private ? pool : NULL);
    out->allocated += row.allocated;
    out->pending += row.pending;
    out->cached += row.cached;
    out->reserved += row.reserved;
    return row;
}

/* Add a row to a row of several pools, which has no limit and whose peak is its current value. */
static void add_to_row(struct xseg_published_pool *into, const struct xseg_published_pool *row)
{
    into->allocated += row->allocated;
    into->pending += row->pending;
    into->cached += row->cached;
    into->reserved += row->reserved;
    into->reserved_peak = into->reserved;
    into->registered += row->registered;
}

/* --- The rows of a device. --- */

/* Add a private pool to the ring.  A row that leaves the ring is younger than all rows in it and is
 * added to the others. */
static void add_private_row(struct stats_reader *reader, const struct xseg_published_pool *row)
{
    struct xseg_published_pool *slot =
        reader->private_rows == 0 ? NULL
                                  : &reader->ring[reader->private_pools % reader->private_rows];

    if (reader->private_pools++ >= reader->private_rows) {
        add_to_row(&reader->others, slot == NULL ? row : slot);
        reader->others.count++;
    }
    if (slot != NULL)
        *slot = *row;
}

static void read_private_pool(struct stats_reader *reader, struct xseg_pool *pool)
{
    if (pool->is_guarded) {
        reader->guarded = read_pool(reader, pool, XSEG_PUBLISHED_GUARDED, "guarded");
        reader->has_guarded = true;
        return;
    }
    const struct xseg_published_pool row =
        read_pool(reader, pool, XSEG_PUBLISHED_PRIVATE, pool->label);
    if (xseg_pool_is_retired(pool) && row.allocated == 0 && row.pending == 0)
        add_to_row(&reader->retired, &row);
    else
        add_private_row(reader, &row);
}

static void reverse_rows(struct xseg_published_pool *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count / 2; i++) {
        const struct xseg_published_pool row = rows[i];

        rows[i] = rows[count - 1 - i];
        rows[count - 1 - i] = row;
    }
}

/* Sort the ring from the oldest pool to the youngest.  Returns the number of rows. */
static uint32_t sort_private_rows(struct stats_reader *reader)
{
    const uint32_t wrapped =
        reader->private_rows == 0 ? 0 : reader->private_pools % reader->private_rows;

    if (reader->private_pools < reader->private_rows) {
        reverse_rows(reader->ring, reader->private_pools);
        return reader->private_pools;
    }
    reverse_rows(reader->ring, wrapped);
    reverse_rows(reader->ring + wrapped, reader->private_rows - wrapped);
    return reader->private_rows;
}

static void read_device_stats(struct xseg_device *device, struct xseg_published_device *out)
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

static uint32_t collect_rows(struct stats_reader *reader, struct xseg_published_pool *rows)
{
    uint32_t count = 1;

    if (reader->has_guarded)
        rows[count++] = reader->guarded;
    const uint32_t private_rows = sort_private_rows(reader);
    memmove(rows + count, reader->ring, private_rows * sizeof(*rows));
    count += private_rows;
    if (reader->others.count != 0)
        rows[count++] = reader->others;
    reader->retired.registered += reader->registered;
    if (reader->retired.reserved != 0 || reader->retired.allocated != 0)
        rows[count++] = reader->retired;
    return count;
}

uint32_t xseg_memory_stats_read(struct xseg_device *device, struct xseg_published_device *out,
                                struct xseg_published_pool *rows, uint32_t private_rows,
                                uint64_t *private_pools)
{
    struct stats_reader reader = {
        .device = device,
        .out = out,
        .ring = rows + 2,
        .private_rows = private_rows,
        .others = init_row(device, XSEG_PUBLISHED_OTHERS, "others"),
        .retired = init_row(device, XSEG_PUBLISHED_RETIRED, "retired"),
    };

    read_device_stats(device, out);
    reader.registered = out->registered;
    rows[0] = read_pool(&reader, &device->pool, XSEG_PUBLISHED_DEFAULT, "default");
    /* The list starts with the youngest pool, so a pool that is created during the visits is
     * omitted. */
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;)
        read_private_pool(&reader, pool);
    out->allocated_peak =
        xseg_totals_peak(&device->totals, XSEG_COUNT_ALLOCATED_BYTES, out->allocated);
    out->reserved_peak =
        xseg_totals_peak(&device->totals, XSEG_COUNT_RESERVED_BYTES, out->reserved);
    if (private_pools != NULL)
        *private_pools = reader.private_pools;
    return collect_rows(&reader, rows);
}

/* --- Publisher. --- */

void xseg_publisher_init(struct xseg_publisher *publisher)
{
    atomic_init(&publisher->is_busy, false);
    atomic_init(&publisher->is_open, false);
    atomic_init(&publisher->due_ns, 0);
    atomic_init(&publisher->changes, 0);
    publisher->region = (struct xseg_shared_region){.memory = NULL};
}

/* Start time of this process in clock ticks since boot; 0 if /proc is not available. */
static uint64_t read_start_ticks(void)
{
    const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    char text[1024];

    if (file < 0)
        return 0;
    const ssize_t bytes = read(file, text, sizeof(text) - 1);
    (void)close(file);
    text[bytes > 0 ? bytes : 0] = '\0';
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < START_TIME_FIELD; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

/* Number of times that memory was mapped, unmapped, denied or registered. */
static uint64_t count_changes(struct xseg_allocator *allocator)
{
    uint64_t changes =
        atomic_load_explicit(&allocator->registrations->changes, memory_order_relaxed);

    for (int i = 0; i < allocator->device_count; i++) {
        const struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            changes += atomic_load_explicit(&device->grown, memory_order_relaxed) +
                       atomic_load_explicit(&device->shrunk, memory_order_relaxed) +
                       atomic_load_explicit(&device->ooms, memory_order_relaxed) +
                       atomic_load_explicit(&device->rejections, memory_order_relaxed);
    }
    return changes;
}

void xseg_publisher_sample(struct xseg_allocator *allocator, struct xseg_published_sample *sample)
{
    struct xseg_device *open[XSEG_PUBLISHED_DEVICES];
    uint32_t count = 0;

    for (int i = 0; i < allocator->device_count && count < XSEG_PUBLISHED_DEVICES; i++) {
        open[count] = xseg_allocator_open_device(allocator, i);
        count += open[count] != NULL;
    }
    sample->device_count = count;
    sample->pool_count = 0;
    for (uint32_t i = 0; i < count; i++)
        sample->pool_count += xseg_memory_stats_read(
            open[i], &sample->devices[i], sample->pools + sample->pool_count,
            XSEG_PUBLISHED_POOLS / count - XSEG_MEMORY_STATS_COMMON_ROWS, NULL);
}

/* Write the sample that readers do not use, then make it the current one. */
static void write_sample(struct xseg_allocator *allocator, struct xseg_published *published)
{
    const uint64_t next = published->sequence + 1;
    struct xseg_published_sample *sample = &published->samples[next % 2];

    /* A reader that observes a part of the new sample also observes that `sequence` no longer
     * selects the sample that is overwritten. */
    atomic_thread_fence(memory_order_release);
    sample->time_ns = xseg_clock_system();
    xseg_publisher_sample(allocator, sample);
    __atomic_store_n(&published->sequence, next, __ATOMIC_RELEASE);
}

/* Publish a sample.  The caller has locked the publisher. */
static void publish_sample(struct xseg_allocator *allocator)
{
    struct xseg_publisher *publisher = allocator->publisher;
    const uint64_t changes = count_changes(allocator), start_ns = xseg_clock_system();

    if (publisher->region.memory == NULL)
        return;
    write_sample(allocator, publisher->region.memory);
    const uint64_t end_ns = xseg_clock_system();
    atomic_store(&publisher->changes, changes);
    atomic_store(&publisher->due_ns,
                 end_ns + xseg_max(MIN_INTERVAL_NS, MIN_INTERVAL_RATIO * (end_ns - start_ns)));
}

/* Create the region without a sample.  Returns 0 or an errno. */
static int create_region(struct xseg_publisher *publisher)
{
    const int error = xseg_shared_region_init(&publisher->region, XSEG_PUBLISHED_NAME,
                                              sizeof(struct xseg_published));

    if (error != 0)
        return error;
    struct xseg_published *published = publisher->region.memory;
    memcpy(published->magic, XSEG_PUBLISHED_MAGIC, sizeof(published->magic));
    published->version = XSEG_PUBLISHED_VERSION;
    published->pid = (int32_t)getpid();
    published->start_ticks = read_start_ticks();
    published->bytes = sizeof(*published);
    atomic_store(&publisher->is_open, true);
    return 0;
}

/* Lock the publisher: wait until no thread publishes, and prevent other threads from publishing. */
static void lock_publisher(struct xseg_publisher *publisher)
{
    while (atomic_exchange(&publisher->is_busy, true))
        (void)sched_yield();
}

void xseg_publisher_apply_config(struct xseg_allocator *allocator)
{
    struct xseg_publisher *publisher = allocator->publisher;
    int error = 0;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    lock_publisher(publisher);
    const bool is_enabled = xseg_allocator_config(allocator)->publish;
    if (is_enabled && publisher->region.memory == NULL)
        error = create_region(publisher);
    if (is_enabled)
        publish_sample(allocator);
    if (!is_enabled) {
        atomic_store(&publisher->is_open, false);
        xseg_shared_region_fini(&publisher->region);
    }
    atomic_store(&publisher->is_busy, false);
    if (error != 0)
        xseg_log_line(
            &allocator->log, XSEG_LOG_WARNING,
            "publish: shared statistics region cannot be created, %s; xseg top does not list "
            "this process",
            strerror(error));
}

void xseg_publisher_fini(struct xseg_publisher *publisher)
{
    lock_publisher(publisher);
    atomic_store(&publisher->is_open, false);
    xseg_shared_region_fini(&publisher->region);
    atomic_store(&publisher->is_busy, false);
}

static bool is_sample_due(struct xseg_allocator *allocator)
{
    struct xseg_publisher *publisher = allocator->publisher;

    if (!atomic_load(&publisher->is_open))
        return false;
    /* The fence pairs with the exchange of is_busy.  Either the publishing thread observes the
     * changes of this thread when it checks again, or this thread observes that the publisher is
     * not busy. */
    atomic_thread_fence(memory_order_seq_cst);
    return count_changes(allocator) != atomic_load(&publisher->changes) ||
           xseg_clock_system() >= atomic_load(&publisher->due_ns);
}

void xseg_publisher_run(struct xseg_allocator *allocator)
{
    struct xseg_publisher *publisher = allocator->publisher;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    /* The publishing thread checks for changes of other threads again, in a bounded number of
     * rounds. */
    for (unsigned round = 0; round < MAX_ROUNDS && is_sample_due(allocator); round++) {
        if (atomic_exchange(&publisher->is_busy, true))
            return;
        publish_sample(allocator);
        atomic_store(&publisher->is_busy, false);
    }
}
