/* SPDX-License-Identifier: MIT */
#include "vmm/sim/stream.h"

#include <stdlib.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"

static uint64_t max_time(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t add_time(uint64_t a, uint64_t b)
{
    /* The sum saturates below SIM_OPEN_ENDED. */
    return b >= SIM_OPEN_ENDED - 1 - a ? SIM_OPEN_ENDED - 1 : a + b;
}

struct sim_work *sim_work_retain(struct sim_work *work)
{
    if (work != NULL)
        work->references++;
    return work;
}

void sim_work_release(struct sim_work *work)
{
    if (work == NULL || --work->references != 0)
        return;
    work->queue->work_count--;
    free(work);
}

static void work_unlink_dependency(struct sim_work *work)
{
    if (work->dependency == NULL)
        return;
    if (work->waiter_prev != NULL)
        work->waiter_prev->waiter_next = work->waiter_next;
    else
        work->dependency->waiters = work->waiter_next;
    if (work->waiter_next != NULL)
        work->waiter_next->waiter_prev = work->waiter_prev;
    work->dependency = work->waiter_prev = work->waiter_next = NULL;
}

/* Record the end of a predecessor or dependency of the work.  The last such end adds the work to the list. */
static void work_notify_dependent(struct sim_work *work, uint64_t end, struct sim_work **list)
{
    work->earliest = max_time(work->earliest, end);
    if (work->prev != NULL || work->dependency != NULL)
        return;
    work->list_next = *list;
    *list = work;
}

/* Compute the ends of the work in a list, and of the work that depends on it. */
static void work_compute_ends(struct sim_work *list)
{
    while (list != NULL) {
        struct sim_work *work = list;

        list = work->list_next;
        if (work->prev != NULL || work->dependency != NULL || work->duration == SIM_OPEN_ENDED)
            continue;
        work->end = add_time(work->earliest, work->duration);
        if (work->next != NULL) {
            work->next->prev = NULL;
            work_notify_dependent(work->next, work->end, &list);
            work->next = NULL;
        }
        while (work->waiters != NULL) {
            struct sim_work *waiter = work->waiters;

            work_unlink_dependency(waiter);
            work_notify_dependent(waiter, work->end, &list);
        }
        sim_work_release(work);
    }
}

static void work_set_dependency(struct sim_work *work, struct sim_work *dependency)
{
    if (dependency == NULL || sim_work_completed(dependency))
        return;
    if (dependency->end != SIM_OPEN_ENDED) {
        work->earliest = max_time(work->earliest, dependency->end);
        return;
    }
    work->dependency = dependency;
    work->waiter_next = dependency->waiters;
    if (work->waiter_next != NULL)
        work->waiter_next->waiter_prev = work;
    dependency->waiters = work;
}

/* Get whether new work can extend the last work: both are open-ended, and only the queue, the last work itself and its
 * accesses refer to the last work. */
static bool can_extend_last_work(const struct sim_queue *queue, uint64_t duration,
                                 const struct sim_work *dependency)
{
    const struct sim_work *last = queue->last;

    return duration == SIM_OPEN_ENDED && dependency == NULL && last != NULL &&
           last->duration == SIM_OPEN_ENDED && last->end == SIM_OPEN_ENDED &&
           last->references == 2 + last->accesses && last->waiters == NULL;
}

static bool queue_work(struct sim_queue *queue, uint64_t duration, struct sim_work *dependency)
{
    struct sim_work *last = queue->last, *work;

    if (can_extend_last_work(queue, duration, dependency))
        return true;
    work = calloc(1, sizeof(*work));
    if (work == NULL)
        return false;
    work->queue = queue;
    work->number = ++queue->last_number;
    work->earliest = sim_machine.now;
    work->duration = duration;
    work->end = SIM_OPEN_ENDED;
    work->references = 2;
    queue->work_count++;

    if (!sim_work_completed(last)) {
        if (last->end == SIM_OPEN_ENDED) {
            work->prev = last;
            last->next = work;
        } else {
            work->earliest = max_time(work->earliest, last->end);
        }
    }
    work_set_dependency(work, dependency);
    queue->last = work;
    work_compute_ends(work);
    sim_work_release(last);
    return true;
}

static void work_visit(struct sim_work *work, struct sim_work **list)
{
    if (work == NULL || work->visit_number == sim_machine.last_visit)
        return;
    work->visit_number = sim_machine.last_visit;
    work->list_next = *list;
    *list = work;
}

/* Get a list of the open-ended work on which work depends, that work included. */
static struct sim_work *find_open_predecessors(struct sim_work *work)
{
    struct sim_work *open = NULL, *list = NULL;

    sim_machine.last_visit++;
    work_visit(work, &list);
    while (list != NULL) {
        struct sim_work *current = list;

        list = current->list_next;
        work_visit(current->prev, &list);
        work_visit(current->dependency, &list);
        if (current->duration == SIM_OPEN_ENDED) {
            current->open_next = open;
            open = current;
        }
    }
    return open;
}

void sim_work_wait(struct sim_work *work)
{
    struct sim_work *open;

    sim_machine.saw_completion = true;
    if (sim_work_completed(work))
        return;
    open = work->end == SIM_OPEN_ENDED ? find_open_predecessors(work) : NULL;
    while (open != NULL) {
        struct sim_work *current = open;

        open = current->open_next;
        current->duration = 0;
        current->earliest = max_time(current->earliest, sim_machine.now);
        current->list_next = NULL;
        work_compute_ends(current);
    }
    sim_machine.now = max_time(sim_machine.now, work->end);
}

void sim_queue_finish(struct sim_queue *queue)
{
    struct sim_work *work = queue->last, *first = NULL;

    queue->finished = queue->last_number;
    for (; work != NULL && work->end == SIM_OPEN_ENDED; work = work->prev) {
        work_unlink_dependency(work);
        work->duration = 0;
        work->earliest = sim_machine.now;
        first = work;
    }
    if (first != NULL) {
        first->list_next = NULL;
        work_compute_ends(first);
    }
}

static void stream_link(struct sim_stream **list, struct sim_stream *stream)
{
    stream->prev = NULL;
    stream->next = *list;
    if (*list != NULL)
        (*list)->prev = stream;
    *list = stream;
}

static void stream_unlink(struct sim_stream **list, struct sim_stream *stream)
{
    if (stream->prev != NULL)
        stream->prev->next = stream->next;
    else
        *list = stream->next;
    if (stream->next != NULL)
        stream->next->prev = stream->prev;
}

/* Free destroyed streams whose work has completed and is not referenced. */
static void free_completed_streams(struct sim_device *device)
{
    struct sim_stream *next;

    sim_accesses_prune();
    for (struct sim_stream *stream = device->destroyed_streams; stream != NULL; stream = next) {
        next = stream->next;
        if (!sim_work_completed(stream->queue.last))
            continue;
        sim_work_release(stream->queue.last);
        stream->queue.last = NULL;
        if (stream->queue.work_count != 0)
            continue;
        stream_unlink(&device->destroyed_streams, stream);
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
    struct sim_device *state = &sim_machine.device[device];

    if (state->legacy == NULL) {
        state->legacy = stream_create(device, CU_STREAM_DEFAULT);
        if (state->legacy != NULL)
            state->legacy->is_legacy = state->legacy->is_default = true;
    }
    return state->legacy;
}

static struct sim_stream *per_thread_stream(unsigned device)
{
    struct sim_thread *thread = sim_thread();
    struct sim_stream *stream = sim_handles_find(&sim_machine.streams, thread->per_thread[device]);

    /* With reuse_handles another stream may have the handle after a reset of the device. */
    if (stream == NULL || stream->device != device || stream->thread != thread->number) {
        stream = stream_create(device, CU_STREAM_DEFAULT);
        if (stream == NULL)
            return NULL;
        stream->is_default = true;
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

/* Queue a wait for all work of another stream.  *waited is the number of the last work for which a wait was queued. */
static bool wait_for_stream(struct sim_stream *stream, const struct sim_stream *awaited,
                            uint64_t *waited)
{
    if (sim_work_completed(awaited->queue.last) || awaited->queue.last->number == *waited)
        return true;
    *waited = awaited->queue.last->number;
    return queue_work(&stream->queue, 0, awaited->queue.last);
}

static bool wait_for_blocking_streams(struct sim_stream *legacy, struct sim_stream *list)
{
    bool is_queued = true;

    for (; list != NULL && is_queued; list = list->next)
        if (list != legacy && list->flags != CU_STREAM_NON_BLOCKING)
            is_queued = wait_for_stream(legacy, list, &list->legacy_waited);
    return is_queued;
}

bool sim_stream_queue_implicit_waits(struct sim_stream *stream)
{
    const struct sim_device *device = &sim_machine.device[stream->device];

    if (stream->flags == CU_STREAM_NON_BLOCKING)
        return true;
    if (stream->is_legacy)
        return wait_for_blocking_streams(stream, device->streams) &&
               wait_for_blocking_streams(stream, device->destroyed_streams);
    return device->legacy == NULL ||
           wait_for_stream(stream, device->legacy, &stream->waited_legacy);
}

bool sim_stream_queue(struct sim_stream *stream, uint64_t duration, struct sim_work *dependency)
{
    return sim_stream_queue_implicit_waits(stream) &&
           queue_work(&stream->queue, duration, dependency);
}

static void stream_retire(struct sim_stream *stream, bool is_destroyed)
{
    struct sim_device *device = &sim_machine.device[stream->device];

    sim_handles_remove(&sim_machine.streams, stream->handle, is_destroyed);
    stream_unlink(&device->streams, stream);
    stream_link(&device->destroyed_streams, stream);
    free_completed_streams(device);
}

void sim_streams_destroy(unsigned device)
{
    struct sim_device *state = &sim_machine.device[device];

    while (state->streams != NULL) {
        sim_capture_remove_stream(state->streams);
        sim_queue_finish(&state->streams->queue);
        stream_retire(state->streams, false);
    }
    for (struct sim_stream *stream = state->destroyed_streams; stream != NULL;
         stream = stream->next)
        sim_queue_finish(&stream->queue);
    free_completed_streams(state);
    state->legacy = NULL;
}

void sim_streams_wait(unsigned device)
{
    struct sim_device *state = &sim_machine.device[device];

    for (struct sim_stream *stream = state->streams; stream != NULL; stream = stream->next)
        sim_work_wait(stream->queue.last);
    for (struct sim_stream *stream = state->destroyed_streams; stream != NULL;
         stream = stream->next)
        sim_work_wait(stream->queue.last);
    free_completed_streams(state);
}

static void advance_past_streams(const struct sim_stream *stream)
{
    for (; stream != NULL; stream = stream->next) {
        const struct sim_work *last = stream->queue.last;

        if (!sim_work_completed(last) && last->end != SIM_OPEN_ENDED)
            sim_machine.now = last->end;
    }
}

void sim_streams_advance_past(unsigned device)
{
    advance_past_streams(sim_machine.device[device].streams);
    advance_past_streams(sim_machine.device[device].destroyed_streams);
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
        return sim_capture_check_stream_query(stream);
    stream_retire(stream, true);
    return CUDA_SUCCESS;
}

static CUresult query_stream(CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, true, &stream);

    if (result == CUDA_SUCCESS)
        result = sim_capture_check_stream_query(stream);
    if (result != CUDA_SUCCESS)
        return result;
    sim_clock_charge(sim_machine.config.costs.event_query);
    sim_machine.saw_completion =
        sim_work_completed(stream->queue.last) && !sim_completions_block(stream->queue.last);
    return sim_machine.saw_completion ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult synchronize_stream(CUstream handle)
{
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, true, &stream);

    if (result == CUDA_SUCCESS)
        result = sim_capture_check_stream_query(stream);
    if (result != CUDA_SUCCESS)
        return result;
    sim_clock_charge(sim_machine.config.costs.synchronize);
    sim_work_wait(stream->queue.last);
    return CUDA_SUCCESS;
}

/* Define a query of a stream. */
#define STREAM_QUERY(name, type, value)                                                       \
    static CUresult name(CUstream handle, type *out)                                          \
    {                                                                                         \
        struct sim_stream *stream;                                                            \
        CUresult result =                                                                     \
            out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_stream_find(handle, false, &stream); \
                                                                                              \
        if (result == CUDA_SUCCESS)                                                           \
            *out = (value);                                                                   \
        return result;                                                                        \
    }
STREAM_QUERY(get_stream_id, unsigned long long, stream->id)
STREAM_QUERY(get_stream_context, CUcontext, sim_context_handle(stream->device))
STREAM_QUERY(get_stream_flags, unsigned, stream->flags)
STREAM_QUERY(get_stream_priority, int, 0)
#undef STREAM_QUERY

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

/* Priorities are clamped to the range, which has one value. */
SIM_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags,
                                                       int priority)
{
    (void)priority;
    SIM_CALL_BODY(STREAM_CREATE_PRIORITY, create_stream(phStream, flags));
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

/* There are no green contexts. */
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
