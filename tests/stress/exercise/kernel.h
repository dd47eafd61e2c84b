/* SPDX-License-Identifier: MIT */
/* Kernels write or compare words at sampled offsets of a block, in stream order.  The offsets are all words of a small
 * block, and multiples of 64 KiB of the address otherwise, so blocks that overlap by this much share a word.  A kernel
 * touches the whole block, so the strict simulator ends the process if one of its pages is unmapped.  With
 * ThreadSanitizer there are no contents, and only the touches remain. */
#ifndef XSEG_TESTS_EXERCISE_KERNEL_H
#define XSEG_TESTS_EXERCISE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/support/env.h"

enum kernel_kind { KERNEL_WRITE, KERNEL_READ, KERNEL_ZERO };

/* The memory that a kernel uses. */
struct kernel {
    enum kernel_kind kind;
    char *ptr;
    const char *like; /* the address of the block; ptr is an alias of its memory, or equal */
    size_t bytes;
    uint64_t number; /* of the block */
};

/* Queue the kernel on a stream, after work of some duration. */
void kernel_launch(const struct kernel *kernel, int device, xseg_stream stream,
                   uint64_t nanoseconds);

uint64_t kernel_count(void);

#endif
