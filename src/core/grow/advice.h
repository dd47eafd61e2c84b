/* SPDX-License-Identifier: MIT */
/*
 * Advice: the changes of which each would have served a request that failed.  No other advice is given.
 *
 * Locking: GROWTH is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_ADVICE_H
#define XSEG_CORE_ADVICE_H

#include "src/core/grow/account.h"

/* Add every change that would have been enough by itself, such as "; raise hard_limit_mb to 220 or more"; nothing if there is none. */
void xseg_advice_add(struct xseg_text *text, const struct xseg_arena *arena,
                     const struct xseg_need *need, const struct xseg_account *account,
                     bool rejected);

#endif
