/* SPDX-License-Identifier: MIT */
#include "src/core/allocator.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/environment.h"
#include "src/base/error.h"
#include "src/core/alone.h"
#include "src/core/departure.h"
#include "src/core/live.h"
#include "src/core/opened.h"
#include "src/core/size.h"
#include "src/core/trace.h"
#include "src/core/tract.h"
#include "src/core/walk.h"

/* --- Whether it can be used. --- */

xseg_status xseg_allocator_fail_forked(void)
{
    return xseg_fail(XSEG_ERR_FORKED,
                     "this allocator belongs to the parent process, and a driver that has been "
                     "started does not work in a forked child: fork before the first xseg_open(), "
                     "or start the child by exec (in Python: the start method \"spawn\")");
}

xseg_status xseg_allocator_check(const struct xseg_allocator *allocator, const char *name)
{
    if (__builtin_expect(allocator == NULL, 0))
        return xseg_fail(XSEG_ERR_ARGUMENT, "%s: the allocator is NULL", name);
    return xseg_fork_is_child(&allocator->fork) ? xseg_allocator_fail_forked() : XSEG_OK;
}

/* --- Opening and closing. --- */

void xseg_allocator_put_in_force(struct xseg_allocator *allocator,
                                 struct xseg_config_version *version)
{
    atomic_store_explicit(&allocator->config, version, memory_order_release);
    atomic_store_explicit(allocator->frees_plainly,
                          version->config.has_plain_frees && allocator->frees_are_wiped,
                          memory_order_release);
    xseg_shortcuts_drop_all(&allocator->shortcuts, -1);
}

static xseg_status load_config(struct xseg_allocator *allocator, const char *text, uint64_t *named)
{
    struct xseg_config_version *version = calloc(1, sizeof(*version));

    if (version == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a configuration");
    const xseg_status status =
        xseg_config_load(&version->config, text, &allocator->config_source, named);
    if (status != XSEG_OK) {
        free(version);
        return status;
    }
    allocator->versions = version;
    xseg_allocator_put_in_force(allocator, version);
    return XSEG_OK;
}

static void free_allocator(struct xseg_allocator *allocator)
{
    struct xseg_config_version *version = allocator->versions, *older;

    for (; version != NULL; version = older) {
        older = version->older;
        free(version);
    }
    if (allocator->driver != NULL)
        xseg_driver_close(allocator->driver);
    free(allocator->device);
    xseg_shortcuts_fini(&allocator->shortcuts);
    xseg_lookup_fini(&allocator->lookup);
    xseg_fork_unmap(allocator->frees_plainly, sizeof(*allocator->frees_plainly));
    xseg_fork_fini(&allocator->fork);
    xseg_observers_fini(&allocator->observers);
    xseg_lock_fini(&allocator->open_lock);
    xseg_lock_fini(&allocator->lookup_lock);
    free(allocator);
}

xseg_status xseg_allocator_open(const char *config, const char *driver, const struct xseg_log *log,
                                const struct xseg_clock *clock, struct xseg_allocator **out)
{
    struct xseg_allocator *allocator = calloc(1, sizeof(*allocator));
    uint64_t named = 0;
    xseg_status status;

    if (allocator == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for an allocator");
    allocator->log = *log;
    allocator->clock = *clock;
    xseg_lock_init(&allocator->open_lock, XSEG_RANK_DRIVER);
    xseg_lock_init(&allocator->lookup_lock, XSEG_RANK_TABLE);
    xseg_observers_init(&allocator->observers);
    allocator->frees_plainly =
        xseg_fork_wiped(sizeof(*allocator->frees_plainly), &allocator->frees_are_wiped);
    if (allocator->frees_plainly == NULL || !xseg_fork_init(&allocator->fork) ||
        !xseg_lookup_init(&allocator->lookup) ||
        !xseg_shortcuts_init(&allocator->shortcuts, &allocator->lookup_lock)) {
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the look-up table");
        goto free_all;
    }
    status = load_config(allocator, config, &named);
    if (status == XSEG_OK)
        status = xseg_driver_open(driver, &allocator->driver);
    if (status != XSEG_OK)
        goto free_all;
    allocator->device_count = xseg_driver_device_count(allocator->driver);
    allocator->device = calloc((size_t)allocator->device_count, sizeof(*allocator->device));
    if (allocator->device == NULL) {
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the table of devices");
        goto free_all;
    }
    if (xseg_allocator_config(allocator)->background_thread)
        status = xseg_background_start(allocator);
    if (status != XSEG_OK)
        goto free_all;
    xseg_opened_log(&allocator->log);
    xseg_allocator_log_idle_keys(allocator, named);
    xseg_environment_check(&allocator->log);
    *out = allocator;
    return XSEG_OK;

free_all:
    free_allocator(allocator);
    return status;
}

/* Do one step of closing on every open device, up to the first that fails. */
static xseg_status on_all(struct xseg_allocator *allocator,
                          xseg_status (*step)(struct xseg_device *device))
{
    xseg_status status = XSEG_OK;

    for (int i = 0; i < allocator->device_count && status == XSEG_OK; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        status = device != NULL ? step(device) : XSEG_OK;
    }
    return status;
}

static void on_every(struct xseg_allocator *allocator, void (*step)(struct xseg_device *device))
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            step(device);
    }
}

