/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/snapshot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/reading/recording.h"

/* Microseconds between two looks at the clock: a look takes longer than the event that it is for. */
#define CLOCK_STEP 1000

#define FRAMES_MAX 256 /* of a stack that are looked at; the innermost come first */

/* Where an address stands, in the table of addresses by id_map_entry.line. */
enum { ADDRESS_KNOWN = 1, ADDRESS_LEAVING /* its free was requested */ };

/* A block that was live before the history began. */
struct early {
    uint64_t address, bytes, stream;
    uint32_t pool;
};

/* Why memory goes back. */
enum why {
    WHY_OPEN,  /* the programme asked for it, or the allocator was short of memory */
    WHY_STEAL, /* the allocator was short of memory */
    WHY_OWN    /* the allocator did it by itself, short of memory or not */
};

/* Entries are numbered from 1. */
struct snapshot {
    struct reader *reader;
    struct recording recording;
    const struct recording_device *device;
    struct id_map addresses; /* number: of the block that is live there; 0: none is */
    uint32_t
        *pools; /* by pool: 1 + the number of the last entry that allocates; 0: none, or released */
    struct early *early;
    size_t early_count, early_capacity;
    uint64_t early_bytes;
    uint32_t blocks;   /* numbers given so far */
    uint32_t live;     /* blocks that are allocated now */
    bool completes;    /* the history has frees that are complete */
    bool collects;     /* PyTorch collected garbage */
    uint64_t reserved; /* where the history is */
    uint64_t capacity; /* most that could be reserved when a request failed */
    bool has_capacity; /* one did */
    uint64_t limit;    /* that the configuration sets to what is reserved; UINT64_MAX: none */
    uint64_t time;     /* the latest that an entry had */
    uint64_t failed, unfreed, left_out;
};

/* --- Entries. --- */

static const struct recording_event *entry_of(const struct snapshot *snapshot, size_t number)
{
    snapshot->reader->line = (uint32_t)number;
    return &snapshot->device->events[number - 1];
}

static bool is_growth(const struct recording_event *entry)
{
    return entry->action == RECORDING_SEGMENT_ALLOC || entry->action == RECORDING_SEGMENT_MAP;
}

static bool is_return(const struct recording_event *entry)
{
    return entry->action == RECORDING_SEGMENT_FREE || entry->action == RECORDING_SEGMENT_UNMAP;
}

static enum why why_of(const struct recording_event *entry)
{
    if (entry->cause == RECORDING_CAUSE_NONE || entry->cause == RECORDING_CAUSE_TRIM)
        return WHY_OPEN;
    return entry->cause == RECORDING_CAUSE_REMAP ? WHY_STEAL : WHY_OWN;
}

/* Whether an entry's stack says that the programme asked for it. */
static bool is_asked(const struct snapshot *snapshot, const struct recording_event *entry)
{
    const struct recording *recording = &snapshot->recording;
    const struct recording_stack *stack = &recording->stacks[entry->stack];

    for (uint32_t i = 0; i < stack->count && i < FRAMES_MAX; i++) {
        const uint32_t frame = recording->stack_frames[stack->first + i];
        const char *name = recording_text(recording, recording->frames[frame].name);

        /* As Python, C++ and xseg call it. */
        if (strcmp(name, "empty_cache") == 0 || strcmp(name, "xseg_trim") == 0 ||
            strstr(name, "emptyCache"))
            return true;
    }
    return false;
}

/* Of a pool's two numbers one is always 0. */
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
                               "the pool (%" PRIu64 ", %" PRIu64
                               ") has two numbers that are not 0, or a number that is none",
                               id[0], id[1]);
    }
    return true;
}

/* --- Survey: what is to be known before the first entry is turned into anything. --- */

static bool note_address(struct snapshot *snapshot, uint64_t address)
{
    return reader_add_name(snapshot->reader, &snapshot->addresses, address, 0, ADDRESS_KNOWN);
}

static void note_pool(struct snapshot *snapshot, uint32_t pool, size_t number)
{
    if (snapshot->pools[pool] <= number)
        snapshot->pools[pool] = (uint32_t)number + 1;
}

