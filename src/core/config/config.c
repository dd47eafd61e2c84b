/* SPDX-License-Identifier: MIT */
/* Defaults, derived members, printed values and size rounding of a configuration. */
#include "src/core/config/config.h"

#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/core/config/config_table.h"

enum { DESCRIPTION_BYTES = 640 };

/* Set a member to its default.  Lists, sizes with a fraction, and paths are zero by default. */
static void set_default(void *member, const struct xseg_config_row *row)
{
    switch (row->type) {
    case XSEG_CONFIG_BOOL:
        *(bool *)member = row->default_value != 0;
        break;
    case XSEG_CONFIG_MIB:
        *(uint64_t *)member =
            row->default_value == XSEG_CONFIG_UNSET ? UINT64_MAX : row->default_value * XSEG_MIB;
        break;
    case XSEG_CONFIG_NUMBER:
    case XSEG_CONFIG_CHOICE:
        *(uint32_t *)member = (uint32_t)row->default_value;
        break;
    case XSEG_CONFIG_PERIOD:
        *(int64_t *)member = (int64_t)row->default_value;
        break;
    case XSEG_CONFIG_REAL:
        *(double *)member = (double)row->default_value;
        break;
    case XSEG_CONFIG_ACTIONS:
    case XSEG_CONFIG_DIVISIONS:
    case XSEG_CONFIG_SIZE:
    case XSEG_CONFIG_PATH:
        break;
    }
}

void xseg_config_init(struct xseg_config *config)
{
    memset(config, 0, sizeof(*config));
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++)
        set_default((char *)config + xseg_config_table[key].offset, &xseg_config_table[key]);
}

void xseg_config_derive(struct xseg_config *config)
{
    config->decays =
        config->idle_ms >= 0 || config->soft_limit_bytes != UINT64_MAX ||
        (config->device_free_min_bytes != 0 && config->device_free_min_bytes != UINT64_MAX) ||
        config->has_device_soft_limit;
    config->decays_on_calls = config->decays && !xseg_config_has_thread(config);
    config->has_free_checks = config->debug_fill;
    config->has_alloc_epilogue = config->decays_on_calls || config->traced;
    config->has_call_epilogue = config->has_alloc_epilogue || config->publish;
    config->records_blocks =
        config->traced || config->block_user || config->history != XSEG_HISTORY_NOTHING;
    config->has_fast_frees =
        !config->has_free_checks && !config->has_alloc_epilogue && !config->records_blocks;
    config->has_fast_allocs = !config->has_alloc_epilogue && !config->debug_fill &&
                              !config->unmap_on_free && !config->guard_page &&
                              !(config->garbage_collection_threshold > 0 &&
                                (config->memory_fraction < 1.0 || config->has_device_fraction));
    for (unsigned i = 0; i < XSEG_CONFIG_INTERVALS; i++)
        config->has_fast_allocs = config->has_fast_allocs && config->roundup_divisions[i] <= 1;
    XSEG_ASSERT(!config->decays_on_calls || config->decays);
    XSEG_ASSERT(!config->has_fast_frees ||
                (!config->has_alloc_epilogue && !config->has_free_checks));
    XSEG_ASSERT(!config->has_fast_allocs || !config->has_alloc_epilogue);
    XSEG_ASSERT(!config->has_fast_frees || !config->records_blocks);
}

/* --- Printing. --- */

/* Print the shortest decimal number that is parsed as the same value.  The decimal point does not
 * depend on the locale of the program. */
static void print_real(double value, struct xseg_strbuf *text)
{
    char buffer[40];
    const locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const locale_t previous = uselocale(locale);

    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(buffer, sizeof(buffer), "%.*g", digits, value);
        if (strtod(buffer, NULL) == value)
            break;
    }
    XSEG_ASSERT(strtod(buffer, NULL) == value);
    (void)uselocale(previous);
    if (locale != (locale_t)0)
        freelocale(locale);
    xseg_strbuf_printf(text, "%s", buffer);
}

/* Print `[start:divisions,...,>:divisions]`.  The first entry implies all smaller intervals, and
 * `>` all larger ones, so these are omitted. */
static void print_divisions(const uint32_t *divisions, struct xseg_strbuf *text)
{
    const unsigned top = XSEG_CONFIG_INTERVALS - 1;
    unsigned first = 0, last = top - 1;

    while (first < top - 1 && divisions[first + 1] == divisions[first])
        first++;
    while (last > first && divisions[last] == divisions[top])
        last--;
    XSEG_ASSERT(first <= last && last < top);
    for (unsigned i = first; i <= last; i++)
        xseg_strbuf_printf(text, "%s%u:%" PRIu32, i == first ? "[" : ",", 1u << i, divisions[i]);
    xseg_strbuf_printf(text, ",>:%" PRIu32 "]", divisions[top]);
}

