/* SPDX-License-Identifier: MIT */
/* The state of a device in a snapshot: segments with their blocks, settings, and the reasons of
 * pages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/config/config.h"
#include "src/core/config/config_table.h"
#include "src/core/report/snapshot_format.h"

#define CONFIG_BYTES ((size_t)4096)

/* --- Segments. --- */

struct range_sizes {
    uint64_t allocated, active, requested;
};

static bool is_active(const struct xseg_heap_block *block)
{
    return block->state != XSEG_BLOCK_CACHED;
}

static struct range_sizes sum_blocks(const struct xseg_heap_range *range)
{
    struct range_sizes sizes = {0, 0, 0};

    for (uint32_t i = 0; i < range->count; i++) {
        const struct xseg_heap_block *block = &range->blocks[i];

        sizes.allocated += block->state == XSEG_BLOCK_ALLOCATED ? block->bytes : 0;
        sizes.active += is_active(block) ? block->bytes : 0;
        sizes.requested += is_active(block) ? block->requested : 0;
    }
    return sizes;
}

static unsigned block_state_string(const struct xseg_heap_block *block)
{
    if (block->state == XSEG_BLOCK_ALLOCATED)
        return XSEG_SNAPSHOT_ACTIVE_ALLOCATED;
    return is_active(block) ? XSEG_SNAPSHOT_ACTIVE_PENDING_FREE : XSEG_SNAPSHOT_INACTIVE;
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
    struct xseg_strbuf text, one;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        xseg_strbuf_init(&one, value, sizeof(value));
        if (!selects_recording((enum xseg_config_key_id)key) &&
            xseg_config_is_set(config, (enum xseg_config_key_id)key) &&
            xseg_config_print_value(config, (enum xseg_config_key_id)key, &one))
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
