/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_names.h"

#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/string_util.h"

const char *const xseg_config_ignored[XSEG_CONFIG_IGNORED] = {
    "backend",
    "expandable_segments_reserve_by_class",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
};

const char *const xseg_config_actions[XSEG_HISTORY_ACTIONS] = {
    [XSEG_HISTORY_ALLOC] = "alloc",
    [XSEG_HISTORY_FREE_REQUESTED] = "free_requested",
    [XSEG_HISTORY_FREE_COMPLETED] = "free_completed",
    [XSEG_HISTORY_SEGMENT_ALLOC] = "segment_alloc",
    [XSEG_HISTORY_SEGMENT_FREE] = "segment_free",
    [XSEG_HISTORY_SEGMENT_MAP] = "segment_map",
    [XSEG_HISTORY_SEGMENT_UNMAP] = "segment_unmap",
    [XSEG_HISTORY_OOM] = "oom",
    [XSEG_HISTORY_REMAP] = "remap",
    [XSEG_HISTORY_DECAY] = "decay",
    [XSEG_HISTORY_TRIM] = "trim",
    [XSEG_HISTORY_PAUSE] = "pause",
    [XSEG_HISTORY_RESUME] = "resume",
    [XSEG_HISTORY_ANNOTATION] = "annotation",
    [XSEG_HISTORY_BUDGET_REQUEST] = "budget_request",
    [XSEG_HISTORY_BUDGET_RELEASE] = "budget_release",
};

static bool is_name(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

const struct xseg_config_row *xseg_config_names_find(const char *name, size_t length)
{
    XSEG_ASSERT(name != NULL);
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++)
        if (is_name(xseg_config_table[key].name, name, length))
            return &xseg_config_table[key];
    return NULL;
}

unsigned xseg_config_names_find_ignored(const char *name, size_t length)
{
    unsigned i = 0;

    XSEG_ASSERT(name != NULL);
    while (i < XSEG_CONFIG_IGNORED && !is_name(xseg_config_ignored[i], name, length))
        i++;
    return i;
}

const char *xseg_config_names_ignored_value(const struct xseg_config *config, const char *name)
{
    const unsigned i = xseg_config_names_find_ignored(name, strlen(name));

    XSEG_ASSERT(i < XSEG_CONFIG_IGNORED);
    return config->ignored[i][0] != '\0' ? config->ignored[i] : NULL;
}

void xseg_config_names_suggest(const char *name, size_t length)
{
    struct xseg_closest_match closest;

    XSEG_ASSERT(name != NULL && length != 0);
    xseg_closest_match_init(&closest, name, length);
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        XSEG_ASSERT(xseg_config_table[key].name != NULL);
        xseg_closest_match_consider(&closest, xseg_config_table[key].name);
    }
    for (unsigned i = 0; i < XSEG_CONFIG_IGNORED; i++)
        xseg_closest_match_consider(&closest, xseg_config_ignored[i]);
    if (closest.name != NULL)
        xseg_fail_append("; did you mean %s?", closest.name);
    else
        xseg_fail_append("; run `xseg config --keys` for a list");
}
