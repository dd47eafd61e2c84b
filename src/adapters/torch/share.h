/* SPDX-License-Identifier: MIT */
/* Exports of live blocks: each block is exported once, and its export is closed before the block is freed. */
#ifndef XSEG_ADAPTERS_TORCH_SHARE_H
#define XSEG_ADAPTERS_TORCH_SHARE_H

#include <atomic>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** The number of blocks that are exported or used by streams of other devices (foreign.h): their frees have work to do first. */
inline std::atomic<size_t> attached_count{0};

/** Close the export of a block, if it has one. */
xseg_status take_back_share(struct xseg_allocator *library, void *ptr);

/** Close the export of a block that is about to be freed.  While nothing is attached, this takes no lock. */
inline xseg_status forget_share(struct xseg_allocator *library, void *ptr)
{
    return attached_count.load(std::memory_order_relaxed) == 0 ? XSEG_OK
                                                               : take_back_share(library, ptr);
}

/** Note that a capture of a device begins or has ended: imported memory that ends in between is closed afterwards. */
void note_capture(DeviceIndex device, bool begins);

/** Close imports that could not be closed when their last tensor was freed.  Those that fail again are kept for the next call. */
void close_left_imports();

} // namespace xseg_torch

#endif
