/* SPDX-License-Identifier: MIT */
/*
 * Log lines about the library and the process, written as an allocator opens: each once per process, so that
 * a program that opens many allocators is not flooded.
 */
#ifndef XSEG_CORE_OPENED_H
#define XSEG_CORE_OPENED_H

#include "src/base/log.h"

/* Write the log lines.  No lock is held, as for any logging. */
void xseg_opened_log(const struct xseg_log *log);

#endif
