/* SPDX-License-Identifier: MIT */
#include "src/core/report/snapshot_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/align.h"
#include "src/base/hash_table.h"
#include "src/core/config/config.h"
#include "src/core/config/config_table.h"

#define CONFIG_BYTES ((size_t)4096)

/* --- Strings, pool IDs and times. --- */

#define STRING_TEXT(name, text) text,
const char *const xseg_snapshot_strings[XSEG_SNAPSHOT_STRING_COUNT] = {
    XSEG_SNAPSHOT_STRINGS(STRING_TEXT)};
#undef STRING_TEXT

_Static_assert(XSEG_SNAPSHOT_STRING_COUNT <= XSEG_PICKLE_MAX_INTERNED,
               "a pickle can intern all strings");

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

const uint64_t *xseg_snapshot_pool_id(struct xseg_snapshot_writer *writer, uint32_t pool)
{
    static const uint64_t default_pool[2] = {0, 0};
    struct xseg_pool_id *cached = &writer->pools[pool % XSEG_SNAPSHOT_POOLS];

    if (pool == 0)
        return default_pool;
    if (cached->pool != pool) {
        cached->pool = pool;
        xseg_history_store_get_pool_id(writer->store, pool, cached->id);
        if (cached->id[0] == 0 && cached->id[1] == 0)
            cached->id[1] = pool;
    }
    return cached->id;
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

/* Write a frame of the process with its source line if the line is known; otherwise, as PyTorch
 * does for frames of C++, with its module and the offset in the module. */
static void write_process_frame(struct xseg_snapshot_writer *writer,
                                const struct xseg_stack_frame *frame)
{
    struct xseg_pickle_writer *pickle = &writer->pickle;
    /* The key includes the module, because an earlier module may have been loaded at the same
     * address. */
    const uint64_t key =
        xseg_hash_word((uint64_t)(uintptr_t)frame->pc, (uint64_t)(uintptr_t)frame->path) | 1;
    struct written_value *written = xseg_hash_table_find_or_add(&writer->frames, key);
    const char *name = frame->symbol == NULL ? "??" : frame->symbol;
    const char *file = frame->file != NULL ? frame->file : frame->path != NULL ? frame->path : "";

    if (written != NULL && written->memo != 0) {
        xseg_pickle_reference(pickle, written->memo);
        return;
    }
    xseg_pickle_open_dict(pickle);
    const uint32_t memo = xseg_pickle_memoize(pickle);
    if (written != NULL)
        written->memo = memo;
    write_frame_members(writer, name, strlen(name), file, strlen(file),
                        frame->file != NULL ? frame->line : frame->offset);
    if (frame->file == NULL && frame->build_id != NULL) {
        xseg_pickle_key(pickle, XSEG_SNAPSHOT_BUILD_ID);
        xseg_pickle_string(pickle, frame->build_id, strlen(frame->build_id));
    }
    xseg_pickle_close(pickle);
}

/* Write a frame that the hook describes in a line `function (file:line)`.  A line of another form
 * is the name. */
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
    struct written_value *written = xseg_hash_table_find_or_add(&writer->stacks, key);

    if (written != NULL && written->memo != 0) {
        xseg_pickle_reference(pickle, written->memo);
        return;
    }
    xseg_pickle_open_list(pickle);
    const uint32_t memo = xseg_pickle_memoize(pickle);
    if (written != NULL)
        written->memo = memo;
    write_hook_frames(writer, frames);
    write_process_frames(writer, stack);
    xseg_pickle_close(pickle);
}

/* --- Segments. --- */

struct range_sizes {
    uint64_t allocated, active, requested;
};

static bool is_active_block(const struct xseg_heap_block *block)
{
    return block->state != XSEG_BLOCK_CACHED;
}

static struct range_sizes sum_blocks(const struct xseg_heap_range *range)
{
    struct range_sizes sizes = {0, 0, 0};

    for (uint32_t i = 0; i < range->count; i++) {
        const struct xseg_heap_block *block = &range->blocks[i];

        sizes.allocated += block->state == XSEG_BLOCK_ALLOCATED ? block->bytes : 0;
        sizes.active += is_active_block(block) ? block->bytes : 0;
        sizes.requested += is_active_block(block) ? block->requested : 0;
    }
    return sizes;
}

static unsigned block_state_string(const struct xseg_heap_block *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED)
        return XSEG_SNAPSHOT_ACTIVE_ALLOCATED;
    return is_active_block(block) ? XSEG_SNAPSHOT_ACTIVE_PENDING_FREE : XSEG_SNAPSHOT_INACTIVE;
}

static void write_block(struct xseg_snapshot_writer *writer, const struct xseg_heap_block *block)
{
    struct xseg_pickle_writer *pickle = &writer->pickle;

    xseg_pickle_open_dict(pickle);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_ADDRESS, block->base);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_SIZE, block->bytes);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_REQUESTED_SIZE, block->requested);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_STATE);
    xseg_pickle_interned(pickle, block_state_string(block));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_FRAMES);
    xseg_snapshot_write_stack(writer, block->stack, block->frames);
    xseg_pickle_close(pickle);
}

