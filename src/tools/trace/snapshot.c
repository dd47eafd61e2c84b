/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/snapshot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/reading/recording.h"

/* Minimal microseconds between two clock operations, which take longer than the events between them. */
#define CLOCK_STEP 1000

#define FRAMES_MAX 256 /* searched in a stack, from the innermost one */

/* The state of an address, in id_map_entry.line. */
enum { ADDRESS_KNOWN = 1, ADDRESS_PENDING /* its free was requested */ };

/* A block that was allocated before the history began. */
struct initial_block {
    uint64_t address, bytes, stream;
    uint32_t pool;
};

/* The reason for a release of memory. */
enum reason {
    REASON_UNKNOWN, /* the program requested it, or the allocator ran out of memory */
    REASON_REMAP,   /* the allocator ran out of memory */
    REASON_POLICY   /* a policy of the allocator */
};

/* Entries are numbered from 1. */
struct snapshot {
    struct reader *reader;
    struct recording recording;
    const struct recording_device *device;
    struct id_map addresses; /* number: of the allocated block; 0: none */
    /* By pool: 1 + the number of the last entry that allocates; 0: none, or released. */
    uint32_t *pools;
    struct initial_block *initial;
    size_t initial_count, initial_capacity;
    uint64_t initial_bytes;
    uint32_t blocks;    /* number of the last block */
    uint32_t allocated; /* allocated blocks */
    bool completes;     /* the history has completed frees */
    bool collects;      /* the configuration enables garbage collection */
    uint64_t reserved;  /* bytes at the current entry */
    uint64_t capacity;  /* bytes that could be reserved at the last failed request */
    bool has_capacity;  /* a request failed */
    uint64_t limit;     /* of reserved bytes in the configuration; UINT64_MAX: none */
    uint64_t time;      /* of the latest entry */
    uint64_t failed, unfreed, omitted;
};

/* --- Entries. --- */

static const struct recording_event *get_entry(const struct snapshot *snapshot, size_t number)
{
    snapshot->reader->line = (uint32_t)number;
    return &snapshot->device->events[number - 1];
}

static bool is_growth(const struct recording_event *entry)
{
    return entry->action == RECORDING_SEGMENT_ALLOC || entry->action == RECORDING_SEGMENT_MAP;
}

static bool is_release(const struct recording_event *entry)
{
    return entry->action == RECORDING_SEGMENT_FREE || entry->action == RECORDING_SEGMENT_UNMAP;
}

static enum reason get_reason(const struct recording_event *entry)
{
    if (entry->cause == RECORDING_CAUSE_NONE || entry->cause == RECORDING_CAUSE_TRIM)
        return REASON_UNKNOWN;
    return entry->cause == RECORDING_CAUSE_REMAP ? REASON_REMAP : REASON_POLICY;
}

/* Get whether the stack of an entry shows an explicit release by the program. */
static bool is_explicit(const struct snapshot *snapshot, const struct recording_event *entry)
{
    const struct recording *recording = &snapshot->recording;
    const struct recording_stack *stack = &recording->stacks[entry->stack];

    for (uint32_t i = 0; i < stack->count && i < FRAMES_MAX; i++) {
        const uint32_t frame = recording->stack_frames[stack->first + i];
        const char *name = recording_text(recording, recording->frames[frame].name);

        /* Functions of Python, xseg and C++. */
        if (strcmp(name, "empty_cache") == 0 || strcmp(name, "xseg_trim") == 0 ||
            strstr(name, "emptyCache"))
            return true;
    }
    return false;
}

/* Combine the two numbers of a pool, of which one is 0. */
static uint64_t pool_name(const struct snapshot *snapshot, uint32_t pool)
{
    const uint64_t *id = snapshot->recording.pools[pool];

    return id[0] ? 2 * id[0] : id[1] ? 2 * id[1] + 1 : 0;
}

