/* SPDX-License-Identifier: MIT */
/*
 * Runs of one registration, and the callbacks for them (register.h).
 *
 * Locking: the lock of the table, which is released while a callback runs.  The initial runs are
 * added and pinned under the device memory lock, before the registration is in the table.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/core/device/pool.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/register/register.h"
#include "src/core/stats/observers.h"

struct xseg_registration_run {
    struct xseg_interval range; /* in the tree of the registration */
    void *handle;               /* of the user */
    bool is_busy;               /* a callback runs for the run, or is about to run */
    bool is_owned;              /* busy because the registration starts or ends */
    bool is_registered;         /* `enter` returned true; counted in `bytes` */
};

static struct xseg_registration_run *run_of(struct xseg_interval *node)
{
    return node == NULL ? NULL : XSEG_CONTAINER(node, struct xseg_registration_run, range);
}

static struct xseg_registration_run *
first_overlapping_run(const struct xseg_registration *registration, uint64_t begin, uint64_t end)
{
    return run_of(xseg_intervals_first(&registration->runs, begin, end));
}

static struct xseg_registration_run *
next_overlapping_run(const struct xseg_registration *registration, uint64_t begin, uint64_t end,
                     uint64_t after)
{
    return run_of(xseg_intervals_next(&registration->runs, begin, end, after, 0));
}

struct xseg_registration *xseg_registration_create(const struct xseg_registration *draft)
{
    struct xseg_registration *registration = malloc(sizeof(*registration));

    if (registration == NULL)
        return NULL;
    *registration = *draft;
    registration->runs.root = NULL;
    registration->references = 1;
    return registration;
}

static void remove_run(struct xseg_registration *registration, struct xseg_registration_run *run)
{
    xseg_intervals_remove(&registration->runs, &run->range);
    free(run);
}

void xseg_registration_free(struct xseg_registration *registration)
{
    while (registration->runs.root != NULL)
        remove_run(registration, run_of(registration->runs.root));
    free(registration);
}

void xseg_registration_release(struct xseg_registrations *table,
                               struct xseg_registration *registration)
{
    XSEG_ASSERT(registration->references > 0);
    if (--registration->references == 0)
        xseg_registration_free(registration);
    else if (registration->is_ending)
        (void)pthread_cond_broadcast(&table->changed);
}

/* Returns NULL on host allocation failure. */
static struct xseg_registration_run *add_busy_run(struct xseg_registration *registration,
                                                  uint64_t begin, uint64_t end)
{
    struct xseg_registration_run *run = calloc(1, sizeof(*run));

    XSEG_ASSERT(begin < end);
    if (run == NULL)
        return NULL;
    run->range.begin = begin;
    run->range.end = end;
    run->is_busy = true;
    xseg_intervals_insert(&registration->runs, &run->range);
    return run;
}

/* --- Callbacks. --- */

/* Run a callback for a busy run, without the lock.  Returns the result of `enter`. */
static bool run_callback(struct xseg_registrations *table, struct xseg_registration *registration,
                         struct xseg_registration_run *run, bool is_enter)
    XSEG_REQUIRES(table->lock)
{
    struct xseg_callback callback;
    struct xseg_registered description = {
        .struct_size = sizeof(description),
        .device = registration->device->context.ordinal,
        .base = (void *)(uintptr_t)run->range.begin, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = run->range.end - run->range.begin,
        .handle = run->handle,
    };
    bool accepted = true;

    XSEG_ASSERT(run->is_busy);
    if (!is_enter && run->is_registered)
        registration->bytes -= description.bytes;
    xseg_mutex_unlock(&table->lock);
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_callback_begin(&callback, registration);
    if (is_enter)
        accepted = registration->registrar.enter(registration->registrar.context, &description);
    else
        registration->registrar.leave(registration->registrar.context, &description);
    xseg_callback_end(&callback);
    xseg_mutex_lock(&table->lock);
    run->handle = description.handle;
    run->is_registered = is_enter && accepted;
    if (run->is_registered)
        registration->bytes += description.bytes;
    return accepted;
}

/* --- Pins. --- */

static xseg_status pin_run(const struct xseg_registration *registration, uint64_t begin,
                           uint64_t end)
{
    struct xseg_segment *segment = &registration->extent->segment;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return xseg_segment_retain(segment, XSEG_RETAIN_REGISTRATION, begin - segment->base,
                               end - segment->base);
}

static void unpin_run(const struct xseg_registration *registration,
                      const struct xseg_registration_run *run)
{
    struct xseg_segment *segment = &registration->extent->segment;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const bool unpinned =
        xseg_segment_release(segment, XSEG_RETAIN_REGISTRATION, run->range.begin - segment->base,
                             run->range.end - segment->base);
    XSEG_ASSERT(unpinned);
    (void)unpinned;
}

/* Pin or unpin a busy run if the registration pins.  The device memory lock has the lower rank, so
 * the lock of the table is released. */
