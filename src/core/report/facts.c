/* SPDX-License-Identifier: MIT */
#include "src/core/report/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/config/config.h"
#include "src/core/config/config_table.h"
#include "src/core/report/words.h"

#define CONFIG_BYTES ((size_t)4096)

/* A number of bytes, which without a limit is -1. */
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

/* The divisions by the size in MiB that an interval begins with. */
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

static bool is_about_records(enum xseg_config_key_id key)
{
    static const uint64_t records =
        UINT64_C(1) << XSEG_CONFIG_HISTORY | UINT64_C(1) << XSEG_CONFIG_HISTORY_STACKS |
        UINT64_C(1) << XSEG_CONFIG_HISTORY_EVENTS | UINT64_C(1) << XSEG_CONFIG_HISTORY_SKIP |
        UINT64_C(1) << XSEG_CONFIG_OOM_SNAPSHOT | UINT64_C(1) << XSEG_CONFIG_OOM_SNAPSHOT_MS |
        UINT64_C(1) << XSEG_CONFIG_OOM_SNAPSHOT_MB;

    return (records >> key & 1) != 0;
}

static void write_text(struct xseg_pickle_writer *pickle, const struct xseg_config *config)
{
    char buffer[CONFIG_BYTES], value[XSEG_CONFIG_PATH_BYTES + 64];
    struct xseg_strbuf text, one;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        xseg_strbuf_init(&one, value, sizeof(value));
        if (!is_about_records((enum xseg_config_key_id)key) &&
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

/* Settings that have no effect in the library; the values are those that a string names, or PyTorch's defaults. */

static bool ignored_flag(const struct xseg_config *config, const char *name)
{
    const char *const value = xseg_config_ignored_value(config, name);

    return value != NULL && strcmp(value, "True") == 0;
}

/* A whole number, -1 included. */
static int64_t ignored_number(const struct xseg_config *config, const char *name, int64_t standard)
{
    const char *const value = xseg_config_ignored_value(config, name);

    return value != NULL ? strtoll(value, NULL, 10) : standard;
}

static void write_ignored_limit(struct xseg_pickle_writer *pickle, unsigned key,
                                const struct xseg_config *config, const char *name)
{
    const int64_t mib = ignored_number(config, name, -1);

    write_limit(pickle, key,
                mib < 0 || mib > INT64_MAX / (int64_t)XSEG_MIB ? UINT64_MAX
                                                               : (uint64_t)mib * XSEG_MIB);
}

static void write_ignored(struct xseg_pickle_writer *pickle, const struct xseg_config *config)
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

void xseg_snapshot_facts_write_settings(struct xseg_pickle_writer *pickle,
                                        const struct xseg_config *config)
{
    xseg_pickle_open_dict(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_PYTORCH_CUDA_ALLOC_CONF);
    write_text(pickle, config);
    write_limit(pickle, XSEG_SNAPSHOT_MAX_SPLIT_SIZE, config->max_split_bytes);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_GARBAGE_COLLECTION);
    xseg_pickle_float(pickle, config->garbage_collection_threshold);
    write_flag(pickle, XSEG_SNAPSHOT_EXPANDABLE_SEGMENTS, config->expandable_segments);
    write_flag(pickle, XSEG_SNAPSHOT_CAPTURE_REUSE, config->graph_capture_record_stream_reuse);
    write_divisions(pickle, config);
    write_ignored(pickle, config);
    xseg_pickle_close(pickle);
}

static unsigned word_of(enum xseg_reason_kind kind)
{
    static const unsigned words[] = {
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

    XSEG_ASSERT((unsigned)kind < sizeof(words) / sizeof(words[0]));
    return words[kind];
}

void xseg_snapshot_facts_write_pages(struct xseg_pickle_writer *pickle,
                                     const struct xseg_reason_list *reasons)
{
    xseg_pickle_open_list(pickle);
    for (size_t i = 0; i < reasons->count; i++) {
        const struct xseg_reason *reason = &reasons->list[i];

        xseg_pickle_open_list(pickle);
        xseg_pickle_uint(pickle, (uint64_t)(uintptr_t)reason->base);
        xseg_pickle_uint(pickle, reason->bytes);
        xseg_pickle_interned(pickle, word_of(reason->kind));
        xseg_pickle_uint(pickle, reason->allocated_bytes);
        xseg_pickle_uint(pickle, reason->cached_bytes);
        xseg_pickle_uint(pickle, reason->registered_bytes);
        xseg_pickle_close(pickle);
    }
    xseg_pickle_close(pickle);
}

uint64_t xseg_snapshot_facts_single_page_rest(const struct xseg_reason_list *reasons)
{
    uint64_t rest = 0;

    for (size_t i = 0; i < reasons->count; i++)
        rest += xseg_reason_single_page_padding(&reasons->list[i]);
    return rest;
}
