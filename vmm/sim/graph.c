/* SPDX-License-Identifier: MIT */
#include "vmm/sim/graph.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/object.h"

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

bool sim_nodes_join(struct sim_nodes *set, const struct sim_nodes *more)
{
    if (!nodes_reserve(set, set->count + more->count))
        return false;
    for (size_t i = 0; i < more->count; i++)
        if (!nodes_contain(set, more->node[i]))
            set->node[set->count++] = more->node[i];
    return true;
}

bool sim_nodes_copy(struct sim_nodes *set, const struct sim_nodes *from)
{
    if (!nodes_reserve(set, from->count))
        return false;
    set->count = 0;
    return sim_nodes_join(set, from);
}

void sim_nodes_clear(struct sim_nodes *set)
{
    free(set->node);
    free(set->edge);
    memset(set, 0, sizeof(*set));
}

struct sim_graph *sim_graph_make(void)
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

bool sim_graph_has(const struct sim_graph *graph, const CUgraphNode *nodes, size_t count)
{
    if (nodes == NULL && count != 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct sim_node *node = sim_node_find(nodes[i]);

        if (node == NULL || node->graph != graph)
            return false;
    }
    return true;
}

static void node_destroy(struct sim_node *node)
{
    if (node->handle != 0)
        sim_handles_remove(&sim_machine.nodes, node->handle, true);
    for (unsigned i = 0; i < node->bodies; i++)
        sim_graph_end(sim_graph_find(node->body[i]));
    free(node->body);
    sim_operation_end(&node->operation);
    sim_nodes_clear(&node->needs);
    free(node);
}

void sim_graph_end(struct sim_graph *graph)
{
    if (graph->is_captured_into)
        sim_capture_lose(graph);
    for (uint64_t i = 0; i < graph->nodes; i++)
        node_destroy(graph->node[i]);
    sim_objects_let_go(&graph->held);
    sim_handles_remove(&sim_machine.graphs, graph->handle, true);
    free(graph->condition);
    free(graph->node);
    free(graph);
}

static bool graph_reserve_node(struct sim_graph *graph)
{
    const size_t capacity = graph->capacity == 0 ? 16 : graph->capacity * 2;
    struct sim_node **node;

    if (graph->nodes < graph->capacity)
        return true;
    node = realloc(graph->node, capacity * sizeof(struct sim_node *));
    if (node == NULL)
        return false;
    graph->node = node;
    graph->capacity = capacity;
    return true;
}

bool sim_graph_add(struct sim_graph *graph, const struct sim_operation *operation,
                   struct sim_nodes *set)
{
    struct sim_node *node;

    if (!graph_reserve_node(graph) || !nodes_reserve(set, 1))
        return false;
    node = calloc(1, sizeof(*node));
    if (node == NULL)
        return false;
    node->graph = graph;
    if (sim_operation_copy(&node->operation, operation) && sim_nodes_copy(&node->needs, set))
        node->handle = sim_handles_add(&sim_machine.nodes, node);
    if (node->handle == 0) {
        node_destroy(node);
        return false;
    }
    graph->node[graph->nodes++] = node;
    set->node[0] = (CUgraphNode)(uintptr_t)node->handle;
    set->count = 1;
    return true;
}

void sim_graph_remove_last(struct sim_graph *graph)
{
    node_destroy(graph->node[--graph->nodes]);
}

struct sim_node *sim_node_find(CUgraphNode handle)
{
    return sim_handles_find(&sim_machine.nodes, (uint64_t)(uintptr_t)handle);
}

static void mark_nodes(const struct sim_nodes *set)
{
    for (size_t i = 0; i < set->count; i++)
        sim_node_find(set->node[i])->is_marked = true;
}

bool sim_graph_is_behind(struct sim_graph *graph, const struct sim_nodes *set,
                         const struct sim_nodes *other)
{
    bool is_behind = true;

    mark_nodes(other);
    /* What a node needs was added before it, so one walk backwards sees everything. */
    for (uint64_t i = graph->nodes; i-- > 0;)
        if (graph->node[i]->is_marked)
            mark_nodes(&graph->node[i]->needs);
    for (size_t i = 0; i < set->count; i++)
        is_behind = is_behind && sim_node_find(set->node[i])->is_marked;
    for (uint64_t i = 0; i < graph->nodes; i++)
        graph->node[i]->is_marked = false;
    return is_behind;
}

/* A list that is handed out the way of the driver: what fits, the rest of the room NULL. */
struct list {
    CUgraphNode *first, *second; /* the room; NULL: none */
    size_t room, count;
};

