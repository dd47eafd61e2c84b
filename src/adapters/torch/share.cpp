/* SPDX-License-Identifier: MIT */
/*
 * Sharing tensors between processes.  A handle is a string; its first byte says what follows:
 *     'x'  the text of xseg_export_text(), which is all that the importer needs
 *     'c'  the runtime's handle of the classic segment around the block
 */
#include "src/adapters/torch/share.h"

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/held.h"

namespace xseg_torch {

namespace {

constexpr char BY_TEXT = 'x';
constexpr char BY_SEGMENT = 'c';

/* Memory of another process, open in this one. */
struct Import {
    struct xseg_allocator *library; /* NULL: a segment of the runtime's */
    void *ptr;
    DeviceIndex device;
};

struct Shares {
    std::mutex mutex;
    std::atomic<int> captures[DEVICES_MOST] = {};
    std::atomic<bool> has_left{false};
    std::vector<Import> left; /* to be closed when the captures of their devices have ended */
    std::unordered_map<void *, std::string> exported;             /* by the start of the block */
    std::unordered_map<std::string, std::weak_ptr<void>> imported; /* by handle */
};

Shares &shares()
{
    static Shares *const the_shares = new Shares;
    return *the_shares;
}

std::string export_block(struct xseg_allocator *library, void *base)
{
    Held<std::mutex> lock(shares().mutex);
    auto found = shares().exported.find(base);
    if (found != shares().exported.end()) {
        return found->second;
    }
    char written[XSEG_SHARE_TEXT_BYTES];
    check(xseg_export_text(library, base, written, sizeof written, nullptr), "the block cannot be shared");
    std::string text = written;
    shares().exported.emplace(base, text);
    attached_count.fetch_add(1);
    return text;
}

std::string export_segment(void *base)
{
    cudaIpcMemHandle_t handle;
    C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, base));
    return std::string(reinterpret_cast<const char *>(&handle), sizeof handle);
}

/*
 * Close imported memory with its device current; false: a capture is under way there.  Work on any stream may use the
 * memory, so the device is waited for, which would spoil a capture.  A deleter must not throw, and to change the device
 * may.
 */
bool close_import(const Import &import)
{
    if (installed()->is_forked()) {
        return true;
    }
    if (shares().captures[import.device].load() != 0) {
        return false;
    }
    try {
        c10::cuda::CUDAGuard guard(import.device);
        if (import.library == nullptr) {
            C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(import.ptr));
            return true;
        }
        C10_CUDA_CHECK_WARN(cudaDeviceSynchronize());
        xseg_status status = xseg_import_close(import.library, import.ptr);
        if (status == XSEG_ERR_BUSY) {
            return false;
        }
        warn(status, "imported memory stays mapped until the process ends");
    } catch (const std::exception &failure) {
        TORCH_WARN("xseg: imported memory stays mapped until the process ends, since its device cannot be used: ",
                   failure.what());
    }
    return true;
}

void keep_left(const Import &import)
{
    Held<std::mutex> lock(shares().mutex);
    shares().left.push_back(import);
    shares().has_left.store(true);
}

std::shared_ptr<void> own_import(const Import &import)
{
    return std::shared_ptr<void>(import.ptr, [import](void *) {
        if (!close_import(import)) {
            keep_left(import);
            /* The capture may have ended meanwhile, and nothing else may come that closes. */
            if (shares().captures[import.device].load() == 0) {
                close_left_imports();
            }
        }
    });
}

std::shared_ptr<void> import_segment(const std::string &payload)
{
    cudaIpcMemHandle_t handle;
    TORCH_CHECK(payload.size() == sizeof handle, "xseg: a handle of ", payload.size(), " bytes is not one of a segment: send it "
                "whole, and run the same version of xseg in both processes");
    std::memcpy(&handle, payload.data(), sizeof handle);
    void *ptr = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&ptr, handle, cudaIpcMemLazyEnablePeerAccess));
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return own_import({nullptr, ptr, device});
}

std::shared_ptr<void> import_text(Allocator *allocator, const std::string &text)
{
    void *ptr = nullptr;
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    allocator->open_device(device);
    check(xseg_import_text(allocator->library(), device, text.c_str(), &ptr), "the memory cannot be opened");
    return own_import({allocator->library(), ptr, device});
}

/* What a handle was opened to, if that is still open. */
std::shared_ptr<void> find_import(const std::string &handle)
{
    auto found = shares().imported.find(handle);
    return found == shares().imported.end() ? nullptr : found->second.lock();
}

/* Remember what a handle was opened to; what another thread has opened it to meanwhile comes first. */
std::shared_ptr<void> note_import(const std::string &handle, const std::shared_ptr<void> &opened)
{
    if (std::shared_ptr<void> other = find_import(handle)) {
        return other;
    }
    for (auto at = shares().imported.begin(); at != shares().imported.end();) {
        at = at->second.expired() ? shares().imported.erase(at) : std::next(at);
    }
    shares().imported[handle] = opened;
    return opened;
}

} // namespace

void note_capture(DeviceIndex device, bool begins)
{
    shares().captures[device].fetch_add(begins ? 1 : -1);
}

void close_left_imports()
{
    if (!shares().has_left.load()) {
        return;
    }
    std::vector<Import> left;
    {
        Held<std::mutex> lock(shares().mutex);
        left.swap(shares().left);
        shares().has_left.store(false);
    }
    for (const Import &import : left) {
        if (!close_import(import)) {
            keep_left(import);
        }
    }
}

xseg_status take_back_share(struct xseg_allocator *library, void *ptr)
{
    if (installed()->is_forked()) {
        return XSEG_ERR_FORKED;
    }
    Held<std::mutex> lock(shares().mutex);
    if (shares().exported.erase(ptr) == 0) {
        return XSEG_OK;
    }
    attached_count.fetch_sub(1);
    return xseg_export_close(library, ptr);
}

ShareableHandle Allocator::shareIpcHandle(void *ptr)
{
    struct xseg_block_info block = XSEG_BLOCK_INFO_INIT;
    xseg_status status = xseg_block(library_, ptr, &block);
    TORCH_CHECK(status == XSEG_OK && block.state == XSEG_BLOCK_LIVE, "invalid device pointer: ", ptr,
                ": xseg: send memory of a tensor that xseg has allocated");
    char *base = static_cast<char *>(block.is_expandable ? block.base : block.segment_base);
    std::string payload = block.is_expandable ? BY_TEXT + export_block(library_, base) : BY_SEGMENT + export_segment(base);
    return {static_cast<char *>(ptr) - base, std::move(payload)};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle)
{
    TORCH_CHECK(!handle.empty() && (handle[0] == BY_TEXT || handle[0] == BY_SEGMENT),
                "xseg: the handle was not made by xseg: the process that sends tensors must run on xseg as well, "
                "for instance by XSEG_TORCH=1 in its environment");
    close_left_imports();
    {
        Held<std::mutex> lock(shares().mutex);
        if (std::shared_ptr<void> held = find_import(handle)) {
            return held;
        }
        /* The runtime opens a segment once in a process, so one thread at a time does. */
        if (handle[0] == BY_SEGMENT) {
            return note_import(handle, import_segment(handle.substr(1)));
        }
    }
    /* The other process may take seconds to answer, so no lock is held. */
    std::shared_ptr<void> opened = import_text(this, handle.substr(1));
    std::shared_ptr<void> kept;
    {
        Held<std::mutex> lock(shares().mutex);
        kept = note_import(handle, opened);
    }
    return kept;
}

} // namespace xseg_torch
