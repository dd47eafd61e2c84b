/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/export/export_trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/export/export_lives.h"
#include "src/tools/output/amount.h"
#include "src/tools/reading/recording.h"
#include "src/tools/replay_model/replay_model.h"
#include "src/tools/replay_model/sites.h"

#define YEAR_2001_US UINT64_C(1000000000000000) /* earlier times are not since 1970 */

/* IDs of interned names; the IDs of sites come last. */
enum {
    EVENT_SEGMENT = 1,
    EVENT_OOM = EVENT_SEGMENT + 4 * RECORDING_CAUSES,
    EVENT_PAUSED,
    EVENT_SITE
};
enum {
    ANNOTATION_BYTES = 1,
    ANNOTATION_ADDRESS,
    ANNOTATION_STREAM,
    ANNOTATION_POOL,
    ANNOTATION_SITE,
    ANNOTATION_FREE,
    ANNOTATION_WAITED,
    ANNOTATIONS
};

enum counter { RESERVED, ALLOCATED, PENDING, CACHED, COUNTERS };

/* The order of tracks, after the counters. */
enum rank { RANK_OOM = COUNTERS, RANK_SEGMENTS, RANK_PAUSED, RANK_BLOCKS, RANK_POOLS };

/* Tracks of counters, and their last values. */
struct gauge {
    uint64_t tracks[COUNTERS], written[COUNTERS];
    bool is_written;
};

struct pool {
    uint64_t bytes[COUNTERS]; /* except CACHED */
    uint64_t paused;          /* bytes that a pause unmapped and no resume mapped again */
    uint64_t paused_track;
    struct gauge gauge;
    bool has_tracks, is_changed;
};

/* An allocated or pending block, by its slot in the model. */
struct block_times {
    uint64_t allocated_us, freed_us;
    uint32_t pool; /* of its first byte */
};

struct export_state {
    struct perfetto trace;
    const struct recording *recording;
    struct sites sites;
    uint8_t *interned; /* [sites.count]: enum interned */
    uint8_t *pool_is_interned;
    uint64_t began_us;
    size_t max_blocks;
    /* Of one device: */
    const struct recording_device *device;
    struct replay_model_dropped dropped; /* of all devices */
    struct replay_model model;
    struct gauge gauge;
    struct pool *pools;      /* [recording.pool_count] */
    uint32_t *changed_pools; /* [changed_count]: pools whose counters are not yet written */
    size_t changed_count;
    struct block_times *block_times;
    uint32_t block_times_capacity;
    struct export_lives lives;
    uint64_t track, segments_track, oom_track, paused_group;
    bool has_pools; /* several pools */
    bool out_of_memory;
};

/* The uses for which a site is interned. */
enum interned { INTERNED_AS_EVENT = 1, INTERNED_AS_TEXT = 2 };

static uint64_t get_time(const struct export_state *state)
{
    return state->model.plan ? state->model.now_us : state->began_us;
}

/* --- Names. --- */

static void name_pool(const struct recording *recording, uint32_t pool, char *text, size_t bytes)
{
    if (pool == 0)
        (void)snprintf(text, bytes, "default");
    else
        (void)snprintf(text, bytes, "(%" PRIu64 ", %" PRIu64 ")", recording->pools[pool][0],
                       recording->pools[pool][1]);
}

static void intern_names(struct perfetto *trace)
{
    static const char *const actions[] = {"segment_alloc", "segment_free", "segment_map",
                                          "segment_unmap"};
    static const char *const causes[RECORDING_CAUSES] = {
        "", ": remap", ": decay", ": trim", ": pause", ": resume", ": budget_release", ""};
    static const char *const annotations[ANNOTATIONS] = {
        [ANNOTATION_BYTES] = "bytes",     [ANNOTATION_ADDRESS] = "address",
        [ANNOTATION_STREAM] = "stream",   [ANNOTATION_POOL] = "pool",
        [ANNOTATION_SITE] = "site",       [ANNOTATION_FREE] = "device_free",
        [ANNOTATION_WAITED] = "waited_us"};
    char name[64];

    for (unsigned action = 0; action < 4; action++)
        for (unsigned cause = 0; cause < RECORDING_CAUSES; cause++) {
            (void)snprintf(name, sizeof(name), "%s%s", actions[action], causes[cause]);
            perfetto_intern_event(trace, EVENT_SEGMENT + action * RECORDING_CAUSES + cause, name);
        }
    perfetto_intern_event(trace, EVENT_OOM, "out of memory");
    perfetto_intern_event(trace, EVENT_PAUSED, "paused");
    for (unsigned i = ANNOTATION_BYTES; i < ANNOTATIONS; i++)
        perfetto_intern_annotation(trace, i, annotations[i]);
}

