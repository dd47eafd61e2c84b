/* SPDX-License-Identifier: MIT */
#include "src/core/report/metrics_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_writer.h"
#include "src/base/string_util.h"
#include "src/core/budget/budget.h"
#include "src/core/report/usage.h"

/* --- Rows. --- */

#define NONE UINT64_MAX /* a value that is not known, or does not exist: its line is left out */

/* Values of a device. */
struct device_row {
    struct xseg_published_device usage;
    uint64_t stranded, stranded_age; /* bytes, nanoseconds; NONE before the first pass */
    uint64_t used_elsewhere, used_elsewhere_age; /* as stranded: by the last query of the driver */
    uint64_t pools;                              /* private pools */
    uint64_t has_part; /* whether the device takes part in a budget; NONE without budget_file */
    /* Bytes, and the number of other processes; NONE without a budget, or before the first round. */
    uint64_t share, above_share, wanted, others;
    uint64_t asks, served,
        given; /* counters: requests that waited, those that were served, bytes */
};

/* Values of a driver entry point. */
struct call_row {
    const char *name;
    uint64_t count, failed;
    uint64_t spent; /* nanoseconds; NONE: calls are not timed */
};

struct metrics {
    struct device_row *device;        /* open devices */
    struct xseg_published_pool *pool; /* of all of them, those of a device together */
    size_t devices, pools;
    struct call_row call[XSEG_DRIVER_CALLS_MAX]; /* entry points that were called */
    size_t calls;
};

/* --- Families. --- */

enum kind { GAUGE, COUNTER };
enum unit { NUMBER, NANOSECONDS }; /* of the figure; nanoseconds are written as seconds */

struct family {
    const char *name; /* without the _total of a counter */
    enum kind kind;
    enum unit unit;
    size_t offset; /* of the figure in its row */
    const char *help;
};

static const struct family of_pools[] = {
    {"xseg_allocated_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, live),
     "Size of allocated blocks, including blocks of paused pools, which have no physical memory."},
    {"xseg_pending_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, pending),
     "Size of freed blocks that another stream may still use."},
    {"xseg_cached_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, cached),
     "Reserved memory that is neither allocated nor pending."},
    {"xseg_reserved_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, reserved),
     "Size of mapped pages and classic segments: allocated, pending and cached memory."},
    {"xseg_reserved_peak_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, reserved_peak),
     "Peak of xseg_reserved_bytes since the pool was created or its peaks were reset. For the "
     "pools other and ended it is the current value."},
    {"xseg_registered_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, registered),
     "Memory in registrations (xseg_register()), counted once for each registration."},
    {"xseg_pool_limit_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, limit),
     "Maximum reserved memory of the pool. Absent if the pool has no limit."},
};

