/* SPDX-License-Identifier: MIT */
/* Exports of allocated blocks: each block is exported once, and its export is closed before the block is freed. */
#ifndef XSEG_ADAPTERS_TORCH_SHARE_H
#define XSEG_ADAPTERS_TORCH_SHARE_H

#include <atomic>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** The number of blocks that are exported or used by streams of other devices (foreign.h), whose frees need additional work. */
inline std::atomic<size_t> attached_count{0};

/** Close the export of a block, if it has one. */
xseg_status close_export(struct xseg_allocator *library, void *ptr);

/** Close the export of a block that is about to be freed.  While nothing is attached, this takes no lock. */
inline xseg_status close_export_if_any(struct xseg_allocator *library, void *ptr)
{
    return attached_count.load(std::memory_order_relaxed) == 0 ? XSEG_OK
                                                               : close_export(library, ptr);
}

/** Begin or end to serve CUDA's legacy IPC of the library's memory, if libxseg-ipc.so is loaded (xseg/ipc.h). */
void attach_ipc(struct xseg_allocator *library);
void detach_ipc(void);

/** Get whether libxseg-ipc.so serves the library's memory, and the dynamic linker finds its functions before the CUDA
 * runtime's. */
bool serves_ipc();

/** Count the begin or the end of a capture on a device.  Imports that are released during a capture are closed afterwards. */
void count_capture(DeviceIndex device, bool begins);

/** Close imports whose last tensor was freed during a capture.  Imports that cannot be closed yet remain for the next call. */
void close_deferred_imports();

} // namespace xseg_torch

#endif
