/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/top/top_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

/* --- Order. --- */

/* What a row is ordered by; a device's pools stand below it, whatever theirs is. */
static uint64_t value_of(const struct top_row *row, enum top_by by)
{
    const struct xseg_published_device *device = row->device;
    const struct xseg_published_pool *pool = row->pool;

    if (!device)
        return 0;
    switch (by) {
    case TOP_BY_RESERVED:
        return pool ? pool->reserved : device->reserved;
    case TOP_BY_LIVE:
        return pool ? pool->live : device->live;
    case TOP_BY_PENDING:
        return pool ? pool->pending : device->pending;
    case TOP_BY_CACHED:
        return pool ? pool->cached : device->cached;
    case TOP_BY_PEAK:
        return pool ? pool->reserved_peak : device->reserved_peak;
    case TOP_BY_REGISTERED:
        return pool ? pool->registered : device->registered;
    case TOP_BY_OOMS:
        return pool ? 0 : device->ooms;
    case TOP_BY_REJECTED:
        return pool ? 0 : device->rejections;
    case TOP_BY_PID:
    case TOP_BYS:
        break;
    }
    return 0;
}

static enum top_by order;

static int compare_rows(const void *a, const void *b)
{
    const struct top_row *one = a, *other = b;
    const uint64_t first = value_of(one, order), second = value_of(other, order);

    if (first != second)
        return first > second ? -1 : 1;
    if (one->publisher->pid != other->publisher->pid)
        return one->publisher->pid < other->publisher->pid ? -1 : 1;
    if (one->publisher != other->publisher)
        return one->publisher < other->publisher ? -1 : 1;
    if (one->device != other->device)
        return one->device < other->device ? -1 : 1;
    return (one->pool > other->pool) - (one->pool < other->pool);
}

static void sort(struct top_row *rows, size_t count, enum top_by by)
{
    order = by;
    if (count > 1)
        qsort(rows, count, sizeof(*rows), compare_rows);
}

/* --- Rows. --- */

/* A row for each device, or one for a process without any. */
static size_t add_devices(struct top_row *rows, const struct publisher *publisher)
{
    if (publisher->problem || publisher->frame.device_count == 0) {
        rows[0] = (struct top_row){.publisher = publisher};
        return 1;
    }
    for (uint32_t i = 0; i < publisher->frame.device_count; i++)
        rows[i] = (struct top_row){.publisher = publisher, .device = &publisher->frame.devices[i]};
    return publisher->frame.device_count;
}

static size_t add_pools(struct top_row *rows, const struct top_row *of)
{
    const struct xseg_published_sample *frame = &of->publisher->frame;
    size_t count = 0;

    for (uint32_t i = 0; of->device && i < frame->pool_count; i++)
        if (frame->pools[i].ordinal == of->device->ordinal)
            rows[count++] = (struct top_row){of->publisher, of->device, &frame->pools[i]};
    return count > 1 ? count : 0;
}

/* Rows of pools, behind those of their devices.  A file may name a device twice: then its pools come twice, too. */
static bool spread(struct top_table *table, enum top_by by)
{
    struct top_row *rows;
    size_t count = 0;

    rows = calloc(table->count * (1 + XSEG_PUBLISHED_POOLS) + 1, sizeof(*rows));
    if (!rows)
        return false;
    for (size_t i = 0; i < table->count; i++) {
        rows[count++] = table->rows[i];
        const size_t pools = add_pools(&rows[count], &table->rows[i]);
        sort(&rows[count], pools, by);
        count += pools;
    }
    free(table->rows);
    table->rows = rows;
    table->count = count;
    return true;
}

bool top_table_init(struct top_table *table, const struct publishers *publishers, enum top_by by,
                    bool has_pools)
{
    *table = (struct top_table){
        .rows = calloc(publishers->count * XSEG_PUBLISHED_DEVICES + 1, sizeof(*table->rows))};
    if (!table->rows)
        return false;
    for (size_t i = 0; i < publishers->count; i++) {
        const struct publisher *publisher = publishers->list[i];

        table->processes += i == 0 || publishers->list[i - 1]->pid != publisher->pid;
        table->devices += publisher->problem ? 0 : publisher->frame.device_count;
        table->count += add_devices(&table->rows[table->count], publisher);
    }
    sort(table->rows, table->count, by);
    if (!has_pools || spread(table, by))
        return true;
    top_table_fini(table);
    return false;
}

void top_table_fini(struct top_table *table)
{
    free(table->rows);
    table->rows = NULL;
}

/* --- Lines. --- */

void top_table_summary(const struct top_table *table, const struct publishers *publishers,
                       char line[TOP_LINE])
{
    int at = snprintf(line, TOP_LINE, "%s, %s", amount_of(table->processes, "process").text,
                      amount_of(table->devices, "device").text);

    if (publishers->hidden > 0)
        (void)snprintf(line + at, TOP_LINE - (size_t)at, "; %s may not be looked at",
                       amount_of(publishers->hidden, "process").text);
}

void top_table_head(char line[TOP_LINE], enum top_by by, int *from, int *length)
{
    static const char *const names[TOP_BYS] = {"RESERVED", "ALLOCATED", "PENDING",
                                               "CACHED",   "PEAK",      "REGISTERED",
                                               "OOMS",     "REJECTED",  "PID"};
    const char *at;

    (void)snprintf(line, TOP_LINE,
                   "%8s  %-15s  %6s  %-16s  %11s  %11s  %11s  %11s  %11s  %11s  %5s  %8s  %6s",
                   "PID", "COMMAND", "DEVICE", "POOL", "ALLOCATED", "PENDING", "CACHED", "RESERVED",
                   "PEAK", "REGISTERED", "OOMS", "REJECTED", "AGE");
    at = strstr(line, names[by]);
    *from = (int)(at - line);
    *length = (int)strlen(names[by]);
}

