/* SPDX-License-Identifier: MIT */
/*
 * Table of PyTorch's private pools by ID (MempoolId_t), and the library's pools that implement them.
 *
 * PyTorch counts references to a pool.  At zero the pool is released: it serves no more requests, and its entry is removed
 * after the library has released its memory.  The statistics of a pool remain under its ID after it is destroyed.
 *
 * A recursive lock guards the table.  Allocations and frees do not take it, except the last free of a released pool.  It is
 * held during calls of the library, which calls `on_destroy` without holding its locks.
 */
#ifndef XSEG_ADAPTERS_TORCH_POOLS_H
#define XSEG_ADAPTERS_TORCH_POOLS_H

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

class Allocator;

/** The kind of memory of a pool: REGISTERED blocks are single pages that network adapters can access. */
enum class Memory { PLAIN, REGISTERED };

/** Create and retain a pool with an unused ID.  Error messages contain the name. */
struct xseg_pool *create_named_pool(Allocator *allocator, DeviceIndex device, MempoolId_t id,
                                    const std::string &name, Memory memory);

/** Destroy the custom allocators of destroyed pools, unless the calling thread holds a lock of the adapter. */
void free_destroyed_pools();

/** Count a synchronization for each pool of an ID ({0, 0}: no pool) that was destroyed at its release, because it had no
 * memory.  PyTorch synchronizes in the next empty_cache(), and then removes such pools. */
void count_syncs_of_destroyed_pools(Allocator *allocator, MempoolId_t id);

/** Trim the released pools of an ID on all devices. */
void trim_released_pools(Allocator *allocator, MempoolId_t id,
                         const struct xseg_trim_options &options);

/** Get the pool that PyTorch retains under an ID, or NULL. */
struct xseg_pool *retained_pool(DeviceIndex device, MempoolId_t id);

/** Get the pool that serves an allocation on a stream by PyTorch's routes; NULL: the default pool. */
struct xseg_pool *routed_pool(DeviceIndex device, cudaStream_t stream);

/** The ID of a pool; {0, 0} for the default pool and for pools that are not PyTorch's. */
MempoolId_t id_of_pool(const struct xseg_pool *pool);

/** A statistic: all, small, large. */
using Groups = std::array<struct xseg_stat, XSEG_STAT_GROUPS>;

/** The reserved bytes by ID, for each private pool that has ever had memory on a device. */
std::map<MempoolId_t, Groups> pool_statistics(struct xseg_allocator *library, DeviceIndex device);

/** Reset the statistics of pool_statistics(), as xseg_stats_reset() does. */
void reset_pool_statistics(struct xseg_allocator *library, DeviceIndex device, unsigned reset);

/** The origin of a route: a capture or pool of PyTorch, or a tag. */
enum class Route { PYTORCH, TAG };

/**
 * Whether a route counts as a capture, during which nothing is released or synchronized.
 *
 * marks: PyTorch notifies the begin and end of captures separately (markCaptureBegin).  Older versions do not, and their own
 *        allocator treats every route as a capture.
 */
constexpr bool counts_as_capture(Route route, bool marks)
{
    return route == Route::PYTORCH && !marks;
}

/** Begin a route of requests that the filter accepts to the pool of an ID, which is retained, and created if necessary. */
void begin_route(Allocator *allocator, DeviceIndex device, MempoolId_t id,
                 std::function<bool(cudaStream_t)> filter, Route route);

/** The next number in the common order of routes and entered tags. */
uint64_t next_order();

} // namespace xseg_torch

#endif
