/* SPDX-License-Identifier: MIT */
/*
 * The allocator that PyTorch calls.  Each method implements the behavior of PyTorch's own allocator by calls of the library.
 *
 * The only object is never destroyed.  It owns one xseg_allocator, which is never closed, because destructors of the process
 * may free tensors.
 *
 * Errors:  a method throws c10::OutOfMemoryError if memory is exhausted, and c10::Error for all other failures (errors.h).
 *          A free in a destructor of a tensor cannot throw; it warns.
 * Fork:    in a forked child, methods that release an object of the parent have no effect, because destructors call them.
 *          An allocation throws the error of the CUDA runtime, as in PyTorch's own allocator.
 * Threads: any, except install().  Allocations and frees take no lock of the adapter.
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

/** Length of the arrays that are indexed by device. */
constexpr int DEVICES_MAX = 128;

class Allocator final : public CUDAAllocator
{
  public:
    /** The library's allocator; NULL until init(), because an initialized driver does not work in a forked child. */
    struct xseg_allocator *library() const
    {
        return library_.load(std::memory_order_acquire);
    }
    int device_count() const
    {
        return device_count_.load(std::memory_order_acquire);
    }
    /** Get whether the library has opened a device, which it does at the first request. */
    bool is_open(DeviceIndex device) const
    {
        return open_[device].load(std::memory_order_relaxed);
    }
    /** Get whether this process is a forked child of the process that opened the library.  A thread that does not exist in the
     * child may hold a lock of the adapter, so functions that a child may call check this first. */
    bool is_forked() const;
    /** Register the fork handler that is_forked() depends on. */
    static void follow_forks();
    void check_device(DeviceIndex device) const;
    /** Check an ordinal, and mark the device as open. */
    void open_device(DeviceIndex device);
    /** Count a synchronization of all streams that PyTorch performs and the library does not need. */
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

    /* install.cpp */
    void init(int device_count) override;

    /* settings.cpp */
    std::string name() override;
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
    c10::DataPtr allocateWithAddress(size_t bytes, void *address);
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

    /* foreign.cpp */
    void enablePeerAccess(DeviceIndex device, DeviceIndex owner) override;
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device,
                            size_t bytes, cudaStream_t stream, bool is_peer) override;

  private:
    /** Report an allocation to Python's hooks and to the profiler. */
    void report_allocation(void *ptr, DeviceIndex device);
    void *allocate_block(size_t bytes, DeviceIndex device, cudaStream_t stream);

    std::atomic<struct xseg_allocator *> library_{nullptr};
    std::atomic<int> device_count_{0}; /* set after `library_` */
    std::atomic<bool> is_enabled_{true};
    std::atomic<bool> open_[DEVICES_MAX] = {};
    std::atomic<int64_t> syncs_[DEVICES_MAX] = {}; /* of count_sync() */
};

/** The allocator that install() created, or NULL. */
Allocator *installed();

/** The deleter of blocks of the library, also after caching was disabled. */
c10::DeleterFnPtr cached_deleter();

/** Publish the allocator; install.cpp calls this once. */
void set_installed(Allocator *allocator);

} // namespace xseg_torch

#endif
