/* SPDX-License-Identifier: MIT */
/*
 * The registrations of an allocator: the table, the observer that delivers notifications, register
 * and unregister, and queries (register.h).
 *
 * Locking: the lock of the table.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/register/register.h"

/* --- Table. --- */

static struct xseg_registration *registration_of(struct xseg_interval *node)
{
    return node == NULL ? NULL : XSEG_CONTAINER(node, struct xseg_registration, range);
}

static struct xseg_registration **id_bucket(const struct xseg_registrations *table, uint64_t id)
{
    return &table->by_id[id & (table->buckets - 1)];
}

static void insert_by_id(struct xseg_registrations *table, struct xseg_registration *registration)
{
    struct xseg_registration **link = id_bucket(table, registration->range.order);

    registration->next = *link;
    *link = registration;
}

static void remove_by_id(struct xseg_registrations *table,
                         const struct xseg_registration *registration)
{
    struct xseg_registration **link = id_bucket(table, registration->range.order);

    while (*link != registration)
        link = &(*link)->next;
    *link = registration->next;
}

/* Ensure that there are more buckets than registrations.  Returns false on host allocation
 * failure. */
static bool reserve_bucket(struct xseg_registrations *table)
{
    const size_t buckets = table->buckets == 0 ? 64 : 2 * table->buckets;
    struct xseg_registration **grown;

    if (table->count < table->buckets)
        return true;
    grown = calloc(buckets, sizeof(struct xseg_registration *));
    if (grown == NULL)
        return false;
    free(table->by_id);
    table->by_id = grown;
    table->buckets = buckets;
    for (struct xseg_interval *node = xseg_intervals_first(&table->ranges, 0, UINT64_MAX);
         node != NULL;
         node = xseg_intervals_next(&table->ranges, 0, UINT64_MAX, node->begin, node->order))
        insert_by_id(table, registration_of(node));
    return true;
}

static struct xseg_registration *find_by_id(const struct xseg_registrations *table, uint64_t id)
{
    struct xseg_registration *found = table->count == 0 ? NULL : *id_bucket(table, id);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_REGISTRATIONS));
    while (found != NULL && found->range.order != id)
        found = found->next;
    return found;
}

/* Insert a new registration and set its ID.  The device memory lock is held.  Returns false on host
 * allocation failure. */
static bool insert_registration(struct xseg_registrations *table,
                                struct xseg_registration *registration)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_mutex_lock(&table->lock);
    const bool reserved = reserve_bucket(table);
    if (reserved) {
        registration->range.order = ++table->last_id;
        registration->is_starting = true;
        atomic_fetch_add(&table->changes, 1);
        xseg_intervals_insert(&table->ranges, &registration->range);
        insert_by_id(table, registration);
        table->count++;
        registration->extent->registered++;
    }
    xseg_mutex_unlock(&table->lock);
    return reserved;
}

/* Remove a registration from the table and release the owner's reference.  wait: first wait for the
 * callbacks that run in other threads */
static void remove_registration(struct xseg_registrations *table,
                                struct xseg_registration *registration, bool wait)
{
    struct xseg_device *device = registration->device;
    struct xseg_extent *extent = registration->extent;

    xseg_mutex_lock(&table->lock);
    XSEG_ASSERT(registration->is_ending && !registration->is_starting);
    while (wait && registration->references > 1)
        (void)pthread_cond_wait(&table->changed, &table->lock.os);
    xseg_mutex_unlock(&table->lock);
    /* While the device memory lock is held, the extent of a classic segment is not reused. */
    xseg_mutex_lock(&device->memory_lock);
    xseg_mutex_lock(&table->lock);
    if (!registration->is_released)
        extent->registered--;
    atomic_fetch_add(&table->changes, 1);
    xseg_intervals_remove(&table->ranges, &registration->range);
    remove_by_id(table, registration);
    table->count--;
    xseg_registration_release(table, registration);
    xseg_mutex_unlock(&table->lock);
    xseg_mutex_unlock(&device->memory_lock);
}

/* --- Notifications. --- */

/* Record that the classic segment of a registration is released with its addresses, or that the
 * segment is kept after all. */
static void follow_classic_segment(struct xseg_registration *registration,
                                   const struct xseg_mapping *mapping, bool is_unmap)
{
    if (is_unmap && !registration->is_released)
        registration->generation = mapping->generation;
    if (is_unmap || registration->generation == mapping->generation)
        registration->is_released = is_unmap;
}

