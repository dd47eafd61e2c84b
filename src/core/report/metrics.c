/* SPDX-License-Identifier: MIT */
#include "src/core/report/memory_stats.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_writer.h"
#include "src/base/string_util.h"
#include "src/core/budget/budget.h"

/* --- Values. --- */

#define NO_VALUE UINT64_MAX /* the value is absent, and its line omitted */

/* Values of a device. */
struct device_row {
    struct xseg_published_device memory;
    uint64_t pools;                      /* number of private pools */
    uint64_t fragmented, fragmented_age; /* bytes, ns; NO_VALUE before the first inspection */
    uint64_t used_by_others;             /* bytes; NO_VALUE before the first query */
    uint64_t used_by_others_age;         /* ns */
    uint64_t is_budget_member;           /* 0 or 1; NO_VALUE without budget_file */
    uint64_t share, above_share, demand; /* bytes; NO_VALUE before the first round */
    uint64_t other_members;              /* number; NO_VALUE before the first round */
    uint64_t requests, served_requests;  /* requests that waited for memory of the budget */
    uint64_t released;                   /* bytes */
};

/* Values of a driver entry point. */
struct call_row {
    const char *name;
    uint64_t count, failed;
    uint64_t time_ns; /* NO_VALUE: calls are not timed */
};

struct metrics {
    struct device_row *devices;        /* [device_count], open devices */
    struct xseg_published_pool *pools; /* [pool_count]; the pools of a device are adjacent */
    size_t device_count, pool_count;
    struct call_row calls[XSEG_DRIVER_CALLS_MAX]; /* [call_count], entry points that were called */
    size_t call_count;
};

/* --- Families. --- */

enum kind { GAUGE, COUNTER };
enum unit { NUMBER, NANOSECONDS }; /* nanoseconds are written as seconds */

struct family {
    const char *name; /* without the _total of a counter */
    enum kind kind;
    enum unit unit;
    size_t offset; /* of the value in its row */
    const char *help;
};

static const struct family pool_families[] = {
    {"xseg_allocated_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, allocated),
     "Size of allocated blocks, including blocks of paused pools, which have no physical memory."},
    {"xseg_pending_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, pending),
     "Size of freed blocks that another stream may still use."},
    {"xseg_cached_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, cached),
     "Reserved memory that is neither allocated nor pending."},
    {"xseg_reserved_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, reserved),
     "Size of mapped pages and classic segments: allocated, pending and cached memory."},
    {"xseg_reserved_peak_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, reserved_peak),
     "Peak of xseg_reserved_bytes since the pool was created or its peaks were reset. For the "
     "pools other and retired it is the current value."},
    {"xseg_registered_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, registered),
     "Memory in registrations (xseg_register()), counted once for each registration."},
    {"xseg_pool_limit_bytes", GAUGE, NUMBER, offsetof(struct xseg_published_pool, limit),
     "Maximum reserved memory of the pool. Absent if the pool has no limit."},
};

