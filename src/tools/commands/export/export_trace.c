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

/* IDs of interned names; those of sites follow all others. */
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

enum counter { RESERVED, LIVE, PENDING, CACHED, COUNTERS };

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
    bool has_tracks, is_touched;
};

/* An allocated or pending block, by its slot in the model. */
struct held {
    uint64_t allocated_us, freed_us;
    uint32_t pool; /* of its first byte */
};

/* The state of writing. */
struct exporting {
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
    struct pool *pools; /* [recording.pool_count] */
    uint32_t *touched;  /* [touched_count]: pools that have changed */
    size_t touched_count;
    struct held *held;
    uint32_t held_room;
    struct export_lives lives;
    uint64_t track, segments_track, oom_track, paused_group;
    bool has_pools; /* several pools */
    bool out_of_memory;
};

/* The uses for which a site is interned. */
enum interned { INTERNED_AS_EVENT = 1, INTERNED_AS_TEXT = 2 };

static uint64_t now_of(const struct exporting *exporting)
{
    return exporting->model.plan ? exporting->model.now_us : exporting->began_us;
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

static bool intern_site(struct exporting *exporting, uint32_t site, enum interned as)
{
    char *name;

    if (exporting->interned[site] & as)
        return true;
    exporting->interned[site] |= (uint8_t)as;
    name = sites_name(&exporting->sites, site);
    if (!name)
        return false;
    if (as == INTERNED_AS_EVENT)
        perfetto_intern_event(&exporting->trace, EVENT_SITE + (uint64_t)site, name);
    else
        perfetto_intern_text(&exporting->trace, 1 + exporting->recording->pool_count + site, name);
    free(name);
    return true;
}

static void annotate_pool(struct exporting *exporting, uint32_t pool)
{
    perfetto_annotate_text(&exporting->trace, ANNOTATION_POOL, 1 + (uint64_t)pool);
}

static void intern_pool(struct exporting *exporting, uint32_t pool)
{
    char name[64];

    if (exporting->pool_is_interned[pool])
        return;
    exporting->pool_is_interned[pool] = true;
    name_pool(exporting->recording, pool, name, sizeof(name));
    perfetto_intern_text(&exporting->trace, 1 + (uint64_t)pool, name);
}

/* --- Counters. --- */

static void describe_gauge(struct exporting *exporting, struct gauge *gauge, uint64_t parent)
{
    static const char *const names[COUNTERS] = {"reserved", "allocated", "pending", "cached"};

    for (int i = 0; i < COUNTERS; i++) {
        const struct perfetto_track track = {
            .name = names[i], .parent = parent, .rank = i, .is_counter = true};

        gauge->tracks[i] = perfetto_track(&exporting->trace, &track);
    }
}

/* Write the counters that have changed. */
static void write_gauge(struct exporting *exporting, struct gauge *gauge,
                        const uint64_t bytes[COUNTERS])
{
    for (int i = 0; i < COUNTERS; i++) {
        const uint64_t now =
            i == CACHED ? bytes[RESERVED] - bytes[LIVE] - bytes[PENDING] : bytes[i];

        if (gauge->is_written && gauge->written[i] == now)
            continue;
        perfetto_counter(&exporting->trace, now_of(exporting), gauge->tracks[i], now);
        gauge->written[i] = now;
    }
    gauge->is_written = true;
}

static void write_pool(struct exporting *exporting, uint32_t number)
{
    struct pool *pool = &exporting->pools[number];

    pool->is_touched = false;
    if (!exporting->has_pools)
        return;
    if (!pool->has_tracks) {
        char name[64] = "pool ";
        const struct perfetto_track group = {
            .name = name, .parent = exporting->track, .rank = RANK_POOLS + (int)(number & 0xffff)};

        name_pool(exporting->recording, number, name + strlen(name), sizeof(name) - strlen(name));
        describe_gauge(exporting, &pool->gauge, perfetto_track(&exporting->trace, &group));
        pool->has_tracks = true;
    }
    write_gauge(exporting, &pool->gauge, pool->bytes);
}

static void write_gauges(struct exporting *exporting)
{
    const struct replay_model *model = &exporting->model;
    const uint64_t bytes[COUNTERS] = {model->reserved, model->allocated, model->pending};

    write_gauge(exporting, &exporting->gauge, bytes);
    for (size_t i = 0; i < exporting->touched_count; i++)
        write_pool(exporting, exporting->touched[i]);
    exporting->touched_count = 0;
}

/* --- Callbacks of the model. --- */

static struct pool *touch(struct exporting *exporting, uint32_t number)
{
    struct pool *pool = &exporting->pools[number];

    if (!pool->is_touched)
        exporting->touched[exporting->touched_count++] = number;
    pool->is_touched = true;
    return pool;
}

enum change { ADDED, REMOVED };

/* Count the bytes of a block in the pools of its memory.  A block can be in memory of several pools. */
static void count_block(struct exporting *exporting, const struct replay_model_block *block,
                        enum counter counter, enum change change)
{
    const uint64_t end = block->address + block->bytes;
    uint64_t at = block->address;

    while (at < end) {
        const struct replay_model_range *range = replay_model_range_at(&exporting->model, at);
        const uint64_t stop = range && range->end < end ? range->end : end;
        uint64_t *bytes = &touch(exporting, range ? range->pool : block->pool)->bytes[counter];

        *bytes += change == ADDED ? stop - at : 0 - (stop - at);
        at = stop;
    }
}

static void block_added(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct exporting *exporting = self;
    const struct replay_model_range *range =
        replay_model_range_at(&exporting->model, block->address);
    const uint32_t number = range ? range->pool : block->pool;
    const uint64_t now_us = now_of(exporting);

    if (exporting->out_of_memory ||
        !ordered_resize(&exporting->model.blocks, (void **)&exporting->held, &exporting->held_room,
                        sizeof(*exporting->held))) {
        exporting->out_of_memory = true;
        return;
    }
    exporting->held[slot] = (struct held){now_us, now_us, number};
    count_block(exporting, block, block->is_pending ? PENDING : LIVE, ADDED);
}

static void block_freed(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct exporting *exporting = self;

    if (exporting->out_of_memory)
        return;
    exporting->held[slot].freed_us = now_of(exporting);
    count_block(exporting, block, LIVE, REMOVED);
    count_block(exporting, block, PENDING, ADDED);
}

static bool add_life(struct exporting *exporting, uint32_t slot,
                     const struct replay_model_block *block, bool is_freed)
{
    const struct held *held = &exporting->held[slot];
    const struct export_life life = {
        .address = block->address,
        .bytes = block->bytes,
        .stream = block->stream,
        .began_us = held->allocated_us,
        .freed_us = block->is_pending ? held->freed_us : now_of(exporting),
        .ended_us = now_of(exporting),
        .site = sites_of(&exporting->sites, block),
        .pool = held->pool,
        .is_freed = is_freed,
    };

    return export_lives_add(&exporting->lives, &life);
}

static void block_removed(void *self, uint32_t slot, const struct replay_model_block *block)
{
    struct exporting *exporting = self;

    if (exporting->out_of_memory)
        return;
    count_block(exporting, block, block->is_pending ? PENDING : LIVE, REMOVED);
    if (!add_life(exporting, slot, block, true))
        exporting->out_of_memory = true;
}

static void range_added(void *self, const struct replay_model_range *range)
{
    touch(self, range->pool)->bytes[RESERVED] += range->end - range->start;
}

static void range_removed(void *self, const struct replay_model_range *range)
{
    touch(self, range->pool)->bytes[RESERVED] -= range->end - range->start;
}

/* --- Events. --- */

static void begin_event(struct exporting *exporting, const struct recording_event *event,
                        uint64_t track, unsigned name)
{
    struct perfetto *trace = &exporting->trace;
    const uint32_t site = exporting->sites.of_stack[event->stack];

    if (site != SITES_UNKNOWN && !intern_site(exporting, site, INTERNED_AS_TEXT))
        exporting->out_of_memory = true;
    intern_pool(exporting, event->pool);
    perfetto_event_begin(trace, PERFETTO_INSTANT, now_of(exporting), track, name);
    perfetto_annotate_number(trace, ANNOTATION_BYTES, event->bytes);
    perfetto_annotate_address(trace, ANNOTATION_STREAM, event->stream);
    annotate_pool(exporting, event->pool);
    if (site != SITES_UNKNOWN)
        perfetto_annotate_text(trace, ANNOTATION_SITE, 1 + exporting->recording->pool_count + site);
}

/* A pool is paused from the first range that a pause unmaps until all of them are mapped again. */
static void follow_pause(struct exporting *exporting, const struct recording_event *event)
{
    struct pool *pool = &exporting->pools[event->pool];
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
            .name = name, .parent = exporting->track, .rank = RANK_PAUSED};

        name_pool(exporting->recording, event->pool, name + strlen(name),
                  sizeof(name) - strlen(name));
        pool->paused_track = perfetto_track(&exporting->trace, &track);
    }
    perfetto_event_begin(&exporting->trace, is_pause ? PERFETTO_SLICE_BEGIN : PERFETTO_SLICE_END,
                         now_of(exporting), pool->paused_track, is_pause ? EVENT_PAUSED : 0);
    perfetto_event_end(&exporting->trace);
}