xseg_status xseg_allocator_close(struct xseg_allocator *allocator)
{
    char reason[256];

    /* No device ends before all of them can: until then the handle stays usable. */
    xseg_status status = on_all(allocator, xseg_device_expect_none_live);
    if (status == XSEG_OK)
        status = on_all(allocator, xseg_device_give_back);
    if (status != XSEG_OK)
        return status;
    xseg_background_end(allocator);
    status = on_all(allocator, xseg_device_let_go);
    if (status == XSEG_OK)
        status = xseg_driver_let_go_kept(allocator->driver);
    if (status == XSEG_OK) {
        on_every(allocator, xseg_device_end);
        free_allocator(allocator);
        return XSEG_OK;
    }
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_text()->buffer);
    on_every(allocator, xseg_device_hold_again);
    /* Without its thread, memory comes back by the user's calls alone. */
    if (xseg_allocator_config(allocator)->background_thread)
        (void)xseg_background_start(allocator);
    return xseg_fail(status, "%s", reason);
}

/* --- Devices. --- */

static xseg_status open_device(struct xseg_allocator *allocator, int ordinal,
                               struct xseg_device **out)
{
    struct xseg_device *device;
    char why[384] = "";
    xseg_status status = XSEG_OK;

    xseg_lock_take(&allocator->open_lock);
    device = xseg_allocator_open_device(allocator, ordinal);
    if (device == NULL)
        status = xseg_device_open(allocator, ordinal, why, sizeof(why), &device);
    if (status == XSEG_OK)
        atomic_store_explicit(&allocator->device[ordinal], device, memory_order_release);
    xseg_lock_give(&allocator->open_lock);
    if (status != XSEG_OK)
        return status;
    xseg_log_line(&allocator->log, XSEG_LOG_INFO,
                  "device %d is open: %" PRIu64 " MiB, %s, one call %s over several mappings",
                  ordinal, device->context.total_bytes >> 20,
                  device->context.has_vmm ? "virtual memory management" : "classic segments only",
                  device->context.batches_unmap && device->context.batches_access
                      ? "works"
                      : "does not work");
    if (why[0] != '\0' && xseg_allocator_config(allocator)->expandable_segments)
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                      "device %d: no virtual memory management, so segments are classic%s: %s",
                      ordinal,
                      xseg_alone_is_asked(xseg_allocator_config(allocator))
                          ? ", and unmap_on_free and guard_page have no effect"
                          : "",
                      why);
    *out = device;
    return XSEG_OK;
}

xseg_status xseg_allocator_device(struct xseg_allocator *allocator, int ordinal,
                                  struct xseg_device **out)
{
    if (ordinal < 0 || ordinal >= allocator->device_count)
        return xseg_fail(XSEG_ERR_ARGUMENT, "device %d: the driver shows devices 0 to %d", ordinal,
                         allocator->device_count - 1);
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);
    if (__builtin_expect(device == NULL, 0))
        return open_device(allocator, ordinal, out);
    *out = device;
    return XSEG_OK;
}

/* --- From an address to its block. --- */

static const char *const state_text[] = {
    [XSEG_BLOCK_LIVE] = "a live block",
    [XSEG_BLOCK_PENDING] = "a block that was freed and waits for another stream",
    [XSEG_BLOCK_CACHED] = "cached memory: it was freed before, or never handed out",
    [XSEG_BLOCK_HOLE] = "a hole of a segment",
    [XSEG_BLOCK_BUSY] = "memory that is being freed, mapped or unmapped right now",
};

