/* SPDX-License-Identifier: MIT */
/*
 * A stack as a text names it: from the caller of the library on.
 *
 * Locking: none.
 */
#ifndef XSEG_CORE_HISTORY_STACK_TEXT_H
#define XSEG_CORE_HISTORY_STACK_TEXT_H

#include "src/base/text.h"
#include "src/core/history/store.h"

/*
 * Print up to `most` frames of a stack, the innermost first, without those of the library itself; `lead` comes before
 * them.  Nothing is printed of a stack that is not known.
 */
void xseg_stack_text_add(struct xseg_history_store *store, uint32_t stack, unsigned most,
                         const char *lead, struct xseg_text *text);

#endif
