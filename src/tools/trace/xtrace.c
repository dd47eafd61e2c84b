/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/xtrace.h"

#include <stdlib.h>
#include <string.h>

/* Rows of answers in the order of enum xtrace_row. */
static const struct {
    const char *name;
    unsigned numbers;
} rows[XTRACE_ROW_COUNT] = {
    [XTRACE_ROW_NOW] = {"=", 9},
    [XTRACE_ROW_PLACE] = {"p", 2},
    [XTRACE_ROW_ALLOCATION] = {"allocation", 12},
    [XTRACE_ROW_SEGMENT] = {"segment", 12},
    [XTRACE_ROW_ACTIVE] = {"active", 12},
    [XTRACE_ROW_INACTIVE_SPLIT] = {"inactive_split", 12},
    [XTRACE_ROW_ALLOCATED_BYTES] = {"allocated_bytes", 12},
    [XTRACE_ROW_RESERVED_BYTES] = {"reserved_bytes", 12},
    [XTRACE_ROW_ACTIVE_BYTES] = {"active_bytes", 12},
    [XTRACE_ROW_INACTIVE_SPLIT_BYTES] = {"inactive_split_bytes", 12},
    [XTRACE_ROW_REQUESTED_BYTES] = {"requested_bytes", 12},
    [XTRACE_ROW_OVERSIZE_ALLOCATIONS] = {"oversize_allocations", 4},
    [XTRACE_ROW_OVERSIZE_SEGMENTS] = {"oversize_segments", 4},
    [XTRACE_ROW_NUM_ALLOC_RETRIES] = {"num_alloc_retries", 1},
    [XTRACE_ROW_NUM_OOMS] = {"num_ooms", 1},
    [XTRACE_ROW_NUM_SYNC_ALL_STREAMS] = {"num_sync_all_streams", 1},
    [XTRACE_ROW_NUM_DEVICE_ALLOC] = {"num_device_alloc", 1},
    [XTRACE_ROW_NUM_DEVICE_FREE] = {"num_device_free", 1},
};

const char *xtrace_row_name(enum xtrace_row row)
{
    return rows[row].name;
}

unsigned xtrace_row_numbers(enum xtrace_row row)
{
    return rows[row].numbers;
}

bool xtrace_names_key(const char *config, const char *key)
{
    for (const char *at = strstr(config, key); at; at = strstr(at + 1, key)) {
        const char *after = at + strlen(key);

        after += strspn(after, " ");
        if (*after == ':' && (at == config || at[-1] == ',' || at[-1] == ' '))
            return true;
    }
    return false;
}

bool xtrace_names_expandable(const char *config)
{
    return xtrace_names_key(config, "expandable_segments");
}

void xtrace_fini(struct xtrace *trace)
{
    free(trace->ops);
    free(trace->answers);
    free(trace->labels);
    free(trace->config);
    free(trace->pool_name);
    memset(trace, 0, sizeof(*trace));
}
