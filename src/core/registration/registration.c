/* SPDX-License-Identifier: MIT */
#include "src/core/registration/registration.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/core/device/pool.h"
#include "src/core/reclaim/mapping.h"

struct xseg_registration_run {
    struct xseg_list link;
    uint64_t begin, end;
    void *handle; /* the user's */
};

/* The registrations that this thread works at, the innermost first. */
struct visit {
    const struct xseg_registration *registration;
    const struct visit *outer;
};
static _Thread_local const struct visit *here;

static struct xseg_registration_run *run_of(struct xseg_list *node)
{
    return XSEG_CONTAINER(node, struct xseg_registration_run, link);
}

struct xseg_registration *xseg_registration_make(const struct xseg_registration *like)
{
    struct xseg_registration *made = malloc(sizeof(*made));

    if (made == NULL)
        return NULL;
    *made = *like;
    xseg_list_init(&made->runs);
    return made;
}

void xseg_registration_free(struct xseg_registration *registration)
{
    XSEG_LIST_FOR_SAFE(node, &registration->runs)
    {
        free(run_of(node));
    }
    free(registration);
}

/* --- Working at a registration. --- */

bool xseg_registration_is_here(const struct xseg_registration *registration)
{
    const struct visit *visit = here;

    while (visit != NULL && visit->registration != registration)
        visit = visit->outer;
    return visit != NULL;
}

void xseg_registration_begin(struct xseg_registration_desk *desk,
                             struct xseg_registration *registration)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_REGISTRATIONS));
    registration->users++;
    if (xseg_registration_is_here(registration))
        return;
    while (registration->is_worked)
        (void)pthread_cond_wait(&desk->changed, &desk->lock.os);
    registration->is_worked = true;
}

void xseg_registration_stop(struct xseg_registration_desk *desk,
                            struct xseg_registration *registration)
{
    XSEG_ASSERT(registration->users > 0 && registration->is_worked);
    registration->users--;
    if (xseg_registration_is_here(registration))
        return;
    registration->is_worked = false;
    (void)pthread_cond_broadcast(&desk->changed);
}

/* Call a function of the user's about a run; the lock is let go meanwhile.  Returns the answer of `enter`. */
static bool call(struct xseg_registration_desk *desk, struct xseg_registration *registration,
                 struct xseg_registration_run *run, bool enters) XSEG_REQUIRES(desk->lock)
{
    const struct visit visit = {registration, here};
    struct xseg_registered told = {
        .struct_bytes = sizeof(told),
        .device = registration->device->context.ordinal,
        .base = (void *)(uintptr_t)run->begin, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = run->end - run->begin,
        .handle = run->handle,
    };
    bool answer = true;

    xseg_lock_give(&desk->lock);
    XSEG_ASSERT(!xseg_lock_is_any_held());
    here = &visit;
    if (enters)
        answer = registration->calls.enter(registration->calls.context, &told);
    else
        registration->calls.leave(registration->calls.context, &told);
    here = visit.outer;
    xseg_lock_take(&desk->lock);
    run->handle = told.handle;
    return answer;
}

/* --- Pins. --- */

static xseg_status pin(const struct xseg_registration *registration,
                       const struct xseg_registration_run *run)
{
    struct xseg_segment *segment = &registration->extent->segment;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    return xseg_segment_retain(segment, XSEG_RETAIN_REGISTRATION, run->begin - segment->base,
                               run->end - segment->base);
}

static void unpin(const struct xseg_registration *registration,
                  const struct xseg_registration_run *run)
{
    struct xseg_segment *segment = &registration->extent->segment;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    const bool done = xseg_segment_release(segment, XSEG_RETAIN_REGISTRATION,
                                           run->begin - segment->base, run->end - segment->base);
    XSEG_ASSERT(done);
    (void)done;
}

/* Take GROWTH in place of the registrations' lock, which is inside of it; and back. */
static void take_growth(struct xseg_registration_desk *desk,
                        const struct xseg_registration *registration) XSEG_UNCHECKED
{
    xseg_lock_give(&desk->lock);
    xseg_lock_take(&registration->device->growth_lock);
}

