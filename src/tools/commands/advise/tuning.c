/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/advise/tuning.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xseg/allocator.h"

#define FALSE 0
#define TRUE  1

struct row {
    const char *name;
    const char *words[TUNING_VALUES - 1]; /* NULL ends the list */
    uint64_t numbers[TUNING_VALUES - 1];  /* if there are no words; 0 ends the list */
    uint64_t step;                        /* of close values; 0: none */
    bool is_pytorch, in_classic, in_expandable, needs_clock, needs_captures;
    const char *lower,
        *higher; /* causes: of a smaller number, or a word; of a larger number, or the second word */
};

static const struct row rows[TUNING_KEYS] = {
    [TUNING_EXPANDABLE] =
        {
            .name = "expandable_segments",
            .words = {[FALSE] = "False", [TRUE] = "True"},
            .is_pytorch = true,
            .lower = "segments of the request size waste less memory than pages",
            .higher = "segments that grow in place leave no free blocks that are too small for "
                      "later requests",
        },
    [TUNING_PAGE] =
        {
            .name = "page_size",
            .words = {"small", "auto"},
            .in_expandable = true,
            .lower = "pages of 2 MiB waste less memory at the ends of segments",
            .higher = "pages of the size of the growth waste less memory",
        },
    [TUNING_SEGMENT] =
        {
            .name = "large_segment_size_mb",
            .numbers = {12, 16, 24, 32, 64, 128},
            .step = 2,
            .is_pytorch = true,
            .in_classic = true,
            .in_expandable = true,
            .lower = "smaller segments and pages waste less memory at their ends",
            .higher = "more requests share a larger segment",
        },
    [TUNING_SPLIT] =
        {
            .name = "max_split_size_mb",
            .numbers = {32, 64, 128, 256, 512, 1024},
            .step = 4,
            .is_pytorch = true,
            .in_classic = true,
            .lower = "large blocks are not split and remain available for large requests",
            .higher = "fewer blocks are kept unsplit for large requests that never occur",
        },
    [TUNING_ROUNDING] =
        {
            .name = "roundup_power2_divisions",
            .words = {"1", "2", "4", "8", "16", "32", "[16:4,>:0]", "[16:16,>:0]", "[256:4,>:0]",
                      "[256:16,>:0]"},
            .is_pytorch = true,
            .in_classic = true,
            .in_expandable = true,
            .lower = "requests of similar sizes are rounded to one size, so each fits into the "
                     "freed blocks of the others",
        },
    [TUNING_IDLE] =
        {
            .name = "idle_ms",
            .numbers = {10000, 1000, 100},
            .in_classic = true,
            .in_expandable = true,
            .needs_clock = true,
            .lower = "idle memory is released before another stream or pool grows",
        },
    [TUNING_REUSE] =
        {
            .name = "graph_capture_record_stream_reuse",
            .words = {"True"},
            .is_pytorch = true,
            .in_classic = true,
            .in_expandable = true,
            .needs_captures = true,
            .lower = "blocks that are freed during a capture are reused in it",
        },
};

/* Keys that PyTorch's own allocator also has, and that are not searched. */
static const char *const other_pytorch_keys[] = {
    "backend",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "garbage_collection_threshold",
    "max_non_split_rounding_mb",
    "per_process_memory_fraction",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "throw_on_cudamalloc_oom",
};

const char *tuning_name(enum tuning_key key)
{
    return rows[key].name;
}

/* --- The base. --- */

static bool record_key(void *context, const struct xseg_config_key *key)
{
    struct tuning_base *base = context;

    for (unsigned i = 0; i < TUNING_KEYS; i++)
        if (strcmp(rows[i].name, key->name) == 0) {
            (void)snprintf(base->key[i].value, sizeof(base->key[i].value), "%s", key->value);
            base->key[i].is_set = key->is_set;
        }
    return true;
}

bool tuning_base_init(struct tuning_base *base, const char *config, const struct xtrace *trace,
                      bool only_pytorch)
{
    *base = (struct tuning_base){
        .config = config, .has_clock = trace->has_clock, .only_pytorch = only_pytorch};
    for (size_t i = 0; i < trace->op_count && !base->has_captures; i++)
        base->has_captures = trace->ops[i].kind == XTRACE_CAPTURE_BEGIN;
    return xseg_config_keys(config, NULL, record_key, base) == XSEG_OK;
}