static void write_event(struct exporting *exporting, const struct recording_event *event)
{
    struct perfetto *trace = &exporting->trace;
    const bool is_oom = event->action == RECORDING_OOM;

    if (event->action < RECORDING_SEGMENT_ALLOC || event->action > RECORDING_OOM)
        return;
    if (is_oom) {
        begin_event(exporting, event, exporting->oom_track, EVENT_OOM);
        perfetto_annotate_number(trace, ANNOTATION_FREE, event->address);
        perfetto_event_end(trace);
        return;
    }
    begin_event(exporting, event, exporting->segments_track,
                EVENT_SEGMENT +
                    (unsigned)(event->action - RECORDING_SEGMENT_ALLOC) * RECORDING_CAUSES +
                    event->cause);
    perfetto_annotate_address(trace, ANNOTATION_ADDRESS, event->address);
    perfetto_event_end(trace);
    follow_pause(exporting, event);
}

/* --- Slices of blocks. --- */

static bool begin_life(void *self, const struct export_life *life, uint64_t track)
{
    struct exporting *exporting = self;
    struct perfetto *trace = &exporting->trace;

    if (!intern_site(exporting, life->site, INTERNED_AS_EVENT))
        return false;
    intern_pool(exporting, life->pool);
    perfetto_event_begin(trace, PERFETTO_SLICE_BEGIN, life->began_us, track,
                         EVENT_SITE + (uint64_t)life->site);
    perfetto_annotate_number(trace, ANNOTATION_BYTES, life->bytes);
    perfetto_annotate_address(trace, ANNOTATION_ADDRESS, life->address);
    perfetto_annotate_address(trace, ANNOTATION_STREAM, life->stream);
    annotate_pool(exporting, life->pool);
    if (life->freed_us < life->ended_us)
        perfetto_annotate_number(trace, ANNOTATION_WAITED, life->ended_us - life->freed_us);
    perfetto_event_end(trace);
    return true;
}

