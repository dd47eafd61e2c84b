/* SPDX-License-Identifier: MIT */
#include "vmm/sim/executable.h"

#include <stdlib.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/graph.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/object.h"
#include "vmm/sim/stream.h"

struct executable {
    uint64_t handle;
    struct sim_operation *operation;
    size_t count, capacity;
    struct sim_work *last; /* of its last launch, referred to, or NULL */
    struct sim_held *held;
};

static void graph_exec_destroy(struct executable *executable)
{
    for (size_t i = 0; i < executable->count; i++)
        sim_operation_end(&executable->operation[i]);
    if (executable->last != NULL)
        sim_work_unrefer(executable->last);
    sim_objects_let_go(&executable->held);
    if (executable->handle != 0)
        sim_handles_remove(&sim_machine.executables, executable->handle, true);
    free(executable->operation);
    free(executable);
}

void sim_executables_end(void)
{
    struct executable *executable;
    uint32_t at = 0;

    while ((executable = sim_handles_next(&sim_machine.executables, &at)) != NULL)
        graph_exec_destroy(executable);
}

static bool append_operation(struct executable *executable, const struct sim_operation *operation)
{
    if (executable->count == executable->capacity) {
        const size_t capacity = executable->capacity == 0 ? 16 : executable->capacity * 2;
        struct sim_operation *grown =
            realloc(executable->operation, capacity * sizeof(*executable->operation));

        if (grown == NULL)
            return false;
        executable->operation = grown;
        executable->capacity = capacity;
    }
    if (!sim_operation_copy(&executable->operation[executable->count], operation))
        return false;
    executable->count++;
    return true;
}

/* Refer to the user objects of the bodies of a node: a launch may run any of them on a GPU. */
static bool retain_body_objects(struct executable *executable, const struct sim_node *node)
{
    for (unsigned i = 0; i < node->bodies; i++) {
        const struct sim_graph *body = sim_graph_find(node->body[i]);

        if (!sim_objects_hold(&executable->held, body->held))
            return false;
        for (uint64_t inner = 0; inner < body->nodes; inner++)
            if (!retain_body_objects(executable, body->node[inner]))
                return false;
    }
    return true;
}

/* What a node needs was added before it, so the order of adding is one that its edges allow. */
static bool append_graph(struct executable *executable, const struct sim_graph *graph)
{
    for (uint64_t i = 0; i < graph->nodes; i++) {
        const struct sim_node *node = graph->node[i];

        if (!append_operation(executable, &node->operation) ||
            (node->chosen != NULL && !append_graph(executable, node->chosen)))
            return false;
    }
    return true;
}

static bool retain_graph_objects(struct executable *executable, const struct sim_graph *graph)
{
    for (uint64_t i = 0; i < graph->nodes; i++)
        if (!retain_body_objects(executable, graph->node[i]))
            return false;
    return sim_objects_hold(&executable->held, graph->held);
}

/* Whether a graph, or a body of a node in it, belongs to a capture still. */
static bool is_graph_capture_target(const struct sim_graph *graph)
{
    bool is = graph->is_captured_into;

    for (uint64_t i = 0; i < graph->nodes && !is; i++)
        for (unsigned body = 0; body < graph->node[i]->bodies && !is; body++)
            is = is_graph_capture_target(sim_graph_find(graph->node[i]->body[body]));
    return is;
}

static CUresult instantiate_graph(CUgraphExec *out, CUgraph handle, unsigned long long flags)
{
    const unsigned long long known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    const struct sim_graph *graph = sim_graph_find(handle);
    struct executable *executable;

    if (out == NULL || graph == NULL || is_graph_capture_target(graph) || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    executable = calloc(1, sizeof(*executable));
    if (executable == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (append_graph(executable, graph) && retain_graph_objects(executable, graph))
        executable->handle = sim_handles_add(&sim_machine.executables, executable);
    if (executable->handle == 0) {
        graph_exec_destroy(executable);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUgraphExec)(uintptr_t)executable->handle;
    return CUDA_SUCCESS;
}

static struct executable *find_graph_exec(CUgraphExec handle)
{
    return sim_handles_find(&sim_machine.executables, (uint64_t)(uintptr_t)handle);
}

/* Whether all operations can be queued, as far as it shows before. */
static CUresult check_operations(const struct executable *executable)
{
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < executable->count && result == CUDA_SUCCESS; i++) {
        struct sim_operation operation = executable->operation[i];

        result = sim_operation_check(&operation);
    }
    return result;
}

static CUresult queue_operations(struct executable *executable, struct sim_stream *stream)
{
    CUresult result = check_operations(executable);

    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_stream_queue(stream, 0, sim_work_ended(executable->last) ? NULL : executable->last))
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < executable->count && result == CUDA_SUCCESS; i++) {
        /* Where addresses lie, and which host memory is pinned, is found out each time. */
        struct sim_operation operation = executable->operation[i];

        result = sim_operation_check(&operation);
        if (result == CUDA_SUCCESS)
            result = sim_operation_queue(stream, &operation);
    }
    if (executable->last != NULL)
        sim_work_unrefer(executable->last);
    executable->last = sim_work_refer(stream->queue.last);
    return result;
}

static CUresult launch_graph(CUgraphExec handle, CUstream stream_handle)
{
    struct executable *executable = find_graph_exec(handle);
    struct sim_stream *stream;
    CUresult result = sim_stream_find(stream_handle, true, &stream);

    if (result == CUDA_SUCCESS && executable == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_capture_refuse_stream(stream);
    return result == CUDA_SUCCESS ? queue_operations(executable, stream) : result;
}

static CUresult destroy_graph_exec(CUgraphExec handle)
{
    struct executable *executable = find_graph_exec(handle);

    if (executable == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    graph_exec_destroy(executable);
    sim_objects_settle();
    return CUDA_SUCCESS;
}

SIM_ENTRY(GRAPH_INSTANTIATE, cuGraphInstantiateWithFlags,
          (CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags),
          instantiate_graph(phGraphExec, hGraph, flags));
SIM_ENTRY(GRAPH_LAUNCH, cuGraphLaunch, (CUgraphExec hGraphExec, CUstream hStream),
          launch_graph(hGraphExec, hStream));
SIM_ENTRY(GRAPH_EXEC_DESTROY, cuGraphExecDestroy, (CUgraphExec hGraphExec), destroy_graph_exec(hGraphExec));
