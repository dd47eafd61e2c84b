/* SPDX-License-Identifier: MIT */
/* The functions of driver.h for peers. */
#include <string.h>

#include "vmm/driver_entry.h"

CUmemAccessDesc xseg_driver_access_desc(int device, CUmemAccess_flags flags)
{
    CUmemAccessDesc access;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = flags;
    return access;
}

xseg_status xseg_driver_can_access_peer(struct xseg_context *owner, const struct xseg_context *peer,
                                        bool *can)
{
    int answer = 0;
    const xseg_status status = STATUS_ON(owner, DeviceCanAccessPeer, XSEG_ERR_DRIVER, 0, &answer,
                                         peer->device, owner->device);

    if (status == XSEG_OK)
        *can = answer != 0;
    return status;
}

/* Call in the peer's context, since rights on allocations belong to the context that uses them. */
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
    INSIDE_RELAXED(peer, CtxDisablePeerAccess, XSEG_ERR_DRIVER, 0, owner->primary);
}

xseg_status xseg_driver_set_peer_access(struct xseg_context *owner, int peer, uint64_t address,
                                        uint64_t bytes, bool is_allowed)
{
    const CUmemAccessDesc access = xseg_driver_access_desc(
        peer, is_allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE);

    return STATUS_ON(owner, MemSetAccess, XSEG_ERR_DRIVER, bytes, address, bytes, &access, 1);
}
