/* SPDX-License-Identifier: MIT */
#include "vmm/sim/graph.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"

static bool nodes_reserve(struct sim_nodes *set, size_t count)
{
    size_t capacity = set->capacity == 0 ? 4 : set->capacity;
    CUgraphNode *node;
    uint64_t *edge;

    if (count <= set->capacity)
        return true;
    while (capacity < count)
        capacity *= 2;
    edge = calloc(capacity, sizeof(*edge));
    node = edge != NULL ? realloc(set->node, capacity * sizeof(CUgraphNode)) : NULL;
    if (node == NULL) {
        free(edge);
        return false;
    }
    free(set->edge);
    set->node = node;
    set->edge = edge;
    set->capacity = capacity;
    return true;
}

static bool nodes_contain(const struct sim_nodes *set, CUgraphNode node)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->node[i] == node)
            return true;
    return false;
}

bool sim_nodes_add(struct sim_nodes *set, const struct sim_nodes *added)
{
    if (!nodes_reserve(set, set->count + added->count))
        return false;
    for (size_t i = 0; i < added->count; i++)
        if (!nodes_contain(set, added->node[i]))
            set->node[set->count++] = added->node[i];
    return true;
}

bool sim_nodes_assign(struct sim_nodes *set, const struct sim_nodes *from)
{
    if (!nodes_reserve(set, from->count))
        return false;
    set->count = 0;
    return sim_nodes_add(set, from);
}

void sim_nodes_clear(struct sim_nodes *set)
{
    free(set->node);
    free(set->edge);
    memset(set, 0, sizeof(*set));
}

struct sim_graph *sim_graph_create(void)
{
    struct sim_graph *graph = calloc(1, sizeof(*graph));

    if (graph == NULL)
        return NULL;
    graph->handle = sim_handles_add(&sim_machine.graphs, graph);
    if (graph->handle != 0)
        return graph;
    free(graph);
    return NULL;
}

struct sim_graph *sim_graph_find(CUgraph handle)
{
    return sim_handles_find(&sim_machine.graphs, (uint64_t)(uintptr_t)handle);
}

static struct sim_node *find_node(CUgraphNode handle)
{
    return sim_handles_find(&sim_machine.nodes, (uint64_t)(uintptr_t)handle);
}

bool sim_graph_contains(const struct sim_graph *graph, const CUgraphNode *nodes, size_t count)
{
    if (nodes == NULL && count != 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct sim_node *node = find_node(nodes[i]);

        if (node == NULL || node->graph != graph)
            return false;
    }
    return true;
}

static void node_destroy(struct sim_node *node)
{
    if (node->handle != 0)
        sim_handles_remove(&sim_machine.nodes, node->handle, true);
    for (unsigned i = 0; i < node->body_count; i++)
        sim_graph_destroy(sim_graph_find(node->body[i]));
    free(node->body);
    sim_operation_destroy(&node->operation);
    sim_nodes_clear(&node->dependencies);
    free(node);
}

void sim_graph_destroy(struct sim_graph *graph)
{
    if (graph->is_capture_target)
        sim_capture_detach_graph(graph);
    for (uint64_t i = 0; i < graph->node_count; i++)
        node_destroy(graph->node[i]);
    sim_user_objects_release(&graph->user_objects);
    sim_handles_remove(&sim_machine.graphs, graph->handle, true);
    free(graph->condition);
    free(graph->node);
    free(graph);
}

static bool graph_reserve_node(struct sim_graph *graph)
{
    const size_t capacity = graph->capacity == 0 ? 16 : graph->capacity * 2;
    struct sim_node **node;

    if (graph->node_count < graph->capacity)
        return true;
    node = realloc(graph->node, capacity * sizeof(struct sim_node *));
    if (node == NULL)
        return false;
    graph->node = node;
    graph->capacity = capacity;
    return true;
}

bool sim_graph_add_node(struct sim_graph *graph, const struct sim_operation *operation,
                        struct sim_nodes *set)
{
    struct sim_node *node;

