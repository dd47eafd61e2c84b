/* SPDX-License-Identifier: MIT */
/* PyTorch's observers of shortages and of everything that happens. */
#ifndef XSEG_ADAPTERS_TORCH_OBSERVERS_H
#define XSEG_ADAPTERS_TORCH_OBSERVERS_H

#include "src/adapters/torch/allocator.h"

namespace xseg_torch
{

/** Begin to observe a library that was opened, for observers that are there and for those to come. */
void observe(struct xseg_allocator *library);

/** Observers are kept for the next library: the one that observe() was given is about to be closed. */
void stop_observing();

} // namespace xseg_torch

#endif
