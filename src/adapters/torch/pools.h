/* SPDX-License-Identifier: MIT */
/*
 * PyTorch's private pools, by their ids (MempoolId_t), and the library's pools behind them.
 *
 * A pool is counted by PyTorch.  At zero it is released: it serves no more requests, and its entry stays until the
 * library says that its last memory is back.  The statistics of a pool outlive it, under its id.
 *
 * One recursive lock guards the table.  Neither an allocation nor a free takes it, but for the last free of a released
 * pool.  It is held over calls of the library, which never calls `on_destroy` with a lock of its own held.
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

/** What memory a pool is for: that of tensors, or what others register, in pieces that network cards may reach. */
enum class Memory { PLAIN, REGISTERED };

/** Make a pool under an id that no pool has, and hold it; error texts call it by the name. */
struct xseg_pool *make_named_pool(Allocator *allocator, DeviceIndex device, MempoolId_t id,
                                  const std::string &name, Memory memory);

/** Destroy the allocators of pools that are gone, where the calling thread holds no lock of the adapter's. */
void destroy_gone_pools();

/** Count a wait for each pool of an id ({0, 0}: none) that has ended at its release, without memory: PyTorch waits in the next
 * empty_cache(), which forgets such pools. */
void count_ended_pools(Allocator *allocator, MempoolId_t id);

/** Trim the released pools of an id on all devices. */
void trim_released_pools(Allocator *allocator, MempoolId_t id,
                         const struct xseg_trim_options &options);

/** The pool that PyTorch holds under an id; NULL if there is none. */
struct xseg_pool *held_pool(DeviceIndex device, MempoolId_t id);

/** The pool that an allocation on a stream would come from by PyTorch's routes; NULL: the default pool. */
struct xseg_pool *routed_pool(DeviceIndex device, cudaStream_t stream);

/** The id of a pool that blocks and segments name; {0, 0} for the default pool, or one that is not PyTorch's. */
MempoolId_t id_of_pool(const struct xseg_pool *pool);

/** A statistic: all, small, large. */
using Groups = std::array<struct xseg_stat, XSEG_STAT_GROUPS>;

/** The reserved bytes by each id of a private pool that has ever had memory on a device. */
std::map<MempoolId_t, Groups> pool_statistics(struct xseg_allocator *library, DeviceIndex device);

/** Reset them, as xseg_stats_reset() does. */
void reset_pool_statistics(struct xseg_allocator *library, DeviceIndex device, unsigned what);

/** A route sends requests to a pool: one of PyTorch's captures and pools, or a tag. */
enum class Route { PYTORCH, TAG };

/**
 * Whether a route counts as a capture, in which nothing is given back or waited for.  `marks`: this PyTorch tells begin
 * and end of captures apart from routes (markCaptureBegin).  Where it does not, its own allocator takes each of its
 * routes for a capture.
 */
constexpr bool counts_as_capture(Route route, bool marks)
{
    return route == Route::PYTORCH && !marks;
}

/** Send requests that the filter accepts to the pool of an id, which is made if nobody holds it, and is held. */
void begin_route(Allocator *allocator, DeviceIndex device, MempoolId_t id,
                 std::function<bool(cudaStream_t)> filter, Route route);

/** The number of a route, or of an entry into a tag: greater than that of all before it. */
uint64_t next_order();

} // namespace xseg_torch

#endif
