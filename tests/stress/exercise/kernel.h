/* SPDX-License-Identifier: MIT */
/* Kernels write or compare words at sampled offsets of a block, in stream order.  The samples are a word of each 512 bytes
 * in the first 16 KiB, words at addresses that are multiples of 64 KiB, and the last word; so blocks that overlap by 64 KiB
 * share a sample.  A kernel accesses the whole block, so the strict simulator ends the process if one of its pages is
 * unmapped.  With ThreadSanitizer there are no contents, and a kernel only accesses the block. */
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
    const char *block_address; /* in the exporter; ptr is equal, or an imported mapping */
    size_t bytes;
    uint64_t number; /* of the block */
};

/* Queue the kernel on a stream, after work of some duration. */
void kernel_launch(const struct kernel *kernel, int device, xseg_stream stream,
                   uint64_t nanoseconds);

uint64_t kernel_count(void);

#endif
