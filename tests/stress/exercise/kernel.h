/* SPDX-License-Identifier: MIT */
/*
 * Kernels: work that writes or reads a block, in the order of its stream.
 *
 * A kernel writes words at sampled places, of a block's number and of where they lie in it, or compares
 * them, or expects zeros.  Places are multiples of 64 KiB of the address, and all of a small block: two
 * blocks that overlap by so much share one.  It touches all of the block, so that the strict simulator
 * ends the process if a page goes beneath it.
 *
 * Where memory has no bytes (under ThreadSanitizer) only the touches are left.
 */
#ifndef XSEG_TESTS_EXERCISE_KERNEL_H
#define XSEG_TESTS_EXERCISE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/xseg.h"

/* ThreadSanitizer bears no memory at most addresses of the simulated machine. */
#if defined(__SANITIZE_THREAD__)
#define KERNEL_BYTES false
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KERNEL_BYTES false
#endif
#endif
#ifndef KERNEL_BYTES
#define KERNEL_BYTES true
#endif

enum kernel_kind { KERNEL_WRITE, KERNEL_READ, KERNEL_ZERO };

/* What a kernel works on. */
struct kernel {
    enum kernel_kind kind;
    char *ptr;
    const char *like; /* the address of the block; ptr is another name of its memory, or the same */
    size_t bytes;
    uint64_t number; /* of the block */
};

/* Queue it on a stream, behind work that takes some time. */
void kernel_launch(const struct kernel *kernel, int device, xseg_stream stream,
                   uint64_t nanoseconds);

/* How many kernels have looked at contents so far. */
uint64_t kernel_count(void);

#endif
