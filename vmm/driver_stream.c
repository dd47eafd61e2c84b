/* SPDX-License-Identifier: MIT */
/* The functions of driver.h for streams, events, captures and fences. */
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "vmm/driver_entry.h"

/* --- Streams and events. --- */

xseg_status xseg_driver_stream_id(struct xseg_context *context, xseg_stream stream, uint64_t *id)
{
    unsigned long long value = 0;
    xseg_status status = xseg_driver_push_context(context);

    if (status != XSEG_OK)
        return status;
    /* The default streams belong to the current context, which is now the device's context. */
    if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD) {
        CUcontext owner = NULL;

        status = CALL_STATUS_ON(context, StreamGetCtx, XSEG_ERR_DRIVER, 0, stream, &owner);
        if (status == XSEG_OK && owner != context->primary)
            status = xseg_fail(XSEG_ERR_ARGUMENT, "stream belongs to another device or context, %p",
                               (void *)stream);
    }
    if (status == XSEG_OK)
        status = CALL_STATUS_ON(context, StreamGetId, XSEG_ERR_DRIVER, 0, stream, &value);
    xseg_driver_pop_context(context);
    if (status == XSEG_OK)
        *id = value;
    return status;
}

/* Return the status of a query.  *completed: whether all work has completed */
static xseg_status query_status(struct xseg_context *context, enum xseg_entry entry,
                                CUresult result, bool *completed)
{
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) {
        *completed = result == CUDA_SUCCESS;
        return XSEG_OK;
    }
    return xseg_driver_status(context->driver, context, entry, result, XSEG_ERR_DRIVER, 0);
}

xseg_status xseg_driver_stream_query(struct xseg_context *context, xseg_stream stream,
                                     bool *completed)
{
    int mode = 0;
    xseg_status status = xseg_driver_push_context_relaxed(context, &mode);

    if (status != XSEG_OK)
        return status;
    status = query_status(context, XSEG_ENTRY_StreamQuery,
                          CALL(context->driver, StreamQuery, stream), completed);
    xseg_driver_pop_context_relaxed(context, mode);
    return status;
}

xseg_status xseg_driver_stream_synchronize(struct xseg_context *context, xseg_stream stream)
{
    RETURN_CALL_RELAXED(context, StreamSynchronize, XSEG_ERR_DRIVER, 0, stream);
}

xseg_status xseg_driver_context_synchronize(struct xseg_context *context)
{
    xseg_status status = xseg_driver_push_context(context);

    if (status != XSEG_OK)
        return status;
    const uint64_t start_ns = xseg_driver_call_start(XSEG_ENTRY_CtxSynchronize);
    const CUresult result =
        xseg_driver_count_call(context->driver, XSEG_ENTRY_CtxSynchronize,
                               context->driver->call_CtxSynchronize(), start_ns);
    status = xseg_driver_status(context->driver, context, XSEG_ENTRY_CtxSynchronize, result,
                                XSEG_ERR_DRIVER, 0);
    xseg_driver_pop_context(context);
    return status;
}

xseg_status xseg_driver_stream_create(struct xseg_context *context, xseg_stream *stream)
{
    RETURN_CALL_IN_CONTEXT(context, StreamCreate, XSEG_ERR_DRIVER, 0, stream,
                           CU_STREAM_NON_BLOCKING);
}

xseg_status xseg_driver_stream_destroy(struct xseg_context *context, xseg_stream stream)
{
    RETURN_CALL_IN_CONTEXT(context, StreamDestroy, XSEG_ERR_DRIVER, 0, stream);
}

xseg_status xseg_driver_stream_wait_event(struct xseg_context *context, xseg_stream stream,
                                          xseg_event event)
{
    RETURN_CALL_IN_CONTEXT(context, StreamWaitEvent, XSEG_ERR_DRIVER, 0, stream, event,
                           CU_EVENT_WAIT_DEFAULT);
}

xseg_status xseg_driver_event_create(struct xseg_context *context, xseg_event *event)
{
    RETURN_CALL_IN_CONTEXT(context, EventCreate, XSEG_ERR_DRIVER, 0, event,
                           CU_EVENT_DISABLE_TIMING);
}

xseg_status xseg_driver_event_destroy(struct xseg_context *context, xseg_event event)
{
    RETURN_CALL_IN_CONTEXT(context, EventDestroy, XSEG_ERR_DRIVER, 0, event);
}

