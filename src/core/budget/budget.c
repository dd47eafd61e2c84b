/* SPDX-License-Identifier: MIT */
#include "src/core/budget/budget.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/decay.h"

/* Rounds in budget_wait_ms: a demand is read and served within two rounds. */
#define ROUNDS_PER_WAIT 8u

/* Maximum number of bytes that are released under one acquisition of the device memory lock, so that
 * misses of this process can acquire it in between. */
#define SLICE (128 * XSEG_MIB)

/* Maximum age of a demand, and of a count of idle memory, in units of budget_wait_ms. */
#define TIMEOUT_WAITS 4u

/* The members of a device in one round. */
struct members {
    struct xseg_budget_member member[XSEG_SHARED_BUDGET_SLOTS];
    unsigned count, own;
    bool has_demand; /* another member has a demand */
};

void xseg_budget_init(struct xseg_budget *budget)
{
    memset(budget, 0, sizeof(*budget));
    xseg_mutex_init(&budget->lock, XSEG_RANK_FIRST);
    atomic_init(&budget->is_open, false);
    atomic_init(&budget->members, 0);
}

void xseg_budget_device_init(struct xseg_budget_device *device)
{
    memset(device, 0, sizeof(*device));
    atomic_init(&device->share, UINT64_MAX);
    atomic_init(&device->other_members, XSEG_BUDGET_UNKNOWN);
}

uint64_t xseg_budget_interval(struct xseg_allocator *allocator)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const uint64_t interval = config->budget_wait_ms * XSEG_MILLISECOND / ROUNDS_PER_WAIT;

    if (config->budget_file[0] == '\0')
        return UINT64_MAX;
    return xseg_clock_system() < allocator->budget->fast_until
               ? xseg_min(interval, XSEG_MILLISECOND)
               : interval;
}

/* Maximum age of a demand, in nanoseconds. */
static uint64_t demand_timeout(const struct xseg_config *config)
{
    return TIMEOUT_WAITS * config->budget_wait_ms * XSEG_MILLISECOND;
}

/* --- The shared budget file. --- */

static void close_budget_file(struct xseg_budget *budget)
{
    atomic_store_explicit(&budget->is_open, false, memory_order_release);
    if (budget->file != NULL)
        xseg_shared_budget_close(&budget->file->shared);
    free(budget->file);
    budget->file = NULL;
}

void xseg_budget_fini(struct xseg_budget *budget)
{
    close_budget_file(budget);
    xseg_mutex_fini(&budget->lock);
}

static xseg_status open_budget_file(struct xseg_budget *budget)
{
    struct xseg_budget_file *file = calloc(1, sizeof(*file));

    if (file == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, shared budget");
    const xseg_status status = xseg_shared_budget_open(&file->shared, budget->path);
    if (status != XSEG_OK) {
        free(file);
        return status;
    }
    budget->file = file;
    atomic_store_explicit(&budget->is_open, true, memory_order_release);
    return XSEG_OK;
}

/* Record a failure of the file and close the file.  Returns whether to log the message.  The caller
 * holds BUDGET, and logs the message after it has released BUDGET. */
static bool record_failure(struct xseg_budget *budget, char *message, size_t bytes)
{
    const bool is_new_failure = !budget->has_logged_failure;

    (void)snprintf(message, bytes, "%s%s", xseg_fail_detail(),
                   budget->path[0] != '\0' ? " (not in effect, retried each second)"
                                           : " (not in effect)");
    budget->has_logged_failure = true;
    budget->retry_at = xseg_clock_system() + XSEG_SECOND;
    close_budget_file(budget);
    return is_new_failure;
}

static void log_failure(struct xseg_allocator *allocator, const char *message)
{
    xseg_log_line(&allocator->log, XSEG_LOG_WARNING, "budget_file: %s", message);
}

/* Reset the shares of all devices, because there is no budget.  The caller holds BUDGET. */
static void reset_shares(struct xseg_allocator *allocator)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL)
            continue;
        atomic_store_explicit(&device->budget->share, UINT64_MAX, memory_order_relaxed);
        atomic_store_explicit(&device->budget->other_members, XSEG_BUDGET_UNKNOWN,
                              memory_order_relaxed);
        atomic_store_explicit(&device->allowance, UINT64_MAX, memory_order_relaxed);
    }
}

