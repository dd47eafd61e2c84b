/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/top/top_table.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "xseg/allocator.h"
#include "xseg/budget.h"

#define ALL_COLUMNS (~0u)
#define CELL        40 /* bytes of a cell, with its terminator */

/* --- Layout. --- */

struct column {
    const char *name;
    int width;         /* negative: aligned to the left */
    unsigned priority; /* 0: identifies the row; otherwise 1 is the highest, or ONLY_IF_ALL_FIT */
};

#define ONLY_IF_ALL_FIT UINT_MAX

/* The widths of COMMAND: if all columns fit, on a terminal of 60 columns or more, and on a narrower one. */
#define COMMAND_WIDTH        15
#define COMMAND_WIDTH_NARROW 8
#define NARROW               60

static int column_width(const struct column *column, const struct top_layout *layout)
{
    if (strcmp(column->name, "COMMAND") == 0)
        return -layout->command_width;
    return column->width;
}

/* Get the width of a line, with the separators of its columns. */
static int line_width(const struct column *columns, unsigned count, const struct top_layout *layout)
{
    int width = -2;

    for (unsigned i = 0; i < count; i++)
        if (layout->shown & 1u << i)
            width += abs(column_width(&columns[i], layout)) + 2;
    return width;
}

static int find_priority(const struct column *columns, unsigned count, unsigned priority)
{
    for (unsigned i = 0; i < count; i++)
        if (columns[i].priority == priority)
            return (int)i;
    return -1;
}

/* Select the columns of a page.  first: the column with the highest priority; -1: as in the table */
static struct top_layout select_columns(const struct column *columns, unsigned count, int width,
                                        int first, unsigned page)
{
    struct top_layout layout = {ALL_COLUMNS, 1, COMMAND_WIDTH}, result;
    unsigned fixed = 0;

    if (width == 0 || line_width(columns, count, &layout) <= width)
        return layout;
    for (unsigned i = 0; i < count; i++)
        fixed |= columns[i].priority == 0 ? 1u << i : 0;
    layout = (struct top_layout){fixed, 0, width < NARROW ? COMMAND_WIDTH_NARROW : COMMAND_WIDTH};
    for (unsigned priority = 0; priority <= count; priority++) {
        const int at = priority == 0 ? first : find_priority(columns, count, priority);
        struct top_layout next = layout;

        if (at < 0 || (at == first && priority > 0) || fixed & 1u << at)
            continue;
        next.shown |= 1u << at;
        if (layout.shown != fixed && line_width(columns, count, &next) > width) {
            if (layout.pages++ <= page)
                result = layout;
            next.shown = fixed | 1u << at;
        }
        layout.shown = next.shown;
    }
    if (layout.pages++ <= page)
        result = layout;
    result.pages = layout.pages;
    return result;
}

/* Join the cells of the columns that are shown. */
static void format_cells(const struct column *columns, unsigned count,
                         const struct top_layout *layout, char cells[][CELL], char line[TOP_LINE])
{
    size_t at = 0;

    line[0] = '\0';
    for (unsigned i = 0; i < count && at < TOP_LINE; i++) {
        const int width = column_width(&columns[i], layout);

        if (layout->shown & 1u << i)
            at += (size_t)snprintf(line + at, TOP_LINE - at, "%s%*.*s", at > 0 ? "  " : "", width,
                                   abs(width), cells[i]);
    }
}

/* Join the first cells, and add a message. */
static void format_message(const struct top_layout *layout, long pid, const char *command,
                           const char *message, char line[TOP_LINE])
{
    (void)snprintf(line, TOP_LINE, "%8ld  %-*.*s  %s", pid, layout->command_width,
                   layout->command_width, command, message);
}

/* --- Rows. --- */

