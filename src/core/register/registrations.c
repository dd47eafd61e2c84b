/* SPDX-License-Identifier: MIT */
#include "src/core/register/registrations.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/notify.h"

/* --- The table. --- */

static struct xseg_registration *registration_of(struct xseg_interval *node)
{
    return node == NULL ? NULL : XSEG_CONTAINER(node, struct xseg_registration, range);
}

static struct xseg_registration **id_list(const struct xseg_registrations *all, uint64_t id)
{
    return &all->by_id[id & (all->buckets - 1)];
}

static void add_to_list(struct xseg_registrations *all, struct xseg_registration *one)
{
    struct xseg_registration **id = id_list(all, one->range.order);

    one->same_id = *id;
    *id = one;
}

static void remove_from_list(struct xseg_registrations *all, const struct xseg_registration *one)
{
    struct xseg_registration **id = id_list(all, one->range.order);

    while (*id != one)
        id = &(*id)->same_id;
    *id = one->same_id;
}

/* Have at least as many buckets as registrations; false without host memory. */
static bool has_room(struct xseg_registrations *all)
{
    const size_t buckets = all->buckets == 0 ? 64 : 2 * all->buckets;
    struct xseg_registration **more;

    if (all->count < all->buckets)
        return true;
    more = calloc(buckets, sizeof(struct xseg_registration *));
    if (more == NULL)
        return false;
    free(all->by_id);
    all->by_id = more;
    all->buckets = buckets;
    for (struct xseg_interval *node = xseg_intervals_first(&all->ranges, 0, UINT64_MAX);
         node != NULL;
         node = xseg_intervals_next(&all->ranges, 0, UINT64_MAX, node->begin, node->order))
        add_to_list(all, registration_of(node));
    return true;
}

static struct xseg_registration *find_id(const struct xseg_registrations *all, uint64_t id)
{
    struct xseg_registration *found = all->count == 0 ? NULL : *id_list(all, id);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_REGISTRATIONS));
    while (found != NULL && found->range.order != id)
        found = found->same_id;
    return found;
}

/* Put a registration that starts into the table.  The device memory lock is held.  False without host memory. */
static bool put(struct xseg_registrations *all, struct xseg_registration *made)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_mutex_lock(&all->desk.lock);
    const bool done = has_room(all);
    if (done) {
        made->range.order = ++all->last_id;
        made->is_starting = true;
        atomic_fetch_add(&all->changes, 1);
        xseg_intervals_insert(&all->ranges, &made->range);
        add_to_list(all, made);
        all->count++;
        made->extent->registered++;
    }
    xseg_mutex_unlock(&all->desk.lock);
    return done;
}

/* Remove a registration from the table and release the owner's reference.  Callbacks may still run in other threads; with
 * `waits` the call waits until they have returned. */
static void take_out(struct xseg_registrations *all, struct xseg_registration *registration,
                     bool waits)
{
    struct xseg_device *device = registration->device;
    struct xseg_extent *extent = registration->extent;

    xseg_mutex_lock(&all->desk.lock);
    XSEG_ASSERT(registration->ends && !registration->is_starting);
    while (waits && registration->references > 1)
        (void)pthread_cond_wait(&all->desk.changed, &all->desk.lock.os);
    xseg_mutex_unlock(&all->desk.lock);
    /* The device memory lock keeps the record of a classic segment from being reused between the check and the update. */
    xseg_mutex_lock(&device->growth_lock);
    xseg_mutex_lock(&all->desk.lock);
    if (!registration->is_over)
        extent->registered--;
    atomic_fetch_add(&all->changes, 1);
    xseg_intervals_remove(&all->ranges, &registration->range);
    remove_from_list(all, registration);
    all->count--;
    xseg_registration_release(&all->desk, registration);
    xseg_mutex_unlock(&all->desk.lock);
    xseg_mutex_unlock(&device->growth_lock);
}

/* --- Notifications. --- */

/* Follow the classic segment of a registration: its addresses end with its memory, unless the memory stays after all. */
static void follow_classic(struct xseg_registration *registration,
                           const struct xseg_mapping *mapping, bool leaves)
{
    if (leaves && !registration->is_over)
        registration->generation = mapping->generation;
    if (leaves || registration->generation == mapping->generation)
        registration->is_over = leaves;
}

