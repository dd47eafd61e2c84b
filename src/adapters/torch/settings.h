/* SPDX-License-Identifier: MIT */
/*
 * The configuration.  The library and PyTorch read the same string, and have the same value of expandable_segments, which
 * determines how PyTorch registers memory with NCCL.
 */
#ifndef XSEG_ADAPTERS_TORCH_SETTINGS_H
#define XSEG_ADAPTERS_TORCH_SETTINGS_H

#include <string>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** Set PyTorch's settings from the environment, and register for later changes.  Throws c10::Error for an invalid string. */
void synchronize_settings();

/**
 * The keys that the adapter adds unless the user's string names them, with a comma before each: exportable and rdma, because
 * PyTorch's allocator creates such memory.
 */
std::string added_keys();

/** Apply the added keys, and the strings since synchronize_settings(), to an opened library. */
void apply_settings(struct xseg_allocator *library);

/** Before the first use of a device, apply the rejection fraction of strings that were set after the library was opened. */
void begin_device(struct xseg_allocator *library, int device);

/** Detach from a library that is about to be closed.  Later strings apply to the next library. */
void detach_settings();

/** Apply a string of torch.cuda.memory._set_allocator_settings() after PyTorch has applied it. */
void follow_settings(const std::string &settings);

/** Check a string without applying it.  Throws c10::ValueError if the library or PyTorch would reject it. */
void check_settings(const std::string &settings);

/**
 * Get the last string if its `expandable_segments:False` was ignored because XSEG_TORCH_KEEP_EXPANDABLE is 1; otherwise "".
 * Until the next string, snapshots and torch._C._accelerator_getAllocatorSettings() contain this string and
 * expandable_segments:False, because a program may save and restore the settings that it has set.
 */
std::string acknowledged_settings();

/** Restore PyTorch's settings after a string was rejected. */
void restore_settings();

/** Apply a string of _set_allocator_settings() to PyTorch and to the library, for versions that do not notify the adapter. */
void set_settings(const std::string &settings);

/** Get the configuration for snapshots. */
caching::AllocatorConfigInfo config_info();

} // namespace xseg_torch

#endif
