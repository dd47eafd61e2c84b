/* SPDX-License-Identifier: MIT */
/*
 * The tokens of a configuration string, and the numbers among them.
 */
#ifndef XSEG_CORE_CONFIG_TOKEN_H
#define XSEG_CORE_CONFIG_TOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A token: a separator, or a run of other characters; at the end of the string its length is 0. */
struct xseg_config_token {
    const char *at;
    size_t length;
};

/* The token that begins at a text, blanks before it aside. */
struct xseg_config_token xseg_config_token_next(const char *text);

/* Whether a token is no separator, a certain separator, a certain text; no token is NULL. */
bool xseg_config_token_is_word(const struct xseg_config_token *token);
bool xseg_config_token_is_mark(const struct xseg_config_token *token, char mark);
bool xseg_config_token_is_text(const struct xseg_config_token *token, const char *text);

/* Read a token of digits; a number beyond 64 bits is read as UINT64_MAX. */
bool xseg_config_token_whole(const struct xseg_config_token *token, uint64_t *out);

/* Read a number such as 1, 0.5, .5 or 5e-1, with a point in any locale. */
bool xseg_config_token_real(const struct xseg_config_token *token, double *out);

#endif