static bool intern_site(struct export_state *state, uint32_t site, enum interned as)
{
    char *name;

    if (state->interned[site] & as)
        return true;
    state->interned[site] |= (uint8_t)as;
    name = sites_name(&state->sites, site);
    if (!name)
        return false;
    if (as == INTERNED_AS_EVENT)
        perfetto_intern_event(&state->trace, EVENT_SITE + (uint64_t)site, name);
    else
        perfetto_intern_text(&state->trace, 1 + state->recording->pool_count + site, name);
    free(name);
    return true;
}

static void annotate_pool(struct export_state *state, uint32_t pool)
{
    perfetto_annotate_text(&state->trace, ANNOTATION_POOL, 1 + (uint64_t)pool);
}

static void intern_pool(struct export_state *state, uint32_t pool)
{
    char name[64];

    if (state->pool_is_interned[pool])
        return;
    state->pool_is_interned[pool] = true;
    name_pool(state->recording, pool, name, sizeof(name));
    perfetto_intern_text(&state->trace, 1 + (uint64_t)pool, name);
}

/* --- Counters. --- */

static void add_gauge_tracks(struct export_state *state, struct gauge *gauge, uint64_t parent)
{
    static const char *const names[COUNTERS] = {"reserved", "allocated", "pending", "cached"};

    for (int i = 0; i < COUNTERS; i++) {
        const struct perfetto_track track = {
            .name = names[i], .parent = parent, .rank = i, .is_counter = true};

        gauge->tracks[i] = perfetto_track(&state->trace, &track);
    }
}

/* Write the counters that have changed. */
static void write_gauge(struct export_state *state, struct gauge *gauge,
                        const uint64_t bytes[COUNTERS])
{
    for (int i = 0; i < COUNTERS; i++) {
        const uint64_t now =
            i == CACHED ? bytes[RESERVED] - bytes[ALLOCATED] - bytes[PENDING] : bytes[i];

        if (gauge->is_written && gauge->written[i] == now)
            continue;
        perfetto_counter(&state->trace, get_time(state), gauge->tracks[i], now);
        gauge->written[i] = now;
    }
    gauge->is_written = true;
}

static void write_pool(struct export_state *state, uint32_t number)
{
    struct pool *pool = &state->pools[number];

    pool->is_changed = false;
    if (!state->has_pools)
        return;
    if (!pool->has_tracks) {
        char name[64] = "pool ";
        const struct perfetto_track group = {
            .name = name, .parent = state->track, .rank = RANK_POOLS + (int)(number & 0xffff)};

        name_pool(state->recording, number, name + strlen(name), sizeof(name) - strlen(name));
        add_gauge_tracks(state, &pool->gauge, perfetto_track(&state->trace, &group));
        pool->has_tracks = true;
    }
    write_gauge(state, &pool->gauge, pool->bytes);
}

static void write_gauges(struct export_state *state)
{
    const struct replay_model *model = &state->model;
    const uint64_t bytes[COUNTERS] = {model->reserved, model->allocated, model->pending};

    write_gauge(state, &state->gauge, bytes);
    for (size_t i = 0; i < state->changed_count; i++)
        write_pool(state, state->changed_pools[i]);
    state->changed_count = 0;
}

/* --- Callbacks of the model. --- */

static struct pool *get_changed_pool(struct export_state *state, uint32_t number)
{
    struct pool *pool = &state->pools[number];

    if (!pool->is_changed)
        state->changed_pools[state->changed_count++] = number;
    pool->is_changed = true;
    return pool;
}

enum change { ADDED, REMOVED };

/* Count the bytes of a block in the pools of its memory.  A block can be in memory of several pools. */
static void count_block(struct export_state *state, const struct replay_model_block *block,
                        enum counter counter, enum change change)
{
    const uint64_t end = block->address + block->bytes;
    uint64_t at = block->address;

    while (at < end) {
        const struct replay_model_range *range = replay_model_range_at(&state->model, at);
        const uint64_t stop = range && range->end < end ? range->end : end;
        uint64_t *bytes =
            &get_changed_pool(state, range ? range->pool : block->pool)->bytes[counter];

        *bytes += change == ADDED ? stop - at : 0 - (stop - at);
        at = stop;
    }
}

