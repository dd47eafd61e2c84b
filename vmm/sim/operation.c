/* SPDX-License-Identifier: MIT */
#include "vmm/sim/operation.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/event.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/report.h"
#include "vmm/sim/stream.h"

static void completion_free(struct sim_completion *completion)
{
    sim_work_release(completion->work);
    free(completion->staged);
    free(completion);
}

/* Queue work with a completion, of which ownership passes to the queue, also on failure. */
static bool queue_completion(struct sim_stream *stream, struct sim_completion *completion)
{
    struct sim_completions *completions = &sim_machine.completions;

    if (!sim_stream_queue(stream, 0, NULL)) {
        completion_free(completion);
        return false;
    }
    completion->work = sim_work_retain(stream->queue.last);
    completion->device = stream->device;
    completion->next = NULL;
    if (completions->first == NULL)
        completions->last = &completions->first;
    *completions->last = completion;
    completions->last = &completion->next;
    return true;
}

static void *pointer_to(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void run_memset(const struct sim_completion *completion)
{
    unsigned char *to = pointer_to(completion->to);

    if (completion->pattern == 0) {
        sim_contents_zero(completion->to, completion->bytes);
        return;
    }
    if (completion->width == 1) {
        memset(to, (int)(completion->pattern & 0xff), completion->bytes);
        return;
    }
    for (uint64_t at = 0; at < completion->bytes; at += completion->width)
        memcpy(to + at, &completion->pattern, completion->width);
}

static void completion_run(const struct sim_completion *completion)
{
    struct sim_completions *completions = &sim_machine.completions;

    if (completion->function != NULL) {
        completions->is_running = true;
        sim_machine.fast_entry = false;
        completions->runner = sim_thread()->number;
        completions->running = completion;
        sim_call_unlocked(completion->function, completion->argument);
        completions->running = NULL;
        completions->is_running = false;
    } else if (completion->width != 0) {
        run_memset(completion);
    } else if (completion->staged != NULL) {
        memcpy(pointer_to(completion->to), completion->staged, completion->bytes);
    } else {
        sim_contents_copy(completion->to, completion->from, completion->bytes);
    }
}

/* Get the link to the completion whose work completed first, or NULL. */
static struct sim_completion **next_due_completion(void)
{
    struct sim_completion **found = NULL;
    uint64_t end = UINT64_MAX;

    for (struct sim_completion **at = &sim_machine.completions.first; *at != NULL;
         at = &(*at)->next) {
        const struct sim_work *work = (*at)->work;

        if (sim_work_completed(work) && (found == NULL || work->end < end)) {
            found = at;
            end = work->end;
        }
    }
    return found;
}

static void completion_unlink(struct sim_completion **at)
{
    struct sim_completions *completions = &sim_machine.completions;

    if (completions->last == &(*at)->next)
        completions->last = at;
    *at = (*at)->next;
}

void sim_completions_run(void)
{
    struct sim_completion **at;

    while (!sim_machine.completions.is_running && (at = next_due_completion()) != NULL) {
        struct sim_completion *completion = *at;

        completion_unlink(at);
        completion_run(completion);
        completion_free(completion);
    }
}

static bool completion_precedes(const struct sim_completion *completion,
                                const struct sim_work *work)
{
    return completion->work->queue == work->queue && completion->work->number <= work->number;
}

bool sim_completions_block(const struct sim_work *work)
{
    const struct sim_completions *completions = &sim_machine.completions;

    if (work == NULL || !completions->is_running || completions->runner == sim_thread()->number)
        return false;
    if (completion_precedes(completions->running, work))
        return true;
    for (const struct sim_completion *at = completions->first; at != NULL; at = at->next)
        if (completion_precedes(at, work))
            return true;
    return false;
}

static bool range_contains(uint64_t address, uint64_t base, uint64_t bytes)
{
    return address >= base && address - base < bytes;
}

const struct sim_completion *sim_completions_find_copy(uint64_t base, uint64_t bytes)
{
    const struct sim_completion *at = sim_machine.completions.first;

    while (at != NULL &&
           (at->function != NULL || at->width != 0 ||
            (!range_contains(at->to, base, bytes) && !range_contains(at->from, base, bytes))))
        at = at->next;
    return at;
}

void sim_completions_discard(unsigned device)
{
    struct sim_completion **at = &sim_machine.completions.first;

    while (*at != NULL) {
        struct sim_completion *completion = *at;

        if (completion->device != device) {
            at = &completion->next;
            continue;
        }
        completion_unlink(at);
        completion_free(completion);
    }
}

/* Resolve SIM_INFERRED, and check that a device address is in a range. */
static CUresult resolve_side(enum sim_side *side, uint64_t address)
{
    const bool is_known = sim_range_find(&sim_machine.addresses, address) != NULL;

    if (*side == SIM_INFERRED)
        *side = is_known ? SIM_DEVICE : SIM_HOST;
    return (*side == SIM_DEVICE && !is_known) || address == 0 ? CUDA_ERROR_INVALID_VALUE
                                                              : CUDA_SUCCESS;
}

static unsigned owning_device(uint64_t address)
{
    const struct sim_mapping *mapping = sim_mapping_at(address);

    return mapping != NULL ? mapping->physical->device
                           : sim_range_find(&sim_machine.addresses, address)->device;
}

/* A copy of an allocation is executed by a device that can access it, and each side of a peer copy by its device.  For
 * other transfers the stream's device needs access. */
static CUresult check_transfer_side(unsigned device, const struct sim_transfer *transfer,
                                    uint64_t address)
{
    if (transfer->is_peer ||
        (transfer->width == 0 && sim_range_find(&sim_machine.addresses, address)->granule == NULL))
        device = owning_device(address);
    return sim_check_accessible(device, address, transfer->bytes) ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_transfer(unsigned device, struct sim_transfer *transfer)
{
    CUresult result = resolve_side(&transfer->to_side, transfer->to);

    if (result == CUDA_SUCCESS && transfer->width == 0)
        result = resolve_side(&transfer->from_side, transfer->from);
    if (result == CUDA_SUCCESS && transfer->to_side == SIM_DEVICE)
        result = check_transfer_side(device, transfer, transfer->to);
    if (result == CUDA_SUCCESS && transfer->width == 0 && transfer->from_side == SIM_DEVICE)
        result = check_transfer_side(device, transfer, transfer->from);
    return result;
}

static bool is_copy_to_pageable(const struct sim_transfer *transfer)
{
    return transfer->width == 0 && transfer->to_side == SIM_HOST &&
           !sim_pinned_contains(transfer->to, transfer->bytes);
}

CUresult sim_operation_check(struct sim_operation *operation)
{
    if (operation->transfer.bytes != 0)
        return check_transfer(operation->device, &operation->transfer);
    for (size_t i = 0; i < operation->accesses && sim_machine.config.strict; i++)
        (void)sim_check_accessible(operation->device, operation->access[i].address,
                                   operation->access[i].bytes);
    return CUDA_SUCCESS;
}

/* Create the completion of a transfer.  Reads a pageable source now. */
static struct sim_completion *create_transfer_completion(const struct sim_transfer *transfer)
{
    struct sim_completion *completion = calloc(1, sizeof(*completion));

    if (completion == NULL)
        return NULL;
    completion->to = transfer->to;
    completion->from = transfer->from;
    completion->bytes = transfer->bytes;
    completion->pattern = transfer->pattern;
    completion->width = transfer->width;
    if (transfer->width != 0 || transfer->from_side != SIM_HOST ||
        sim_pinned_contains(transfer->from, transfer->bytes))
        return completion;
    completion->staged = malloc(transfer->bytes);
    if (completion->staged == NULL) {
        free(completion);
        return NULL;
    }
    memcpy(completion->staged, (const void *)(uintptr_t)transfer->from, transfer->bytes);
    return completion;
}

static bool queue_transfer(struct sim_stream *stream, const struct sim_transfer *transfer)
{
    bool is_queued;

    if (sim_machine.config.real_bytes) {
        struct sim_completion *completion = create_transfer_completion(transfer);

        is_queued = completion != NULL && queue_completion(stream, completion);
    } else {
        is_queued = sim_stream_queue(stream, 0, NULL);
    }
    if (is_queued && transfer->to_side == SIM_DEVICE)
        is_queued = sim_accesses_add(stream, transfer->to, transfer->bytes);
    if (is_queued && transfer->width == 0 && transfer->from_side == SIM_DEVICE)
        is_queued = sim_accesses_add(stream, transfer->from, transfer->bytes);
    return is_queued;
}

static bool queue_host_function(struct sim_stream *stream, const struct sim_operation *operation)
{
    struct sim_completion *completion = calloc(1, sizeof(*completion));

    if (completion == NULL)
        return false;
    completion->function = operation->function;
    completion->argument = operation->argument;
    return queue_completion(stream, completion);
}

static bool queue_kernel(struct sim_stream *stream, const struct sim_operation *operation)
{
    if (!sim_stream_queue(stream, operation->duration, NULL))
        return false;
    for (size_t i = 0; i < operation->accesses; i++) {
        const struct xseg_sim_access *access = &operation->access[i];

        if (access->bytes != 0 && !sim_accesses_add(stream, access->address, access->bytes))
            return false;
    }
    return operation->accesses != 0 || sim_accesses_add(stream, 0, 0);
}

CUresult sim_operation_queue(struct sim_stream *stream, const struct sim_operation *operation)
{
    bool is_queued = true;

    switch (operation->type) {
    case SIM_NODE_MEMCPY:
    case SIM_NODE_MEMSET:
    case SIM_NODE_MEM_OP:
        is_queued = queue_transfer(stream, &operation->transfer);
        break;
    case SIM_NODE_HOST:
        is_queued = queue_host_function(stream, operation);
        break;
    case SIM_NODE_KERNEL:
        is_queued = queue_kernel(stream, operation);
        break;
    case SIM_NODE_EVENT_RECORD:
        return sim_event_record(operation->event, stream);
    case SIM_NODE_EVENT_WAIT:
        return sim_event_queue_wait(operation->event, stream);
    case SIM_NODE_EMPTY:
    case SIM_NODE_CONDITIONAL:
        break;
    }
    return is_queued ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool sim_operation_copy(struct sim_operation *to, const struct sim_operation *from)
{
    struct xseg_sim_access *access = NULL;

    if (from->accesses != 0) {
        access = calloc(from->accesses, sizeof(*access));
        if (access == NULL)
            return false;
        memcpy(access, from->access, from->accesses * sizeof(*access));
    }
    *to = *from;
    to->access = access;
    return true;
}

void sim_operation_destroy(struct sim_operation *operation)
{
    free((void *)(uintptr_t)operation->access);
}

static CUresult submit_transfer(CUstream handle, bool is_async, enum sim_node_type type,
                                const struct sim_transfer *transfer)
{
    struct sim_operation operation = {.type = type, .transfer = *transfer};
    struct sim_stream *stream;
    /* A copy may use a stream of any device (CUDA programming guide). */
    CUresult result = sim_stream_find(handle, transfer->width != 0, &stream);

    if (result == CUDA_SUCCESS)
        result = sim_capture_check_enqueue(stream);
    if (result != CUDA_SUCCESS || transfer->bytes == 0)
        return result;
    operation.device = stream->device;
    result = sim_operation_check(&operation);
    if (result != CUDA_SUCCESS || sim_capture_add_operation(stream, &operation, &result))
        return result;
    result = sim_operation_queue(stream, &operation);
    if (result == CUDA_SUCCESS && (!is_async || is_copy_to_pageable(&operation.transfer)))
        sim_work_wait(stream->queue.last);
    return result;
}

static CUresult submit_copy(CUstream stream, bool is_async, uint64_t to, enum sim_side to_side,
                            uint64_t from, enum sim_side from_side, size_t bytes)
{
    const struct sim_transfer transfer = {
        .to = to, .from = from, .bytes = bytes, .to_side = to_side, .from_side = from_side};

    return submit_transfer(stream, is_async, SIM_NODE_MEMCPY, &transfer);
}

static CUresult submit_memset(CUstream stream, bool is_async, uint64_t to, uint32_t pattern,
                              unsigned width, size_t count)
{
    struct sim_transfer transfer = {
        .to = to, .to_side = SIM_DEVICE, .pattern = pattern, .width = width};

    if (to % width != 0 || count > SIZE_MAX / width)
        return CUDA_ERROR_INVALID_VALUE;
    transfer.bytes = count * width;
    return submit_transfer(stream, is_async, SIM_NODE_MEMSET, &transfer);
}

/* The contexts are checked only; the addresses determine the devices. */
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
    return result == CUDA_SUCCESS ? submit_transfer(stream, true, SIM_NODE_MEMCPY, &transfer)
                                  : result;
}

static CUresult submit_value_write(CUstream stream, uint64_t to, uint32_t value, unsigned flags)
{
    const struct sim_transfer transfer = {
        .to = to, .bytes = 4, .to_side = SIM_DEVICE, .pattern = value, .width = 4};

    if ((flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) != 0 || to % 4 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return submit_transfer(stream, true, SIM_NODE_MEM_OP, &transfer);
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
        result = sim_capture_check_enqueue(stream);
    if (result != CUDA_SUCCESS || sim_capture_add_operation(stream, &operation, &result))
        return result;
    return sim_operation_queue(stream, &operation);
}

static uint64_t address_of(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

SIM_ENTRY_AT(MEMCPY, cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount), dst, src,
             submit_copy(NULL, false, dst, SIM_INFERRED, src, SIM_INFERRED, ByteCount));
SIM_ENTRY_AT(MEMCPY_ASYNC, cuMemcpyAsync,
             (CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream), dst, src,
             submit_copy(hStream, true, dst, SIM_INFERRED, src, SIM_INFERRED, ByteCount));
SIM_ENTRY_AT(MEMCPY_PEER_ASYNC, cuMemcpyPeerAsync,
             (CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
              CUcontext srcContext, size_t ByteCount, CUstream hStream),
             dstDevice, srcDevice,
             submit_peer_copy(hStream, dstDevice, dstContext, srcDevice, srcContext, ByteCount));
SIM_ENTRY_AT(MEMCPY_HTOD, cuMemcpyHtoD_v2,
             (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount), dstDevice, 0,
             submit_copy(NULL, false, dstDevice, SIM_DEVICE, address_of(srcHost), SIM_HOST,
                         ByteCount));
SIM_ENTRY_AT(MEMCPY_HTOD_ASYNC, cuMemcpyHtoDAsync_v2,
             (CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount, CUstream hStream),
             dstDevice, 0,
             submit_copy(hStream, true, dstDevice, SIM_DEVICE, address_of(srcHost), SIM_HOST,
                         ByteCount));
SIM_ENTRY_AT(MEMCPY_DTOH, cuMemcpyDtoH_v2, (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount),
             srcDevice, 0,
             submit_copy(NULL, false, address_of(dstHost), SIM_HOST, srcDevice, SIM_DEVICE,
                         ByteCount));
SIM_ENTRY_AT(MEMCPY_DTOH_ASYNC, cuMemcpyDtoHAsync_v2,
             (void *dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream), srcDevice,
             0,
             submit_copy(hStream, true, address_of(dstHost), SIM_HOST, srcDevice, SIM_DEVICE,
                         ByteCount));
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

/* Convert a CUresult to a status with an error message. */
static xseg_status launch_status(const char *name, CUresult result,
                                 const struct CUstream_st *stream)
{
    switch (result) {
    case CUDA_SUCCESS:
        return XSEG_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return sim_error(XSEG_ERR_HOST_MEMORY, "%s: out of host memory, queued work", name);
    case CUDA_ERROR_INVALID_CONTEXT:
        return sim_error(
            XSEG_ERR_ARGUMENT,
            "%s: no current context for the default stream, %p; call cuCtxSetCurrent() first", name,
            (const void *)stream);
    case CUDA_ERROR_INVALID_HANDLE:
        return sim_error(XSEG_ERR_ARGUMENT,
                         "%s: invalid stream handle, %p; pass a stream that has not been destroyed",
                         name, (const void *)stream);
    default:
        return sim_error(
            XSEG_ERR_ARGUMENT,
            "%s: cannot queue work on stream %p, CUDA error %d; see cuGetErrorString()", name,
            (const void *)stream, (int)result);
    }
}

/* Queue a kernel in the name of a function of sim.h, which reports show as the origin.  A destroyed stream is an error
 * of that function, not undefined behavior, so the name is set after the lookup. */
static CUresult submit_kernel(const char *name, struct CUstream_st *handle, uint64_t nanoseconds,
                              const struct xseg_sim_access *access, size_t count)
{
    struct sim_operation operation = {
        .type = SIM_NODE_KERNEL, .duration = nanoseconds, .access = access, .accesses = count};
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, false, &stream);

    if (result == CUDA_SUCCESS)
        result = sim_capture_check_enqueue(stream);
    if (result != CUDA_SUCCESS)
        return result;
    sim_machine.current_call = name;
    operation.device = stream->device;
    result = sim_operation_check(&operation);
    if (result != CUDA_SUCCESS || sim_capture_add_operation(stream, &operation, &result))
        return result;
    return sim_operation_queue(stream, &operation);
}

static xseg_status launch_kernel(const char *name, struct CUstream_st *stream, uint64_t nanoseconds,
                                 const struct xseg_sim_access *access, size_t count)
{
    CUresult result;

    sim_lock();
    result = submit_kernel(name, stream, nanoseconds, access, count);
    sim_machine.current_call = NULL;
    sim_unlock();
    return launch_status(name, result, stream);
}

xseg_status xseg_sim_launch(struct CUstream_st *stream, uint64_t nanoseconds)
{
    return launch_kernel("xseg_sim_launch", stream, nanoseconds, NULL, 0);
}

xseg_status xseg_sim_launch_accessing(struct CUstream_st *stream, uint64_t nanoseconds,
                                      const struct xseg_sim_access *access, size_t count)
{
    return launch_kernel("xseg_sim_launch_accessing", stream, nanoseconds, access, count);
}

xseg_status xseg_sim_launch_on(struct CUstream_st *stream, uint64_t nanoseconds, uint64_t address,
                               uint64_t bytes)
{
    const struct xseg_sim_access access = {address, bytes};

    return launch_kernel("xseg_sim_launch_on", stream, nanoseconds, &access, 1);
}

xseg_status xseg_sim_finish(struct CUstream_st *stream)
{
    struct sim_stream *found;
    CUresult result;

    sim_lock();
    result = sim_stream_find(stream, false, &found);
    if (result == CUDA_SUCCESS)
        sim_queue_finish(&found->queue);
    sim_unlock();
    return launch_status("xseg_sim_finish", result, stream);
}

static void finish_streams(struct sim_stream *stream)
{
    for (; stream != NULL; stream = stream->next)
        sim_queue_finish(&stream->queue);
}

void xseg_sim_finish_all(void)
{
    sim_lock();
    for (unsigned i = 0; i < sim_machine.config.devices; i++) {
        finish_streams(sim_machine.device[i].streams);
        finish_streams(sim_machine.device[i].destroyed_streams);
    }
    sim_unlock();
}
