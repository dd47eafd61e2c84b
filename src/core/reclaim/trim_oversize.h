/* SPDX-License-Identifier: MIT */
/* Trim of whole classic segments for one request. */
#ifndef XSEG_CORE_TRIM_OVERSIZE_H
#define XSEG_CORE_TRIM_OVERSIZE_H

#include "src/core/reclaim/trim.h"

/*
 * Free whole classic segments of an arena, each of `least` bytes or more and cached: the smallest that
 * has `wanted` bytes; else the largest ones, until they have them together.  cuMemFree waits
 * for the device by itself.
 *
 * Returns: whether `wanted` bytes went; else nothing did
 */
bool xseg_trim_oversize(struct xseg_arena *arena, uint64_t least, uint64_t wanted);

#endif