static void notify_registrations(struct xseg_registrations *table,
                                 const struct xseg_mapping *mapping, bool is_unmap)
{
    const uint64_t begin = (uintptr_t)mapping->base, end = begin + mapping->bytes;
    struct xseg_interval *node;
    uint64_t after = 0, order = 0;

    xseg_mutex_lock(&table->lock);
    while ((node = xseg_intervals_next(&table->ranges, begin, end, after, order)) != NULL) {
        struct xseg_registration *registration = registration_of(node);

        after = node->begin;
        order = node->order;
        registration->references++;
        if (!is_unmap && !mapping->is_expandable)
            follow_classic_segment(registration, mapping, false);
        if (!is_unmap)
            xseg_registration_follow_map(table, registration, begin, end);
        else if (!xseg_registration_follow_unmap(table, registration, begin, end))
            xseg_notify_keep();
        if (is_unmap && !mapping->is_expandable)
            follow_classic_segment(registration, mapping, true);
        xseg_registration_release(table, registration);
    }
    xseg_mutex_unlock(&table->lock);
}

static void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    notify_registrations(context, mapping, true);
}

static void on_map(void *context, const struct xseg_mapping *mapping)
{
    notify_registrations(context, mapping, false);
}

static xseg_status add_observer(struct xseg_registrations *table)
{
    const struct xseg_observer observer = {
        .struct_size = sizeof(observer), .context = table, .on_unmap = on_unmap, .on_map = on_map};
    xseg_status status = XSEG_OK;
    uint64_t id = 0;

    xseg_mutex_lock(&table->lock);
    if (!atomic_load(&table->has_observer))
        status = xseg_observers_add(&table->allocator->observers, &observer, &id);
    if (status == XSEG_OK)
        atomic_store(&table->has_observer, true);
    xseg_mutex_unlock(&table->lock);
    return status;
}

/* --- Register and unregister. --- */

/* Create a registration with its initial runs, and insert it.  The device memory lock is held. */
static xseg_status create_registration(struct xseg_registrations *table,
                                       const struct xseg_registration *draft,
                                       struct xseg_registration **out)
{
    struct xseg_registration *registration = xseg_registration_create(draft);

    if (registration == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, registration record");
    registration->device = registration->extent->arena->device;
    registration->pool = xseg_pool_of(registration->extent);
    xseg_status status = xseg_registration_add_initial_runs(registration);
    if (status == XSEG_OK && !insert_registration(table, registration)) {
        xseg_registration_unpin_all(registration);
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of registrations");
    }
    if (status != XSEG_OK)
        xseg_registration_free(registration);
    else
        *out = registration;
    return status;
}

/* Call `enter` for the initial runs.  If `enter` rejects a run, the registration ends. */
static xseg_status start_registration(struct xseg_registrations *table,
                                      struct xseg_registration *registration)
{
    xseg_mutex_lock(&table->lock);
    const uint64_t rejected = xseg_registration_start(table, registration);
    registration->is_starting = false;
    registration->is_ending = rejected != 0;
    if (rejected != 0)
        xseg_registration_end_runs(table, registration);
    xseg_mutex_unlock(&table->lock);
    if (rejected == 0)
        return XSEG_OK;
    remove_registration(table, registration, false);
    return xseg_fail(XSEG_ERR_UNSUPPORTED, "callback enter rejected a run of memory, %#" PRIx64,
                     rejected);
}

xseg_status xseg_registrations_add(struct xseg_registrations *table, uint64_t address,
                                   uint64_t bytes, const struct xseg_registrar *registrar,
                                   uint64_t *id) XSEG_UNCHECKED
{
    struct xseg_registration draft = {.range = {.begin = address, .end = address + bytes},
                                      .registrar = *registrar};
    struct xseg_registration *registration = NULL;
    xseg_status status = add_observer(table);

    if (status != XSEG_OK)
        return status;
    draft.extent = xseg_mapping_lock_extent(table->allocator, address);
    if (draft.extent == NULL)
        return xseg_allocator_fail_foreign(address);
    status = create_registration(table, &draft, &registration);
    const uint64_t new_id = registration == NULL ? 0 : registration->range.order;
    xseg_mutex_unlock(&draft.extent->arena->device->memory_lock);
    if (registration != NULL)
        status = start_registration(table, registration);
    if (status == XSEG_OK)
        *id = new_id;
    return status;
}

/* Find a registration that can be removed, and mark it as ending. */
static xseg_status begin_unregister(struct xseg_registrations *table, uint64_t id,
                                    struct xseg_registration **out) XSEG_REQUIRES(table->lock)
{
    struct xseg_registration *found = find_by_id(table, id);

