/* SPDX-License-Identifier: MIT */
/* Values of a snapshot: strings, pool IDs, times, call stacks. */
#include <string.h>
#include <time.h>

#include "src/base/hash_table.h"
#include "src/core/report/snapshot_format.h"

#define STRING_TEXT(name, text) text,
const char *const xseg_snapshot_strings[XSEG_SNAPSHOT_STRING_COUNT] = {
    XSEG_SNAPSHOT_STRINGS(STRING_TEXT)};
#undef STRING_TEXT

_Static_assert(XSEG_SNAPSHOT_STRING_COUNT <= XSEG_PICKLE_MAX_INTERNED,
               "a pickle has room for all interned strings");

/* A stack or frame that was written; memo 0: a rollback discarded it. */
struct written_value {
    uint64_t key;
    uint32_t memo;
};

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;

    (void)clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void xseg_snapshot_writer_init(struct xseg_snapshot_writer *writer,
                               struct xseg_history_store *store)
{
    memset(writer, 0, sizeof(*writer));
    writer->store = store;
    if (store->clock.read == NULL)
        writer->epoch_ns = read_clock(CLOCK_REALTIME) - read_clock(CLOCK_MONOTONIC);
    xseg_hash_table_init(&writer->stacks, sizeof(struct written_value));
    xseg_hash_table_init(&writer->frames, sizeof(struct written_value));
}

void xseg_snapshot_writer_fini(struct xseg_snapshot_writer *writer)
{
    xseg_hash_table_fini(&writer->stacks);
    xseg_hash_table_fini(&writer->frames);
}

static void discard_memos_after(struct xseg_hash_table *table, uint32_t last)
{
    for (struct written_value *value = xseg_hash_table_next(table, NULL); value != NULL;
         value = xseg_hash_table_next(table, value))
        if (value->memo > last)
            value->memo = 0;
}

bool xseg_snapshot_writer_rollback(struct xseg_snapshot_writer *writer,
                                   const struct xseg_pickle_savepoint *savepoint)
{
    if (!xseg_pickle_rollback(&writer->pickle, savepoint))
        return false;
    discard_memos_after(&writer->stacks, savepoint->memo_count);
    discard_memos_after(&writer->frames, savepoint->memo_count);
    return true;
}

const uint64_t *xseg_snapshot_pool_id(struct xseg_snapshot_writer *writer, uint32_t number)
{
    static const uint64_t default_pool[2] = {0, 0};
    struct xseg_pool_id *known = &writer->pools[number % XSEG_SNAPSHOT_POOLS];

    if (number == 0)
        return default_pool;
    if (known->pool != number) {
        known->pool = number;
        xseg_history_store_get_pool_id(writer->store, number, known->id);
        if (known->id[0] == 0 && known->id[1] == 0)
            known->id[1] = number;
    }
    return known->id;
}

uint64_t xseg_snapshot_time_us(const struct xseg_snapshot_writer *writer,
                               const struct xseg_history_moment *moment, uint64_t ticks)
{
    const int64_t ns = (int64_t)xseg_history_store_ns(writer->store, moment, ticks);

    return (uint64_t)(ns + writer->epoch_ns) / 1000;
}

void xseg_snapshot_write_number(struct xseg_snapshot_writer *writer, unsigned key, uint64_t number)
{
    xseg_pickle_key(&writer->pickle, key);
    xseg_pickle_uint(&writer->pickle, number);
}

/* --- Call stacks. --- */

static void write_frame_members(struct xseg_snapshot_writer *writer, const char *name,
                                size_t name_length, const char *file, size_t file_length,
                                uint64_t line)
{
    xseg_pickle_key(&writer->pickle, XSEG_SNAPSHOT_NAME);
    xseg_pickle_string(&writer->pickle, name, name_length);
    xseg_pickle_key(&writer->pickle, XSEG_SNAPSHOT_FILENAME);
    xseg_pickle_string(&writer->pickle, file, file_length);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_LINE, line);
}

/* Write a frame of the process with its source line if that is known; otherwise, as PyTorch does
 * for frames of C++, with its module and the offset in the module. */
