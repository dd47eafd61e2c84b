/* SPDX-License-Identifier: MIT */
/* Tags: pools from which a thread allocates inside a `with` statement. */
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

/** Create the pool of a tag, which exists until the process exits. */
struct xseg_pool *make_tag(Allocator *allocator, DeviceIndex device, const std::string &name,
                           MempoolId_t id, Memory memory);

/** Make the calling thread allocate from the pool of a tag on the tag's device until leave_tag(). */
void enter_tag(Allocator *allocator, struct xseg_pool *pool);

/** Leave the tag that the calling thread entered last. */
void leave_tag(Allocator *allocator);

/**
 * Set the label tag of the calling thread, until the next call or the end of the thread.  The thread allocates from its pool
 * while it is in no other tag.  nullptr: no label tag.
 */
void label_tag(Allocator *allocator, struct xseg_pool *pool);

/** Get the order (next_order()) of the innermost tag of the calling thread on a device; 0 if the thread is in no tag. */
uint64_t tag_order(DeviceIndex device);

/** Suspend or resume the tags of the calling thread. */
void suspend_tags(bool is_suspended);

} // namespace xseg_torch

#endif