/* Get the sort key of a row, 0 for TOP_BY_PID.  The pools of a device follow its row, independent of their keys. */
static uint64_t sort_value(const struct top_row *row, enum top_by by)
{
    const struct xseg_published_device *device = row->device;
    const struct xseg_published_pool *pool = row->pool;

    if (!device)
        return 0;
    switch (by) {
    case TOP_BY_RESERVED:
        return pool ? pool->reserved : device->reserved;
    case TOP_BY_ALLOCATED:
        return pool ? pool->allocated : device->allocated;
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

static enum top_by sort_order; /* argument of compare_rows() */

static int compare_rows(const void *a, const void *b)
{
    const struct top_row *a_row = a, *b_row = b;
    const uint64_t a_value = sort_value(a_row, sort_order), b_value = sort_value(b_row, sort_order);

    if (a_value != b_value)
        return a_value > b_value ? -1 : 1;
    if (a_row->publisher->pid != b_row->publisher->pid)
        return a_row->publisher->pid < b_row->publisher->pid ? -1 : 1;
    if (a_row->publisher != b_row->publisher)
        return a_row->publisher < b_row->publisher ? -1 : 1;
    if (a_row->device != b_row->device)
        return a_row->device < b_row->device ? -1 : 1;
    return (a_row->pool > b_row->pool) - (a_row->pool < b_row->pool);
}

static void sort_rows(struct top_row *rows, size_t count, enum top_by by)
{
    sort_order = by;
    if (count > 1)
        qsort(rows, count, sizeof(*rows), compare_rows);
}

/* Add a row for each device, or one for a process without devices. */
static size_t add_devices(struct top_row *rows, const struct publisher *publisher)
{
    if (publisher->error || publisher->sample.device_count == 0) {
        rows[0] = (struct top_row){.publisher = publisher};
        return 1;
    }
    for (uint32_t i = 0; i < publisher->sample.device_count; i++)
        rows[i] = (struct top_row){.publisher = publisher, .device = &publisher->sample.devices[i]};
    return publisher->sample.device_count;
}

static size_t add_pools(struct top_row *rows, const struct top_row *device_row)
{
    const struct xseg_published_sample *sample = &device_row->publisher->sample;
    size_t count = 0;

    for (uint32_t i = 0; device_row->device && i < sample->pool_count; i++)
        if (sample->pools[i].ordinal == device_row->device->ordinal)
            rows[count++] =
                (struct top_row){device_row->publisher, device_row->device, &sample->pools[i]};
    return count > 1 ? count : 0;
}

/* Insert the rows of pools after their devices.  The rows of pools are duplicated if a file contains a device twice. */
static bool insert_pools(struct top_table *table, enum top_by by)
{
    struct top_row *rows;
    size_t count = 0;

    rows = calloc(table->count * (1 + XSEG_PUBLISHED_POOLS) + 1, sizeof(*rows));
    if (!rows)
        return false;
    for (size_t i = 0; i < table->count; i++) {
        rows[count++] = table->rows[i];
        const size_t pools = add_pools(&rows[count], &table->rows[i]);
        sort_rows(&rows[count], pools, by);
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
        table->devices += publisher->error ? 0 : publisher->sample.device_count;
        table->count += add_devices(&table->rows[table->count], publisher);
    }
    sort_rows(table->rows, table->count, by);
    if (!has_pools || insert_pools(table, by))
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

enum {
    PID,
    COMMAND,
    DEVICE,
    POOL,
    ALLOCATED,
    PENDING,
    CACHED,
    RESERVED,
    PEAK,
    REGISTERED,
    OOMS,
    REJECTED,
    AGE,
    COLUMNS
};

/* Without the column POOL, the column COMMAND has the labels of pools. */
static const struct column columns[COLUMNS] = {
    [PID] = {"PID", 8, 0},
    [COMMAND] = {"COMMAND", -COMMAND_WIDTH, 0},
    [DEVICE] = {"DEVICE", 6, 0},
    [POOL] = {"POOL", -16, ONLY_IF_ALL_FIT},
    [ALLOCATED] = {"ALLOCATED", 11, 2},
    [PENDING] = {"PENDING", 11, 7},
    [CACHED] = {"CACHED", 11, 3},
    [RESERVED] = {"RESERVED", 11, 1},
    [PEAK] = {"PEAK", 11, 5},
    [REGISTERED] = {"REGISTERED", 11, 8},
    [OOMS] = {"OOMS", 5, 4},
    [REJECTED] = {"REJECTED", 8, 9},
    [AGE] = {"AGE", 6, 6},
};

static const int column_of[TOP_BYS] = {
    [TOP_BY_RESERVED] = RESERVED, [TOP_BY_ALLOCATED] = ALLOCATED, [TOP_BY_PENDING] = PENDING,
    [TOP_BY_CACHED] = CACHED,     [TOP_BY_PEAK] = PEAK,           [TOP_BY_REGISTERED] = REGISTERED,
    [TOP_BY_OOMS] = OOMS,         [TOP_BY_REJECTED] = REJECTED,   [TOP_BY_PID] = PID,
};

void top_table_summary(const struct top_table *table, const struct publishers *publishers,
                       char line[TOP_LINE])
{
    int at = snprintf(line, TOP_LINE, "%s, %s", amount_of(table->processes, "process").text,
                      amount_of(table->devices, "device").text);

    if (publishers->hidden > 0)
        (void)snprintf(line + at, TOP_LINE - (size_t)at, "; %s cannot be read (permission denied)",
                       amount_of(publishers->hidden, "process").text);
}

struct top_layout top_table_layout(int width, enum top_by by, unsigned page)
{
    return select_columns(columns, COLUMNS, width, column_of[by], page);
}

void top_table_head(const struct top_layout *layout, enum top_by by, char line[TOP_LINE], int *from,
                    int *length)
{
    char cells[COLUMNS][CELL];
    const char *name = columns[column_of[by]].name, *at;

    for (unsigned i = 0; i < COLUMNS; i++)
        (void)snprintf(cells[i], CELL, "%s", columns[i].name);
    format_cells(columns, COLUMNS, layout, cells, line);
    at = strstr(line, name);
    *from = at ? (int)(at - line) : 0;
    *length = at ? (int)strlen(name) : 0;
}

/* "0.4 s", "12 s", "5 min", "3 h" */
static void format_age(double age, char text[CELL])
{
    if (age < 10)
        (void)snprintf(text, CELL, "%.1f s", age);
    else if (age < 100)
        (void)snprintf(text, CELL, "%.0f s", age);
    else if (age < 6000)
        (void)snprintf(text, CELL, "%.0f min", age / 60);
    else
        (void)snprintf(text, CELL, "%.0f h", age < 3.6e9 ? age / 3600 : 1e6);
}

static void format_bytes(char cells[][CELL], unsigned first, const uint64_t *bytes, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        (void)snprintf(cells[first + i], CELL, "%s", amount_bytes(bytes[i]).text);
}

static void fill_device(const struct top_row *row, char cells[][CELL])
{
    const struct xseg_published_device *device = row->device;
    const uint64_t bytes[] = {device->allocated, device->pending,       device->cached,
                              device->reserved,  device->reserved_peak, device->registered};

    (void)snprintf(cells[PID], CELL, "%ld", (long)row->publisher->pid);
    (void)snprintf(cells[COMMAND], CELL, "%.*s", CELL - 1, row->publisher->command);
    (void)snprintf(cells[DEVICE], CELL, "%" PRId32, device->ordinal);
    (void)snprintf(cells[POOL], CELL, "all");
    format_bytes(cells, ALLOCATED, bytes, sizeof(bytes) / sizeof(bytes[0]));
    (void)snprintf(cells[OOMS], CELL, "%s", amount_count(device->ooms).text);
    (void)snprintf(cells[REJECTED], CELL, "%s", amount_count(device->rejections).text);
    format_age(row->publisher->age, cells[AGE]);
}

static void fill_pool(const struct xseg_published_pool *pool, char cells[][CELL])
{
    const uint64_t bytes[] = {pool->allocated, pool->pending,       pool->cached,
                              pool->reserved,  pool->reserved_peak, pool->registered};

    if (pool->kind == XSEG_PUBLISHED_OTHERS)
        (void)snprintf(cells[POOL], CELL, "%.*s", CELL - 1, amount_of(pool->count, "other").text);
    else
        (void)snprintf(cells[POOL], CELL, "%.*s", CELL - 1, pool->label);
    (void)snprintf(cells[COMMAND], CELL, "  %.*s", CELL - 3, cells[POOL]);
    format_bytes(cells, ALLOCATED, bytes, sizeof(bytes) / sizeof(bytes[0]));
}

void top_table_line(const struct top_layout *layout, const struct top_row *row, char line[TOP_LINE])
{
    const struct publisher *publisher = row->publisher;
    char cells[COLUMNS][CELL] = {{0}};

    if (!row->device) {
        format_message(layout, publisher->pid, publisher->command,
                       publisher->error ? publisher->error : "no device is open", line);
        return;
    }
    if (row->pool) {
        fill_pool(row->pool, cells);
        if (layout->shown & 1u << POOL)
            cells[COMMAND][0] = '\0';
    } else {
        fill_device(row, cells);
    }
    format_cells(columns, COLUMNS, layout, cells, line);
}

/* --- JSON of the first table. --- */

/* UINT64_MAX, which means unlimited, is null; integers of jansson are signed. */
static json_t *json_number(uint64_t value)
{
    return value <= INT64_MAX ? json_integer((json_int_t)value) : json_null();
}

static json_t *pool_json(const struct xseg_published_pool *pool)
{
    static const char *const kinds[] = {"default", "private", "guarded", "retired", "others"};

    return json_pack("{s:s, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "kind",
                     kinds[pool->kind], "label", text_json(pool->label), "count",
                     (json_int_t)pool->count, "allocated", json_number(pool->allocated), "pending",
                     json_number(pool->pending), "cached", json_number(pool->cached), "reserved",
                     json_number(pool->reserved), "reserved_peak", json_number(pool->reserved_peak),
                     "registered", json_number(pool->registered), "limit",
                     json_number(pool->limit));
}

static json_t *device_json(const struct publisher *publisher,
                           const struct xseg_published_device *device)
{
    const struct xseg_published_sample *sample = &publisher->sample;
    json_t *pools = json_array();

    for (uint32_t i = 0; i < sample->pool_count; i++)
        if (sample->pools[i].ordinal == device->ordinal)
            output_json_add(&pools, pool_json(&sample->pools[i]));
    return json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "device", (json_int_t)device->ordinal, "allocated", json_number(device->allocated),
        "pending", json_number(device->pending), "cached", json_number(device->cached), "reserved",
        json_number(device->reserved), "allocated_peak", json_number(device->allocated_peak),
        "reserved_peak", json_number(device->reserved_peak), "registered",
        json_number(device->registered), "page_cache", json_number(device->page_cache),
        "unreleased", json_number(device->unreleased), "paused", json_number(device->paused),
        "limit", json_number(device->limit), "total", json_number(device->total), "ooms",
        json_number(device->ooms), "rejections", json_number(device->rejections), "retries",
        json_number(device->retries), "pools", pools);
}

static json_t *publisher_json(const struct publisher *publisher)
{
    json_t *devices = json_array();

    if (publisher->error) {
        json_decref(devices);
        return json_pack("{s:I, s:o, s:s}", "pid", (json_int_t)publisher->pid, "command",
                         text_json(publisher->command), "error", publisher->error);
    }
    for (uint32_t i = 0; i < publisher->sample.device_count; i++)
        output_json_add(&devices, device_json(publisher, &publisher->sample.devices[i]));
    return json_pack("{s:I, s:o, s:f, s:o}", "pid", (json_int_t)publisher->pid, "command",
                     text_json(publisher->command), "age_s", publisher->age, "devices", devices);
}

json_t *top_table_json(const struct publishers *publishers, json_t *budget)
{
    json_t *list = json_array();

    for (size_t i = 0; i < publishers->count; i++)
        output_json_add(&list, publisher_json(publishers->list[i]));
    return json_pack("{s:o, s:I, s:o*}", "publishers", list, "hidden",
                     (json_int_t)publishers->hidden, "budget", budget);
}

/* --- The budget file. --- */

#define SLOTS    64u          /* of a budget file */
#define ROWS_MAX (SLOTS * 64) /* 64 devices of each process */

enum {
    SHARE_PID,
    SHARE_COMMAND,
    SHARE_UUID,
    PHYSICAL,
    IDLE,
    DEMAND,
    SHARE,
    RELEASED,
    SHARE_COLUMNS
};

static const struct column share_columns[SHARE_COLUMNS] = {
    [SHARE_PID] = {"PID", 8, 0},    [SHARE_COMMAND] = {"COMMAND", -COMMAND_WIDTH, 0},
    [SHARE_UUID] = {"UUID", -8, 5}, [PHYSICAL] = {"PHYSICAL", 11, 1},
    [IDLE] = {"IDLE", 11, 4},       [DEMAND] = {"DEMAND", 11, 3},
    [SHARE] = {"SHARE", 8, 2},      [RELEASED] = {"RELEASED", 11, 6},
};

static bool add_share(void *context, const struct xseg_budget_entry *entry)
{
    struct top_budget *budget = context;

    if (budget->count == ROWS_MAX)
        return false;
    struct top_share *row = &budget->rows[budget->count++];
    *row = (struct top_share){
        .slot = entry->slot,
        .pid = entry->pid,
        .is_readable = entry->is_readable,
        .physical = entry->physical_bytes,
        .idle = entry->idle_bytes,
        .demand = entry->demand_bytes,
        .share_millionths = entry->share_millionths,
        .min_bytes = entry->min_bytes,
        .released = entry->released_bytes,
    };
    (void)snprintf(row->program, sizeof(row->program), "%s", entry->program ? entry->program : "");
    (void)snprintf(row->uuid, sizeof(row->uuid), "%s", entry->uuid ? entry->uuid : "");
    return true;
}

/* Rows are sorted by slot. */
static bool has_all_slots(const struct top_budget *budget)
{
    unsigned slots = 0;

    for (size_t i = 0; i < budget->count; i++)
        slots += i == 0 || budget->rows[i].slot != budget->rows[i - 1].slot;
    return slots == SLOTS;
}

void top_budget_init(struct top_budget *budget, const char *name)
{
    char message[400] = "";

    *budget = (struct top_budget){.rows = calloc(ROWS_MAX, sizeof(*budget->rows))};
    if (!budget->rows) {
        budget->status = XSEG_ERR_HOST_MEMORY;
        (void)snprintf(budget->error, sizeof(budget->error), "out of host memory");
        return;
    }
    budget->status = xseg_budget_members(name, add_share, budget);
    if (budget->status == XSEG_OK) {
        budget->is_full = has_all_slots(budget);
        return;
    }
    (void)xseg_error_message(message, sizeof(message));
    (void)text_escape(message, budget->error, sizeof(budget->error));
}

void top_budget_fini(struct top_budget *budget)
{
    free(budget->rows);
    budget->rows = NULL;
}

struct top_layout top_budget_layout(int width, unsigned page)
{
    return select_columns(share_columns, SHARE_COLUMNS, width, -1, page);
}

size_t top_budget_lines(const struct top_budget *budget)
{
    return 1 + (budget->count > 0 ? budget->count : 1) + budget->is_full;
}

static void format_share(const struct top_layout *layout, const struct top_share *row,
                         char line[TOP_LINE])
{
    const uint64_t bytes[] = {row->physical, row->idle, row->demand};
    char cells[SHARE_COLUMNS][CELL] = {{0}}, program[64];

    if (!row->is_readable) {
        (void)snprintf(line, TOP_LINE, "%8s  %-*s  the slot of this process cannot be read", "?",
                       layout->command_width, "?");
        return;
    }
    (void)text_escape(row->program, program, sizeof(program));
    if (row->uuid[0] == '\0') {
        format_message(layout, row->pid, program, "no device is open", line);
        return;
    }
    (void)snprintf(cells[SHARE_PID], CELL, "%d", row->pid);
    (void)snprintf(cells[SHARE_COMMAND], CELL, "%.*s", CELL - 1, program);
    (void)snprintf(cells[SHARE_UUID], CELL, "%.8s", row->uuid);
    format_bytes(cells, PHYSICAL, bytes, sizeof(bytes) / sizeof(bytes[0]));
    if (row->share_millionths == 0)
        (void)snprintf(cells[SHARE], CELL, "rest");
    else
        (void)snprintf(cells[SHARE], CELL, "%.4g %%", (double)row->share_millionths / 10000);
    format_bytes(cells, RELEASED, &row->released, 1);
    format_cells(share_columns, SHARE_COLUMNS, layout, cells, line);
}

void top_budget_line(const struct top_layout *layout, const struct top_budget *budget,
                     size_t line_index, char line[TOP_LINE])
{
    char cells[SHARE_COLUMNS][CELL];

    if (line_index == 0) {
        for (unsigned i = 0; i < SHARE_COLUMNS; i++)
            (void)snprintf(cells[i], CELL, "%s", share_columns[i].name);
        format_cells(share_columns, SHARE_COLUMNS, layout, cells, line);
    } else if (line_index <= budget->count) {
        format_share(layout, &budget->rows[line_index - 1], line);
    } else if (budget->is_full) {
        (void)snprintf(line, TOP_LINE,
                       "all %u slots of the budget file are in use: no other process can join",
                       SLOTS);
    } else {
        (void)snprintf(line, TOP_LINE, "%.255s",
                       budget->error[0] != '\0' ? budget->error
                                                : "no process has this budget file open");
    }
}

static json_t *share_json(const struct top_share *row)
{
    if (!row->is_readable)
        return json_pack("{s:i, s:b}", "slot", (int)row->slot, "readable", 0);
    return json_pack(
        "{s:i, s:b, s:i, s:o, s:o, s:I, s:I, s:I, s:f, s:I, s:o}", "slot", (int)row->slot,
        "readable", 1, "pid", row->pid, "command", text_json(row->program), "uuid",
        row->uuid[0] != '\0' ? json_string(row->uuid) : json_null(), "physical",
        (json_int_t)row->physical, "idle", (json_int_t)row->idle, "demand", (json_int_t)row->demand,
        "share", (double)row->share_millionths / 1e6, "min_bytes", (json_int_t)row->min_bytes,
        "released", json_number(row->released));
}

json_t *top_budget_json(const struct top_budget *budget)
{
    json_t *list = json_array();

    for (size_t i = 0; i < budget->count; i++)
        output_json_add(&list, share_json(&budget->rows[i]));
    return list;
}
