/* SPDX-License-Identifier: MIT */
/* Whether an emulator stands before the kernel, such as qemu-user: it says that it took any advice of madvise(), limits no
 * memory, and cannot execute another program of its kind. */
#ifndef TESTS_SUPPORT_EMULATED_H
#define TESTS_SUPPORT_EMULATED_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>

/* Linux knows no advice of that number. */
static inline bool is_emulated(void)
{
    return madvise(NULL, 0, -1) == 0;
}

/* For cases that can show nothing there. */
static inline bool is_emulated_and_said(const char *why)
{
    if (is_emulated())
        (void)printf("# in an emulator %s: nothing was tried\n", why);
    return is_emulated();
}

#endif
