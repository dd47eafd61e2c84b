/* SPDX-License-Identifier: MIT */
#include "src/core/registration/registrations.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/reclaim/mapping.h"

/* --- The table. --- */

static size_t place_of(const struct xseg_registrations *all, uint64_t id)
{
    size_t at = 0;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_REGISTRATIONS));
    while (at < all->count && all->range[at].registration->id != id)
        at++;
    return at;
}

/* The first registration behind an id whose range has some of the bytes [begin, end); NULL: none. */
static struct xseg_registration *next_over(const struct xseg_registrations *all, uint64_t id,
                                           uint64_t begin, uint64_t end)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_REGISTRATIONS));
    for (size_t at = 0; at < all->count; at++) {
        const struct xseg_registration_range *range = &all->range[at];

        if (range->begin < end && range->end > begin && range->registration->id > id)
            return range->registration;
    }
    return NULL;
}

/* Whether two registrations are the same one: of one range, with the same functions. */
static bool is_alike(const struct xseg_registration *a, const struct xseg_registration *b)
{
    return a->begin == b->begin && a->end == b->end && a->calls.context == b->calls.context &&
           a->calls.enter == b->calls.enter && a->calls.leave == b->calls.leave &&
           a->calls.pin == b->calls.pin;
}

/* Count a registration once more that is there already, and that no thread works at.  Returns its id; 0: there is none. */
static uint64_t count_again(struct xseg_registrations *all, const struct xseg_registration *wanted)
{
    uint64_t id = 0;

    xseg_lock_take(&all->desk.lock);
    for (size_t at = 0; at < all->count && id == 0; at++) {
        struct xseg_registration *found = all->range[at].registration;

        if (found->users == 0 && !found->is_over && is_alike(found, wanted)) {
            found->times++;
            id = found->id;
        }
    }
    xseg_lock_give(&all->desk.lock);
    return id;
}

/* Put a registration into the table, worked at by this thread.  GROWTH is held.  False without host memory. */
static bool put(struct xseg_registrations *all, struct xseg_registration *made)
{
    bool has_room = true;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    xseg_lock_take(&all->desk.lock);
    if (all->count == all->capacity) {
        const size_t capacity = all->capacity == 0 ? 64 : 2 * all->capacity;
        struct xseg_registration_range *more = realloc(all->range, capacity * sizeof(*more));

        has_room = more != NULL;
        all->range = has_room ? more : all->range;
        all->capacity = has_room ? capacity : all->capacity;
    }
    if (has_room) {
        made->id = ++all->last_id;
        made->users = 1;
        made->is_worked = true;
        atomic_fetch_add(&all->changes, 1);
        all->range[all->count++] = (struct xseg_registration_range){made->begin, made->end, made};
        made->extent->registered++;
    }
    xseg_lock_give(&all->desk.lock);
    return has_room;
}

/* Take a registration that has no runs any more out of the table, once no other thread is at it, and free it. */
static void take_out(struct xseg_registrations *all, struct xseg_registration *registration)
{
    struct xseg_device *device = registration->device;

    xseg_lock_take(&all->desk.lock);
    XSEG_ASSERT(registration->ends && registration->is_worked);
    XSEG_ASSERT(xseg_list_is_empty(&registration->runs));
    const size_t at = place_of(all, registration->id);
    XSEG_ASSERT(at < all->count);
    atomic_fetch_add(&all->changes, 1);
    memmove(&all->range[at], &all->range[at + 1], (--all->count - at) * sizeof(all->range[0]));
    xseg_registration_stop(&all->desk, registration);
    while (registration->users != 0)
        (void)pthread_cond_wait(&all->desk.changed, &all->desk.lock.os);
    xseg_lock_give(&all->desk.lock);
    xseg_lock_take(&device->growth_lock);
    if (!registration->is_over)
        registration->extent->registered--;
    xseg_lock_give(&device->growth_lock);
    xseg_registration_free(registration);
}

/* --- What is told of memory. --- */