/* --- Statistics. --- */

/* Get the maximum number of bytes that could be released: cached memory and the page cache.
 * physical: the physical bytes of the device */
static uint64_t count_releasable_bytes(struct xseg_device *device, uint64_t physical)
{
    const uint64_t cached = xseg_counters_of_device(device).cached;
    const uint64_t idle = xseg_min(physical, cached + xseg_page_cache_bytes(&device->page_cache));

    if (xseg_clock_system() >=
        atomic_load_explicit(&device->budget->unreleasable_until, memory_order_relaxed))
        return idle;
    return idle - xseg_min(idle, atomic_load_explicit(&device->budget->unreleasable,
                                                      memory_order_relaxed));
}

/* Record that the current idle memory cannot be released. */
static void record_unreleasable_bytes(struct xseg_device *device, uint64_t timeout)
{
    struct xseg_budget_device *budget = device->budget;

    atomic_store_explicit(&budget->unreleasable_until, 0, memory_order_relaxed);
    atomic_store_explicit(&budget->unreleasable,
                          count_releasable_bytes(device, xseg_device_physical(device)),
                          memory_order_relaxed);
    atomic_store_explicit(&budget->unreleasable_until, xseg_clock_system() + timeout,
                          memory_order_relaxed);
}

static struct xseg_shared_budget_device collect_statistics(struct xseg_device *device,
                                                           const struct xseg_config *config)
{
    const struct xseg_budget_device *budget = device->budget;
    struct xseg_shared_budget_device statistics = {
        .physical = xseg_device_physical(device),
        .demand = xseg_min(atomic_load_explicit(&budget->demand, memory_order_relaxed),
                           XSEG_SHARED_BUDGET_BYTES_BOUND - 1),
        .share = (uint64_t)(config->budget_share * XSEG_SHARED_BUDGET_FULL_SHARE + 0.5),
        .min_bytes = xseg_min(config->budget_min_bytes, XSEG_SHARED_BUDGET_BYTES_BOUND - 1),
        .released = atomic_load_explicit(&budget->released, memory_order_relaxed),
    };

    statistics.idle = count_releasable_bytes(device, statistics.physical);
    statistics.growing =
        xseg_min(atomic_load_explicit(&budget->growing, memory_order_relaxed), statistics.demand);
    if (statistics.demand != 0)
        statistics.demand_since = atomic_load_explicit(&budget->since, memory_order_relaxed);
    memcpy(statistics.uuid, budget->uuid, sizeof(statistics.uuid));
    return statistics;
}

/* Write the statistics of all open devices.  The caller holds BUDGET. */
static xseg_status write_statistics(struct xseg_allocator *allocator)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    struct xseg_shared_budget_device devices[XSEG_SHARED_BUDGET_DEVICES];
    unsigned count = 0;

    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL || !atomic_load(&device->budget->is_member))
            continue;
        XSEG_ASSERT(count < XSEG_SHARED_BUDGET_DEVICES);
        devices[count++] = collect_statistics(device, config);
    }
    return xseg_shared_budget_write(&allocator->budget->file->shared, devices, count);
}

/* Reserve a member in the record of the process. */
static xseg_status reserve_member(struct xseg_budget *budget)
{
    if (atomic_fetch_add(&budget->members, 1) < XSEG_SHARED_BUDGET_DEVICES)
        return XSEG_OK;
    atomic_fetch_sub(&budget->members, 1);
    return xseg_fail(XSEG_ERR_BUSY, "limit of shared devices of a process is reached, %u",
                     XSEG_SHARED_BUDGET_DEVICES);
}

