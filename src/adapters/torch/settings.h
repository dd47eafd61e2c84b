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

/** Apply settings of all devices from strings after the library was opened.  Called before the first use of a device. */
void begin_device(struct xseg_allocator *library, int device);

/** The library is about to be closed; later strings are kept for the next one. */
void detach_settings();

/** Apply a string of torch.cuda.memory._set_allocator_settings() after PyTorch has applied it. */
void follow_settings(const std::string &settings);

/** Throws c10::ValueError for a string that the library or PyTorch would reject; nothing changes. */
void check_settings(const std::string &settings);

/**
 * The last string, if `expandable_segments:False` in it was ignored, because XSEG_TORCH_KEEP_EXPANDABLE is 1; "": otherwise.
 * Snapshots and torch._C._accelerator_getAllocatorSettings() contain this string and expandable_segments:False until the next
 * string, so that a program that restores the settings sees what it has set.
 */
std::string acknowledged_settings();

/** Restore PyTorch's settings after a string was rejected. */
void restore_settings();

/** Apply such a string to PyTorch and to the library, for versions of PyTorch that do not notify the adapter. */
void set_settings(const std::string &settings);

/** The configuration for snapshots. */
caching::AllocatorConfigInfo config_info();

} // namespace xseg_torch

#endif
