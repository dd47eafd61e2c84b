/* SPDX-License-Identifier: MIT */
/*
 * What is logged as an allocator opens, about the library and the process rather than the allocator:
 * each once per process, so that a program that opens many is not flooded.
 */
#ifndef XSEG_CORE_OPENED_H
#define XSEG_CORE_OPENED_H

#include "src/base/log.h"

/* Call without a lock, as any logging. */
void xseg_opened_log(const struct xseg_log *log);

#endif