static bool change_pin(struct xseg_registrations *table,
                       const struct xseg_registration *registration,
                       const struct xseg_registration_run *run, bool is_pin) XSEG_UNCHECKED
{
    bool is_changed = true;

    if (!registration->registrar.pin)
        return true;
    xseg_mutex_unlock(&table->lock);
    xseg_mutex_lock(&registration->device->memory_lock);
    if (is_pin)
        is_changed = pin_run(registration, run->range.begin, run->range.end) == XSEG_OK;
    else
        unpin_run(registration, run);
    xseg_mutex_unlock(&registration->device->memory_lock);
    xseg_mutex_lock(&table->lock);
    return is_changed;
}

void xseg_registration_unpin_all(struct xseg_registration *registration)
{
    struct xseg_registration_run *run = first_overlapping_run(registration, 0, UINT64_MAX);

    for (; registration->registrar.pin && run != NULL;
         run = next_overlapping_run(registration, 0, UINT64_MAX, run->range.begin))
        unpin_run(registration, run);
}

/* --- Map and unmap notifications. --- */

/* Call `leave` for a busy run that is registered, and remove the run. */
static void deregister_run(struct xseg_registrations *table, struct xseg_registration *registration,
                           struct xseg_registration_run *run) XSEG_REQUIRES(table->lock)
{
    (void)run_callback(table, registration, run, false);
    (void)change_pin(table, registration, run, false);
    remove_run(registration, run);
}

/* Pin a busy run and call `enter` for it.  The run is removed if the pin fails, if `enter` rejects
 * the run, or if the registration has begun to end during the callback. */
static void register_run(struct xseg_registrations *table, struct xseg_registration *registration,
                         struct xseg_registration_run *run) XSEG_REQUIRES(table->lock)
{
    if (!change_pin(table, registration, run, true)) {
        remove_run(registration, run);
    } else if (!run_callback(table, registration, run, true)) {
        (void)change_pin(table, registration, run, false);
        remove_run(registration, run);
    } else if (registration->is_ending) {
        deregister_run(table, registration, run);
    } else {
        run->is_busy = false;
    }
}

void xseg_registration_follow_map(struct xseg_registrations *table,
                                  struct xseg_registration *registration, uint64_t begin,
                                  uint64_t end)
{
    const uint64_t limit = xseg_min(registration->range.end, end);

    for (uint64_t address = xseg_max(registration->range.begin, begin), next; address < limit;
         address = next) {
        const struct xseg_registration_run *overlapping =
            first_overlapping_run(registration, address, limit);
        const uint64_t gap_end =
            overlapping == NULL ? limit : xseg_max(address, overlapping->range.begin);

        next = overlapping == NULL ? limit : overlapping->range.end;
        if (registration->is_ending || registration->is_released)
            return;
        struct xseg_registration_run *run =
            address < gap_end ? add_busy_run(registration, address, gap_end) : NULL;
        if (run != NULL)
            register_run(table, registration, run);
    }
}

/* Remove a run for which `leave` was called, and register its memory outside of [begin, end),
 * unless all memory of the pool is about to be unmapped. */
