/* SPDX-License-Identifier: MIT */
/* Describing the block at an address. */
#ifndef XSEG_CORE_ALLOCATOR_DESCRIBE_H
#define XSEG_CORE_ALLOCATOR_DESCRIBE_H

#include "src/core/device/allocator.h"

struct xseg_part;

/* Fill in the description of a block, but for struct_size.  Its arena is locked. */
void xseg_allocator_describe_address(const struct xseg_part *part, uint64_t now,
                                     struct xseg_block_info *info);

/* Describe the block at an address: serves xseg_block_query() of the public header. */
xseg_status xseg_allocator_describe(struct xseg_allocator *allocator, const void *pointer,
                                    struct xseg_block_info *out);

#endif
