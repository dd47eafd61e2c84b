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

/* The destructor of a pool's own allocator, which needs what other threads may hold, as one of Python's does. */
void destroy(caching::CUDAAllocator *)
{
    auto asked = std::make_shared<std::promise<void>>();
    std::future<void> answer = asked->get_future();
    std::thread([asked] {
        (void)caching::get()->getPoolUseCount(0, ID);
        asked->set_value();
    }).detach();
    destroyed = answer.wait_for(std::chrono::seconds(20)) == std::future_status::ready ? 1 : -1;
}

} // namespace

extern "C" {

__attribute__((visibility("default"))) void threads_init(void)
{
    caching::get()->init(1);
}

/* 1: a pool's own allocator was destroyed while other threads could use pools; -1: while they could not. */
__attribute__((visibility("default"))) int threads_destroy(void)
{
    caching::get()->createOrIncrefPool(0, ID, std::shared_ptr<caching::CUDAAllocator>(caching::get(), destroy));
    caching::get()->releasePool(0, ID);
    caching::get()->emptyCache({0, 0});
    return destroyed;
}
}