/* Why an address is not the start of a live block; the extent's lock is held. */
static xseg_status fail_not_live(const struct xseg_extent *extent, uint64_t address, bool *is_free)
{
    const struct xseg_part part = xseg_walk_at(extent, address);

    *is_free = part.state != XSEG_BLOCK_LIVE;
    if (part.state == XSEG_BLOCK_LIVE)
        return xseg_fail(XSEG_ERR_NOT_LIVE,
                         "%#" PRIx64 " lies %" PRIu64 " bytes inside the live block at %#" PRIx64
                         ": give its start",
                         address, address - part.base, part.base);
    return xseg_fail(XSEG_ERR_NOT_LIVE, "%#" PRIx64 " is no live block: it lies in %s", address,
                     part.state == XSEG_BLOCK_HOLE && extent->arena->is_alone
                         ? "memory that was freed and unmapped"
                         : state_text[part.state]);
}

/* Add to the error's text when the address was freed, if a device remembers that. */
static xseg_status add_free(struct xseg_allocator *allocator, uint64_t address)
{
    struct xseg_text text;
    char buffer[768];

    xseg_text_init(&text, buffer, sizeof(buffer));
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL &&
            xseg_free_log_describe(&device->free_log, address, "; it was ", &text)) {
            xseg_fail_add("%s", buffer);
            break;
        }
    }
    return XSEG_ERR_NOT_LIVE;
}

/* A live block: a record, or a cell. */
struct live {
    struct xseg_extent *extent;
    struct xseg_arena *arena;
    struct xseg_block *record; /* NULL: a cell */
    uint32_t quantum;          /* of the cell */
};

/*
 * The live block that starts at an address, with its arena locked.
 *
 * Returns: XSEG_OK; XSEG_ERR_NOT_LIVE, and nothing is locked
 */
static inline xseg_status lock_live(struct xseg_allocator *allocator, const void *pointer,
                                    struct live *live) XSEG_UNCHECKED
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer;
    struct xseg_extent *extent = xseg_live_lock_extent(allocator, address);

    if (__builtin_expect(extent == NULL, 0)) {
        (void)xseg_fail(XSEG_ERR_NOT_LIVE, "%p is not memory of this allocator", pointer);
        return add_free(allocator, address);
    }
    live->extent = extent;
    live->arena = extent->arena;
    live->record = NULL;
    if (extent->has_cells && xseg_live_find_cell(extent, address, &live->quantum))
        return XSEG_OK;
    live->record = xseg_extent_block_at(extent, address);
    if (__builtin_expect(live->record != NULL && live->record->state == XSEG_BLOCK_LIVE, 1))
        return XSEG_OK;
    bool is_free = false;
    const xseg_status status = fail_not_live(extent, address, &is_free);
    xseg_arena_unlock(live->arena);
    return is_free ? add_free(allocator, address) : status;
}

/*
 * The same, of a block that has a record: a cell is isolated, for which stocking may let go of the lock
 * for a moment.
 *
 * Returns: as above; XSEG_ERR_HOST_MEMORY
 */
static xseg_status lock_record(struct xseg_allocator *allocator, const void *pointer,
                               struct live *live) XSEG_UNCHECKED
{
    for (;;) {
        const xseg_status status = lock_live(allocator, pointer, live);

        if (status != XSEG_OK || live->record != NULL)
            return status;
        if (live->arena->blocks.free_count >= 2) {
            live->record = xseg_tract_isolate(live->arena, live->extent, live->quantum);
            return XSEG_OK;
        }
        const bool stocked = xseg_arena_stock(live->arena, &live->arena->blocks, 2);
        xseg_arena_unlock(live->arena);
        if (!stocked)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a block's record");
    }
}

/* --- What users do with blocks. --- */

/* Whether a free has more to do than the hit path does, apart from uses. */
static inline bool is_watched(const struct xseg_config *config, const struct xseg_arena *arena)
{
    return config->watches_frees | arena->is_alone;
}

/* Free a busy block.  No lock is held. */
static xseg_status free_busy(struct xseg_block *block, const struct xseg_config *config)
{
    struct xseg_arena *arena = block->extent->arena;
    struct xseg_free_log *log = &arena->device->free_log;
    xseg_status status = XSEG_OK;
    /* Noted before somebody else can free the same memory again. */
    const uint64_t number =
        config->free_history == 0
            ? 0
            : xseg_free_log_note(log, config->free_history, block->base, block->bytes);

    if (arena->is_alone) {
        status = xseg_alone_free(block);
    } else if (block->uses != NULL) {
        status = xseg_pending_free(&arena->device->pending, block,
                                   config->graph_capture_record_stream_reuse);
    } else {
        xseg_fill_busy(block);
        xseg_trace_note_block(block, XSEG_TRACE_FREE_REQUESTED);
        xseg_trace_note_block(block, XSEG_TRACE_FREE_COMPLETED);
        xseg_arena_lock(arena);
        xseg_arena_free(arena, block);
        xseg_arena_unlock(arena);
    }
    if (status != XSEG_OK && number != 0)
        xseg_free_log_withdraw(log, number);
    return status;
}

