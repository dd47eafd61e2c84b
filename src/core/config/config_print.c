/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_print.h"
#include "src/core/config/config_names.h"

#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/core/config/config_table.h"

/* Print the shortest decimal number that is read as the same value, with a point in any locale. */
static void print_real(double value, struct xseg_strbuf *text)
{
    char buffer[40];
    const locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const locale_t before = uselocale(locale);

    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(buffer, sizeof(buffer), "%.*g", digits, value);
        if (strtod(buffer, NULL) == value)
            break;
    }
    XSEG_ASSERT(strtod(buffer, NULL) == value);
    (void)uselocale(before);
    if (locale != (locale_t)0)
        freelocale(locale);
    xseg_strbuf_printf(text, "%s", buffer);
}

/* Print `[start:divisions,...,>:divisions]`, without intervals that the first entry and `>` fill
 * in. */
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

static bool print_span(const struct xseg_config_reserve *span, struct xseg_strbuf *text)
{
    if (span->amount <= 0)
        return false;
    print_real(span->amount, text);
    xseg_strbuf_printf(text, "%s", span->in_gib ? "G" : "");
    return true;
}

static bool print_bounded_real(const struct xseg_config_row *row, double value,
                               struct xseg_strbuf *text)
{
    if (row->is_open && value <= row->low)
        return false;
    print_real(value, text);
    return true;
}

static void print_actions(uint32_t set, struct xseg_strbuf *text)
{
    const char *mark = "";

    xseg_strbuf_printf(text, "[");
    for (unsigned action = 0; action < XSEG_HISTORY_ACTIONS; action++)
        if ((set >> action & 1) != 0) {
            xseg_strbuf_printf(text, "%s%s", mark, xseg_config_actions[action]);
            mark = ",";
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
    case XSEG_CONFIG_SPAN:
        return print_span(member, text);
    case XSEG_CONFIG_PATH:
        xseg_strbuf_printf(text, "%s", (const char *)member);
        return *(const char *)member != '\0';
    }
    return false;
}

void xseg_config_print(const struct xseg_config *config, struct xseg_strbuf *text)
{
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        char value[320];
        struct xseg_strbuf one;

        xseg_strbuf_init(&one, value, sizeof(value));
        if (xseg_config_print_value(config, (enum xseg_config_key_id)key, &one))
            xseg_strbuf_printf(text, "%s%s:%s", key == 0 ? "" : ",", xseg_config_table[key].name,
                               value);
    }
}