    if (found == NULL || found->is_ending)
        return xseg_fail(XSEG_ERR_ARGUMENT, "registration does not exist, ID %" PRIu64, id);
    if (xseg_callback_is_running_for(found))
        return xseg_fail(XSEG_ERR_BUSY,
                         "registration cannot be ended in its own callback, ID %" PRIu64
                         "; retry after the callback has returned",
                         id);
    if (found->is_starting || (found->references > 1 && xseg_callback_is_running()))
        return xseg_fail(XSEG_ERR_BUSY,
                         "callback of the registration runs in another thread, ID %" PRIu64
                         "; retry outside of callbacks",
                         id);
    found->is_ending = true;
    *out = found;
    return XSEG_OK;
}

xseg_status xseg_registrations_remove(struct xseg_registrations *table, uint64_t id)
{
    struct xseg_registration *ended = NULL;

    xseg_mutex_lock(&table->lock);
    const xseg_status status = begin_unregister(table, id, &ended);
    if (ended != NULL)
        xseg_registration_end_runs(table, ended);
    xseg_mutex_unlock(&table->lock);
    if (ended != NULL)
        remove_registration(table, ended, true);
    return status;
}

/* --- Queries. --- */

/* Find the first registration that overlaps [begin, end), after another one if `after` is not
 * NULL. */
static struct xseg_registration *
next_overlapping_registration(const struct xseg_registrations *table,
                              const struct xseg_registration *after, uint64_t begin, uint64_t end)
{
    return registration_of(after == NULL
                               ? xseg_intervals_first(&table->ranges, begin, end)
                               : xseg_intervals_next(&table->ranges, begin, end, after->range.begin,
                                                     after->range.order));
}

xseg_status xseg_registrations_check_none(struct xseg_registrations *table)
{
    xseg_mutex_lock(&table->lock);
    const size_t count = table->count;
    const uint64_t id = count != 0 ? registration_of(table->ranges.root)->range.order : 0;
    xseg_mutex_unlock(&table->lock);
    if (count == 0)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_BUSY,
                     "memory is registered, %zu registration%s, one with ID %" PRIu64
                     "; xseg_unregister() it first",
                     count, count == 1 ? "" : "s", id);
}

static uint64_t sum_bytes(struct xseg_registrations *table, int device, bool all_pools,
                          const struct xseg_pool *pool)
{
    uint64_t bytes = 0;

    if (!atomic_load(&table->has_observer))
        return 0;
    xseg_mutex_lock(&table->lock);
    for (const struct xseg_registration *registration =
             next_overlapping_registration(table, NULL, 0, UINT64_MAX);
         registration != NULL;
         registration = next_overlapping_registration(table, registration, 0, UINT64_MAX))
        if (registration->device->context.ordinal == device &&
            (all_pools || registration->pool == pool))
            bytes += registration->bytes;
    xseg_mutex_unlock(&table->lock);
    return bytes;
}

uint64_t xseg_registrations_bytes(struct xseg_registrations *table, int device)
{
    return sum_bytes(table, device, true, NULL);
}

uint64_t xseg_registrations_pool_bytes(struct xseg_registrations *table, int device,
                                       const struct xseg_pool *pool)
{
    return sum_bytes(table, device, false, pool);
}

uint64_t xseg_registrations_bytes_in(struct xseg_registrations *table, uint64_t begin, uint64_t end)
{
    uint64_t bytes = 0;

    xseg_mutex_lock(&table->lock);
    for (const struct xseg_registration *registration =
             next_overlapping_registration(table, NULL, begin, end);
         registration != NULL;
         registration = next_overlapping_registration(table, registration, begin, end))
        bytes += xseg_registration_bytes_in(registration, begin, end);
    xseg_mutex_unlock(&table->lock);
    return bytes;
}

bool xseg_registrations_pin_any(struct xseg_registrations *table, uint64_t begin, uint64_t end)
{
    bool found = false;

    xseg_mutex_lock(&table->lock);
    for (const struct xseg_registration *registration =
             next_overlapping_registration(table, NULL, begin, end);
         registration != NULL && !found;
         registration = next_overlapping_registration(table, registration, begin, end))
        found = registration->registrar.pin &&
                xseg_registration_bytes_in(registration, begin, end) != 0;
    xseg_mutex_unlock(&table->lock);
    return found;
}

/* --- Init and fini. --- */

void xseg_registrations_init(struct xseg_registrations *table, struct xseg_allocator *allocator)
{
    memset(table, 0, sizeof(*table));
    table->allocator = allocator;
    xseg_mutex_init(&table->lock, XSEG_RANK_REGISTRATIONS);
    (void)pthread_cond_init(&table->changed, NULL);
}

void xseg_registrations_fini(struct xseg_registrations *table)
{
    XSEG_ASSERT(table->count == 0);
    free(table->by_id);
    for (size_t fd = 0; fd < table->pin_capacity; fd++)
        free(table->pin[fd]);
    free(table->pin);
    (void)pthread_cond_destroy(&table->changed);
    xseg_mutex_fini(&table->lock);
}
