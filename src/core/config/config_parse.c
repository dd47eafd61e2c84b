/* SPDX-License-Identifier: MIT */
/*
 * The parser of configuration strings.
 *
 *     string   = [ entry { "," entry } [ "," ] ]
 *     entry    = key ":" ( value | "[" ... "]" )
 *
 * A token is a separator (one of `,:[]`) or a run of other characters; blanks separate tokens.  The
 * grammar of a value depends on the type of its key (config_table.h).
 *
 * The parser reads a string twice.  large_segment_size_mb is the minimum of other keys, independent
 * of its position in the string, so the first pass reads only that key and the second pass reads
 * all others.
 */
#include "src/core/config/config.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/config/config_table.h"

/* A token of the string.  At the end of the string its length is 0. */
struct token {
    const char *start;
    size_t length;
};

struct parser {
    const char *text; /* the whole string */
    const char *next; /* the end of the current token */
    struct token token;
    const struct xseg_config_row *row;    /* the current key; NULL: an ignored key */
    unsigned ignored;                     /* index of the ignored key */
    struct token value[XSEG_CONFIG_KEYS]; /* the last value of each named key */
    struct xseg_config config;
    uint64_t named;
};

_Static_assert(XSEG_CONFIG_KEYS + XSEG_CONFIG_IGNORED <= 64, "a set of keys is a uint64_t");

/* --- Tokens. --- */

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_separator(char c)
{
    return c == ',' || c == ':' || c == '[' || c == ']';
}

/* Return the first token of a string. */
static struct token scan_token(const char *text)
{
    size_t length = 0;

    while (is_blank(*text))
        text++;
    if (is_separator(*text))
        length = 1;
    else
        while (text[length] != '\0' && !is_separator(text[length]) && !is_blank(text[length]))
            length++;
    return (struct token){text, length};
}

static bool token_is_value(const struct token *token)
{
    return token->length > 0 && !is_separator(*token->start);
}

static bool token_is_separator(const struct token *token, char separator)
{
    return token->length == 1 && *token->start == separator;
}

static bool token_equals(const struct token *token, const char *text)
{
    return text != NULL && strlen(text) == token->length &&
           memcmp(token->start, text, token->length) == 0;
}

/* Convert a token of decimal digits.  A value above 64 bits is clamped to UINT64_MAX. */
static bool token_to_integer(const struct token *token, uint64_t *out)
{
    uint64_t value = 0;

    for (size_t i = 0; i < token->length; i++) {
        if (token->start[i] < '0' || token->start[i] > '9')
            return false;
        const unsigned digit = (unsigned)(token->start[i] - '0');
        value = value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : value * 10 + digit;
    }
    *out = value;
    return token->length > 0;
}

static size_t count_leading_digits(const char *text)
{
    size_t count = 0;

    while (text[count] >= '0' && text[count] <= '9')
        count++;
    return count;
}

/* Whether the digits of a number before its exponent are not all 0. */
static bool has_nonzero_digit(const char *text)
{
    text += strspn(text, "0.");
    return *text >= '1' && *text <= '9';
}

/* Convert a number such as 1, 0.5, .5 or 5e-1.  strtod() also accepts signs, hexadecimal numbers
 * and names such as "inf", so the grammar is checked here. */
static bool token_to_real(const struct token *token, double *out)
{
    const char *next = token->start;
    size_t digits = count_leading_digits(next);

    next += digits;
    if (*next == '.') {
        const size_t decimals = count_leading_digits(++next);
        next += decimals;
        digits += decimals;
    }
    if (digits > 0 && (*next == 'e' || *next == 'E')) {
        next += next[1] == '+' || next[1] == '-' ? 2 : 1;
        digits = count_leading_digits(next);
        next += digits;
    }
    const locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (digits == 0 || next != token->start + token->length || locale == (locale_t)0)
        return false;
    *out = strtod_l(token->start, NULL, locale);
    freelocale(locale);
    /* A number that underflows to 0 is rejected. */
    return isfinite(*out) && (*out > 0 || !has_nonzero_digit(token->start));
}

/* --- Values. --- */

