/* SPDX-License-Identifier: MIT */
#include "vmm/sim/event.h"

#include <stdlib.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/stream.h"

static CUresult find_event(CUevent handle, struct sim_event **out)
{
    *out = sim_handles_find(&sim_machine.events, (uint64_t)(uintptr_t)handle);
    if (*out != NULL)
        return CUDA_SUCCESS;
    sim_handles_check(&sim_machine.events, (uint64_t)(uintptr_t)handle, "event:");
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_event_create(CUevent *out, unsigned flags)
{
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    struct sim_event *event;
    struct sim_device *state;
    unsigned device;

    if (out == NULL || (flags & ~known) != 0 ||
        ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_context_current(&device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    event = calloc(1, sizeof(*event));
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    event->handle = sim_handles_add(&sim_machine.events, event);
    if (event->handle == 0) {
        free(event);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sim_clock_charge(sim_machine.config.costs.event_create);
    state = &sim_machine.device[device];
    event->device = device;
    event->is_timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    event->is_interprocess = (flags & CU_EVENT_INTERPROCESS) != 0;
    event->next = state->events;
    if (event->next != NULL)
        event->next->prev = event;
    state->events = event;
    *out = (CUevent)(uintptr_t)event->handle;
    return CUDA_SUCCESS;
}

/* Release the work of an event and store its time. */
static void event_drop_work(struct sim_event *event)
{
    if (event->work == NULL)
        return;
    /* The end of work that xseg_sim_finish() completed may be in the future. */
    if (event->work->end <= sim_machine.now)
        event->time = event->work->end > event->time ? event->work->end : event->time;
    else
        event->time = sim_machine.now;
    sim_work_release(event->work);
    event->work = NULL;
}

static void event_destroy(struct sim_event *event, bool is_destroyed)
{
    event_drop_work(event);
    if (event->prev != NULL)
        event->prev->next = event->next;
    else
        sim_machine.device[event->device].events = event->next;
    if (event->next != NULL)
        event->next->prev = event->prev;
    sim_nodes_clear(&event->dependencies);
    sim_handles_remove(&sim_machine.events, event->handle, is_destroyed);
    free(event);
}

void sim_events_destroy(unsigned device)
{
    while (sim_machine.device[device].events != NULL)
        event_destroy(sim_machine.device[device].events, false);
}

CUresult sim_event_check_interprocess(CUevent handle)
{
    struct sim_event *event;
    const CUresult result = find_event(handle, &event);

    return result == CUDA_SUCCESS && !event->is_interprocess ? CUDA_ERROR_INVALID_HANDLE : result;
}

static CUresult destroy_event(CUevent handle)
{
    struct sim_event *event;
    CUresult result = find_event(handle, &event);

    if (result == CUDA_SUCCESS)
        event_destroy(event, true);
    return result;
}

static CUresult event_record(struct sim_event *event, struct sim_stream *stream)
{
    if (!sim_nodes_assign(&event->dependencies, &stream->dependencies) ||
        (stream->capture == NULL && !sim_stream_queue_implicit_waits(stream)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_clock_charge(sim_machine.config.costs.event_record);
    event_drop_work(event);
    event->is_recorded = true;
    event->time = sim_machine.now;
    event->capture_id = sim_capture_id(stream);
    if (event->capture_id == 0 &&
        (!sim_work_completed(stream->queue.last) || sim_completions_block(stream->queue.last)))
        event->work = sim_work_retain(stream->queue.last);
    return CUDA_SUCCESS;
}

CUresult sim_event_record(CUevent handle, struct sim_stream *stream)
{
    struct sim_event *event;
    const CUresult result = find_event(handle, &event);

    return result == CUDA_SUCCESS ? event_record(event, stream) : result;
}

/* An external record in a capture becomes a node; each launch records the event. */
static CUresult record_event(CUevent handle, CUstream stream_handle, unsigned flags)
{
    const struct sim_operation recording = {.type = SIM_NODE_EVENT_RECORD, .event = handle};
    struct sim_stream *stream;
    struct sim_event *event;
    CUresult result = find_event(handle, &event);

    if (result == CUDA_SUCCESS)
        result = sim_stream_find(stream_handle, true, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->device != stream->device)
        return CUDA_ERROR_INVALID_HANDLE;
    if (flags > CU_EVENT_RECORD_EXTERNAL ||
        (flags == CU_EVENT_RECORD_EXTERNAL && stream->capture == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_capture_check_enqueue(stream);
    if (result == CUDA_SUCCESS && flags == CU_EVENT_RECORD_EXTERNAL)
        (void)sim_capture_add_operation(stream, &recording, &result);
    else if (result == CUDA_SUCCESS)
        result = event_record(event, stream);
    return result;
}

/* Find an event for a query or a wait of the host, which captures may prohibit. */
static CUresult find_queryable_event(CUevent handle, struct sim_event **event)
{
    CUresult result = find_event(handle, event);

    if (result == CUDA_SUCCESS)
        result = sim_capture_check_event_query((*event)->capture_id);
    return result == CUDA_SUCCESS ? sim_capture_check_unsafe_call() : result;
}

static CUresult query_event(CUevent handle)
{
    struct sim_event *event;
    const CUresult result = find_queryable_event(handle, &event);

    if (result != CUDA_SUCCESS)
        return result;
    sim_clock_charge(sim_machine.config.costs.event_query);
    if (!sim_work_completed(event->work) || sim_completions_block(event->work))
        return CUDA_ERROR_NOT_READY;
    sim_machine.saw_completion = true;
    event_drop_work(event);
    return CUDA_SUCCESS;
}

static CUresult synchronize_event(CUevent handle)
{
    struct sim_event *event;
    const CUresult result = find_queryable_event(handle, &event);

    if (result != CUDA_SUCCESS)
        return result;
    sim_clock_charge(sim_machine.config.costs.synchronize);
    sim_work_wait(event->work);
    event_drop_work(event);
    return CUDA_SUCCESS;
}

static CUresult find_timed_event(CUevent handle, struct sim_event **event)
{
    CUresult result = find_event(handle, event);

    if (result == CUDA_SUCCESS && (!(*event)->is_recorded || !(*event)->is_timed))
        result = CUDA_ERROR_INVALID_HANDLE;
    return result == CUDA_SUCCESS ? sim_capture_check_event_query((*event)->capture_id) : result;
}

static CUresult get_elapsed_time(float *milliseconds, CUevent from, CUevent to)
{
    struct sim_event *start, *stop;
    CUresult result;

    if (milliseconds == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = find_timed_event(from, &start);
    if (result == CUDA_SUCCESS)
        result = find_timed_event(to, &stop);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_work_completed(start->work) || !sim_work_completed(stop->work))
        return CUDA_ERROR_NOT_READY;
    sim_machine.saw_completion = true;
    event_drop_work(start);
    event_drop_work(stop);
    /* The difference may be negative. */
    *milliseconds = (float)((double)(int64_t)(stop->time - start->time) / 1e6);
    return CUDA_SUCCESS;
}

static bool queue_event_wait(struct sim_stream *stream, struct sim_event *event)
{
    return sim_work_completed(event->work) || event->work == stream->queue.last ||
           sim_stream_queue(stream, 0, event->work);
}

CUresult sim_event_queue_wait(CUevent handle, struct sim_stream *stream)
{
    struct sim_event *event;
    const CUresult result = find_event(handle, &event);

    if (result != CUDA_SUCCESS)
        return result;
    return queue_event_wait(stream, event) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The event may belong to another context. */
static CUresult stream_wait_event(CUstream stream_handle, CUevent handle, unsigned flags)
{
    struct sim_stream *stream;
    struct sim_event *event;
    bool is_captured = false;
    CUresult result = find_event(handle, &event);

    if (result == CUDA_SUCCESS)
        result = sim_stream_find(stream_handle, true, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags > CU_EVENT_WAIT_EXTERNAL ||
        (flags == CU_EVENT_WAIT_EXTERNAL && stream->capture == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_capture_wait(stream, event, flags == CU_EVENT_WAIT_EXTERNAL, &is_captured);
    if (result != CUDA_SUCCESS)
        return result;
    if (!is_captured && !queue_event_wait(stream, event))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sim_clock_charge(sim_machine.config.costs.stream_wait);
    return CUDA_SUCCESS;
}

SIM_ENTRY(EVENT_CREATE, cuEventCreate, (CUevent *phEvent, unsigned int Flags),
          sim_event_create(phEvent, Flags));
SIM_ENTRY(EVENT_DESTROY, cuEventDestroy_v2, (CUevent hEvent), destroy_event(hEvent));
SIM_ENTRY(EVENT_RECORD, cuEventRecord, (CUevent hEvent, CUstream hStream),
          record_event(hEvent, hStream, CU_EVENT_RECORD_DEFAULT));
SIM_ENTRY(EVENT_RECORD_FLAGS, cuEventRecordWithFlags,
          (CUevent hEvent, CUstream hStream, unsigned int flags),
          record_event(hEvent, hStream, flags));

/* Not inlined, so that the fast path of the entry point saves no registers. */
static __attribute__((noinline)) CUresult query_event_locked(CUevent handle)
{
    SIM_CALL_BODY(EVENT_QUERY, query_event(handle));
}

/* Get whether work has not completed and takes longer than a duration from now. */
static bool work_outlasts(const struct sim_work *work, uint64_t nanoseconds)
{
    return !sim_work_completed(work) && work->end - sim_machine.now > nanoseconds;
}

/* The fast path handles an event whose work has not completed, without active captures. */
SIM_EXPORT CUresult CUDAAPI cuEventQuery(CUevent hEvent)
{
    const struct sim_event *event;

    if (!sim_is_lock_free() || sim_machine.captures != NULL || sim_machine.config.tail_seed != 0)
        return query_event_locked(hEvent);
    event = sim_handles_find(&sim_machine.events, (uint64_t)(uintptr_t)hEvent);
    if (event == NULL || event->capture_id != 0 ||
        !work_outlasts(event->work, sim_machine.config.costs.event_query))
        return query_event_locked(hEvent);
    sim_count_call(SIM_CALL_EVENT_QUERY);
    /* sim_clock_charge() without its checks: there are no tails, and the clock cannot overflow before the end of the work. */
    sim_machine.now += sim_machine.config.costs.event_query;
    sim_machine.driver_time += sim_machine.config.costs.event_query;
    return CUDA_ERROR_NOT_READY;
}

SIM_ENTRY(EVENT_SYNCHRONIZE, cuEventSynchronize, (CUevent hEvent), synchronize_event(hEvent));
SIM_ENTRY(EVENT_ELAPSED, cuEventElapsedTime, (float *pMilliseconds, CUevent hStart, CUevent hEnd),
          get_elapsed_time(pMilliseconds, hStart, hEnd));
SIM_ENTRY(EVENT_ELAPSED_V2, cuEventElapsedTime_v2,
          (float *pMilliseconds, CUevent hStart, CUevent hEnd),
          get_elapsed_time(pMilliseconds, hStart, hEnd));
SIM_ENTRY(STREAM_WAIT_EVENT, cuStreamWaitEvent,
          (CUstream hStream, CUevent hEvent, unsigned int Flags),
          stream_wait_event(hStream, hEvent, Flags));