/* Make a device a member, once: threads that see is_member read the UUID without a lock. */
static void register_device(struct xseg_device *device)
{
    struct xseg_budget_device *budget = device->budget;
    struct xseg_fail_saved saved;
    xseg_status status = XSEG_OK;

    if (atomic_load_explicit(&budget->is_member, memory_order_acquire))
        return;
    xseg_fail_save(&saved);
    xseg_mutex_lock(&device->memory_lock);
    if (!atomic_load(&budget->is_member)) {
        status = xseg_driver_uuid(&device->context, budget->uuid);
        if (status == XSEG_OK)
            status = reserve_member(device->allocator->budget);
        if (status == XSEG_OK)
            atomic_store_explicit(&budget->is_member, true, memory_order_release);
    }
    xseg_mutex_unlock(&device->memory_lock);
    if (status != XSEG_OK && !atomic_exchange(&budget->has_logged_exclusion, true))
        xseg_log_line(&device->allocator->log, XSEG_LOG_WARNING,
                      "budget_file: device %d is excluded, %s", device->context.ordinal,
                      xseg_fail_detail());
    xseg_fail_restore(&saved);
}

/* Make devices that were opened since the last call members. */
static void register_devices(struct xseg_allocator *allocator)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            register_device(device);
    }
}

void xseg_budget_apply_config(struct xseg_allocator *allocator)
{
    struct xseg_budget *budget = allocator->budget;
    char path[XSEG_SHARED_BUDGET_PATH] = "", message[512] = "";
    struct xseg_fail_saved saved;
    bool is_new_failure = false;

    if (xseg_allocator_config(allocator)->budget_file[0] == '\0' && !atomic_load(&budget->is_open))
        return;
    xseg_fail_save(&saved);
    register_devices(allocator);
    xseg_mutex_lock(&budget->lock);
    /* Read under the lock: of two threads that change the configuration, the later one uses the
     * newest version. */
    const struct xseg_config *config = xseg_allocator_config(allocator);
    xseg_status status = config->budget_file[0] == '\0'
                             ? XSEG_OK
                             : xseg_shared_budget_path(config->budget_file, path);
    if (strcmp(path, budget->path) != 0 || config->budget_file[0] == '\0') {
        close_budget_file(budget);
        /* Shares from another file are invalid. */
        reset_shares(allocator);
        budget->has_logged_failure = budget->has_logged_excess = false;
        memcpy(budget->path, path, sizeof(path));
    }
    if (status == XSEG_OK && path[0] != '\0' && budget->file == NULL)
        status = open_budget_file(budget);
    /* Written immediately, so that the next request finds the devices of this process. */
    if (status == XSEG_OK && budget->file != NULL)
        status = write_statistics(allocator);
    if (status != XSEG_OK)
        is_new_failure = record_failure(budget, message, sizeof(message));
    xseg_mutex_unlock(&budget->lock);
    xseg_fail_restore(&saved);
    if (is_new_failure)
        log_failure(allocator, message);
}

/* Write the statistics, if the file is open.  A failure is reported by the next round. */
static void publish_statistics(struct xseg_allocator *allocator)
{
    struct xseg_fail_saved saved;

    xseg_fail_save(&saved);
    xseg_mutex_lock(&allocator->budget->lock);
    if (allocator->budget->file != NULL)
        (void)write_statistics(allocator);
    xseg_mutex_unlock(&allocator->budget->lock);
    xseg_fail_restore(&saved);
}

void xseg_budget_add(struct xseg_device *device)
{
    if (!atomic_load_explicit(&device->allocator->budget->is_open, memory_order_acquire))
        return;
    register_device(device);
    publish_statistics(device->allocator);
}

/* Whether a demand is younger than the timeout. */
static bool is_demand_current(struct xseg_budget_demand_time *demand, uint64_t since, uint64_t now,
                              uint64_t timeout)
{
    if (demand->since != since)
        *demand = (struct xseg_budget_demand_time){since, now};
    return now - demand->first_read <= timeout;
}

