/* SPDX-License-Identifier: MIT */
#include "src/core/stream/topology.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"

/* What is known of a node. */
struct place {
    uint64_t node; /* its address */
    bool behind;
    struct xseg_topology_mark *marks; /* the waiters of this node */
};

/* A stack of nodes that are to be walked. */
struct walk {
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
        xseg_hash_table_fini(&view->places);
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
    xseg_hash_table_init(&view->places, sizeof(struct place));
    xseg_list_init(&view->ready);
    xseg_list_insert(&topology->views, &view->link);
    return view;
}

/* --- Walking. --- */

static bool remember(struct walk *walk, xseg_node node)
{
    if (walk->count == walk->capacity) {
        const size_t capacity = walk->capacity == 0 ? 64 : walk->capacity * 2;
        xseg_node *larger = realloc(walk->node, capacity * sizeof(xseg_node));

        if (larger == NULL)
            return false;
        walk->node = larger;
        walk->capacity = capacity;
    }
    XSEG_ASSERT(walk->count < walk->capacity);
    walk->node[walk->count++] = node;
    return true;
}

/* Note that a node is behind the stream; the nodes that it needs are walked later. */
static void reach(struct xseg_topology_view *view, struct walk *walk, xseg_node node)
{
    struct place *place = xseg_hash_table_find_or_add(&view->places, (uintptr_t)node);

    if (place == NULL || place->behind || !remember(walk, node))
        return;
    place->behind = true;
    for (struct xseg_topology_mark *mark = place->marks; mark != NULL; mark = mark->next) {
        XSEG_ASSERT(mark->waiter->missing != 0);
        if (--mark->waiter->missing == 0)
            xseg_list_insert(&view->ready, &mark->waiter->link);
    }
    place->marks = NULL;
}

/* Note that the nodes which a node needs are behind the stream, too. */
static void reach_needs(struct xseg_topology_view *view, struct walk *walk,
                        struct xseg_context *context, xseg_node node)
{
    xseg_node few[16], *needs = few;
    size_t count = sizeof(few) / sizeof(few[0]);

    if (xseg_driver_node_dependencies(context, node, few, &count) != XSEG_OK)
        return;
    if (count >= sizeof(few) / sizeof(few[0])) {
        /* The driver may have more nodes than fit. */
        if (xseg_driver_node_dependencies(context, node, NULL, &count) != XSEG_OK)
            return;
        needs = calloc(count, sizeof(xseg_node));
        if (needs == NULL || xseg_driver_node_dependencies(context, node, needs, &count) != XSEG_OK)
            count = 0;
    }
    for (size_t i = 0; i < count; i++)
        reach(view, walk, needs[i]);
    if (needs != few)
        free(needs);
}

void xseg_topology_advance(struct xseg_topology_view *view, struct xseg_context *context,
                           const xseg_node *terminals, size_t count)
{
    struct walk walk = {NULL, 0, 0};

    XSEG_ASSERT(count == 0 || terminals != NULL);
    /* The array belongs to the driver, and is valid until the driver is asked again. */
    for (size_t i = 0; i < count; i++)
        reach(view, &walk, terminals[i]);
    while (walk.count > 0)
        reach_needs(view, &walk, context, walk.node[--walk.count]);
    free(walk.node);
}

bool xseg_topology_wait(struct xseg_topology_view *view, struct xseg_topology_waiter *waiter,
                        struct xseg_topology_mark *marks, size_t count)
{
    XSEG_ASSERT(count != 0 && marks != NULL);
    xseg_list_init(&waiter->link);
    waiter->missing = 0;
    for (size_t i = 0; i < count; i++)
        if (xseg_hash_table_find_or_add(&view->places, (uintptr_t)marks[i].node) == NULL)
            return false;
    for (size_t i = 0; i < count; i++) {
        struct place *place = xseg_hash_table_find(&view->places, (uintptr_t)marks[i].node);

        if (place->behind)
            continue;
        marks[i].waiter = waiter;
        marks[i].next = place->marks;
        place->marks = &marks[i];
        waiter->missing++;
    }
    XSEG_ASSERT(waiter->missing <= count);
    if (waiter->missing == 0)
        xseg_list_insert(&view->ready, &waiter->link);
    return true;
}
