// SPDX-License-Identifier: MIT
//
// PyTorch's own allocator as the subject of a benchmark; see subject.h.  Links against libc10_cuda of an
// installed PyTorch, without Python.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "benchmarks/subject.h"

// What libtorch_cuda sets when it is loaded; libc10_cuda alone waits for it.
namespace c10::cuda::_internal
{
void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));
}
namespace c10::cuda::detail
{
void init_p2p_access_cache(int64_t devices);
}

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// As many as xseg keeps of a stream.
static constexpr size_t RECORD_EVENTS = 65536;

static CUDAAllocator *allocator;
static std::vector<c10::cuda::CUDAStream> streams;
static cudaStream_t handles[SUBJECT_STREAMS];
static void (*set_busy)(void *stream, int busy);

[[noreturn]] static void fail(const char *what, const char *why)
{
    std::fprintf(stderr, "PyTorch: %s failed: %s\n", what, why);
    std::_Exit(3);
}

// PyTorch throws; a benchmark ends.  Without exceptions the block costs nothing.
template <typename Call> static auto guarded(const char *what, Call call)
{
    try {
        return call();
    } catch (const std::exception &exception) {
        fail(what, std::string(exception.what()).substr(0, 300).c_str());
    }
}

void subject_open(const char *config, unsigned count)
{
    // Before the first call of the library, which reads it.
    (void)setenv("PYTORCH_CUDA_ALLOC_CONF", config, 1);
    const char *busy = std::getenv("XSEG_REFERENCE_BUSY");
    if (busy != nullptr)
        set_busy = reinterpret_cast<void (*)(void *, int)>(dlsym(RTLD_DEFAULT, busy));
    guarded("opening device 0", [count] {
        c10::cuda::detail::init_p2p_access_cache(1);
        c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
        c10::cuda::CUDACachingAllocator::init(1);
        allocator = c10::cuda::CUDACachingAllocator::get();
        // The streams of PyTorch's own pool, which come round again.
        std::set<cudaStream_t> seen;
        streams.push_back(c10::cuda::getDefaultCUDAStream(0));
        while (streams.size() < count) {
            const auto stream = c10::cuda::getStreamFromPool(streams.size() % 2 == 1, 0);
            if (seen.insert(stream.stream()).second)
                streams.push_back(stream);
            else if (seen.size() >= 64)
                fail("getStreamFromPool", "more streams than there are in the pool");
        }
        for (unsigned i = 0; i < count; i++)
            handles[i] = streams[i].stream();
    });
}

const char *subject_name(void)
{
    return "PyTorch";
}

// PyTorch's gathering of C++ frames is in its largest library, which is opened when frames are asked for.
// What it returns is derived from GatheredContext alone, so a pointer to it is a pointer to that.
static std::shared_ptr<c10::GatheredContext> (*gather)(bool python, bool script, bool cpp);

static std::shared_ptr<c10::GatheredContext> gather_frames()
{
    return gather(false, false, true);
}

bool subject_record(enum subject_record what)
{
    using c10::cuda::CUDACachingAllocator::RecordContext;

    if (what == SUBJECT_STACKS) {
        void *library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_LOCAL);
        void *symbol = library == nullptr
                           ? nullptr
                           : dlsym(library, "_ZN5torch17CapturedTraceback6gatherEbbb");
        if (symbol == nullptr) {
            std::fprintf(stderr, "PyTorch: stacks are not measured: %s\n", dlerror());
            return false;
        }
        gather = reinterpret_cast<decltype(gather)>(symbol);
    }
    guarded("recordHistory", [what] {
        const bool has_stacks = what == SUBJECT_STACKS;
        allocator->recordHistory(true, has_stacks ? gather_frames : nullptr, RECORD_EVENTS,
                                 has_stacks ? RecordContext::ALL : RecordContext::NEVER, true, {});
    });
    return true;
}

const char *subject_stacks()
{
    return "";
}

void *subject_alloc(size_t bytes, unsigned stream)
{
    return guarded("malloc",
                   [=] { return allocator->raw_alloc_with_stream(bytes, handles[stream]); });
}

void subject_free(void *pointer)
{
    guarded("free", [=] { allocator->raw_delete(pointer); });
}

// A pool has no allocation of its own: its owner routes to it for a moment.
void *subject_alloc_in(size_t bytes, unsigned stream, unsigned pool)
{
    if (pool == 0)
        return subject_alloc(bytes, stream);
    return guarded("malloc in a pool", [=] {
        allocator->beginAllocateToPool(0, {0, pool}, [](cudaStream_t) { return true; });
        void *pointer = allocator->raw_alloc_with_stream(bytes, handles[stream]);
        allocator->endAllocateToPool(0, {0, pool});
        return pointer;
    });
}

void subject_use(void *pointer, unsigned stream)
{
    guarded("recordStream", [=] {
        c10::DataPtr data(pointer, pointer, allocator->raw_deleter(),
                          c10::Device(c10::DeviceType::CUDA, 0));
        allocator->recordStream(data, streams[stream]);
        (void)data.release_context();
    });
}

bool subject_register(void *, size_t)
{
    return false;
}

uint64_t subject_memory(void)
{
    static uint64_t at_first = 0; /* asked before anything is allocated */
    size_t free = 0, total = 0;

    if (at_first == 0)
        at_first = cudaMemGetInfo(&free, &total) == cudaSuccess ? free : SUBJECT_UNKNOWN;
    return at_first;
}

void subject_make_busy(unsigned stream, bool busy)
{
    if (set_busy != nullptr)
        set_busy(handles[stream], busy);
}

void subject_empty(void)
{
    guarded("emptyCache", [] { allocator->emptyCache(); });
}

uint64_t subject_reserved(void)
{
    return (uint64_t)allocator->getDeviceStats(0).reserved_bytes[0].current;
}

uint64_t subject_host_bytes(void)
{
    return SUBJECT_UNKNOWN;
}

uint64_t subject_calls(const char *)
{
    return SUBJECT_UNKNOWN;
}

uint64_t subject_driver_us(void)
{
    return SUBJECT_UNKNOWN;
}
