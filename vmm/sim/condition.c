/* SPDX-License-Identifier: MIT */
/*
 * Conditional nodes: graphs in a node, of which one runs, or none, as a value says.
 *
 * On a GPU kernels set the value.  Here they compute nothing, so it stays what a launch gives it: the
 * default where CU_GRAPH_COND_ASSIGN_DEFAULT is set, else 0.  A body that is to run as long as the value
 * is not 0 runs once.
 */
#include <stdlib.h>

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/graph.h"
#include "vmm/sim/machine.h"

#if CUDA_VERSION >= 12040

static CUresult create_conditional_handle(CUgraphConditionalHandle *out, CUgraph graph_handle,
                                          CUcontext context, unsigned value, unsigned flags)
{
    struct sim_graph *graph = sim_graph_find(graph_handle);
    struct sim_condition *grown;
    unsigned device;

    if (out == NULL || graph == NULL || (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (context != NULL && sim_context_device(context, &device) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_CONTEXT;
    grown = realloc(graph->condition, (graph->conditions + 1) * sizeof(*grown));
    if (grown == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->condition = grown;
    grown[graph->conditions] = (struct sim_condition){
        .handle = ++sim_machine.last_condition,
        .value = flags != 0 ? value : 0,
    };
    *out = grown[graph->conditions++].handle;
    return CUDA_SUCCESS;
}

static const struct sim_condition *find_condition(const struct sim_graph *graph, uint64_t handle)
{
    for (size_t i = 0; i < graph->conditions; i++)
        if (graph->condition[i].handle == handle)
            return &graph->condition[i];
    return NULL;
}

static bool is_body_count_valid(const CUDA_CONDITIONAL_NODE_PARAMS *wanted)
{
    switch ((int)wanted->type) {
    case CU_GRAPH_COND_TYPE_IF:
        return wanted->size == 1 || wanted->size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
        return wanted->size == 1;
    case 2: /* CU_GRAPH_COND_TYPE_SWITCH */
        return wanted->size >= 1;
    default:
        return false;
    }
}

/* The body that a value chooses, by its index; as many as there are: none. */
static unsigned select_body(const CUDA_CONDITIONAL_NODE_PARAMS *wanted, unsigned value)
{
    if ((int)wanted->type == 2)
        return value < wanted->size ? value : wanted->size;
    return value != 0 ? 0 : 1;
}

static bool create_bodies(struct sim_node *node, unsigned count)
{
    node->body = calloc(count, sizeof(CUgraph));
    while (node->body != NULL && node->bodies < count) {
        struct sim_graph *body = sim_graph_make();

        if (body == NULL)
            return false;
        body->is_body = true;
        node->body[node->bodies++] = (CUgraph)(uintptr_t)body->handle;
    }
    return node->body != NULL;
}

static CUresult add_conditional_node(CUgraphNode *out, struct sim_graph *graph,
                                     struct sim_nodes *needs, CUDA_CONDITIONAL_NODE_PARAMS *wanted)
{
    static const struct sim_operation operation = {.type = SIM_NODE_CONDITIONAL};
    const struct sim_condition *condition = find_condition(graph, wanted->handle);
    struct sim_node *node;
    unsigned choice;

    if (condition == NULL || !is_body_count_valid(wanted))
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_graph_add(graph, &operation, needs))
        return CUDA_ERROR_OUT_OF_MEMORY;
    node = graph->node[graph->nodes - 1];
    if (!create_bodies(node, wanted->size)) {
        sim_graph_remove_last(graph);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    choice = select_body(wanted, condition->value);
    node->chosen = choice < node->bodies ? sim_graph_find(node->body[choice]) : NULL;
    wanted->phGraph_out = node->body;
    *out = (CUgraphNode)(uintptr_t)node->handle;
    return CUDA_SUCCESS;
}

/* Of the types that a program can add by hand there are conditional and empty nodes. */
static CUresult add_node(CUgraphNode *out, CUgraph graph_handle, const CUgraphNode *nodes,
                         size_t count, CUgraphNodeParams *wanted)
{
    static const struct sim_operation empty = {.type = SIM_NODE_EMPTY};
    const struct sim_nodes from = {.node = (CUgraphNode *)(uintptr_t)nodes, .count = count};
    struct sim_graph *graph = sim_graph_find(graph_handle);
    struct sim_nodes needs = {0};
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (out == NULL || wanted == NULL || graph == NULL || !sim_graph_has(graph, nodes, count))
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_nodes_copy(&needs, &from)) {
        sim_nodes_clear(&needs);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if ((int)wanted->type == SIM_NODE_CONDITIONAL) {
        result = add_conditional_node(out, graph, &needs, &wanted->conditional);
    } else if ((int)wanted->type == SIM_NODE_EMPTY) {
        result = sim_graph_add(graph, &empty, &needs) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            *out = needs.node[0];
    }
    sim_nodes_clear(&needs);
    return result;
}

SIM_ENTRY(GRAPH_CONDITION_CREATE, cuGraphConditionalHandleCreate,
          (CUgraphConditionalHandle *pHandle_out, CUgraph hGraph, CUcontext ctx,
           unsigned int defaultLaunchValue, unsigned int flags),
          create_conditional_handle(pHandle_out, hGraph, ctx, defaultLaunchValue, flags));

/* The data of edges is all zero: there are plain edges only. */
SIM_EXPORT CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                              const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData,
                                              size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    (void)dependencyData;
    SIM_ANSWER(GRAPH_ADD_NODE,
               add_node(phGraphNode, hGraph, dependencies, numDependencies, nodeParams));
}

#endif
