/* SPDX-License-Identifier: MIT */
/*
 * Failures of the library become exceptions of PyTorch, or warnings where a function must not throw.
 *
 * Messages are `xseg.torch: <operation>: <what failed>, <value>; <what to do>`.  The operation is a function of PyTorch that
 * the user recognizes.  Out-of-memory messages, and others that programs compare, begin with PyTorch's text.
 */
#ifndef XSEG_ADAPTERS_TORCH_ERRORS_H
#define XSEG_ADAPTERS_TORCH_ERRORS_H

#include <exception>
#include <string>
#include <utility>

#include "src/adapters/torch/interface.h"
#include "xseg/xseg.h"

namespace xseg_torch
{

/** Get the message of the calling thread's last failed call, without the name of the library's function. */
std::string error_message(xseg_status status);

/** Format a size as PyTorch does, such as "2.00 GiB". */
std::string size_string(uint64_t bytes);

/** Record the details of a request of the calling thread that fails unless an observer frees memory. */
void record_failure(const struct xseg_oom_info *info);

/**
 * Holds an exception, or none.  A std::exception_ptr is not used: GCC 12 compiles its copies and its destructor to calls of
 * functions that libstdc++ exports since GCC 11, and wheels run with the libstdc++ of GCC 8.  This class calls the
 * destructor that every libstdc++ exports, and never copies.
 */
class StoredException
{
  public:
    StoredException() = default;
    StoredException(StoredException &&other) noexcept : object(std::exchange(other.object, nullptr))
    {
    }
    StoredException &operator=(StoredException &&other) noexcept
    {
        std::swap(object, other.object);
        return *this;
    }
    ~StoredException();

    /** Get the exception that the calling thread handles. */
    static StoredException current();

    bool has_value() const
    {
        return object != nullptr;
    }

    [[noreturn]] void rethrow() const;

  private:
    void *object = nullptr; /* the content of a std::exception_ptr: a reference to the exception */
};

/** Store the exception that the calling thread handles, which a callback has thrown during a request.  If the request fails,
 * raise() throws the first stored exception. */
void store_current_exception();

/** Throw c10::Error with the library's message unless the status is XSEG_OK.  operation: the function of PyTorch */
void check(xseg_status status, const char *operation);

/** Warn with the library's message, except in a forked child and on a lost device, where every free fails. */
void warn(xseg_status status, const char *operation);

/** As record_failure(), for a request that was rejected (throw_on_cudamalloc_oom), for which PyTorch has its own message. */
void record_rejection(const struct xseg_oom_info *info);

/** Log an out-of-memory error of the device at level INFO (TORCH_CPP_LOG_LEVEL), as PyTorch does. */
void log_out_of_memory(const struct xseg_oom_info *info);

/** A failed request. */
struct Failure {
    xseg_status status;
    std::string text;
    StoredException exception{}; /* of a callback; raise() throws it instead */
};

/**
 * Create the message of a failed request.
 *
 * This is separate from raise(), because it calls the library, which may record a call stack.  raise() never returns, so its
 * return address may be in the next function, which PyTorch's unwinder would then report.
 */
Failure failure_of(struct xseg_allocator *library, xseg_status status, DeviceIndex device,
                   size_t bytes);

/** Throw the exception of a callback, or c10::OutOfMemoryError if memory is exhausted, otherwise c10::Error. */
[[noreturn]] void raise(const Failure &failure);

} // namespace xseg_torch

#endif
