/* SPDX-License-Identifier: MIT */
/*
 * PyTorch's call stacks (GatheredContext) under numbers, which the library's history carries.
 *
 * A context is kept from its gathering until the library says that no event and no block has its number any more.
 */
#ifndef XSEG_ADAPTERS_TORCH_CONTEXTS_H
#define XSEG_ADAPTERS_TORCH_CONTEXTS_H

#include <memory>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** Take contexts by this function from now on; NULL: none. */
void set_recorder(CreateContextFn recorder);

/** The context of a number; empty for 0 and for a number that was forgotten. */
std::shared_ptr<GatheredContext> context_of(uint32_t number);

/** What xseg_history_set_hook() is given. */
struct xseg_history_hook context_hook();

} // namespace xseg_torch

#endif
