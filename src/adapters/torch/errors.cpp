/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/errors.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>
#include <vector>

namespace xseg_torch {

std::string error_text(xseg_status status)
{
    size_t length = xseg_error_text(nullptr, 0);
    if (length == 0) {
        return xseg_status_text(status);
    }
    std::vector<char> text(length + 1);
    xseg_error_text(text.data(), text.size());
    return std::string(text.data());
}

std::string size_text(uint64_t bytes)
{
    const struct {
        uint64_t most, unit;
        const char *name;
    } scales[] = {{1048576, 1024, " KiB"}, {1073741824, 1048576, " MiB"}, {UINT64_MAX, 1073741824, " GiB"}};
    std::ostringstream text;
    if (bytes <= 1024) {
        text << bytes << " bytes";
        return text.str();
    }
    for (const auto &scale : scales) {
        if (bytes <= scale.most) {
            text << std::fixed << std::setprecision(2)
                 << static_cast<double>(bytes) / static_cast<double>(scale.unit) << scale.name;
            break;
        }
    }
    return text.str();
}

/* `exception`: thrown by a callback since the request began; no exception can pass through the library. */
static thread_local struct {
    uint64_t bytes, segment_bytes;
    std::exception_ptr exception;
    bool is_new; /* the exception was thrown before note_refused() was called for the request */
} last_refused;

void note_refused(const struct xseg_shortage *shortage)
{
    if (last_refused.bytes != shortage->bytes && !last_refused.is_new) {
        last_refused.exception = nullptr;
    }
    last_refused.is_new = false;
    last_refused.bytes = shortage->bytes;
    last_refused.segment_bytes = shortage->segment_bytes;
}

void keep_exception(std::exception_ptr exception)
{
    if (last_refused.exception == nullptr) {
        last_refused.exception = std::move(exception);
        last_refused.is_new = true;
    }
}

/* The exception of a callback during a request that has failed. */
static std::exception_ptr take_exception(size_t bytes)
{
    std::exception_ptr exception = std::exchange(last_refused.exception, nullptr);
    last_refused.is_new = false;
    return last_refused.bytes == bytes ? exception : nullptr;
}

/* What PyTorch says that it tried to allocate: the segment that it would have made. */
static uint64_t tried_bytes(size_t bytes)
{
    return last_refused.bytes == bytes ? last_refused.segment_bytes : bytes;
}

void check(xseg_status status, const char *what)
{
    TORCH_CHECK(status == XSEG_OK, "xseg: ", what, ": ", error_text(status));
}

void warn(xseg_status status, const char *what)
{
    if (status != XSEG_OK && status != XSEG_ERR_FORKED && status != XSEG_ERR_DEVICE_LOST) {
        TORCH_WARN("xseg: ", what, ": ", error_text(status));
    }
}

static bool is_shortage(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT || status == XSEG_ERR_NO_ADDRESSES;
}

/* Blocks of a paused pool are allocated and have no memory. */
static uint64_t unallocated(const struct xseg_statistics &statistics)
{
    uint64_t reserved = statistics.reserved_bytes[XSEG_STAT_ALL].current;
    uint64_t allocated = statistics.allocated_bytes[XSEG_STAT_ALL].current;
    return reserved > allocated ? reserved - allocated : 0;
}

/* PyTorch's own allocator meets the runtime in a forked child, which says that it is not initialised there. */
static void refuse_fork(const std::string &text)
{
    try {
        C10_CUDA_CHECK(cudaErrorInitializationError);
    } catch (c10::Error &error) {
        error.add_context(text);
        throw;
    }
}

/* In PyTorch's words, then in the library's. */
static std::string shortage_text(struct xseg_allocator *library, DeviceIndex device, size_t bytes, const std::string &text)
{
    struct xseg_where where = XSEG_WHERE_ANY;
    where.device = device;
    struct xseg_statistics statistics = XSEG_STATISTICS_INIT;
    std::ostringstream sentence;
    sentence << "CUDA out of memory. Tried to allocate " << size_text(tried_bytes(bytes)) << ". ";
    if (xseg_stats(library, &where, &statistics) == XSEG_OK) {
        size_t free = 0, total = 0;
        c10::cuda::OptionalCUDAGuard guard(device);
        if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
            (void)cudaGetLastError();
        }
        sentence << "GPU " << static_cast<int>(device) << " has a total capacity of " << size_text(statistics.device_bytes)
                 << " of which " << size_text(free) << " is free. ";
        if (statistics.limit_bytes != UINT64_MAX) {
            sentence << size_text(statistics.limit_bytes) << " allowed; ";
        }
        sentence << "Of the allocated memory " << size_text(statistics.allocated_bytes[XSEG_STAT_ALL].current)
                 << " is allocated by PyTorch, and "
                 << size_text(unallocated(statistics))
                 << " is reserved by PyTorch but unallocated. ";
    }
    sentence << "xseg: " << text;
    return sentence.str();
}

Refusal refusal(struct xseg_allocator *library, xseg_status status, DeviceIndex device, size_t bytes)
{
    std::string text = error_text(status);
    if (is_shortage(status)) {
        return {status, shortage_text(library, device, bytes, text), take_exception(bytes)};
    }
    if (status == XSEG_ERR_FORKED) {
        return {status, "xseg: " + text};
    }
    return {status, "xseg: cannot allocate " + std::to_string(bytes) + " bytes on device " +
                        std::to_string(static_cast<int>(device)) + ": " + text};
}

void raise(const Refusal &refusal)
{
    if (refusal.exception != nullptr) {
        std::rethrow_exception(refusal.exception);
    }
    if (refusal.status == XSEG_ERR_FORKED) {
        refuse_fork(refusal.text);
    }
    TORCH_CHECK(is_shortage(refusal.status), refusal.text);
    TORCH_CHECK_WITH(OutOfMemoryError, false, refusal.text);
}

} // namespace xseg_torch