/* Append the statistics of a process for a device.  is_current: whether the demand is current */
static void append_member(struct members *members,
                          const struct xseg_shared_budget_device *statistics, bool is_own,
                          bool is_current)
{
    struct xseg_budget_member *member = &members->member[members->count];

    *member = (struct xseg_budget_member){
        .physical = statistics->physical,
        .idle = statistics->idle,
        .demand = is_own || is_current ? statistics->demand : 0,
        .growing = is_own || is_current ? statistics->growing : 0,
        .configured_share = statistics->share,
        .min_bytes = statistics->min_bytes,
    };
    if (is_own)
        members->own = members->count;
    else
        members->has_demand |= member->demand != 0;
    members->count++;
}

/* Collect the members of a device.  Returns whether this process is a member; it may not have
 * published the device yet.  BUDGET is held; the shared budget file was read. */
static bool collect_members(struct xseg_budget_file *file, const struct xseg_device *device,
                            uint64_t timeout, struct members *members)
{
    const uint64_t now = xseg_clock_system();

    members->count = 0;
    members->own = XSEG_BUDGET_UNKNOWN;
    members->has_demand = false;
    for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        const struct xseg_shared_budget_entry *entry = &file->shared.entries[slot];

        if (entry->state != XSEG_SHARED_BUDGET_FRESH && entry->state != XSEG_SHARED_BUDGET_STALE)
            continue;
        for (unsigned i = 0; i < entry->record.device_count; i++) {
            const struct xseg_shared_budget_device *statistics = &entry->record.devices[i];

            if (memcmp(statistics->uuid, device->budget->uuid, sizeof(statistics->uuid)) == 0)
                append_member(members, statistics, slot == file->shared.slot,
                              is_demand_current(&file->demands[slot][i], statistics->demand_since,
                                                now, timeout));
        }
    }
    return members->own != XSEG_BUDGET_UNKNOWN;
}

/* --- Release. --- */

/* Limit the device to its share or to its physical memory plus the free memory that is not reserved
 * for others, whichever is larger, while others have entitled demands. */
static void set_allowance(struct xseg_device *device, const struct xseg_budget_split *split)
{
    const uint64_t physical = xseg_device_physical(device);
    const uint64_t allowance =
        split->spare == UINT64_MAX ? UINT64_MAX : xseg_max(split->share, physical + split->spare);

    atomic_store_explicit(&device->allowance, allowance, memory_order_relaxed);
}

/* Free bytes of the device; 0 if the query fails. */
static uint64_t query_free_bytes(struct xseg_device *device)
{
    uint64_t free = 0, total = 0;

    xseg_mutex_lock(&device->memory_lock);
    if (xseg_context_is_lost(&device->context) ||
        xseg_device_query_memory(device, &free, &total) != XSEG_OK)
        free = 0;
    xseg_mutex_unlock(&device->memory_lock);
    return free;
}

/* Whether idle memory can be released now.  The caller holds the device memory lock. */
static bool can_release(const struct xseg_device *device)
{
    return !xseg_context_is_lost(&device->context) && !xseg_pending_captures(device->pending);
}

/* Release a slice of idle memory.  Returns the released bytes; 0 if nothing can be released. */
static uint64_t release_slice(struct xseg_device *device, const struct xseg_config *config,
                              uint64_t bytes)
{
    uint64_t released = 0;

    xseg_mutex_lock(&device->memory_lock);
    if (can_release(device))
        released = xseg_decay_release(device, config, bytes);
    xseg_mutex_unlock(&device->memory_lock);
    return released;
}

/* Release `bytes` bytes of idle memory in slices.  Returns the released bytes. */
static uint64_t release_idle_bytes(struct xseg_device *device, const struct xseg_config *config,
                                   uint64_t bytes, uint64_t timeout)
{
    uint64_t released = 0, released_last = 1;

    xseg_mutex_lock(&device->memory_lock);
    bytes = can_release(device) ? bytes : 0;
    xseg_mutex_unlock(&device->memory_lock);
    while (released < bytes && released_last != 0) {
        released_last = release_slice(device, config, xseg_min(bytes - released, SLICE));
        released += released_last;
    }
    if (released < bytes)
        record_unreleasable_bytes(device, timeout);
    atomic_fetch_add_explicit(&device->budget->released, released, memory_order_relaxed);
    return released;
}

