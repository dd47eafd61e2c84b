/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"

namespace xseg_torch
{

/*
 * `device` may access the memory of `owner`.  The runtime's switch covers what its own allocations have; mapped memory
 * has rights of its own, which the library gives.
 */
void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex owner)
{
    check_device(device);
    open_device(owner);
    {
        c10::cuda::CUDAGuard guard(device);
        cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
        } else {
            C10_CUDA_CHECK(error);
        }
    }
    check(xseg_peer_allow(library_, owner, device), "enablePeerAccess");
}

/* Without peer access a plain copy between devices fails for mapped memory; the peer copy serves all memory. */
cudaError_t Allocator::memcpyAsync(void *to, int to_device, const void *from, int from_device,
                                   size_t bytes, cudaStream_t stream, bool is_peer)
{
    if (is_peer || to_device == from_device) {
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

} // namespace xseg_torch