static void read_token(struct parser *parser)
{
    XSEG_ASSERT(parser->next >= parser->text);
    parser->token = scan_token(parser->next);
    parser->next = parser->token.start + parser->token.length;
}

/* Set an error message that ends with a token and its column; the caller appends a hint. */
static void begin_syntax_error(const struct parser *parser, const struct token *token,
                               const char *problem, const char *key)
{
    char excerpt[48];
    const size_t excerpt_length =
        token->length < sizeof(excerpt) ? token->length : sizeof(excerpt) - 1;

    memcpy(excerpt, token->start, excerpt_length);
    excerpt[excerpt_length] = '\0';
    xseg_fail(XSEG_ERR_CONFIG, "%s%s", problem, key);
    xseg_fail_append(token->length > 0 ? ", '%s' at column %zu" : ", end of string%s at column %zu",
                     excerpt, (size_t)(token->start - parser->text) + 1);
}

static const char *current_key_name(const struct parser *parser)
{
    return parser->row != NULL ? parser->row->name : xseg_config_ignored[parser->ignored];
}

/* Fail with an error message such as
 * `invalid value of page_size, '20' at column 11; expected fixed, auto or small`. */
static xseg_status reject_value(const struct parser *parser, const struct token *token,
                                const char *expected)
{
    begin_syntax_error(parser, token, "invalid value of ", current_key_name(parser));
    xseg_fail_append("; expected %s", expected);
    return XSEG_ERR_CONFIG;
}

/* Read a separator, or fail with an error message such as
 * `syntax error after page_size, '=' at column 10; expected ':' between key and value`. */
static xseg_status expect_separator(struct parser *parser, char separator, const char *expected)
{
    if (!token_is_separator(&parser->token, separator)) {
        begin_syntax_error(parser, &parser->token, "syntax error after ", current_key_name(parser));
        xseg_fail_append("; expected %s", expected);
        return XSEG_ERR_CONFIG;
    }
    read_token(parser);
    return XSEG_OK;
}

static bool read_bool(const struct parser *parser, bool *out)
{
    *out = token_equals(&parser->token, "True");
    return *out || token_equals(&parser->token, "False");
}

static bool read_mib(const struct parser *parser, uint64_t *out)
{
    const struct xseg_config_row *row = parser->row;
    uint64_t mib;

    XSEG_ASSERT(row->type == XSEG_CONFIG_MIB);
    if (row->allows_minus_one && token_equals(&parser->token, "-1")) {
        *out = UINT64_MAX;
        return true;
    }
    if (row->accepts_unset && token_equals(&parser->token, row->unset_name)) {
        *out = UINT64_MAX;
        return true;
    }
    if (!token_to_integer(&parser->token, &mib) || mib < row->min)
        return false;
    if (row->max != 0 && mib > row->max)
        return false;
    if (mib > UINT64_MAX / XSEG_MIB && row->unset_name != NULL && !row->accepts_unset)
        *out = UINT64_MAX;
    else
        *out = xseg_min(mib, UINT64_MAX / XSEG_MIB) * XSEG_MIB;
    return !row->is_at_least_large || *out >= parser->config.large_segment_bytes;
}

