// SPDX-License-Identifier: MIT
//
// PyTorch's own allocator as the allocator under test; see bench.h.  Links with libc10_cuda of an installed PyTorch, without
// Python.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "benchmarks/bench.h"

// libtorch_cuda calls these functions when it is loaded; without it the program calls them.
namespace c10::cuda::_internal
{
void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));
}
namespace c10::cuda::detail
{
void init_p2p_access_cache(int64_t devices);
}

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// The default of history_events in xseg.
static constexpr size_t RECORD_EVENTS = 65536;

static CUDAAllocator *allocator;
static std::vector<c10::cuda::CUDAStream> streams;
static cudaStream_t handles[BENCH_STREAMS];
static void (*set_busy)(void *stream, int busy);

[[noreturn]] static void fail(const char *operation, const char *message)
{
    std::fprintf(stderr, "PyTorch: %s failed: %s\n", operation, message);
    std::_Exit(3);
}

// End the program on an exception.  The try block has no cost without one.
template <typename Call> static auto guarded(const char *operation, Call call)
{
    try {
        return call();
    } catch (const std::exception &exception) {
        fail(operation, std::string(exception.what()).substr(0, 300).c_str());
    }
}

void bench_open(const char *config, unsigned count)
{
    // PyTorch reads the variable in its first call.
    (void)setenv("PYTORCH_CUDA_ALLOC_CONF", config, 1);
    const char *busy = std::getenv("XSEG_REFERENCE_BUSY");
    if (busy != nullptr)
        set_busy = reinterpret_cast<void (*)(void *, int)>(dlsym(RTLD_DEFAULT, busy));
    guarded("opening device 0", [count] {
        c10::cuda::detail::init_p2p_access_cache(1);
        c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
        c10::cuda::CUDACachingAllocator::init(1);
        allocator = c10::cuda::CUDACachingAllocator::get();
        // PyTorch's pool returns its streams in turn, so each can be returned again.
        std::set<cudaStream_t> distinct;
        streams.push_back(c10::cuda::getDefaultCUDAStream(0));
        while (streams.size() < count) {
            const auto stream = c10::cuda::getStreamFromPool(streams.size() % 2 == 1, 0);
            if (distinct.insert(stream.stream()).second)
                streams.push_back(stream);
            else if (distinct.size() >= 64)
                fail("getStreamFromPool", "too few streams in the pool");
        }
        for (unsigned i = 0; i < count; i++)
            handles[i] = streams[i].stream();
    });
}

const char *bench_name(void)
{
    return "PyTorch";
}

// The function that gathers C++ frames is in PyTorch's largest library, which is only loaded for stacks.  Its result is a class
// whose only base is GatheredContext, so the pointers are the same.
static std::shared_ptr<c10::GatheredContext> (*gather)(bool python, bool script, bool cpp);

static std::shared_ptr<c10::GatheredContext> gather_frames()
{
    return gather(false, false, true);
}

bool bench_record_history(enum bench_history detail)
{
    using c10::cuda::CUDACachingAllocator::RecordContext;

    if (detail == BENCH_EVENTS_AND_STACKS) {
        void *library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_LOCAL);
        void *symbol = library == nullptr
                           ? nullptr
                           : dlsym(library, "_ZN5torch17CapturedTraceback6gatherEbbb");
        if (symbol == nullptr) {
            std::fprintf(stderr, "PyTorch: stacks are not measured, %s\n", dlerror());
            return false;
        }
        gather = reinterpret_cast<decltype(gather)>(symbol);
    }
    guarded("recordHistory", [detail] {
        const bool has_stacks = detail == BENCH_EVENTS_AND_STACKS;
        allocator->recordHistory(true, has_stacks ? gather_frames : nullptr, RECORD_EVENTS,
                                 has_stacks ? RecordContext::ALL : RecordContext::NEVER, true, {});
    });
    return true;
}

const char *bench_stack_method()
{
    return "";
}

void *bench_alloc(size_t bytes, unsigned stream)
{
    return guarded("malloc",
                   [=] { return allocator->raw_alloc_with_stream(bytes, handles[stream]); });
}

void bench_free(void *pointer)
{
    guarded("free", [=] { allocator->raw_delete(pointer); });
}

// PyTorch has no function that allocates from a pool, so a route is active during the call.
void *bench_alloc_in_pool(size_t bytes, unsigned stream, unsigned pool)
{
    if (pool == 0)
        return bench_alloc(bytes, stream);
    return guarded("malloc in a pool", [=] {
        allocator->beginAllocateToPool(0, {0, pool}, [](cudaStream_t) { return true; });
        void *pointer = allocator->raw_alloc_with_stream(bytes, handles[stream]);
        allocator->endAllocateToPool(0, {0, pool});
        return pointer;
    });
}

void bench_record_stream(void *pointer, unsigned stream)
{
    guarded("recordStream", [=] {
        c10::DataPtr data(pointer, pointer, allocator->raw_deleter(),
                          c10::Device(c10::DeviceType::CUDA, 0));
        allocator->recordStream(data, streams[stream]);
        (void)data.release_context();
    });
}

bool bench_register(void *, size_t)
{
    return false;
}

uint64_t bench_free_memory(void)
{
    static uint64_t initial_free = 0; /* the first call precedes all allocations */
    size_t free = 0, total = 0;

    if (initial_free == 0)
        initial_free = cudaMemGetInfo(&free, &total) == cudaSuccess ? free : BENCH_UNKNOWN;
    return initial_free;
}

void bench_set_busy(unsigned stream, bool busy)
{
    if (set_busy != nullptr)
        set_busy(handles[stream], busy);
}

void bench_empty_cache(void)
{
    guarded("emptyCache", [] { allocator->emptyCache(); });
}

uint64_t bench_reserved_bytes(void)
{
    return (uint64_t)allocator->getDeviceStats(0).reserved_bytes[0].current;
}

uint64_t bench_host_bytes(void)
{
    return BENCH_UNKNOWN;
}

uint64_t bench_driver_calls(const char *)
{
    return BENCH_UNKNOWN;
}

uint64_t bench_driver_us(void)
{
    return BENCH_UNKNOWN;
}
