/* SPDX-License-Identifier: MIT */
#include "xseg/budget.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/shared_budget.h"
#include "src/entry.h"

/* "5d0ba3ff-1234-5678-9abc-def012345678", and its terminator. */
#define UUID_TEXT 37

static void print_uuid(const uint8_t *uuid, char text[UUID_TEXT])
{
    size_t at = 0;

    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_UUID; i++) {
        const bool has_dash = i == 4 || i == 6 || i == 8 || i == 10;

        at += (size_t)snprintf(text + at, UUID_TEXT - at, "%s%02x", has_dash ? "-" : "", uuid[i]);
    }
}

/* Visit the devices of a process.  Returns false if that was the end. */
static bool visit_process(const struct xseg_shared_budget_record *record,
                          struct xseg_budget_entry *entry,
                          bool (*visit)(void *context, const struct xseg_budget_entry *entry),
                          void *context)
{
    char uuid[UUID_TEXT];
    bool goes_on = true;

    entry->is_readable = true;
    entry->pid = record->pid;
    entry->program = record->name;
    if (record->device_count == 0)
        return visit(context, entry);
    for (unsigned i = 0; goes_on && i < record->device_count; i++) {
        const struct xseg_shared_budget_device *device = &record->devices[i];

        print_uuid(device->uuid, uuid);
        entry->uuid = uuid;
        entry->physical_bytes = device->physical;
        entry->idle_bytes = device->idle;
        entry->demand_bytes = device->demand;
        entry->share_millionths = device->share;
        entry->min_bytes = device->floor;
        entry->released_bytes = device->released;
        goes_on = visit(context, entry);
    }
    return goes_on;
}

static void visit_all(const struct xseg_shared_budget *ledger,
                      bool (*visit)(void *context, const struct xseg_budget_entry *entry),
                      void *context)
{
    bool goes_on = true;

    for (unsigned slot = 0; goes_on && slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        const struct xseg_shared_budget_entry *seen = &ledger->seen[slot];
        struct xseg_budget_entry entry = {.struct_size = sizeof(entry), .slot = slot};

        if (seen->state == XSEG_SHARED_BUDGET_FRESH)
            goes_on = visit_process(&seen->record, &entry, visit, context);
        else if (seen->state != XSEG_SHARED_BUDGET_FREE)
            goes_on = visit(context, &entry);
    }
}

xseg_status xseg_budget_members(const char *name,
                                bool (*visit)(void *context, const struct xseg_budget_entry *entry),
                                void *context)
{
    char path[XSEG_SHARED_BUDGET_PATH];

    XSEG_OPERATION(__func__);
    XSEG_ENTRY_REQUIRE(name != NULL, "name is NULL");
    XSEG_ENTRY_REQUIRE(visit != NULL, "visit is NULL");
    xseg_status status = xseg_shared_budget_path(name, path);
    if (status != XSEG_OK)
        return status;
    struct xseg_shared_budget *ledger = malloc(sizeof(*ledger));
    if (ledger == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, copy of the budget file");
    status = xseg_shared_budget_scan(ledger, path);
    if (status == XSEG_OK)
        visit_all(ledger, visit, context);
    free(ledger);
    return status;
}
