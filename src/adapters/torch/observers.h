/* SPDX-License-Identifier: MIT */
/* PyTorch's observers: out-of-memory, rejections, and trace trackers. */
#ifndef XSEG_ADAPTERS_TORCH_OBSERVERS_H
#define XSEG_ADAPTERS_TORCH_OBSERVERS_H

#include "src/adapters/torch/allocator.h"

namespace xseg_torch
{

/** Register with an opened library, for existing and future observers. */
void observe(struct xseg_allocator *library);

/** The library is about to be closed; the observers are kept for the next one. */
void stop_observing();

} // namespace xseg_torch

#endif