static bool read_number(const struct parser *parser, uint32_t *out)
{
    uint64_t value;

    XSEG_ASSERT(parser->row->max <= UINT32_MAX);
    if (!token_to_integer(&parser->token, &value) || value < parser->row->min ||
        value > parser->row->max)
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool read_real(const struct parser *parser, double *out)
{
    const struct xseg_config_row *row = parser->row;

    if (row->excludes_ends && row->unset_name != NULL &&
        token_equals(&parser->token, row->unset_name)) {
        *out = row->real_min;
        return true;
    }
    if (!token_to_real(&parser->token, out) ||
        (*out > row->real_min && *out < row->real_min_nonzero))
        return false;
    return row->excludes_ends ? *out > row->real_min && *out < row->real_max
                              : *out >= row->real_min && *out <= row->real_max;
}

static bool read_choice(const struct parser *parser, uint32_t *out)
{
    for (uint32_t i = 0; i < XSEG_COUNT_OF(parser->row->choice); i++)
        if (token_equals(&parser->token, parser->row->choice[i])) {
            *out = i;
            return true;
        }
    return false;
}

static bool read_size(const struct token *token, struct xseg_config_reserve *out)
{
    struct token number = *token;

    out->in_gib = number.length > 0 && number.start[number.length - 1] == 'G';
    if (out->in_gib)
        number.length--;
    return token_to_real(&number, &out->amount) && out->amount > 0;
}

/* Read the number of divisions of an interval: 0, or a 32-bit power of two. */
static bool read_divisions(const struct token *token, uint32_t *out)
{
    uint64_t value;

    if (!token_to_integer(token, &value) || (value != 0 && !xseg_is_power_of_two(value)) ||
        value > UINT32_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

/* Read the start of an interval, which is a power of two in MiB, and convert it to an index. */
static bool read_interval_index(const struct token *token, unsigned *out)
{
    uint64_t start;

    if (!token_to_integer(token, &start) || !xseg_is_power_of_two(start))
        return false;
    *out = (unsigned)xseg_min(xseg_log2_floor(start), XSEG_CONFIG_INTERVALS - 1);
    return true;
}

struct division_list {
    uint32_t *divisions;
    unsigned last;  /* the interval of the last entry */
    bool has_entry; /* an entry was read */
    bool is_closed; /* the entry `>` was read */
};

/* Read one `start:divisions` of a list.  The first entry also sets all smaller intervals, and an
 * entry `>` sets all larger ones. */
static xseg_status read_interval_entry(struct parser *parser, struct division_list *list)
{
    unsigned first = 0, last = XSEG_CONFIG_INTERVALS - 1;
    uint32_t divisions;

    if (list->is_closed)
        return reject_value(parser, &parser->token, "']' after the interval '>'");
    if (token_is_separator(&parser->token, '>')) {
        if (!list->has_entry)
            return reject_value(parser, &parser->token, "the start of an interval before '>'");
        list->is_closed = true;
        first = list->last + 1;
    } else if (read_interval_index(&parser->token, &last)) {
        first = list->has_entry ? last : 0;
        list->last = last;
        list->has_entry = true;
    } else {
        return reject_value(parser, &parser->token,
                            "the start of an interval, which is a power of two of MiB, or '>'");
    }
    read_token(parser);
    if (expect_separator(parser, ':', "':' after the start of an interval") != XSEG_OK)
        return XSEG_ERR_CONFIG;
    if (!read_divisions(&parser->token, &divisions))
        return reject_value(parser, &parser->token, "0 or a power of two up to 2147483648");
    XSEG_ASSERT(last < XSEG_CONFIG_INTERVALS && list->last < XSEG_CONFIG_INTERVALS);
    for (unsigned i = first; i <= last; i++)
        list->divisions[i] = divisions;
    read_token(parser);
    return XSEG_OK;
}

/* Read `[start:divisions,...]`.  Intervals between the listed ones have no divisions. */
static xseg_status read_division_list(struct parser *parser, uint32_t *divisions)
{
    struct division_list list = {.divisions = divisions};

    memset(divisions, 0, XSEG_CONFIG_INTERVALS * sizeof(*divisions));
    do {
        read_token(parser); /* past '[' or ',' */
        if (read_interval_entry(parser, &list) != XSEG_OK)
            return XSEG_ERR_CONFIG;
    } while (token_is_separator(&parser->token, ','));
    return expect_separator(parser, ']', "',' or ']' after an interval");
}

static bool read_action(const struct token *token, uint32_t *set)
{
    for (unsigned action = 0; action < XSEG_HISTORY_ACTIONS; action++)
        if (token_equals(token, xseg_config_actions[action])) {
            *set |= 1u << action;
            return true;
        }
    return false;
}

/* Read `[action,...]` or `[]`. */
static xseg_status read_action_list(struct parser *parser, uint32_t *out)
{
    uint32_t set = 0;

    if (!token_is_separator(&parser->token, '['))
        return reject_value(parser, &parser->token, parser->row->accepted);
    read_token(parser);
    while (!token_is_separator(&parser->token, ']')) {
        if (set != 0 && expect_separator(parser, ',', "',' or ']' after an action") != XSEG_OK)
            return XSEG_ERR_CONFIG;
        if (!read_action(&parser->token, &set))
            return reject_value(parser, &parser->token,
                                "the name of an action, such as free_completed");
        read_token(parser);
    }
    read_token(parser);
    *out = set;
    return XSEG_OK;
}

/* Read an integer, or -1 for never. */
static bool read_period(const struct parser *parser, int64_t *out)
{
    uint64_t value = 0;
    const bool is_never = token_equals(&parser->token, "-1");

    XSEG_ASSERT(parser->row->type == XSEG_CONFIG_PERIOD && parser->row->max <= INT64_MAX);
    if (!is_never && (!token_to_integer(&parser->token, &value) || value > parser->row->max))
        return false;
    *out = is_never ? -1 : (int64_t)value;
    return true;
}

static bool read_path(const struct parser *parser, char *out)
{
    const struct token *token = &parser->token;
    const bool is_unset = token_equals(token, parser->row->unset_name);

    if (!token_is_value(token) || token->length >= XSEG_CONFIG_PATH_BYTES)
        return false;
    memset(out, 0, XSEG_CONFIG_PATH_BYTES);
    if (!is_unset)
        memcpy(out, token->start, token->length);
    return true;
}

/* Read a value that is not a list into the member of the key. */
static bool read_scalar(const struct parser *parser, void *member)
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
        return read_real(parser, member);
    case XSEG_CONFIG_CHOICE:
        return read_choice(parser, member);
    case XSEG_CONFIG_SIZE:
        return read_size(&parser->token, member);
    case XSEG_CONFIG_DIVISIONS:
    case XSEG_CONFIG_ACTIONS:
        break;
    case XSEG_CONFIG_PATH:
        return read_path(parser, member);
    }
    return false;
}

/* Read one number of divisions for all intervals. */
static bool read_uniform_divisions(const struct parser *parser, uint32_t *divisions)
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
    bool is_valid;

    if (row->type == XSEG_CONFIG_ACTIONS)
        return read_action_list(parser, member);
    if (row->type == XSEG_CONFIG_DIVISIONS && token_is_separator(&parser->token, '['))
        return read_division_list(parser, member);
    is_valid = row->type == XSEG_CONFIG_DIVISIONS ? read_uniform_divisions(parser, member)
                                                  : read_scalar(parser, member);
    if (!is_valid) {
        (void)reject_value(parser, &parser->token, row->accepted);
        if (row->is_at_least_large)
            xseg_fail_append(", which is %u",
                             (unsigned)(parser->config.large_segment_bytes / XSEG_MIB));
        return XSEG_ERR_CONFIG;
    }
    read_token(parser);
    return XSEG_OK;
}

