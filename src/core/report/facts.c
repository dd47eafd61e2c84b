/* SPDX-License-Identifier: MIT */
#include "src/core/report/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/config/config_keys.h"
#include "src/core/config/config_names.h"
#include "src/core/config/config_print.h"
#include "src/core/config/config_table.h"
#include "src/core/report/words.h"

#define CONFIG_BYTES ((size_t)4096)

/* A number of bytes, which without a limit is -1. */
static void write_limit(struct xseg_document *document, unsigned key, uint64_t bytes)
{
    xseg_document_key(document, key);
    xseg_document_signed(document, bytes > INT64_MAX ? -1 : (int64_t)bytes);
}

static void write_flag(struct xseg_document *document, unsigned key, bool value)
{
    xseg_document_key(document, key);
    xseg_document_bool(document, value);
}

/* The divisions by the size in MiB that an interval begins with. */
static void write_divisions(struct xseg_document *document, const struct xseg_config *config)
{
    static const unsigned first = XSEG_SNAPSHOT_MIB_1;

    xseg_document_key(document, XSEG_SNAPSHOT_ROUNDUP_DIVISIONS);
    xseg_document_dict(document);
    for (unsigned i = 0; i < XSEG_CONFIG_INTERVALS; i++) {
        xseg_document_key(document, first + i);
        xseg_document_number(document, config->roundup_divisions[i]);
    }
    xseg_document_close(document);
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

static void write_text(struct xseg_document *document, const struct xseg_config *config)
{
    char buffer[CONFIG_BYTES], value[XSEG_CONFIG_PATH_BYTES + 64];
    struct xseg_text text, one;

    xseg_text_init(&text, buffer, sizeof(buffer));
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        xseg_text_init(&one, value, sizeof(value));
        if (!is_about_records((enum xseg_config_key_id)key) &&
            xseg_config_keys_is_set(config, (enum xseg_config_key_id)key) &&
            xseg_config_print_value(config, (enum xseg_config_key_id)key, &one))
            xseg_text_add(&text, "%s%s:%s", text.length == 0 ? "" : ",",
                          xseg_config_table[key].name, value);
    }
    for (unsigned i = 0; i < XSEG_CONFIG_IGNORED; i++)
        if (config->ignored[i][0] != '\0')
            xseg_text_add(&text, "%s%s:%s", text.length == 0 ? "" : ",", xseg_config_ignored[i],
                          config->ignored[i]);
    xseg_document_text(document, buffer, strlen(buffer));
}

/* Settings that have no effect in the library; the values are those that a string names, or PyTorch's defaults. */

static bool ignored_flag(const struct xseg_config *config, const char *name)
{
    const char *const value = xseg_config_names_ignored_value(config, name);

    return value != NULL && strcmp(value, "True") == 0;
}

/* A whole number, -1 included. */
static int64_t ignored_number(const struct xseg_config *config, const char *name, int64_t standard)
{
    const char *const value = xseg_config_names_ignored_value(config, name);

    return value != NULL ? strtoll(value, NULL, 10) : standard;
}

static void write_ignored_limit(struct xseg_document *document, unsigned key,
                                const struct xseg_config *config, const char *name)
{
    const int64_t mib = ignored_number(config, name, -1);

    write_limit(document, key,
                mib < 0 || mib > INT64_MAX / (int64_t)XSEG_MIB ? UINT64_MAX
                                                               : (uint64_t)mib * XSEG_MIB);
}

static void write_ignored(struct xseg_document *document, const struct xseg_config *config)
{
    write_ignored_limit(document, XSEG_SNAPSHOT_MAX_ROUND_THRESHOLD, config,
                        "pinned_max_round_threshold_mb");
    write_ignored_limit(document, XSEG_SNAPSHOT_MAX_CACHED_SIZE, config,
                        "pinned_max_cached_size_mb");
    write_flag(document, XSEG_SNAPSHOT_RELEASE_LOCK,
               ignored_flag(config, "release_lock_on_cudamalloc") ||
                   ignored_flag(config, "release_lock_on_hipmalloc"));
    write_flag(document, XSEG_SNAPSHOT_PINNED_HOST_REGISTER,
               ignored_flag(config, "pinned_use_cuda_host_register"));
    xseg_document_key(document, XSEG_SNAPSHOT_PINNED_REGISTER_THREADS);
    xseg_document_signed(document, ignored_number(config, "pinned_num_register_threads", 1));
}

void xseg_snapshot_facts_write_settings(struct xseg_document *document,
                                        const struct xseg_config *config)
{
    xseg_document_dict(document);
    xseg_document_key(document, XSEG_SNAPSHOT_PYTORCH_CUDA_ALLOC_CONF);
    write_text(document, config);
    write_limit(document, XSEG_SNAPSHOT_MAX_SPLIT_SIZE, config->max_split_bytes);
    xseg_document_key(document, XSEG_SNAPSHOT_GARBAGE_COLLECTION);
    xseg_document_real(document, config->garbage_collection_threshold);
    write_flag(document, XSEG_SNAPSHOT_EXPANDABLE_SEGMENTS, config->expandable_segments);
    write_flag(document, XSEG_SNAPSHOT_CAPTURE_REUSE, config->graph_capture_record_stream_reuse);
    write_divisions(document, config);
    write_ignored(document, config);
    xseg_document_close(document);
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

void xseg_snapshot_facts_write_pages(struct xseg_document *document,
                                     const struct xseg_reasons *reasons)
{
    xseg_document_list(document);
    for (size_t i = 0; i < reasons->count; i++) {
        const struct xseg_reason *reason = &reasons->list[i];

        xseg_document_list(document);
        xseg_document_number(document, (uint64_t)(uintptr_t)reason->base);
        xseg_document_number(document, reason->bytes);
        xseg_document_word(document, word_of(reason->kind));
        xseg_document_number(document, reason->allocated_bytes);
        xseg_document_number(document, reason->cached_bytes);
        xseg_document_number(document, reason->registered_bytes);
        xseg_document_close(document);
    }
    xseg_document_close(document);
}

uint64_t xseg_snapshot_facts_single_page_rest(const struct xseg_reasons *reasons)
{
    uint64_t rest = 0;

    for (size_t i = 0; i < reasons->count; i++)
        rest += xseg_reason_single_page_rest(&reasons->list[i]);
    return rest;
}