static void follow(struct xseg_registrations *all, const struct xseg_mapping *mapping, bool leaves)
{
    const uint64_t begin = (uintptr_t)mapping->base, end = begin + mapping->bytes;
    struct xseg_registration *registration = NULL;
    uint64_t last = 0;

    xseg_lock_take(&all->desk.lock);
    while ((registration = next_over(all, last, begin, end)) != NULL) {
        last = registration->id;
        xseg_registration_begin(&all->desk, registration);
        if (leaves)
            xseg_registration_leave(&all->desk, registration, begin, end);
        else
            xseg_registration_enter(&all->desk, registration, begin, end);
        registration->is_over |= leaves && !mapping->is_expandable;
        xseg_registration_stop(&all->desk, registration);
    }
    xseg_lock_give(&all->desk.lock);
}

static void leaving(void *context, const struct xseg_mapping *mapping)
{
    follow(context, mapping, true);
}

static void came(void *context, const struct xseg_mapping *mapping)
{
    follow(context, mapping, false);
}

static xseg_status observe(struct xseg_registrations *all)
{
    const struct xseg_observer observer = {
        .struct_bytes = sizeof(observer), .context = all, .leaving = leaving, .came = came};
    xseg_status status = XSEG_OK;
    uint64_t id = 0;

    xseg_lock_take(&all->desk.lock);
    if (!atomic_load(&all->observes))
        status = xseg_observers_add(&all->allocator->observers, &observer, &id);
    if (status == XSEG_OK)
        atomic_store(&all->observes, true);
    xseg_lock_give(&all->desk.lock);
    return status;
}

/* --- Adding and removing. --- */

/* Make a registration whose extent is known, and put it into the table; its runs are pinned, and have not entered yet.
 * GROWTH is held. */
static xseg_status make(struct xseg_registrations *all, const struct xseg_registration *wanted,
                        struct xseg_registration **out)
{
    struct xseg_registration *made = xseg_registration_make(wanted);

    if (made == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a registration");
    made->device = made->extent->arena->device;
    made->pool = xseg_pool_of(made->extent);
    xseg_status status = xseg_registration_find(made);
    if (status == XSEG_OK && !put(all, made)) {
        xseg_registration_unpin(made);
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the table of registrations");
    }
    if (status != XSEG_OK)
        xseg_registration_free(made);
    else
        *out = made;
    return status;
}

/* Let a new registration's runs enter; when one is refused, the registration ends. */
static xseg_status start(struct xseg_registrations *all, struct xseg_registration *made)
{
    xseg_lock_take(&all->desk.lock);
    const uint64_t refused = xseg_registration_enter_all(&all->desk, made);
    made->ends = refused != 0;
    if (refused == 0)
        xseg_registration_stop(&all->desk, made);
    xseg_lock_give(&all->desk.lock);
    if (refused == 0)
        return XSEG_OK;
    take_out(all, made);
    return xseg_fail(XSEG_ERR_UNSUPPORTED, "`enter` refused the memory at %#" PRIx64, refused);
}

xseg_status xseg_registrations_add(struct xseg_registrations *all, uint64_t address, uint64_t bytes,
                                   const struct xseg_registrar *registrar,
                                   uint64_t *id) XSEG_UNCHECKED
{
    struct xseg_registration wanted = {
        .begin = address, .end = address + bytes, .calls = *registrar, .times = 1};
    struct xseg_registration *made = NULL;
    xseg_status status = observe(all);

    if (status != XSEG_OK)
        return status;
    wanted.extent = xseg_mapping_hold(all->allocator, address);
    if (wanted.extent == NULL)
        return xseg_fail(XSEG_ERR_NOT_LIVE, "%#" PRIx64 " is not memory of this allocator",
                         address);
    uint64_t given = count_again(all, &wanted);
    if (given == 0)
        status = make(all, &wanted, &made);
    if (made != NULL)
        given = made->id;
    xseg_lock_give(&wanted.extent->arena->device->growth_lock);
    if (made != NULL)
        status = start(all, made);
    if (status == XSEG_OK)
        *id = given;
    return status;
}

/* Take one time off a registration.  *out: it, worked at by this thread, if that was the last time */
static xseg_status count_off(struct xseg_registrations *all, uint64_t id,
                             struct xseg_registration **out) XSEG_REQUIRES(all->desk.lock)
{
    const size_t at = place_of(all, id);
    struct xseg_registration *found = at < all->count ? all->range[at].registration : NULL;

