/* SPDX-License-Identifier: MIT */
/*
 * Advice: the changes of which each would have served a request that failed.  No other advice is given.
 *
 * Locking: the device memory lock is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_OOM_ADVICE_H
#define XSEG_CORE_OOM_ADVICE_H

#include "src/core/grow/oom_account.h"

/* Add every change that would have been enough by itself, such as "; raise hard_limit_mb to 220 or more"; nothing if there is none. */
void xseg_oom_advice_add(struct xseg_strbuf *text, const struct xseg_arena *arena,
                         const struct xseg_alloc_params *params,
                         const struct xseg_oom_account *account, bool rejected);

#endif