struct tuning tuning_unchanged(void)
{
    struct tuning tuning;

    for (unsigned i = 0; i < TUNING_KEYS; i++)
        tuning.value[i] = TUNING_UNCHANGED;
    return tuning;
}

unsigned tuning_changes(const struct tuning *tuning)
{
    unsigned changes = 0;

    for (unsigned i = 0; i < TUNING_KEYS; i++)
        changes += tuning->value[i] != TUNING_UNCHANGED;
    return changes;
}

bool tuning_is_expandable(const struct tuning_base *base, const struct tuning *tuning)
{
    const uint64_t value = tuning->value[TUNING_EXPANDABLE];

    return value == TUNING_UNCHANGED ? strcmp(base->key[TUNING_EXPANDABLE].value, "True") == 0
                                     : value == TRUE;
}

struct tuning tuning_flip_expandable(const struct tuning_base *base, const struct tuning *tuning)
{
    struct tuning flipped = *tuning;

    flipped.value[TUNING_EXPANDABLE] = tuning->value[TUNING_EXPANDABLE] != TUNING_UNCHANGED
                                           ? TUNING_UNCHANGED
                                       : tuning_is_expandable(base, tuning) ? FALSE
                                                                            : TRUE;
    return flipped;
}

/* --- Values. --- */

static void format_value(enum tuning_key key, uint64_t value, char *text, size_t bytes)
{
    if (rows[key].words[0])
        (void)snprintf(text, bytes, "%s", rows[key].words[value]);
    else
        (void)snprintf(text, bytes, "%" PRIu64, value);
}

/* Whether values of a key can make a difference. */
static bool can_have_effect(const struct tuning_base *base, const struct tuning *tuning,
                            enum tuning_key key)
{
    const struct row *row = &rows[key];

    return (tuning_is_expandable(base, tuning) ? row->in_expandable : row->in_classic) &&
           (base->has_clock || !row->needs_clock) && (base->has_captures || !row->needs_captures) &&
           (row->is_pytorch || !base->only_pytorch);
}

size_t tuning_far(const struct tuning_base *base, const struct tuning *tuning, enum tuning_key key,
                  uint64_t values[TUNING_VALUES])
{
    const struct row *row = &rows[key];
    const uint64_t current = tuning->value[key];
    size_t count = 0;

    if (current != TUNING_UNCHANGED)
        values[count++] = TUNING_UNCHANGED;
    if (key == TUNING_EXPANDABLE)
        return count;
    if (current != TUNING_REMOVED && base->key[key].is_set)
        values[count++] = TUNING_REMOVED;
    for (size_t i = 0; can_have_effect(base, tuning, key) && (row->words[i] || row->numbers[i]);
         i++) {
        const uint64_t value = row->words[0] ? i : row->numbers[i];
        char text[32];

        format_value(key, value, text, sizeof(text));
        if (value != current && strcmp(text, base->key[key].value) != 0 && count < TUNING_VALUES)
            values[count++] = value;
    }
    return count;
}

size_t tuning_close(const struct tuning *tuning, enum tuning_key key, unsigned round,
                    uint64_t values[TUNING_VALUES])
{
    const uint64_t current = tuning->value[key], step = rows[key].step;
    size_t count = 0;

    if (step == 0 || current >= TUNING_REMOVED)
        return 0;
    /* Far values double, so close values are at half the distance. */
    const uint64_t below = (current >> (round + 1)) / step * step;
    const uint64_t above = (current >> round) / step * step;
    if (below > 0)
        values[count++] = current - below;
    if (above > 0)
        values[count++] = current + above;
    return count;
}

/* --- Strings. --- */

/* The length of the first `key:value` of a string; a list in brackets can contain commas. */
static size_t item_length(const char *text)
{
    size_t at = 0;

    for (bool in_list = false; text[at] != '\0' && (text[at] != ',' || in_list); at++)
        in_list = text[at] == '[' || (in_list && text[at] != ']');
    return at;
}

/* Whether an item, `key:value`, has a key. */
static bool has_key(const char *item, size_t length, const char *key)
{
    const size_t name = strlen(key);

    return length > name && strncmp(item, key, name) == 0 &&
           (item[name] == ':' || item[name] == ' ');
}

