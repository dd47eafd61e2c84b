/* SPDX-License-Identifier: MIT */
/* The parser of configuration strings.  A string is read twice, into a copy of the configuration:
 * large_segment_size_mb bounds other keys wherever it stands, so the first pass reads that key. */
#include "src/core/config/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/config/config_names.h"
#include "src/core/config/config_table.h"
#include "src/core/config/config_token.h"

struct parser {
    const char *text, *next; /* the whole string; behind the token */
    struct xseg_config_token token;
    const struct xseg_config_row *row; /* the key that is being read; NULL: an ignored one */
    unsigned ignored;                  /* index of that one */
    struct xseg_config_token
        value[XSEG_CONFIG_KEYS]; /* where the last value of each named key is */
    struct xseg_config config;
    uint64_t named;
};

_Static_assert(XSEG_CONFIG_KEYS + XSEG_CONFIG_IGNORED <= 64, "a set of keys is a uint64_t");

/* Give a member its default; lists, spans and paths are empty. */
static void init_member(void *member, const struct xseg_config_row *row)
{
    switch (row->type) {
    case XSEG_CONFIG_BOOL:
        *(bool *)member = row->start != 0;
        break;
    case XSEG_CONFIG_MIB:
        *(uint64_t *)member = row->start == XSEG_CONFIG_UNSET ? UINT64_MAX : row->start * XSEG_MIB;
        break;
    case XSEG_CONFIG_NUMBER:
    case XSEG_CONFIG_CHOICE:
        *(uint32_t *)member = (uint32_t)row->start;
        break;
    case XSEG_CONFIG_PERIOD:
        *(int64_t *)member = (int64_t)row->start;
        break;
    case XSEG_CONFIG_REAL:
        *(double *)member = (double)row->start;
        break;
    case XSEG_CONFIG_ACTIONS:
    case XSEG_CONFIG_DIVISIONS:
    case XSEG_CONFIG_SPAN:
    case XSEG_CONFIG_PATH:
        break;
    }
}

void xseg_config_init(struct xseg_config *config)
{
    memset(config, 0, sizeof(*config));
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++)
        init_member((char *)config + xseg_config_table[key].offset, &xseg_config_table[key]);
}

static void advance(struct parser *parser)
{
    XSEG_ASSERT(parser->next >= parser->text);
    parser->token = xseg_config_token_next(parser->next);
    parser->next = parser->token.at + parser->token.length;
}

/* Begin the error message: what is wrong, the token and its column. */
static void point_at(const struct parser *parser, const struct xseg_config_token *token,
                     const char *wrong, const char *key)
{
    char found[48];
    const size_t shown = token->length < sizeof(found) ? token->length : sizeof(found) - 1;

    memcpy(found, token->at, shown);
    found[shown] = '\0';
    xseg_fail(XSEG_ERR_CONFIG, "%s%s", wrong, key);
    xseg_fail_append(token->length > 0 ? ", '%s' at column %zu" : ", end of string%s at column %zu",
                     found, (size_t)(token->at - parser->text) + 1);
}

/* The name of the key that is being read. */
static const char *key_of(const struct parser *parser)
{
    return parser->row != NULL ? parser->row->name : xseg_config_ignored[parser->ignored];
}

/* Reject a token of a value: `invalid value of page_size, '20' at column 11; expected fixed, auto or small`. */
static xseg_status refuse(const struct parser *parser, const struct xseg_config_token *token,
                          const char *expected)
{
    point_at(parser, token, "invalid value of ", key_of(parser));
    xseg_fail_append("; expected %s", expected);
    return XSEG_ERR_CONFIG;
}

/* Read a separator.  The error message is `syntax error after page_size, '=' at column 10; expected ':' between key and value`. */
static xseg_status expect_mark(struct parser *parser, char mark, const char *expected)
{
    if (!xseg_config_token_is_mark(&parser->token, mark)) {
        point_at(parser, &parser->token, "syntax error after ", key_of(parser));
        xseg_fail_append("; expected %s", expected);
        return XSEG_ERR_CONFIG;
    }
    advance(parser);
    return XSEG_OK;
}