static bool check_pools(struct snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->recording.pool_count; i++) {
        const uint64_t *id = snapshot->recording.pools[i];

        if ((id[0] && id[1]) || id[0] >> 62 || id[1] >> 62)
            return reader_fail(snapshot->reader,
                               "invalid pool, (%" PRIu64 ", %" PRIu64
                               "); one number must be 0, and the other below 2^62",
                               id[0], id[1]);
    }
    return true;
}

/* --- The first pass collects the initial blocks, the pools and the limits. --- */

static bool add_address(struct snapshot *snapshot, uint64_t address)
{
    return reader_add_name(snapshot->reader, &snapshot->addresses, address, 0, ADDRESS_KNOWN);
}

static void record_pool(struct snapshot *snapshot, uint32_t pool, size_t number)
{
    if (snapshot->pools[pool] <= number)
        snapshot->pools[pool] = (uint32_t)number + 1;
}

static bool add_initial(struct snapshot *snapshot, const struct initial_block *block)
{
    struct initial_block *initial;

    if (id_map_find(&snapshot->addresses, block->address))
        return true;
    record_pool(snapshot, block->pool, 0);
    initial = reader_reserve(snapshot->reader, snapshot->initial, &snapshot->initial_capacity,
                             snapshot->initial_count, sizeof(*initial));
    if (!initial || !add_address(snapshot, block->address))
        return false;
    snapshot->initial = initial;
    initial[snapshot->initial_count++] = *block;
    snapshot->initial_bytes += block->bytes;
    return true;
}

static bool record_alloc(struct snapshot *snapshot, const struct recording_event *entry,
                         size_t number)
{
    record_pool(snapshot, entry->pool, number);
    return entry->action == RECORDING_OOM || id_map_find(&snapshot->addresses, entry->address) ||
           add_address(snapshot, entry->address);
}

static bool record_entry(struct snapshot *snapshot, size_t number)
{
    const struct recording_event *entry = get_entry(snapshot, number);

    switch ((enum recording_action)entry->action) {
    case RECORDING_OOM:
        snapshot->capacity = snapshot->reserved + entry->address;
        snapshot->has_capacity = true;
        return record_alloc(snapshot, entry, number);
    case RECORDING_ALLOC:
        return record_alloc(snapshot, entry, number);
    case RECORDING_FREE_COMPLETED:
        snapshot->completes = true;
        /* fall through */
    case RECORDING_FREE_REQUESTED:
        /* A block that is freed without an allocation was allocated before the history began. */
        return add_initial(snapshot, &(struct initial_block){entry->address, entry->bytes,
                                                             entry->stream, entry->pool});
    case RECORDING_SEGMENT_ALLOC:
    case RECORDING_SEGMENT_MAP:
        snapshot->reserved += entry->bytes;
        return true;
    case RECORDING_SEGMENT_FREE:
    case RECORDING_SEGMENT_UNMAP:
        snapshot->reserved -= entry->bytes;
        return true;
    case RECORDING_SNAPSHOT:
    case RECORDING_ANNOTATE:
    case RECORDING_OTHER:
        break;
    }
    return true;
}

/* Record the allocated blocks at the end, and the reserved bytes. */
static bool record_segments(struct snapshot *snapshot, uint64_t *reserved)
{
    snapshot->reader->line = 0;
    for (size_t i = 0; i < snapshot->device->segment_count; i++) {
        const struct recording_segment *segment = &snapshot->device->segments[i];

        *reserved += segment->bytes;
        for (uint32_t at = 0; at < segment->count; at++) {
            const struct recording_block *block = &snapshot->recording.blocks[segment->first + at];
            const uint64_t bytes = block->requested ? block->requested : block->bytes;

            if (block->state != RECORDING_INACTIVE &&
                !add_initial(snapshot, &(struct initial_block){block->address, bytes,
                                                               segment->stream, segment->pool}))
                return false;
        }
    }
    return true;
}

