/* SPDX-License-Identifier: MIT */
/*
 * A step of the hit path (hit_alloc.h, hit_free.h): a function that another one ends in a call of.
 *
 * What the compiler makes of such a call is a jump, so none saves registers for another.  Each begins a cache
 * line: where linking puts them moves traces by 5 % else.
 */
#ifndef XSEG_CORE_HIT_STEP_H
#define XSEG_CORE_HIT_STEP_H

#include "xseg/status.h"

#define XSEG_HIT_STEP static __attribute__((noinline, aligned(64))) xseg_status

#endif