/* Free what the hit path cannot: a block with uses, or one that a free has more to do with. */
static xseg_status free_slowly(struct xseg_allocator *allocator, const void *pointer,
                               const struct xseg_config *config) XSEG_UNCHECKED
{
    struct live live = {0};
    const xseg_status status = lock_record(allocator, pointer, &live);

    if (status != XSEG_OK)
        return status;
    live.record->state = XSEG_BLOCK_BUSY;
    xseg_arena_unlock(live.arena);
    return free_busy(live.record, config);
}

xseg_status xseg_allocator_free(struct xseg_allocator *allocator,
                                const void *pointer) XSEG_UNCHECKED
{
    struct live live = {0};
    xseg_status status = lock_live(allocator, pointer, &live);

    if (__builtin_expect(status != XSEG_OK, 0))
        return status;
    struct xseg_arena *arena = live.arena;
    const struct xseg_config *config = xseg_allocator_config(allocator);
    if (__builtin_expect(is_watched(config, arena), 0) ||
        (live.record != NULL && live.record->uses != NULL)) {
        xseg_arena_unlock(arena);
        status = free_slowly(allocator, pointer, config);
    } else {
        if (live.record == NULL) {
            const bool is_freed = xseg_small_free(arena, live.extent, live.quantum);

            XSEG_ASSERT(is_freed);
        } else {
            xseg_arena_free(arena, live.record);
        }
        xseg_arena_unlock(arena);
    }
    if (__builtin_expect(config->follows_calls, 0))
        xseg_device_follow(arena->device, config);
    return status;
}

/* Note a use of the live block at an address of this arena's; stocking may let go of the lock. */
static xseg_status note_use(struct xseg_allocator *allocator, const void *pointer,
                            struct xseg_known_stream *stream, bool captured) XSEG_UNCHECKED
{
    for (;;) {
        struct live live = {0};
        xseg_status status = lock_live(allocator, pointer, &live);

        if (status != XSEG_OK)
            return status;
        struct xseg_arena *arena = live.arena;
        if (stream == xseg_arena_stream(arena)) {
            xseg_arena_unlock(arena);
            return XSEG_OK;
        }
        const bool stocked = xseg_arena_stock(arena, &arena->uses, 1);
        xseg_arena_unlock(arena);
        if (!stocked)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory to remember a use");
        status = lock_record(allocator, pointer, &live);
        if (status != XSEG_OK)
            return status;
        const bool ready = live.arena->uses.free_count > 0;
        if (ready)
            xseg_pending_use(live.arena, live.record, stream, captured);
        xseg_arena_unlock(live.arena);
        if (ready)
            return XSEG_OK;
    }
}

/* The device of a live block. */
static xseg_status find_device(struct xseg_allocator *allocator, const void *pointer,
                               struct xseg_device **out) XSEG_UNCHECKED
{
    struct live live = {0};
    const xseg_status status = lock_live(allocator, pointer, &live);

    if (status != XSEG_OK)
        return status;
    *out = live.arena->device;
    xseg_arena_unlock(live.arena);
    return XSEG_OK;
}

xseg_status xseg_allocator_use(struct xseg_allocator *allocator, const void *pointer,
                               xseg_stream stream) XSEG_UNCHECKED
{
    struct xseg_known_stream *known = NULL;
    struct xseg_device *device = NULL;
    bool captured = false;
    xseg_status status = find_device(allocator, pointer, &device);

    if (status == XSEG_OK)
        status = xseg_departure_get(device, stream, &known);
    if (status == XSEG_OK)
        status = xseg_device_is_captured(device, known, &captured);
    return status == XSEG_OK ? note_use(allocator, pointer, known, captured) : status;
}

