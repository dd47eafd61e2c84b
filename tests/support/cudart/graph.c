/* SPDX-License-Identifier: MIT */
/* Graphs: construction, instantiation and launch, and user objects that graphs retain. */
#include "tests/support/cudart/driver.h"

EXPORT cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags)
{
    RETURN_CALL(driver.cuGraphCreate(graph, flags));
}

EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    RETURN_CALL(driver.cuGraphDestroy(graph));
}

EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    RETURN_CALL(driver.cuGraphGetNodes(graph, nodes, count));
}

EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies,
                                                cudaGraphEdgeData *edges, size_t *count)
{
    RETURN_CALL(
        driver.cuGraphNodeGetDependencies(node, dependencies, (CUgraphEdgeData *)edges, count));
}

/* The parameter structures of the runtime and the driver have the same layout. */
EXPORT cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph,
                                    const cudaGraphNode_t *dependencies,
                                    const cudaGraphEdgeData *edges, size_t count,
                                    struct cudaGraphNodeParams *parameters)
{
    RETURN_CALL(driver.cuGraphAddNode(node, graph, dependencies, (const CUgraphEdgeData *)edges,
                                      count, (CUgraphNodeParams *)parameters));
}

EXPORT cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle,
                                                    cudaGraph_t graph, unsigned value,
                                                    unsigned flags)
{
    CUcontext context;
    cudaError_t error = enter_context();

    if (error == cudaSuccess)
        error = primary_context(current_device(), &context);
    if (error == cudaSuccess)
        error = to_error(driver.cuGraphConditionalHandleCreate((CUgraphConditionalHandle *)handle,
                                                               graph, context, value, flags));
    return record_error(error);
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                                 unsigned long long flags)
{
    RETURN_CALL(driver.cuGraphInstantiate(executable, graph, flags));
}

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                        unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
    RETURN_CALL(driver.cuGraphLaunch(executable, stream));
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
    RETURN_CALL(driver.cuGraphExecDestroy(executable));
}

EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *pointer,
                                        cudaHostFn_t destroy, unsigned references, unsigned flags)
{
    RETURN_CALL(driver.cuUserObjectCreate(object, pointer, destroy, references, flags));
}

EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count)
{
    RETURN_CALL(driver.cuUserObjectRelease(object, count));
}

EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                             unsigned count, unsigned flags)
{
    RETURN_CALL(driver.cuGraphRetainUserObject(graph, object, count, flags));
}