/* --- Entries. --- */

/* Skip a value that the other pass reads, or the value of an ignored key. */
static xseg_status skip_value(struct parser *parser)
{
    const bool is_list = token_is_separator(&parser->token, '[');

    if (!is_list && !token_is_value(&parser->token))
        return reject_value(parser, &parser->token,
                            parser->row != NULL ? parser->row->accepted : "a value");
    while (is_list && !token_is_separator(&parser->token, ']')) {
        if (parser->token.length == 0)
            return expect_separator(parser, ']', "']'");
        read_token(parser);
    }
    read_token(parser);
    return XSEG_OK;
}

/* Skip the value of an ignored key, and copy it into the configuration without a conversion. */
static xseg_status read_ignored_value(struct parser *parser)
{
    char *const value = parser->config.ignored[parser->ignored];
    const char *const start = parser->token.start;
    const char *end = start;

    XSEG_ASSERT(parser->ignored < XSEG_CONFIG_IGNORED);
    if (token_is_separator(&parser->token, '[') && strchr(start, ']') != NULL)
        end = strchr(start, ']') + 1;
    else
        end += parser->token.length;
    if (skip_value(parser) != XSEG_OK)
        return XSEG_ERR_CONFIG;
    parser->named |= (uint64_t)1 << (XSEG_CONFIG_KEYS + parser->ignored);
    memset(value, 0, XSEG_CONFIG_IGNORED_BYTES);
    if ((size_t)(end - start) < XSEG_CONFIG_IGNORED_BYTES)
        memcpy(value, start, (size_t)(end - start));
    return XSEG_OK;
}

