/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/snapshot.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/files/json_pickle.h"
#include "src/tools/trace/history.h"

/* Microseconds between two looks at the clock: a look takes longer than the event that it is for. */
#define CLOCK_STEP 1000

/* Where an address stands, in the table of addresses by idmap_entry.line. */
enum { ADDRESS_KNOWN = 1, ADDRESS_LEAVING /* its free was requested */ };

struct snapshot {
    struct reader *reader;
    struct history history;
    struct idmap addresses; /* number: of the block that is live there; 0: none is */
    struct idmap pools;     /* number: 1 + that of the last entry that allocates; 0: released */
    struct history_block *early; /* live before the history begins */
    size_t early_count, early_capacity;
    uint64_t early_bytes;
    uint32_t blocks;   /* numbers given so far */
    bool completes;    /* the history has frees that are complete */
    bool collects;     /* PyTorch collected garbage */
    uint64_t reserved; /* where the history is */
    uint64_t capacity; /* most that could be reserved when a request failed */
    bool has_capacity; /* one did */
    uint64_t limit;    /* that the configuration sets to what is reserved; UINT64_MAX: none */
    uint64_t time;     /* the latest that an entry had */
    uint64_t failed, unfreed, left_out;
};

/* --- Survey: what is to be known before the first entry is turned into anything. --- */

static bool note_address(struct snapshot *snapshot, uint64_t address)
{
    return reader_add_name(snapshot->reader, &snapshot->addresses, address, 0, ADDRESS_KNOWN);
}

static bool note_pool(struct snapshot *snapshot, uint64_t name, size_t number)
{
    struct idmap_entry *pool = name ? idmap_find(&snapshot->pools, name) : NULL;

    if (!name)
        return true;
    if (!pool)
        pool = reader_add_name(snapshot->reader, &snapshot->pools, name, 0, 1);
    if (pool && pool->number <= number)
        pool->number = (uint32_t)number + 1;
    return pool;
}

static bool add_early(void *self, const struct history_block *block)
{
    struct snapshot *snapshot = self;
    struct history_block *early;

    if (idmap_find(&snapshot->addresses, block->address))
        return true;
    if (!note_address(snapshot, block->address) || !note_pool(snapshot, block->pool, 0))
        return false;
    early = reader_room(snapshot->reader, snapshot->early, &snapshot->early_capacity,
                        snapshot->early_count, sizeof(*early));
    if (!early)
        return false;
    snapshot->early = early;
    early[snapshot->early_count++] = *block;
    snapshot->early_bytes += block->bytes;
    return true;
}

static bool note_alloc(struct snapshot *snapshot, const struct history_entry *entry, size_t number)
{
    return note_pool(snapshot, entry->pool, number) &&
           (entry->action == HISTORY_OOM || idmap_find(&snapshot->addresses, entry->address) ||
            note_address(snapshot, entry->address));
}

static bool note_entry(struct snapshot *snapshot, size_t number)
{
    struct history_entry entry;

    if (!history_entry(&snapshot->history, number, &entry))
        return false;
    switch (entry.action) {
    case HISTORY_OOM:
        snapshot->capacity = snapshot->reserved + entry.device_free;
        snapshot->has_capacity = true;
        /* fall through */
    case HISTORY_ALLOC:
        return note_alloc(snapshot, &entry, number);
    case HISTORY_FREE_COMPLETED:
        snapshot->completes = true;
        /* fall through */
    case HISTORY_FREE_REQUESTED: {
        const struct history_block block = {entry.address, entry.bytes, entry.stream, entry.pool};

        /* A block that is freed and was never allocated was live when the history began. */
        return add_early(snapshot, &block);
    }
    case HISTORY_GROWTH:
        snapshot->reserved += entry.bytes;
        return true;
    case HISTORY_RETURN:
        snapshot->reserved -= entry.bytes;
        return true;
    default:
        return true;
    }
}

static int compare_blocks(const void *left, const void *right)
{
    const uint64_t a = ((const struct history_block *)left)->address;
    const uint64_t b = ((const struct history_block *)right)->address;

    return a < b ? -1 : a > b;
}

static bool survey(struct snapshot *snapshot)
{
    uint64_t began;

    for (size_t number = 1; number <= snapshot->history.count; number++)
        if (!note_entry(snapshot, number))
            return false;
    if (!history_blocks(&snapshot->history, add_early, snapshot))
        return false;
    if (snapshot->early_count > 0)
        qsort(snapshot->early, snapshot->early_count, sizeof(*snapshot->early), compare_blocks);
    /* What is reserved was counted from nothing; what it is at the end is known. */
    began = snapshot->history.reserved - snapshot->reserved;
    snapshot->reserved = began;
    snapshot->capacity += began;
    return snapshot->history.count > 0 || snapshot->early_count > 0 ||
           reader_bad(snapshot->reader,
                      "there is nothing to replay about device %" PRIu64
                      ": no history and no live block",
                      snapshot->history.device);
}