static void block_added(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct export_state *state = self;
    const struct replay_model_range *range = replay_model_range_at(&state->model, block->address);
    const uint32_t number = range ? range->pool : block->pool;
    const uint64_t now_us = get_time(state);

    if (state->out_of_memory ||
        !ordered_resize(&state->model.blocks, (void **)&state->block_times,
                        &state->block_times_capacity, sizeof(*state->block_times))) {
        state->out_of_memory = true;
        return;
    }
    state->block_times[slot] = (struct block_times){now_us, now_us, number};
    count_block(state, block, block->is_pending ? PENDING : ALLOCATED, ADDED);
}

static void block_freed(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct export_state *state = self;

    if (state->out_of_memory)
        return;
    state->block_times[slot].freed_us = get_time(state);
    count_block(state, block, ALLOCATED, REMOVED);
    count_block(state, block, PENDING, ADDED);
}

static bool add_life(struct export_state *state, uint32_t slot,
                     const struct replay_model_block *block, bool is_freed)
{
    const struct block_times *times = &state->block_times[slot];
    const struct export_life life = {
        .address = block->address,
        .bytes = block->bytes,
        .stream = block->stream,
        .began_us = times->allocated_us,
        .freed_us = block->is_pending ? times->freed_us : get_time(state),
        .ended_us = get_time(state),
        .site = sites_of(&state->sites, block),
        .pool = times->pool,
        .is_freed = is_freed,
    };

    return export_lives_add(&state->lives, &life);
}

static void block_removed(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct export_state *state = self;

    if (state->out_of_memory)
        return;
    count_block(state, block, block->is_pending ? PENDING : ALLOCATED, REMOVED);
    if (!add_life(state, slot, block, true))
        state->out_of_memory = true;
}

static void range_added(void *self, const struct replay_model_range *range)
{
    get_changed_pool(self, range->pool)->bytes[RESERVED] += range->end - range->start;
}

static void range_removed(void *self, const struct replay_model_range *range)
{
    get_changed_pool(self, range->pool)->bytes[RESERVED] -= range->end - range->start;
}

/* --- Events. --- */

static void begin_event(struct export_state *state, const struct recording_event *event,
                        uint64_t track, unsigned name)
{
    struct perfetto *trace = &state->trace;
    const uint32_t site = state->sites.of_stack[event->stack];

    if (site != SITES_UNKNOWN && !intern_site(state, site, INTERNED_AS_TEXT))
        state->out_of_memory = true;
    intern_pool(state, event->pool);
    perfetto_event_begin(trace, PERFETTO_INSTANT, get_time(state), track, name);
    perfetto_annotate_number(trace, ANNOTATION_BYTES, event->bytes);
    perfetto_annotate_address(trace, ANNOTATION_STREAM, event->stream);
    annotate_pool(state, event->pool);
    if (site != SITES_UNKNOWN)
        perfetto_annotate_text(trace, ANNOTATION_SITE, 1 + state->recording->pool_count + site);
}

/* A pool is paused from the first range that a pause unmaps until all of them are mapped again. */
static void update_pause(struct export_state *state, const struct recording_event *event)
{
    struct pool *pool = &state->pools[event->pool];
    const bool is_pause = event->cause == RECORDING_CAUSE_PAUSE;
    const bool was_paused = pool->paused > 0;

    if (!is_pause && event->cause != RECORDING_CAUSE_RESUME)
        return;
    if (is_pause)
        pool->paused += event->bytes;
    else
        pool->paused -= event->bytes < pool->paused ? event->bytes : pool->paused;
    if (was_paused == (pool->paused > 0))
        return;
    if (pool->paused_track == 0) {
        char name[64] = "paused: pool ";
        const struct perfetto_track track = {
            .name = name, .parent = state->track, .rank = RANK_PAUSED};

        name_pool(state->recording, event->pool, name + strlen(name), sizeof(name) - strlen(name));
        pool->paused_track = perfetto_track(&state->trace, &track);
    }
    perfetto_event_begin(&state->trace, is_pause ? PERFETTO_SLICE_BEGIN : PERFETTO_SLICE_END,
                         get_time(state), pool->paused_track, is_pause ? EVENT_PAUSED : 0);
    perfetto_event_end(&state->trace);
}

