/* SPDX-License-Identifier: MIT */
#include "src/core/budget/budget.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/core/budget/budget_split.h"
#include "src/core/device/allocator.h"
#include "src/core/device/counters.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/decay.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      (1000 * MILLISECOND)

/* Turns in budget_wait_ms: a want is seen, and answered, within two of them. */
#define TURNS 8u

/* Bytes that are given at a time, so that misses of this process come in between. */
#define SLICE (128 * XSEG_MIB)

/* Maximum age of a demand, and of a count of idle memory, in units of budget_wait_ms. */
#define PATIENCE 4u

/* The processes of a device, as one turn sees them. */
struct participants {
    struct xseg_budget_participant participant[XSEG_SHARED_BUDGET_SLOTS];
    unsigned count, own;
    bool is_wanted; /* another one wants memory */
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
    atomic_init(&device->others, XSEG_BUDGET_UNKNOWN);
}

uint64_t xseg_budget_interval(struct xseg_allocator *allocator)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const uint64_t usual = config->budget_wait_ms * MILLISECOND / TURNS;

    if (config->budget_file[0] == '\0')
        return UINT64_MAX;
    return xseg_clock_system() < allocator->budget->hurries ? xseg_min(usual, MILLISECOND) : usual;
}

/* How old a want may be, in nanoseconds. */
static uint64_t timeout_of(const struct xseg_config *config)
{
    return PATIENCE * config->budget_wait_ms * MILLISECOND;
}

/* --- Opening. --- */

static void leave(struct xseg_budget *budget)
{
    atomic_store_explicit(&budget->is_open, false, memory_order_release);
    if (budget->book != NULL)
        xseg_shared_budget_close(&budget->book->ledger);
    free(budget->book);
    budget->book = NULL;
}

void xseg_budget_fini(struct xseg_budget *budget)
{
    leave(budget);
    xseg_mutex_fini(&budget->lock);
}

static xseg_status open_book(struct xseg_budget *budget)
{
    struct xseg_budget_file_entry *book = calloc(1, sizeof(*book));

    if (book == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, shared budget");
    const xseg_status status = xseg_shared_budget_open(&book->ledger, budget->path);
    if (status != XSEG_OK) {
        free(book);
        return status;
    }
    budget->book = book;
    atomic_store_explicit(&budget->is_open, true, memory_order_release);
    return XSEG_OK;
}

/* Say once that there is no ledger, or no longer.  BUDGET is held; the log is written without. */
static bool note_failure(struct xseg_budget *budget, char *said, size_t bytes)
{
    const bool is_first = !budget->has_said;

    (void)snprintf(said, bytes, "%s%s", xseg_fail_detail(),
                   budget->path[0] != '\0' ? " (not in effect, retried each second)"
                                           : " (not in effect)");
    budget->has_said = true;
    budget->again = xseg_clock_system() + SECOND;
    leave(budget);
    return is_first;
}

static void say_failure(struct xseg_allocator *allocator, const char *said)
{
    xseg_log_line(&allocator->log, XSEG_LOG_WARNING, "budget_file: %s", said);
}

/* Have the devices follow the end of a budget.  BUDGET is held. */
static void forget_shares(struct xseg_allocator *allocator)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL)
            continue;
        atomic_store_explicit(&device->budget->share, UINT64_MAX, memory_order_relaxed);
        atomic_store_explicit(&device->budget->others, XSEG_BUDGET_UNKNOWN, memory_order_relaxed);
        atomic_store_explicit(&device->allowance, UINT64_MAX, memory_order_relaxed);
    }
}

/* --- Figures. --- */

/* What could be given back at the most: cached memory, and pages that are mapped nowhere. */
static uint64_t idle_of(struct xseg_device *device, uint64_t taken)
{
    const uint64_t cached = xseg_counters_of_device(device).cached;
    const uint64_t idle = xseg_min(taken, cached + xseg_page_cache_bytes(&device->page_cache));

    if (xseg_clock_system() >=
        atomic_load_explicit(&device->budget->kept_until, memory_order_relaxed))
        return idle;
    return idle - xseg_min(idle, atomic_load_explicit(&device->budget->kept, memory_order_relaxed));
}

