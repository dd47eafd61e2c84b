/* SPDX-License-Identifier: MIT */
/* What is known of the block at an address. */
#ifndef XSEG_CORE_ALLOCATOR_DESCRIBE_H
#define XSEG_CORE_ALLOCATOR_DESCRIBE_H

#include "src/core/device/allocator.h"

struct xseg_part;

/* What is to be told of a block; all but struct_bytes.  Its arena is locked. */
void xseg_allocator_tell(const struct xseg_part *part, uint64_t now, struct xseg_block_info *info);

/* Describe the block at any address, as xseg_block() of the public header. */
xseg_status xseg_allocator_describe(struct xseg_allocator *allocator, const void *pointer,
                                    struct xseg_block_info *out);

#endif