static void write_range(struct xseg_snapshot_writer *writer, const struct xseg_heap_range *range,
                        int device)
{
    struct xseg_pickle_writer *pickle = &writer->pickle;
    const struct range_sizes sizes = sum_blocks(range);
    const uint64_t *pool = xseg_snapshot_pool_id(writer, range->pool);

    xseg_pickle_open_dict(pickle);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_DEVICE, (uint64_t)device);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_ADDRESS, range->base);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_TOTAL_SIZE, range->bytes);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_ALLOCATED_SIZE, sizes.allocated);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_ACTIVE_SIZE, sizes.active);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_REQUESTED_SIZE, sizes.requested);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_STREAM, range->stream);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_SEGMENT_TYPE);
    xseg_pickle_interned(pickle, range->is_small ? XSEG_SNAPSHOT_SMALL : XSEG_SNAPSHOT_LARGE);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_SEGMENT_POOL_ID);
    xseg_pickle_pair(pickle, pool[0], pool[1]);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_IS_EXPANDABLE);
    xseg_pickle_bool(pickle, range->is_expandable);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_FRAMES);
    xseg_snapshot_write_stack(writer, 0, 0);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_BLOCKS);
    xseg_pickle_open_list(pickle);
    for (uint32_t i = 0; i < range->count; i++)
        write_block(writer, &range->blocks[i]);
    xseg_pickle_close(pickle);
    xseg_pickle_close(pickle);
}

void xseg_snapshot_write_segments(struct xseg_snapshot_writer *writer,
                                  const struct xseg_heap_copy *heap, int device, bool is_evicted)
{
    for (size_t i = 0; i < heap->count; i++)
        if (heap->ranges[i]->is_evicted == is_evicted)
            write_range(writer, heap->ranges[i], device);
}

/* --- Settings. --- */

/* Write a key with a size in bytes; unlimited is -1. */
static void write_limit(struct xseg_pickle_writer *pickle, unsigned key, uint64_t bytes)
{
    xseg_pickle_key(pickle, key);
    xseg_pickle_int(pickle, bytes > INT64_MAX ? -1 : (int64_t)bytes);
}

static void write_flag(struct xseg_pickle_writer *pickle, unsigned key, bool value)
{
    xseg_pickle_key(pickle, key);
    xseg_pickle_bool(pickle, value);
}

/* Write roundup_power2_divisions by the lower bound of each interval in MiB. */
static void write_divisions(struct xseg_pickle_writer *pickle, const struct xseg_config *config)
{
    static const unsigned first = XSEG_SNAPSHOT_MIB_1;

    xseg_pickle_key(pickle, XSEG_SNAPSHOT_ROUNDUP_DIVISIONS);
    xseg_pickle_open_dict(pickle);
    for (unsigned i = 0; i < XSEG_CONFIG_INTERVALS; i++) {
        xseg_pickle_key(pickle, first + i);
        xseg_pickle_uint(pickle, config->roundup_divisions[i]);
    }
    xseg_pickle_close(pickle);
}

static bool selects_recording(enum xseg_config_key_id key)
{
    static const uint64_t keys =
        UINT64_C(1) << XSEG_CONFIG_HISTORY | UINT64_C(1) << XSEG_CONFIG_HISTORY_STACKS |
        UINT64_C(1) << XSEG_CONFIG_HISTORY_EVENTS | UINT64_C(1) << XSEG_CONFIG_HISTORY_SKIP |
        UINT64_C(1) << XSEG_CONFIG_OOM_SNAPSHOT | UINT64_C(1) << XSEG_CONFIG_OOM_SNAPSHOT_MS |
        UINT64_C(1) << XSEG_CONFIG_OOM_SNAPSHOT_MB;

    return (keys >> key & 1) != 0;
}

static void write_config_string(struct xseg_pickle_writer *pickle, const struct xseg_config *config)
{
    char buffer[CONFIG_BYTES], value[XSEG_CONFIG_PATH_BYTES + 64];
    struct xseg_strbuf text, value_text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        xseg_strbuf_init(&value_text, value, sizeof(value));
        if (!selects_recording((enum xseg_config_key_id)key) &&
            xseg_config_is_set(config, (enum xseg_config_key_id)key) &&
            xseg_config_print_value(config, (enum xseg_config_key_id)key, &value_text))
            xseg_strbuf_printf(&text, "%s%s:%s", text.length == 0 ? "" : ",",
                               xseg_config_table[key].name, value);
    }
    for (unsigned i = 0; i < XSEG_CONFIG_IGNORED; i++)
        if (config->ignored[i][0] != '\0')
            xseg_strbuf_printf(&text, "%s%s:%s", text.length == 0 ? "" : ",",
                               xseg_config_ignored[i], config->ignored[i]);
    xseg_pickle_string(pickle, buffer, strlen(buffer));
}

/* Settings that have no effect in the library.  Their values are those of the configuration string,
 * or PyTorch's defaults. */

static bool ignored_flag(const struct xseg_config *config, const char *name)
{
    const char *const value = xseg_config_ignored_value(config, name);

    return value != NULL && strcmp(value, "True") == 0;
}