static const struct family of_devices[] = {
    {"xseg_device_bytes", GAUGE, NUMBER, offsetof(struct device_row, usage.total),
     "Total memory of the device."},
    {"xseg_limit_bytes", GAUGE, NUMBER, offsetof(struct device_row, usage.limit),
     "Maximum physical memory of the allocator on the device. Absent if there is no limit."},
    {"xseg_page_cache_bytes", GAUGE, NUMBER, offsetof(struct device_row, usage.page_cache),
     "Unmapped pages that are kept for later growths."},
    {"xseg_unreleased_bytes", GAUGE, NUMBER, offsetof(struct device_row, usage.unreleased),
     "Memory that the driver failed to release."},
    {"xseg_paused_bytes", GAUGE, NUMBER, offsetof(struct device_row, usage.paused),
     "Size of blocks and cached memory of paused pools, which have no physical memory."},
    {"xseg_device_reserved_peak_bytes", GAUGE, NUMBER,
     offsetof(struct device_row, usage.reserved_peak),
     "Peak of the reserved memory of all pools since the last reset of peaks."},
    {"xseg_fragmented_bytes", GAUGE, NUMBER, offsetof(struct device_row, stranded),
     "Cached memory on pages that also contain blocks in use, at the last inspection. Retained "
     "private pools are excluded."},
    {"xseg_fragmented_age_seconds", GAUGE, NANOSECONDS, offsetof(struct device_row, stranded_age),
     "Time since the inspection that measured xseg_fragmented_bytes."},
    {"xseg_used_by_others_bytes", GAUGE, NUMBER, offsetof(struct device_row, used_elsewhere),
     "Device memory in use outside this allocator, at the last query of the driver."},
    {"xseg_used_by_others_age_seconds", GAUGE, NANOSECONDS,
     offsetof(struct device_row, used_elsewhere_age),
     "Time since the query that measured xseg_used_by_others_bytes."},
    {"xseg_pools", GAUGE, NUMBER, offsetof(struct device_row, pools),
     "Number of private pools, except released pools without blocks."},
    {"xseg_out_of_memory", COUNTER, NUMBER, offsetof(struct device_row, usage.ooms),
     "Requests that failed for lack of memory or because of a limit."},
    {"xseg_rejections", COUNTER, NUMBER, offsetof(struct device_row, usage.rejections),
     "Requests that throw_on_cudamalloc_oom rejected."},
    {"xseg_retries", COUNTER, NUMBER, offsetof(struct device_row, usage.retries),
     "Requests that were retried after cached memory was released."},
    {"xseg_budget_member", GAUGE, NUMBER, offsetof(struct device_row, has_part),
     "Whether this process shares the device by a budget: 1, or 0 if the log reports why not. "
     "Absent without budget_file."},
    {"xseg_budget_share_bytes", GAUGE, NUMBER, offsetof(struct device_row, share),
     "Share of this process of the device. Absent without budget_file."},
    {"xseg_budget_above_share_bytes", GAUGE, NUMBER, offsetof(struct device_row, above_share),
     "Physical memory of this process above its share."},
    {"xseg_budget_demand_bytes", GAUGE, NUMBER, offsetof(struct device_row, wanted),
     "Memory that waiting requests of this process demand."},
    {"xseg_budget_other_members", GAUGE, NUMBER, offsetof(struct device_row, others),
     "Number of other processes that share the device."},
    {"xseg_budget_requests", COUNTER, NUMBER, offsetof(struct device_row, asks),
     "Requests that waited for memory of other processes."},
    {"xseg_budget_requests_served", COUNTER, NUMBER, offsetof(struct device_row, served),
     "Requests that waited for memory of other processes and were served during the wait."},
    {"xseg_budget_released_bytes", COUNTER, NUMBER, offsetof(struct device_row, given),
     "Memory that was released on the demand of other processes."},
};

static const struct family of_calls[] = {
    {"xseg_driver_calls", COUNTER, NUMBER, offsetof(struct call_row, count),
     "Calls of the driver function. Absent before the first call."},
    {"xseg_driver_call_failures", COUNTER, NUMBER, offsetof(struct call_row, failed),
     "Calls of the driver function that failed."},
    {"xseg_driver_call_seconds", COUNTER, NANOSECONDS, offsetof(struct call_row, spent),
     "Time in calls of the driver function. Absent for functions whose calls are too short to be "
     "timed."},
};

/* --- Reading. --- */