/* --- Turning entries into operations. --- */

static bool allocate(struct snapshot *snapshot, uint64_t bytes, uint64_t stream, uint64_t pool)
{
    const struct fields fields = {.count = 5,
                                  .number = {0, ++snapshot->blocks, bytes, stream, pool}};

    return reader_alloc(snapshot->reader, &fields);
}

static bool release(struct snapshot *snapshot, struct idmap_entry *address)
{
    const struct fields fields = {.count = 2, .number = {0, address->number}};

    address->number = 0;
    address->line = ADDRESS_KNOWN;
    return reader_free(snapshot->reader, &fields);
}

static bool allocate_early(struct snapshot *snapshot)
{
    snapshot->reader->line = 1;
    for (size_t i = 0; i < snapshot->early_count; i++) {
        const struct history_block *block = &snapshot->early[i];

        if (!allocate(snapshot, block->bytes, block->stream, block->pool))
            return false;
        idmap_find(&snapshot->addresses, block->address)->number = snapshot->blocks;
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

static bool play_alloc(struct snapshot *snapshot, const struct history_entry *entry)
{
    struct idmap_entry *address = idmap_find(&snapshot->addresses, entry->address);

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

static bool play_free(struct snapshot *snapshot, const struct history_entry *entry)
{
    struct idmap_entry *address = idmap_find(&snapshot->addresses, entry->address);

    if (address->number == 0) {
        snapshot->left_out++;
        return true;
    }
    if (entry->action == HISTORY_FREE_COMPLETED || !snapshot->completes)
        return release(snapshot, address);
    address->line = ADDRESS_LEAVING;
    return true;
}

static bool play_failure(struct snapshot *snapshot, const struct history_entry *entry)
{
    static char word[] = "oom";
    const struct fields fields = {.text = {NULL, word}, .count = 2};

    snapshot->failed++;
    return allocate(snapshot, entry->bytes, entry->stream, entry->pool) &&
           reader_failure(snapshot->reader, &fields);
}

/* The memory of a private pool goes back only when its owner has let go of it. */
static bool release_pool(struct snapshot *snapshot, uint64_t name, size_t number)
{
    const struct fields fields = {.count = 2, .number = {0, name}};
    struct idmap_entry *pool = name ? idmap_find(&snapshot->pools, name) : NULL;

    if (!pool || pool->number == 0 || pool->number > number + 1)
        return true;
    pool->number = 0;
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
static bool measure_growth(struct snapshot *snapshot, size_t number, uint64_t *bytes)
{
    const size_t first = number;
    struct history_entry entry;

    for (*bytes = 0; number <= snapshot->history.count; number++) {
        if (!history_entry(&snapshot->history, number, &entry))
            return false;
        if (entry.action != HISTORY_GROWTH)
            break;
        *bytes += entry.bytes;
    }
    snapshot->reader->line = (uint32_t)first;
    return true;
}

/* Whether a run was for want of memory.  number, next: the entry behind it, NULL: there is none. */
static bool judge(struct snapshot *snapshot, const struct returns *returns, size_t number,
                  const struct history_entry *next, bool *is_shortage)
{
    uint64_t bytes;

    *is_shortage =
        returns->has_stack
            ? !returns->is_asked
            : next && (next->action == HISTORY_OOM ||
                       (next->action == HISTORY_RETURN && next->cause == HISTORY_CAUSE_STEAL));
    if (returns->has_stack || !next || next->action != HISTORY_GROWTH)
        return true;
    if (!measure_growth(snapshot, number, &bytes))
        return false;
    bytes += returns->reserved_before;
    *is_shortage = snapshot->collects || bytes > snapshot->limit ||
                   (snapshot->has_capacity && bytes > snapshot->capacity);
    return true;
}

static bool play_return(struct snapshot *snapshot, struct returns *returns, size_t number,
                        const struct history_entry *entry)
{
    const uint64_t before = snapshot->reserved;
    bool has_stack;

    snapshot->reserved -= entry->bytes;
    if (entry->cause != HISTORY_CAUSE_OPEN)
        return true;
    if (!returns->is_under_way)
        *returns = (struct returns){.is_under_way = true, .reserved_before = before};
    returns->is_asked |= history_is_asked(&snapshot->history, number, &has_stack);
    returns->has_stack |= has_stack;
    return release_pool(snapshot, entry->pool, number);
}

static bool end_returns(struct snapshot *snapshot, struct returns *returns, size_t number,
                        const struct history_entry *next)
{
    const struct fields fields = {.count = 1};
    bool is_shortage;

    if (!returns->is_under_way)
        return true;
    returns->is_under_way = false;
    return judge(snapshot, returns, number, next, &is_shortage) &&
           (is_shortage || reader_empty(snapshot->reader, &fields));
}

/* --- All of it. --- */

static bool play_entry(struct snapshot *snapshot, size_t number, struct returns *returns)
{
    struct history_entry entry;

    if (!history_entry(&snapshot->history, number, &entry))
        return false;
    /* Memory that goes by itself in the midst of a run does not end it. */
    if ((entry.action != HISTORY_RETURN || entry.cause == HISTORY_CAUSE_STEAL) &&
        !end_returns(snapshot, returns, number, &entry))
        return false;
    if (entry.time > snapshot->time)
        snapshot->time = entry.time;
    if (!tell_time(snapshot, entry.time, CLOCK_STEP))
        return false;
    switch (entry.action) {
    case HISTORY_ALLOC:
        return play_alloc(snapshot, &entry);
    case HISTORY_FREE_REQUESTED:
    case HISTORY_FREE_COMPLETED:
        return play_free(snapshot, &entry);
    case HISTORY_OOM:
        return play_failure(snapshot, &entry);
    case HISTORY_RETURN:
        return play_return(snapshot, returns, number, &entry);
    case HISTORY_GROWTH:
        snapshot->reserved += entry.bytes;
        return true;
    case HISTORY_UNKNOWN:
        snapshot->left_out++;
        return true;
    default:
        return true;
    }
}

static bool play(struct snapshot *snapshot)
{
    struct returns returns = {.is_under_way = false};

    for (size_t number = 1; number <= snapshot->history.count; number++)
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

/*
 * The string that PyTorch read last.  A string that does not name expandable segments leaves them as
 * they were, so what they were is said apart.
 */
static bool take_config(struct snapshot *snapshot, const struct pickle *pickle)
{
    const struct pickle_value *settings =
        pickle_find(pickle, pickle_top(pickle), "allocator_settings");
    const char *text =
        pickle_string(pickle, pickle_find(pickle, settings, "PYTORCH_CUDA_ALLOC_CONF"));
    const struct pickle_value *expandable = pickle_find(pickle, settings, "expandable_segments");
    bool adds = expandable && expandable->kind == PICKLE_BOOL && expandable->number;
    char *whole = NULL;
    bool fine;

    if (!settings)
        return true;
    text = text ? text : "";
    adds = adds && !xtrace_names_expandable(text);
    if (asprintf(&whole, "%s%s%s", text, adds && text[0] ? "," : "",
                 adds ? "expandable_segments:True" : "") < 0)
        return reader_no_memory(snapshot->reader);
    snapshot->collects = strstr(whole, "garbage_collection_threshold") != NULL;
    snapshot->limit = limit_of(whole);
    snapshot->reader->line = 0;
    fine = reader_config(snapshot->reader, whole);
    free(whole);
    return fine;
}

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* What a user should know about the way from a snapshot to a trace. */
static void note(const struct snapshot *snapshot)
{
    const struct history *history = &snapshot->history;
    char *text = snapshot->reader->trace.note;
    const size_t room = sizeof(snapshot->reader->trace.note);
    int at = snprintf(text, room, "device %" PRIu64, history->device);

    if (history->devices > 1)
        at += snprintf(text + at, room - (size_t)at, " of %zu", history->devices);
    at += snprintf(text + at, room - (size_t)at, ", %zu entr%s", history->count,
                   history->count == 1 ? "y" : "ies");
    if (snapshot->early_count > 0)
        at += snprintf(text + at, room - (size_t)at,
                       "; allocated before the first: %zu block%s, %" PRIu64 " bytes",
                       snapshot->early_count, plural(snapshot->early_count), snapshot->early_bytes);
    if (snapshot->unfreed > 0)
        at += snprintf(text + at, room - (size_t)at,
                       "; %" PRIu64 " free%s missing, made up for where a block comes again",
                       snapshot->unfreed, plural(snapshot->unfreed));
    if (snapshot->left_out > 0)
        (void)snprintf(text + at, room - (size_t)at, "; left out: %" PRIu64 " of the entries",
                       snapshot->left_out);
}

static bool turn(struct snapshot *snapshot, const struct pickle *pickle, int device)
{
    return history_open(&snapshot->history, snapshot->reader, pickle, device) &&
           take_config(snapshot, pickle) && survey(snapshot) && allocate_early(snapshot) &&
           play(snapshot);
}

bool snapshot_read(struct reader *reader, struct input *input, int device)
{
    struct snapshot snapshot = {.reader = reader, .limit = UINT64_MAX};
    char problem[sizeof(reader->fault->text)];
    struct pickle pickle;
    bool fine;

    reader->line = 0;
    if (!json_pickle_read(input, NULL, &pickle, problem, sizeof(problem)))
        return reader_bad(reader, "%s", problem);
    reader->held += pickle.held;
    fine = turn(&snapshot, &pickle, device);
    if (fine) {
        reader->trace.has_history = snapshot.history.count > 0;
        reader->trace.capacity = snapshot.has_capacity ? snapshot.capacity : 0;
        note(&snapshot);
    }
    history_close(&snapshot.history);
    idmap_fini(&snapshot.addresses);
    idmap_fini(&snapshot.pools);
    free(snapshot.early);
    pickle_fini(&pickle);
    return fine;
}