static int64_t ignored_number(const struct xseg_config *config, const char *name,
                              int64_t default_value)
{
    const char *const value = xseg_config_ignored_value(config, name);

    return value != NULL ? strtoll(value, NULL, 10) : default_value;
}

static void write_ignored_limit(struct xseg_pickle_writer *pickle, unsigned key,
                                const struct xseg_config *config, const char *name)
{
    const int64_t mib = ignored_number(config, name, -1);

    write_limit(pickle, key,
                mib < 0 || mib > INT64_MAX / (int64_t)XSEG_MIB ? UINT64_MAX
                                                               : (uint64_t)mib * XSEG_MIB);
}

static void write_ignored_settings(struct xseg_pickle_writer *pickle,
                                   const struct xseg_config *config)
{
    write_ignored_limit(pickle, XSEG_SNAPSHOT_MAX_ROUND_THRESHOLD, config,
                        "pinned_max_round_threshold_mb");
    write_ignored_limit(pickle, XSEG_SNAPSHOT_MAX_CACHED_SIZE, config, "pinned_max_cached_size_mb");
    write_flag(pickle, XSEG_SNAPSHOT_RELEASE_LOCK,
               ignored_flag(config, "release_lock_on_cudamalloc") ||
                   ignored_flag(config, "release_lock_on_hipmalloc"));
    write_flag(pickle, XSEG_SNAPSHOT_PINNED_HOST_REGISTER,
               ignored_flag(config, "pinned_use_cuda_host_register"));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_PINNED_REGISTER_THREADS);
    xseg_pickle_int(pickle, ignored_number(config, "pinned_num_register_threads", 1));
}

void xseg_snapshot_write_settings(struct xseg_snapshot_writer *writer,
                                  const struct xseg_config *config)
{
    struct xseg_pickle_writer *pickle = &writer->pickle;

    xseg_pickle_open_dict(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_PYTORCH_CUDA_ALLOC_CONF);
    write_config_string(pickle, config);
    write_limit(pickle, XSEG_SNAPSHOT_MAX_SPLIT_SIZE, config->max_split_bytes);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_GARBAGE_COLLECTION);
    xseg_pickle_float(pickle, config->garbage_collection_threshold);
    write_flag(pickle, XSEG_SNAPSHOT_EXPANDABLE_SEGMENTS, config->expandable_segments);
    write_flag(pickle, XSEG_SNAPSHOT_CAPTURE_REUSE, config->graph_capture_record_stream_reuse);
    write_divisions(pickle, config);
    write_ignored_settings(pickle, config);
    xseg_pickle_close(pickle);
}

/* --- Pages. --- */

static unsigned reason_string(enum xseg_reason_kind kind)
{
    static const unsigned strings[] = {
        [XSEG_REASON_ALLOCATED] = XSEG_SNAPSHOT_ALLOCATED,
        [XSEG_REASON_PENDING] = XSEG_SNAPSHOT_PENDING,
        [XSEG_REASON_CLAIMED] = XSEG_SNAPSHOT_CLAIMED,
        [XSEG_REASON_PINNED] = XSEG_SNAPSHOT_PINNED,
        [XSEG_REASON_POOL] = XSEG_SNAPSHOT_POOL,
        [XSEG_REASON_CAPTURE] = XSEG_SNAPSHOT_CAPTURE,
        [XSEG_REASON_STREAM] = XSEG_SNAPSHOT_STREAM,
        [XSEG_REASON_KEEP] = XSEG_SNAPSHOT_KEEP,
        [XSEG_REASON_DECAY] = XSEG_SNAPSHOT_DECAY,
        [XSEG_REASON_POLICY] = XSEG_SNAPSHOT_POLICY,
        [XSEG_REASON_EXPORTED] = XSEG_SNAPSHOT_EXPORTED,
        [XSEG_REASON_REGISTERED] = XSEG_SNAPSHOT_REGISTERED,
        [XSEG_REASON_ABOVE_SHARE] = XSEG_SNAPSHOT_ABOVE_SHARE,
    };

    XSEG_ASSERT((unsigned)kind < sizeof(strings) / sizeof(strings[0]));
    return strings[kind];
}

void xseg_snapshot_write_pages(struct xseg_snapshot_writer *writer,
                               const struct xseg_reason_list *reasons)
{
    struct xseg_pickle_writer *pickle = &writer->pickle;

    xseg_pickle_open_list(pickle);
    for (size_t i = 0; i < reasons->count; i++) {
        const struct xseg_reason *reason = &reasons->list[i];

        xseg_pickle_open_list(pickle);
        xseg_pickle_uint(pickle, (uint64_t)(uintptr_t)reason->base);
        xseg_pickle_uint(pickle, reason->bytes);
        xseg_pickle_interned(pickle, reason_string(reason->kind));
        xseg_pickle_uint(pickle, reason->allocated_bytes);
        xseg_pickle_uint(pickle, reason->cached_bytes);
        xseg_pickle_uint(pickle, reason->registered_bytes);
        xseg_pickle_close(pickle);
    }
    xseg_pickle_close(pickle);
}
