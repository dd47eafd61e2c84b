/* SPDX-License-Identifier: MIT */
/*
 * Copies, fills and host functions.
 *
 * Without real bytes nothing is moved, and only the addresses are checked.  Host memory that this
 * driver did not give is taken for pageable: an asynchronous copy from it has read all of it on
 * return, one to it waits.
 */
#include <stdlib.h>
#include <string.h>

#include "vmm/sim/action.h"
#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/host.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/stream.h"

enum side { HOST, DEVICE, EITHER };

struct transfer {
    uint64_t to, from, bytes;
    enum side to_side, from_side;
    uint32_t pattern;
    unsigned width; /* 0: a copy */
};

/* An address that lies in no range is one that the driver does not know. */
static CUresult settle_side(enum side *side, uint64_t address)
{
    const bool is_known = sim_range_find(&sim_machine.addresses, address) != NULL;

    if (*side == EITHER)
        *side = is_known ? DEVICE : HOST;
    return (*side == DEVICE && !is_known) || address == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static unsigned owner_of(uint64_t address)
{
    const struct sim_mapping *mapping = sim_mapping_at(address);

    return mapping != NULL ? mapping->physical->device
                           : sim_range_find(&sim_machine.addresses, address)->device;
}

/* The driver copies by whichever device can; a fill is a kernel of the stream's device. */
static CUresult check_side(unsigned device, const struct transfer *transfer, uint64_t address,
                           bool writes)
{
    if (transfer->width == 0 && !sim_can_reach(device, address, transfer->bytes, writes))
        device = owner_of(address);
    return sim_check_reach(device, address, transfer->bytes, writes) ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check(unsigned device, struct transfer *transfer)
{
    CUresult result = settle_side(&transfer->to_side, transfer->to);

    if (result == CUDA_SUCCESS && transfer->width == 0)
        result = settle_side(&transfer->from_side, transfer->from);
    if (result == CUDA_SUCCESS && transfer->to_side == DEVICE)
        result = check_side(device, transfer, transfer->to, true);
    if (result == CUDA_SUCCESS && transfer->width == 0 && transfer->from_side == DEVICE)
        result = check_side(device, transfer, transfer->from, false);
    return result;
}

static struct sim_action *action_of(const struct transfer *transfer)
{
    struct sim_action *action = calloc(1, sizeof(*action));

    if (action == NULL)
        return NULL;
    action->to = transfer->to;
    action->from = transfer->from;
    action->bytes = transfer->bytes;
    action->pattern = transfer->pattern;
    action->width = transfer->width;
    if (transfer->width != 0 || transfer->from_side != HOST ||
        sim_host_is_pinned(transfer->from, transfer->bytes))
        return action;
    action->staged = malloc(transfer->bytes);
    if (action->staged == NULL) {
        free(action);
        return NULL;
    }
    memcpy(action->staged, (const void *)(uintptr_t)transfer->from, transfer->bytes);
    return action;
}

static CUresult queue(struct sim_stream *stream, const struct transfer *transfer)
{
    bool is_queued;

    if (sim_machine.real_bytes) {
        struct sim_action *action = action_of(transfer);

        is_queued = action != NULL && sim_action_queue(stream, action);
    } else {
        is_queued = sim_stream_queue(stream, 0, NULL);
    }
    if (is_queued && transfer->to_side == DEVICE)
        is_queued = sim_touches_add(stream, transfer->to, transfer->bytes);
    if (is_queued && transfer->width == 0 && transfer->from_side == DEVICE)
        is_queued = sim_touches_add(stream, transfer->from, transfer->bytes);
    return is_queued ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool is_to_pageable(const struct transfer *transfer)
{
    return transfer->width == 0 && transfer->to_side == HOST &&
           !sim_host_is_pinned(transfer->to, transfer->bytes);
}

static CUresult run(CUstream handle, bool is_async, struct transfer transfer)
{
    const enum sim_node_type type = transfer.width == 0 ? SIM_NODE_COPY : SIM_NODE_FILL;
    struct sim_stream *stream;
    /* The programming guide lets a copy go to a stream of any device, but not a kernel. */
    CUresult result = sim_stream_find(handle, transfer.width != 0, &stream);

    if (result == CUDA_SUCCESS)
        result = sim_capture_check_use(stream);
    if (result != CUDA_SUCCESS || transfer.bytes == 0)
        return result;
    result = check(stream->device, &transfer);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture != NULL)
        return sim_capture_takes(stream, type, &result) ? result : CUDA_ERROR_UNKNOWN;
    result = queue(stream, &transfer);
    if (result == CUDA_SUCCESS && (!is_async || is_to_pageable(&transfer)))
        sim_work_wait(stream->queue.last);
    return result;
}

static CUresult copy(CUstream stream, bool is_async, uint64_t to, enum side to_side, uint64_t from,
                     enum side from_side, size_t bytes)
{
    return run(
        stream, is_async,
        (struct transfer){
            .to = to, .from = from, .bytes = bytes, .to_side = to_side, .from_side = from_side});
}

static CUresult fill(CUstream stream, bool is_async, uint64_t to, uint32_t pattern, unsigned width,
                     size_t count)
{
    if (to % width != 0 || count > SIZE_MAX / width)
        return CUDA_ERROR_INVALID_VALUE;
    return run(stream, is_async,
               (struct transfer){.to = to,
                                 .bytes = count * width,
                                 .to_side = DEVICE,
                                 .pattern = pattern,
                                 .width = width});
}

static CUresult launch_host(CUstream handle, CUhostFn function, void *argument)
{
    struct sim_action *action;
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, true, &stream);

    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_capture_check_use(stream);
    if (result != CUDA_SUCCESS || sim_capture_takes(stream, SIM_NODE_HOST, &result))
        return result;
    action = calloc(1, sizeof(*action));
    if (action == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    action->function = function;
    action->argument = argument;
    return sim_action_queue(stream, action) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static uint64_t address_of(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

SIM_EXPORT CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    SIM_ANSWER_AT(MEMCPY, dst, src, copy(NULL, false, dst, EITHER, src, EITHER, ByteCount));
}

SIM_EXPORT CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                                          CUstream hStream)
{
    SIM_ANSWER_AT(MEMCPY_ASYNC, dst, src, copy(hStream, true, dst, EITHER, src, EITHER, ByteCount));
}

SIM_EXPORT CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost,
                                            size_t ByteCount)
{
    SIM_ANSWER_AT(MEMCPY_HTOD, dstDevice, 0,
                  copy(NULL, false, dstDevice, DEVICE, address_of(srcHost), HOST, ByteCount));
}

SIM_EXPORT CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost,
                                                 size_t ByteCount, CUstream hStream)
{
    SIM_ANSWER_AT(MEMCPY_HTOD_ASYNC, dstDevice, 0,
                  copy(hStream, true, dstDevice, DEVICE, address_of(srcHost), HOST, ByteCount));
}

