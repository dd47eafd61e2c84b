/* SPDX-License-Identifier: MIT */
/* The functions of driver.h for devices, memory and peers. */
#include <fcntl.h>
#include <string.h>

#include "vmm/driver_entry.h"

/* --- Devices. --- */

xseg_status xseg_driver_retain(struct xseg_context *context)
{
    CUcontext *const kept_context = &context->driver->kept_context[context->ordinal];
    CUcontext primary = NULL;
    xseg_status status =
        CALL_STATUS_ON(context, DeviceGet, XSEG_ERR_DRIVER, 0, &context->device, context->ordinal);

    if (status == XSEG_OK && *kept_context != NULL) {
        primary = *kept_context;
        *kept_context = NULL;
    } else if (status == XSEG_OK) {
        status = CALL_STATUS_ON(context, DevicePrimaryCtxRetain, XSEG_ERR_DRIVER, 0, &primary,
                                context->device);
    }
    context->primary = primary;
    context->poll_counts = &context->driver->poll_counts[context->ordinal];
    return status;
}

xseg_status xseg_driver_release_context(struct xseg_context *context)
{
    xseg_status status = XSEG_OK;

    if (context->primary != NULL)
        status =
            CALL_STATUS_ON(context, DevicePrimaryCtxRelease, XSEG_ERR_DRIVER, 0, context->device);
    if (status == XSEG_OK)
        context->primary = NULL;
    return status;
}

/* The context of a lost device is invalid, so it is not kept. */
void xseg_driver_release_context_or_keep(struct xseg_context *context)
{
    if (xseg_driver_release_context(context) != XSEG_OK && !xseg_context_is_lost(context))
        context->driver->kept_context[context->ordinal] = context->primary;
    context->primary = NULL;
}

xseg_status xseg_driver_release_kept_contexts(struct xseg_driver *driver)
{
    xseg_status result = XSEG_OK;

    for (int i = 0; i < driver->devices; i++) {
        struct xseg_context context = {.driver = driver, .ordinal = i};
        xseg_status status = XSEG_OK;

        if (driver->kept_context[i] == NULL)
            continue;
        status = xseg_driver_retain(&context); /* uses the kept context */
        if (status == XSEG_OK)
            status = xseg_driver_release_context(&context);
        if (context.primary != NULL && !xseg_context_is_lost(&context))
            driver->kept_context[i] = context.primary;
        if (result == XSEG_OK && driver->kept_context[i] != NULL)
            result = status;
    }
    return result;
}

/* CU_MEM_HANDLE_TYPE_FABRIC, which is missing from older headers. */
#define HANDLE_TYPE_FABRIC 8

static CUmemAllocationProp allocation_properties(const struct xseg_context *context,
                                                 unsigned properties)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = context->device;
    if ((properties & XSEG_PAGE_RDMA) != 0)
        prop.allocFlags.gpuDirectRDMACapable = 1;
    if ((properties & XSEG_PAGE_EXPORTABLE) != 0)
        prop.requestedHandleTypes =
            (CUmemAllocationHandleType)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                                        (context->has_fabric ? HANDLE_TYPE_FABRIC : 0));
    return prop;
}

