/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/foreign.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/held.h"
#include "src/adapters/torch/share.h"

namespace xseg_torch
{

namespace
{

struct ForeignStream {
    cudaStream_t handle;
    DeviceIndex device;

    bool operator==(const ForeignStream &other) const
    {
        return handle == other.handle && device == other.device;
    }
};

struct Block {
    DeviceIndex device;
    std::vector<ForeignStream> streams;
    bool is_allocated_on_proxy; /* on the proxy of streams[0], whose use needs no record */
};

struct Foreign {
    std::mutex mutex;
    std::unordered_map<void *, Block> blocks;
    std::map<std::tuple<DeviceIndex, DeviceIndex, cudaStream_t>, cudaStream_t> proxies;
    std::vector<void *> deferred;
};

Foreign &foreign()
{
    static Foreign *const the_foreign = new Foreign;
    return *the_foreign;
}

/* The caller holds the lock. */
cudaStream_t proxy_of(DeviceIndex device, const ForeignStream &stream)
{
    cudaStream_t &found = foreign().proxies[{device, stream.device, stream.handle}];
    if (found == nullptr) {
        c10::cuda::CUDAGuard guard(device);
        C10_CUDA_CHECK(cudaStreamCreateWithFlags(&found, cudaStreamNonBlocking));
    }
    return found;
}

void add_use(void *ptr, DeviceIndex device, const ForeignStream &stream, bool is_allocated_on_proxy)
{
    auto [found, is_new] =
        foreign().blocks.try_emplace(ptr, Block{device, {}, is_allocated_on_proxy});
    std::vector<ForeignStream> &streams = found->second.streams;
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
        streams.push_back(stream);
    }
    if (is_new) {
        attached_count.fetch_add(1);
    }
}

bool is_capturing(const ForeignStream &stream)
{
    c10::cuda::CUDAGuard guard(stream.device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream.handle, &status));
    return status != cudaStreamCaptureStatusNone;
}

/* An event of the current device.  The driver frees the event of a destroyed object after its completion. */
struct Event {
    cudaEvent_t handle = nullptr;

    Event()
    {
        C10_CUDA_CHECK(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming));
    }
    ~Event()
    {
        C10_CUDA_CHECK_WARN(cudaEventDestroy(handle));
    }
    Event(const Event &) = delete;
    Event &operator=(const Event &) = delete;
};

/* Get whether a stream belongs to a device.  Only then an event of the device can be recorded on it. */
bool has_stream(DeviceIndex device, cudaStream_t stream)
{
    c10::cuda::CUDAGuard guard(device);
    Event event;
    cudaError_t error = cudaEventRecord(event.handle, stream);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
    }
    return error == cudaSuccess;
}

/* Make a proxy wait for the work that is queued on a stream. */
void make_proxy_wait(cudaStream_t proxy, DeviceIndex device, const ForeignStream &stream)
{
    c10::cuda::CUDAGuard guard(stream.device);
    Event event;
    C10_CUDA_CHECK(cudaEventRecord(event.handle, stream.handle));
    guard.set_index(device);
    C10_CUDA_CHECK(cudaStreamWaitEvent(proxy, event.handle, 0));
}

} // namespace

void record_foreign_use(void *ptr, DeviceIndex device, c10::cuda::CUDAStream stream)
{
    AdapterLock<std::mutex> lock(foreign().mutex);
    add_use(ptr, device, {stream.stream(), stream.device_index()}, false);
}

xseg_status allocate_foreign(struct xseg_allocator *library, size_t bytes, DeviceIndex device,
                             cudaStream_t stream, void **ptr)
{
    for (DeviceIndex candidate = 0; candidate < installed()->device_count(); candidate++) {
        if (candidate == device || !has_stream(candidate, stream)) {
            continue;
        }
        ForeignStream found{stream, candidate};
        cudaStream_t proxy;
        {
            AdapterLock<std::mutex> lock(foreign().mutex);
            proxy = proxy_of(device, found);
        }
        xseg_status status = xseg_alloc(library, device, bytes, proxy, ptr);
        if (status == XSEG_OK) {
            AdapterLock<std::mutex> lock(foreign().mutex);
            add_use(*ptr, device, found, true);
        }
        return status;
    }
    return XSEG_ERR_ARGUMENT;
}

bool wait_for_foreign(struct xseg_allocator *library, void *ptr)
{
    AdapterLock<std::mutex> lock(foreign().mutex);
    auto found = foreign().blocks.find(ptr);
    if (found == foreign().blocks.end()) {
        return true;
    }
    const Block &block = found->second;
    /* A free must not throw.  Calls on streams fail if the device is lost. */
    try {
        if (std::any_of(block.streams.begin(), block.streams.end(), is_capturing)) {
            foreign().deferred.push_back(ptr);
            return false;
        }
        for (const ForeignStream &stream : block.streams) {
            cudaStream_t proxy = proxy_of(block.device, stream);
            make_proxy_wait(proxy, block.device, stream);
            if (!block.is_allocated_on_proxy || !(stream == block.streams[0])) {
                warn(xseg_record_stream(library, ptr, proxy), "free");
            }
        }
    } catch (const std::exception &failure) {
        TORCH_WARN("xseg.torch: freed block does not wait for a stream of another device: ",
                   failure.what());
    }
    foreign().blocks.erase(found);
    attached_count.fetch_sub(1);
    return true;
}

void free_deferred(struct xseg_allocator *library)
{
    std::vector<void *> blocks;
    {
        AdapterLock<std::mutex> lock(foreign().mutex);
        blocks.swap(foreign().deferred);
    }
    for (void *ptr : blocks) {
        if (wait_for_foreign(library, ptr)) {
            warn(xseg_free(library, ptr), "free");
        }
    }
}

/* Allow `device` to access the memory of `owner`.  The CUDA runtime enables access to its allocations; the library sets the
 * access rights of mapped memory. */
void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex owner)
{
    check_device(device);
    open_device(owner);
    {
        c10::cuda::CUDAGuard guard(device);
        cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
        } else {
            C10_CUDA_CHECK(error);
        }
    }
    check(xseg_peer_allow(library_, owner, device), "enablePeerAccess");
}

/* Without peer access a plain copy between devices fails for mapped memory.  A peer copy works for all memory. */
cudaError_t Allocator::memcpyAsync(void *to, int to_device, const void *from, int from_device,
                                   size_t bytes, cudaStream_t stream, bool is_peer)
{
    if (is_peer || to_device == from_device) {
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

} // namespace xseg_torch
