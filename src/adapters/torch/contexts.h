/* SPDX-License-Identifier: MIT */
/*
 * Table of PyTorch's call stacks (GatheredContext).  The library's history stores their IDs.
 *
 * A context is kept until the library reports that no event and no block has its ID.
 */
#ifndef XSEG_ADAPTERS_TORCH_CONTEXTS_H
#define XSEG_ADAPTERS_TORCH_CONTEXTS_H

#include <memory>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** Set the function that gathers contexts, or NULL. */
void set_recorder(CreateContextFn recorder);

/** Get the context of an ID; empty for 0 and for a discarded ID. */
std::shared_ptr<GatheredContext> context_of(uint32_t id);

/** Get the hook for xseg_history_set_hook(). */
struct xseg_history_hook context_hook();

} // namespace xseg_torch

#endif
