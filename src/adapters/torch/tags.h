/* SPDX-License-Identifier: MIT */
/* Tags: pools that a thread allocates from while it is within a region of the programme. */
#ifndef XSEG_ADAPTERS_TORCH_TAGS_H
#define XSEG_ADAPTERS_TORCH_TAGS_H

#include <cstdint>
#include <string>

#include "src/adapters/torch/interface.h"
#include "src/adapters/torch/pools.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

class Allocator;

/** Make the pool of a tag; it stays until the process ends. */
struct xseg_pool *make_tag(Allocator *allocator, DeviceIndex device, const std::string &name,
                           MempoolId_t id, Memory memory);

/** From now on, until leave_tag(), the calling thread allocates from the tag's pool on the tag's device. */
void enter_tag(Allocator *allocator, struct xseg_pool *pool);

/** Leave the tag that the calling thread entered last. */
void leave_tag(Allocator *allocator);

/**
 * From now on, until the next call or its end, the calling thread allocates from a tag's pool where it is in no tag by
 * enter_tag(); nullptr: from no tag's.
 */
void label_tag(Allocator *allocator, struct xseg_pool *pool);

/** When the calling thread entered the tag of a device that it is in, by next_order(); 0: it is in none. */
uint64_t tag_order(DeviceIndex device);

/** Between true and false the calling thread allocates as if it were in no tag. */
void suspend_tags(bool is_suspended);

} // namespace xseg_torch

#endif
