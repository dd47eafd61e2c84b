/* SPDX-License-Identifier: MIT */
#include "vmm/sim/stream.h"

#include <stdlib.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"

static void stream_link(struct sim_stream **list, struct sim_stream *stream)
{
    stream->before = NULL;
    stream->after = *list;
    if (*list != NULL)
        (*list)->before = stream;
    *list = stream;
}

static void stream_unlink(struct sim_stream **list, struct sim_stream *stream)
{
    if (stream->before != NULL)
        stream->before->after = stream->after;
    else
        *list = stream->after;
    if (stream->after != NULL)
        stream->after->before = stream->before;
}

/* Free destroyed streams whose work has ended and that no event remembers. */
static void free_completed_streams(struct sim_device *device)
{
    struct sim_stream *after;

    sim_touches_prune();
    for (struct sim_stream *stream = device->departed; stream != NULL; stream = after) {
        after = stream->after;
        if (!sim_work_ended(stream->queue.last))
            continue;
        sim_queue_forget(&stream->queue);
        if (stream->queue.pieces != 0)
            continue;
        stream_unlink(&device->departed, stream);
        free(stream);
    }
}

static struct sim_stream *stream_create(unsigned device, unsigned flags)
{
    struct sim_stream *stream;

    free_completed_streams(&sim_machine.device[device]);
    stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return NULL;
    stream->handle = sim_handles_add(&sim_machine.streams, stream);
    if (stream->handle == 0) {
        free(stream);
        return NULL;
    }
    stream->id = ++sim_machine.last_stream_id;
    stream->device = device;
    stream->flags = flags;
    stream_link(&sim_machine.device[device].streams, stream);
    return stream;
}

static struct sim_stream *legacy_stream(unsigned device)
{
    struct sim_device *at = &sim_machine.device[device];

    if (at->legacy == NULL) {
        at->legacy = stream_create(device, CU_STREAM_DEFAULT);
        if (at->legacy != NULL)
            at->legacy->is_legacy = at->legacy->is_made_here = true;
    }
    return at->legacy;
}

static struct sim_stream *per_thread_stream(unsigned device)
{
    struct sim_thread *thread = sim_thread();
    struct sim_stream *stream = sim_handles_find(&sim_machine.streams, thread->per_thread[device]);

    /* After a reset of the device another stream may have the handle. */
    if (stream == NULL || stream->device != device || stream->thread != thread->number) {
        stream = stream_create(device, CU_STREAM_DEFAULT);
        if (stream == NULL)
            return NULL;
        stream->is_made_here = true;
        stream->thread = thread->number;
        thread->per_thread[device] = stream->handle;
    }
    return stream;
}