static bool read_bool(const struct parser *parser, bool *out)
{
    *out = xseg_config_token_is_text(&parser->token, "True");
    return *out || xseg_config_token_is_text(&parser->token, "False");
}

static bool read_mib(const struct parser *parser, uint64_t *out)
{
    const struct xseg_config_row *row = parser->row;
    uint64_t mib;

    XSEG_ASSERT(row->type == XSEG_CONFIG_MIB);
    if (row->takes_minus_one && xseg_config_token_is_text(&parser->token, "-1")) {
        *out = UINT64_MAX;
        return true;
    }
    if (!xseg_config_token_whole(&parser->token, &mib) || mib < row->min)
        return false;
    if (row->max != 0 && mib > row->max)
        return false;
    if (mib > UINT64_MAX / XSEG_MIB && row->unset != NULL)
        *out = UINT64_MAX;
    else
        *out = xseg_min(mib, UINT64_MAX / XSEG_MIB) * XSEG_MIB;
    return !row->is_above_large || *out >= parser->config.large_segment_bytes;
}

static bool read_number(const struct parser *parser, uint32_t *out)
{
    uint64_t value;

    XSEG_ASSERT(parser->row->max <= UINT32_MAX);
    if (!xseg_config_token_whole(&parser->token, &value) || value < parser->row->min ||
        value > parser->row->max)
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool read_bounded_real(const struct parser *parser, double *out)
{
    const struct xseg_config_row *row = parser->row;

    if (row->is_open && row->unset != NULL &&
        xseg_config_token_is_text(&parser->token, row->unset)) {
        *out = row->low;
        return true;
    }
    if (!xseg_config_token_real(&parser->token, out) || (*out > row->low && *out < row->smallest))
        return false;
    return row->is_open ? *out > row->low && *out < row->high
                        : *out >= row->low && *out <= row->high;
}

static bool read_choice(const struct parser *parser, uint32_t *out)
{
    for (uint32_t i = 0; i < XSEG_COUNT_OF(parser->row->choice); i++)
        if (xseg_config_token_is_text(&parser->token, parser->row->choice[i])) {
            *out = i;
            return true;
        }
    return false;
}

static bool read_span(const struct xseg_config_token *token, struct xseg_config_reserve *out)
{
    struct xseg_config_token number = *token;

    out->in_gib = number.length > 0 && number.at[number.length - 1] == 'G';
    if (out->in_gib)
        number.length--;
    return xseg_config_token_real(&number, &out->amount) && out->amount > 0;
}

/* Read the number of divisions of an interval: 0, or a power of two of 32 bits. */
static bool read_divisions(const struct xseg_config_token *token, uint32_t *out)
{
    uint64_t value;

    if (!xseg_config_token_whole(token, &value) || (value != 0 && !xseg_is_power_of_two(value)) ||
        value > UINT32_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

/* Read the start of an interval, a power of two of MiB, as the index of the interval. */
static bool read_interval(const struct xseg_config_token *token, unsigned *out)
{
    uint64_t start;

    if (!xseg_config_token_whole(token, &start) || !xseg_is_power_of_two(start))
        return false;
    *out = (unsigned)xseg_min(xseg_log2_floor(start), XSEG_CONFIG_INTERVALS - 1);
    return true;
}

/* State of reading a list of intervals. */
struct intervals {
    uint32_t *divisions;
    unsigned last; /* index of the last number on the left */
    bool any, is_closed;
};

/* Read one `start:divisions` of a list: the first start also fills the intervals below, `>`
 * those above. */
static xseg_status read_list_interval(struct parser *parser, struct intervals *list)
{
    unsigned first = 0, last = XSEG_CONFIG_INTERVALS - 1;
    uint32_t divisions;

    if (list->is_closed)
        return refuse(parser, &parser->token, "']' after the interval '>'");
    if (xseg_config_token_is_mark(&parser->token, '>')) {
        if (!list->any)
            return refuse(parser, &parser->token, "the start of an interval before '>'");
        list->is_closed = true;
        first = list->last + 1;
    } else if (read_interval(&parser->token, &last)) {
        first = list->any ? last : 0;
        list->last = last;
        list->any = true;
    } else {
        return refuse(parser, &parser->token,
                      "the start of an interval, which is a power of two of MiB, or '>'");
    }
    advance(parser);
    if (expect_mark(parser, ':', "':' after the start of an interval") != XSEG_OK)
        return XSEG_ERR_CONFIG;
    if (!read_divisions(&parser->token, &divisions))
        return refuse(parser, &parser->token, "0 or a power of two up to 2147483648");
    XSEG_ASSERT(last < XSEG_CONFIG_INTERVALS && list->last < XSEG_CONFIG_INTERVALS);
    for (unsigned i = first; i <= last; i++)
        list->divisions[i] = divisions;
    advance(parser);
    return XSEG_OK;
}

/* Read `[start:divisions,...]`; intervals between those listed are not divided. */
static xseg_status read_list_divisions(struct parser *parser, uint32_t *divisions)
{
    struct intervals list = {.divisions = divisions};

    memset(divisions, 0, XSEG_CONFIG_INTERVALS * sizeof(*divisions));
    do {
        advance(parser); /* past '[' or ',' */
        if (read_list_interval(parser, &list) != XSEG_OK)
            return XSEG_ERR_CONFIG;
    } while (xseg_config_token_is_mark(&parser->token, ','));
    return expect_mark(parser, ']', "',' or ']' after an interval");
}

/* Read the word of an action. */
static bool read_action(const struct xseg_config_token *token, uint32_t *set)
{
    for (unsigned action = 0; action < XSEG_HISTORY_ACTIONS; action++)
        if (xseg_config_token_is_text(token, xseg_config_actions[action])) {
            *set |= 1u << action;
            return true;
        }
    return false;
}

/* Read `[action,...]`, or `[]` for none. */
static xseg_status read_list_actions(struct parser *parser, uint32_t *out)
{
    uint32_t set = 0;

    if (!xseg_config_token_is_mark(&parser->token, '['))
        return refuse(parser, &parser->token, parser->row->accepts);
    advance(parser);
    while (!xseg_config_token_is_mark(&parser->token, ']')) {
        if (set != 0 && expect_mark(parser, ',', "',' or ']' after an action") != XSEG_OK)
            return XSEG_ERR_CONFIG;
        if (!read_action(&parser->token, &set))
            return refuse(parser, &parser->token, "the name of an action, such as free_completed");
        advance(parser);
    }
    advance(parser);
    *out = set;
    return XSEG_OK;
}

/* Read a whole number, or -1 for never. */
static bool read_period(const struct parser *parser, int64_t *out)
{
    uint64_t value = 0;
    const bool never = xseg_config_token_is_text(&parser->token, "-1");

    XSEG_ASSERT(parser->row->type == XSEG_CONFIG_PERIOD && parser->row->max <= INT64_MAX);
    if (!never && (!xseg_config_token_whole(&parser->token, &value) || value > parser->row->max))
        return false;
    *out = never ? -1 : (int64_t)value;
    return true;
}

static bool read_path(const struct parser *parser, char *out)
{
    const struct xseg_config_token *token = &parser->token;
    const bool is_unset = xseg_config_token_is_text(token, parser->row->unset);

    if (!xseg_config_token_is_word(token) || token->length >= XSEG_CONFIG_PATH_BYTES)
        return false;
    memset(out, 0, XSEG_CONFIG_PATH_BYTES);
    if (!is_unset)
        memcpy(out, token->at, token->length);
    return true;
}

/* Convert the token to the type of the key, unless that is a list. */
static bool read_word(const struct parser *parser, void *member)
{
    switch (parser->row->type) {
    case XSEG_CONFIG_BOOL:
        return read_bool(parser, member);
    case XSEG_CONFIG_MIB:
        return read_mib(parser, member);
    case XSEG_CONFIG_NUMBER:
        return read_number(parser, member);
    case XSEG_CONFIG_PERIOD:
        return read_period(parser, member);
    case XSEG_CONFIG_REAL:
        return read_bounded_real(parser, member);
    case XSEG_CONFIG_CHOICE:
        return read_choice(parser, member);
    case XSEG_CONFIG_SPAN:
        return read_span(&parser->token, member);
    case XSEG_CONFIG_DIVISIONS:
    case XSEG_CONFIG_ACTIONS:
        break;
    case XSEG_CONFIG_PATH:
        return read_path(parser, member);
    }
    return false;
}

/* Read one number of divisions that holds for every interval. */
static bool read_all_divisions(const struct parser *parser, uint32_t *divisions)
{
    if (!read_divisions(&parser->token, &divisions[0]) || divisions[0] == 0)
        return false;
    for (unsigned i = 1; i < XSEG_CONFIG_INTERVALS; i++)
        divisions[i] = divisions[0];
    return true;
}

static xseg_status read_value(struct parser *parser)
{
    const struct xseg_config_row *row = parser->row;
    void *const member = (char *)&parser->config + row->offset;
    bool is_good;

    if (row->type == XSEG_CONFIG_ACTIONS)
        return read_list_actions(parser, member);
    if (row->type == XSEG_CONFIG_DIVISIONS && xseg_config_token_is_mark(&parser->token, '['))
        return read_list_divisions(parser, member);
    is_good = row->type == XSEG_CONFIG_DIVISIONS ? read_all_divisions(parser, member)
                                                 : read_word(parser, member);
    if (!is_good) {
        (void)refuse(parser, &parser->token, row->accepts);
        if (row->is_above_large)
            xseg_fail_append(", which is %u",
                             (unsigned)(parser->config.large_segment_bytes / XSEG_MIB));
        return XSEG_ERR_CONFIG;
    }
    advance(parser);
    return XSEG_OK;
}

/* Skip a value that another pass reads, or none does. */
static xseg_status skip_value(struct parser *parser)
{
    const bool is_list = xseg_config_token_is_mark(&parser->token, '[');

    if (!is_list && !xseg_config_token_is_word(&parser->token))
        return refuse(parser, &parser->token,
                      parser->row != NULL ? parser->row->accepts : "a value");
    while (is_list && !xseg_config_token_is_mark(&parser->token, ']')) {
        if (parser->token.length == 0)
            return expect_mark(parser, ']', "']'");
        advance(parser);
    }
    advance(parser);
    return XSEG_OK;
}

/* Skip the value of a key without an effect; the configuration keeps its text. */
static xseg_status keep_ignored(struct parser *parser)
{
    char *const kept = parser->config.ignored[parser->ignored];
    const char *const start = parser->token.at;
    const char *end = start;

    XSEG_ASSERT(parser->ignored < XSEG_CONFIG_IGNORED);
    if (xseg_config_token_is_mark(&parser->token, '[') && strchr(start, ']') != NULL)
        end = strchr(start, ']') + 1;
    else
        end += parser->token.length;
    if (skip_value(parser) != XSEG_OK)
        return XSEG_ERR_CONFIG;
    parser->named |= (uint64_t)1 << (XSEG_CONFIG_KEYS + parser->ignored);
    memset(kept, 0, XSEG_CONFIG_IGNORED_BYTES);
    if ((size_t)(end - start) < XSEG_CONFIG_IGNORED_BYTES)
        memcpy(kept, start, (size_t)(end - start));
    return XSEG_OK;
}

/* Read the name of a key.  A name ends at a '=', so that the error names the missing ':', not
 * the key. */
static xseg_status read_key(struct parser *parser)
{
    const struct xseg_config_token *token = &parser->token;
    const char *const equals =
        xseg_config_token_is_word(token) ? memchr(token->at, '=', token->length) : NULL;

    if (equals != NULL && equals > token->at) {
        parser->token.length = (size_t)(equals - token->at);
        parser->next = equals;
    }
    parser->row = xseg_config_names_find(token->at, token->length);
    parser->ignored = xseg_config_names_find_ignored(token->at, token->length);
    if (parser->row == NULL && parser->ignored == XSEG_CONFIG_IGNORED) {
        point_at(parser, token, "unknown key", "");
        xseg_config_names_suggest(token->at, token->length);
        return XSEG_ERR_CONFIG;
    }
    advance(parser);
    if (token->length > 1 && *token->at == '=')
        parser->token.length = 1;
    return expect_mark(parser, ':', "':' between key and value");
}

/* Read one `key:value`, or skip the value if the other pass reads it. */
static xseg_status read_entry(struct parser *parser, bool reads_large)
{
    if (read_key(parser) != XSEG_OK)
        return XSEG_ERR_CONFIG;
    if (parser->row == NULL)
        return keep_ignored(parser);
    const unsigned key = (unsigned)(parser->row - xseg_config_table);

    parser->value[key] = parser->token;
    parser->named |= (uint64_t)1 << key;
    if ((key == XSEG_CONFIG_LARGE_SEGMENT_SIZE) != reads_large)
        return skip_value(parser);
    if (read_value(parser) != XSEG_OK)
        return XSEG_ERR_CONFIG;
    if (reads_large)
        parser->config.max_non_split_rounding_bytes = parser->config.large_segment_bytes;
    return XSEG_OK;
}

/* Read all entries of the string; a comma may follow the last one. */
static xseg_status read_entries(struct parser *parser, bool reads_large)
{
    parser->next = parser->text;
    advance(parser);
    while (parser->token.length > 0) {
        if (read_entry(parser, reads_large) != XSEG_OK)
            return XSEG_ERR_CONFIG;
        if (parser->token.length > 0 &&
            expect_mark(parser, ',', "',' before the next key") != XSEG_OK)
            return XSEG_ERR_CONFIG;
    }
    return XSEG_OK;
}

static xseg_status refuse_value(struct parser *parser, enum xseg_config_key_id key,
                                const char *expected)
{
    XSEG_ASSERT(key < XSEG_CONFIG_KEYS && (parser->named >> key & 1) != 0);
    parser->row = &xseg_config_table[key];
    return refuse(parser, &parser->value[key], expected);
}

/* Refuse a key of the string whose value contradicts that of another key, which is in MiB. */
static xseg_status refuse_together(struct parser *parser, enum xseg_config_key_id key,
                                   const char *expected, uint64_t bytes)
{
    (void)refuse_value(parser, key, expected);
    xseg_fail_append(", which is %" PRIu64, bytes / XSEG_MIB);
    return XSEG_ERR_CONFIG;
}

/* Check that the value of one key is not above that of another; both are in bytes. */
static xseg_status check_order(struct parser *parser, enum xseg_config_key_id low,
                               uint64_t low_bytes, enum xseg_config_key_id high,
                               uint64_t high_bytes)
{
    char expected[64];
    const bool is_low = (parser->named >> low & 1) != 0;

    if (low_bytes <= high_bytes)
        return XSEG_OK;
    (void)snprintf(expected, sizeof(expected), is_low ? "at most %s" : "at least %s",
                   xseg_config_table[is_low ? high : low].name);
    return is_low ? refuse_together(parser, low, expected, high_bytes)
                  : refuse_together(parser, high, expected, low_bytes);
}

/* Check CONFIG-3: keep_mb <= soft_limit_mb <= hard_limit_mb. */
static xseg_status check_limits(struct parser *parser)
{
    const struct xseg_config *config = &parser->config;
    xseg_status status = check_order(parser, XSEG_CONFIG_KEEP, config->keep_bytes,
                                     XSEG_CONFIG_SOFT_LIMIT, config->soft_limit_bytes);

    if (status == XSEG_OK)
        status = check_order(parser, XSEG_CONFIG_KEEP, config->keep_bytes, XSEG_CONFIG_HARD_LIMIT,
                             config->hard_limit_bytes);
    if (status == XSEG_OK && config->soft_limit_bytes != UINT64_MAX)
        status = check_order(parser, XSEG_CONFIG_SOFT_LIMIT, config->soft_limit_bytes,
                             XSEG_CONFIG_HARD_LIMIT, config->hard_limit_bytes);
    return status;
}

/* Check that the keys fit each other: CONFIG-1, CONFIG-2 and CONFIG-3. */
static xseg_status check_together(struct parser *parser)
{
    const struct xseg_config *config = &parser->config;
    const unsigned large = (unsigned)(config->large_segment_bytes / XSEG_MIB);

    if (config->large_segment_bytes > config->max_split_bytes) {
        (void)refuse_value(parser, XSEG_CONFIG_LARGE_SEGMENT_SIZE, "at most max_split_size_mb");
        xseg_fail_append(", which is %u", (unsigned)(config->max_split_bytes / XSEG_MIB));
        return XSEG_ERR_CONFIG;
    }
    if (!config->expandable_segments || large % 2 == 0)
        return check_limits(parser);
    if ((parser->named >> XSEG_CONFIG_LARGE_SEGMENT_SIZE & 1) != 0)
        return refuse_value(
            parser, XSEG_CONFIG_LARGE_SEGMENT_SIZE,
            "an even number, because expandable_segments is True and page sizes are "
            "multiples of 2 MiB");
    (void)refuse_value(
        parser, XSEG_CONFIG_EXPANDABLE_SEGMENTS,
        "False, because page sizes are multiples of 2 MiB and large_segment_size_mb is");
    xseg_fail_append(" %u", large);
    return XSEG_ERR_CONFIG;
}

xseg_status xseg_config_parse(struct xseg_config *config, const char *text, uint64_t *named)
{
    struct parser parser = {.text = text, .config = *config, .ignored = XSEG_CONFIG_IGNORED};

    XSEG_ASSERT(text != NULL);
    if (read_entries(&parser, true) != XSEG_OK || read_entries(&parser, false) != XSEG_OK ||
        check_together(&parser) != XSEG_OK)
        return XSEG_ERR_CONFIG;
    XSEG_ASSERT(parser.config.large_segment_bytes <= parser.config.max_split_bytes);
    *config = parser.config;
    xseg_config_sum_up(config);
    if (named != NULL)
        *named = parser.named;
    return XSEG_OK;
}

xseg_status xseg_config_load(struct xseg_config *config, const char *argument, const char **source,
                             uint64_t *named)
{
    static const char *const variable[] = {
        "XSEG_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    };
    const char *from = argument != NULL ? "argument" : "default", *text = argument;
    struct xseg_config made;
    bool is_for_pytorch = false;

    XSEG_ASSERT(config != NULL && source != NULL);
    for (unsigned i = 0; text == NULL && i < XSEG_COUNT_OF(variable); i++)
        if ((text = secure_getenv(variable[i])) != NULL) {
            from = variable[i];
            is_for_pytorch = i > 0;
        }
    xseg_config_init(&made);
    /* A string written for PyTorch has PyTorch's default: expandable segments are off. */
    made.expandable_segments = !is_for_pytorch;
    if (xseg_config_parse(&made, text != NULL ? text : "", named) != XSEG_OK) {
        xseg_fail_append(" (source: %s)", from);
        return XSEG_ERR_CONFIG;
    }
    *config = made;
    *source = from;
    return XSEG_OK;
}

void xseg_config_sum_up(struct xseg_config *config)
{
    config->decays = config->idle_ms >= 0 || config->soft_limit_bytes != UINT64_MAX ||
                     config->device_free_min_bytes != 0 || config->soft_by_device;
    config->decays_on_calls = config->decays && !xseg_config_has_thread(config);
    config->watches_frees = config->debug_fill;
    config->follows_calls = config->decays_on_calls || config->traced;
    config->ends_with_work = config->follows_calls || config->publish;
    config->notes_blocks =
        config->traced || config->block_user || config->history != XSEG_HISTORY_NOTHING;
    config->has_fast_frees =
        !config->watches_frees && !config->follows_calls && !config->notes_blocks;
    config->has_fast_allocs = !config->follows_calls && !config->debug_fill &&
                              !config->unmap_on_free && !config->guard_page &&
                              !(config->garbage_collection_threshold > 0 &&
                                (config->memory_fraction < 1.0 || config->fraction_by_device));
    for (unsigned i = 0; i < XSEG_CONFIG_INTERVALS; i++)
        config->has_fast_allocs = config->has_fast_allocs && config->roundup_divisions[i] <= 1;
    XSEG_ASSERT(!config->decays_on_calls || config->decays);
    XSEG_ASSERT(!config->has_fast_frees || (!config->follows_calls && !config->watches_frees));
    XSEG_ASSERT(!config->has_fast_allocs || !config->follows_calls);
    XSEG_ASSERT(!config->has_fast_frees || !config->notes_blocks);
}
