/* SPDX-License-Identifier: MIT */
/*
 * Graphs: what captures put together, nodes and what each needs.
 *
 *     a ---> b ---> d        d needs b and c; the edges run from a to b, a to c, b to d, c to d
 *       \         /
 *        `-> c --'
 *
 * A node keeps its operation, which the graph queues when it is launched (executable.h).  A conditional
 * node has graphs of its own, its bodies, one of which may run when the node does.
 *
 * Invariants: a node needs nodes of its own graph that were added before it, each once.  A body is ended
 * by its node alone.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_GRAPH_H
#define XSEG_SIM_GRAPH_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/operation.h"

struct sim_held;

/** A set of nodes, by handle, each once; all zero is the empty set. */
struct sim_nodes {
    CUgraphNode *node;
    uint64_t *edge; /* data of the edges from them, of 8 bytes each: all zero */
    size_t count, capacity;
};

struct sim_node {
    struct sim_graph *graph;
    uint64_t handle;
    struct sim_operation operation;
    struct sim_nodes needs;
    bool is_marked; /* by a walk that is under way */
    /* Of a conditional node: its bodies, as the program knows them, and the one that runs, or NULL. */
    CUgraph *body;
    unsigned bodies;
    struct sim_graph *chosen;
};

/** A value that a conditional node goes by; no kernel here changes it, so it is what it begins with. */
struct sim_condition {
    uint64_t handle;
    unsigned value;
};

struct sim_graph {
    uint64_t handle;
    uint64_t nodes; /* how many */
    struct sim_node **node;
    size_t capacity;
    bool is_captured_into; /* belongs to a capture still */
    bool is_body;          /* of a conditional node */
    struct sim_condition *condition;
    size_t conditions;
    struct sim_held *held; /* user objects that it refers to */
};

/** Add nodes to a set.  Returns: false when there is no host memory, and nothing has changed */
bool sim_nodes_join(struct sim_nodes *set, const struct sim_nodes *more);

/** Exactly these.  Returns: as above */
bool sim_nodes_copy(struct sim_nodes *set, const struct sim_nodes *from);

/** None from here on. */
void sim_nodes_clear(struct sim_nodes *set);

/** An empty graph; NULL when there is no host memory. */
struct sim_graph *sim_graph_make(void);

/** End a graph and its nodes. */
void sim_graph_end(struct sim_graph *graph);

/**
 * Add a node that needs the nodes of a set, and make it the only one of the set.
 *
 * Returns: false when there is no host memory, and nothing has changed
 */
bool sim_graph_add(struct sim_graph *graph, const struct sim_operation *operation,
                   struct sim_nodes *set);

/** Take back the node that was added last, which nothing needs yet. */
void sim_graph_remove_last(struct sim_graph *graph);

/** The graph of a handle, or NULL. */
struct sim_graph *sim_graph_find(CUgraph handle);

/** Whether all of these are nodes of a graph. */
bool sim_graph_has(const struct sim_graph *graph, const CUgraphNode *nodes, size_t count);

/** Whether all nodes of a set are in another or needed, directly or not, by those in it. */
bool sim_graph_is_behind(struct sim_graph *graph, const struct sim_nodes *set,
                         const struct sim_nodes *other);

/** The node of a handle, or NULL. */
struct sim_node *sim_node_find(CUgraphNode handle);

#endif
