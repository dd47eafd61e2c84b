/* SPDX-License-Identifier: MIT */
/* mmap() and mprotect() that fail.  The linker redirects calls of the program to this file (--wrap). */
#ifndef XSEG_TESTS_FAILING_MEMORY_H
#define XSEG_TESTS_FAILING_MEMORY_H

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "tests/support/wrapped.h"

/* Calls that succeed before all later ones fail; negative: none fails. */
static int memory_calls_until_failure = -1;

WRAPPED(void *, mmap, void *address, size_t bytes, int protection, int flags, int file,
        off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
WRAPPED(int, mprotect, void *address, size_t bytes, int protection);

static inline bool memory_call_fails(void)
{
    if (memory_calls_until_failure < 0 || memory_calls_until_failure-- > 0)
        return false;
    memory_calls_until_failure = 0;
    errno = ENOMEM;
    return true;
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return memory_call_fails() ? MAP_FAILED
                               : __real_mmap(address, bytes, protection, flags, file, offset);
}

/* The name in the C library with 64-bit file offsets. */
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return __wrap_mmap(address, bytes, protection, flags, file, offset);
}

int __wrap_mprotect(void *address, size_t bytes, int protection)
{
    return memory_call_fails() ? -1 : __real_mprotect(address, bytes, protection);
}

#endif