/* Note that idle memory cannot be given, as far as it looks so. */
static void note_kept(struct xseg_device *device, uint64_t timeout)
{
    struct xseg_budget_device *budget = device->budget;

    atomic_store_explicit(&budget->kept_until, 0, memory_order_relaxed);
    atomic_store_explicit(&budget->kept, idle_of(device, xseg_device_physical(device)),
                          memory_order_relaxed);
    atomic_store_explicit(&budget->kept_until, xseg_clock_system() + timeout, memory_order_relaxed);
}

static struct xseg_shared_budget_device figures_of(struct xseg_device *device,
                                                   const struct xseg_config *config)
{
    const struct xseg_budget_device *budget = device->budget;
    struct xseg_shared_budget_device figures = {
        .physical = xseg_device_physical(device),
        .demand = xseg_min(atomic_load_explicit(&budget->wanted, memory_order_relaxed),
                           XSEG_SHARED_BUDGET_BYTES_BOUND - 1),
        .share = (uint64_t)(config->budget_share * XSEG_SHARED_BUDGET_WHOLE_SHARE + 0.5),
        .floor = xseg_min(config->budget_min_bytes, XSEG_SHARED_BUDGET_BYTES_BOUND - 1),
        .released = atomic_load_explicit(&budget->returned, memory_order_relaxed),
    };

    figures.idle = idle_of(device, figures.physical);
    figures.growing =
        xseg_min(atomic_load_explicit(&budget->growing, memory_order_relaxed), figures.demand);
    if (figures.demand != 0)
        figures.demand_since = atomic_load_explicit(&budget->since, memory_order_relaxed);
    memcpy(figures.uuid, budget->uuid, sizeof(figures.uuid));
    return figures;
}

/* Write the figures of all open devices.  BUDGET is held. */
static xseg_status write_figures(struct xseg_allocator *allocator)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    struct xseg_shared_budget_device devices[XSEG_SHARED_BUDGET_DEVICES];
    unsigned count = 0;

    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL || !atomic_load(&device->budget->is_member))
            continue;
        XSEG_ASSERT(count < XSEG_SHARED_BUDGET_DEVICES);
        devices[count++] = figures_of(device, config);
    }
    return xseg_shared_budget_write(&allocator->budget->book->ledger, devices, count);
}

/* Reserve a place in the record. */
static xseg_status take_member(struct xseg_budget *budget)
{
    if (atomic_fetch_add(&budget->members, 1) < XSEG_SHARED_BUDGET_DEVICES)
        return XSEG_OK;
    atomic_fetch_sub(&budget->members, 1);
    return xseg_fail(XSEG_ERR_BUSY, "limit of shared devices of a process is reached, %u",
                     XSEG_SHARED_BUDGET_DEVICES);
}

/* Make a device a member, once: threads that see is_member read the UUID without a lock. */
static void name_device(struct xseg_device *device)
{
    struct xseg_budget_device *budget = device->budget;
    struct xseg_fail_saved kept;
    xseg_status status = XSEG_OK;

    if (atomic_load_explicit(&budget->is_member, memory_order_acquire))
        return;
    xseg_fail_save(&kept);
    xseg_mutex_lock(&device->growth_lock);
    if (!atomic_load(&budget->is_member)) {
        status = xseg_driver_uuid(&device->context, budget->uuid);
        if (status == XSEG_OK)
            status = take_member(device->allocator->budget);
        if (status == XSEG_OK)
            atomic_store_explicit(&budget->is_member, true, memory_order_release);
    }
    xseg_mutex_unlock(&device->growth_lock);
    if (status != XSEG_OK && !atomic_exchange(&budget->has_said, true))
        xseg_log_line(&device->allocator->log, XSEG_LOG_WARNING,
                      "budget_file: device %d is excluded, %s", device->context.ordinal,
                      xseg_fail_detail());
    xseg_fail_restore(&kept);
}

/* Find out the UUIDs of devices that have been opened since. */
static void name_devices(struct xseg_allocator *allocator)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            name_device(device);
    }
}