static void follow(struct xseg_registrations *all, const struct xseg_mapping *mapping, bool leaves)
{
    const uint64_t begin = (uintptr_t)mapping->base, end = begin + mapping->bytes;
    struct xseg_interval *node;
    uint64_t after = 0, order = 0;

    xseg_mutex_lock(&all->desk.lock);
    while ((node = xseg_intervals_next(&all->ranges, begin, end, after, order)) != NULL) {
        struct xseg_registration *registration = registration_of(node);

        after = node->begin;
        order = node->order;
        registration->references++;
        if (!leaves && !mapping->is_expandable)
            follow_classic(registration, mapping, false);
        if (!leaves)
            xseg_registration_enter(&all->desk, registration, begin, end);
        else if (!xseg_registration_leave(&all->desk, registration, begin, end))
            xseg_notify_keep();
        if (leaves && !mapping->is_expandable)
            follow_classic(registration, mapping, true);
        xseg_registration_release(&all->desk, registration);
    }
    xseg_mutex_unlock(&all->desk.lock);
}

static void pending_unmaps(void *context, const struct xseg_mapping *mapping)
{
    follow(context, mapping, true);
}

static void came(void *context, const struct xseg_mapping *mapping)
{
    follow(context, mapping, false);
}

static xseg_status observe(struct xseg_registrations *all)
{
    const struct xseg_observer observer = {.struct_size = sizeof(observer),
                                           .context = all,
                                           .on_unmap = pending_unmaps,
                                           .on_map = came};
    xseg_status status = XSEG_OK;
    uint64_t id = 0;

    xseg_mutex_lock(&all->desk.lock);
    if (!atomic_load(&all->observes))
        status = xseg_observers_add(&all->allocator->observers, &observer, &id);
    if (status == XSEG_OK)
        atomic_store(&all->observes, true);
    xseg_mutex_unlock(&all->desk.lock);
    return status;
}

/* --- Adding and removing. --- */

/* Make a registration whose extent is known, and put it into the table; its runs are pinned, and have not entered yet.
 * The device memory lock is held. */
static xseg_status make(struct xseg_registrations *all, const struct xseg_registration *wanted,
                        struct xseg_registration **out)
{
    struct xseg_registration *made = xseg_registration_make(wanted);

    if (made == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, registration record");
    made->device = made->extent->arena->device;
    made->pool = xseg_pool_of(made->extent);
    xseg_status status = xseg_registration_find(made);
    if (status == XSEG_OK && !put(all, made)) {
        xseg_registration_unpin(made);
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of registrations");
    }
    if (status != XSEG_OK)
        xseg_registration_free(made);
    else
        *out = made;
    return status;
}

/* Let the runs of a new registration enter; when one is rejected, the registration ends. */
static xseg_status start(struct xseg_registrations *all, struct xseg_registration *made)
{
    xseg_mutex_lock(&all->desk.lock);
    const uint64_t refused = xseg_registration_enter_all(&all->desk, made);
    made->is_starting = false;
    made->ends = refused != 0;
    if (refused != 0)
        xseg_registration_leave_all(&all->desk, made);
    xseg_mutex_unlock(&all->desk.lock);
    if (refused == 0)
        return XSEG_OK;
    take_out(all, made, false);
    return xseg_fail(XSEG_ERR_UNSUPPORTED, "callback enter rejected a run of memory, %#" PRIx64,
                     refused);
}

xseg_status xseg_registrations_add(struct xseg_registrations *all, uint64_t address, uint64_t bytes,
                                   const struct xseg_registrar *registrar,
                                   uint64_t *id) XSEG_UNCHECKED
{
    struct xseg_registration wanted = {.range = {.begin = address, .end = address + bytes},
                                       .calls = *registrar};
    struct xseg_registration *made = NULL;
    xseg_status status = observe(all);

    if (status != XSEG_OK)
        return status;
    wanted.extent = xseg_mapping_hold(all->allocator, address);
    if (wanted.extent == NULL)
        return xseg_allocator_fail_foreign(address);
    status = make(all, &wanted, &made);
    const uint64_t given = made == NULL ? 0 : made->range.order;
    xseg_mutex_unlock(&wanted.extent->arena->device->growth_lock);
    if (made != NULL)
        status = start(all, made);
    if (status == XSEG_OK)
        *id = given;
    return status;
}

/* Find a registration that can be removed, and mark it. */
static xseg_status begin_removal(struct xseg_registrations *all, uint64_t id,
                                 struct xseg_registration **out) XSEG_REQUIRES(all->desk.lock)
{
    struct xseg_registration *found = find_id(all, id);

