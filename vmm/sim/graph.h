/* SPDX-License-Identifier: MIT */
/*
 * Graphs: nodes with dependencies, executable graphs, and user objects.
 *
 *     a ---> b ---> d        d depends on b and c; the edges are a-b, a-c, b-d, c-d
 *       \         /
 *        `-> c --'
 *
 * Nodes are created by stream capture (capture.h); cuGraphAddNode adds empty and conditional nodes.  A node stores its
 * operation (operation.h) and the set of nodes on which it depends.  Nodes are stored in the order of their creation,
 * which is a topological order because a node depends only on earlier nodes.
 *
 * A conditional node has body graphs, at most one of which runs.  Kernels set the value on a GPU; simulated kernels
 * compute nothing, so the value is the default of the handle (CU_GRAPH_COND_ASSIGN_DEFAULT) or 0.  The body that runs is
 * therefore known when the node is added, and the body of a loop runs once.
 *
 * An executable graph (graph_exec.c) contains copies of the operations of a graph at its instantiation, in topological
 * order, with the chosen bodies inlined.  A launch checks all operations, so memory must be mapped at each launch, and
 * queues them on one stream after the previous launch of the same executable graph.
 *
 * A user object has a reference count.  The application, graphs and executable graphs hold references.  When the count
 * becomes 0, the object is queued, and its destructor is called without the lock before the driver call returns.
 *
 * Invariants: the dependencies of a node are earlier nodes of the same graph, each once.  A body graph is destroyed with
 * its node only.  A graph with is_capture_target belongs to exactly one capture.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_GRAPH_H
#define XSEG_SIM_GRAPH_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/operation.h"

struct sim_user_object;

/** Set of nodes, by handle.  Zero initialization is the empty set. */
struct sim_nodes {
    CUgraphNode *node;
    uint64_t *edge; /* CUgraphEdgeData of each node, 8 bytes, always zero */
    size_t count, capacity;
};

struct sim_node {
    struct sim_graph *graph;
    uint64_t handle;
    struct sim_operation operation;
    struct sim_nodes dependencies;
    bool is_marked; /* during a walk */
    /* Of a conditional node: body graphs, and the body that runs or NULL. */
    CUgraph *body;
    unsigned body_count;
    struct sim_graph *chosen;
};

/** Conditional handle. */
struct sim_condition {
    uint64_t handle;
    unsigned value;
};

/** References of a graph to a user object. */
struct sim_user_object_ref {
    struct sim_user_object_ref *next;
    struct sim_user_object *object;
    uint64_t references;
};

struct sim_graph {
    uint64_t handle;
    uint64_t node_count;
    struct sim_node **node;
    size_t capacity;
    bool is_capture_target; /* of a capture that has not ended */
    bool is_body;           /* of a conditional node */
    struct sim_condition *condition;
    size_t condition_count;
    struct sim_user_object_ref *user_objects;
};

/** Add nodes to a set.  Returns false, without effect, on host allocation failure. */
bool sim_nodes_add(struct sim_nodes *set, const struct sim_nodes *added);

/** Replace a set.  Returns as sim_nodes_add(). */
bool sim_nodes_assign(struct sim_nodes *set, const struct sim_nodes *from);

/** Make a set empty and free its memory. */
void sim_nodes_clear(struct sim_nodes *set);

/** Create an empty graph.  Returns NULL on host allocation failure. */
struct sim_graph *sim_graph_create(void);

/** Destroy a graph, its nodes and their bodies.  Invalidates a capture into the graph. */
void sim_graph_destroy(struct sim_graph *graph);

/**
 * Add a node that depends on a set, and replace the set by the node.
 *
 * Returns false, without effect, on host allocation failure.
 */
bool sim_graph_add_node(struct sim_graph *graph, const struct sim_operation *operation,
                        struct sim_nodes *set);

/** Get the graph of a handle, or NULL. */
struct sim_graph *sim_graph_find(CUgraph handle);

/** Get whether all nodes are nodes of a graph. */
bool sim_graph_contains(const struct sim_graph *graph, const CUgraphNode *nodes, size_t count);

/** Get whether each node of `set` is in `cover` or is a direct or indirect dependency of a node in `cover`. */
bool sim_graph_is_covered(struct sim_graph *graph, const struct sim_nodes *set,
                          const struct sim_nodes *cover);

/** Release all references of a list. */
void sim_user_objects_release(struct sim_user_object_ref **list);

/** Call the destructors of user objects without references.  Releases the lock during the calls. */
void sim_user_objects_run_destructors(void);

/** Destroy all user objects without calling their destructors. */
void sim_user_objects_destroy(void);

/** Destroy all executable graphs. */
void sim_graph_execs_destroy(void);

#endif