static void split_run(struct xseg_registrations *table, struct xseg_registration *registration,
                      struct xseg_registration_run *run, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(table->lock)
{
    const uint64_t run_begin = run->range.begin, run_end = run->range.end;
    struct xseg_registration_run *lower = NULL, *upper = NULL;

    const bool keeps_remainder =
        !registration->is_ending && !xseg_notify_is_of_pool(registration->extent->arena->pool);
    remove_run(registration, run);
    if (keeps_remainder && run_begin < begin)
        lower = add_busy_run(registration, run_begin, begin);
    if (keeps_remainder && end < run_end)
        upper = add_busy_run(registration, end, run_end);
    if (lower != NULL)
        register_run(table, registration, lower);
    if (upper != NULL)
        register_run(table, registration, upper);
}

bool xseg_registration_follow_unmap(struct xseg_registrations *table,
                                    struct xseg_registration *registration, uint64_t begin,
                                    uint64_t end)
{
    struct xseg_registration_run *run;

    while ((run = first_overlapping_run(registration, begin, end)) != NULL) {
        if (run->is_busy)
            return false;
        run->is_busy = true;
        (void)run_callback(table, registration, run, false);
        (void)change_pin(table, registration, run, false);
        split_run(table, registration, run, begin, end);
    }
    return true;
}

void xseg_registration_end_runs(struct xseg_registrations *table,
                                struct xseg_registration *registration)
{
    struct xseg_registration_run *run;
    uint64_t after = 0;

    XSEG_ASSERT(registration->is_ending);
    /* Make all runs busy, so that no other thread calls `leave`. */
    for (run = first_overlapping_run(registration, 0, UINT64_MAX); run != NULL;
         run = next_overlapping_run(registration, 0, UINT64_MAX, run->range.begin)) {
        run->is_owned = run->is_owned || !run->is_busy;
        run->is_busy = true;
    }
    for (run = first_overlapping_run(registration, 0, UINT64_MAX); run != NULL;
         run = next_overlapping_run(registration, 0, UINT64_MAX, after)) {
        after = run->range.begin;
        if (run->is_owned)
            deregister_run(table, registration, run);
    }
}

/* --- Initial runs. --- */

/* Add the next run of mapped memory at or after *address, and set *address to the end of the run.
 * Returns false on host allocation failure. */
static bool add_next_mapped_run(struct xseg_registration *registration, uint64_t *address)
{
    const struct xseg_segment *segment = &registration->extent->segment;
    uint64_t begin = *address, end = registration->range.end;

    if (xseg_segment_is_expandable(segment)) {
        const uint64_t granule_bytes = segment->granule_bytes;
        const uint32_t end_granule =
            (uint32_t)((end - segment->base + granule_bytes - 1) / granule_bytes);
        uint32_t granule = (uint32_t)((begin - segment->base) / granule_bytes);

        while (granule < end_granule && !xseg_segment_is_mapped(segment, granule))
            granule++;
        begin = xseg_max(begin, segment->base + granule * granule_bytes);
        while (granule < end_granule && xseg_segment_is_mapped(segment, granule))
            granule++;
        end = xseg_min(end, segment->base + granule * granule_bytes);
    }
    *address = begin < end ? end : registration->range.end;
    if (begin >= end)
        return true;
    struct xseg_registration_run *run = add_busy_run(registration, begin, end);
    if (run != NULL)
        run->is_owned = true;
    return run != NULL;
}

static xseg_status check_registration_range(const struct xseg_registration *registration)
{
    const struct xseg_segment *segment = &registration->extent->segment;
    const xseg_status status = xseg_pool_check_running(registration->extent->arena->pool);

    if (status != XSEG_OK)
        return status;
    if (registration->range.end > segment->base + segment->bytes)
        return xseg_mapping_fail_past_end(segment, registration->range.begin,
                                          registration->range.end - registration->range.begin);
    if (xseg_mapping_is_claimed(registration->extent, registration->range.begin,
                                registration->range.end))
        return xseg_mapping_fail_claimed(registration->range.begin);
    return XSEG_OK;
}

/* Pin all runs, or none. */
static xseg_status pin_initial_runs(struct xseg_registration *registration)
{
    struct xseg_registration_run *run = first_overlapping_run(registration, 0, UINT64_MAX), *pinned;
    xseg_status status = XSEG_OK;

    for (; registration->registrar.pin && run != NULL;
         run = next_overlapping_run(registration, 0, UINT64_MAX, run->range.begin)) {
        status = pin_run(registration, run->range.begin, run->range.end);
        if (status != XSEG_OK)
            break;
    }
    for (pinned = first_overlapping_run(registration, 0, UINT64_MAX);
         status != XSEG_OK && pinned != run;
         pinned = next_overlapping_run(registration, 0, UINT64_MAX, pinned->range.begin))
        unpin_run(registration, pinned);
    return status;
}

xseg_status xseg_registration_add_initial_runs(struct xseg_registration *registration)
{
    const xseg_status status = check_registration_range(registration);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status != XSEG_OK)
        return status;
    for (uint64_t address = registration->range.begin; address < registration->range.end;)
        if (!add_next_mapped_run(registration, &address))
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, registration record");
    if (registration->runs.root == NULL)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                         "address range has no mapped memory, %" PRIu64 " bytes at %#" PRIx64,
                         registration->range.end - registration->range.begin,
                         registration->range.begin);
    return pin_initial_runs(registration);
}

uint64_t xseg_registration_start(struct xseg_registrations *table,
                                 struct xseg_registration *registration)
{
    struct xseg_registration_run *run;
    uint64_t after = 0, rejected = 0;

    /* Other threads can add runs of memory that is mapped during this loop; these are not owned. */
    for (run = first_overlapping_run(registration, 0, UINT64_MAX); run != NULL;
         run = next_overlapping_run(registration, 0, UINT64_MAX, after)) {
        after = run->range.begin;
        if (!run->is_owned)
            continue;
        const bool is_registered = rejected == 0 && run_callback(table, registration, run, true);
        if (is_registered)
            continue;
        rejected = rejected == 0 ? run->range.begin : rejected;
        (void)change_pin(table, registration, run, false);
        remove_run(registration, run);
    }
    for (run = first_overlapping_run(registration, 0, UINT64_MAX); rejected == 0 && run != NULL;
         run = next_overlapping_run(registration, 0, UINT64_MAX, run->range.begin))
        if (run->is_owned)
            run->is_busy = run->is_owned = false;
    return rejected;
}

/* --- Queries. --- */

uint64_t xseg_registration_bytes_in(const struct xseg_registration *registration, uint64_t begin,
                                    uint64_t end)
{
    uint64_t bytes = 0;

    for (const struct xseg_registration_run *run = first_overlapping_run(registration, begin, end);
         run != NULL; run = next_overlapping_run(registration, begin, end, run->range.begin))
        if (run->is_registered)
            bytes += xseg_min(run->range.end, end) - xseg_max(run->range.begin, begin);
    return bytes;
}
