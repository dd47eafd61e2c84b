/* SPDX-License-Identifier: MIT */
/*
 * IPC of tensors.  The first byte of a handle is the kind of the other bytes:
 *
 *     'x'  an export token (xseg/share.h) of the run of pages that contains the tensor's block
 *     'c'  the CUDA runtime's handle of the classic segment that contains the block
 *
 * PyTorch sends the offset of the tensor in the run or the segment together with the handle.
 */
#include "src/adapters/torch/share.h"

#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/held.h"
#include "xseg/ipc.h"

namespace xseg_torch
{

namespace
{

constexpr char BY_TOKEN = 'x';
constexpr char BY_SEGMENT = 'c';

/* Memory of another process, open in this one. */
struct Import {
    struct xseg_allocator *library; /* NULL: a classic segment, opened by the CUDA runtime */
    void *ptr;
    DeviceIndex device;
};

/* An open export of a block. */
struct Export {
    struct xseg_export_token token;
    uint64_t offset; /* of the block in the run */
};

struct Shares {
    std::mutex mutex;
    std::atomic<int> captures[DEVICES_MAX] = {};
    std::atomic<bool> has_deferred{false};
    std::vector<Import> deferred; /* imports to close after the captures of their devices */
    std::unordered_map<void *, Export> exported;                   /* by the start of the block */
    std::unordered_map<std::string, std::weak_ptr<void>> imported; /* by handle */
};

Shares &shares()
{
    static Shares *const the_shares = new Shares;
    return *the_shares;
}

Export export_block(struct xseg_allocator *library, void *base)
{
    AdapterLock<std::mutex> lock(shares().mutex);
    auto found = shares().exported.find(base);
    if (found != shares().exported.end()) {
        return found->second;
    }
    Export created;
    check(xseg_export(library, base, &created.token, &created.offset), "shareIpcHandle");
    shares().exported.emplace(base, created);
    attached_count.fetch_add(1);
    return created;
}

std::string export_segment(void *base)
{
    cudaIpcMemHandle_t handle;
    C10_CUDA_CHECK(cudaIpcGetMemHandle(&handle, base));
    return std::string(reinterpret_cast<const char *>(&handle), sizeof handle);
}

/*
 * Close imported memory.  Returns false if its device has an active capture.  Work on any stream may use the memory, so the
 * function synchronizes the device, which would invalidate a capture.  A deleter calls the function, so it must not throw.
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
        warn(status, "close imported memory");
    } catch (const std::exception &failure) {
        TORCH_WARN("xseg.torch: cannot close imported memory, which remains mapped until the "
                   "process exits: ",
                   failure.what());
    }
    return true;
}

void defer_close(const Import &import)
{
    AdapterLock<std::mutex> lock(shares().mutex);
    shares().deferred.push_back(import);
    shares().has_deferred.store(true);
}

std::shared_ptr<void> make_import_owner(const Import &import)
{
    return std::shared_ptr<void>(import.ptr, [import](void *) {
        if (!close_import(import)) {
            defer_close(import);
            /* If the capture has ended in the meantime, no later call may close the import. */
            if (shares().captures[import.device].load() == 0) {
                close_deferred_imports();
            }
        }
    });
}

std::shared_ptr<void> import_segment(const std::string &payload)
{
    cudaIpcMemHandle_t handle;
    TORCH_CHECK(
        payload.size() == sizeof handle, "xseg.torch: invalid IPC handle, segment handle of ",
        payload.size(),
        " bytes; send the handle whole, and run the same version of xseg in both processes");
    std::memcpy(&handle, payload.data(), sizeof handle);
    void *ptr = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&ptr, handle, cudaIpcMemLazyEnablePeerAccess));
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return make_import_owner({nullptr, ptr, device});
}

std::shared_ptr<void> import_run(Allocator *allocator, const std::string &payload)
{
    struct xseg_export_token token;
    TORCH_CHECK(
        payload.size() == sizeof token, "xseg.torch: invalid IPC handle, export token of ",
        payload.size(),
        " bytes; send the handle whole, and run the same version of xseg in both processes");
    std::memcpy(&token, payload.data(), sizeof token);
    void *ptr = nullptr;
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    allocator->open_device(device);
    check(xseg_import(allocator->library(), device, &token, &ptr), "getIpcDevPtr");
    return make_import_owner({allocator->library(), ptr, device});
}

/* Get the open memory of a handle, or NULL. */
std::shared_ptr<void> find_import(const std::string &handle)
{
    auto found = shares().imported.find(handle);
    return found == shares().imported.end() ? nullptr : found->second.lock();
}

