/* SPDX-License-Identifier: MIT */
#include "vmm/unreleased.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"

/* Far more than the number of releases that a driver was observed to fail.  The value was not
 * measured. */
#define INITIAL_CAPACITY 256u

xseg_status xseg_unreleased_init(struct xseg_unreleased_list *unreleased,
                                 struct xseg_context *context)
{
    unreleased->context = context;
    unreleased->count = 0;
    unreleased->capacity = INITIAL_CAPACITY;
    unreleased->unrecorded = 0;
    atomic_init(&unreleased->physical, 0);
    atomic_init(&unreleased->unknown, 0);
    unreleased->record = malloc(INITIAL_CAPACITY * sizeof(*unreleased->record));
    if (unreleased->record == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of unreleased memory");
    return XSEG_OK;
}

void xseg_unreleased_fini(struct xseg_unreleased_list *unreleased)
{
    free(unreleased->record);
    unreleased->record = NULL;
}

xseg_status xseg_unreleased_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes,
                                  bool *is_known)
{
    const xseg_status status = xseg_driver_unmap(context, address, bytes);
    bool mapped = true;
    char reason[256];

    *is_known = true;
    if (status == XSEG_OK)
        return XSEG_OK;
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    *is_known = xseg_driver_is_mapped(context, address, &mapped) == XSEG_OK;
    return mapped ? xseg_fail(status, "%s", reason) : XSEG_OK;
}

/* Release one object to the driver.  A mapping in unknown state counts as a failure. */
static xseg_status release_object(struct xseg_context *context, struct xseg_unreleased *record)
{
    xseg_status status = XSEG_OK;
    bool is_known = true;

    switch (record->kind) {
    case XSEG_UNRELEASED_PAGE:
        if (record->mapped_at != 0)
            status = xseg_unreleased_unmap(context, record->mapped_at, record->bytes, &is_known);
        if (status != XSEG_OK)
            return status;
        record->mapped_at = 0;
        return xseg_driver_release(context, record->object);
    case XSEG_UNRELEASED_ALLOCATION:
        return xseg_driver_free(context, record->object);
    case XSEG_UNRELEASED_HOST:
        return xseg_driver_host_free(
            context, (void *)(uintptr_t)record->object); /* NOLINT(performance-no-int-to-ptr) */
    case XSEG_UNRELEASED_MAPPING:
        return xseg_unreleased_unmap(context, record->object, record->bytes, &is_known);
    case XSEG_UNRELEASED_RANGE:
        break;
    }
    return xseg_driver_unreserve(context, record->object, record->bytes);
}

static uint64_t physical_bytes(const struct xseg_unreleased *record)
{
    return record->kind == XSEG_UNRELEASED_PAGE || record->kind == XSEG_UNRELEASED_ALLOCATION
               ? record->bytes
               : 0;
}

static void add_record(struct xseg_unreleased_list *unreleased,
                       const struct xseg_unreleased *record)
{
    atomic_fetch_add_explicit(&unreleased->physical, physical_bytes(record), memory_order_relaxed);
    if (unreleased->count == unreleased->capacity) {
        const size_t capacity = unreleased->capacity * 2;
        struct xseg_unreleased *grown = realloc(unreleased->record, capacity * sizeof(*grown));

        /* Without a record the object is leaked until the process ends; `physical` still counts
         * it. */
        if (grown == NULL) {
            unreleased->unrecorded += physical_bytes(record);
            return;
        }
        unreleased->record = grown;
        unreleased->capacity = capacity;
    }
    unreleased->record[unreleased->count++] = *record;
}

xseg_status xseg_unreleased_release(struct xseg_unreleased_list *unreleased,
                                    struct xseg_unreleased record)
{
    const xseg_status status = release_object(unreleased->context, &record);

    if (status != XSEG_OK)
        add_record(unreleased, &record);
    return status;
}

xseg_status xseg_unreleased_retry(struct xseg_unreleased_list *unreleased)
{
    xseg_status result = XSEG_OK;
    size_t remaining = 0;

    for (size_t i = 0; i < unreleased->count; i++) {
        struct xseg_unreleased record = unreleased->record[i];
        const xseg_status status = release_object(unreleased->context, &record);

        if (status == XSEG_OK) {
            atomic_fetch_sub_explicit(&unreleased->physical, physical_bytes(&record),
                                      memory_order_relaxed);
            continue;
        }
        result = result == XSEG_OK ? status : result;
        unreleased->record[remaining++] = record;
    }
    unreleased->count = remaining;
    return result;
}

bool xseg_unreleased_audit(const struct xseg_unreleased_list *unreleased,
                           struct xseg_violation *violation)
{
    uint64_t sum = unreleased->unrecorded;

    for (size_t i = 0; i < unreleased->count; i++)
        sum += physical_bytes(&unreleased->record[i]);
    XSEG_INVARIANT(violation, "UNREL-1", sum == atomic_load(&unreleased->physical),
                   "physical is %" PRIu64 ", sum of the records is %" PRIu64,
                   (uint64_t)atomic_load(&unreleased->physical), sum);
    return true;
}
