/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/top/top_budget.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "xseg/allocator.h"
#include "xseg/budget.h"

#define SLOTS 64u
#define ROOM  (SLOTS * 64) /* a budget file has no more rows: 64 processes with 64 devices each */

static bool add_row(void *context, const struct xseg_budget_entry *entry)
{
    struct top_budget *budget = context;

    if (budget->count == ROOM)
        return false;
    struct top_share *row = &budget->rows[budget->count++];
    *row = (struct top_share){
        .slot = entry->slot,
        .pid = entry->pid,
        .is_readable = entry->is_readable,
        .taken = entry->physical_bytes,
        .idle = entry->idle_bytes,
        .wanted = entry->demand_bytes,
        .share = entry->share_millionths,
        .floor = entry->min_bytes,
        .returned = entry->released_bytes,
    };
    (void)snprintf(row->program, sizeof(row->program), "%s", entry->program ? entry->program : "");
    (void)snprintf(row->uuid, sizeof(row->uuid), "%s", entry->uuid ? entry->uuid : "");
    return true;
}

/* Rows are in the order of slots. */
static bool has_all_slots(const struct top_budget *budget)
{
    unsigned slots = 0;

    for (size_t i = 0; i < budget->count; i++)
        slots += i == 0 || budget->rows[i].slot != budget->rows[i - 1].slot;
    return slots == SLOTS;
}

void top_budget_look(struct top_budget *budget, const char *name)
{
    char said[400] = "";

    *budget = (struct top_budget){.rows = calloc(ROOM, sizeof(*budget->rows))};
    if (!budget->rows) {
        budget->status = XSEG_ERR_HOST_MEMORY;
        (void)snprintf(budget->problem, sizeof(budget->problem), "no host memory is left");
        return;
    }
    budget->status = xseg_budget_members(name, add_row, budget);
    if (budget->status == XSEG_OK) {
        budget->is_full = has_all_slots(budget);
        return;
    }
    (void)xseg_error_message(said, sizeof(said));
    (void)text_escape(said, budget->problem, sizeof(budget->problem));
}

void top_budget_fini(struct top_budget *budget)
{
    free(budget->rows);
    budget->rows = NULL;
}

/* --- Lines. --- */

size_t top_budget_lines(const struct top_budget *budget)
{
    return 1 + (budget->count > 0 ? budget->count : 1) + budget->is_full;
}

/* "70 %"; "rest" where none is named. */
static void format_share(uint64_t share, char *text, size_t bytes)
{
    if (share == 0)
        (void)snprintf(text, bytes, "rest");
    else
        (void)snprintf(text, bytes, "%.4g %%", (double)share / 10000);
}

static void format_row(const struct top_share *row, char line[TOP_LINE])
{
    char program[64], share[16];

    if (!row->is_readable) {
        (void)snprintf(line, TOP_LINE, "%8s  %-15s  its figures cannot be read", "?", "?");
        return;
    }
    (void)text_escape(row->program, program, sizeof(program));
    if (row->uuid[0] == '\0') {
        (void)snprintf(line, TOP_LINE, "%8d  %-15.15s  no device is open", row->pid, program);
        return;
    }
    format_share(row->share, share, sizeof(share));
    (void)snprintf(line, TOP_LINE, "%8d  %-15.15s  %-8.8s  %11s  %11s  %11s  %8s  %11s", row->pid,
                   program, row->uuid, amount_bytes(row->taken).text, amount_bytes(row->idle).text,
                   amount_bytes(row->wanted).text, share, amount_bytes(row->returned).text);
}

void top_budget_line(const struct top_budget *budget, size_t number, char line[TOP_LINE])
{
    if (number == 0)
        (void)snprintf(line, TOP_LINE, "%8s  %-15s  %-8s  %11s  %11s  %11s  %8s  %11s", "PID",
                       "COMMAND", "UUID", "PHYSICAL", "IDLE", "DEMAND", "SHARE", "RELEASED");
    else if (number <= budget->count)
        format_row(&budget->rows[number - 1], line);
    else if (budget->is_full)
        (void)snprintf(line, TOP_LINE,
                       "all %u slots of the budget file are taken: further processes take no part",
                       SLOTS);
    else
        (void)snprintf(line, TOP_LINE, "%.255s",
                       budget->problem[0] != '\0' ? budget->problem
                                                  : "no process has this budget file open");
}

/* --- JSON. --- */

static json_t *row_json(const struct top_share *row)
{
    if (!row->is_readable)
        return json_pack("{s:i, s:b}", "slot", (int)row->slot, "readable", 0);
    return json_pack(
        "{s:i, s:b, s:i, s:o, s:o, s:I, s:I, s:I, s:f, s:I, s:o}", "slot", (int)row->slot,
        "readable", 1, "pid", row->pid, "command", text_json(row->program), "uuid",
        row->uuid[0] != '\0' ? json_string(row->uuid) : json_null(), "physical",
        (json_int_t)row->taken, "idle", (json_int_t)row->idle, "demand", (json_int_t)row->wanted,
        "share", (double)row->share / 1e6, "min_bytes", (json_int_t)row->floor, "released",
        row->returned <= INT64_MAX ? json_integer((json_int_t)row->returned) : json_null());
}

json_t *top_budget_json(const struct top_budget *budget)
{
    json_t *list = json_array();

    for (size_t i = 0; i < budget->count; i++)
        output_json_add(&list, row_json(&budget->rows[i]));
    return list;
}