/* Read the name of a key.  A name also ends at '=', so that `key=value` is reported as a missing
 * ':' and not as an unknown key. */
static xseg_status read_key(struct parser *parser)
{
    const struct token *token = &parser->token;
    const char *const equals =
        token_is_value(token) ? memchr(token->start, '=', token->length) : NULL;

    if (equals != NULL && equals > token->start) {
        parser->token.length = (size_t)(equals - token->start);
        parser->next = equals;
    }
    parser->row = xseg_config_find_key(token->start, token->length);
    parser->ignored = xseg_config_find_ignored(token->start, token->length);
    if (parser->row == NULL && parser->ignored == XSEG_CONFIG_IGNORED) {
        begin_syntax_error(parser, token, "unknown key", "");
        xseg_config_suggest_key(token->start, token->length);
        return XSEG_ERR_CONFIG;
    }
    read_token(parser);
    if (token->length > 1 && *token->start == '=')
        parser->token.length = 1;
    return expect_separator(parser, ':', "':' between key and value");
}

/* Read one `key:value`, or skip the value if the other pass reads the key. */
static xseg_status read_entry(struct parser *parser, bool is_first_pass)
{
    if (read_key(parser) != XSEG_OK)
        return XSEG_ERR_CONFIG;
    if (parser->row == NULL)
        return read_ignored_value(parser);
    const unsigned key = (unsigned)(parser->row - xseg_config_table);

    parser->value[key] = parser->token;
    parser->named |= (uint64_t)1 << key;
    if ((key == XSEG_CONFIG_LARGE_SEGMENT_SIZE) != is_first_pass)
        return skip_value(parser);
    if (read_value(parser) != XSEG_OK)
        return XSEG_ERR_CONFIG;
    if (is_first_pass)
        parser->config.max_non_split_rounding_bytes = parser->config.large_segment_bytes;
    return XSEG_OK;
}

/* Read all entries of the string.  A comma may follow the last entry. */
static xseg_status read_entries(struct parser *parser, bool is_first_pass)
{
    parser->next = parser->text;
    read_token(parser);
    while (parser->token.length > 0) {
        if (read_entry(parser, is_first_pass) != XSEG_OK)
            return XSEG_ERR_CONFIG;
        if (parser->token.length > 0 &&
            expect_separator(parser, ',', "',' before the next key") != XSEG_OK)
            return XSEG_ERR_CONFIG;
    }
    return XSEG_OK;
}

/* --- Combinations of keys. --- */

static xseg_status reject_value_of_key(struct parser *parser, enum xseg_config_key_id key,
                                       const char *expected)
{
    XSEG_ASSERT(key < XSEG_CONFIG_KEYS && (parser->named >> key & 1) != 0);
    parser->row = &xseg_config_table[key];
    return reject_value(parser, &parser->value[key], expected);
}

/* Reject the value of a key that conflicts with the value of another key, which is a size. */
static xseg_status reject_conflicting_value(struct parser *parser, enum xseg_config_key_id key,
                                            const char *expected, uint64_t bytes)
{
    (void)reject_value_of_key(parser, key, expected);
    xseg_fail_append(", which is %" PRIu64, bytes / XSEG_MIB);
    return XSEG_ERR_CONFIG;
}

/* Check that the value of `low` is at most that of `high`.  The error message reports a key that
 * the string names. */
static xseg_status check_value_order(struct parser *parser, enum xseg_config_key_id low,
                                     uint64_t low_bytes, enum xseg_config_key_id high,
                                     uint64_t high_bytes)
{
    char expected[64];
    const bool reports_low = (parser->named >> low & 1) != 0;

    if (low_bytes <= high_bytes)
        return XSEG_OK;
    (void)snprintf(expected, sizeof(expected), reports_low ? "at most %s" : "at least %s",
                   xseg_config_table[reports_low ? high : low].name);
    return reports_low ? reject_conflicting_value(parser, low, expected, high_bytes)
                       : reject_conflicting_value(parser, high, expected, low_bytes);
}

