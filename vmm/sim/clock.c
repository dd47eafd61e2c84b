/* SPDX-License-Identifier: MIT */
/* The entry points of sim.h that have to do with time and with work on streams. */
#include "vmm/sim/capture.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/operation.h"
#include "vmm/sim/refusal.h"
#include "vmm/sim/stream.h"

uint64_t xseg_sim_clock(void)
{
    uint64_t now;

    sim_lock();
    now = sim_machine.now;
    sim_unlock();
    return now;
}

uint64_t xseg_sim_driver_time(void)
{
    uint64_t time;

    sim_lock();
    time = sim_machine.driver_time;
    sim_unlock();
    return time;
}

void xseg_sim_advance(uint64_t nanoseconds)
{
    sim_lock();
    sim_pass(nanoseconds);
    sim_unlock();
}

/* Convert the result of a function of sim.h to a status and a message. */
static xseg_status launch_status(const char *name, CUresult result,
                                 const struct CUstream_st *stream)
{
    switch (result) {
    case CUDA_SUCCESS:
        return XSEG_OK;
    case CUDA_ERROR_OUT_OF_MEMORY:
        return sim_refuse(XSEG_ERR_HOST_MEMORY, "%s: out of host memory, queued work", name);
    case CUDA_ERROR_INVALID_CONTEXT:
        return sim_refuse(
            XSEG_ERR_ARGUMENT,
            "%s: no current context for the default stream, %p; call cuCtxSetCurrent() first", name,
            (const void *)stream);
    case CUDA_ERROR_INVALID_HANDLE:
        return sim_refuse(
            XSEG_ERR_ARGUMENT,
            "%s: invalid stream handle, %p; pass a stream that has not been destroyed", name,
            (const void *)stream);
    default:
        return sim_refuse(XSEG_ERR_ARGUMENT, "%s: cannot queue work on stream %p, CUDA error %d",
                          name, (const void *)stream, (int)result);
    }
}

/* Under a name, so that reports can say who queued it. */
static CUresult launch_kernel(const char *name, struct CUstream_st *handle, uint64_t nanoseconds,
                              const struct xseg_sim_access *touch, size_t count)
{
    struct sim_operation operation = {
        .type = SIM_NODE_KERNEL, .duration = nanoseconds, .touch = touch, .touches = count};
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, false, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    sim_machine.current = name;
    operation.device = stream->device;
    result = sim_operation_check(&operation);
    if (result != CUDA_SUCCESS || sim_capture_takes(stream, &operation, &result))
        return result;
    return sim_operation_queue(stream, &operation);
}

xseg_status xseg_sim_launch(struct CUstream_st *stream, uint64_t nanoseconds)
{
    CUresult result;

    sim_lock();
    result = launch_kernel("xseg_sim_launch", stream, nanoseconds, NULL, 0);
    sim_machine.current = NULL;
    sim_unlock();
    return launch_status("xseg_sim_launch", result, stream);
}

xseg_status xseg_sim_launch_accessing(struct CUstream_st *stream, uint64_t nanoseconds,
                                      const struct xseg_sim_access *touch, size_t count)
{
    CUresult result;

    sim_lock();
    result = launch_kernel("xseg_sim_launch_accessing", stream, nanoseconds, touch, count);
    sim_machine.current = NULL;
    sim_unlock();
    return launch_status("xseg_sim_launch_accessing", result, stream);
}

xseg_status xseg_sim_launch_on(struct CUstream_st *stream, uint64_t nanoseconds, uint64_t address,
                               uint64_t bytes)
{
    const struct xseg_sim_access touch = {address, bytes};
    CUresult result;

    sim_lock();
    result = launch_kernel("xseg_sim_launch_on", stream, nanoseconds, &touch, 1);
    sim_machine.current = NULL;
    sim_unlock();
    return launch_status("xseg_sim_launch_on", result, stream);
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
    for (; stream != NULL; stream = stream->after)
        sim_queue_finish(&stream->queue);
}

void xseg_sim_finish_all(void)
{
    sim_lock();
    for (unsigned i = 0; i < sim_machine.devices; i++) {
        finish_streams(sim_machine.device[i].streams);
        finish_streams(sim_machine.device[i].departed);
    }
    sim_unlock();
}
