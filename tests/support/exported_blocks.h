/* SPDX-License-Identifier: MIT */
/* Exported blocks: contents and release. */
#ifndef XSEG_TESTS_EXPORTED_BLOCKS_H
#define XSEG_TESTS_EXPORTED_BLOCKS_H

#include "tests/support/env.h"
#include "tests/support/exported_handles.h"

/* Close the last export of a block, and free the block. */
static inline void export_close_and_free(struct xseg_allocator *allocator, void *block)
{
    assert_ok(xseg_export_close(allocator, block));
    env_free(allocator, block);
}

/* Write and check bytes of device memory: one in each 64 KiB, and the last one. */
static inline void fill(void *ptr, size_t bytes, unsigned char value)
{
    for (size_t at = 0; at < bytes; at += 64 * KIB)
        ((volatile unsigned char *)ptr)[at] = value;
    ((volatile unsigned char *)ptr)[bytes - 1] = value;
}

static inline bool is_filled(const void *ptr, size_t bytes, unsigned char value)
{
    for (size_t at = 0; at < bytes; at += 64 * KIB)
        if (((const volatile unsigned char *)ptr)[at] != value)
            return false;
    return ((const volatile unsigned char *)ptr)[bytes - 1] == value;
}

#endif
