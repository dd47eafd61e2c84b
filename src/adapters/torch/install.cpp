/* SPDX-License-Identifier: MIT */
/*
 * Functions that Python calls by ctypes.  On failure, `message` receives the message, truncated to `bytes`.  Each function
 * returns 0 on success, -1 for an invalid value of the caller (ValueError), and -2 for all other failures.
 */
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/contexts.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/held.h"
#include "src/adapters/torch/history.h"
#include "src/adapters/torch/observers.h"
#include "src/adapters/torch/pools.h"
#include "src/adapters/torch/settings.h"
#include "src/adapters/torch/share.h"
#include "src/adapters/torch/tags.h"

namespace xseg_torch
{

static_assert(!std::is_abstract_v<Allocator>,
              "this version of PyTorch has pure virtual methods that the adapter does not "
              "implement; install a newer xseg");

namespace
{

void copy_message(const char *error, char *message, size_t bytes)
{
    if (bytes > 0) {
        std::strncpy(message, error, bytes - 1);
        message[bytes - 1] = '\0';
    }
}

template <class Work> int catch_errors(char *message, size_t bytes, Work work)
{
    try {
        work();
        return 0;
    } catch (const c10::ValueError &error) {
        copy_message(error.what_without_backtrace(), message, bytes);
        return -1;
    } catch (const c10::Error &error) {
        copy_message(error.what_without_backtrace(), message, bytes);
    } catch (const std::exception &error) {
        copy_message(error.what(), message, bytes);
    }
    return -2;
}

Allocator *get_installed()
{
    TORCH_CHECK(installed() != nullptr,
                "xseg.torch: PyTorch does not use xseg; import xseg.torch first");
    return installed();
}

Allocator *get_opened()
{
    TORCH_CHECK(get_installed()->library() != nullptr,
                "xseg.torch: CUDA is not initialized; call torch.cuda.init() first");
    return installed();
}

void install_allocator()
{
    if (installed() != nullptr) {
        return;
    }
    CUDAAllocator *current = caching::allocator.load();
    TORCH_CHECK(current != nullptr,
                "xseg.torch: PyTorch was built without CUDA; install a build with CUDA");
    TORCH_CHECK(current->name() == "native",
                "xseg.torch: PyTorch already uses another allocator, '", current->name(), "'; ",
                current->name() == "cudaMallocAsync"
                    ? "remove backend:cudaMallocAsync from the configuration"
                    : "do not call torch.cuda.memory.change_current_allocator()");
    TORCH_CHECK(!current->initialized(),
                "xseg.torch: CUDA is already initialized with PyTorch's own allocator; import "
                "xseg.torch right after torch, or set XSEG_TORCH=1 in the environment");
    synchronize_settings();
    auto allocator = std::make_unique<Allocator>();
    set_installed(allocator.get());
    caching::allocator.store(allocator.get());
    c10::SetAllocator(c10::DeviceType::CUDA, allocator.release(), UINT8_MAX);
}

/* Get whether a line reports that a key of added_keys() has no effect.  The user has not set the key, so the line is not
 * logged.  A call that needs such memory reports the reason. */
bool concerns_added_key(const char *line)
{
    std::string keys = added_keys();
    return (keys.find("exportable") != std::string::npos &&
            std::strstr(line, ": exportable has no effect") != nullptr) ||
           (keys.find("rdma") != std::string::npos &&
            std::strstr(line, ": rdma has no effect") != nullptr);
}

/* Get a line without the keys that the library ignores and PyTorch applies; "" if no key remains. */
std::string without_pytorch_keys(const std::string &line)
{
    static const std::string prefix = "configuration: keys have no effect, ";
    if (line.compare(0, prefix.size(), prefix) != 0) {
        return line;
    }
    std::string result;
    std::istringstream keys(line.substr(prefix.size()));
    for (std::string key; std::getline(keys >> std::ws, key, ',');) {
        if (key.rfind("pinned_", 0) != 0 && key != "backend") {
            result += (result.empty() ? prefix : ", ") + key;
        }
    }
    return result;
}

void log_line(void *, enum xseg_log_level level, const char *line)
{
    std::string library_line = without_pytorch_keys(line);
    if (level != XSEG_LOG_INFO && !concerns_added_key(line) && !library_line.empty()) {
        (void)std::fprintf(stderr, "xseg: %s\n", library_line.c_str());
    }
}

struct xseg_allocator *open_library()
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *opened = nullptr;
    options.log = log_line;
    check(xseg_open(nullptr, &options, &opened), "torch.cuda.init");
    return opened;
}

/* Closes the library if initialization fails. */
struct LibraryCloser {
    void operator()(struct xseg_allocator *opened) const
    {
        detach_ipc();
        remove_observers();
        detach_settings();
        warn(xseg_close(opened), "torch.cuda.init");
    }
};

} // namespace