static int compare_blocks(const void *first, const void *second)
{
    const uint64_t a = ((const struct initial_block *)first)->address;
    const uint64_t b = ((const struct initial_block *)second)->address;

    return a < b ? -1 : a > b;
}

static bool scan_snapshot(struct snapshot *snapshot)
{
    uint64_t initial_reserved, reserved = 0;

    for (size_t number = 1; number <= snapshot->device->event_count; number++)
        if (!record_entry(snapshot, number))
            return false;
    if (!record_segments(snapshot, &reserved))
        return false;
    if (snapshot->initial_count > 0)
        qsort(snapshot->initial, snapshot->initial_count, sizeof(*snapshot->initial),
              compare_blocks);
    /* Reserved bytes were counted from 0; the difference to the segments at the end is the initial value. */
    initial_reserved = reserved - snapshot->reserved;
    snapshot->reader->trace.end.reserved = reserved;
    snapshot->reader->trace.end.reserved_before =
        initial_reserved <= reserved ? initial_reserved : 0;
    snapshot->reserved = initial_reserved;
    snapshot->capacity += initial_reserved;
    return true;
}

/* --- The second pass converts entries to operations. --- */

static bool allocate_block(struct snapshot *snapshot, uint64_t bytes, uint64_t stream,
                           uint32_t pool)
{
    const struct fields fields = {
        .count = 5, .number = {0, ++snapshot->blocks, bytes, stream, pool_name(snapshot, pool)}};

    snapshot->allocated++;
    return reader_alloc(snapshot->reader, &fields);
}

static bool free_block(struct snapshot *snapshot, struct id_map_entry *address)
{
    const struct fields fields = {.count = 2, .number = {0, address->number}};

    address->number = 0;
    address->line = ADDRESS_KNOWN;
    snapshot->allocated--;
    return reader_free(snapshot->reader, &fields);
}

static bool allocate_initial(struct snapshot *snapshot)
{
    snapshot->reader->line = 1;
    for (size_t i = 0; i < snapshot->initial_count; i++) {
        const struct initial_block *block = &snapshot->initial[i];

        if (!allocate_block(snapshot, block->bytes, block->stream, block->pool))
            return false;
        id_map_find(&snapshot->addresses, block->address)->number = snapshot->blocks;
    }
    return true;
}

/* Advance the clock to the time of an entry, by at least `min_step` microseconds.  Entries of concurrent threads may be
 * slightly out of order; an earlier time is ignored. */
static bool advance_clock(struct snapshot *snapshot, uint64_t time, uint64_t min_step)
{
    const struct fields fields = {.count = 2, .number = {0, time}};
    const struct reader *reader = snapshot->reader;

    if (time == 0 ||
        (reader->has_clock && (time <= reader->clock || time - reader->clock < min_step)))
        return true;
    return reader_clock(snapshot->reader, &fields);
}

static bool convert_alloc(struct snapshot *snapshot, const struct recording_event *entry)
{
    struct id_map_entry *address = id_map_find(&snapshot->addresses, entry->address);

    if (address->number != 0) {
        snapshot->unfreed += address->line != ADDRESS_PENDING;
        if (!free_block(snapshot, address))
            return false;
    }
    if (!allocate_block(snapshot, entry->bytes, entry->stream, entry->pool))
        return false;
    address->number = snapshot->blocks;
    return true;
}

static bool convert_free(struct snapshot *snapshot, const struct recording_event *entry)
{
    struct id_map_entry *address = id_map_find(&snapshot->addresses, entry->address);

    if (address->number == 0) {
        snapshot->omitted++;
        return true;
    }
    if (entry->action == RECORDING_FREE_COMPLETED || !snapshot->completes)
        return free_block(snapshot, address);
    address->line = ADDRESS_PENDING;
    return true;
}