static bool print_mib(const struct xseg_config_row *row, uint64_t bytes, struct xseg_strbuf *text)
{
    if (bytes == UINT64_MAX || bytes < row->min * XSEG_MIB)
        return false;
    xseg_strbuf_printf(text, "%" PRIu64, bytes / XSEG_MIB);
    return true;
}

static bool print_size(const struct xseg_config_reserve *size, struct xseg_strbuf *text)
{
    if (size->amount <= 0)
        return false;
    print_real(size->amount, text);
    xseg_strbuf_printf(text, "%s", size->in_gib ? "G" : "");
    return true;
}

static bool print_bounded_real(const struct xseg_config_row *row, double value,
                               struct xseg_strbuf *text)
{
    if (row->excludes_ends && value <= row->real_min)
        return false;
    print_real(value, text);
    return true;
}

static void print_actions(uint32_t set, struct xseg_strbuf *text)
{
    const char *separator = "";

    xseg_strbuf_printf(text, "[");
    for (unsigned action = 0; action < XSEG_HISTORY_ACTIONS; action++)
        if ((set >> action & 1) != 0) {
            xseg_strbuf_printf(text, "%s%s", separator, xseg_config_actions[action]);
            separator = ",";
        }
    xseg_strbuf_printf(text, "]");
}

bool xseg_config_print_value(const struct xseg_config *config, enum xseg_config_key_id key,
                             struct xseg_strbuf *text)
{
    const struct xseg_config_row *row = &xseg_config_table[key];
    const void *const member = (const char *)config + row->offset;

    XSEG_ASSERT(key < XSEG_CONFIG_KEYS && row->offset < sizeof(*config));
    switch (row->type) {
    case XSEG_CONFIG_BOOL:
        xseg_strbuf_printf(text, "%s", *(const bool *)member ? "True" : "False");
        return true;
    case XSEG_CONFIG_MIB:
        return print_mib(row, *(const uint64_t *)member, text);
    case XSEG_CONFIG_NUMBER:
        xseg_strbuf_printf(text, "%" PRIu32, *(const uint32_t *)member);
        return true;
    case XSEG_CONFIG_PERIOD:
        xseg_strbuf_printf(text, "%" PRId64, *(const int64_t *)member);
        return true;
    case XSEG_CONFIG_REAL:
        return print_bounded_real(row, *(const double *)member, text);
    case XSEG_CONFIG_CHOICE:
        XSEG_ASSERT(*(const uint32_t *)member < XSEG_COUNT_OF(row->choice));
        XSEG_ASSERT(row->choice[*(const uint32_t *)member] != NULL);
        xseg_strbuf_printf(text, "%s", row->choice[*(const uint32_t *)member]);
        return true;
    case XSEG_CONFIG_ACTIONS:
        print_actions(*(const uint32_t *)member, text);
        return true;
    case XSEG_CONFIG_DIVISIONS:
        print_divisions(member, text);
        return true;
    case XSEG_CONFIG_SIZE:
        return print_size(member, text);
    case XSEG_CONFIG_PATH:
        xseg_strbuf_printf(text, "%s", (const char *)member);
        return *(const char *)member != '\0';
    }
    return false;
}

void xseg_config_print(const struct xseg_config *config, struct xseg_strbuf *text)
{
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        char buffer[XSEG_CONFIG_VALUE_BYTES];
        struct xseg_strbuf value;

        xseg_strbuf_init(&value, buffer, sizeof(buffer));
        if (xseg_config_print_value(config, (enum xseg_config_key_id)key, &value))
            xseg_strbuf_printf(text, "%s%s:%s", key == 0 ? "" : ",", xseg_config_table[key].name,
                               buffer);
    }
}

/* --- Keys. --- */

/* Print the value of a key, or its name in the table if the value has no spelling. */
static void print_named_value(const struct xseg_config *config, enum xseg_config_key_id key,
                              char *value)
{
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, value, XSEG_CONFIG_VALUE_BYTES);
    XSEG_ASSERT(key < XSEG_CONFIG_KEYS);
    if (!xseg_config_print_value(config, key, &text))
        xseg_strbuf_printf(&text, "%s", xseg_config_table[key].unset_name);
    XSEG_ASSERT(text.length < XSEG_CONFIG_VALUE_BYTES);
}

