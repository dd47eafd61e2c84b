/* SPDX-License-Identifier: MIT */
/*
 * Entry points: the frame of every exported driver function.
 *
 * SIM_ENTRY() defines an entry point: lock the machine, count the call, check for faults and for the conditions of the
 * call table (calls.h), evaluate the work, unlock.  Work that completed during the call takes effect in the unlock
 * (machine.h).
 *
 * Fast entry.  Most calls need no check that depends on the state of the machine.  While `fast_entry` is set, a call
 * that needs no context and is not potentially unsafe skips sim_enter_checked().  The checks are compile-time constants,
 * so the test costs one branch.  A process with a single thread may also answer a call without the lock
 * (sim_is_lock_free()).
 *
 * The header also declares functions that cuda.h declares in some versions only, or renames by macros.
 *
 * Invariants: current_call is set between sim_enter() and sim_leave(), and only then.
 *
 * Locking: sim_enter() acquires the machine lock, also if it returns an error; sim_leave() releases it.
 */
#ifndef XSEG_SIM_ENTRY_H
#define XSEG_SIM_ENTRY_H

#include <cuda.h>

#include "vmm/sim/calls.h"
#include "vmm/sim/machine.h"

#define SIM_EXPORT __attribute__((visibility("default")))

/** Check for faults and for the conditions of the call table.  Returns the error of a rejected call. */
CUresult sim_enter_checked(enum sim_call call, uint64_t first, uint64_t second);

static inline void sim_count_call(enum sim_call call)
{
    sim_machine.calls[call]++;
    sim_machine.call_number++;
}

/**
 * Begin a call.
 *
 * @param checks         the checks of the call, a constant.
 * @param first, second  device addresses among the arguments, or 0.
 */
static inline CUresult sim_enter(enum sim_call call, unsigned checks, uint64_t first,
                                 uint64_t second)
{
    sim_lock();
    sim_count_call(call);
    sim_machine.current_call = sim_call_info[call].name;
    if (__builtin_expect(
            (checks & (SIM_NEEDS_CONTEXT | SIM_UNSAFE)) != 0 || !sim_machine.fast_entry, 0))
        return sim_enter_checked(call, first, second);
    return CUDA_SUCCESS;
}

/**
 * Get whether a call can be answered without the lock: the process has a single thread, no check can reject the call,
 * and no completion is pending.  Such a call is only counted.  An event query then takes about 50 instructions instead
 * of 90, an exchange of the capture mode 30 instead of 40.
 */
static inline bool sim_is_lock_free(void)
{
    return SIM_HAS_ONE_THREAD && sim_machine.fast_entry && sim_machine.completions.first == NULL;
}

/** End a call.  Returns the result. */
static inline CUresult sim_leave(CUresult result)
{
    sim_machine.current_call = NULL;
    sim_unlock();
    return result;
}

/* Body of an entry point.  `work` is evaluated unless the call is rejected on entry. */
#define SIM_CALL_BODY(call, work) SIM_CALL_BODY_AT(call, 0, 0, work)
#define SIM_CALL_BODY_AT(call, first, second, work)                                          \
    do {                                                                                     \
        CUresult result_ = sim_enter(SIM_CALL_##call, SIM_CHECKS_##call, (first), (second)); \
                                                                                             \
        if (result_ == CUDA_SUCCESS)                                                         \
            result_ = (work);                                                                \
        return sim_leave(result_);                                                           \
    } while (0)

/* Entry point.  The symbol has its version suffix, because cuda.h renames some functions by macros. */
#define SIM_ENTRY(call, symbol, parameters, work) SIM_ENTRY_AT(call, symbol, parameters, 0, 0, work)
#define SIM_ENTRY_AT(call, symbol, parameters, first, second, work) \
    SIM_EXPORT CUresult CUDAAPI symbol parameters                   \
    {                                                               \
        SIM_CALL_BODY_AT(call, first, second, work);                \
    }                                                               \
    _Static_assert(SIM_CALL_##call < SIM_CALL_COUNT, "the call is in the call table")

#undef cuDeviceGetUuid
#undef cuEventElapsedTime
#undef cuGetProcAddress
#undef cuGraphGetEdges
#undef cuGraphNodeGetDependencies
#undef cuStreamUpdateCaptureDependencies

struct CUgraphEdgeData_st;
struct CUgreenCtx_st;

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags);
CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice dev);
CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev);
CUresult CUDAAPI cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd);
CUresult CUDAAPI cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd);
CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx);
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx);
CUresult CUDAAPI cuStreamGetCtx_v2(CUstream hStream, CUcontext *pCtx,
                                   struct CUgreenCtx_st **pGreenCtx);
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies, size_t *count);
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies,
                                           const struct CUgraphEdgeData_st **edges, size_t *count);
CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                             const CUgraphNode *dependencies,
                                             const struct CUgraphEdgeData_st *dependencyData,
                                             size_t numDependencies, CUstreamCaptureMode mode);
CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode *dependencies,
                                                   size_t numDependencies, unsigned int flags);
CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(
    CUstream hStream, CUgraphNode *dependencies, const struct CUgraphEdgeData_st *dependencyData,
    size_t numDependencies, unsigned int flags);
CUresult CUDAAPI cuGraphGetEdges(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                 size_t *numEdges);
CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                    struct CUgraphEdgeData_st *edgeData, size_t *numEdges);
CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode hNode, CUgraphNode *dependencies,
                                            size_t *numDependencies);
CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode hNode, CUgraphNode *dependencies,
                                               struct CUgraphEdgeData_st *edgeData,
                                               size_t *numDependencies);

#endif