static bool convert_failure(struct snapshot *snapshot, const struct recording_event *entry)
{
    static char word[] = "oom";
    const struct fields fields = {.text = {NULL, word}, .count = 2};

    snapshot->failed++;
    if (!allocate_block(snapshot, entry->bytes, entry->stream, entry->pool))
        return false;
    snapshot->allocated--;
    return reader_failure(snapshot->reader, &fields);
}

/* Memory of a private pool is released only after its owner has released the pool. */
static bool release_pool(struct snapshot *snapshot, uint32_t pool, size_t number)
{
    const struct fields fields = {.count = 2, .number = {0, pool_name(snapshot, pool)}};

    if (pool == 0 || snapshot->pools[pool] == 0 || snapshot->pools[pool] > number + 1)
        return true;
    snapshot->pools[pool] = 0;
    return reader_pool_release(snapshot->reader, &fields);
}

/* --- Releases of memory. --- */

/*
 * A run of entries that release memory.  Either the program requested the release, or the allocator ran out of memory,
 * which the replay does as well.  The stack distinguishes the cases.  Without a stack, the next entry does: a failed
 * request, a remap, or a growth beyond the bytes that could be reserved shows that memory ran out.  Entries that xseg
 * marks as its own policy are not part of a run.
 */
struct releases {
    bool is_active;
    bool has_stack, is_explicit;
    uint64_t reserved_before;
};

/* Sum the bytes of the consecutive growths from an entry on. */
static uint64_t measure_growth(const struct snapshot *snapshot, size_t number)
{
    const struct recording_device *device = snapshot->device;
    uint64_t bytes = 0;

    for (; number <= device->event_count && is_growth(&device->events[number - 1]); number++)
        bytes += device->events[number - 1].bytes;
    return bytes;
}

/* Get whether a run is due to low memory.  number, next: the entry after the run; NULL: none */
static bool is_low_memory(const struct snapshot *snapshot, const struct releases *releases,
                          size_t number, const struct recording_event *next)
{
    uint64_t bytes;

    if (releases->has_stack)
        return !releases->is_explicit;
    if (!next || !is_growth(next))
        return next && (next->action == RECORDING_OOM ||
                        (is_release(next) && get_reason(next) == REASON_REMAP));
    bytes = releases->reserved_before + measure_growth(snapshot, number);
    return snapshot->collects || bytes > snapshot->limit ||
           (snapshot->has_capacity && bytes > snapshot->capacity);
}

static bool convert_release(struct snapshot *snapshot, struct releases *releases, size_t number,
                            const struct recording_event *entry)
{
    const uint64_t reserved_before = snapshot->reserved;

    snapshot->reserved -= entry->bytes;
    if (get_reason(entry) != REASON_UNKNOWN)
        return true;
    if (!releases->is_active)
        *releases = (struct releases){.is_active = true, .reserved_before = reserved_before};
    releases->is_explicit |= is_explicit(snapshot, entry);
    releases->has_stack |= entry->stack != 0;
    return release_pool(snapshot, entry->pool, number);
}

static bool end_releases(struct snapshot *snapshot, struct releases *releases, size_t number,
                         const struct recording_event *next)
{
    const struct fields fields = {.count = 1};

    if (!releases->is_active)
        return true;
    releases->is_active = false;
    return is_low_memory(snapshot, releases, number, next) ||
           reader_empty(snapshot->reader, &fields);
}

/* --- The whole snapshot. --- */