/* Store the results of a round for a device.  Returns the idle bytes to release.  The caller holds
 * BUDGET. */
static uint64_t update_share(struct xseg_device *device, const struct members *members,
                             bool *exceeds)
{
    struct xseg_budget_device *budget = device->budget;
    const uint64_t free = members->has_demand ? query_free_bytes(device) : 0;
    const struct xseg_budget_split split = xseg_budget_split(
        members->member, members->count, members->own, device->context.total_bytes, free);

    atomic_store_explicit(&budget->share, split.share, memory_order_relaxed);
    atomic_store_explicit(&budget->other_members, members->count - 1, memory_order_relaxed);
    atomic_store_explicit(&budget->others_idle, split.others_idle, memory_order_relaxed);
    *exceeds = *exceeds || split.exceeds;
    set_allowance(device, &split);
    return members->has_demand ? split.release : 0;
}

/* Evaluate the statistics of a device, if the file is open and lists the device in the slot of this
 * process.  Returns the idle bytes to release. */
static uint64_t evaluate_device(struct xseg_device *device, uint64_t timeout,
                                struct members *members, bool *exceeds)
{
    struct xseg_budget *budget = device->allocator->budget;
    uint64_t release_bytes = 0;

    xseg_mutex_lock(&budget->lock);
    if (budget->file != NULL && collect_members(budget->file, device, timeout, members))
        release_bytes = update_share(device, members, exceeds);
    xseg_mutex_unlock(&budget->lock);
    return release_bytes;
}

/* Write and read the open file.  The caller holds BUDGET. */
static xseg_status exchange_statistics(struct xseg_allocator *allocator)
{
    const xseg_status status = write_statistics(allocator);

    return status == XSEG_OK ? xseg_shared_budget_read(&allocator->budget->file->shared) : status;
}

/* Begin a round: open the file again if it is due, and exchange statistics.  Returns whether the
 * file is open. */
static bool begin_round(struct xseg_allocator *allocator)
{
    struct xseg_budget *budget = allocator->budget;
    xseg_status status = XSEG_OK;
    char message[512] = "";
    bool is_new_failure = false;

    xseg_mutex_lock(&budget->lock);
    if (budget->file == NULL && budget->path[0] != '\0' && xseg_clock_system() >= budget->retry_at)
        status = open_budget_file(budget);
    if (status == XSEG_OK && budget->file != NULL)
        status = exchange_statistics(allocator);
    if (status != XSEG_OK)
        is_new_failure = record_failure(budget, message, sizeof(message));
    else if (budget->file != NULL)
        budget->has_logged_failure = false;
    const bool is_open = budget->file != NULL;
    if (!is_open)
        reset_shares(allocator);
    xseg_mutex_unlock(&budget->lock);
    if (is_new_failure)
        log_failure(allocator, message);
    return is_open;
}

static void log_excess_shares(struct xseg_allocator *allocator)
{
    struct xseg_budget *budget = allocator->budget;

    xseg_mutex_lock(&budget->lock);
    const bool is_logged = budget->has_logged_excess;
    budget->has_logged_excess = true;
    xseg_mutex_unlock(&budget->lock);
    if (is_logged)
        return;
    xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                  "budget_share: sum over all processes exceeds 1, so each share is divided by the "
                  "sum; lower some shares");
}

