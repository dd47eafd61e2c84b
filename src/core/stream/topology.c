/* SPDX-License-Identifier: MIT */
#include "src/core/stream/topology.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"

/* The state of a node, in the table of a view. */
struct node_state {
    uint64_t node;                    /* key: the address of the node */
    bool precedes;                    /* the node precedes all further work of the stream */
    struct xseg_topology_mark *marks; /* of the waiters of this node */
};

/* A stack of nodes whose dependencies will be visited. */
struct node_stack {
    xseg_node *node;
    size_t count, capacity;
};

void xseg_topology_init(struct xseg_topology *topology)
{
    xseg_list_init(&topology->views);
}

void xseg_topology_fini(struct xseg_topology *topology)
{
    XSEG_LIST_FOR_SAFE(node, &topology->views)
    {
        struct xseg_topology_view *view = XSEG_CONTAINER(node, struct xseg_topology_view, link);

        xseg_list_remove(&view->link);
        xseg_hash_table_fini(&view->nodes);
        free(view);
    }
}

struct xseg_topology_view *xseg_topology_get(struct xseg_topology *topology, uint64_t capture,
                                             const struct xseg_known_stream *stream)
{
    XSEG_ASSERT(capture != 0 && stream != NULL);
    XSEG_LIST_FOR(node, &topology->views)
    {
        struct xseg_topology_view *view = XSEG_CONTAINER(node, struct xseg_topology_view, link);

        if (view->capture == capture && view->stream == stream)
            return view;
    }
    struct xseg_topology_view *view = calloc(1, sizeof(*view));
    if (view == NULL)
        return NULL;
    view->capture = capture;
    view->stream = stream;
    xseg_hash_table_init(&view->nodes, sizeof(struct node_state));
    xseg_list_init(&view->ready);
    xseg_list_insert(&topology->views, &view->link);
    return view;
}

/* --- Graph walk. --- */

static bool push_node(struct node_stack *stack, xseg_node node)
{
    if (stack->count == stack->capacity) {
        const size_t capacity = stack->capacity == 0 ? 64 : stack->capacity * 2;
        xseg_node *larger = realloc(stack->node, capacity * sizeof(xseg_node));

        if (larger == NULL)
            return false;
        stack->node = larger;
        stack->capacity = capacity;
    }
    XSEG_ASSERT(stack->count < stack->capacity);
    stack->node[stack->count++] = node;
    return true;
}

/* Record that a node precedes the stream, and push it to visit its dependencies. */
static void add_preceding_node(struct xseg_topology_view *view, struct node_stack *stack,
                               xseg_node node)
{
    struct node_state *state = xseg_hash_table_find_or_add(&view->nodes, (uintptr_t)node);

    if (state == NULL || state->precedes || !push_node(stack, node))
        return;
    state->precedes = true;
    for (struct xseg_topology_mark *mark = state->marks; mark != NULL; mark = mark->next) {
        XSEG_ASSERT(mark->waiter->missing != 0);
        if (--mark->waiter->missing == 0)
            xseg_list_insert(&view->ready, &mark->waiter->link);
    }
    state->marks = NULL;
}

/* Record that the dependencies of a node precede the stream. */
static void visit_dependencies(struct xseg_topology_view *view, struct node_stack *stack,
                               struct xseg_context *context, xseg_node node)
{
    xseg_node few[16], *dependencies = few;
    size_t count = sizeof(few) / sizeof(few[0]);

    if (xseg_driver_node_dependencies(context, node, few, &count) != XSEG_OK)
        return;
    if (count >= sizeof(few) / sizeof(few[0])) {
        /* The array may have been too small. */
        if (xseg_driver_node_dependencies(context, node, NULL, &count) != XSEG_OK)
            return;
        dependencies = calloc(count, sizeof(xseg_node));
        if (dependencies == NULL ||
            xseg_driver_node_dependencies(context, node, dependencies, &count) != XSEG_OK)
            count = 0;
    }
    for (size_t i = 0; i < count; i++)
        add_preceding_node(view, stack, dependencies[i]);
    if (dependencies != few)
        free(dependencies);
}

void xseg_topology_advance(struct xseg_topology_view *view, struct xseg_context *context,
                           const xseg_node *terminals, size_t count)
{
    struct node_stack stack = {NULL, 0, 0};

    XSEG_ASSERT(count == 0 || terminals != NULL);
    /* The driver owns the array, and the next query replaces it, so it is read first. */
    for (size_t i = 0; i < count; i++)
        add_preceding_node(view, &stack, terminals[i]);
    while (stack.count > 0)
        visit_dependencies(view, &stack, context, stack.node[--stack.count]);
    free(stack.node);
}

bool xseg_topology_wait(struct xseg_topology_view *view, struct xseg_topology_waiter *waiter,
                        struct xseg_topology_mark *marks, size_t count)
{
    XSEG_ASSERT(count != 0 && marks != NULL);
    xseg_list_init(&waiter->link);
    waiter->missing = 0;
    for (size_t i = 0; i < count; i++)
        if (xseg_hash_table_find_or_add(&view->nodes, (uintptr_t)marks[i].node) == NULL)
            return false;
    for (size_t i = 0; i < count; i++) {
        struct node_state *state = xseg_hash_table_find(&view->nodes, (uintptr_t)marks[i].node);

        if (state->precedes)
            continue;
        marks[i].waiter = waiter;
        marks[i].next = state->marks;
        state->marks = &marks[i];
        waiter->missing++;
    }
    XSEG_ASSERT(waiter->missing <= count);
    if (waiter->missing == 0)
        xseg_list_insert(&view->ready, &waiter->link);
    return true;
}
