/* SPDX-License-Identifier: MIT */
/* Graphs: what captures put together, made executable and launched; and user objects that graphs hold. */
#include "tests/support/cudart/driver.h"

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags)
{
    ANSWER(driver.cuGraphCreate(graph, flags));
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ANSWER(driver.cuGraphDestroy(graph));
}

EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    ANSWER(driver.cuGraphGetNodes(graph, nodes, count));
}

EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *needs,
                                                cudaGraphEdgeData *edges, size_t *count)
{
    ANSWER(driver.cuGraphNodeGetDependencies(node, needs, (CUgraphEdgeData *)edges, count));
}

/* The two parameter structures have the same layout. */
EXPORT cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                    const cudaGraphNode_t *needs, const cudaGraphEdgeData *edges,
                                    size_t count, struct cudaGraphNodeParams *parameters)
{
    ANSWER(driver.cuGraphAddNode(node, graph, needs, (const CUgraphEdgeData *)edges, count,
                                 (CUgraphNodeParams *)parameters));
}

EXPORT cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle,
                                                    cudaGraph_t graph, unsigned value,
                                                    unsigned flags)
{
    CUcontext context;
    cudaError_t error = enter();

    if (error == cudaSuccess)
        error = context_of(device_here(), &context);
    if (error == cudaSuccess)
        error = error_of(driver.cuGraphConditionalHandleCreate((CUgraphConditionalHandle *)handle,
                                                               graph, context, value, flags));
    return answer(error);
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                                 unsigned long long flags)
{
    ANSWER(driver.cuGraphInstantiate(executable, graph, flags));
}

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                        unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    ANSWER(driver.cuGraphLaunch(executable, stream));
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    ANSWER(driver.cuGraphExecDestroy(executable));
}

EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *pointer,
                                        cudaHostFn_t destroy, unsigned references, unsigned flags)
{
    ANSWER(driver.cuUserObjectCreate(object, pointer, destroy, references, flags));
}

EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count)
{
    ANSWER(driver.cuUserObjectRelease(object, count));
}

EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                             unsigned count, unsigned flags)
{
    ANSWER(driver.cuGraphRetainUserObject(graph, object, count, flags));
}