/* "0.4 s", "12 s", "5 min", "3 h" */
static void format_age(double age, char *text, size_t bytes)
{
    if (age < 10)
        (void)snprintf(text, bytes, "%.1f s", age);
    else if (age < 100)
        (void)snprintf(text, bytes, "%.0f s", age);
    else if (age < 6000)
        (void)snprintf(text, bytes, "%.0f min", age / 60);
    else
        (void)snprintf(text, bytes, "%.0f h", age < 3.6e9 ? age / 3600 : 1e6);
}

static void format_amounts(char *text, size_t room, const uint64_t *amounts, size_t count)
{
    size_t at = 0;

    for (size_t i = 0; i < count && at < room; i++)
        at += (size_t)snprintf(text + at, room - at, "  %11s", amount_bytes(amounts[i]).text);
}

static void format_device(const struct top_row *row, char line[TOP_LINE])
{
    const struct xseg_published_device *device = row->device;
    const uint64_t amounts[] = {device->live,     device->pending,       device->cached,
                                device->reserved, device->reserved_peak, device->registered};
    char columns[96], age[16];

    format_amounts(columns, sizeof(columns), amounts, sizeof(amounts) / sizeof(amounts[0]));
    format_age(row->publisher->age, age, sizeof(age));
    (void)snprintf(line, TOP_LINE,
                   "%8ld  %-15.15s  %6" PRId32 "  %-16s%s  %5" PRIu64 "  %8" PRIu64 "  %6s",
                   (long)row->publisher->pid, row->publisher->command, device->ordinal, "all",
                   columns, device->ooms, device->rejections, age);
}

static void format_pool(const struct xseg_published_pool *pool, char line[TOP_LINE])
{
    const uint64_t amounts[] = {pool->live,     pool->pending,       pool->cached,
                                pool->reserved, pool->reserved_peak, pool->registered};
    char columns[96], label[XSEG_PUBLISHED_LABEL + 16];

    format_amounts(columns, sizeof(columns), amounts, sizeof(amounts) / sizeof(amounts[0]));
    if (pool->kind == XSEG_PUBLISHED_OTHERS)
        (void)snprintf(label, sizeof(label), "%s", amount_of(pool->count, "other").text);
    else
        (void)snprintf(label, sizeof(label), "%s", pool->label);
    (void)snprintf(line, TOP_LINE, "%35s  %-14.14s%s", "", label, columns);
}

void top_table_line(const struct top_row *row, char line[TOP_LINE])
{
    if (row->pool)
        format_pool(row->pool, line);
    else if (row->device)
        format_device(row, line);
    else
        (void)snprintf(line, TOP_LINE, "%8ld  %-15.15s  %s", (long)row->publisher->pid,
                       row->publisher->command,
                       row->publisher->problem ? row->publisher->problem : "no device is open");
}

/* --- JSON. --- */

/* Numbers of JSON are signed here; UINT64_MAX is no limit, and null. */
static json_t *number(uint64_t value)
{
    return value <= INT64_MAX ? json_integer((json_int_t)value) : json_null();
}

static json_t *pool_json(const struct xseg_published_pool *pool)
{
    static const char *const kinds[] = {"default", "private", "guarded", "ended", "others"};

    return json_pack("{s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "kind",
                     kinds[pool->kind], "label", text_json(pool->label), "count",
                     (json_int_t)pool->count, "allocated", number(pool->live), "pending",
                     number(pool->pending), "cached", number(pool->cached), "reserved",
                     number(pool->reserved), "reserved_peak", number(pool->reserved_peak),
                     "registered", number(pool->registered), "limit", number(pool->limit));
}

static json_t *device_json(const struct publisher *publisher,
                           const struct xseg_published_device *device)
{
    const struct xseg_published_sample *frame = &publisher->frame;
    json_t *pools = json_array();

    for (uint32_t i = 0; i < frame->pool_count; i++)
        if (frame->pools[i].ordinal == device->ordinal)
            output_json_add(&pools, pool_json(&frame->pools[i]));
    return json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "device", (json_int_t)device->ordinal, "allocated", number(device->live), "pending",
        number(device->pending), "cached", number(device->cached), "reserved",
        number(device->reserved), "allocated_peak", number(device->live_peak), "reserved_peak",
        number(device->reserved_peak), "registered", number(device->registered), "page_cache",
        number(device->page_cache), "unreleased", number(device->unreleased), "paused",
        number(device->paused), "limit", number(device->limit), "total", number(device->total),
        "ooms", number(device->ooms), "rejections", number(device->rejections), "retries",
        number(device->retries), "pools", pools);
}

static json_t *publisher_json(const struct publisher *publisher)
{
    json_t *devices = json_array();

    if (publisher->problem) {
        json_decref(devices);
        return json_pack("{s:I, s:o, s:s}", "pid", (json_int_t)publisher->pid, "command",
                         text_json(publisher->command), "problem", publisher->problem);
    }
    for (uint32_t i = 0; i < publisher->frame.device_count; i++)
        output_json_add(&devices, device_json(publisher, &publisher->frame.devices[i]));
    return json_pack("{s:I, s:o, s:f, s:o}", "pid", (json_int_t)publisher->pid, "command",
                     text_json(publisher->command), "age_s", publisher->age, "devices", devices);
}

json_t *top_table_json(const struct publishers *publishers, json_t *more)
{
    json_t *list = json_array();

    for (size_t i = 0; i < publishers->count; i++)
        output_json_add(&list, publisher_json(publishers->list[i]));
    return json_pack("{s:o, s:I, s:o*}", "publishers", list, "hidden",
                     (json_int_t)publishers->hidden, "budget", more);
}