/* Record the opened memory of a handle, or get the memory that another thread has opened concurrently. */
std::shared_ptr<void> register_import(const std::string &handle,
                                      const std::shared_ptr<void> &opened)
{
    if (std::shared_ptr<void> existing = find_import(handle)) {
        return existing;
    }
    for (auto at = shares().imported.begin(); at != shares().imported.end();) {
        at = at->second.expired() ? shares().imported.erase(at) : std::next(at);
    }
    shares().imported[handle] = opened;
    return opened;
}

} // namespace

static std::atomic<bool> is_attached{false};

void attach_ipc(struct xseg_allocator *library)
{
    static const struct xseg_ipc_functions functions = {sizeof(functions),   xseg_block_query,
                                                        xseg_export_segment, xseg_import,
                                                        xseg_import_close,   xseg_error_message};
    auto *attach =
        reinterpret_cast<decltype(&xseg_ipc_attach)>(dlsym(RTLD_DEFAULT, "xseg_ipc_attach"));
    if (attach == nullptr) {
        return;
    }
    is_attached.store(attach(library, &functions));
    if (!is_attached.load()) {
        TORCH_WARN("xseg.torch: libxseg-ipc.so is of another version, or serves another allocator; "
                   "cudaIpcGetMemHandle() fails for tensors");
    }
}

void detach_ipc(void)
{
    auto *detach =
        reinterpret_cast<decltype(&xseg_ipc_detach)>(dlsym(RTLD_DEFAULT, "xseg_ipc_detach"));
    if (detach != nullptr) {
        detach();
    }
    is_attached.store(false);
}

bool serves_ipc()
{
    Dl_info found, own;
    return is_attached.load() && dladdr(dlsym(RTLD_DEFAULT, "cudaIpcGetMemHandle"), &found) != 0 &&
           dladdr(dlsym(RTLD_DEFAULT, "xseg_ipc_attach"), &own) != 0 &&
           found.dli_fbase == own.dli_fbase;
}

void count_capture(DeviceIndex device, bool begins)
{
    shares().captures[device].fetch_add(begins ? 1 : -1);
}

void close_deferred_imports()
{
    if (!shares().has_deferred.load()) {
        return;
    }
    std::vector<Import> deferred;
    {
        AdapterLock<std::mutex> lock(shares().mutex);
        deferred.swap(shares().deferred);
        shares().has_deferred.store(false);
    }
    for (const Import &import : deferred) {
        if (!close_import(import)) {
            defer_close(import);
        }
    }
}

xseg_status close_export(struct xseg_allocator *library, void *ptr)
{
    if (installed()->is_forked()) {
        return XSEG_ERR_FORKED;
    }
    AdapterLock<std::mutex> lock(shares().mutex);
    if (shares().exported.erase(ptr) == 0) {
        return XSEG_OK;
    }
    attached_count.fetch_sub(1);
    return xseg_export_close(library, ptr);
}

ShareableHandle Allocator::shareIpcHandle(void *ptr)
{
    struct xseg_block_info block = {sizeof(block)};
    xseg_status status = xseg_block_query(library_, ptr, &block);
    TORCH_CHECK(status == XSEG_OK && block.state == XSEG_BLOCK_ALLOCATED,
                "invalid device pointer: ", ptr,
                "; share memory of a tensor that PyTorch has allocated on xseg");
    if (!block.is_expandable) {
        return {static_cast<char *>(ptr) - static_cast<char *>(block.segment_base),
                BY_SEGMENT + export_segment(block.segment_base)};
    }
    Export created = export_block(library_, block.base);
    std::string payload(reinterpret_cast<const char *>(created.token.byte),
                        sizeof created.token.byte);
    return {static_cast<char *>(ptr) - static_cast<char *>(block.base) +
                static_cast<ptrdiff_t>(created.offset),
            BY_TOKEN + payload};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle)
{
    TORCH_CHECK(!handle.empty() && (handle[0] == BY_TOKEN || handle[0] == BY_SEGMENT),
                "xseg.torch: IPC handle was not created by xseg; use xseg in the process that "
                "sends the tensor "
                "as well, such as by XSEG_TORCH=1 in its environment");
    close_deferred_imports();
    {
        AdapterLock<std::mutex> lock(shares().mutex);
        if (std::shared_ptr<void> existing = find_import(handle)) {
            return existing;
        }
        /* The CUDA runtime opens a segment only once per process, so the lock is held. */
        if (handle[0] == BY_SEGMENT) {
            return register_import(handle, import_segment(handle.substr(1)));
        }
    }
    /* The other process may take seconds to reply, so no lock is held. */
    std::shared_ptr<void> opened = import_run(this, handle.substr(1));
    std::shared_ptr<void> registered;
    {
        AdapterLock<std::mutex> lock(shares().mutex);
        registered = register_import(handle, opened);
    }
    return registered;
}

} // namespace xseg_torch