static void write_process_frame(struct xseg_snapshot_writer *writer,
                                const struct xseg_stack_frame *frame)
{
    struct xseg_pickle_writer *pickle = &writer->pickle;
    /* The key includes the module, because another module may have been loaded at the same address
     * before. */
    const uint64_t key =
        xseg_hash_word((uint64_t)(uintptr_t)frame->pc, (uint64_t)(uintptr_t)frame->path) | 1;
    struct written_value *known = xseg_hash_table_find_or_add(&writer->frames, key);
    const char *name = frame->symbol == NULL ? "??" : frame->symbol;
    const char *file = frame->file != NULL ? frame->file : frame->path != NULL ? frame->path : "";

    if (known != NULL && known->memo != 0) {
        xseg_pickle_reference(pickle, known->memo);
        return;
    }
    xseg_pickle_open_dict(pickle);
    const uint32_t memo = xseg_pickle_memoize(pickle);
    if (known != NULL)
        known->memo = memo;
    write_frame_members(writer, name, strlen(name), file, strlen(file),
                        frame->file != NULL ? frame->line : frame->offset);
    if (frame->file == NULL && frame->build_id != NULL) {
        xseg_pickle_key(pickle, XSEG_SNAPSHOT_BUILD_ID);
        xseg_pickle_string(pickle, frame->build_id, strlen(frame->build_id));
    }
    xseg_pickle_close(pickle);
}

/* Write a frame that the hook names in a line `function (file:line)`.  Any other line is a name. */
static void write_hook_frame(struct xseg_snapshot_writer *writer, const char *line, size_t length)
{
    const char *end = line + length, *colon = end, *open;
    uint64_t number = 0;

    xseg_pickle_open_dict(&writer->pickle);
    if (length > 0 && end[-1] == ')') {
        for (colon = end - 1; colon > line && colon[-1] >= '0' && colon[-1] <= '9';)
            colon--;
        for (const char *digit = colon; digit < end - 1; digit++)
            number = number * 10 + (uint64_t)(*digit - '0');
        colon = colon > line && colon < end - 1 && colon[-1] == ':' ? colon - 1 : end;
    }
    for (open = colon; colon != end && open > line && !(open[0] == '(' && open[-1] == ' ');)
        open--;
    if (colon == end || open == line)
        write_frame_members(writer, line, length, "", 0, 0);
    else
        write_frame_members(writer, line, (size_t)(open - 1 - line), open + 1,
                            (size_t)(colon - open - 1), number);
    xseg_pickle_close(&writer->pickle);
}

static void write_hook_frames(struct xseg_snapshot_writer *writer, uint32_t frames)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(writer->store);
    char *text = writer->frame_text;

    if (frames == 0 || hook == NULL || hook->name == NULL ||
        !hook->name(hook->context, frames, text, sizeof(writer->frame_text)))
        return;
    text[sizeof(writer->frame_text) - 1] = '\0';
    for (const char *line = text; *line != '\0';) {
        const size_t length = strcspn(line, "\n");

        write_hook_frame(writer, line, length);
        line += length + (line[length] == '\n');
    }
}

static void write_process_frames(struct xseg_snapshot_writer *writer, uint32_t stack)
{
    const struct xseg_stack_depot *depot = xseg_history_store_depot(writer->store);
    struct xseg_stack_frame frame;
    struct xseg_stack_view view;

    if (stack == 0 || depot == NULL || !xseg_stack_depot_get(depot, stack, &view))
        return;
    for (uint32_t i = 0; i < view.count && xseg_stack_depot_frame(depot, stack, i, &frame); i++)
        write_process_frame(writer, &frame);
}

void xseg_snapshot_write_stack(struct xseg_snapshot_writer *writer, uint32_t stack, uint32_t frames)
{
    struct xseg_pickle_writer *pickle = &writer->pickle;
    const uint64_t key = ((uint64_t)frames << 32 | stack) + 1; /* a table has no key 0 */
    struct written_value *known = xseg_hash_table_find_or_add(&writer->stacks, key);

    if (known != NULL && known->memo != 0) {
        xseg_pickle_reference(pickle, known->memo);
        return;
    }
    xseg_pickle_open_list(pickle);
    const uint32_t memo = xseg_pickle_memoize(pickle);
    if (known != NULL)
        known->memo = memo;
    write_hook_frames(writer, frames);
    write_process_frames(writer, stack);
    xseg_pickle_close(pickle);
}