xseg_status xseg_driver_describe(struct xseg_context *context)
{
    const CUmemAllocationProp prop = allocation_properties(context, 0);
    size_t total = 0, granularity = 0;
    int has_vmm = 0, is_integrated = 0;
    xseg_status status =
        CALL_STATUS_ON(context, DeviceTotalMem, XSEG_ERR_DRIVER, 0, &total, context->device);

    if (status == XSEG_OK)
        status = CALL_STATUS_ON(context, DeviceGetAttribute, XSEG_ERR_DRIVER, 0, &has_vmm,
                                CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                context->device);
    if (status == XSEG_OK)
        status = CALL_STATUS_ON(context, DeviceGetAttribute, XSEG_ERR_DRIVER, 0, &is_integrated,
                                CU_DEVICE_ATTRIBUTE_INTEGRATED, context->device);
    if (status == XSEG_OK && has_vmm != 0)
        status = CALL_STATUS_ON(context, MemGetAllocationGranularity, XSEG_ERR_DRIVER, 0,
                                &granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    context->total_bytes = total;
    context->is_integrated = is_integrated != 0;
    context->has_vmm = has_vmm != 0;
    context->granularity = granularity;
    return status;
}

/* --- Memory. --- */

xseg_status xseg_driver_memory_info(struct xseg_context *context, uint64_t *free, uint64_t *total)
{
    RETURN_CALL_IN_CONTEXT(context, MemGetInfo, XSEG_ERR_DRIVER, 0, free, total);
}

xseg_status xseg_driver_alloc(struct xseg_context *context, uint64_t bytes, uint64_t *address)
{
    CUdeviceptr pointer = 0;
    int mode = 0;
    xseg_status status = xseg_driver_push_context_relaxed(context, &mode);

    if (status != XSEG_OK)
        return status;
    status = CALL_STATUS_ON(context, MemAlloc, XSEG_ERR_NO_MEMORY, bytes, &pointer, bytes);
    xseg_driver_pop_context_relaxed(context, mode);
    if (status == XSEG_OK)
        *address = pointer;
    return status;
}

xseg_status xseg_driver_free(struct xseg_context *context, uint64_t address)
{
    RETURN_CALL_RELAXED(context, MemFree, XSEG_ERR_DRIVER, 0, address);
}

xseg_status xseg_driver_reserve(struct xseg_context *context, uint64_t bytes, uint64_t alignment,
                                uint64_t *address)
{
    CUdeviceptr pointer = 0;
    const CUresult result =
        CALL(context->driver, MemAddressReserve, &pointer, bytes, alignment, 0, 0);

    if (result == CUDA_SUCCESS)
        *address = pointer;
    return xseg_driver_status(context->driver, context, XSEG_ENTRY_MemAddressReserve, result,
                              XSEG_ERR_NO_ADDRESSES, bytes);
}

xseg_status xseg_driver_unreserve(struct xseg_context *context, uint64_t address, uint64_t bytes)
{
    return CALL_STATUS_ON(context, MemAddressFree, XSEG_ERR_DRIVER, bytes, address, bytes);
}

/* Whether the device does not support such memory or handles, or does not permit this process to
 * use them. */
static bool is_handle_unsupported(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED;
}

xseg_status xseg_driver_create(struct xseg_context *context, uint64_t bytes, unsigned properties,
                               uint64_t *handle)
{
    const CUmemAllocationProp prop = allocation_properties(context, properties);
    CUmemGenericAllocationHandle created = 0;
    const CUresult result = CALL(context->driver, MemCreate, &created, bytes, &prop, 0);

    if (result == CUDA_SUCCESS)
        *handle = created;
    const xseg_status status = xseg_driver_status(context->driver, context, XSEG_ENTRY_MemCreate,
                                                  result, XSEG_ERR_NO_MEMORY, bytes);
    return properties != 0 && is_handle_unsupported(result) ? XSEG_ERR_UNSUPPORTED : status;
}

xseg_status xseg_driver_release(struct xseg_context *context, uint64_t handle)
{
    return CALL_STATUS_ON(context, MemRelease, XSEG_ERR_DRIVER, 0, handle);
}

xseg_status xseg_driver_map(struct xseg_context *context, uint64_t address, uint64_t bytes,
                            uint64_t handle)
{
    return CALL_STATUS_ON(context, MemMap, XSEG_ERR_NO_MEMORY, bytes, address, bytes, 0, handle, 0);
}

xseg_status xseg_driver_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes)
{
    RETURN_CALL_IN_CONTEXT(context, MemUnmap, XSEG_ERR_DRIVER, bytes, address, bytes);
}

static CUmemAccessDesc access_desc(int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc access;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = flags;
    return access;
}

