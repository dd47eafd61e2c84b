/* SPDX-License-Identifier: MIT */
/* A trim of whole classic segments for one request. */
#ifndef XSEG_CORE_TRIM_OVERSIZE_H
#define XSEG_CORE_TRIM_OVERSIZE_H

#include "src/core/reclaim/trim.h"

/*
 * Free whole classic segments of an arena that are cached, each of `least` bytes or more: the smallest one
 * with `wanted` bytes; else the largest ones, until they have `wanted` bytes together.  GROWTH is held, no
 * other lock.  cuMemFree waits for the device by itself.
 *
 * Returns: whether `wanted` bytes went; else no memory has
 */
bool xseg_trim_oversize(struct xseg_arena *arena, uint64_t least, uint64_t wanted);

#endif
