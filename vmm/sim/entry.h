/* SPDX-License-Identifier: MIT */
/*
 * What every entry point does first: take the lock, count, let the set fault strike, and refuse
 * what the call table says must be refused.
 *
 * Also the prototypes that cuda.h has only in some versions or hides behind its renaming macros.
 */
#ifndef XSEG_SIM_ENTRY_H
#define XSEG_SIM_ENTRY_H

#include <cuda.h>

#include "vmm/sim/calls.h"
#include "vmm/sim/machine.h"

#define SIM_EXPORT __attribute__((visibility("default")))

/** Whether a call is refused by a set fault, or by what the call table says. */
CUresult sim_enter_asking(enum sim_call call, uint64_t first, uint64_t second);

static inline void sim_count(enum sim_call call)
{
    sim_machine.calls[call]++;
    sim_machine.entered++;
}

/**
 * Takes the lock, whatever it returns.
 *
 * @param checks         of the call, as a constant, so that a call asks for nothing else
 * @param first, second  the device addresses among the arguments; 0: none
 */
static inline CUresult sim_enter(enum sim_call call, unsigned checks, uint64_t first,
                                 uint64_t second)
{
    sim_lock();
    sim_count(call);
    sim_machine.current = sim_call_info[call].name;
    if (__builtin_expect((checks & (SIM_NEEDS_CONTEXT | SIM_UNSAFE)) != 0 || !sim_machine.is_plain,
                         0))
        return sim_enter_asking(call, first, second);
    return CUDA_SUCCESS;
}

/**
 * Whether a call may be answered without the lock, which the process's only thread does not need: nothing but
 * its own table row may refuse it, and nothing waits for its end.  It is counted, no more: an event query
 * takes some 50 instructions instead of 90, an exchange of the capture mode some 30 instead of 40.
 */
static inline bool sim_is_quiet(void)
{
    return SIM_HAS_ONE_THREAD && sim_machine.is_plain && sim_machine.actions.first == NULL;
}

/** Gives the lock back and hands the result through. */
static inline CUresult sim_leave(CUresult result)
{
    sim_machine.current = NULL;
    sim_unlock();
    return result;
}

/* The body of an entry point: work is evaluated only if the call is not refused on entry. */
#define SIM_ANSWER(call, work) SIM_ANSWER_AT(call, 0, 0, work)
#define SIM_ANSWER_AT(call, first, second, work)                                             \
    do {                                                                                     \
        CUresult result_ = sim_enter(SIM_CALL_##call, SIM_CHECKS_##call, (first), (second)); \
                                                                                             \
        if (result_ == CUDA_SUCCESS)                                                         \
            result_ = (work);                                                                \
        return sim_leave(result_);                                                           \
    } while (0)

/*
 * An entry point whose parameters, in parentheses, are handed to the work as they are.
 *
 * The symbol is written in full: cuda.h renames some calls by macros.
 */
#define SIM_ENTRY(call, symbol, parameters, work) SIM_ENTRY_AT(call, symbol, parameters, 0, 0, work)
#define SIM_ENTRY_AT(call, symbol, parameters, first, second, work) \
    SIM_EXPORT CUresult CUDAAPI symbol parameters                   \
    {                                                               \
        SIM_ANSWER_AT(call, first, second, work);                   \
    }                                                               \
    _Static_assert(SIM_CALL_##call < SIM_CALL_COUNT, "it is in the table of calls")

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
