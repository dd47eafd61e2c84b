/* SPDX-License-Identifier: MIT */
/* Detection of an emulator such as qemu-user, whose madvise() accepts any advice, which enforces no memory limits, and
 * which cannot execute another program for the same CPU. */
#ifndef XSEG_TESTS_EMULATOR_H
#define XSEG_TESTS_EMULATOR_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>

/* Linux rejects this advice. */
static inline bool is_emulated(void)
{
    return madvise(NULL, 0, -1) == 0;
}

/* Skip a test whose result is meaningless in an emulator. */
static inline bool skip_in_emulator(const char *reason)
{
    if (is_emulated())
        (void)printf("# skipped: in an emulator %s\n", reason);
    return is_emulated();
}

#endif