/* Let the side stream wait for those events that are not complete; their number. */
static xseg_status wait_aside(struct xseg_device *device, const xseg_event *events, size_t count,
                              struct xseg_known_stream **side)
{
    for (size_t i = 0; i < count; i++) {
        xseg_status status;
        bool done = false;
        int mode = 0;

        if (events[i] == NULL)
            return xseg_fail(XSEG_ERR_ARGUMENT, "event %zu is NULL", i);
        status = xseg_driver_relax(&device->context, &mode);
        if (status != XSEG_OK)
            return status;
        status = xseg_driver_event_done(&device->context, events[i], &done);
        xseg_driver_unrelax(&device->context, mode);
        if (status == XSEG_OK && !done && *side == NULL)
            status = xseg_device_side_stream(device, side);
        if (status == XSEG_OK && !done)
            status = xseg_driver_stream_wait_event(&device->context, (*side)->handle, events[i]);
        if (status != XSEG_OK)
            return status;
    }
    return XSEG_OK;
}

xseg_status xseg_allocator_free_after(struct xseg_allocator *allocator, const void *pointer,
                                      const xseg_event *events, size_t count)
{
    struct xseg_known_stream *side = NULL;
    struct xseg_device *device = NULL;
    xseg_status status = find_device(allocator, pointer, &device);

    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device != NULL);
    if (xseg_pending_captures(&device->pending))
        return xseg_fail(XSEG_ERR_BUSY,
                         "a capture is under way on device %d: no event can be asked or waited for "
                         "before its end",
                         device->context.ordinal);
    status = wait_aside(device, events, count, &side);
    if (status == XSEG_OK && side != NULL)
        status = note_use(allocator, pointer, side, false);
    return status == XSEG_OK ? xseg_allocator_free(allocator, pointer) : status;
}

/* The block beside another one; nothing where the segment ends. */
static struct xseg_part beside(const struct xseg_part *part, bool before)
{
    const uint64_t base = part->extent->segment.base;

    if (!before)
        return xseg_walk_next(part);
    return part->base == base ? (struct xseg_part){0} : xseg_walk_at(part->extent, part->base - 1);
}

/* What lies beside a block in one direction: cached bytes, and the hole beyond them. */
static void look_beside(const struct xseg_part *part, bool before, size_t *cached, size_t *hole)
{
    struct xseg_part next = beside(part, before);

    *cached = *hole = 0;
    if (next.extent != NULL && next.state == XSEG_BLOCK_CACHED) {
        *cached = next.bytes;
        next = beside(&next, before);
    }
    if (next.extent != NULL && next.state == XSEG_BLOCK_HOLE)
        *hole = next.bytes;
}

void xseg_allocator_tell(const struct xseg_part *part, uint64_t now, struct xseg_block_info *info)
{
    const struct xseg_extent *extent = part->extent;
    const struct xseg_arena *arena = extent->arena;
    const struct xseg_segment *segment = &extent->segment;

    info->base = (void *)(uintptr_t)part->base; /* NOLINT(performance-no-int-to-ptr) */
    info->bytes = part->bytes;
    info->requested = part->requested;
    info->state = part->state;
    info->device = arena->device->context.ordinal;
    info->stream = xseg_arena_stream(arena)->handle;
    info->pool = part->is_lent ? NULL : xseg_pool_of(extent);
    info->lender = part->is_lent ? arena->pool : NULL;
    info->is_small = arena->is_small;
    info->is_expandable = xseg_extent_is_expandable(extent);
    info->segment_base = (void *)(uintptr_t)segment->base; /* NOLINT(performance-no-int-to-ptr) */
    info->segment_bytes = segment->bytes;
    info->segment_mapped = atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    look_beside(part, true, &info->free_before, &info->hole_before);
    look_beside(part, false, &info->free_after, &info->hole_after);
    info->is_paused = arena->is_paused;
    info->generation = part->state == XSEG_BLOCK_HOLE
                           ? 0
                           : xseg_segment_generation(segment, part->base - segment->base,
                                                     xseg_part_end(part) - segment->base);
    info->age_ms = part->state == XSEG_BLOCK_LIVE || part->state == XSEG_BLOCK_PENDING
                       ? xseg_births_age(extent, part->base, now)
                       : XSEG_BIRTHS_UNKNOWN;
}

xseg_status xseg_allocator_describe(struct xseg_allocator *allocator, const void *pointer,
                                    struct xseg_block_info *out) XSEG_UNCHECKED
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer;
    const uint64_t now = xseg_births_now(allocator, xseg_allocator_config(allocator));
    struct xseg_extent *extent = xseg_live_lock_extent(allocator, address);

    if (extent == NULL)
        return xseg_fail(XSEG_ERR_NOT_LIVE, "%p is not memory of this allocator", pointer);
    const struct xseg_part part = xseg_walk_at(extent, address);
    xseg_allocator_tell(&part, now, out);
    xseg_arena_unlock(extent->arena);
    return XSEG_OK;
}