void xseg_budget_round(struct xseg_allocator *allocator)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const uint64_t timeout = demand_timeout(config);
    struct members members;
    uint64_t released = 0;
    bool exceeds = false, has_demand = false;

    if (config->budget_file[0] == '\0')
        return;
    register_devices(allocator);
    if (!begin_round(allocator))
        return;
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL || !atomic_load(&device->budget->is_member))
            continue;
        members.has_demand = false;
        const uint64_t bytes = evaluate_device(device, timeout, &members, &exceeds);
        released += bytes != 0 ? release_idle_bytes(device, config, bytes, timeout) : 0;
        has_demand |= members.has_demand;
    }
    if (has_demand)
        allocator->budget->fast_until =
            xseg_clock_system() + config->budget_wait_ms * XSEG_MILLISECOND;
    if (exceeds)
        log_excess_shares(allocator);
    if (released != 0)
        (void)begin_round(allocator);
}

/* --- Demands. --- */

bool xseg_budget_is_open(const struct xseg_device *device)
{
    return atomic_load_explicit(&device->allocator->budget->is_open, memory_order_acquire);
}

/* Write and read the file, if it is open, and evaluate the device, because the next round may be
 * late.  A failure is reported by the next round.  Returns whether the file was read. */
static bool exchange_and_evaluate(struct xseg_device *device)
{
    struct xseg_allocator *allocator = device->allocator;
    const uint64_t timeout = demand_timeout(xseg_allocator_config(allocator));
    struct xseg_fail_saved saved;
    struct members members;
    bool exceeds = false;

    xseg_fail_save(&saved);
    xseg_mutex_lock(&allocator->budget->lock);
    const bool is_read =
        allocator->budget->file != NULL && exchange_statistics(allocator) == XSEG_OK;
    xseg_mutex_unlock(&allocator->budget->lock);
    if (is_read)
        (void)evaluate_device(device, timeout, &members, &exceeds);
    xseg_fail_restore(&saved);
    return is_read;
}

bool xseg_budget_request(struct xseg_device *device, uint64_t bytes)
{
    struct xseg_budget_device *budget = device->budget;

    register_device(device);
    atomic_store(&budget->since, xseg_clock_system());
    atomic_fetch_add(&budget->demand, bytes);
    const bool is_read = exchange_and_evaluate(device);
    const unsigned other_members =
        atomic_load_explicit(&budget->other_members, memory_order_relaxed);
    if (!is_read || other_members == 0 || other_members == XSEG_BUDGET_UNKNOWN)
        return false;
    atomic_fetch_add_explicit(&budget->requests, 1, memory_order_relaxed);
    return true;
}

void xseg_budget_request_end(struct xseg_device *device, uint64_t bytes)
{
    atomic_fetch_sub(&device->budget->demand, bytes);
    publish_statistics(device->allocator);
}

void xseg_budget_grow(struct xseg_device *device, uint64_t bytes)
{
    atomic_fetch_add(&device->budget->growing, bytes);
    publish_statistics(device->allocator);
}

void xseg_budget_grow_end(struct xseg_device *device, uint64_t bytes)
{
    atomic_fetch_sub(&device->budget->growing, bytes);
    publish_statistics(device->allocator);
}

uint64_t xseg_budget_above_share(const struct xseg_device *device)
{
    const uint64_t share = atomic_load_explicit(&device->budget->share, memory_order_relaxed);
    const uint64_t physical = xseg_device_physical(device);

    return physical - xseg_min(physical, share);
}

/* --- Waiting for other processes. --- */

/* Whether memory of other processes can remove the cause of the failure. */
static bool can_other_processes_help(const struct xseg_device *device)
{
    return device->oom_cause == XSEG_OOM_CAUSE_DRIVER ||
           device->oom_cause == XSEG_OOM_CAUSE_DEVICE ||
           device->oom_cause == XSEG_OOM_CAUSE_BUDGET ||
           device->oom_cause == XSEG_OOM_CAUSE_FREE_MIN;
}

/* Determine from the free memory of the device whether a growth may succeed.  If a limit denied the last growth, the next
 * growth is not conditional: it makes no driver call if a limit denies it, except the memory query of device_free_min_mb. */