    if (found == NULL || found->ends)
        return xseg_fail(XSEG_ERR_ARGUMENT, "there is no registration with the id %" PRIu64, id);
    if (xseg_registration_is_here(found))
        return xseg_fail(XSEG_ERR_BUSY,
                         "registration %" PRIu64
                         " cannot end from within its own functions: end it after their return",
                         id);
    if (--found->times != 0)
        return XSEG_OK;
    found->ends = true;
    xseg_registration_begin(&all->desk, found);
    *out = found;
    return XSEG_OK;
}

xseg_status xseg_registrations_remove(struct xseg_registrations *all, uint64_t id)
{
    struct xseg_registration *ended = NULL;

    xseg_lock_take(&all->desk.lock);
    const xseg_status status = count_off(all, id, &ended);
    if (ended != NULL)
        xseg_registration_leave_all(&all->desk, ended);
    xseg_lock_give(&all->desk.lock);
    if (ended != NULL)
        take_out(all, ended);
    return status;
}

/* --- Questions. --- */

xseg_status xseg_registrations_expect_none(struct xseg_registrations *all)
{
    xseg_lock_take(&all->desk.lock);
    const size_t count = all->count;
    const uint64_t id = count != 0 ? all->range[0].registration->id : 0;
    xseg_lock_give(&all->desk.lock);
    if (count == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_BUSY,
                     "%zu range%s registered, the first with the id %" PRIu64
                     ": xseg_unregister() first",
                     count, count == 1 ? " is" : "s are", id);
}

static uint64_t add_up(struct xseg_registrations *all, int device, bool of_all,
                       const struct xseg_pool *pool)
{
    uint64_t bytes = 0;

    if (!atomic_load(&all->observes))
        return 0;
    xseg_lock_take(&all->desk.lock);
    for (size_t at = 0; at < all->count; at++) {
        const struct xseg_registration *registration = all->range[at].registration;

        if (registration->device->context.ordinal == device &&
            (of_all || registration->pool == pool))
            bytes += xseg_registration_over(registration, registration->begin, registration->end);
    }
    xseg_lock_give(&all->desk.lock);
    return bytes;
}

uint64_t xseg_registrations_bytes(struct xseg_registrations *all, int device)
{
    return add_up(all, device, true, NULL);
}

uint64_t xseg_registrations_pool_bytes(struct xseg_registrations *all, int device,
                                       const struct xseg_pool *pool)
{
    return add_up(all, device, false, pool);
}

uint64_t xseg_registrations_over(struct xseg_registrations *all, uint64_t begin, uint64_t end)
{
    uint64_t bytes = 0;

    xseg_lock_take(&all->desk.lock);
    for (size_t at = 0; at < all->count; at++)
        if (all->range[at].begin < end && all->range[at].end > begin)
            bytes += xseg_registration_over(all->range[at].registration, begin, end);
    xseg_lock_give(&all->desk.lock);
    return bytes;
}

bool xseg_registrations_pin(struct xseg_registrations *all, uint64_t begin, uint64_t end)
{
    bool found = false;

    xseg_lock_take(&all->desk.lock);
    for (size_t at = 0; at < all->count && !found; at++)
        found = all->range[at].registration->calls.pin &&
                xseg_registration_over(all->range[at].registration, begin, end) != 0;
    xseg_lock_give(&all->desk.lock);
    return found;
}

/* --- The whole. --- */

void xseg_registrations_init(struct xseg_registrations *all, struct xseg_allocator *allocator)
{
    memset(all, 0, sizeof(*all));
    all->allocator = allocator;
    xseg_lock_init(&all->desk.lock, XSEG_RANK_REGISTRATIONS);
    (void)pthread_cond_init(&all->desk.changed, NULL);
}

void xseg_registrations_fini(struct xseg_registrations *all)
{
    XSEG_ASSERT(all->count == 0);
    free(all->range);
    for (size_t fd = 0; fd < all->pin_capacity; fd++)
        free(all->pin[fd]);
    free(all->pin);
    (void)pthread_cond_destroy(&all->desk.changed);
    xseg_lock_fini(&all->desk.lock);
}