static const struct family device_families[] = {
    {"xseg_device_bytes", GAUGE, NUMBER, offsetof(struct device_row, memory.total),
     "Total memory of the device."},
    {"xseg_limit_bytes", GAUGE, NUMBER, offsetof(struct device_row, memory.limit),
     "Maximum physical memory of the allocator on the device. Absent if there is no limit."},
    {"xseg_page_cache_bytes", GAUGE, NUMBER, offsetof(struct device_row, memory.page_cache),
     "Unmapped pages that are kept for later growths."},
    {"xseg_unreleased_bytes", GAUGE, NUMBER, offsetof(struct device_row, memory.unreleased),
     "Memory that the driver failed to release."},
    {"xseg_paused_bytes", GAUGE, NUMBER, offsetof(struct device_row, memory.paused),
     "Size of blocks and cached memory of paused pools, which have no physical memory."},
    {"xseg_device_reserved_peak_bytes", GAUGE, NUMBER,
     offsetof(struct device_row, memory.reserved_peak),
     "Peak of the reserved memory of all pools since the last reset of peaks."},
    {"xseg_fragmented_bytes", GAUGE, NUMBER, offsetof(struct device_row, fragmented),
     "Cached memory on pages that also contain blocks in use, at the last inspection. Retained "
     "private pools are excluded."},
    {"xseg_fragmented_age_seconds", GAUGE, NANOSECONDS, offsetof(struct device_row, fragmented_age),
     "Time since the inspection that measured xseg_fragmented_bytes."},
    {"xseg_used_by_others_bytes", GAUGE, NUMBER, offsetof(struct device_row, used_by_others),
     "Device memory in use outside this allocator, at the last query of the driver."},
    {"xseg_used_by_others_age_seconds", GAUGE, NANOSECONDS,
     offsetof(struct device_row, used_by_others_age),
     "Time since the query that measured xseg_used_by_others_bytes."},
    {"xseg_pools", GAUGE, NUMBER, offsetof(struct device_row, pools),
     "Number of private pools, except released pools without blocks."},
    {"xseg_out_of_memory", COUNTER, NUMBER, offsetof(struct device_row, memory.ooms),
     "Requests that failed for lack of memory or because of a limit."},
    {"xseg_rejections", COUNTER, NUMBER, offsetof(struct device_row, memory.rejections),
     "Requests that throw_on_cudamalloc_oom rejected."},
    {"xseg_retries", COUNTER, NUMBER, offsetof(struct device_row, memory.retries),
     "Requests that were retried after cached memory was released."},
    {"xseg_budget_member", GAUGE, NUMBER, offsetof(struct device_row, is_budget_member),
     "Whether this process shares the device by a budget: 1, or 0 if the log reports why not. "
     "Absent without budget_file."},
    {"xseg_budget_share_bytes", GAUGE, NUMBER, offsetof(struct device_row, share),
     "Share of this process of the device. Absent without budget_file."},
    {"xseg_budget_above_share_bytes", GAUGE, NUMBER, offsetof(struct device_row, above_share),
     "Physical memory of this process above its share."},
    {"xseg_budget_demand_bytes", GAUGE, NUMBER, offsetof(struct device_row, demand),
     "Memory that waiting requests of this process demand."},
    {"xseg_budget_other_members", GAUGE, NUMBER, offsetof(struct device_row, other_members),
     "Number of other processes that share the device."},
    {"xseg_budget_requests", COUNTER, NUMBER, offsetof(struct device_row, requests),
     "Requests that waited for memory of other processes."},
    {"xseg_budget_requests_served", COUNTER, NUMBER, offsetof(struct device_row, served_requests),
     "Requests that waited for memory of other processes and were served during the wait."},
    {"xseg_budget_released_bytes", COUNTER, NUMBER, offsetof(struct device_row, released),
     "Memory that was released on the demand of other processes."},
};

static const struct family call_families[] = {
    {"xseg_driver_calls", COUNTER, NUMBER, offsetof(struct call_row, count),
     "Calls of the driver function. Absent before the first call."},
    {"xseg_driver_call_failures", COUNTER, NUMBER, offsetof(struct call_row, failed),
     "Calls of the driver function that failed."},
    {"xseg_driver_call_seconds", COUNTER, NANOSECONDS, offsetof(struct call_row, time_ns),
     "Time in calls of the driver function. Absent for functions whose calls are too short to be "
     "timed."},
};

/* --- Reading values. --- */

