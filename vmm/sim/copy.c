/* SPDX-License-Identifier: MIT */
/*
 * Copies, fills, written values and host functions.
 *
 * An asynchronous copy from pageable host memory has read all of it on return, one to it waits.
 */
#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/operation.h"
#include "vmm/sim/stream.h"

static CUresult submit_transfer(CUstream handle, bool is_async, enum sim_node_type type,
                                const struct sim_transfer *transfer)
{
    struct sim_operation operation = {.type = type, .transfer = *transfer};
    struct sim_stream *stream;
    /* The programming guide lets a copy go to a stream of any device, but not a kernel. */
    CUresult result = sim_stream_find(handle, transfer->width != 0, &stream);

    if (result == CUDA_SUCCESS)
        result = sim_capture_check_use(stream);
    if (result != CUDA_SUCCESS || transfer->bytes == 0)
        return result;
    operation.device = stream->device;
    result = sim_operation_check(&operation);
    if (result != CUDA_SUCCESS || sim_capture_takes(stream, &operation, &result))
        return result;
    result = sim_operation_queue(stream, &operation);
    if (result == CUDA_SUCCESS && (!is_async || sim_transfer_is_to_pageable(&operation.transfer)))
        sim_work_wait(stream->queue.last);
    return result;
}

static CUresult submit_copy(CUstream stream, bool is_async, uint64_t to, enum sim_side to_side,
                            uint64_t from, enum sim_side from_side, size_t bytes)
{
    const struct sim_transfer transfer = {
        .to = to, .from = from, .bytes = bytes, .to_side = to_side, .from_side = from_side};

    return submit_transfer(stream, is_async, SIM_NODE_COPY, &transfer);
}

static CUresult submit_memset(CUstream stream, bool is_async, uint64_t to, uint32_t pattern,
                              unsigned width, size_t count)
{
    struct sim_transfer transfer = {
        .to = to, .to_side = SIM_DEVICE, .pattern = pattern, .width = width};

    if (to % width != 0 || count > SIZE_MAX / width)
        return CUDA_ERROR_INVALID_VALUE;
    transfer.bytes = count * width;
    return submit_transfer(stream, is_async, SIM_NODE_FILL, &transfer);
}

/* The devices are named for nothing: where memory is, its address says. */
static CUresult submit_peer_copy(CUstream stream, uint64_t to, CUcontext to_context, uint64_t from,
                                 CUcontext from_context, size_t bytes)
{
    const struct sim_transfer transfer = {.to = to,
                                          .from = from,
                                          .bytes = bytes,
                                          .to_side = SIM_DEVICE,
                                          .from_side = SIM_DEVICE,
                                          .is_peer = true};
    unsigned device;
    CUresult result = sim_context_device(to_context, &device);

    if (result == CUDA_SUCCESS)
        result = sim_context_device(from_context, &device);
    return result == CUDA_SUCCESS ? submit_transfer(stream, true, SIM_NODE_COPY, &transfer)
                                  : result;
}

/* Write one value, as a memory operation of the stream. */
static CUresult submit_value_write(CUstream stream, uint64_t to, uint32_t value, unsigned flags)
{
    const struct sim_transfer transfer = {
        .to = to, .bytes = 4, .to_side = SIM_DEVICE, .pattern = value, .width = 4};

    if ((flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) != 0 || to % 4 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return submit_transfer(stream, true, SIM_NODE_MEMORY, &transfer);
}

static CUresult submit_host_function(CUstream handle, CUhostFn function, void *argument)
{
    struct sim_operation operation = {
        .type = SIM_NODE_HOST, .function = function, .argument = argument};
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, true, &stream);

    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_capture_check_use(stream);
    if (result != CUDA_SUCCESS || sim_capture_takes(stream, &operation, &result))
        return result;
    return sim_operation_queue(stream, &operation);
}

static uint64_t address_of(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

SIM_ENTRY_AT(MEMCPY, cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), dst, src,
             submit_copy(NULL, false, dst, SIM_EITHER, src, SIM_EITHER, ByteCount));
