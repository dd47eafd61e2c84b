/* SPDX-License-Identifier: MIT */
/*
 * Log lines about the library and the process, written as an allocator opens or is configured: each once per process, so
 * that a program that opens many allocators is not flooded.
 */
#ifndef XSEG_CORE_OPENED_H
#define XSEG_CORE_OPENED_H

#include <stdint.h>

#include "src/base/error.h"

/* Write the log lines.  No lock is held, as for any logging. */
void xseg_opened_log(const struct xseg_log *log);

/* Write one if the settings take stacks (store.h) and libunwind is not there.  No lock is held: that opens a library. */
void xseg_opened_log_stacks(const struct xseg_log *log, uint64_t settings);

#endif
