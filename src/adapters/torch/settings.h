/* SPDX-License-Identifier: MIT */
/*
 * The configuration: the library and PyTorch read the same string, and agree on expandable_segments, by which PyTorch
 * chooses how NCCL registers memory.
 */
#ifndef XSEG_ADAPTERS_TORCH_SETTINGS_H
#define XSEG_ADAPTERS_TORCH_SETTINGS_H

#include <string>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** Bring PyTorch's settings in line with the environment, and hear of later changes.  Throws c10::Error on a bad string. */
void agree_on_settings();

/**
 * The keys, with a comma before each, that the adapter adds of its own accord, as PyTorch's allocator makes its memory:
 * exportable and rdma, as far as the user's string does not name them.
 */
std::string added_keys();

/** Give a library that was opened the keys that the adapter needs, and what was set since agree_on_settings(). */
void apply_settings(struct xseg_allocator *library);

/** Apply to a device, before it is used first, what strings said of all devices after the library was opened. */
void begin_device(struct xseg_allocator *library, int device);

/** Strings are kept for the next library: the one that apply_settings() was given is about to be closed. */
void stop_following();

/** Apply a string that torch.cuda.memory._set_allocator_settings() was given, and PyTorch has applied. */
void follow_settings(const std::string &settings);

/** Throws c10::ValueError for a string that the library or PyTorch would reject; nothing changes. */
void check_settings(const std::string &settings);

/** Take back what PyTorch has applied of a string that was rejected later. */
void restore_settings();

/** Let PyTorch apply such a string, and follow it: for versions of PyTorch that do not tell the adapter of strings. */
void set_settings(const std::string &settings);

/** The configuration as snapshots have it. */
caching::AllocatorConfigInfo config_info();

} // namespace xseg_torch

#endif