static void give_growth(struct xseg_registration_desk *desk,
                        const struct xseg_registration *registration) XSEG_UNCHECKED
{
    xseg_lock_give(&registration->device->growth_lock);
    xseg_lock_take(&desk->lock);
}

void xseg_registration_unpin(struct xseg_registration *made)
{
    XSEG_LIST_FOR(node, &made->runs)
    {
        unpin(made, run_of(node));
    }
}

/* --- Memory that comes and goes. --- */

static struct xseg_registration_run *make_run(uint64_t begin, uint64_t end)
{
    struct xseg_registration_run *run = malloc(sizeof(*run));

    XSEG_ASSERT(begin < end);
    if (run != NULL) {
        *run = (struct xseg_registration_run){.begin = begin, .end = end};
        xseg_list_init(&run->link);
    }
    return run;
}

/* Pin a run that enters.  What stays of a run is pinned only while the pool runs: else all of it is about to go. */
static bool pin_for(struct xseg_registration_desk *desk,
                    const struct xseg_registration *registration,
                    const struct xseg_registration_run *run, bool is_new) XSEG_REQUIRES(desk->lock)
{
    take_growth(desk, registration);
    const bool done =
        (is_new || xseg_pool_check_running(registration->extent->arena->pool) == XSEG_OK) &&
        pin(registration, run) == XSEG_OK;
    give_growth(desk, registration);
    return done;
}

/*
 * Let a run enter.  Without host memory, or where its pages cannot be pinned, it does not.
 *
 * is_new: nobody has been given the memory, so it cannot go meanwhile; else it is pinned for that time
 */
static void enter(struct xseg_registration_desk *desk, struct xseg_registration *registration,
                  uint64_t begin, uint64_t end, bool is_new) XSEG_REQUIRES(desk->lock)
{
    const bool pins = registration->calls.pin || !is_new;
    struct xseg_registration_run *run = begin < end ? make_run(begin, end) : NULL;

    if (run == NULL)
        return;
    if (pins && !pin_for(desk, registration, run, is_new)) {
        free(run);
        return;
    }
    const bool has_entered = call(desk, registration, run, true);
    if (has_entered)
        xseg_list_insert(&registration->runs, &run->link);
    if (pins && !(has_entered && registration->calls.pin)) {
        take_growth(desk, registration);
        unpin(registration, run);
        give_growth(desk, registration);
    }
    if (!has_entered)
        free(run);
}

void xseg_registration_enter(struct xseg_registration_desk *desk,
                             struct xseg_registration *registration, uint64_t begin, uint64_t end)
{
    if (!registration->ends && !registration->is_over)
        enter(desk, registration, xseg_max(registration->begin, begin),
              xseg_min(registration->end, end), true);
}

/* The first run with some of the bytes [begin, end); NULL: none. */
static struct xseg_registration_run *run_over(const struct xseg_registration *registration,
                                              uint64_t begin, uint64_t end)
{
    XSEG_LIST_FOR(node, &registration->runs)
    {
        struct xseg_registration_run *run = run_of(node);

        if (run->begin < end && run->end > begin)
            return run;
    }
    return NULL;
}

void xseg_registration_leave(struct xseg_registration_desk *desk,
                             struct xseg_registration *registration, uint64_t begin, uint64_t end)
{
    struct xseg_registration_run *run;

    while ((run = run_over(registration, begin, end)) != NULL) {
        xseg_list_remove(&run->link);
        (void)call(desk, registration, run, false);
        enter(desk, registration, run->begin, xseg_min(run->end, begin), false);
        enter(desk, registration, xseg_max(run->begin, end), run->end, false);
        free(run);
    }
}

void xseg_registration_leave_all(struct xseg_registration_desk *desk,
                                 struct xseg_registration *registration)
{
    while (!xseg_list_is_empty(&registration->runs)) {
        struct xseg_registration_run *run = run_of(registration->runs.next);

        xseg_list_remove(&run->link);
        (void)call(desk, registration, run, false);
        if (registration->calls.pin) {
            take_growth(desk, registration);
            unpin(registration, run);
            give_growth(desk, registration);
        }
        free(run);
    }
}

/* --- The runs of a range at first. --- */

