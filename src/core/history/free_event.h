/* SPDX-License-Identifier: MIT */
/*
 * The last free of an address, for texts: who freed a block that is freed twice, or was written to after its free.
 *
 * Locking: HISTORY is taken inside.  For a description no lock is held, since the user's hook names its frames.
 */
#ifndef XSEG_CORE_HISTORY_FREE_EVENT_H
#define XSEG_CORE_HISTORY_FREE_EVENT_H

#include "src/base/string_util.h"
#include "src/core/history/history.h"

/* Find the last free that is remembered of a block which contains an address. */
bool xseg_free_event_find(struct xseg_history *history, uint64_t address,
                          struct xseg_history_event *out);

/*
 * Describe when, by which thread and from where an address was last freed; `lead` is printed first.
 *
 * Returns: false, and nothing is written, if no such free is remembered
 */
bool xseg_free_event_describe(struct xseg_history *history, uint64_t address, const char *lead,
                              struct xseg_strbuf *text);

#endif
