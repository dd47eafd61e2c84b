/* SPDX-License-Identifier: MIT */
/*
 * The allocator that PyTorch calls.  Each method does what PyTorch's own allocator does there, by calls of the library.
 *
 * The object is made once, is never destroyed, and owns one xseg_allocator, which is never closed: tensors may be freed
 * as late as in the destructors of the process.
 *
 * Errors: a method throws c10::OutOfMemoryError where memory is short, and c10::Error for everything else (errors.h).
 *         A free from a tensor's destructor cannot throw; what it meets is a warning.
 * Fork:   in a forked child what ends something of the parent's does nothing and says nothing, since destructors call
 *         it; an allocation throws the error of the runtime, as PyTorch's own allocator does there.
 * Threads: any, but for install().  No lock of the adapter's is taken by an allocation or a free.
 */
#ifndef XSEG_ADAPTERS_TORCH_ALLOCATOR_H
#define XSEG_ADAPTERS_TORCH_ALLOCATOR_H

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** More devices than a machine has; the arrays that are indexed by device are so long. */
constexpr int DEVICES_MOST = 128;

class Allocator final : public CUDAAllocator
{
  public:
    /** The library's allocator; NULL until init(), since a driver that was started does not survive a fork. */
    struct xseg_allocator *library() const
    {
        return library_.load(std::memory_order_acquire);
    }
    int device_count() const
    {
        return device_count_.load(std::memory_order_acquire);
    }
    /** Whether memory of a device was ever asked for: the library has opened it then. */
    bool is_open(DeviceIndex device) const
    {
        return open_[device].load(std::memory_order_relaxed);
    }
    /** Whether this process is a forked child of the one that opened the library.  A lock of the adapter's may be held by
   * a thread that the child does not have, so what a child must survive asks this before it takes one. */
    bool is_forked() const;
    /** From now on a forked child is_forked(). */
    static void follow_forks();
    void check_device(DeviceIndex device) const;
    /** Check a device's number; the device counts as open from then on. */
    void open_device(DeviceIndex device);
    /** Count a wait for all streams that PyTorch counts where the library has nothing to wait for. */
    void count_sync(DeviceIndex device)
    {
        syncs_[device].fetch_add(1, std::memory_order_relaxed);
    }

    /* allocator.cpp */
    c10::DataPtr allocate(size_t bytes) override;
    c10::DeleterFnPtr raw_deleter() const override;
    void copy_data(void *to, const void *from, std::size_t bytes) const override;
    void *raw_alloc(size_t bytes) override;
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
    void raw_delete(void *ptr) override;
    bool initialized() override;
    void enable(bool value) override;
    bool isEnabled() const override;
    using CUDAAllocator::recordStream;
    void recordStream(const c10::DataPtr &ptr, c10::cuda::CUDAStream stream) override;
    void emptyCache();
    void emptyCache(MempoolId_t id);
    void cacheInfo(DeviceIndex device, size_t *largest) override;
    void *getBaseAllocation(void *ptr, size_t *bytes) override;
    c10::DataPtr allocateWithAddress(size_t bytes, void *address);
    std::string name() override;

    /* install.cpp */
    void init(int device_count) override;

    /* settings.cpp */
    double getMemoryFraction(DeviceIndex device) override;
    void setMemoryFraction(double fraction, DeviceIndex device) override;

    /* statistics.cpp */
    DeviceStats getDeviceStats(DeviceIndex device) override;
    void resetAccumulatedStats(DeviceIndex device) override;
    void resetPeakStats(DeviceIndex device) override;
#ifdef XSEG_TORCH_SEGMENT_SIZES
    std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
#endif

    /* pools.cpp */
    void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                             std::function<bool(cudaStream_t)> filter) override;
    void endAllocateToPool(DeviceIndex device, MempoolId_t id) override;
    void markCaptureBegin(DeviceIndex device);
    void markCaptureEnd(DeviceIndex device);
    void releasePool(DeviceIndex device, MempoolId_t id) override;
    int getPoolUseCount(DeviceIndex device, MempoolId_t id) override;
    void ensureExistsAndIncrefPool(DeviceIndex device, MempoolId_t id);
    void createOrIncrefPool(DeviceIndex device, MempoolId_t id, CUDAAllocator *memory);
    void createOrIncrefPool(DeviceIndex device, MempoolId_t id,
                            std::shared_ptr<CUDAAllocator> memory);
    void setUseOnOOM(DeviceIndex device, MempoolId_t id);
    void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use_on_oom);
    void setNoSplit(DeviceIndex device, MempoolId_t id);
    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                  const std::unordered_set<void *> &expected) override;

    /* checkpoint.cpp */
    std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override;
    CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                           std::shared_ptr<AllocatorState> state) override;

    /* snapshot.cpp */
    SnapshotInfo snapshot();
    SnapshotInfo snapshot(MempoolId_t id);
    SnapshotInfo snapshot(MempoolId_t id, bool include_traces);

    /* history.cpp */
    bool isHistoryEnabled() override;
    std::shared_ptr<GatheredContext> getContextForPointer(const void *ptr);
    void recordHistory(bool enabled, CreateContextFn recorder, size_t entries, RecordContext when);
    void recordHistory(bool enabled, CreateContextFn recorder, size_t entries, RecordContext when,
                       bool clear);
    void recordHistory(bool enabled, CreateContextFn recorder, size_t entries, RecordContext when,
                       bool clear, const std::vector<std::string> &skip);
    void
    recordAnnotation(const std::vector<std::pair<std::string, std::string>> &annotation) override;
    void pushCompileContext(std::string &text);
    void popCompileContext();
    bool supportsUserMetadata();
    void setUserMetadata(const std::string &text);
    std::string getUserMetadata();
    void annotateMemory(const void *ptr, const std::string &text);

    /* observers.cpp */
    void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override;
    void attachOomRejectionObserver(std::function<void(int64_t, size_t, size_t, size_t)> observer);
    void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override;

    /* share.cpp */
    ShareableHandle shareIpcHandle(void *ptr) override;
    std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

    /* peers.cpp */
    void enablePeerAccess(DeviceIndex device, DeviceIndex owner) override;
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
                            size_t bytes, cudaStream_t stream, bool is_peer) override;

  private:
    /** Tell Python's hooks and a profiler of memory that was handed out. */
    void tell_allocation(void *ptr, DeviceIndex device);
    void *take(size_t bytes, DeviceIndex device, cudaStream_t stream);

    std::atomic<struct xseg_allocator *> library_{nullptr};
    std::atomic<int> device_count_{0}; /* set behind `library_` */
    std::atomic<bool> is_enabled_{true};
    std::atomic<bool> open_[DEVICES_MOST] = {};
    std::atomic<int64_t> syncs_[DEVICES_MOST] = {}; /* of count_sync() */
};

/** The allocator that install() made, or NULL. */
Allocator *installed();

/** What frees a cached block, whether caching is on by then or not. */
c10::DeleterFnPtr cached_deleter();

/** Remember it; install.cpp alone calls this, once. */
void set_installed(Allocator *allocator);

} // namespace xseg_torch

#endif