void xseg_budget_follow(struct xseg_allocator *allocator)
{
    struct xseg_budget *budget = allocator->budget;
    char path[XSEG_SHARED_BUDGET_PATH] = "", said[512] = "";
    struct xseg_fail_saved kept;
    bool says = false;

    if (xseg_allocator_config(allocator)->budget_file[0] == '\0' && !atomic_load(&budget->is_open))
        return;
    xseg_fail_save(&kept);
    name_devices(allocator);
    xseg_mutex_lock(&budget->lock);
    /* Read behind the lock: of two threads that configure, the later one follows what is in force. */
    const struct xseg_config *config = xseg_allocator_config(allocator);
    xseg_status status = config->budget_file[0] == '\0'
                             ? XSEG_OK
                             : xseg_shared_budget_path(config->budget_file, path);
    if (strcmp(path, budget->path) != 0 || config->budget_file[0] == '\0') {
        leave(budget);
        /* What another ledger said of others counts no more. */
        forget_shares(allocator);
        budget->has_said = budget->has_said_share = false;
        memcpy(budget->path, path, sizeof(path));
    }
    if (status == XSEG_OK && path[0] != '\0' && budget->book == NULL)
        status = open_book(budget);
    /* At once: who asks next has to find the devices of this process. */
    if (status == XSEG_OK && budget->book != NULL)
        status = write_figures(allocator);
    if (status != XSEG_OK)
        says = note_failure(budget, said, sizeof(said));
    xseg_mutex_unlock(&budget->lock);
    xseg_fail_restore(&kept);
    if (says)
        say_failure(allocator, said);
}

/* Write the figures, if there is a ledger; a failure is the next turn's to tell. */
static void publish(struct xseg_allocator *allocator)
{
    struct xseg_fail_saved kept;

    xseg_fail_save(&kept);
    xseg_mutex_lock(&allocator->budget->lock);
    if (allocator->budget->book != NULL)
        (void)write_figures(allocator);
    xseg_mutex_unlock(&allocator->budget->lock);
    xseg_fail_restore(&kept);
}

void xseg_budget_add(struct xseg_device *device)
{
    if (!atomic_load_explicit(&device->allocator->budget->is_open, memory_order_acquire))
        return;
    name_device(device);
    publish(device->allocator);
}

/* Whether a want still counts. */
static bool is_fresh(struct xseg_budget_seen *seen, uint64_t since, uint64_t now, uint64_t timeout)
{
    if (seen->since != since)
        *seen = (struct xseg_budget_seen){since, now};
    return now - seen->first <= timeout;
}

/* Add what a process says of a device. */
static void add_party(struct participants *participants,
                      const struct xseg_shared_budget_device *figures, bool is_own,
                      bool is_fresh_want)
{
    struct xseg_budget_participant *participant = &participants->participant[participants->count];

    *participant = (struct xseg_budget_participant){
        .taken = figures->physical,
        .idle = figures->idle,
        .wanted = is_own || is_fresh_want ? figures->demand : 0,
        .growing = is_own || is_fresh_want ? figures->growing : 0,
        .named_share = figures->share,
        .floor = figures->floor,
    };
    if (is_own)
        participants->own = participants->count;
    else
        participants->is_wanted |= participant->wanted != 0;
    participants->count++;
}

/* Collect the processes that have a device; returns whether this one has said so itself, which it may not have yet.
 * BUDGET is held; the ledger has been read. */
static bool collect(struct xseg_budget_file_entry *book, const struct xseg_device *device,
                    uint64_t timeout, struct participants *participants)
{
    const uint64_t now = xseg_clock_system();

    participants->count = 0;
    participants->own = XSEG_BUDGET_UNKNOWN;
    participants->is_wanted = false;
    for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        const struct xseg_shared_budget_entry *entry = &book->ledger.seen[slot];

        if (entry->state != XSEG_SHARED_BUDGET_FRESH && entry->state != XSEG_SHARED_BUDGET_KEPT)
            continue;
        for (unsigned i = 0; i < entry->record.device_count; i++) {
            const struct xseg_shared_budget_device *figures = &entry->record.devices[i];

            if (memcmp(figures->uuid, device->budget->uuid, sizeof(figures->uuid)) == 0)
                add_party(participants, figures, slot == book->ledger.slot,
                          is_fresh(&book->seen[slot][i], figures->demand_since, now, timeout));
        }
    }
    return participants->own != XSEG_BUDGET_UNKNOWN;
}

/* --- Giving. --- */

