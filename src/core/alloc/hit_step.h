/* SPDX-License-Identifier: MIT */
/*
 * A step of the hit path (hit_alloc.h, hit_free.h): a function that other steps call last.
 *
 * Compilers make such a call a jump, so no step saves registers for another.  Each step begins a cache line:
 * otherwise the places that linking gives the steps change the time of traces by 5 %.
 */
#ifndef XSEG_CORE_HIT_STEP_H
#define XSEG_CORE_HIT_STEP_H

#include "xseg/status.h"

#define XSEG_HIT_STEP static __attribute__((noinline, aligned(64))) xseg_status

#endif