    if (!graph_reserve_node(graph) || !nodes_reserve(set, 1))
        return false;
    node = calloc(1, sizeof(*node));
    if (node == NULL)
        return false;
    node->graph = graph;
    if (sim_operation_copy(&node->operation, operation) &&
        sim_nodes_assign(&node->dependencies, set))
        node->handle = sim_handles_add(&sim_machine.nodes, node);
    if (node->handle == 0) {
        node_destroy(node);
        return false;
    }
    graph->node[graph->node_count++] = node;
    set->node[0] = (CUgraphNode)(uintptr_t)node->handle;
    set->count = 1;
    return true;
}

static void mark_nodes(const struct sim_nodes *set)
{
    for (size_t i = 0; i < set->count; i++)
        find_node(set->node[i])->is_marked = true;
}

bool sim_graph_is_covered(struct sim_graph *graph, const struct sim_nodes *set,
                          const struct sim_nodes *cover)
{
    bool is_covered = true;

    mark_nodes(cover);
    /* Dependencies are earlier nodes, so one backward pass marks all of them. */
    for (uint64_t i = graph->node_count; i-- > 0;)
        if (graph->node[i]->is_marked)
            mark_nodes(&graph->node[i]->dependencies);
    for (size_t i = 0; i < set->count; i++)
        is_covered = is_covered && find_node(set->node[i])->is_marked;
    for (uint64_t i = 0; i < graph->node_count; i++)
        graph->node[i]->is_marked = false;
    return is_covered;
}

/* Output arrays of a query.  Entries past the last node are NULL; nodes that do not fit are counted only. */
struct node_list {
    CUgraphNode *first, *second; /* arrays, or NULL */
    size_t capacity, count;
};

static void node_list_add(struct node_list *list, CUgraphNode first, CUgraphNode second)
{
    if (list->count < list->capacity) {
        if (list->first != NULL)
            list->first[list->count] = first;
        if (list->second != NULL)
            list->second[list->count] = second;
    }
    list->count++;
}

/* Fill up the arrays.  The count is that of written entries, or of all nodes if there are no arrays. */
static void node_list_finish(struct node_list *list, size_t *count)
{
    const bool has_arrays = list->first != NULL || list->second != NULL;
    const size_t found = has_arrays && list->count > list->capacity ? list->capacity : list->count;

    while (list->count < list->capacity)
        node_list_add(list, NULL, NULL);
    *count = found;
}

static struct node_list node_list_init(CUgraphNode *first, CUgraphNode *second, const size_t *count)
{
    return (struct node_list){
        .first = first,
        .second = second,
        .capacity = first == NULL && second == NULL ? 0 : *count,
    };
}