static bool convert_entry(struct snapshot *snapshot, size_t number, struct releases *releases)
{
    const struct recording_event *entry = get_entry(snapshot, number);

    /* A release by a policy within a run does not end the run. */
    if ((!is_release(entry) || get_reason(entry) == REASON_REMAP) &&
        !end_releases(snapshot, releases, number, entry))
        return false;
    if (entry->action < RECORDING_SNAPSHOT && entry->time_us > snapshot->time)
        snapshot->time = entry->time_us;
    if (entry->action < RECORDING_SNAPSHOT && !advance_clock(snapshot, entry->time_us, CLOCK_STEP))
        return false;
    switch ((enum recording_action)entry->action) {
    case RECORDING_ALLOC:
        return convert_alloc(snapshot, entry);
    case RECORDING_FREE_REQUESTED:
    case RECORDING_FREE_COMPLETED:
        return convert_free(snapshot, entry);
    case RECORDING_OOM:
        return convert_failure(snapshot, entry);
    case RECORDING_SEGMENT_FREE:
    case RECORDING_SEGMENT_UNMAP:
        return convert_release(snapshot, releases, number, entry);
    case RECORDING_SEGMENT_ALLOC:
    case RECORDING_SEGMENT_MAP:
        snapshot->reserved += entry->bytes;
        return true;
    case RECORDING_OTHER:
        snapshot->omitted++;
        return true;
    case RECORDING_SNAPSHOT:
    case RECORDING_ANNOTATE:
        break;
    }
    return true;
}

static bool convert_entries(struct snapshot *snapshot)
{
    struct releases releases = {.is_active = false};

    for (size_t number = 1; number <= snapshot->device->event_count; number++)
        if (!convert_entry(snapshot, number, &releases))
            return false;
    return end_releases(snapshot, &releases, 0, NULL) && advance_clock(snapshot, snapshot->time, 1);
}

/* Read the hard limit of a configuration of xseg; UINT64_MAX: none. */
static uint64_t read_hard_limit(const char *config)
{
    static const char key[] = "hard_limit_mb:";
    const char *at = strstr(config, key);
    const uint64_t mib = at ? strtoull(at + sizeof(key) - 1, NULL, 10) : 0;

    return mib > 0 && mib < UINT64_MAX >> 20 ? mib << 20 : UINT64_MAX;
}

/* Add the kind of segments in the file to settings without it; PyTorch's default is classic segments. */
static bool infer_config(struct snapshot *snapshot, const char *config)
{
    const enum recording_segments shown = recording_segments(&snapshot->recording);
    char *completed = NULL;
    bool success;

    snapshot->reader->trace.end.inferred =
        shown == RECORDING_UNKNOWN ? XTRACE_SEGMENTS_ASSUMED : XTRACE_SEGMENTS_SHOWN;
    if (asprintf(&completed, "%s%sexpandable_segments:%s", config, config[0] ? "," : "",
                 shown >= RECORDING_EXPANDABLE ? "True" : "False") < 0)
        return reader_out_of_memory(snapshot->reader);
    success = reader_config(snapshot->reader, completed);
    free(completed);
    return success;
}

/* Read the configuration string of the program. */
static bool read_config(struct snapshot *snapshot)
{
    const struct recording *recording = &snapshot->recording;
    const char *config = recording_text(recording, recording->config);
    const enum recording_segments shown = recording_segments(recording);
    const bool is_expandable = strstr(config, "expandable_segments:True") != NULL;

    snapshot->collects = strstr(config, "garbage_collection_threshold") != NULL;
    snapshot->limit = read_hard_limit(config);
    snapshot->reader->line = 0;
    if (!recording->names_segments)
        return infer_config(snapshot, config);
    snapshot->reader->trace.end.contradicts =
        shown == (is_expandable ? RECORDING_CLASSIC : RECORDING_EXPANDABLE);
    return reader_config(snapshot->reader, config);
}

/* Compare the blocks at the end of the history with those of the segments. */
static void compare_end(struct snapshot *snapshot)
{
    struct xtrace_end *end = &snapshot->reader->trace.end;
    uint64_t matched = 0;

    for (size_t i = 0; i < snapshot->device->segment_count; i++) {
        const struct recording_segment *segment = &snapshot->device->segments[i];

        for (uint32_t at = 0; at < segment->count; at++) {
            const struct recording_block *block = &snapshot->recording.blocks[segment->first + at];
            const struct id_map_entry *address = id_map_find(&snapshot->addresses, block->address);

            if (block->state == RECORDING_INACTIVE)
                continue;
            if (address && address->number != 0) {
                matched++;
                continue;
            }
            end->unknown++;
            end->unknown_bytes += block->bytes;
        }
    }
    end->unfreed = snapshot->allocated > matched ? snapshot->allocated - matched : 0;
    end->inserted_frees = snapshot->unfreed;
    end->bytes_before = snapshot->initial_bytes;
}

