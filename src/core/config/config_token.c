/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_token.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_separator(char c)
{
    return c == ',' || c == ':' || c == '[' || c == ']';
}

struct xseg_config_token xseg_config_token_next(const char *text)
{
    size_t length = 0;

    while (is_blank(*text))
        text++;
    if (is_separator(*text))
        length = 1;
    else
        while (text[length] != '\0' && !is_separator(text[length]) && !is_blank(text[length]))
            length++;
    return (struct xseg_config_token){text, length};
}

bool xseg_config_token_is_word(const struct xseg_config_token *token)
{
    return token->length > 0 && !is_separator(*token->at);
}

bool xseg_config_token_is_mark(const struct xseg_config_token *token, char mark)
{
    return token->length == 1 && *token->at == mark;
}

bool xseg_config_token_is_text(const struct xseg_config_token *token, const char *text)
{
    return text != NULL && strlen(text) == token->length &&
           memcmp(token->at, text, token->length) == 0;
}

bool xseg_config_token_whole(const struct xseg_config_token *token, uint64_t *out)
{
    uint64_t value = 0;

    for (size_t i = 0; i < token->length; i++) {
        if (token->at[i] < '0' || token->at[i] > '9')
            return false;
        const unsigned digit = (unsigned)(token->at[i] - '0');
        value = value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : value * 10 + digit;
    }
    *out = value;
    return token->length > 0;
}

/* How many decimal digits stand at `text`. */
static size_t count_digits(const char *text)
{
    size_t count = 0;

    while (text[count] >= '0' && text[count] <= '9')
        count++;
    return count;
}

/* Whether a number, up to its exponent, has another digit than 0. */
static bool has_nonzero_digit(const char *text)
{
    text += strspn(text, "0.");
    return *text >= '1' && *text <= '9';
}

/* The grammar is checked here because strtod also takes signs, hexadecimal numbers and words. */
bool xseg_config_token_real(const struct xseg_config_token *token, double *out)
{
    const char *at = token->at;
    size_t digits = count_digits(at);

    at += digits;
    if (*at == '.') {
        const size_t behind = count_digits(++at);
        at += behind;
        digits += behind;
    }
    if (digits > 0 && (*at == 'e' || *at == 'E')) {
        at += at[1] == '+' || at[1] == '-' ? 2 : 1;
        digits = count_digits(at);
        at += digits;
    }
    const locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (digits == 0 || at != token->at + token->length || locale == (locale_t)0)
        return false;
    *out = strtod_l(token->at, NULL, locale);
    freelocale(locale);
    /* A number that is too small for a double is not 0. */
    return isfinite(*out) && (*out > 0 || !has_nonzero_digit(token->at));
}