SIM_ENTRY_AT(MEMCPY_ASYNC, cuMemcpyAsync,
             (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream), dst, src,
             submit_copy(hStream, true, dst, SIM_EITHER, src, SIM_EITHER, ByteCount));
SIM_ENTRY_AT(MEMCPY_PEER_ASYNC, cuMemcpyPeerAsync,
             (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
              CUcontext srcContext, size_t ByteCount, CUstream hStream),
             dstDevice, srcDevice,
             submit_peer_copy(hStream, dstDevice, dstContext, srcDevice, srcContext, ByteCount));
SIM_ENTRY_AT(MEMCPY_HTOD, cuMemcpyHtoD_v2,
             (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount), dstDevice, 0,
             submit_copy(NULL, false, dstDevice, SIM_DEVICE, address_of(srcHost), SIM_HOST, ByteCount));
SIM_ENTRY_AT(MEMCPY_HTOD_ASYNC, cuMemcpyHtoDAsync_v2,
             (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
             dstDevice, 0,
             submit_copy(hStream, true, dstDevice, SIM_DEVICE, address_of(srcHost), SIM_HOST, ByteCount));
SIM_ENTRY_AT(MEMCPY_DTOH, cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
             srcDevice, 0,
             submit_copy(NULL, false, address_of(dstHost), SIM_HOST, srcDevice, SIM_DEVICE, ByteCount));
SIM_ENTRY_AT(MEMCPY_DTOH_ASYNC, cuMemcpyDtoHAsync_v2,
             (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream), srcDevice,
             0,
             submit_copy(hStream, true, address_of(dstHost), SIM_HOST, srcDevice, SIM_DEVICE, ByteCount));
SIM_ENTRY_AT(MEMCPY_DTOD, cuMemcpyDtoD_v2,
             (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount), dstDevice, srcDevice,
             submit_copy(NULL, false, dstDevice, SIM_DEVICE, srcDevice, SIM_DEVICE, ByteCount));
SIM_ENTRY_AT(MEMCPY_DTOD_ASYNC, cuMemcpyDtoDAsync_v2,
             (CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream),
             dstDevice, srcDevice,
             submit_copy(hStream, true, dstDevice, SIM_DEVICE, srcDevice, SIM_DEVICE, ByteCount));
SIM_ENTRY_AT(MEMSET_D8, cuMemsetD8_v2, (CUdeviceptr dstDevice, unsigned char uc, size_t N),
             dstDevice, 0, submit_memset(NULL, false, dstDevice, uc, 1, N));
SIM_ENTRY_AT(MEMSET_D16, cuMemsetD16_v2, (CUdeviceptr dstDevice, unsigned short us, size_t N),
             dstDevice, 0, submit_memset(NULL, false, dstDevice, us, 2, N));
SIM_ENTRY_AT(MEMSET_D32, cuMemsetD32_v2, (CUdeviceptr dstDevice, unsigned int ui, size_t N),
             dstDevice, 0, submit_memset(NULL, false, dstDevice, ui, 4, N));
SIM_ENTRY_AT(MEMSET_D8_ASYNC, cuMemsetD8Async,
             (CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream), dstDevice, 0,
             submit_memset(hStream, true, dstDevice, uc, 1, N));
SIM_ENTRY_AT(MEMSET_D16_ASYNC, cuMemsetD16Async,
             (CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream), dstDevice, 0,
             submit_memset(hStream, true, dstDevice, us, 2, N));
SIM_ENTRY_AT(MEMSET_D32_ASYNC, cuMemsetD32Async,
             (CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream), dstDevice, 0,
             submit_memset(hStream, true, dstDevice, ui, 4, N));
SIM_ENTRY(LAUNCH_HOST_FUNC, cuLaunchHostFunc, (CUstream hStream, CUhostFn fn, void *userData),
          submit_host_function(hStream, fn, userData));
SIM_ENTRY_AT(STREAM_WRITE_VALUE32, cuStreamWriteValue32_v2,
             (CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags), addr, 0,
             submit_value_write(stream, addr, value, flags));