/* Summarize the conversion for the user. */
static void summarize(const struct snapshot *snapshot)
{
    const size_t devices = recording_history_count(&snapshot->recording);
    char *text = snapshot->reader->trace.summary;
    const size_t capacity = sizeof(snapshot->reader->trace.summary);
    int at = snprintf(text, capacity, "device %d", snapshot->device->number);

    if (devices > 1)
        at += snprintf(text + at, capacity - (size_t)at, " of %zu", devices);
    at += snprintf(text + at, capacity - (size_t)at, ", %s",
                   amount_of(snapshot->device->event_count, "entry").text);
    if (snapshot->initial_count > 0)
        at += snprintf(text + at, capacity - (size_t)at, "; allocated before the first: %s, %s",
                       amount_of(snapshot->initial_count, "block").text,
                       amount_bytes(snapshot->initial_bytes).text);
    if (snapshot->unfreed > 0)
        at += snprintf(text + at, capacity - (size_t)at,
                       "; %s missing, added where an address is allocated again",
                       amount_of(snapshot->unfreed, "free").text);
    if (snapshot->device->synthetic > 0)
        at += snprintf(text + at, capacity - (size_t)at, "; not replayed: %s",
                       amount_of(snapshot->device->synthetic, "synthetic entry").text);
    if (recording_has_host(&snapshot->recording))
        at += snprintf(text + at, capacity - (size_t)at, "; not replayed: pinned host memory, %s",
                       amount_of(snapshot->recording.host.event_count, "entry").text);
    if (snapshot->omitted > 0)
        (void)snprintf(text + at, capacity - (size_t)at, "; omitted: %s of the entries",
                       amount_count(snapshot->omitted).text);
}

static bool convert_snapshot(struct snapshot *snapshot, int device)
{
    const struct recording *recording = &snapshot->recording;

    snapshot->device = recording_device(recording, device);
    snapshot->pools = calloc(recording->pool_count, sizeof(*snapshot->pools));
    if (!snapshot->pools)
        return reader_out_of_memory(snapshot->reader);
    if (!check_pools(snapshot) || !read_config(snapshot) ||
        (snapshot->device && !scan_snapshot(snapshot)))
        return false;
    if (!snapshot->device || (snapshot->device->event_count == 0 && snapshot->initial_count == 0))
        return reader_fail(
            snapshot->reader,
            "nothing to replay, device %d; the device has no history and no allocated block",
            snapshot->device ? snapshot->device->number
            : device < 0     ? 0
                             : device);
    return allocate_initial(snapshot) && convert_entries(snapshot);
}

bool snapshot_read(struct reader *reader, struct input *input, int device)
{
    struct snapshot snapshot = {.reader = reader, .limit = UINT64_MAX};
    struct recording_fault fault;
    bool success;

    reader->line = 0;
    if (!recording_read(input, "", NULL, &snapshot.recording, &fault))
        return reader_fail(reader, "%s", fault.text);
    success = convert_snapshot(&snapshot, device);
    if (success) {
        reader->trace.has_history = snapshot.device->event_count > 0;
        reader->trace.capacity = snapshot.has_capacity ? snapshot.capacity : 0;
        compare_end(&snapshot);
        summarize(&snapshot);
    }
    id_map_fini(&snapshot.addresses);
    free(snapshot.pools);
    free(snapshot.initial);
    recording_fini(&snapshot.recording);
    return success;
}