static void node_list_add(struct list *list, CUgraphNode first, CUgraphNode second)
{
    if (list->count < list->room) {
        if (list->first != NULL)
            list->first[list->count] = first;
        if (list->second != NULL)
            list->second[list->count] = second;
    }
    list->count++;
}

/* With room for entries the answer is how many were filled in, without room how many there are. */
static void node_list_finish(struct list *list, size_t *count)
{
    const bool is_asked = list->first != NULL || list->second != NULL;
    const size_t found = is_asked && list->count > list->room ? list->room : list->count;

    while (list->count < list->room)
        node_list_add(list, NULL, NULL);
    *count = found;
}

static struct list node_list_init(CUgraphNode *first, CUgraphNode *second, const size_t *count)
{
    return (struct list){
        .first = first,
        .second = second,
        .room = first == NULL && second == NULL ? 0 : *count,
    };
}

static CUresult get_graph_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count, bool roots_only)
{
    const struct sim_graph *graph = sim_graph_find(handle);
    struct list list;

    if (graph == NULL || count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    list = node_list_init(nodes, NULL, count);
    for (uint64_t i = 0; i < graph->nodes; i++)
        if (!roots_only || graph->node[i]->needs.count == 0)
            node_list_add(&list, (CUgraphNode)(uintptr_t)graph->node[i]->handle, NULL);
    node_list_finish(&list, count);
    return CUDA_SUCCESS;
}

static void clear_edge_data(void *edges, const CUgraphNode *room, const size_t *count)
{
    if (edges != NULL && room != NULL)
        memset(edges, 0, *count * sizeof(uint64_t));
}

static CUresult get_graph_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, void *edges,
                                size_t *count)
{
    const struct sim_graph *graph = sim_graph_find(handle);
    struct list list;

    if (graph == NULL || count == NULL || (from == NULL) != (to == NULL) ||
        (edges != NULL && from == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    clear_edge_data(edges, from, count);
    list = node_list_init(from, to, count);
    for (uint64_t i = 0; i < graph->nodes; i++) {
        const struct sim_node *node = graph->node[i];

        for (size_t j = 0; j < node->needs.count; j++)
            node_list_add(&list, node->needs.node[j], (CUgraphNode)(uintptr_t)node->handle);
    }
    node_list_finish(&list, count);
    return CUDA_SUCCESS;
}

static CUresult get_node_dependencies(CUgraphNode handle, CUgraphNode *nodes, void *edges,
                                      size_t *count)
{
    const struct sim_node *node = sim_node_find(handle);
    struct list list;

    if (node == NULL || count == NULL || (edges != NULL && nodes == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    clear_edge_data(edges, nodes, count);
    list = node_list_init(nodes, NULL, count);
    for (size_t i = 0; i < node->needs.count; i++)
        node_list_add(&list, node->needs.node[i], NULL);
    node_list_finish(&list, count);
    return CUDA_SUCCESS;
}

static CUresult get_node_type(CUgraphNode handle, CUgraphNodeType *type)
{
    const struct sim_node *node = sim_node_find(handle);

    if (node == NULL || type == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *type = (CUgraphNodeType)node->operation.type;
    return CUDA_SUCCESS;
}

static CUresult destroy_graph(CUgraph handle)
{
    struct sim_graph *graph = sim_graph_find(handle);

    if (graph == NULL || graph->is_captured_into || graph->is_body)
        return CUDA_ERROR_INVALID_VALUE;
    sim_graph_end(graph);
    sim_objects_settle();
    return CUDA_SUCCESS;
}

static CUresult create_graph(CUgraph *out, unsigned flags)
{
    const struct sim_graph *graph;

    if (out == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    graph = sim_graph_make();
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
SIM_ENTRY(GRAPH_NODE_GET_NEEDS, cuGraphNodeGetDependencies,
          (CUgraphNode hNode, CUgraphNode *dependencies, size_t *numDependencies),
          get_node_dependencies(hNode, dependencies, NULL, numDependencies));
SIM_ENTRY(GRAPH_NODE_GET_NEEDS_V2, cuGraphNodeGetDependencies_v2,
          (CUgraphNode hNode, CUgraphNode *dependencies, struct CUgraphEdgeData_st *edgeData,
           size_t *numDependencies),
          get_node_dependencies(hNode, dependencies, edgeData, numDependencies));
SIM_ENTRY(GRAPH_NODE_GET_TYPE, cuGraphNodeGetType, (CUgraphNode hNode, CUgraphNodeType *type),
          get_node_type(hNode, type));
SIM_ENTRY(GRAPH_CREATE, cuGraphCreate, (CUgraph *phGraph, unsigned int flags),
          create_graph(phGraph, flags));
SIM_ENTRY(GRAPH_DESTROY, cuGraphDestroy, (CUgraph hGraph), destroy_graph(hGraph));
