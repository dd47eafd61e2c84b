/* SPDX-License-Identifier: MIT */
/*
 * Blocks that streams of other devices use.
 *
 * The library orders blocks by streams of their own device.  When such a block is freed, an event is recorded on each
 * foreign stream, and a proxy stream of the block's device waits for that event.  The library then waits for
 * the proxy as for any stream that has used the block, as PyTorch's allocator waits for the event itself.
 */
#ifndef XSEG_ADAPTERS_TORCH_FOREIGN_H
#define XSEG_ADAPTERS_TORCH_FOREIGN_H

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** Record that a stream of another device uses a block. */
void record_foreign_use(void *ptr, DeviceIndex device, c10::cuda::CUDAStream stream);

/** Allocate on a device for a stream of another device.  Returns XSEG_ERR_ARGUMENT if no other device has the stream. */
xseg_status allocate_foreign(struct xseg_allocator *library, size_t bytes, DeviceIndex device,
                             cudaStream_t stream, void **ptr);

/** Before a block is freed, make its proxy streams wait.  Returns false if a stream is capturing; free_deferred() then frees
 * the block. */
bool wait_for_foreign(struct xseg_allocator *library, void *ptr);

/** Free the blocks whose free was deferred, unless a stream is still capturing. */
void free_deferred(struct xseg_allocator *library);

} // namespace xseg_torch

#endif