static void update_grows(struct xseg_budget_wait *budget_wait)
{
    uint64_t free = 0, total = 0;

    budget_wait->grows = budget_wait->is_limit_denial ||
                         xseg_device_query_memory(budget_wait->device, &free, &total) != XSEG_OK;
    if (budget_wait->grows)
        return;
    budget_wait->free_at_growth = xseg_min(budget_wait->free_at_growth, free);
    budget_wait->grows = free > budget_wait->free_at_growth &&
                         (free >= budget_wait->bytes || free == budget_wait->free_at_query);
    budget_wait->free_at_query = free;
    if (budget_wait->grows)
        budget_wait->free_at_growth = free;
}

static void record_demand(struct xseg_arena *arena, uint64_t bytes)
{
    if (!xseg_recorder_is_enabled(arena))
        return;
    xseg_biased_lock_lock(&arena->lock);
    xseg_recorder_budget_request(arena, bytes);
    xseg_biased_lock_unlock(&arena->lock);
}

bool xseg_budget_wait_begin(struct xseg_budget_wait *budget_wait, struct xseg_arena *arena,
                            uint64_t bytes, const struct xseg_config *config) XSEG_UNCHECKED
{
    struct xseg_device *device = arena->device;
    const uint64_t now = xseg_clock_system(), timeout = config->budget_wait_ms * XSEG_MILLISECOND;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    /* Other processes must also release the memory that device_free_min_mb keeps free. */
    bytes += xseg_device_free_min(device, config);
    *budget_wait = (struct xseg_budget_wait){
        .bytes = bytes, .response_deadline = now + timeout / 2, .deadline = now + timeout};
    if (!xseg_budget_is_open(device) || !can_other_processes_help(device) ||
        bytes > device->context.total_bytes || xseg_pending_captures(device->pending))
        return false;
    budget_wait->device = device;
    budget_wait->is_limit_denial = device->oom_cause != XSEG_OOM_CAUSE_DRIVER;
    xseg_mutex_unlock(&device->memory_lock);
    const bool has_others = xseg_budget_request(device, bytes);
    xseg_mutex_lock(&device->memory_lock);
    /* The growth that failed may have found less free memory than a query would return now. */
    budget_wait->free_at_growth = bytes - xseg_min(bytes, 1);
    if (has_others)
        record_demand(arena, bytes);
    return has_others;
}

bool xseg_budget_wait_retry(struct xseg_budget_wait *budget_wait) XSEG_UNCHECKED
{
    const struct timespec delay = {.tv_nsec = XSEG_MILLISECOND};
    struct xseg_device *device = budget_wait->device;
    const uint64_t now = xseg_clock_system();

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (now >= budget_wait->deadline || xseg_pending_captures(device->pending))
        return false;
    if (now >= budget_wait->response_deadline &&
        atomic_load_explicit(&device->budget->others_idle, memory_order_relaxed) == 0)
        return false;
    /* A growth of another thread can change the cause as soon as the lock is released. */
    if (budget_wait->grows)
        budget_wait->is_limit_denial = device->oom_cause != XSEG_OOM_CAUSE_DRIVER;
    xseg_mutex_unlock(&device->memory_lock);
    if (budget_wait->grows)
        xseg_budget_grow_end(device, budget_wait->bytes);
    (void)nanosleep(&delay, NULL);
    xseg_mutex_lock(&device->memory_lock);
    update_grows(budget_wait);
    if (!budget_wait->grows)
        return true;
    xseg_mutex_unlock(&device->memory_lock);
    xseg_budget_grow(device, budget_wait->bytes);
    xseg_mutex_lock(&device->memory_lock);
    return true;
}

void xseg_budget_wait_end(struct xseg_budget_wait *budget_wait, bool served) XSEG_UNCHECKED
{
    struct xseg_device *device = budget_wait->device;

    if (device == NULL)
        return;
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_mutex_unlock(&device->memory_lock);
    xseg_budget_request_end(device, budget_wait->bytes);
    if (budget_wait->grows)
        xseg_budget_grow_end(device, budget_wait->bytes);
    xseg_mutex_lock(&device->memory_lock);
    if (served)
        atomic_fetch_add_explicit(&device->budget->served, 1, memory_order_relaxed);
}