/* While others want what is their own, keep to the share and to what they leave of the free memory. */
static void set_allowance(struct xseg_device *device, const struct xseg_budget_split *split)
{
    const uint64_t taken = xseg_device_physical(device);
    const uint64_t allowance =
        split->spare == UINT64_MAX ? UINT64_MAX : xseg_max(split->share, taken + split->spare);

    atomic_store_explicit(&device->allowance, allowance, memory_order_relaxed);
}

/* What the driver has free; 0 where it does not say. */
static uint64_t ask_free(struct xseg_device *device)
{
    uint64_t free = 0, total = 0;

    xseg_mutex_lock(&device->growth_lock);
    if (xseg_context_is_lost(&device->context) ||
        xseg_device_query_memory(device, &free, &total) != XSEG_OK)
        free = 0;
    xseg_mutex_unlock(&device->growth_lock);
    return free;
}

/* Whether idle memory can be given back now.  The device memory lock is held. */
static bool can_give(const struct xseg_device *device)
{
    return !xseg_context_is_lost(&device->context) && !xseg_pending_captures(device->pending);
}

/* Give a slice of idle memory back.  Returns 0 where nothing can be given. */
static uint64_t give_slice(struct xseg_device *device, const struct xseg_config *config,
                           uint64_t bytes)
{
    uint64_t given = 0;

    xseg_mutex_lock(&device->growth_lock);
    if (can_give(device))
        given = xseg_decay_release(device, config, bytes);
    xseg_mutex_unlock(&device->growth_lock);
    return given;
}

/* Give so much idle memory back; returns the bytes that went. */
static uint64_t give(struct xseg_device *device, const struct xseg_config *config, uint64_t part,
                     uint64_t timeout)
{
    uint64_t given = 0, slice = 1;

    xseg_mutex_lock(&device->growth_lock);
    part = can_give(device) ? part : 0;
    xseg_mutex_unlock(&device->growth_lock);
    while (given < part && slice != 0) {
        slice = give_slice(device, config, xseg_min(part - given, SLICE));
        given += slice;
    }
    if (given < part)
        note_kept(device, timeout);
    atomic_fetch_add_explicit(&device->budget->returned, given, memory_order_relaxed);
    return given;
}

/* Note what a turn finds of a device; returns the idle bytes that others want of this process.  BUDGET is held. */
static uint64_t note(struct xseg_device *device, const struct participants *participants,
                     bool *exceeds)
{
    struct xseg_budget_device *budget = device->budget;
    const uint64_t free = participants->is_wanted ? ask_free(device) : 0;
    const struct xseg_budget_split split =
        xseg_budget_split(participants->participant, participants->count, participants->own,
                          device->context.total_bytes, free);

    atomic_store_explicit(&budget->share, split.share, memory_order_relaxed);
    atomic_store_explicit(&budget->others, participants->count - 1, memory_order_relaxed);
    atomic_store_explicit(&budget->others_idle, split.others_idle, memory_order_relaxed);
    *exceeds = *exceeds || split.exceeds;
    set_allowance(device, &split);
    return participants->is_wanted ? split.give : 0;
}

/* Look at what the ledger says of a device, if there still is one that has the device in the own slot; returns the idle
 * bytes that others want. */
static uint64_t look_at(struct xseg_device *device, uint64_t timeout,
                        struct participants *participants, bool *exceeds)
{
    struct xseg_budget *budget = device->allocator->budget;
    uint64_t part = 0;

    xseg_mutex_lock(&budget->lock);
    if (budget->book != NULL && collect(budget->book, device, timeout, participants))
        part = note(device, participants, exceeds);
    xseg_mutex_unlock(&budget->lock);
    return part;
}

/* Write and read the ledger, which is open.  BUDGET is held. */
static xseg_status exchange(struct xseg_allocator *allocator)
{
    const xseg_status status = write_figures(allocator);

    return status == XSEG_OK ? xseg_shared_budget_read(&allocator->budget->book->ledger) : status;
}