xseg_status xseg_driver_set_access(struct xseg_context *context, uint64_t address, uint64_t bytes)
{
    CUmemAccessDesc access[1 + XSEG_PEERS_MAX];

    access[0] = access_desc(context->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    for (unsigned i = 0; i < context->peers; i++)
        access[1 + i] = access_desc(context->peer[i], CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return CALL_STATUS_ON(context, MemSetAccess, XSEG_ERR_NO_MEMORY, bytes, address, bytes, access,
                          1 + context->peers);
}

/* CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, which is missing from older headers. */
#define POINTER_IS_RDMA_CAPABLE 15

/* Query a boolean attribute.  For an unknown address cuPointerGetAttributes() returns 0, where
 * cuPointerGetAttribute() fails. */
static xseg_status query_pointer_flag(struct xseg_context *context, uint64_t address,
                                      CUpointer_attribute attribute, bool *is_set)
{
    unsigned value = 0;
    void *values = &value;
    xseg_status status = xseg_driver_push_context(context);

    if (status != XSEG_OK)
        return status;
    status = CALL_STATUS_ON(context, PointerGetAttributes, XSEG_ERR_DRIVER, 0, 1, &attribute,
                            &values, address);
    xseg_driver_pop_context(context);
    if (status == XSEG_OK)
        *is_set = value != 0;
    return status;
}

xseg_status xseg_driver_is_mapped(struct xseg_context *context, uint64_t address, bool *mapped)
{
    return query_pointer_flag(context, address, CU_POINTER_ATTRIBUTE_MAPPED, mapped);
}

xseg_status xseg_driver_is_rdma_capable(struct xseg_context *context, uint64_t address,
                                        bool *is_capable)
{
    return query_pointer_flag(context, address, (CUpointer_attribute)POINTER_IS_RDMA_CAPABLE,
                              is_capable);
}

/* --- Peers. --- */

xseg_status xseg_driver_can_access_peer(struct xseg_context *owner, const struct xseg_context *peer,
                                        bool *can_access)
{
    int value = 0;
    const xseg_status status = CALL_STATUS_ON(owner, DeviceCanAccessPeer, XSEG_ERR_DRIVER, 0,
                                              &value, peer->device, owner->device);

    if (status == XSEG_OK)
        *can_access = value != 0;
    return status;
}

/* The call is made in the peer's context, because access rights to allocations belong to the
 * context that uses them. */
xseg_status xseg_driver_enable_peer(struct xseg_context *owner, struct xseg_context *peer,
                                    bool *is_new)
{
    int mode = 0;
    xseg_status status = xseg_driver_push_context_relaxed(peer, &mode);

    if (status != XSEG_OK)
        return status;
    const CUresult result = CALL(peer->driver, CtxEnablePeerAccess, owner->primary, 0);
    *is_new = result == CUDA_SUCCESS;
    if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        status = xseg_driver_status(peer->driver, peer, XSEG_ENTRY_CtxEnablePeerAccess, result,
                                    XSEG_ERR_DRIVER, 0);
    xseg_driver_pop_context_relaxed(peer, mode);
    if (result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED || result == CUDA_ERROR_TOO_MANY_PEERS)
        return XSEG_ERR_UNSUPPORTED;
    return status;
}

xseg_status xseg_driver_disable_peer(struct xseg_context *owner, struct xseg_context *peer)
{
    RETURN_CALL_RELAXED(peer, CtxDisablePeerAccess, XSEG_ERR_DRIVER, 0, owner->primary);
}

xseg_status xseg_driver_set_peer_access(struct xseg_context *owner, int peer, uint64_t address,
                                        uint64_t bytes, bool is_allowed)
{
    const CUmemAccessDesc access = access_desc(peer, is_allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                : CU_MEM_ACCESS_FLAGS_PROT_NONE);

    return CALL_STATUS_ON(owner, MemSetAccess, XSEG_ERR_DRIVER, bytes, address, bytes, &access, 1);
}

/* --- Sharing. --- */

xseg_status xseg_driver_uuid(struct xseg_context *context, uint8_t uuid[XSEG_DRIVER_UUID_BYTES])
{
    CUuuid value;
    const xseg_status status =
        CALL_STATUS_ON(context, DeviceGetUuid, XSEG_ERR_DRIVER, 0, &value, context->device);

    if (status == XSEG_OK)
        memcpy(uuid, value.bytes, XSEG_DRIVER_UUID_BYTES);
    return status;
}

xseg_status xseg_driver_export(struct xseg_context *context, uint64_t handle, int *file)
{
    int descriptor = -1;
    const CUresult result = CALL(context->driver, MemExportToShareableHandle, &descriptor, handle,
                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    const xseg_status status =
        xseg_driver_status(context->driver, context, XSEG_ENTRY_MemExportToShareableHandle, result,
                           XSEG_ERR_DRIVER, 0);

    if (status != XSEG_OK)
        return is_handle_unsupported(result) ? XSEG_ERR_UNSUPPORTED : status;
    /* Without this flag a program that inherits the descriptor would retain the memory. */
    (void)fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    *file = descriptor;
    return XSEG_OK;
}

/* CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, which is missing from older headers. */
#define DMA_BUF_OVER_PCIE 1

xseg_status xseg_driver_dmabuf(struct xseg_context *context, uint64_t address, uint64_t bytes,
                               bool is_pcie, int *file)
{
    int descriptor = -1;
    xseg_status status = xseg_driver_push_context(context);

    if (status != XSEG_OK)
        return status;
    const CUresult result =
        CALL(context->driver, MemGetHandleForAddressRange, &descriptor, address, bytes,
             CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, is_pcie ? DMA_BUF_OVER_PCIE : 0);
    status = xseg_driver_status(context->driver, context, XSEG_ENTRY_MemGetHandleForAddressRange,
                                result, XSEG_ERR_DRIVER, bytes);
    xseg_driver_pop_context(context);
    /* CUDA_ERROR_INVALID_VALUE: the range spans several allocations, or the driver does not support
     * the flag. */
    if (is_handle_unsupported(result) || result == CUDA_ERROR_INVALID_VALUE)
        return XSEG_ERR_UNSUPPORTED;
    if (status != XSEG_OK)
        return status;
    (void)fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    *file = descriptor;
    return XSEG_OK;
}

xseg_status xseg_driver_import(struct xseg_context *context, int file, uint64_t *handle)
{
    CUmemGenericAllocationHandle imported = 0;
    void *argument = (void *)(intptr_t)file; /* NOLINT(performance-no-int-to-ptr) */
    const xseg_status status =
        CALL_STATUS_ON(context, MemImportFromShareableHandle, XSEG_ERR_NO_MEMORY, 0, &imported,
                       argument, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (status == XSEG_OK)
        *handle = imported;
    return status;
}

xseg_status xseg_driver_export_fabric(struct xseg_context *context, uint64_t handle,
                                      uint8_t out[XSEG_DRIVER_FABRIC_BYTES])
{
    const CUresult result = CALL(context->driver, MemExportToShareableHandle, out, handle,
                                 (CUmemAllocationHandleType)HANDLE_TYPE_FABRIC, 0);
    const xseg_status status =
        xseg_driver_status(context->driver, context, XSEG_ENTRY_MemExportToShareableHandle, result,
                           XSEG_ERR_DRIVER, 0);

    /* CUDA_ERROR_INVALID_VALUE: the page was created without a fabric handle. */
    return is_handle_unsupported(result) || result == CUDA_ERROR_INVALID_VALUE
               ? XSEG_ERR_UNSUPPORTED
               : status;
}

xseg_status xseg_driver_import_fabric(struct xseg_context *context,
                                      const uint8_t in[XSEG_DRIVER_FABRIC_BYTES], uint64_t *handle)
{
    uint8_t argument[XSEG_DRIVER_FABRIC_BYTES];
    CUmemGenericAllocationHandle imported = 0;

    memcpy(argument, in, sizeof(argument));
    const CUresult result = CALL(context->driver, MemImportFromShareableHandle, &imported, argument,
                                 (CUmemAllocationHandleType)HANDLE_TYPE_FABRIC);
    const xseg_status status =
        xseg_driver_status(context->driver, context, XSEG_ENTRY_MemImportFromShareableHandle,
                           result, XSEG_ERR_NO_MEMORY, 0);
    if (status == XSEG_OK)
        *handle = imported;
    return is_handle_unsupported(result) ? XSEG_ERR_UNSUPPORTED : status;
}

/* --- Copies. --- */

xseg_status xseg_driver_fill(struct xseg_context *context, uint64_t address, uint64_t bytes,
                             uint32_t word, xseg_stream stream)
{
    RETURN_CALL_IN_CONTEXT(context, MemsetD32Async, XSEG_ERR_DRIVER, bytes, address, word,
                           bytes / 4, stream);
}

xseg_status xseg_driver_copy_to_host(struct xseg_context *context, void *host, uint64_t address,
                                     uint64_t bytes, xseg_stream stream)
{
    RETURN_CALL_IN_CONTEXT(context, MemcpyDtoHAsync, XSEG_ERR_DRIVER, bytes, host, address, bytes,
                           stream);
}

xseg_status xseg_driver_copy_from_host(struct xseg_context *context, uint64_t address,
                                       const void *host, uint64_t bytes, xseg_stream stream)
{
    RETURN_CALL_IN_CONTEXT(context, MemcpyHtoDAsync, XSEG_ERR_DRIVER, bytes, address, host, bytes,
                           stream);
}

xseg_status xseg_driver_host_alloc(struct xseg_context *context, uint64_t bytes, void **host)
{
    RETURN_CALL_RELAXED(context, MemHostAlloc, XSEG_ERR_HOST_MEMORY, bytes, host, bytes, 0);
}

xseg_status xseg_driver_host_free(struct xseg_context *context, void *host)
{
    RETURN_CALL_RELAXED(context, MemFreeHost, XSEG_ERR_DRIVER, 0, host);
}