/* Print a description without Markdown: a link is replaced by the path of its document. */
static void print_description(const char *description, char *output)
{
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, output, DESCRIPTION_BYTES);
    while (*description != '\0') {
        const char *const link = *description == '[' ? strstr(description, "](") : NULL;
        const char *const end = link != NULL ? strchr(link, ')') : NULL;

        if (end == NULL) {
            xseg_strbuf_printf(&text, "%c", *description++);
            continue;
        }
        xseg_strbuf_printf(&text, "docs/%.*s", (int)(end - link - 2), link + 2);
        description = end + 1;
    }
    XSEG_ASSERT(text.length < DESCRIPTION_BYTES);
}

bool xseg_config_is_set(const struct xseg_config *config, enum xseg_config_key_id key)
{
    struct xseg_config defaults;
    char value[XSEG_CONFIG_VALUE_BYTES], default_value[XSEG_CONFIG_VALUE_BYTES];

    xseg_config_init(&defaults);
    print_named_value(config, key, value);
    print_named_value(&defaults, key, default_value);
    return strcmp(value, default_value) != 0;
}

/* Whether the key is a garbage collection threshold that has no effect, because no memory fraction
 * is below 1. */
static bool is_threshold_without_fraction(const struct xseg_config *config,
                                          enum xseg_config_key_id key)
{
    return key == XSEG_CONFIG_GARBAGE_COLLECTION && config->garbage_collection_threshold > 0 &&
           config->memory_fraction >= 1.0 && !config->has_device_fraction;
}

bool xseg_config_has_effect(const struct xseg_config *config, enum xseg_config_key_id key)
{
    XSEG_ASSERT(key < XSEG_CONFIG_KEYS);
    return (config->expandable_segments || !xseg_config_table[key].needs_expandable) &&
           !is_threshold_without_fraction(config, key);
}

void xseg_config_for_each_key(const struct xseg_config *config, uint64_t named,
                              bool (*visit)(void *context, const struct xseg_config_key *key),
                              void *context)
{
    char value[XSEG_CONFIG_VALUE_BYTES], default_value[XSEG_CONFIG_VALUE_BYTES];
    char description[DESCRIPTION_BYTES];
    struct xseg_config defaults;

    xseg_config_init(&defaults);
    for (unsigned i = 0; i < XSEG_CONFIG_KEYS; i++) {
        const enum xseg_config_key_id id = (enum xseg_config_key_id)i;
        const struct xseg_config_row *row = &xseg_config_table[i];

        print_named_value(config, id, value);
        print_named_value(&defaults, id, default_value);
        print_description(row->description, description);
        const struct xseg_config_key key = {
            .struct_size = sizeof(key),
            .name = row->name,
            .values = row->accepted,
            .description = description,
            .value = value,
            .default_value = default_value,
            .is_set = (named >> i & 1) != 0,
            .is_default = strcmp(value, default_value) == 0,
            .has_effect = xseg_config_has_effect(config, id),
        };
        if (!visit(context, &key))
            return;
    }
}

/* --- Sizes. --- */

/* Round up to a multiple of 1/divisions of the next lower power of two. */
static uint64_t round_to_division(uint64_t bytes, uint32_t divisions)
{
    XSEG_ASSERT(xseg_is_power_of_two(divisions));
    if (xseg_is_power_of_two(bytes))
        return bytes;
    const uint64_t power = (uint64_t)1 << xseg_log2_floor(bytes);
    const uint64_t step = power >> xseg_log2_floor(divisions);
    return step == 0 ? power << 1 : xseg_round_up(bytes, step);
}

uint64_t xseg_size_round(const struct xseg_config *config, uint64_t bytes)
{
    XSEG_ASSERT(bytes != 0 && bytes <= XSEG_SIZE_MAX);
    if (bytes < XSEG_SIZE_UNIT)
        return XSEG_SIZE_UNIT;
    /* Interval n has the sizes of at least 2^n MiB; the first one also has all smaller sizes. */
    const unsigned log2 = xseg_log2_floor(bytes);
    const uint32_t divisions = config->roundup_divisions[log2 < 20   ? 0
                                                         : log2 > 35 ? 15
                                                                     : log2 - 20];
    if (divisions > 1 && bytes > XSEG_SIZE_UNIT * divisions)
        return round_to_division(bytes, divisions);
    return xseg_round_up(bytes, XSEG_SIZE_UNIT);
}

uint64_t xseg_size_segment(const struct xseg_config *config, uint64_t rounded)
{
    XSEG_ASSERT(rounded != 0 && rounded % XSEG_SIZE_UNIT == 0);
    if (rounded <= XSEG_SIZE_SMALL_MAX)
        return XSEG_SIZE_SMALL_SEGMENT;
    if (rounded < XSEG_SIZE_OWN_SEGMENT)
        return config->large_segment_bytes;
    return xseg_round_up(rounded, XSEG_SIZE_SEGMENT_STEP);
}