/* Begin a turn: exchange figures, with a ledger that is opened again if need be.  Returns whether there is one. */
static bool begin(struct xseg_allocator *allocator)
{
    struct xseg_budget *budget = allocator->budget;
    xseg_status status = XSEG_OK;
    char said[512] = "";
    bool says = false;

    xseg_mutex_lock(&budget->lock);
    if (budget->book == NULL && budget->path[0] != '\0' && xseg_clock_system() >= budget->again)
        status = open_book(budget);
    if (status == XSEG_OK && budget->book != NULL)
        status = exchange(allocator);
    if (status != XSEG_OK)
        says = note_failure(budget, said, sizeof(said));
    else if (budget->book != NULL)
        budget->has_said = false;
    const bool is_open = budget->book != NULL;
    if (!is_open)
        forget_shares(allocator);
    xseg_mutex_unlock(&budget->lock);
    if (says)
        say_failure(allocator, said);
    return is_open;
}

static void say_exceeded(struct xseg_allocator *allocator)
{
    struct xseg_budget *budget = allocator->budget;

    xseg_mutex_lock(&budget->lock);
    const bool has_said = budget->has_said_share;
    budget->has_said_share = true;
    xseg_mutex_unlock(&budget->lock);
    if (has_said)
        return;
    xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                  "budget_share: sum over all processes exceeds 1, so each share is divided by the "
                  "sum; lower some shares");
}

void xseg_budget_round(struct xseg_allocator *allocator)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const uint64_t timeout = timeout_of(config);
    struct participants participants;
    uint64_t given = 0;
    bool exceeds = false, is_wanted = false;

    if (config->budget_file[0] == '\0')
        return;
    name_devices(allocator);
    if (!begin(allocator))
        return;
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL || !atomic_load(&device->budget->is_member))
            continue;
        participants.is_wanted = false;
        const uint64_t part = look_at(device, timeout, &participants, &exceeds);
        given += part != 0 ? give(device, config, part, timeout) : 0;
        is_wanted |= participants.is_wanted;
    }
    if (is_wanted)
        allocator->budget->hurries = xseg_clock_system() + config->budget_wait_ms * MILLISECOND;
    if (exceeds)
        say_exceeded(allocator);
    if (given != 0)
        (void)begin(allocator);
}

/* --- Asking. --- */

bool xseg_budget_is_open(const struct xseg_device *device)
{
    return atomic_load_explicit(&device->allocator->budget->is_open, memory_order_acquire);
}

/* Write and read the ledger, if there is one, as turns may be rare; a failure is the next turn's to tell.  Returns whether
 * the ledger was read. */
static bool look_now(struct xseg_device *device)
{
    struct xseg_allocator *allocator = device->allocator;
    const uint64_t timeout = timeout_of(xseg_allocator_config(allocator));
    struct xseg_fail_saved kept;
    struct participants participants;
    bool exceeds = false;

    xseg_fail_save(&kept);
    xseg_mutex_lock(&allocator->budget->lock);
    const bool is_read = allocator->budget->book != NULL && exchange(allocator) == XSEG_OK;
    xseg_mutex_unlock(&allocator->budget->lock);
    if (is_read)
        (void)look_at(device, timeout, &participants, &exceeds);
    xseg_fail_restore(&kept);
    return is_read;
}

bool xseg_budget_request(struct xseg_device *device, uint64_t bytes)
{
    struct xseg_budget_device *budget = device->budget;

    name_device(device);
    atomic_store(&budget->since, xseg_clock_system());
    atomic_fetch_add(&budget->wanted, bytes);
    const bool is_read = look_now(device);
    const unsigned others = atomic_load_explicit(&budget->others, memory_order_relaxed);
    if (!is_read || others == 0 || others == XSEG_BUDGET_UNKNOWN)
        return false;
    atomic_fetch_add_explicit(&budget->asks, 1, memory_order_relaxed);
    return true;
}

void xseg_budget_request_end(struct xseg_device *device, uint64_t bytes)
{
    atomic_fetch_sub(&device->budget->wanted, bytes);
    publish(device->allocator);
}

void xseg_budget_grow(struct xseg_device *device, uint64_t bytes)
{
    atomic_fetch_add(&device->budget->growing, bytes);
    publish(device->allocator);
}

void xseg_budget_grow_end(struct xseg_device *device, uint64_t bytes)
{
    atomic_fetch_sub(&device->budget->growing, bytes);
    publish(device->allocator);
}

uint64_t xseg_budget_above_share(const struct xseg_device *device)
{
    const uint64_t share = atomic_load_explicit(&device->budget->share, memory_order_relaxed);
    const uint64_t taken = xseg_device_physical(device);

    return taken - xseg_min(taken, share);
}