static uint64_t load_relaxed(const atomic_uint_fast64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void read_timestamped(const struct xseg_timestamped *timestamped, uint64_t now,
                             uint64_t *bytes, uint64_t *age)
{
    *bytes = *age = NO_VALUE;
    (void)xseg_timestamped_read(timestamped, now, bytes, age);
}

static void read_budget(const struct xseg_device *device, struct device_row *row)
{
    struct xseg_budget_device *budget = device->budget;

    row->share = row->above_share = row->demand = row->other_members = NO_VALUE;
    row->requests = row->served_requests = row->released = row->is_budget_member = NO_VALUE;
    if (xseg_allocator_config(device->allocator)->budget_file[0] != '\0')
        row->is_budget_member = xseg_budget_is_member(device);
    if (!xseg_budget_is_open(device))
        return;
    row->demand = load_relaxed(&budget->demand);
    row->requests = load_relaxed(&budget->requests);
    row->served_requests = load_relaxed(&budget->served);
    row->released = load_relaxed(&budget->released);
    row->share = load_relaxed(&budget->share);
    if (row->share == UINT64_MAX)
        return;
    row->above_share = xseg_budget_above_share(device);
    const unsigned others = atomic_load_explicit(&budget->other_members, memory_order_relaxed);
    row->other_members = others == XSEG_BUDGET_UNKNOWN ? NO_VALUE : others;
}

static void read_device(struct metrics *metrics, struct xseg_device *device, uint64_t now)
{
    struct device_row *row = &metrics->devices[metrics->device_count++];

    metrics->pool_count +=
        xseg_memory_stats_read(device, &row->memory, metrics->pools + metrics->pool_count,
                               XSEG_MEMORY_STATS_PRIVATE_ROWS, &row->pools);
    read_timestamped(&device->fragmented, now, &row->fragmented, &row->fragmented_age);
    read_timestamped(&device->used_elsewhere, now, &row->used_by_others, &row->used_by_others_age);
    read_budget(device, row);
}

static void read_calls(struct metrics *metrics, struct xseg_driver *driver)
{
    struct xseg_driver_call counts[XSEG_DRIVER_CALLS_MAX];
    const size_t calls = xseg_driver_call_counts(driver, counts, XSEG_DRIVER_CALLS_MAX);

    XSEG_ASSERT(calls <= XSEG_DRIVER_CALLS_MAX);
    for (size_t i = 0; i < calls; i++) {
        struct call_row *row = &metrics->calls[metrics->call_count];

        if (counts[i].count == 0)
            continue;
        *row = (struct call_row){counts[i].name, counts[i].count, counts[i].failed, NO_VALUE};
        (void)xseg_driver_call_time(driver, i, &row->time_ns);
        metrics->call_count++;
    }
}

static void metrics_fini(struct metrics *metrics)
{
    free(metrics->devices);
    free(metrics->pools);
}

/* Read the metrics of an allocator.  The caller finalizes them, also after an error. */
static xseg_status metrics_init(struct metrics *metrics, struct xseg_allocator *allocator)
{
    const uint64_t now = xseg_clock_coarse(&allocator->clock);
    const size_t rows = XSEG_MEMORY_STATS_PRIVATE_ROWS + XSEG_MEMORY_STATS_COMMON_ROWS;
    size_t open = 0;

    *metrics = (struct metrics){0};
    read_calls(metrics, allocator->driver);
    for (int i = 0; i < allocator->device_count; i++)
        open += xseg_allocator_open_device(allocator, i) != NULL;
    metrics->devices = calloc(open + 1, sizeof(*metrics->devices));
    metrics->pools = malloc((open * rows + 1) * sizeof(*metrics->pools));
    if (metrics->devices == NULL || metrics->pools == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, metrics of %zu devices", open);
    for (int i = 0; i < allocator->device_count && metrics->device_count < open; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            read_device(metrics, device, now);
    }
    return XSEG_OK;
}

/* --- Formatting. --- */

/* A text that is stored as far as it fits; its complete length is counted. */
struct output {
    char *text;
    size_t bytes, length; /* size of the buffer; length of the complete text, without terminator */
};

static void append_bytes(struct output *output, const char *bytes, size_t count)
{
    if (output->length < output->bytes && count <= output->bytes - output->length)
        memcpy(output->text + output->length, bytes, count);
    output->length += count;
}

static void append_string(struct output *output, const char *text)
{
    append_bytes(output, text, strlen(text));
}

/* Append a number with at least `min` digits. */
static void append_number(struct output *output, uint64_t number, unsigned min)
{
    char digits[20];
    size_t first = sizeof(digits);

    XSEG_ASSERT(min <= sizeof(digits));
    while (number != 0 || sizeof(digits) - first < min) {
        digits[--first] = (char)('0' + number % 10);
        number /= 10;
    }
    append_bytes(output, digits + first, sizeof(digits) - first);
}

static const char *name_suffix(const struct family *family)
{
    return family->kind == COUNTER ? "_total" : "";
}

static void append_comment(struct output *output, const char *keyword, const struct family *family,
                           const char *text)
{
    append_string(output, "# ");
    append_string(output, keyword);
    append_string(output, family->name);
    append_string(output, name_suffix(family));
    append_string(output, " ");
    append_string(output, text);
    append_string(output, "\n");
}

static void append_family_header(struct output *output, const struct family *family)
{
    append_comment(output, "HELP ", family, family->help);
    append_comment(output, "TYPE ", family, family->kind == COUNTER ? "counter" : "gauge");
}

static void append_sample(struct output *output, const struct family *family, const char *labels,
                          uint64_t value)
{
    const uint64_t divisor = family->unit == NANOSECONDS ? UINT64_C(1000000000) : 1;

    append_string(output, family->name);
    append_string(output, name_suffix(family));
    append_string(output, labels);
    append_number(output, value / divisor, 1);
    if (family->unit == NANOSECONDS) {
        append_bytes(output, ".", 1);
        append_number(output, value % divisor, 9);
    }
    append_bytes(output, "\n", 1);
}

/* --- Labels. --- */

/* Two numbers, and a name of escaped characters. */
#define LABEL_BYTES (64 + 2 * XSEG_POOL_NAME_MAX)

struct label {
    char text[LABEL_BYTES];
};

/* Append the name of a pool as the value of a label.  The format escapes three characters. */
static void append_escaped(struct output *output, const char *name)
{
    const unsigned char *at = (const unsigned char *)name;

    for (size_t remaining = strlen(name), count; remaining > 0; remaining -= count, at += count) {
        const size_t measured = xseg_utf8_measure(at, remaining);

        count = measured == 0 ? 1 : measured;
        if (*at == '\\' || *at == '"' || *at == '\n')
            append_bytes(output, "\\", 1);
        if (*at == '\n')
            append_bytes(output, "n", 1);
        else if (measured == 0 || *at < ' ' || *at == 0x7f)
            append_bytes(output, "?", 1);
        else
            append_bytes(output, (const char *)at, count);
    }
}

static void format_pool_label(struct label *label, const struct xseg_published_pool *row)
{
    static const char *const kinds[] = {
        [XSEG_PUBLISHED_DEFAULT] = "default", [XSEG_PUBLISHED_PRIVATE] = "",
        [XSEG_PUBLISHED_GUARDED] = "guarded", [XSEG_PUBLISHED_RETIRED] = "retired",
        [XSEG_PUBLISHED_OTHERS] = "other",
    };
    struct output output = {.text = label->text, .bytes = sizeof(label->text) - 1};
    char name[XSEG_PUBLISHED_LABEL];

    append_string(&output, "{device=\"");
    append_number(&output, (uint64_t)row->ordinal, 1);
    append_string(&output, "\",pool=\"");
    append_string(&output, kinds[row->kind]);
    if (row->kind == XSEG_PUBLISHED_PRIVATE)
        append_number(&output, row->id, 1);
    append_string(&output, "\",name=\"");
    if (row->label[0] == '"') { /* a name of the user, in quotes */
        memcpy(name, row->label + 1, sizeof(name) - 1);
        name[strlen(row->label) - 2] = '\0';
        append_escaped(&output, name);
    }
    append_string(&output, "\"} ");
    XSEG_ASSERT(output.length <= output.bytes);
    label->text[output.length] = '\0';
}

static void format_device_label(struct label *label, const struct device_row *row)
{
    (void)snprintf(label->text, sizeof(label->text), "{device=\"%d\"} ", row->memory.ordinal);
}

static void format_call_label(struct label *label, const struct call_row *row)
{
    (void)snprintf(label->text, sizeof(label->text), "{call=\"%s\"} ", row->name);
}

/* --- All families. --- */

/* The rows of one kind with their labels. */
struct rows {
    const void *row;
    size_t count, row_bytes;
    const struct label *label;
};

static uint64_t read_value(const struct rows *rows, size_t at, const struct family *family)
{
    uint64_t value;

    memcpy(&value, (const char *)rows->row + at * rows->row_bytes + family->offset, sizeof(value));
    return value;
}

static void append_families(struct output *output, const struct family *family, size_t families,
                            const struct rows *rows)
{
    for (size_t i = 0; i < families; i++) {
        bool has_header = false;

        for (size_t at = 0; at < rows->count; at++) {
            const uint64_t value = read_value(rows, at, &family[i]);

            if (value == NO_VALUE)
                continue;
            if (!has_header)
                append_family_header(output, &family[i]);
            has_header = true;
            append_sample(output, &family[i], rows->label[at].text, value);
        }
    }
}

static void format_metrics(struct output *output, const struct metrics *metrics,
                           struct label *labels)
{
    struct label *pool = labels, *device = pool + metrics->pool_count;
    struct label *call = device + metrics->device_count;

    for (size_t i = 0; i < metrics->pool_count; i++)
        format_pool_label(&pool[i], &metrics->pools[i]);
    for (size_t i = 0; i < metrics->device_count; i++)
        format_device_label(&device[i], &metrics->devices[i]);
    for (size_t i = 0; i < metrics->call_count; i++)
        format_call_label(&call[i], &metrics->calls[i]);
    append_families(
        output, pool_families, XSEG_COUNT_OF(pool_families),
        &(struct rows){metrics->pools, metrics->pool_count, sizeof(*metrics->pools), pool});
    append_families(
        output, device_families, XSEG_COUNT_OF(device_families),
        &(struct rows){metrics->devices, metrics->device_count, sizeof(*metrics->devices), device});
    append_families(
        output, call_families, XSEG_COUNT_OF(call_families),
        &(struct rows){metrics->calls, metrics->call_count, sizeof(metrics->calls[0]), call});
}

/* Format the metrics into a buffer; the text is "" if it does not fit. */
static xseg_status write_metrics(const struct metrics *metrics, char *text, size_t bytes,
                                 size_t *needed)
{
    struct output output = {.text = text, .bytes = bytes};
    const size_t count = metrics->pool_count + metrics->device_count + metrics->call_count;
    struct label *labels = malloc((count + 1) * sizeof(*labels));

    if (labels == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, %zu labels of metrics", count);
    format_metrics(&output, metrics, labels);
    free(labels);
    if (bytes > 0)
        text[output.length < bytes ? output.length : 0] = '\0';
    *needed = output.length + 1;
    return XSEG_OK;
}

xseg_status xseg_metrics_write_text(struct xseg_allocator *allocator, char *text, size_t bytes,
                                    size_t *needed)
{
    struct metrics metrics;
    xseg_status status = metrics_init(&metrics, allocator);

    if (status == XSEG_OK)
        status = write_metrics(&metrics, text, bytes, needed);
    metrics_fini(&metrics);
    return status;
}

/* --- The file. --- */

/* Return the metrics as a string that the caller frees; NULL on failure. */
static xseg_status print_metrics(struct xseg_allocator *allocator, char **out)
{
    struct metrics metrics;
    size_t needed = 0;
    xseg_status status = metrics_init(&metrics, allocator);

    *out = NULL;
    if (status == XSEG_OK)
        status = write_metrics(&metrics, NULL, 0, &needed);
    if (status == XSEG_OK && (*out = malloc(needed)) == NULL)
        status =
            xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, %zu bytes of metrics", needed);
    if (status == XSEG_OK)
        status = write_metrics(&metrics, *out, needed, &needed);
    metrics_fini(&metrics);
    return status;
}

/* Write all bytes.  Returns 0 or the errno. */
static int write_all(int file, const char *bytes, size_t count)
{
    while (count > 0) {
        const ssize_t written = write(file, bytes, count);

        if (written < 0 && errno != EINTR)
            return errno;
        if (written <= 0)
            continue;
        bytes += written;
        count -= (size_t)written;
    }
    return 0;
}

xseg_status xseg_metrics_write_file(struct xseg_allocator *allocator, const char *path)
{
    struct xseg_atomic_file replacement;
    char *text = NULL;
    xseg_status status = print_metrics(allocator, &text);

    if (status == XSEG_OK) {
        int error = xseg_atomic_file_open(&replacement, path);

        if (error == 0) {
            error = write_all(replacement.file, text, strlen(text));
            const int end_error = xseg_atomic_file_close(&replacement, error == 0);

            error = error == 0 ? end_error : error;
        }
        if (error != 0)
            status = xseg_fail(XSEG_ERR_FILE, "metrics file cannot be written, \"%s\" (%s)", path,
                               strerror(error));
    }
    free(text);
    return status;
}