static uint64_t load(const atomic_uint_fast64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void read_dated(const struct xseg_timestamped *timestamped, uint64_t now, uint64_t *bytes,
                       uint64_t *age)
{
    *bytes = *age = NONE;
    (void)xseg_timestamped_read(timestamped, now, bytes, age);
}

static void read_budget(const struct xseg_device *device, struct device_row *row)
{
    struct xseg_budget_device *budget = device->budget;

    row->share = row->above_share = row->wanted = row->others = NONE;
    row->asks = row->served = row->given = row->has_part = NONE;
    if (xseg_allocator_config(device->allocator)->budget_file[0] != '\0')
        row->has_part = xseg_budget_has_part(device);
    if (!xseg_budget_is_open(device))
        return;
    row->wanted = load(&budget->wanted);
    row->asks = load(&budget->asks);
    row->served = load(&budget->served);
    row->given = load(&budget->returned);
    row->share = load(&budget->share);
    if (row->share == UINT64_MAX)
        return;
    row->above_share = xseg_budget_above_share(device);
    const unsigned others = atomic_load_explicit(&budget->others, memory_order_relaxed);
    row->others = others == XSEG_BUDGET_UNKNOWN ? NONE : others;
}

static void read_device(struct metrics *metrics, struct xseg_device *device, uint64_t now)
{
    struct device_row *row = &metrics->device[metrics->devices++];

    metrics->pools += xseg_usage_read(device, &row->usage, metrics->pool + metrics->pools,
                                      XSEG_USAGE_OWN, &row->pools);
    read_dated(&device->stranded, now, &row->stranded, &row->stranded_age);
    read_dated(&device->used_elsewhere, now, &row->used_elsewhere, &row->used_elsewhere_age);
    read_budget(device, row);
}

static void read_calls(struct xseg_driver *driver, struct metrics *metrics)
{
    struct xseg_driver_call counts[XSEG_DRIVER_CALLS_MAX];
    const size_t calls = xseg_driver_call_counts(driver, counts, XSEG_DRIVER_CALLS_MAX);

    XSEG_ASSERT(calls <= XSEG_DRIVER_CALLS_MAX);
    for (size_t i = 0; i < calls; i++) {
        struct call_row *row = &metrics->call[metrics->calls];

        if (counts[i].count == 0)
            continue;
        *row = (struct call_row){counts[i].name, counts[i].count, counts[i].failed, NONE};
        (void)xseg_driver_call_time(driver, i, &row->spent);
        metrics->calls++;
    }
}

static void metrics_fini(struct metrics *metrics)
{
    free(metrics->device);
    free(metrics->pool);
}

/* Read the metrics of an allocator.  The caller ends them, also after an error. */
static xseg_status metrics_init(struct metrics *metrics, struct xseg_allocator *allocator)
{
    const uint64_t now = xseg_clock_coarse(&allocator->clock);
    const size_t rows = XSEG_USAGE_OWN + XSEG_USAGE_COMMON;
    size_t open = 0;

    *metrics = (struct metrics){0};
    read_calls(allocator->driver, metrics);
    for (int i = 0; i < allocator->device_count; i++)
        open += xseg_allocator_open_device(allocator, i) != NULL;
    metrics->device = calloc(open + 1, sizeof(*metrics->device));
    metrics->pool = malloc((open * rows + 1) * sizeof(*metrics->pool));
    if (metrics->device == NULL || metrics->pool == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, metrics of %zu devices", open);
    for (int i = 0; i < allocator->device_count && metrics->devices < open; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            read_device(metrics, device, now);
    }
    return XSEG_OK;
}

/* --- Writing. --- */

/* The page, of which as much is written as there is room for. */
struct page {
    char *text;
    size_t bytes, length; /* length: of all of it, without a terminator */
};

static void put(struct page *page, const char *bytes, size_t count)
{
    if (page->length < page->bytes && count <= page->bytes - page->length)
        memcpy(page->text + page->length, bytes, count);
    page->length += count;
}

static void put_text(struct page *page, const char *text)
{
    put(page, text, strlen(text));
}

/* Write a number with at least so many digits. */
static void put_number(struct page *page, uint64_t number, unsigned min)
{
    char digits[20];
    size_t at = sizeof(digits);

    XSEG_ASSERT(min <= sizeof(digits));
    while (number != 0 || sizeof(digits) - at < min) {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    }
    put(page, digits + at, sizeof(digits) - at);
}

static const char *suffix_of(const struct family *family)
{
    return family->kind == COUNTER ? "_total" : "";
}

static void put_comment(struct page *page, const char *keyword, const struct family *family,
                        const char *text)
{
    put_text(page, "# ");
    put_text(page, keyword);
    put_text(page, family->name);
    put_text(page, suffix_of(family));
    put_text(page, " ");
    put_text(page, text);
    put_text(page, "\n");
}

static void begin_family(struct page *page, const struct family *family)
{
    put_comment(page, "HELP ", family, family->help);
    put_comment(page, "TYPE ", family, family->kind == COUNTER ? "counter" : "gauge");
}

static void put_line(struct page *page, const struct family *family, const char *labels,
                     uint64_t figure)
{
    const uint64_t second = family->unit == NANOSECONDS ? UINT64_C(1000000000) : 1;

    put_text(page, family->name);
    put_text(page, suffix_of(family));
    put_text(page, labels);
    put_number(page, figure / second, 1);
    if (family->unit == NANOSECONDS) {
        put(page, ".", 1);
        put_number(page, figure % second, 9);
    }
    put(page, "\n", 1);
}

/* --- Labels. --- */

/* The longest: two numbers, and a name all of whose bytes are escaped. */
#define LABEL_BYTES (64 + 2 * XSEG_POOL_NAME_MAX)

struct label {
    char text[LABEL_BYTES];
};

/* Write a name as the value of a label: the format escapes three characters. */
static void put_name(struct page *page, const char *name)
{
    const unsigned char *at = (const unsigned char *)name;

    for (size_t left = strlen(name), some; left > 0; left -= some, at += some) {
        const size_t measured = xseg_utf8_measure(at, left);

        some = measured == 0 ? 1 : measured;
        if (*at == '\\' || *at == '"' || *at == '\n')
            put(page, "\\", 1);
        if (*at == '\n')
            put(page, "n", 1);
        else if (measured == 0 || *at < ' ' || *at == 0x7f)
            put(page, "?", 1);
        else
            put(page, (const char *)at, some);
    }
}

static void label_pool(struct label *label, const struct xseg_published_pool *row)
{
    static const char *const kinds[] = {
        [XSEG_PUBLISHED_DEFAULT] = "default", [XSEG_PUBLISHED_PRIVATE] = "",
        [XSEG_PUBLISHED_GUARDED] = "guarded", [XSEG_PUBLISHED_ENDED] = "ended",
        [XSEG_PUBLISHED_OTHERS] = "other",
    };
    struct page page = {.text = label->text, .bytes = sizeof(label->text) - 1};
    char name[XSEG_PUBLISHED_LABEL];

    put_text(&page, "{device=\"");
    put_number(&page, (uint64_t)row->ordinal, 1);
    put_text(&page, "\",pool=\"");
    put_text(&page, kinds[row->kind]);
    if (row->kind == XSEG_PUBLISHED_PRIVATE)
        put_number(&page, row->number, 1);
    put_text(&page, "\",name=\"");
    if (row->label[0] == '"') { /* the user's name, in quotes */
        memcpy(name, row->label + 1, sizeof(name) - 1);
        name[strlen(row->label) - 2] = '\0';
        put_name(&page, name);
    }
    put_text(&page, "\"} ");
    XSEG_ASSERT(page.length <= page.bytes);
    label->text[page.length] = '\0';
}

static void label_device(struct label *label, const struct device_row *row)
{
    (void)snprintf(label->text, sizeof(label->text), "{device=\"%d\"} ", row->usage.ordinal);
}

static void label_call(struct label *label, const struct call_row *row)
{
    (void)snprintf(label->text, sizeof(label->text), "{call=\"%s\"} ", row->name);
}

/* --- The page. --- */

/* Rows of figures of one kind, with their labels. */
struct rows {
    const void *row;
    size_t count, row_bytes;
    const struct label *label;
};

static uint64_t figure_of(const struct rows *rows, size_t at, const struct family *family)
{
    uint64_t figure;

    memcpy(&figure, (const char *)rows->row + at * rows->row_bytes + family->offset,
           sizeof(figure));
    return figure;
}

static void put_families(struct page *page, const struct family *family, size_t families,
                         const struct rows *rows)
{
    for (size_t i = 0; i < families; i++) {
        bool is_begun = false;

        for (size_t at = 0; at < rows->count; at++) {
            const uint64_t figure = figure_of(rows, at, &family[i]);

            if (figure == NONE)
                continue;
            if (!is_begun)
                begin_family(page, &family[i]);
            is_begun = true;
            put_line(page, &family[i], rows->label[at].text, figure);
        }
    }
}

static void put_page(struct page *page, const struct metrics *metrics, struct label *labels)
{
    struct label *of_device = labels + metrics->pools, *of_call = of_device + metrics->devices;

    for (size_t i = 0; i < metrics->pools; i++)
        label_pool(&labels[i], &metrics->pool[i]);
    for (size_t i = 0; i < metrics->devices; i++)
        label_device(&of_device[i], &metrics->device[i]);
    for (size_t i = 0; i < metrics->calls; i++)
        label_call(&of_call[i], &metrics->call[i]);
    put_families(page, of_pools, XSEG_COUNT_OF(of_pools),
                 &(struct rows){metrics->pool, metrics->pools, sizeof(*metrics->pool), labels});
    put_families(
        page, of_devices, XSEG_COUNT_OF(of_devices),
        &(struct rows){metrics->device, metrics->devices, sizeof(*metrics->device), of_device});
    put_families(page, of_calls, XSEG_COUNT_OF(of_calls),
                 &(struct rows){metrics->call, metrics->calls, sizeof(metrics->call[0]), of_call});
}

/* Write the page; the text is "" if it does not fit. */
static xseg_status write_page(const struct metrics *metrics, char *text, size_t bytes,
                              size_t *needed)
{
    struct page page = {.text = text, .bytes = bytes};
    const size_t count = metrics->pools + metrics->devices + metrics->calls;
    struct label *labels = malloc((count + 1) * sizeof(*labels));

    if (labels == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, %zu labels of metrics", count);
    put_page(&page, metrics, labels);
    free(labels);
    if (bytes > 0)
        text[page.length < bytes ? page.length : 0] = '\0';
    *needed = page.length + 1;
    return XSEG_OK;
}

xseg_status xseg_metrics_text_write(struct xseg_allocator *allocator, char *text, size_t bytes,
                                    size_t *needed)
{
    struct metrics metrics;
    xseg_status status = metrics_init(&metrics, allocator);

    if (status == XSEG_OK)
        status = write_page(&metrics, text, bytes, needed);
    metrics_fini(&metrics);
    return status;
}

/* --- The file. --- */

/* The page as a string, which the caller frees; NULL on failure. */
static xseg_status make_page(struct xseg_allocator *allocator, char **out)
{
    struct metrics metrics;
    size_t needed = 0;
    xseg_status status = metrics_init(&metrics, allocator);

    *out = NULL;
    if (status == XSEG_OK)
        status = write_page(&metrics, NULL, 0, &needed);
    if (status == XSEG_OK && (*out = malloc(needed)) == NULL)
        status =
            xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, %zu bytes of metrics", needed);
    if (status == XSEG_OK)
        status = write_page(&metrics, *out, needed, &needed);
    metrics_fini(&metrics);
    return status;
}

/* Write all bytes.  Returns 0 or the errno. */
static int write_all(int file, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t some = write(file, bytes, count);

        if (some < 0 && errno != EINTR)
            return errno;
        if (some <= 0)
            continue;
        bytes += some;
        count -= (size_t)some;
    }
    return 0;
}

xseg_status xseg_metrics_file_write(struct xseg_allocator *allocator, const char *path)
{
    struct xseg_atomic_file place;
    char *page = NULL;
    xseg_status status = make_page(allocator, &page);

    if (status == XSEG_OK) {
        int error = xseg_atomic_file_open(&place, path);

        if (error == 0) {
            error = write_all(place.file, page, strlen(page));
            const int ended = xseg_atomic_file_close(&place, error == 0);

            error = error == 0 ? ended : error;
        }
        if (error != 0)
            status = xseg_fail(XSEG_ERR_FILE, "metrics file cannot be written, \"%s\" (%s)", path,
                               strerror(error));
    }
    free(page);
    return status;
}
