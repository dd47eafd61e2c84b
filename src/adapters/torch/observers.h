/* SPDX-License-Identifier: MIT */
/* PyTorch's observers: out-of-memory, rejections, and trace trackers. */
#ifndef XSEG_ADAPTERS_TORCH_OBSERVERS_H
#define XSEG_ADAPTERS_TORCH_OBSERVERS_H

#include "src/adapters/torch/allocator.h"

namespace xseg_torch
{

/** Register PyTorch's existing and future observers with an opened library. */
void add_observers(struct xseg_allocator *library);

/** Detach from a library that is about to be closed.  The observers remain for the next library. */
void remove_observers();

} // namespace xseg_torch

#endif