static void write_event(struct export_state *state, const struct recording_event *event)
{
    struct perfetto *trace = &state->trace;
    const bool is_oom = event->action == RECORDING_OOM;

    if (event->action < RECORDING_SEGMENT_ALLOC || event->action > RECORDING_OOM)
        return;
    if (is_oom) {
        begin_event(state, event, state->oom_track, EVENT_OOM);
        perfetto_annotate_number(trace, ANNOTATION_FREE, event->address);
        perfetto_event_end(trace);
        return;
    }
    begin_event(state, event, state->segments_track,
                EVENT_SEGMENT +
                    (unsigned)(event->action - RECORDING_SEGMENT_ALLOC) * RECORDING_CAUSES +
                    event->cause);
    perfetto_annotate_address(trace, ANNOTATION_ADDRESS, event->address);
    perfetto_event_end(trace);
    update_pause(state, event);
}

/* --- Slices of blocks. --- */

static bool begin_slice(void *self, const struct export_life *life, uint64_t track)
{
    struct export_state *state = self;
    struct perfetto *trace = &state->trace;

    if (!intern_site(state, life->site, INTERNED_AS_EVENT))
        return false;
    intern_pool(state, life->pool);
    perfetto_event_begin(trace, PERFETTO_SLICE_BEGIN, life->began_us, track,
                         EVENT_SITE + (uint64_t)life->site);
    perfetto_annotate_number(trace, ANNOTATION_BYTES, life->bytes);
    perfetto_annotate_address(trace, ANNOTATION_ADDRESS, life->address);
    perfetto_annotate_address(trace, ANNOTATION_STREAM, life->stream);
    annotate_pool(state, life->pool);
    if (life->freed_us < life->ended_us)
        perfetto_annotate_number(trace, ANNOTATION_WAITED, life->ended_us - life->freed_us);
    perfetto_event_end(trace);
    return true;
}

static bool write_lives(struct export_state *state)
{
    const struct replay_model *model = &state->model;
    char text[160];
    const struct perfetto_track track = {
        .name = "blocks", .description = text, .parent = state->track, .rank = RANK_BLOCKS};

    for (uint32_t slot = ordered_from(&model->blocks, 0); slot != ORDERED_NONE;
         slot = ordered_from(&model->blocks, model->block[slot].address + 1))
        if (!add_life(state, slot, &model->block[slot], false))
            return false;
    (void)snprintf(
        text, sizeof(text),
        "the %s blocks with the largest product of size and lifetime; %s others are omitted",
        amount_count(state->lives.count).text, amount_count(state->lives.omitted).text);
    export_lives_sort(&state->lives);
    return export_lives_write(&state->lives, &state->trace, &track, begin_slice, state);
}

/* --- A device. --- */

static void add_device_tracks(struct export_state *state)
{
    const struct recording_device *device = state->device;
    char text[560], *name = NULL;
    struct perfetto_track track = {.description = text, .rank = device->number};
    size_t length;

    (void)snprintf(
        text, sizeof(text), "%s; %s earlier %s overwritten, %s did not fit in the file; %s",
        amount_of(device->event_count, "entry").text, amount_count(device->lost).text,
        device->lost == 1 ? "entry was" : "entries were", amount_count(device->truncated).text,
        recording_file_limit(RECORDING_LIMIT_OMITTED, state->model.omitted).text);
    length = strlen(text);
    if (device->synthetic > 0)
        (void)snprintf(text + length, sizeof(text) - length, "; %s",
                       recording_file_limit(RECORDING_LIMIT_SYNTHETIC, device->synthetic).text);
    if (asprintf(&name, "%s, device %d", state->recording->name, device->number) < 0) {
        state->out_of_memory = true;
        return;
    }
    track.name = name;
    state->track = perfetto_track(&state->trace, &track);
    free(name);
    add_gauge_tracks(state, &state->gauge, state->track);
    track =
        (struct perfetto_track){.name = "out of memory", .parent = state->track, .rank = RANK_OOM};
    state->oom_track = perfetto_track(&state->trace, &track);
    track =
        (struct perfetto_track){.name = "segments", .parent = state->track, .rank = RANK_SEGMENTS};
    state->segments_track = perfetto_track(&state->trace, &track);
}

/* Get whether the device has memory of several pools at some time. */
static bool has_pools(const struct recording_device *device)
{
    const uint32_t first = device->segment_count ? device->segments[0].pool : 0;
    bool has_first = device->segment_count > 0;
    uint32_t pool = first;

    for (size_t i = 0; i < device->segment_count; i++)
        if (device->segments[i].pool != pool)
            return true;
    for (size_t i = 0; i < device->event_count; i++) {
        if (device->events[i].action < RECORDING_SEGMENT_ALLOC ||
            device->events[i].action > RECORDING_SEGMENT_UNMAP)
            continue;
        if (has_first && device->events[i].pool != pool)
            return true;
        pool = device->events[i].pool;
        has_first = true;
    }
    return false;
}

