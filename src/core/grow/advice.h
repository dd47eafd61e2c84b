/* SPDX-License-Identifier: MIT */
/*
 * Advice: a change that would have helped a request that was refused.  No other advice is given.
 *
 * Locking: GROWTH is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_ADVICE_H
#define XSEG_CORE_ADVICE_H

#include "src/core/grow/account.h"

/* Add the first advice that applies, such as "; raise hard_limit_mb to 220 or more"; nothing if none does. */
void xseg_advice_add(struct xseg_text *text, const struct xseg_arena *arena,
                     const struct xseg_need *need, const struct xseg_account *account,
                     bool rejected);

#endif