xseg_status xseg_driver_event_record(struct xseg_context *context, xseg_event event,
                                     xseg_stream stream)
{
    RETURN_CALL_IN_CONTEXT(context, EventRecord, XSEG_ERR_DRIVER, 0, event, stream);
}

xseg_status xseg_driver_event_query(struct xseg_context *context, xseg_event event, bool *completed)
{
    return query_status(context, XSEG_ENTRY_EventQuery, CALL(context->driver, EventQuery, event),
                        completed);
}

xseg_status xseg_driver_event_synchronize(struct xseg_context *context, xseg_event event)
{
    RETURN_CALL_RELAXED(context, EventSynchronize, XSEG_ERR_DRIVER, 0, event);
}

/* --- Captures. --- */

xseg_status xseg_driver_relax_capture_mode(struct xseg_context *context, int *previous)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const xseg_status status =
        CALL_STATUS_ON(context, ThreadExchangeStreamCaptureMode, XSEG_ERR_DRIVER, 0, &mode);

    *previous = (int)mode;
    return status;
}

/* A call that fails for an unknown reason is retried once. */
void xseg_driver_restore_capture_mode(struct xseg_context *context, int previous)
{
    CUstreamCaptureMode mode = (CUstreamCaptureMode)previous;

    if (CALL(context->driver, ThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS)
        return;
    mode = (CUstreamCaptureMode)previous;
    (void)CALL(context->driver, ThreadExchangeStreamCaptureMode, &mode);
}

/* --- Event polls, under a lock of the device. --- */

static inline void add_single_writer(atomic_uint_fast64_t *count, uint64_t calls)
{
    atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + calls,
                          memory_order_relaxed);
}

/* Count and report a query that failed. */
static void fail_query(struct xseg_context *context, enum xseg_entry entry, CUresult result)
{
    struct xseg_driver *driver = context->driver;

    atomic_fetch_add_explicit(&driver->failed[entry], 1, memory_order_relaxed);
    (void)xseg_driver_status(driver, context, entry, result, XSEG_ERR_DRIVER, 0);
}

static inline CUresult exchange_capture_mode(const struct xseg_context *context,
                                             CUstreamCaptureMode *mode)
{
    return context->driver->call_ThreadExchangeStreamCaptureMode(mode);
}

/* Restore the capture mode of the thread, with one retry, as xseg_driver_restore_capture_mode()
 * does. */
static inline void restore_polled_mode(const struct xseg_context *context,
                                       CUstreamCaptureMode previous)
{
    CUstreamCaptureMode mode = previous;

    if (__builtin_expect(exchange_capture_mode(context, &mode) == CUDA_SUCCESS, 1))
        return;
    atomic_fetch_add_explicit(&context->driver->failed[XSEG_ENTRY_ThreadExchangeStreamCaptureMode],
                              1, memory_order_relaxed);
    add_single_writer(&context->poll_counts->modes, 1);
    mode = previous;
    (void)exchange_capture_mode(context, &mode);
}

enum xseg_driver_poll_result xseg_driver_poll_event(struct xseg_driver_poll *poll, xseg_event event,
                                                    bool is_last)
{
    struct xseg_context *context = poll->context;
    CUstreamCaptureMode previous = CU_STREAM_CAPTURE_MODE_RELAXED;

    if (__builtin_expect(poll->is_open, 0)) {
        previous = (CUstreamCaptureMode)poll->previous_mode;
    } else {
        const CUresult result = exchange_capture_mode(context, &previous);

        /* After a success the count includes the call that restores the mode. */
        add_single_writer(&context->poll_counts->modes, result == CUDA_SUCCESS ? 2 : 1);
        if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
            fail_query(context, XSEG_ENTRY_ThreadExchangeStreamCaptureMode, result);
            return XSEG_DRIVER_POLL_NOT_QUERIED;
        }
    }
    add_single_writer(&context->poll_counts->events, 1);
    const CUresult result = context->driver->call_EventQuery(event);
    if (__builtin_expect(result == CUDA_ERROR_NOT_READY && is_last, 1)) {
        poll->is_open = false;
        restore_polled_mode(context, previous);
        return XSEG_DRIVER_POLL_PENDING;
    }
    poll->is_open = true;
    poll->previous_mode = (int)previous;
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
        return result == CUDA_SUCCESS ? XSEG_DRIVER_POLL_COMPLETED : XSEG_DRIVER_POLL_PENDING;
    fail_query(context, XSEG_ENTRY_EventQuery, result);
    return XSEG_DRIVER_POLL_FAILED;
}

