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

/** The message of the calling thread's last failed call, without the name of the library's function. */
std::string error_text(xseg_status status);

/** Sizes as PyTorch writes them, such as "2.00 GiB". */
std::string size_text(uint64_t bytes);

/** Record the details of a request of the calling thread that fails unless an observer frees memory. */
void record_failure(const struct xseg_oom_info *info);

/**
 * Holds an exception, or none.  A std::exception_ptr is not used: GCC 12 compiles its copies and its destructor to calls of
 * functions that libstdc++ exports since GCC 11, and wheels run with the libstdc++ of GCC 8.  This class calls the
 * destructor that every libstdc++ exports, and never copies.
 */
class KeptException
{
  public:
    KeptException() = default;
    KeptException(KeptException &&other) noexcept : object(std::exchange(other.object, nullptr)) {}
    KeptException &operator=(KeptException &&other) noexcept
    {
        std::swap(object, other.object);
        return *this;
    }
    ~KeptException();

    /** The exception that the calling thread handles. */
    static KeptException current();

    bool is_held() const
    {
        return object != nullptr;
    }

    [[noreturn]] void rethrow() const;

  private:
    void *object = nullptr; /* the content of a std::exception_ptr: a reference to the exception */
};

/** Keep the exception that the calling thread handles, which a callback has thrown during a request.  raise() throws the first one
 * if the request fails. */
void keep_current_exception();

/** Throws c10::Error with the library's message unless the status is XSEG_OK.  operation: of PyTorch */
void check(xseg_status status, const char *operation);

/** Warns with the library's message, except in a forked child and on a lost device, where every free fails. */
void warn(xseg_status status, const char *operation);

/** Like record_failure(), for a request that was rejected (throw_on_cudamalloc_oom) and has PyTorch's message for that. */
void record_rejection(const struct xseg_oom_info *info);

/** Log an out-of-memory of the device, like PyTorch at level INFO (TORCH_CPP_LOG_LEVEL). */
void log_out_of_memory(const struct xseg_oom_info *info);

/** A failed request. */
struct Failure {
    xseg_status status;
    std::string text;
    KeptException exception{}; /* of a callback; raise() throws it instead */
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