/* Get whether the last event is a free that the next event completes at the same time, so nothing was pending. */
static bool is_first_half_of_free(const struct export_state *state)
{
    const struct replay_model *model = &state->model;
    const struct recording_event *event = &state->device->events[model->at - 1];

    return event->action == RECORDING_FREE_REQUESTED && model->at < state->device->event_count &&
           event[1].action == RECORDING_FREE_COMPLETED && event[1].address == event->address &&
           replay_model_next_us(model) == model->now_us;
}

static bool write_events(struct export_state *state)
{
    const struct replay_model_observer observer = {state,         block_added, block_freed,
                                                   block_removed, range_added, range_removed};
    const struct replay_model_observer none = {0};
    struct replay_model *model = &state->model;

    add_device_tracks(state);
    replay_model_observe(model, &observer);
    write_gauges(state);
    while (!state->out_of_memory && replay_model_step(model)) {
        if (is_first_half_of_free(state))
            continue;
        write_gauges(state);
        write_event(state, &state->device->events[model->at - 1]);
    }
    replay_model_observe(model, &none);
    return !state->out_of_memory && !model->out_of_memory && write_lives(state);
}

static bool write_device(struct export_state *state, const struct recording_device *device)
{
    const struct recording *recording = state->recording;
    bool success;

    state->device = device;
    state->has_pools = has_pools(device);
    state->gauge = (struct gauge){.is_written = false};
    state->changed_count = 0;
    if (device->event_count > 0 ? !replay_model_init(&state->model, recording, device)
                                : !replay_model_init_at_end(&state->model, recording, device))
        return false;
    state->dropped.blocks += state->model.dropped.blocks;
    state->dropped.bytes += state->model.dropped.bytes;
    state->pools = calloc(recording->pool_count, sizeof(*state->pools));
    state->changed_pools = calloc(recording->pool_count, sizeof(*state->changed_pools));
    success = state->pools && state->changed_pools &&
              export_lives_init(&state->lives, state->max_blocks) && write_events(state);
    export_lives_fini(&state->lives);
    replay_model_fini(&state->model);
    free(state->pools);
    free(state->changed_pools);
    free(state->block_times);
    state->block_times = NULL;
    state->block_times_capacity = 0;
    return success;
}

/* --- All devices. --- */

/* Find the time of the first event with a time; 0: none. */
static uint64_t first_time(const struct recording *recording, const struct recording_device *only)
{
    uint64_t first = 0;

    for (size_t i = 0; i < recording->device_count; i++) {
        const struct recording_device *device = &recording->devices[i];

        if (only && device != only)
            continue;
        for (size_t at = 0; at < device->event_count; at++)
            if (device->events[at].time_us > 0) {
                if (first == 0 || device->events[at].time_us < first)
                    first = device->events[at].time_us;
                break;
            }
    }
    return first;
}

static bool write_devices(struct export_state *state, const struct recording_device *only)
{
    const struct recording *recording = state->recording;

    if (only)
        return write_device(state, only);
    for (size_t i = 0; i < recording->device_count; i++)
        if (!write_device(state, &recording->devices[i]))
            return false;
    return true;
}

bool export_trace_write(FILE *out, const struct recording *recording,
                        const struct recording_device *device, size_t max_blocks,
                        struct replay_model_dropped *dropped)
{
    struct export_state state = {.recording = recording, .max_blocks = max_blocks};
    bool success;

    if (!sites_init(&state.sites, recording, SITES_BY_FRAME, 1))
        return false;
    state.interned = calloc(state.sites.count, sizeof(*state.interned));
    state.pool_is_interned = calloc(recording->pool_count, sizeof(*state.pool_is_interned));
    state.began_us = first_time(recording, device);
    perfetto_init(&state.trace, out,
                  state.began_us >= YEAR_2001_US ? PERFETTO_CLOCK_REALTIME
                                                 : PERFETTO_CLOCK_BOOTTIME,
                  state.began_us);
    intern_names(&state.trace);
    success = state.interned && state.pool_is_interned && write_devices(&state, device);
    success = perfetto_fini(&state.trace) && success;
    *dropped = state.dropped;
    free(state.interned);
    free(state.pool_is_interned);
    sites_fini(&state.sites);
    return success;
}
