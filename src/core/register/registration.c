/* SPDX-License-Identifier: MIT */
#include "src/core/register/registration.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/core/device/pool.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/notify.h"
#include "src/core/stats/observers.h"

struct xseg_registration_run {
    struct xseg_interval range; /* among the runs of the registration */
    void *handle;               /* the user's */
    bool is_busy;               /* a callback runs for it, or is about to */
    bool is_owned;              /* busy until the registration has started, or because it ends */
    bool has_entered;           /* counted in `bytes` */
};

static struct xseg_registration_run *run_of(struct xseg_interval *node)
{
    return node == NULL ? NULL : XSEG_CONTAINER(node, struct xseg_registration_run, range);
}

static struct xseg_registration_run *first_over(const struct xseg_registration *registration,
                                                uint64_t begin, uint64_t end)
{
    return run_of(xseg_intervals_first(&registration->runs, begin, end));
}

static struct xseg_registration_run *next_over(const struct xseg_registration *registration,
                                               uint64_t begin, uint64_t end, uint64_t after)
{
    return run_of(xseg_intervals_next(&registration->runs, begin, end, after, 0));
}

struct xseg_registration *xseg_registration_make(const struct xseg_registration *like)
{
    struct xseg_registration *made = malloc(sizeof(*made));

    if (made == NULL)
        return NULL;
    *made = *like;
    made->runs.root = NULL;
    made->references = 1;
    return made;
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

void xseg_registration_release(struct xseg_registration_table *desk,
                               struct xseg_registration *registration)
{
    XSEG_ASSERT(registration->references > 0);
    if (--registration->references == 0)
        xseg_registration_free(registration);
    else if (registration->ends)
        (void)pthread_cond_broadcast(&desk->changed);
}

/* Add a busy run; NULL without host memory. */
static struct xseg_registration_run *add_busy(struct xseg_registration *registration,
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

/* Run a callback for a busy run; the lock is released meanwhile.  Returns the result of `enter`. */
static bool call(struct xseg_registration_table *desk, struct xseg_registration *registration,
                 struct xseg_registration_run *run, bool enters) XSEG_REQUIRES(desk->lock)
{
    struct xseg_callback callback;
    struct xseg_registered told = {
        .struct_size = sizeof(told),
        .device = registration->device->context.ordinal,
        .base = (void *)(uintptr_t)run->range.begin, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = run->range.end - run->range.begin,
        .handle = run->handle,
    };
    bool answer = true;

    XSEG_ASSERT(run->is_busy);
    if (!enters && run->has_entered)
        registration->bytes -= told.bytes;
    xseg_mutex_unlock(&desk->lock);
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_callback_begin(&callback, registration);
    if (enters)
        answer = registration->calls.enter(registration->calls.context, &told);
    else
        registration->calls.leave(registration->calls.context, &told);
    xseg_callback_end(&callback);
    xseg_mutex_lock(&desk->lock);
    run->handle = told.handle;
    run->has_entered = enters && answer;
    if (run->has_entered)
        registration->bytes += told.bytes;
    return answer;
}

/* --- Pins. --- */

static xseg_status pin(const struct xseg_registration *registration, uint64_t begin, uint64_t end)
{
    struct xseg_segment *segment = &registration->extent->segment;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return xseg_segment_retain(segment, XSEG_RETAIN_REGISTRATION, begin - segment->base,
                               end - segment->base);
}

static void unpin(const struct xseg_registration *registration,
                  const struct xseg_registration_run *run)
{
    struct xseg_segment *segment = &registration->extent->segment;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const bool done =
        xseg_segment_release(segment, XSEG_RETAIN_REGISTRATION, run->range.begin - segment->base,
                             run->range.end - segment->base);
    XSEG_ASSERT(done);
    (void)done;
}

/* Pin or unpin a busy run, if the registration pins.  The device memory lock is outside of the registrations' lock, which is released. */
static bool change_pin(struct xseg_registration_table *desk,
                       const struct xseg_registration *registration,
                       const struct xseg_registration_run *run, bool pins) XSEG_UNCHECKED
{
    bool done = true;

    if (!registration->calls.pin)
        return true;
    xseg_mutex_unlock(&desk->lock);
    xseg_mutex_lock(&registration->device->growth_lock);
    if (pins)
        done = pin(registration, run->range.begin, run->range.end) == XSEG_OK;
    else
        unpin(registration, run);
    xseg_mutex_unlock(&registration->device->growth_lock);
    xseg_mutex_lock(&desk->lock);
    return done;
}

void xseg_registration_unpin(struct xseg_registration *made)
{
    struct xseg_registration_run *run = first_over(made, 0, UINT64_MAX);

    for (; made->calls.pin && run != NULL; run = next_over(made, 0, UINT64_MAX, run->range.begin))
        unpin(made, run);
}

/* --- Memory that is mapped or unmapped. --- */

/* Call `leave` for a busy run that has entered, and remove the run. */
static void leave_run(struct xseg_registration_table *desk, struct xseg_registration *registration,
                      struct xseg_registration_run *run) XSEG_REQUIRES(desk->lock)
{
    (void)call(desk, registration, run, false);
    (void)change_pin(desk, registration, run, false);
    remove_run(registration, run);
}

/* Call `enter` for a busy run.  If it is rejected, or cannot be pinned, the run is removed; so it is if the registration ends
 * meanwhile. */
static void enter_run(struct xseg_registration_table *desk, struct xseg_registration *registration,
                      struct xseg_registration_run *run) XSEG_REQUIRES(desk->lock)
{
    if (!change_pin(desk, registration, run, true)) {
        remove_run(registration, run);
    } else if (!call(desk, registration, run, true)) {
        (void)change_pin(desk, registration, run, false);
        remove_run(registration, run);
    } else if (registration->ends) {
        leave_run(desk, registration, run);
    } else {
        run->is_busy = false;
    }
}

void xseg_registration_enter(struct xseg_registration_table *desk,
                             struct xseg_registration *registration, uint64_t begin, uint64_t end)
{
    const uint64_t last = xseg_min(registration->range.end, end);

    for (uint64_t at = xseg_max(registration->range.begin, begin), next; at < last; at = next) {
        const struct xseg_registration_run *over = first_over(registration, at, last);
        const uint64_t to = over == NULL ? last : xseg_max(at, over->range.begin);

        next = over == NULL ? last : over->range.end;
        if (registration->ends || registration->is_over)
            return;
        struct xseg_registration_run *run = at < to ? add_busy(registration, at, to) : NULL;
        if (run != NULL)
            enter_run(desk, registration, run);
    }
}

/* Remove a part of a run whose `leave` has been called, and let what remains of the run enter, unless all memory of the pool is
 * about to be unmapped. */
static void divide(struct xseg_registration_table *desk, struct xseg_registration *registration,
                   struct xseg_registration_run *run, uint64_t begin, uint64_t end)
    XSEG_REQUIRES(desk->lock)
{
    const uint64_t from = run->range.begin, to = run->range.end;
    struct xseg_registration_run *left = NULL, *right = NULL;

    const bool stays =
        !registration->ends && !xseg_notify_is_of_pool(registration->extent->arena->pool);
    remove_run(registration, run);
    if (stays && from < begin)
        left = add_busy(registration, from, begin);
    if (stays && end < to)
        right = add_busy(registration, end, to);
    if (left != NULL)
        enter_run(desk, registration, left);
    if (right != NULL)
        enter_run(desk, registration, right);
}

bool xseg_registration_leave(struct xseg_registration_table *desk,
                             struct xseg_registration *registration, uint64_t begin, uint64_t end)
{
    struct xseg_registration_run *run;

    while ((run = first_over(registration, begin, end)) != NULL) {
        if (run->is_busy)
            return false;
        run->is_busy = true;
        (void)call(desk, registration, run, false);
        (void)change_pin(desk, registration, run, false);
        divide(desk, registration, run, begin, end);
    }
    return true;
}

void xseg_registration_leave_all(struct xseg_registration_table *desk,
                                 struct xseg_registration *registration)
{
    struct xseg_registration_run *run;
    uint64_t after = 0;

    XSEG_ASSERT(registration->ends);
    /* All runs are busy from here on, so that no other thread calls `leave`. */
    for (run = first_over(registration, 0, UINT64_MAX); run != NULL;
         run = next_over(registration, 0, UINT64_MAX, run->range.begin)) {
        run->is_owned = run->is_owned || !run->is_busy;
        run->is_busy = true;
    }
    for (run = first_over(registration, 0, UINT64_MAX); run != NULL;
         run = next_over(registration, 0, UINT64_MAX, after)) {
        after = run->range.begin;
        if (run->is_owned)
            leave_run(desk, registration, run);
    }
}

/* --- The first runs. --- */

/* Add the next run of mapped memory of a range, from *at on, which moves behind the run.  False without host memory. */
static bool add_run(struct xseg_registration *made, uint64_t *at)
{
    const struct xseg_segment *segment = &made->extent->segment;
    uint64_t begin = *at, end = made->range.end;

    if (xseg_segment_is_expandable(segment)) {
        const uint64_t granule = segment->granule_bytes;
        const uint32_t max = (uint32_t)((end - segment->base + granule - 1) / granule);
        uint32_t first = (uint32_t)((begin - segment->base) / granule);

        while (first < max && !xseg_segment_is_mapped(segment, first))
            first++;
        begin = xseg_max(begin, segment->base + first * granule);
        while (first < max && xseg_segment_is_mapped(segment, first))
            first++;
        end = xseg_min(end, segment->base + first * granule);
    }
    *at = begin < end ? end : made->range.end;
    if (begin >= end)
        return true;
    struct xseg_registration_run *run = add_busy(made, begin, end);
    if (run != NULL)
        run->is_owned = true;
    return run != NULL;
}

static xseg_status check(const struct xseg_registration *made)
{
    const struct xseg_segment *segment = &made->extent->segment;
    const xseg_status status = xseg_pool_check_running(made->extent->arena->pool);

    if (status != XSEG_OK)
        return status;
    if (made->range.end > segment->base + segment->bytes)
        return xseg_mapping_fail_end(segment, made->range.begin,
                                     made->range.end - made->range.begin);
    if (xseg_mapping_is_claimed(made->extent, made->range.begin, made->range.end))
        return xseg_mapping_fail_claimed(made->range.begin);
    return XSEG_OK;
}

/* Pin all runs, or none. */
static xseg_status pin_all(struct xseg_registration *made)
{
    struct xseg_registration_run *run = first_over(made, 0, UINT64_MAX), *done;
    xseg_status status = XSEG_OK;

    for (; made->calls.pin && run != NULL; run = next_over(made, 0, UINT64_MAX, run->range.begin)) {
        status = pin(made, run->range.begin, run->range.end);
        if (status != XSEG_OK)
            break;
    }
    for (done = first_over(made, 0, UINT64_MAX); status != XSEG_OK && done != run;
         done = next_over(made, 0, UINT64_MAX, done->range.begin))
        unpin(made, done);
    return status;
}

xseg_status xseg_registration_find(struct xseg_registration *made)
{
    const xseg_status status = check(made);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status != XSEG_OK)
        return status;
    for (uint64_t at = made->range.begin; at < made->range.end;)
        if (!add_run(made, &at))
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, registration record");
    if (made->runs.root == NULL)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                         "address range has no mapped memory, %" PRIu64 " bytes at %#" PRIx64,
                         made->range.end - made->range.begin, made->range.begin);
    return pin_all(made);
}