SIM_EXPORT CUresult CUDAAPI cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    SIM_ANSWER_AT(MEMCPY_DTOH, srcDevice, 0,
                  copy(NULL, false, address_of(dstHost), HOST, srcDevice, DEVICE, ByteCount));
}

SIM_EXPORT CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice,
                                                 size_t ByteCount, CUstream hStream)
{
    SIM_ANSWER_AT(MEMCPY_DTOH_ASYNC, srcDevice, 0,
                  copy(hStream, true, address_of(dstHost), HOST, srcDevice, DEVICE, ByteCount));
}

SIM_EXPORT CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                            size_t ByteCount)
{
    SIM_ANSWER_AT(MEMCPY_DTOD, dstDevice, srcDevice,
                  copy(NULL, false, dstDevice, DEVICE, srcDevice, DEVICE, ByteCount));
}

SIM_EXPORT CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                                 size_t ByteCount, CUstream hStream)
{
    SIM_ANSWER_AT(MEMCPY_DTOD_ASYNC, dstDevice, srcDevice,
                  copy(hStream, true, dstDevice, DEVICE, srcDevice, DEVICE, ByteCount));
}

SIM_EXPORT CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    SIM_ANSWER_AT(MEMSET_D8, dstDevice, 0, fill(NULL, false, dstDevice, uc, 1, N));
}

SIM_EXPORT CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    SIM_ANSWER_AT(MEMSET_D16, dstDevice, 0, fill(NULL, false, dstDevice, us, 2, N));
}

SIM_EXPORT CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    SIM_ANSWER_AT(MEMSET_D32, dstDevice, 0, fill(NULL, false, dstDevice, ui, 4, N));
}

SIM_EXPORT CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                            CUstream hStream)
{
    SIM_ANSWER_AT(MEMSET_D8_ASYNC, dstDevice, 0, fill(hStream, true, dstDevice, uc, 1, N));
}

SIM_EXPORT CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                             CUstream hStream)
{
    SIM_ANSWER_AT(MEMSET_D16_ASYNC, dstDevice, 0, fill(hStream, true, dstDevice, us, 2, N));
}

SIM_EXPORT CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                             CUstream hStream)
{
    SIM_ANSWER_AT(MEMSET_D32_ASYNC, dstDevice, 0, fill(hStream, true, dstDevice, ui, 4, N));
}

SIM_EXPORT CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    SIM_ANSWER(LAUNCH_HOST_FUNC, launch_host(hStream, fn, userData));
}
