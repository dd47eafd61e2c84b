/* SPDX-License-Identifier: MIT */
/* Concurrent calls of the adapter, as functions for ctypes, which releases the lock of the Python interpreter. */
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <future>
#include <thread>

namespace caching = c10::cuda::CUDACachingAllocator;

namespace {

const c10::cuda::MempoolId_t ID{77777, 0};
int destroyed = 0;

/* The deleter of a pool's own allocator, which waits for another thread, as an allocator written in Python does. */
void destroy(caching::CUDAAllocator *)
{
    auto promise = std::make_shared<std::promise<void>>();
    std::future<void> future = promise->get_future();
    std::thread([promise] {
        (void)caching::get()->getPoolUseCount(0, ID);
        promise->set_value();
    }).detach();
    destroyed = future.wait_for(std::chrono::seconds(20)) == std::future_status::ready ? 1 : -1;
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) void threads_init(void)
{
    caching::get()->init(1);
}

/* Destroys a pool with its own allocator.  Returns 1 if other threads could use pools during the call, or -1 on a deadlock. */
__attribute__((visibility("default"))) int threads_destroy(void)
{
    caching::get()->createOrIncrefPool(0, ID, std::shared_ptr<caching::CUDAAllocator>(caching::get(), destroy));
    caching::get()->releasePool(0, ID);
    caching::get()->emptyCache({0, 0});
    return destroyed;
}
}