/* A filter of the items of a string. */
typedef bool item_filter_fn(const struct tuning *tuning, const char *item, size_t length);

/* Whether a tuning does not change an item. */
static bool is_kept(const struct tuning *tuning, const char *item, size_t length)
{
    for (unsigned i = 0; i < TUNING_KEYS; i++)
        if (tuning->value[i] != TUNING_UNCHANGED && has_key(item, length, rows[i].name))
            return false;
    return true;
}

static bool is_of_pytorch(const struct tuning *tuning, const char *item, size_t length)
{
    (void)tuning;
    for (unsigned i = 0; i < TUNING_KEYS; i++)
        if (has_key(item, length, rows[i].name))
            return rows[i].is_pytorch;
    for (unsigned i = 0; i < sizeof(other_pytorch_keys) / sizeof(other_pytorch_keys[0]); i++)
        if (has_key(item, length, other_pytorch_keys[i]))
            return true;
    return false;
}

static bool is_not_of_pytorch(const struct tuning *tuning, const char *item, size_t length)
{
    return !is_of_pytorch(tuning, item, length);
}

/* Print the items that pass the filter.  Returns the separator of the next item. */
static const char *print_items(FILE *out, const char *config, item_filter_fn *filter,
                               const struct tuning *tuning)
{
    const char *separator = "";

    for (const char *at = config; *at;) {
        const char *item = at + strspn(at, " ");
        size_t length = item_length(item);

        at = item + length + (item[length] == ',');
        while (length > 0 && item[length - 1] == ' ')
            length--;
        if (length == 0 || !filter(tuning, item, length))
            continue;
        (void)fprintf(out, "%s%.*s", separator, (int)length, item);
        separator = ",";
    }
    return separator;
}

/* Close a memory stream.  Returns its string; NULL on host allocation failure. */
static char *close_stream(FILE *out, char *const *text)
{
    bool failed = ferror(out) != 0;

    failed |= fclose(out) != 0;
    if (!failed)
        return *text;
    free(*text);
    return NULL;
}

char *tuning_string(const struct tuning_base *base, const struct tuning *tuning)
{
    size_t bytes = 0;
    char *text = NULL, value[32];
    FILE *out = open_memstream(&text, &bytes);
    const char *separator;

    if (!out)
        return NULL;
    separator = print_items(out, base->config, is_kept, tuning);
    for (unsigned i = 0; i < TUNING_KEYS; i++) {
        if (tuning->value[i] >= TUNING_REMOVED)
            continue;
        format_value((enum tuning_key)i, tuning->value[i], value, sizeof(value));
        (void)fprintf(out, "%s%s:%s", separator, rows[i].name, value);
        separator = ",";
    }
    return close_stream(out, &text);
}

char *tuning_of_pytorch(const struct tuning_base *base)
{
    const struct row *row = &rows[TUNING_EXPANDABLE];
    size_t bytes = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);
    const char *separator;

    if (!out)
        return NULL;
    separator = print_items(out, base->config, is_of_pytorch, NULL);
    if (!base->key[TUNING_EXPANDABLE].is_set)
        (void)fprintf(out, "%s%s:%s", separator, row->name, base->key[TUNING_EXPANDABLE].value);
    return close_stream(out, &text);
}

char *tuning_not_of_pytorch(const struct tuning_base *base)
{
    size_t bytes = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);

    if (!out)
        return NULL;
    (void)print_items(out, base->config, is_not_of_pytorch, NULL);
    return close_stream(out, &text);
}

bool tuning_is_valid(const char *config)
{
    return xseg_config_keys(config, NULL, NULL, NULL) == XSEG_OK;
}

const char *tuning_cause(const struct tuning_base *base, const struct tuning *tuning,
                         enum tuning_key key)
{
    const uint64_t value = tuning->value[key];
    const struct row *row = &rows[key];
    bool is_higher;

    if (value == TUNING_REMOVED)
        return "its current value prevents the reuse of memory";
    if (row->words[0])
        is_higher = value == 1;
    else
        is_higher = value > strtoull(base->key[key].value, NULL, 10);
    return is_higher && row->higher ? row->higher : row->lower;
}