static bool write_lives(struct exporting *exporting)
{
    const struct replay_model *model = &exporting->model;
    char text[160];
    const struct perfetto_track track = {
        .name = "blocks", .description = text, .parent = exporting->track, .rank = RANK_BLOCKS};

    for (uint32_t slot = ordered_from(&model->blocks, 0); slot != ORDERED_NONE;
         slot = ordered_from(&model->blocks, model->block[slot].address + 1))
        if (!add_life(exporting, slot, &model->block[slot], false))
            return false;
    (void)snprintf(
        text, sizeof(text),
        "the %s blocks with the largest product of size and lifetime; %s others are omitted",
        amount_count(exporting->lives.count).text, amount_count(exporting->lives.omitted).text);
    export_lives_sort(&exporting->lives);
    return export_lives_write(&exporting->lives, &exporting->trace, &track, begin_life, exporting);
}

/* --- A device. --- */

static void describe_device(struct exporting *exporting)
{
    const struct recording_device *device = exporting->device;
    char text[400], *name = NULL;
    struct perfetto_track track = {.description = text, .rank = device->number};

    (void)snprintf(
        text, sizeof(text), "%s; %s earlier %s overwritten, %s did not fit in the file; %s",
        amount_of(device->event_count, "entry").text, amount_count(device->lost).text,
        device->lost == 1 ? "entry was" : "entries were", amount_count(device->truncated).text,
        recording_file_limit(RECORDING_LIMIT_OMITTED, exporting->model.omitted).text);
    if (asprintf(&name, "%s, device %d", exporting->recording->name, device->number) < 0) {
        exporting->out_of_memory = true;
        return;
    }
    track.name = name;
    exporting->track = perfetto_track(&exporting->trace, &track);
    free(name);
    describe_gauge(exporting, &exporting->gauge, exporting->track);
    track = (struct perfetto_track){
        .name = "out of memory", .parent = exporting->track, .rank = RANK_OOM};
    exporting->oom_track = perfetto_track(&exporting->trace, &track);
    track = (struct perfetto_track){
        .name = "segments", .parent = exporting->track, .rank = RANK_SEGMENTS};
    exporting->segments_track = perfetto_track(&exporting->trace, &track);
}