/* Check CONFIG-3: keep_mb <= soft_limit_mb <= hard_limit_mb. */
static xseg_status check_limit_order(struct parser *parser)
{
    const struct xseg_config *config = &parser->config;
    xseg_status status = check_value_order(parser, XSEG_CONFIG_KEEP, config->keep_bytes,
                                           XSEG_CONFIG_SOFT_LIMIT, config->soft_limit_bytes);

    if (status == XSEG_OK)
        status = check_value_order(parser, XSEG_CONFIG_KEEP, config->keep_bytes,
                                   XSEG_CONFIG_HARD_LIMIT, config->hard_limit_bytes);
    if (status == XSEG_OK && config->soft_limit_bytes != UINT64_MAX)
        status = check_value_order(parser, XSEG_CONFIG_SOFT_LIMIT, config->soft_limit_bytes,
                                   XSEG_CONFIG_HARD_LIMIT, config->hard_limit_bytes);
    return status;
}

/* Check CONFIG-1, CONFIG-2 and CONFIG-3. */
static xseg_status check_key_combination(struct parser *parser)
{
    const struct xseg_config *config = &parser->config;
    const unsigned large = (unsigned)(config->large_segment_bytes / XSEG_MIB);

    if (config->large_segment_bytes > config->max_split_bytes) {
        (void)reject_value_of_key(parser, XSEG_CONFIG_LARGE_SEGMENT_SIZE,
                                  "at most max_split_size_mb");
        xseg_fail_append(", which is %u", (unsigned)(config->max_split_bytes / XSEG_MIB));
        return XSEG_ERR_CONFIG;
    }
    if (!config->expandable_segments || large % 2 == 0)
        return check_limit_order(parser);
    if ((parser->named >> XSEG_CONFIG_LARGE_SEGMENT_SIZE & 1) != 0)
        return reject_value_of_key(
            parser, XSEG_CONFIG_LARGE_SEGMENT_SIZE,
            "an even number, because expandable_segments is True and page sizes are "
            "multiples of 2 MiB");
    (void)reject_value_of_key(
        parser, XSEG_CONFIG_EXPANDABLE_SEGMENTS,
        "False, because page sizes are multiples of 2 MiB and large_segment_size_mb is");
    xseg_fail_append(" %u", large);
    return XSEG_ERR_CONFIG;
}

/* --- Entry points. --- */

xseg_status xseg_config_parse(struct xseg_config *config, const char *text, uint64_t *named)
{
    struct parser parser = {.text = text, .config = *config, .ignored = XSEG_CONFIG_IGNORED};

    XSEG_ASSERT(text != NULL);
    if (read_entries(&parser, true) != XSEG_OK || read_entries(&parser, false) != XSEG_OK ||
        check_key_combination(&parser) != XSEG_OK)
        return XSEG_ERR_CONFIG;
    XSEG_ASSERT(parser.config.large_segment_bytes <= parser.config.max_split_bytes);
    *config = parser.config;
    xseg_config_derive(config);
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
    const char *used_source = argument != NULL ? "argument" : "default", *text = argument;
    struct xseg_config loaded;
    bool is_for_pytorch = false;

    XSEG_ASSERT(config != NULL && source != NULL);
    for (unsigned i = 0; text == NULL && i < XSEG_COUNT_OF(variable); i++)
        if ((text = secure_getenv(variable[i])) != NULL) {
            used_source = variable[i];
            is_for_pytorch = i > 0;
        }
    xseg_config_init(&loaded);
    /* For a string in one of PyTorch's variables, PyTorch's default applies: expandable segments
     * are disabled. */
    loaded.expandable_segments = !is_for_pytorch;
    if (xseg_config_parse(&loaded, text != NULL ? text : "", named) != XSEG_OK) {
        xseg_fail_append(" (source: %s)", used_source);
        return XSEG_ERR_CONFIG;
    }
    *config = loaded;
    *source = used_source;
    return XSEG_OK;
}