    if (found == NULL || found->ends)
        return xseg_fail(XSEG_ERR_ARGUMENT, "registration does not exist, ID %" PRIu64, id);
    if (xseg_callback_is_of(found))
        return xseg_fail(XSEG_ERR_BUSY,
                         "registration cannot be ended in its own callback, ID %" PRIu64
                         "; retry after the callback has returned",
                         id);
    if (found->is_starting || (found->references > 1 && xseg_callback_is_any()))
        return xseg_fail(XSEG_ERR_BUSY,
                         "callback of the registration runs in another thread, ID %" PRIu64
                         "; retry outside of callbacks",
                         id);
    found->ends = true;
    *out = found;
    return XSEG_OK;
}

xseg_status xseg_registrations_remove(struct xseg_registrations *all, uint64_t id)
{
    struct xseg_registration *ended = NULL;

    xseg_mutex_lock(&all->desk.lock);
    const xseg_status status = begin_removal(all, id, &ended);
    if (ended != NULL)
        xseg_registration_leave_all(&all->desk, ended);
    xseg_mutex_unlock(&all->desk.lock);
    if (ended != NULL)
        take_out(all, ended, true);
    return status;
}

/* --- Queries. --- */

/* The first registration that overlaps [begin, end), or the next one after another one. */
static struct xseg_registration *next_over(const struct xseg_registrations *all,
                                           const struct xseg_registration *after, uint64_t begin,
                                           uint64_t end)
{
    return registration_of(after == NULL
                               ? xseg_intervals_first(&all->ranges, begin, end)
                               : xseg_intervals_next(&all->ranges, begin, end, after->range.begin,
                                                     after->range.order));
}

xseg_status xseg_registrations_check_none(struct xseg_registrations *all)
{
    xseg_mutex_lock(&all->desk.lock);
    const size_t count = all->count;
    const uint64_t id = count != 0 ? registration_of(all->ranges.root)->range.order : 0;
    xseg_mutex_unlock(&all->desk.lock);
    if (count == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_BUSY,
                     "memory is registered, %zu registration%s, one with ID %" PRIu64
                     "; xseg_unregister() it first",
                     count, count == 1 ? "" : "s", id);
}

static uint64_t add_up(struct xseg_registrations *all, int device, bool of_all,
                       const struct xseg_pool *pool)
{
    uint64_t bytes = 0;

    if (!atomic_load(&all->observes))
        return 0;
    xseg_mutex_lock(&all->desk.lock);
    for (const struct xseg_registration *one = next_over(all, NULL, 0, UINT64_MAX); one != NULL;
         one = next_over(all, one, 0, UINT64_MAX))
        if (one->device->context.ordinal == device && (of_all || one->pool == pool))
            bytes += one->bytes;
    xseg_mutex_unlock(&all->desk.lock);
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

    xseg_mutex_lock(&all->desk.lock);
    for (const struct xseg_registration *one = next_over(all, NULL, begin, end); one != NULL;
         one = next_over(all, one, begin, end))
        bytes += xseg_registration_over(one, begin, end);
    xseg_mutex_unlock(&all->desk.lock);
    return bytes;
}

bool xseg_registrations_pin(struct xseg_registrations *all, uint64_t begin, uint64_t end)
{
    bool found = false;

    xseg_mutex_lock(&all->desk.lock);
    for (const struct xseg_registration *one = next_over(all, NULL, begin, end);
         one != NULL && !found; one = next_over(all, one, begin, end))
        found = one->calls.pin && xseg_registration_over(one, begin, end) != 0;
    xseg_mutex_unlock(&all->desk.lock);
    return found;
}

/* --- The whole. --- */

void xseg_registrations_init(struct xseg_registrations *all, struct xseg_allocator *allocator)
{
    memset(all, 0, sizeof(*all));
    all->allocator = allocator;
    xseg_mutex_init(&all->desk.lock, XSEG_RANK_REGISTRATIONS);
    (void)pthread_cond_init(&all->desk.changed, NULL);
}

void xseg_registrations_fini(struct xseg_registrations *all)
{
    XSEG_ASSERT(all->count == 0);
    free(all->by_id);
    for (size_t fd = 0; fd < all->pin_capacity; fd++)
        free(all->pin[fd]);
    free(all->pin);
    (void)pthread_cond_destroy(&all->desk.changed);
    xseg_mutex_fini(&all->desk.lock);
}