/* Add the next run of mapped memory of a range, from *at on, which moves behind the run.  False without host memory. */
static bool add_run(struct xseg_registration *made, uint64_t *at)
{
    const struct xseg_segment *segment = &made->extent->segment;
    uint64_t begin = *at, end = made->end;

    if (xseg_segment_is_expandable(segment)) {
        const uint64_t granule = segment->granule_bytes;
        const uint32_t most = (uint32_t)((end - segment->base + granule - 1) / granule);
        uint32_t first = (uint32_t)((begin - segment->base) / granule);

        while (first < most && !xseg_segment_is_mapped(segment, first))
            first++;
        begin = xseg_max(begin, segment->base + first * granule);
        while (first < most && xseg_segment_is_mapped(segment, first))
            first++;
        end = xseg_min(end, segment->base + first * granule);
    }
    *at = begin < end ? end : made->end;
    if (begin >= end)
        return true;
    struct xseg_registration_run *run = make_run(begin, end);
    if (run != NULL)
        xseg_list_insert(&made->runs, &run->link);
    return run != NULL;
}

static xseg_status check(const struct xseg_registration *made)
{
    const struct xseg_segment *segment = &made->extent->segment;
    const uint64_t ends = segment->base + segment->bytes, bytes = made->end - made->begin;
    const xseg_status status = xseg_pool_check_running(made->extent->arena->pool);

    if (status != XSEG_OK)
        return status;
    if (made->end > ends)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "the %" PRIu64 " bytes from %#" PRIx64
                         " on do not end in one segment, which ends at %#" PRIx64
                         ": register each by itself",
                         bytes, made->begin, ends);
    if (xseg_mapping_is_claimed(made->extent, made->begin, made->end))
        return xseg_mapping_fail_claimed("xseg_register", made->begin);
    return XSEG_OK;
}

/* Pin all runs, or none. */
static xseg_status pin_all(struct xseg_registration *made)
{
    XSEG_LIST_FOR(node, &made->runs)
    {
        const xseg_status status = pin(made, run_of(node));

        if (status == XSEG_OK)
            continue;
        while ((node = node->prev) != &made->runs)
            unpin(made, run_of(node));
        return status;
    }
    return XSEG_OK;
}

xseg_status xseg_registration_find(struct xseg_registration *made)
{
    const xseg_status status = check(made);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (status != XSEG_OK)
        return status;
    for (uint64_t at = made->begin; at < made->end;)
        if (!add_run(made, &at))
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a registration");
    if (xseg_list_is_empty(&made->runs))
        return xseg_fail(XSEG_ERR_NOT_LIVE,
                         "no memory lies in the %" PRIu64 " bytes from %#" PRIx64 " on",
                         made->end - made->begin, made->begin);
    return pin_all(made);
}

uint64_t xseg_registration_enter_all(struct xseg_registration_desk *desk,
                                     struct xseg_registration *made)
{
    struct xseg_list found = made->runs;
    uint64_t refused = 0;

    /* The list moves as a whole: what has not entered is no run. */
    found.next->prev = found.prev->next = &found;
    xseg_list_init(&made->runs);
    while (!xseg_list_is_empty(&found)) {
        struct xseg_registration_run *run = run_of(found.next);

        xseg_list_remove(&run->link);
        const bool has_entered = refused == 0 && call(desk, made, run, true);
        if (has_entered)
            xseg_list_insert(&made->runs, &run->link);
        else if (refused == 0)
            refused = run->begin;
        if (!has_entered || !made->calls.pin) {
            take_growth(desk, made);
            unpin(made, run);
            give_growth(desk, made);
        }
        if (!has_entered)
            free(run);
    }
    if (refused != 0)
        xseg_registration_leave_all(desk, made);
    return refused;
}

/* --- Questions. --- */

uint64_t xseg_registration_over(const struct xseg_registration *registration, uint64_t begin,
                                uint64_t end)
{
    uint64_t bytes = 0;

    XSEG_LIST_FOR(node, &registration->runs)
    {
        const struct xseg_registration_run *run = run_of(node);

        if (run->begin < end && run->end > begin)
            bytes += xseg_min(run->end, end) - xseg_max(run->begin, begin);
    }
    return bytes;
}