/* The library is opened when CUDA is initialized, so that a process can fork before. */
void Allocator::init(int count)
{
    static std::mutex *const mutex = new std::mutex;
    AdapterLock<std::mutex> lock(*mutex);
    TORCH_CHECK(count <= DEVICES_MAX, "xseg.torch: too many devices, ", count,
                "; set CUDA_VISIBLE_DEVICES to at most ", DEVICES_MAX, " devices");
    if (library() == nullptr) {
        std::unique_ptr<struct xseg_allocator, LibraryCloser> opened(open_library());
        struct xseg_history_hook hook = context_hook();
        check(xseg_history_set_hook(opened.get(), &hook), "torch.cuda.init");
        add_observers(opened.get());
        apply_settings(opened.get());
        follow_forks();
        attach_ipc(opened.get());
        library_.store(opened.release(), std::memory_order_release);
        set_thread_label(this);
    }
    if (count > device_count()) {
        device_count_.store(count, std::memory_order_release);
    }
}

} // namespace xseg_torch

using namespace xseg_torch;

extern "C" {

/** Make xseg the allocator of PyTorch. */
XSEG_API int xseg_torch_install(char *message, size_t bytes)
{
    return catch_errors(message, bytes, install_allocator);
}

/** The library's allocator; NULL until CUDA is initialized. */
XSEG_API struct xseg_allocator *xseg_torch_library(void)
{
    return installed() == nullptr ? nullptr : installed()->library();
}

/** Mark a device as open, because Python has created an object of the library on it. */
XSEG_API int xseg_torch_open_device(int device, char *message, size_t bytes)
{
    return catch_errors(message, bytes,
                        [&] { get_opened()->open_device(static_cast<DeviceIndex>(device)); });
}

/** Reject a string for torch.cuda.memory._set_allocator_settings() before PyTorch applies a part of it. */
XSEG_API int xseg_torch_check_settings(const char *settings, size_t length, char *message,
                                       size_t bytes)
{
    return catch_errors(message, bytes, [&] { check_settings(std::string(settings, length)); });
}

/** Restore PyTorch's settings after it has rejected a string. */
XSEG_API int xseg_torch_restore_settings(char *message, size_t bytes)
{
    return catch_errors(message, bytes, restore_settings);
}

/** The last string if expandable_segments:False in it was ignored, truncated to `bytes`; "": otherwise. */
XSEG_API int xseg_torch_acknowledged(char *message, size_t bytes)
{
    return catch_errors(message, bytes,
                        [&] { copy_message(acknowledged_settings().c_str(), message, bytes); });
}

/** Get whether cudaIpcGetMemHandle() is served for memory of the library. */
XSEG_API bool xseg_torch_serves_ipc(void)
{
    return serves_ipc();
}

/** Get whether PyTorch notifies the adapter of new settings. */
XSEG_API bool xseg_torch_has_settings_hook(void)
{
    return XSEG_TORCH_HAS_ALLOCATOR_CONFIG;
}

/** Apply a string of torch.cuda.memory._set_allocator_settings(), if PyTorch does not notify the adapter. */
XSEG_API int xseg_torch_settings(const char *settings, char *message, size_t bytes)
{
    return catch_errors(message, bytes, [&] { set_settings(settings); });
}

/** The library's pool of an ID of PyTorch; NULL if PyTorch retains no such pool. */
XSEG_API struct xseg_pool *xseg_torch_pool(int device, uint64_t first, uint64_t second)
{
    try {
        return retained_pool(static_cast<DeviceIndex>(device), {first, second});
    } catch (const std::exception &) {
        return nullptr; /* a forked child has none */
    }
}

/** Create the pool of a tag.  registered: blocks are single pages that network adapters can access. */
XSEG_API int xseg_torch_tag(int device, const char *name, uint64_t first, uint64_t second,
                            bool registered, struct xseg_pool **pool, char *message, size_t bytes)
{
    return catch_errors(message, bytes, [&] {
        *pool = make_tag(get_opened(), static_cast<DeviceIndex>(device), name, {first, second},
                         registered ? Memory::REGISTERED : Memory::PLAIN);
    });
}

XSEG_API int xseg_torch_tag_enter(struct xseg_pool *pool, char *message, size_t bytes)
{
    return catch_errors(message, bytes, [&] { enter_tag(get_opened(), pool); });
}

XSEG_API int xseg_torch_tag_leave(char *message, size_t bytes)
{
    return catch_errors(message, bytes, [] { leave_tag(get_opened()); });
}

/** pool: the pool of the label's tag; NULL for none */
XSEG_API int xseg_torch_tag_label(struct xseg_pool *pool, char *message, size_t bytes)
{
    return catch_errors(message, bytes, [&] { label_tag(get_opened(), pool); });
}

XSEG_API int xseg_torch_tag_suspend(bool is_suspended, char *message, size_t bytes)
{
    return catch_errors(message, bytes, [&] { suspend_tags(is_suspended); });
}
}
