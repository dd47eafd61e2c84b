/* SPDX-License-Identifier: MIT */
#include "vmm/sim/context.h"

#include "vmm/sim/capture.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/event.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/object.h"
#include "vmm/sim/stream.h"

CUcontext sim_context_handle(unsigned device)
{
    return (CUcontext)(uintptr_t)sim_handle_make(SIM_KIND_CONTEXT, device, sim_machine.epoch);
}

CUresult sim_context_device(CUcontext context, unsigned *device)
{
    uint32_t index, epoch;

    if (!sim_handle_parts((uint64_t)(uintptr_t)context, SIM_KIND_CONTEXT, &index, &epoch) ||
        epoch != sim_machine.epoch || index >= sim_machine.devices ||
        !sim_machine.device[index].active)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = index;
    return CUDA_SUCCESS;
}

/* CU_CTX_FLAGS_MASK of CUDA 12 */
#define FLAGS_KNOWN 0xffu

CUresult sim_context_current(unsigned *device)
{
    const struct sim_thread *thread = sim_thread();

    if (thread->depth == 0 || thread->stack[thread->depth - 1] == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = thread->stack[thread->depth - 1] - 1u;
    return sim_machine.device[*device].active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void sim_context_destroy(unsigned device)
{
    sim_events_end(device);
    sim_actions_drop(device);
    sim_streams_end(device);
    sim_allocations_end(device);
    sim_machine.device[device].active = false;
    sim_machine.device[device].peers = 0;
    sim_machine.device[device].flags = 0;
    for (unsigned i = 0; i < sim_machine.devices; i++)
        sim_machine.device[i].peers &= ~((uint64_t)1 << device);
}

static CUresult find_device(CUdevice device, unsigned *ordinal)
{
    if (device < 0 || (unsigned)device >= sim_machine.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    *ordinal = (unsigned)device;
    return CUDA_SUCCESS;
}

static CUresult retain_primary_context(CUcontext *out, CUdevice device)
{
    unsigned ordinal;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (find_device(device, &ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!sim_machine.device[ordinal].active)
        sim_machine.device[ordinal].context_number++;
    sim_machine.device[ordinal].retained++;
    sim_machine.device[ordinal].active = true;
    *out = sim_context_handle(ordinal);
    return CUDA_SUCCESS;
}

static CUresult release_primary_context(CUdevice device)
{
    unsigned ordinal;

    if (find_device(device, &ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    if (sim_machine.device[ordinal].retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--sim_machine.device[ordinal].retained == 0)
        sim_context_destroy(ordinal);
    sim_objects_settle();
    return CUDA_SUCCESS;
}

static CUresult reset_primary_context(CUdevice device)
{
    unsigned ordinal;

    if (find_device(device, &ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    sim_context_destroy(ordinal);
    sim_objects_settle();
    return CUDA_SUCCESS;
}

static CUresult get_primary_context_state(CUdevice device, unsigned *flags, int *active)
{
    unsigned ordinal;

    if (flags == NULL || active == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (find_device(device, &ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_DEVICE;
    *flags = sim_machine.device[ordinal].flags;
    *active = sim_machine.device[ordinal].active;
    return CUDA_SUCCESS;
}

static CUresult push_context(CUcontext context)
{
    struct sim_thread *thread = sim_thread();
    unsigned device;

    if (sim_context_device(context, &device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread->depth == SIM_STACK_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    thread->stack[thread->depth++] = (unsigned char)(device + 1);
    return CUDA_SUCCESS;
}

static CUcontext current_context(const struct sim_thread *thread)
{
    const unsigned top = thread->depth == 0 ? 0 : thread->stack[thread->depth - 1];

    return top == 0 ? NULL : sim_context_handle(top - 1);
}

static CUresult pop_context(CUcontext *out)
{
    struct sim_thread *thread = sim_thread();

    if (thread->depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (out != NULL)
        *out = current_context(thread);
    thread->depth--;
    return CUDA_SUCCESS;
}

static CUresult get_current_context(CUcontext *out)
{
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *out = current_context(sim_thread());
    return CUDA_SUCCESS;
}

/* Replaces the top of the stack; NULL pops it. */
static CUresult set_current_context(CUcontext context)
{
    struct sim_thread *thread = sim_thread();
    unsigned device;

    if (context == NULL) {
        thread->depth -= thread->depth != 0;
        return CUDA_SUCCESS;
    }
    if (sim_context_device(context, &device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (thread->depth == 0)
        return push_context(context);
    thread->stack[thread->depth - 1] = (unsigned char)(device + 1);
    return CUDA_SUCCESS;
}

/* NULL stands for the current context. */
static CUresult resolve_context(CUcontext context, unsigned *device)
{
    return context == NULL ? sim_context_current(device) : sim_context_device(context, device);
}

static CUresult get_context_device(CUdevice *out, CUcontext context)
{
    unsigned device;
    CUresult result;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = resolve_context(context, &device);
    if (result == CUDA_SUCCESS)
        *out = (CUdevice)device;
    return result;
}

static CUresult get_context_flags(unsigned *out)
{
    unsigned device;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_context_current(&device);
    if (result == CUDA_SUCCESS)
        *out = sim_machine.device[device].flags;
    return result;
}

static CUresult set_context_flags(unsigned flags)
{
    unsigned device;

    if ((flags & ~FLAGS_KNOWN) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = sim_context_current(&device);
    if (result == CUDA_SUCCESS)
        sim_machine.device[device].flags = flags;
    return result;
}

/* Numbers of contexts never come again. */
static CUresult get_context_id(CUcontext context, unsigned long long *id)
{
    unsigned device;
    CUresult result;

    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = resolve_context(context, &device);
    if (result == CUDA_SUCCESS)
        *id = sim_machine.device[device].context_number * SIM_DEVICES_MAX + device;
    return result;
}

static CUresult synchronize_context(CUcontext context)
{
    unsigned device;
    CUresult result = resolve_context(context, &device);

    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_device_wait(device);
    if (result != CUDA_SUCCESS)
        return result;
    sim_charge(sim_machine.costs.synchronize);
    sim_streams_wait(device);
    return CUDA_SUCCESS;
}

SIM_ENTRY(PRIMARY_CTX_RETAIN, cuDevicePrimaryCtxRetain, (CUcontext *pctx, CUdevice dev),
          retain_primary_context(pctx, dev));
SIM_ENTRY(PRIMARY_CTX_RELEASE, cuDevicePrimaryCtxRelease_v2, (CUdevice dev), release_primary_context(dev));
SIM_ENTRY(PRIMARY_CTX_RESET, cuDevicePrimaryCtxReset_v2, (CUdevice dev), reset_primary_context(dev));
SIM_ENTRY(PRIMARY_CTX_GET_STATE, cuDevicePrimaryCtxGetState,
          (CUdevice dev, unsigned int *flags, int *active), get_primary_context_state(dev, flags, active));
SIM_ENTRY(CTX_PUSH_CURRENT, cuCtxPushCurrent_v2, (CUcontext ctx), push_context(ctx));
SIM_ENTRY(CTX_POP_CURRENT, cuCtxPopCurrent_v2, (CUcontext *pctx), pop_context(pctx));
SIM_ENTRY(CTX_GET_CURRENT, cuCtxGetCurrent, (CUcontext *pctx), get_current_context(pctx));
SIM_ENTRY(CTX_SET_CURRENT, cuCtxSetCurrent, (CUcontext ctx), set_current_context(ctx));
SIM_ENTRY(CTX_GET_DEVICE, cuCtxGetDevice, (CUdevice *device), get_context_device(device, NULL));
SIM_ENTRY(CTX_GET_DEVICE_V2, cuCtxGetDevice_v2, (CUdevice *device, CUcontext ctx),
          get_context_device(device, ctx));
SIM_ENTRY(CTX_GET_ID, cuCtxGetId, (CUcontext ctx, unsigned long long *ctxId), get_context_id(ctx, ctxId));
SIM_ENTRY(CTX_GET_FLAGS, cuCtxGetFlags, (unsigned int *flags), get_context_flags(flags));
SIM_ENTRY(CTX_SET_FLAGS, cuCtxSetFlags, (unsigned int flags), set_context_flags(flags));
SIM_ENTRY(CTX_SYNCHRONIZE, cuCtxSynchronize, (void), synchronize_context(NULL));
SIM_ENTRY(CTX_SYNCHRONIZE_V2, cuCtxSynchronize_v2, (CUcontext ctx), synchronize_context(ctx));