uint64_t xseg_registration_enter_all(struct xseg_registration_table *desk,
                                     struct xseg_registration *made)
{
    struct xseg_registration_run *run;
    uint64_t after = 0, refused = 0;

    /* Other threads may add runs meanwhile, of memory that is mapped after the search. */
    for (run = first_over(made, 0, UINT64_MAX); run != NULL;
         run = next_over(made, 0, UINT64_MAX, after)) {
        after = run->range.begin;
        if (!run->is_owned)
            continue;
        const bool has_entered = refused == 0 && call(desk, made, run, true);
        if (has_entered)
            continue;
        refused = refused == 0 ? run->range.begin : refused;
        (void)change_pin(desk, made, run, false);
        remove_run(made, run);
    }
    for (run = first_over(made, 0, UINT64_MAX); refused == 0 && run != NULL;
         run = next_over(made, 0, UINT64_MAX, run->range.begin))
        if (run->is_owned)
            run->is_busy = run->is_owned = false;
    return refused;
}

/* --- Queries. --- */

uint64_t xseg_registration_over(const struct xseg_registration *registration, uint64_t begin,
                                uint64_t end)
{
    uint64_t bytes = 0;

    for (const struct xseg_registration_run *run = first_over(registration, begin, end);
         run != NULL; run = next_over(registration, begin, end, run->range.begin))
        if (run->has_entered)
            bytes += xseg_min(run->range.end, end) - xseg_max(run->range.begin, begin);
    return bytes;
}
