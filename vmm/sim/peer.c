/* SPDX-License-Identifier: MIT */
/*
 * Peers: which device may use the allocations of which other.
 *
 * This is about cuMemAlloc only.  Mapped memory has access rights of its own, which enabling a peer
 * neither gives nor takes.
 */
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"

/* Drivers have about that much room for each device. */
#define PEERS_MAX 8

static CUresult can_access_peer(int *out, CUdevice device, CUdevice peer)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || (unsigned)device >= sim_machine.devices || peer < 0 ||
        (unsigned)peer >= sim_machine.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    *out = device != peer && !sim_machine.without_peers;
    return CUDA_SUCCESS;
}

static CUresult find_peer_pair(CUcontext context, unsigned *device, unsigned *peer)
{
    CUresult result = sim_context_current(device);

    if (result == CUDA_SUCCESS)
        result = sim_context_device(context, peer);
    if (result == CUDA_SUCCESS && *device == *peer)
        result = CUDA_ERROR_INVALID_DEVICE;
    return result;
}

static unsigned count_peers(uint64_t bits)
{
    return (unsigned)__builtin_popcountll(bits);
}

static CUresult enable_peer_access(CUcontext context, unsigned flags)
{
    unsigned device, peer;
    CUresult result;

    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = find_peer_pair(context, &device, &peer);
    if (result != CUDA_SUCCESS)
        return result;
    if (sim_machine.without_peers)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if ((sim_machine.device[device].peers >> peer & 1) != 0)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (count_peers(sim_machine.device[device].peers) == PEERS_MAX)
        return CUDA_ERROR_TOO_MANY_PEERS;
    sim_machine.device[device].peers |= (uint64_t)1 << peer;
    return CUDA_SUCCESS;
}

static CUresult disable_peer_access(CUcontext context)
{
    unsigned device, peer;
    CUresult result = find_peer_pair(context, &device, &peer);

    if (result != CUDA_SUCCESS)
        return result;
    if ((sim_machine.device[device].peers >> peer & 1) == 0)
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    sim_machine.device[device].peers &= ~((uint64_t)1 << peer);
    return CUDA_SUCCESS;
}

SIM_ENTRY(DEVICE_CAN_ACCESS_PEER, cuDeviceCanAccessPeer,
          (int *canAccessPeer, CUdevice dev, CUdevice peerDev),
          can_access_peer(canAccessPeer, dev, peerDev));
SIM_ENTRY(CTX_ENABLE_PEER, cuCtxEnablePeerAccess, (CUcontext peerContext, unsigned int Flags),
          enable_peer_access(peerContext, Flags));
SIM_ENTRY(CTX_DISABLE_PEER, cuCtxDisablePeerAccess, (CUcontext peerContext), disable_peer_access(peerContext));
