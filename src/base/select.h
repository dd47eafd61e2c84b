/* SPDX-License-Identifier: MIT */
/* Choose one of two addresses without a branch, where the choice cannot be predicted.  Compilers make
 * a branch of a `?:`, and take an array of both through memory. */
#ifndef XSEG_BASE_SELECT_H
#define XSEG_BASE_SELECT_H

#include <stdbool.h>
#include <stdint.h>

static inline void *xseg_select(bool cond, void *yes, void *no)
{
#if defined(__x86_64__)
    __asm__("testb %1, %1\n\tcmovnz %2, %0" : "+r"(no) : "q"(cond), "r"(yes) : "cc");
    return no;
#else
    const uintptr_t mask = -(uintptr_t)cond;

    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    return (void *)(((uintptr_t)yes & mask) | ((uintptr_t)no & ~mask));
#endif
}

#endif
