/* SPDX-License-Identifier: MIT */
/*
 * Ranges: stretches of time of a thread that NVIDIA's tools show, by NVTX 3.
 *
 * A tool that wants them loads itself by the variable NVTX_INJECTION64_PATH.  Without a tool, and in a build without NVTX,
 * a range costs a look at one variable.  In a set-user-ID process there are none, since NVTX would load whatever library
 * the variable names.
 *
 * Locking: none; ranges of a thread lie within each other.  A tool hears of them under the locks that the thread holds, and
 * must not call the library.
 */
#ifndef XSEG_BASE_RANGE_H
#define XSEG_BASE_RANGE_H

#include <stdint.h>

/* Let a tool be loaded, if one is named; to be called before any range.  No lock is held. */
void xseg_range_start(void);

/* Begin a range with a name and a number of bytes, which the tool shows; and end the one that began last. */
void xseg_range_begin(const char *name, uint64_t bytes);
void xseg_range_end(void);

#endif