CUresult sim_stream_find(CUstream handle, bool must_be_current, struct sim_stream **out)
{
    const bool is_default =
        handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    unsigned device = 0;
    CUresult result;

    if (is_default || must_be_current) {
        result = sim_context_current(&device);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if (is_default) {
        *out = handle == CU_STREAM_PER_THREAD ? per_thread_stream(device) : legacy_stream(device);
        return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = sim_handles_find(&sim_machine.streams, (uint64_t)(uintptr_t)handle);
    if (*out == NULL) {
        sim_handles_check(&sim_machine.streams, (uint64_t)(uintptr_t)handle, "stream:");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return must_be_current && (*out)->device != device ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

/* Let one stream wait for what another has been given so far; `noted` remembers how much that was. */
static bool wait_for_stream(struct sim_stream *stream, const struct sim_stream *other,
                            uint64_t *noted)
{
    if (sim_work_ended(other->queue.last) || other->queue.last->number == *noted)
        return true;
    *noted = other->queue.last->number;
    return sim_work_queue(&stream->queue, 0, other->queue.last);
}

static bool wait_for_blocking_streams(struct sim_stream *legacy, struct sim_stream *list)
{
    bool fine = true;

    for (; list != NULL && fine; list = list->after)
        if (list != legacy && list->flags != CU_STREAM_NON_BLOCKING)
            fine = wait_for_stream(legacy, list, &list->passed_on);
    return fine;
}

bool sim_stream_heed(struct sim_stream *stream)
{
    const struct sim_device *device = &sim_machine.device[stream->device];

    if (stream->flags == CU_STREAM_NON_BLOCKING)
        return true;
    if (stream->is_legacy)
        return wait_for_blocking_streams(stream, device->streams) &&
               wait_for_blocking_streams(stream, device->departed);
    return device->legacy == NULL || wait_for_stream(stream, device->legacy, &stream->heeded);
}

bool sim_stream_queue(struct sim_stream *stream, uint64_t duration, struct sim_work *dependency)
{
    return sim_stream_heed(stream) && sim_work_queue(&stream->queue, duration, dependency);
}

static void stream_retire(struct sim_stream *stream, bool is_destroyed)
{
    struct sim_device *device = &sim_machine.device[stream->device];

    sim_handles_remove(&sim_machine.streams, stream->handle, is_destroyed);
    stream_unlink(&device->streams, stream);
    stream_link(&device->departed, stream);
    free_completed_streams(device);
}

void sim_streams_end(unsigned device)
{
    struct sim_device *at = &sim_machine.device[device];

    while (at->streams != NULL) {
        sim_capture_leave(at->streams);
        sim_queue_finish(&at->streams->queue);
        stream_retire(at->streams, false);
    }
    for (struct sim_stream *stream = at->departed; stream != NULL; stream = stream->after)
        sim_queue_finish(&stream->queue);
    free_completed_streams(at);
    at->legacy = NULL;
}

void sim_streams_wait(unsigned device)
{
    struct sim_device *at = &sim_machine.device[device];

    for (struct sim_stream *stream = at->streams; stream != NULL; stream = stream->after)
        sim_work_wait(stream->queue.last);
    for (struct sim_stream *stream = at->departed; stream != NULL; stream = stream->after)
        sim_work_wait(stream->queue.last);
    free_completed_streams(at);
}

static void advance_past_streams(const struct sim_stream *stream)
{
    for (; stream != NULL; stream = stream->after) {
        const struct sim_work *last = stream->queue.last;

        if (!sim_work_ended(last) && last->end != SIM_OPEN)
            sim_machine.now = last->end;
    }
}

void sim_streams_pass_timed(unsigned device)
{
    advance_past_streams(sim_machine.device[device].streams);
    advance_past_streams(sim_machine.device[device].departed);
}

static CUresult create_stream(CUstream *out, unsigned flags)
{
    struct sim_stream *stream;
    unsigned device;

    if (out == NULL || (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_context_current(&device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    stream = stream_create(device, flags);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUstream)(uintptr_t)stream->handle;
    return CUDA_SUCCESS;
}

static CUresult destroy_stream(CUstream handle)
{
    struct sim_stream *stream = sim_handles_find(&sim_machine.streams, (uint64_t)(uintptr_t)handle);

    if (stream == NULL) {
        sim_handles_check(&sim_machine.streams, (uint64_t)(uintptr_t)handle, "stream:");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (stream->capture != NULL)
        return sim_capture_refuse_stream(stream);
    stream_retire(stream, true);
    return CUDA_SUCCESS;
}

static CUresult query_stream(CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, true, &stream);

    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_stream(stream);
    if (result != CUDA_SUCCESS)
        return result;
    sim_charge(sim_machine.costs.event_query);
    sim_machine.waits = sim_work_ended(stream->queue.last) && !sim_actions_hold(stream->queue.last);
    return sim_machine.waits ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult synchronize_stream(CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, true, &stream);

    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_stream(stream);
    if (result != CUDA_SUCCESS)
        return result;
    sim_charge(sim_machine.costs.synchronize);
    sim_work_wait(stream->queue.last);
    return CUDA_SUCCESS;
}

/* A question whose answer goes where `out` points. */
#define ANSWER(name, type, what)                                                              \
    static CUresult name(CUstream handle, type *out)                                          \
    {                                                                                         \
        struct sim_stream *stream;                                                            \
        CUresult result =                                                                     \
            out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_stream_find(handle, false, &stream); \
                                                                                              \
        if (result == CUDA_SUCCESS)                                                           \
            *out = (what);                                                                    \
        return result;                                                                        \
    }
ANSWER(get_stream_id, unsigned long long, stream->id)
ANSWER(get_stream_context, CUcontext, sim_context_handle(stream->device))
ANSWER(get_stream_flags, unsigned, stream->flags)
ANSWER(get_stream_priority, int, 0)
#undef ANSWER

/* Either may be NULL. */
static CUresult get_priority_range(int *least, int *greatest)
{
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = 0;
    return CUDA_SUCCESS;
}

SIM_ENTRY(STREAM_CREATE, cuStreamCreate, (CUstream *phStream, unsigned int Flags),
          create_stream(phStream, Flags));

/*
 * The devices have no priorities: any is accepted, and clamped to the only one there is, as the real
 * call does.
 */
SIM_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags,
                                                       int priority)
{
    (void)priority;
    SIM_ANSWER(STREAM_CREATE_PRIORITY, create_stream(phStream, flags));
}

SIM_ENTRY(STREAM_DESTROY, cuStreamDestroy_v2, (CUstream hStream), destroy_stream(hStream));
SIM_ENTRY(STREAM_QUERY, cuStreamQuery, (CUstream hStream), query_stream(hStream));
SIM_ENTRY(STREAM_SYNCHRONIZE, cuStreamSynchronize, (CUstream hStream), synchronize_stream(hStream));
SIM_ENTRY(STREAM_GET_ID, cuStreamGetId, (CUstream hStream, unsigned long long *streamId),
          get_stream_id(hStream, streamId));
SIM_ENTRY(STREAM_GET_FLAGS, cuStreamGetFlags, (CUstream hStream, unsigned int *flags),
          get_stream_flags(hStream, flags));
SIM_ENTRY(STREAM_GET_PRIORITY, cuStreamGetPriority, (CUstream hStream, int *priority),
          get_stream_priority(hStream, priority));
SIM_ENTRY(CTX_GET_PRIORITIES, cuCtxGetStreamPriorityRange,
          (int *leastPriority, int *greatestPriority),
          get_priority_range(leastPriority, greatestPriority));
SIM_ENTRY(STREAM_GET_CTX, cuStreamGetCtx, (CUstream hStream, CUcontext *pctx),
          get_stream_context(hStream, pctx));

/* There are no green contexts, so the second answer is always NULL. */
static CUresult get_stream_context_v2(CUstream handle, CUcontext *context,
                                      struct CUgreenCtx_st **green)
{
    CUresult result = get_stream_context(handle, context);

    if (result == CUDA_SUCCESS && green != NULL)
        *green = NULL;
    return result;
}

SIM_ENTRY(STREAM_GET_CTX_V2, cuStreamGetCtx_v2,
          (CUstream hStream, CUcontext *pCtx, struct CUgreenCtx_st **pGreenCtx),
          get_stream_context_v2(hStream, pCtx, pGreenCtx));