static bool add_early(struct snapshot *snapshot, const struct early *block)
{
    struct early *early;

    if (id_map_find(&snapshot->addresses, block->address))
        return true;
    note_pool(snapshot, block->pool, 0);
    early = reader_reserve(snapshot->reader, snapshot->early, &snapshot->early_capacity,
                           snapshot->early_count, sizeof(*early));
    if (!early || !note_address(snapshot, block->address))
        return false;
    snapshot->early = early;
    early[snapshot->early_count++] = *block;
    snapshot->early_bytes += block->bytes;
    return true;
}

static bool note_alloc(struct snapshot *snapshot, const struct recording_event *entry,
                       size_t number)
{
    note_pool(snapshot, entry->pool, number);
    return entry->action == RECORDING_OOM || id_map_find(&snapshot->addresses, entry->address) ||
           note_address(snapshot, entry->address);
}

static bool note_entry(struct snapshot *snapshot, size_t number)
{
    const struct recording_event *entry = entry_of(snapshot, number);

    switch ((enum recording_action)entry->action) {
    case RECORDING_OOM:
        snapshot->capacity = snapshot->reserved + entry->address;
        snapshot->has_capacity = true;
        return note_alloc(snapshot, entry, number);
    case RECORDING_ALLOC:
        return note_alloc(snapshot, entry, number);
    case RECORDING_FREE_COMPLETED:
        snapshot->completes = true;
        /* fall through */
    case RECORDING_FREE_REQUESTED:
        /* A block that is freed and was never allocated was live when the history began. */
        return add_early(snapshot,
                         &(struct early){entry->address, entry->bytes, entry->stream, entry->pool});
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

/* Blocks that are live at the end, and what is reserved then. */
static bool note_segments(struct snapshot *snapshot, uint64_t *reserved)
{
    snapshot->reader->line = 0;
    for (size_t i = 0; i < snapshot->device->segment_count; i++) {
        const struct recording_segment *segment = &snapshot->device->segments[i];

        *reserved += segment->bytes;
        for (uint32_t at = 0; at < segment->count; at++) {
            const struct recording_block *block = &snapshot->recording.blocks[segment->first + at];
            const uint64_t bytes = block->requested ? block->requested : block->bytes;

            if (block->state != RECORDING_INACTIVE &&
                !add_early(snapshot,
                           &(struct early){block->address, bytes, segment->stream, segment->pool}))
                return false;
        }
    }
    return true;
}

static int compare_blocks(const void *left, const void *right)
{
    const uint64_t a = ((const struct early *)left)->address;
    const uint64_t b = ((const struct early *)right)->address;

    return a < b ? -1 : a > b;
}

static bool survey(struct snapshot *snapshot)
{
    uint64_t began, reserved = 0;

    for (size_t number = 1; number <= snapshot->device->event_count; number++)
        if (!note_entry(snapshot, number))
            return false;
    if (!note_segments(snapshot, &reserved))
        return false;
    if (snapshot->early_count > 0)
        qsort(snapshot->early, snapshot->early_count, sizeof(*snapshot->early), compare_blocks);
    /* What is reserved was counted from nothing; what it is at the end is known. */
    began = reserved - snapshot->reserved;
    snapshot->reader->trace.end.reserved = reserved;
    snapshot->reader->trace.end.reserved_before = began <= reserved ? began : 0;
    snapshot->reserved = began;
    snapshot->capacity += began;
    return true;
}

/* --- Turning entries into operations. --- */

static bool allocate(struct snapshot *snapshot, uint64_t bytes, uint64_t stream, uint32_t pool)
{
    const struct fields fields = {
        .count = 5, .number = {0, ++snapshot->blocks, bytes, stream, pool_name(snapshot, pool)}};

    snapshot->live++;
    return reader_alloc(snapshot->reader, &fields);
}

static bool release(struct snapshot *snapshot, struct id_map_entry *address)
{
    const struct fields fields = {.count = 2, .number = {0, address->number}};

    address->number = 0;
    address->line = ADDRESS_KNOWN;
    snapshot->live--;
    return reader_free(snapshot->reader, &fields);
}

static bool allocate_early(struct snapshot *snapshot)
{
    snapshot->reader->line = 1;
    for (size_t i = 0; i < snapshot->early_count; i++) {
        const struct early *block = &snapshot->early[i];

        if (!allocate(snapshot, block->bytes, block->stream, block->pool))
            return false;
        id_map_find(&snapshot->addresses, block->address)->number = snapshot->blocks;
    }
    return true;
}

/*
 * Move the clock on to the time of an entry, if that is at least so many microseconds.  Threads that
 * allocate at the same time may be a little out of order; a time that has passed is none.
 */
static bool tell_time(struct snapshot *snapshot, uint64_t time, uint64_t least)
{
    const struct fields fields = {.count = 2, .number = {0, time}};
    const struct reader *reader = snapshot->reader;

    if (time == 0 || (reader->has_clock && (time <= reader->clock || time - reader->clock < least)))
        return true;
    return reader_clock(snapshot->reader, &fields);
}

static bool play_alloc(struct snapshot *snapshot, const struct recording_event *entry)
{
    struct id_map_entry *address = id_map_find(&snapshot->addresses, entry->address);

    if (address->number != 0) {
        snapshot->unfreed += address->line != ADDRESS_LEAVING;
        if (!release(snapshot, address))
            return false;
    }
    if (!allocate(snapshot, entry->bytes, entry->stream, entry->pool))
        return false;
    address->number = snapshot->blocks;
    return true;
}

static bool play_free(struct snapshot *snapshot, const struct recording_event *entry)
{
    struct id_map_entry *address = id_map_find(&snapshot->addresses, entry->address);

    if (address->number == 0) {
        snapshot->left_out++;
        return true;
    }
    if (entry->action == RECORDING_FREE_COMPLETED || !snapshot->completes)
        return release(snapshot, address);
    address->line = ADDRESS_LEAVING;
    return true;
}

static bool play_failure(struct snapshot *snapshot, const struct recording_event *entry)
{
    static char word[] = "oom";
    const struct fields fields = {.text = {NULL, word}, .count = 2};

    snapshot->failed++;
    if (!allocate(snapshot, entry->bytes, entry->stream, entry->pool))
        return false;
    snapshot->live--;
    return reader_failure(snapshot->reader, &fields);
}

/* The memory of a private pool goes back only when its owner has let go of it. */
static bool release_pool(struct snapshot *snapshot, uint32_t pool, size_t number)
{
    const struct fields fields = {.count = 2, .number = {0, pool_name(snapshot, pool)}};

    if (pool == 0 || snapshot->pools[pool] == 0 || snapshot->pools[pool] > number + 1)
        return true;
    snapshot->pools[pool] = 0;
    return reader_pool_release(snapshot->reader, &fields);
}

/* --- Memory that went back. --- */

/*
 * A run of entries that return memory.  Either the programme asked for it, or the allocator was short
 * of memory, which a replay sees to by itself where it has to.  The stack says which.  Where there is
 * no stack, what comes next does: a request that fails shows a shortage, as a steal does, and so does
 * a growth that would have gone beyond what could be reserved.  Entries of which xseg says that it did
 * them by itself are in no run.
 */
struct returns {
    bool is_under_way;
    bool has_stack, is_asked;
    uint64_t reserved_before;
};

/* Bytes of the growths that follow each other from an entry on. */
static uint64_t measure_growth(const struct snapshot *snapshot, size_t number)
{
    const struct recording_device *device = snapshot->device;
    uint64_t bytes = 0;

    for (; number <= device->event_count && is_growth(&device->events[number - 1]); number++)
        bytes += device->events[number - 1].bytes;
    return bytes;
}

/* Whether a run was for want of memory.  number, next: the entry behind it, NULL: there is none. */
static bool is_shortage(const struct snapshot *snapshot, const struct returns *returns,
                        size_t number, const struct recording_event *next)
{
    uint64_t bytes;

    if (returns->has_stack)
        return !returns->is_asked;
    if (!next || !is_growth(next))
        return next &&
               (next->action == RECORDING_OOM || (is_return(next) && why_of(next) == WHY_STEAL));
    bytes = returns->reserved_before + measure_growth(snapshot, number);
    return snapshot->collects || bytes > snapshot->limit ||
           (snapshot->has_capacity && bytes > snapshot->capacity);
}

static bool play_return(struct snapshot *snapshot, struct returns *returns, size_t number,
                        const struct recording_event *entry)
{
    const uint64_t before = snapshot->reserved;

    snapshot->reserved -= entry->bytes;
    if (why_of(entry) != WHY_OPEN)
        return true;
    if (!returns->is_under_way)
        *returns = (struct returns){.is_under_way = true, .reserved_before = before};
    returns->is_asked |= is_asked(snapshot, entry);
    returns->has_stack |= entry->stack != 0;
    return release_pool(snapshot, entry->pool, number);
}

static bool end_returns(struct snapshot *snapshot, struct returns *returns, size_t number,
                        const struct recording_event *next)
{
    const struct fields fields = {.count = 1};

    if (!returns->is_under_way)
        return true;
    returns->is_under_way = false;
    return is_shortage(snapshot, returns, number, next) || reader_empty(snapshot->reader, &fields);
}

/* --- All of it. --- */

static bool play_entry(struct snapshot *snapshot, size_t number, struct returns *returns)
{
    const struct recording_event *entry = entry_of(snapshot, number);

    /* Memory that goes by itself in the midst of a run does not end it. */
    if ((!is_return(entry) || why_of(entry) == WHY_STEAL) &&
        !end_returns(snapshot, returns, number, entry))
        return false;
    if (entry->action < RECORDING_SNAPSHOT && entry->time_us > snapshot->time)
        snapshot->time = entry->time_us;
    if (entry->action < RECORDING_SNAPSHOT && !tell_time(snapshot, entry->time_us, CLOCK_STEP))
        return false;
    switch ((enum recording_action)entry->action) {
    case RECORDING_ALLOC:
        return play_alloc(snapshot, entry);
    case RECORDING_FREE_REQUESTED:
    case RECORDING_FREE_COMPLETED:
        return play_free(snapshot, entry);
    case RECORDING_OOM:
        return play_failure(snapshot, entry);
    case RECORDING_SEGMENT_FREE:
    case RECORDING_SEGMENT_UNMAP:
        return play_return(snapshot, returns, number, entry);
    case RECORDING_SEGMENT_ALLOC:
    case RECORDING_SEGMENT_MAP:
        snapshot->reserved += entry->bytes;
        return true;
    case RECORDING_OTHER:
        snapshot->left_out++;
        return true;
    case RECORDING_SNAPSHOT:
    case RECORDING_ANNOTATE:
        break;
    }
    return true;
}

static bool play(struct snapshot *snapshot)
{
    struct returns returns = {.is_under_way = false};

    for (size_t number = 1; number <= snapshot->device->event_count; number++)
        if (!play_entry(snapshot, number, &returns))
            return false;
    return end_returns(snapshot, &returns, 0, NULL) && tell_time(snapshot, snapshot->time, 1);
}

/* What a configuration that xseg wrote limits the memory of a device to; UINT64_MAX: nothing. */
static uint64_t limit_of(const char *config)
{
    static const char key[] = "hard_limit_mb:";
    const char *at = strstr(config, key);
    const uint64_t mib = at ? strtoull(at + sizeof(key) - 1, NULL, 10) : 0;

    return mib > 0 && mib < UINT64_MAX >> 20 ? mib << 20 : UINT64_MAX;
}

/* Add which kind of segments the file shows to settings that do not contain it; PyTorch's default is classic. */
static bool infer_config(struct snapshot *snapshot, const char *config)
{
    const enum recording_segments shown = recording_segments(&snapshot->recording);
    char *whole = NULL;
    bool fine;

    snapshot->reader->trace.end.inferred =
        shown == RECORDING_UNKNOWN ? XTRACE_SEGMENTS_ASSUMED : XTRACE_SEGMENTS_SHOWN;
    if (asprintf(&whole, "%s%sexpandable_segments:%s", config, config[0] ? "," : "",
                 shown >= RECORDING_EXPANDABLE ? "True" : "False") < 0)
        return reader_out_of_memory(snapshot->reader);
    fine = reader_config(snapshot->reader, whole);
    free(whole);
    return fine;
}

/* The string that PyTorch read last. */
static bool take_config(struct snapshot *snapshot)
{
    const struct recording *recording = &snapshot->recording;
    const char *config = recording_text(recording, recording->config);
    const enum recording_segments shown = recording_segments(recording);
    const bool is_expandable = strstr(config, "expandable_segments:True") != NULL;

    snapshot->collects = strstr(config, "garbage_collection_threshold") != NULL;
    snapshot->limit = limit_of(config);
    snapshot->reader->line = 0;
    if (!recording->names_segments)
        return infer_config(snapshot, config);
    snapshot->reader->trace.end.contradicts =
        shown == (is_expandable ? RECORDING_CLASSIC : RECORDING_EXPANDABLE);
    return reader_config(snapshot->reader, config);
}

/* Compare the blocks that the history ends with with those of the segments. */
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
    end->unfreed = snapshot->live > matched ? snapshot->live - matched : 0;
    end->made_up = snapshot->unfreed;
    end->bytes_before = snapshot->early_bytes;
}

/* What a user should know about the way from a snapshot to a trace. */
static void note(const struct snapshot *snapshot)
{
    const size_t devices = recording_history_count(&snapshot->recording);
    char *text = snapshot->reader->trace.note;
    const size_t room = sizeof(snapshot->reader->trace.note);
    int at = snprintf(text, room, "device %d", snapshot->device->number);

    if (devices > 1)
        at += snprintf(text + at, room - (size_t)at, " of %zu", devices);
    at += snprintf(text + at, room - (size_t)at, ", %s",
                   amount_of(snapshot->device->event_count, "entry").text);
    if (snapshot->early_count > 0)
        at += snprintf(text + at, room - (size_t)at, "; allocated before the first: %s, %s",
                       amount_of(snapshot->early_count, "block").text,
                       amount_bytes(snapshot->early_bytes).text);
    if (snapshot->unfreed > 0)
        at += snprintf(text + at, room - (size_t)at,
                       "; %s missing, made up for where a block comes again",
                       amount_of(snapshot->unfreed, "free").text);
    if (snapshot->left_out > 0)
        (void)snprintf(text + at, room - (size_t)at, "; left out: %s of the entries",
                       amount_count(snapshot->left_out).text);
}

static bool turn(struct snapshot *snapshot, int device)
{
    const struct recording *recording = &snapshot->recording;

    snapshot->device = recording_device(recording, device);
    snapshot->pools = calloc(recording->pool_count, sizeof(*snapshot->pools));
    if (!snapshot->pools)
        return reader_out_of_memory(snapshot->reader);
    if (!check_pools(snapshot) || !take_config(snapshot) || (snapshot->device && !survey(snapshot)))
        return false;
    if (!snapshot->device || (snapshot->device->event_count == 0 && snapshot->early_count == 0))
        return reader_fail(
            snapshot->reader,
            "there is nothing to replay about device %d: no history and no live block",
            snapshot->device ? snapshot->device->number
            : device < 0     ? 0
                             : device);
    return allocate_early(snapshot) && play(snapshot);
}

bool snapshot_read(struct reader *reader, struct input *input, int device)
{
    struct snapshot snapshot = {.reader = reader, .limit = UINT64_MAX};
    struct recording_fault fault;
    bool fine;

    reader->line = 0;
    if (!recording_read(input, "", NULL, &snapshot.recording, &fault))
        return reader_fail(reader, "%s", fault.text);
    fine = turn(&snapshot, device);
    if (fine) {
        reader->trace.has_history = snapshot.device->event_count > 0;
        reader->trace.capacity = snapshot.has_capacity ? snapshot.capacity : 0;
        compare_end(&snapshot);
        note(&snapshot);
    }
    id_map_fini(&snapshot.addresses);
    free(snapshot.pools);
    free(snapshot.early);
    recording_fini(&snapshot.recording);
    return fine;
}