/* Whether the device has memory of several pools at some time. */
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

/* Whether the last event is a free that the next event completes at the same time, so nothing was pending. */
static bool is_half_of_free(const struct exporting *exporting)
{
    const struct replay_model *model = &exporting->model;
    const struct recording_event *event = &exporting->device->events[model->at - 1];

    return event->action == RECORDING_FREE_REQUESTED &&
           model->at < exporting->device->event_count &&
           event[1].action == RECORDING_FREE_COMPLETED && event[1].address == event->address &&
           replay_model_next_us(model) == model->now_us;
}

static bool write_events(struct exporting *exporting)
{
    const struct replay_model_observer observer = {exporting,     block_added, block_freed,
                                                   block_removed, range_added, range_removed};
    const struct replay_model_observer none = {0};
    struct replay_model *model = &exporting->model;

    describe_device(exporting);
    replay_model_observe(model, &observer);
    write_gauges(exporting);
    while (!exporting->out_of_memory && replay_model_step(model)) {
        if (is_half_of_free(exporting))
            continue;
        write_gauges(exporting);
        write_event(exporting, &exporting->device->events[model->at - 1]);
    }
    replay_model_observe(model, &none);
    return !exporting->out_of_memory && !model->out_of_memory && write_lives(exporting);
}

static bool write_device(struct exporting *exporting, const struct recording_device *device)
{
    const struct recording *recording = exporting->recording;
    bool fine;

    exporting->device = device;
    exporting->has_pools = has_pools(device);
    exporting->gauge = (struct gauge){.is_written = false};
    exporting->touched_count = 0;
    if (device->event_count > 0 ? !replay_model_init(&exporting->model, recording, device)
                                : !replay_model_init_at_end(&exporting->model, recording, device))
        return false;
    exporting->dropped.blocks += exporting->model.dropped.blocks;
    exporting->dropped.bytes += exporting->model.dropped.bytes;
    exporting->pools = calloc(recording->pool_count, sizeof(*exporting->pools));
    exporting->touched = calloc(recording->pool_count, sizeof(*exporting->touched));
    fine = exporting->pools && exporting->touched &&
           export_lives_init(&exporting->lives, exporting->max_blocks) && write_events(exporting);
    export_lives_fini(&exporting->lives);
    replay_model_fini(&exporting->model);
    free(exporting->pools);
    free(exporting->touched);
    free(exporting->held);
    exporting->held = NULL;
    exporting->held_room = 0;
    return fine;
}

/* --- All devices. --- */

/* The time of the first event with a time; 0: none. */
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

static bool write_devices(struct exporting *exporting, const struct recording_device *only)
{
    const struct recording *recording = exporting->recording;

    if (only)
        return write_device(exporting, only);
    for (size_t i = 0; i < recording->device_count; i++)
        if (!write_device(exporting, &recording->devices[i]))
            return false;
    return true;
}

bool export_trace_write(FILE *out, const struct recording *recording,
                        const struct recording_device *device, size_t max_blocks,
                        struct replay_model_dropped *dropped)
{
    struct exporting exporting = {.recording = recording, .max_blocks = max_blocks};
    bool fine;

    if (!sites_init(&exporting.sites, recording, SITES_BY_FRAME, 1))
        return false;
    exporting.interned = calloc(exporting.sites.count, sizeof(*exporting.interned));
    exporting.pool_is_interned = calloc(recording->pool_count, sizeof(*exporting.pool_is_interned));
    exporting.began_us = first_time(recording, device);
    perfetto_init(&exporting.trace, out,
                  exporting.began_us >= YEAR_2001_US ? PERFETTO_CLOCK_REALTIME
                                                     : PERFETTO_CLOCK_BOOTTIME,
                  exporting.began_us);
    intern_names(&exporting.trace);
    fine = exporting.interned && exporting.pool_is_interned && write_devices(&exporting, device);
    fine = perfetto_fini(&exporting.trace) && fine;
    *dropped = exporting.dropped;
    free(exporting.interned);
    free(exporting.pool_is_interned);
    sites_fini(&exporting.sites);
    return fine;
}