void xseg_driver_poll_end(struct xseg_driver_poll *poll)
{
    if (poll->is_open)
        restore_polled_mode(poll->context, (CUstreamCaptureMode)poll->previous_mode);
    poll->is_open = false;
}

xseg_status xseg_driver_push_context_relaxed(struct xseg_context *context, int *mode)
{
    xseg_status status = xseg_driver_push_context(context);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_relax_capture_mode(context, mode);
    if (status != XSEG_OK)
        xseg_driver_pop_context(context);
    return status;
}

void xseg_driver_pop_context_relaxed(struct xseg_context *context, int mode)
{
    xseg_driver_restore_capture_mode(context, mode);
    xseg_driver_pop_context(context);
}

xseg_status xseg_driver_capture_info(struct xseg_context *context, xseg_stream stream,
                                     struct xseg_capture_info *info)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    const CUgraphNode *nodes = NULL;
    size_t count = 0;
    xseg_status status = xseg_driver_push_context(context);

    memset(info, 0, sizeof(*info));
    if (status != XSEG_OK)
        return status;
    const CUresult result =
        CALL(context->driver, StreamGetCaptureInfo, stream, &state, &id, &graph, &nodes, &count);
    xseg_driver_pop_context(context);
    /* A query of the legacy stream fails this way while other streams are captured; the legacy
     * stream itself is in no capture. */
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return XSEG_OK;
    if (result != CUDA_SUCCESS)
        return xseg_driver_status(context->driver, context, XSEG_ENTRY_StreamGetCaptureInfo, result,
                                  XSEG_ERR_DRIVER, 0);
    if (state == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        info->is_invalid = true;
    if (state == CU_STREAM_CAPTURE_STATUS_ACTIVE)
        *info = (struct xseg_capture_info){id, false, nodes, count};
    return XSEG_OK;
}

xseg_status xseg_driver_node_dependencies(struct xseg_context *context, xseg_node node,
                                          xseg_node *nodes, size_t *count)
{
    return CALL_STATUS_ON(context, GraphNodeGetDependencies, XSEG_ERR_DRIVER, 0, node, nodes,
                          count);
}

/* --- Fences. --- */

void xseg_fences_init(struct xseg_fences *fences, struct xseg_context *context)
{
    memset(fences, 0, sizeof(*fences));
    fences->context = context;
}

xseg_status xseg_fences_fini(struct xseg_fences *fences)
{
    while (fences->count > 0) {
        const xseg_status status =
            xseg_driver_event_destroy(fences->context, fences->idle[fences->count - 1]);

        if (status != XSEG_OK)
            return status;
        fences->count--;
        fences->created--;
    }
    xseg_fences_abandon(fences);
    return XSEG_OK;
}

void xseg_fences_abandon(struct xseg_fences *fences)
{
    free(fences->idle);
    xseg_fences_init(fences, fences->context);
}

/* Create an idle event. */
static xseg_status create_idle_event(struct xseg_fences *fences)
{
    if (fences->created == fences->capacity) {
        const size_t capacity = fences->capacity == 0 ? 64 : fences->capacity * 2;
        xseg_event *idle = realloc(fences->idle, capacity * sizeof(*idle));

        if (idle == NULL)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of events");
        fences->idle = idle;
        fences->capacity = capacity;
    }
    const xseg_status status =
        xseg_driver_event_create(fences->context, &fences->idle[fences->count]);
    if (status == XSEG_OK) {
        fences->count++;
        fences->created++;
    }
    return status;
}

xseg_status xseg_fences_record(struct xseg_fences *fences, xseg_stream stream, xseg_event *out)
{
    xseg_status status = fences->count > 0 ? XSEG_OK : create_idle_event(fences);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_event_record(fences->context, fences->idle[fences->count - 1], stream);
    if (status == XSEG_OK)
        *out = fences->idle[--fences->count];
    return status;
}

void xseg_fences_return(struct xseg_fences *fences, xseg_event event)
{
    XSEG_ASSERT(fences->count < fences->created);
    fences->idle[fences->count++] = event;
}