static CUresult get_graph_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count, bool roots_only)
{
    const struct sim_graph *graph = sim_graph_find(handle);
    struct node_list list;

    if (graph == NULL || count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    list = node_list_init(nodes, NULL, count);
    for (uint64_t i = 0; i < graph->node_count; i++)
        if (!roots_only || graph->node[i]->dependencies.count == 0)
            node_list_add(&list, (CUgraphNode)(uintptr_t)graph->node[i]->handle, NULL);
    node_list_finish(&list, count);
    return CUDA_SUCCESS;
}

static void clear_edge_data(void *edges, const CUgraphNode *nodes, const size_t *count)
{
    if (edges != NULL && nodes != NULL)
        memset(edges, 0, *count * sizeof(uint64_t));
}

static CUresult get_graph_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, void *edges,
                                size_t *count)
{
    const struct sim_graph *graph = sim_graph_find(handle);
    struct node_list list;

    if (graph == NULL || count == NULL || (from == NULL) != (to == NULL) ||
        (edges != NULL && from == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    clear_edge_data(edges, from, count);
    list = node_list_init(from, to, count);
    for (uint64_t i = 0; i < graph->node_count; i++) {
        const struct sim_node *node = graph->node[i];

        for (size_t j = 0; j < node->dependencies.count; j++)
            node_list_add(&list, node->dependencies.node[j], (CUgraphNode)(uintptr_t)node->handle);
    }
    node_list_finish(&list, count);
    return CUDA_SUCCESS;
}

static CUresult get_node_dependencies(CUgraphNode handle, CUgraphNode *nodes, void *edges,
                                      size_t *count)
{
    const struct sim_node *node = find_node(handle);
    struct node_list list;

    if (node == NULL || count == NULL || (edges != NULL && nodes == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    clear_edge_data(edges, nodes, count);
    list = node_list_init(nodes, NULL, count);
    for (size_t i = 0; i < node->dependencies.count; i++)
        node_list_add(&list, node->dependencies.node[i], NULL);
    node_list_finish(&list, count);
    return CUDA_SUCCESS;
}

static CUresult get_node_type(CUgraphNode handle, CUgraphNodeType *type)
{
    const struct sim_node *node = find_node(handle);

    if (node == NULL || type == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *type = (CUgraphNodeType)node->operation.type;
    return CUDA_SUCCESS;
}

static CUresult destroy_graph(CUgraph handle)
{
    struct sim_graph *graph = sim_graph_find(handle);

    if (graph == NULL || graph->is_capture_target || graph->is_body)
        return CUDA_ERROR_INVALID_VALUE;
    sim_graph_destroy(graph);
    sim_user_objects_run_destructors();
    return CUDA_SUCCESS;
}

static CUresult create_graph(CUgraph *out, unsigned flags)
{
    const struct sim_graph *graph;

    if (out == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    graph = sim_graph_create();
    if (graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUgraph)(uintptr_t)graph->handle;
    return CUDA_SUCCESS;
}

SIM_ENTRY(GRAPH_GET_NODES, cuGraphGetNodes, (CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes),
          get_graph_nodes(hGraph, nodes, numNodes, false));
SIM_ENTRY(GRAPH_GET_ROOT_NODES, cuGraphGetRootNodes,
          (CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes),
          get_graph_nodes(hGraph, rootNodes, numRootNodes, true));
SIM_ENTRY(GRAPH_GET_EDGES, cuGraphGetEdges,
          (CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, size_t *numEdges),
          get_graph_edges(hGraph, from, to, NULL, numEdges));
SIM_ENTRY(GRAPH_GET_EDGES_V2, cuGraphGetEdges_v2,
          (CUgraph hGraph, CUgraphNode *from, CUgraphNode *to, struct CUgraphEdgeData_st *edgeData,
           size_t *numEdges),
          get_graph_edges(hGraph, from, to, edgeData, numEdges));
SIM_ENTRY(GRAPH_NODE_GET_DEPENDENCIES, cuGraphNodeGetDependencies,
          (CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies),
          get_node_dependencies(hNode, dependencies, NULL, numDependencies));
SIM_ENTRY(GRAPH_NODE_GET_DEPENDENCIES_V2, cuGraphNodeGetDependencies_v2,
          (CUgraphNode hNode, CUgraphNode *dependencies, struct CUgraphEdgeData_st *edgeData,
           size_t *numDependencies),
          get_node_dependencies(hNode, dependencies, edgeData, numDependencies));
SIM_ENTRY(GRAPH_NODE_GET_TYPE, cuGraphNodeGetType, (CUgraphNode hNode, CUgraphNodeType *type),
          get_node_type(hNode, type));
SIM_ENTRY(GRAPH_CREATE, cuGraphCreate, (CUgraph *phGraph, unsigned int flags),
          create_graph(phGraph, flags));
SIM_ENTRY(GRAPH_DESTROY, cuGraphDestroy, (CUgraph hGraph), destroy_graph(hGraph));

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
    grown = realloc(graph->condition, (graph->condition_count + 1) * sizeof(*grown));
    if (grown == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    graph->condition = grown;
    grown[graph->condition_count] = (struct sim_condition){
        .handle = ++sim_machine.last_condition,
        .value = flags != 0 ? value : 0,
    };
    *out = grown[graph->condition_count++].handle;
    return CUDA_SUCCESS;
}

static const struct sim_condition *find_condition(const struct sim_graph *graph, uint64_t handle)
{
    for (size_t i = 0; i < graph->condition_count; i++)
        if (graph->condition[i].handle == handle)
            return &graph->condition[i];
    return NULL;
}

static bool is_body_count_valid(const CUDA_CONDITIONAL_NODE_PARAMS *params)
{
    switch ((int)params->type) {
    case CU_GRAPH_COND_TYPE_IF:
        return params->size == 1 || params->size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
        return params->size == 1;
    case 2: /* CU_GRAPH_COND_TYPE_SWITCH */
        return params->size >= 1;
    default:
        return false;
    }
}

/* Get the index of the body that a value selects; the number of bodies if none. */
static unsigned select_body(const CUDA_CONDITIONAL_NODE_PARAMS *params, unsigned value)
{
    if ((int)params->type == 2)
        return value < params->size ? value : params->size;
    return value != 0 ? 0 : 1;
}

static bool create_bodies(struct sim_node *node, unsigned count)
{
    node->body = calloc(count, sizeof(CUgraph));
    while (node->body != NULL && node->body_count < count) {
        struct sim_graph *body = sim_graph_create();

        if (body == NULL)
            return false;
        body->is_body = true;
        node->body[node->body_count++] = (CUgraph)(uintptr_t)body->handle;
    }
    return node->body != NULL;
}

static CUresult add_conditional_node(CUgraphNode *out, struct sim_graph *graph,
                                     struct sim_nodes *dependencies,
                                     CUDA_CONDITIONAL_NODE_PARAMS *params)
{
    static const struct sim_operation operation = {.type = SIM_NODE_CONDITIONAL};
    const struct sim_condition *condition = find_condition(graph, params->handle);
    struct sim_node *node;
    unsigned choice;

    if (condition == NULL || !is_body_count_valid(params))
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_graph_add_node(graph, &operation, dependencies))
        return CUDA_ERROR_OUT_OF_MEMORY;
    node = graph->node[graph->node_count - 1];
    if (!create_bodies(node, params->size)) {
        node_destroy(graph->node[--graph->node_count]);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    choice = select_body(params, condition->value);
    node->chosen = choice < node->body_count ? sim_graph_find(node->body[choice]) : NULL;
    params->phGraph_out = node->body;
    *out = (CUgraphNode)(uintptr_t)node->handle;
    return CUDA_SUCCESS;
}

/* Conditional and empty nodes are supported. */
static CUresult add_node(CUgraphNode *out, CUgraph graph_handle, const CUgraphNode *nodes,
                         size_t count, CUgraphNodeParams *params)
{
    static const struct sim_operation empty = {.type = SIM_NODE_EMPTY};
    const struct sim_nodes from = {.node = (CUgraphNode *)(uintptr_t)nodes, .count = count};
    struct sim_graph *graph = sim_graph_find(graph_handle);
    struct sim_nodes dependencies = {0};
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (out == NULL || params == NULL || graph == NULL || !sim_graph_contains(graph, nodes, count))
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_nodes_assign(&dependencies, &from)) {
        sim_nodes_clear(&dependencies);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if ((int)params->type == SIM_NODE_CONDITIONAL) {
        result = add_conditional_node(out, graph, &dependencies, &params->conditional);
    } else if ((int)params->type == SIM_NODE_EMPTY) {
        result = sim_graph_add_node(graph, &empty, &dependencies) ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            *out = dependencies.node[0];
    }
    sim_nodes_clear(&dependencies);
    return result;
}

SIM_ENTRY(GRAPH_CONDITIONAL_CREATE, cuGraphConditionalHandleCreate,
          (CUgraphConditionalHandle *pHandle_out, CUgraph hGraph, CUcontext ctx,
           unsigned int defaultLaunchValue, unsigned int flags),
          create_conditional_handle(pHandle_out, hGraph, ctx, defaultLaunchValue, flags));

/* Edge data is ignored. */
SIM_EXPORT CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *phGraphNode, CUgraph hGraph,
                                              const CUgraphNode *dependencies,
                                              const CUgraphEdgeData *dependencyData,
                                              size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    (void)dependencyData;
    SIM_CALL_BODY(GRAPH_ADD_NODE,
                  add_node(phGraphNode, hGraph, dependencies, numDependencies, nodeParams));
}

#endif
