/* SPDX-License-Identifier: MIT */
#include "src/core/stream/topology.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"

/* A node in the hash table; NULL is a free place. */
struct xseg_topology_place {
    xseg_node node;
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
        free(view->place);
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
    xseg_list_init(&view->ready);
    xseg_list_insert(&topology->views, &view->link);
    return view;
}

/* --- The hash table: linear probing, at most half full, nothing is ever taken out. --- */

static size_t first_place(const struct xseg_topology_view *view, xseg_node node)
{
    const uint64_t hash = ((uint64_t)(uintptr_t)node >> 4) * UINT64_C(0x9E3779B97F4A7C15);

    XSEG_ASSERT(xseg_is_power_of_two(view->capacity));
    return (size_t)(hash >> 32) & (view->capacity - 1);
}

static struct xseg_topology_place *look(const struct xseg_topology_view *view, xseg_node node)
{
    size_t at = first_place(view, node);

    XSEG_ASSERT(node != NULL && view->used < view->capacity);
    while (view->place[at].node != NULL && view->place[at].node != node)
        at = (at + 1) & (view->capacity - 1);
    return &view->place[at];
}

static bool enlarge(struct xseg_topology_view *view)
{
    const struct xseg_topology_view old = *view;
    const size_t capacity = old.capacity == 0 ? 64 : old.capacity * 2;
    struct xseg_topology_place *place = calloc(capacity, sizeof(*place));

    if (place == NULL)
        return false;
    view->place = place;
    view->capacity = capacity;
    for (size_t i = 0; i < old.capacity; i++)
        if (old.place[i].node != NULL)
            *look(view, old.place[i].node) = old.place[i];
    free(old.place);
    return true;
}

/* Find the place of a node, or take one for it; NULL without host memory. */
static struct xseg_topology_place *place_of(struct xseg_topology_view *view, xseg_node node)
{
    if (view->used * 2 >= view->capacity && !enlarge(view))
        return NULL;
    struct xseg_topology_place *place = look(view, node);
    if (place->node == NULL) {
        place->node = node;
        view->used++;
    }
    XSEG_ASSERT(place->node == node && view->used <= view->capacity / 2);
    return place;
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
    struct xseg_topology_place *place = place_of(view, node);

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

    if (xseg_driver_node_needs(context, node, few, &count) != XSEG_OK)
        return;
    if (count >= sizeof(few) / sizeof(few[0])) {
        /* The driver may have more nodes than fit. */
        if (xseg_driver_node_needs(context, node, NULL, &count) != XSEG_OK)
            return;
        needs = calloc(count, sizeof(xseg_node));
        if (needs == NULL || xseg_driver_node_needs(context, node, needs, &count) != XSEG_OK)
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
        if (place_of(view, marks[i].node) == NULL)
            return false;
    for (size_t i = 0; i < count; i++) {
        struct xseg_topology_place *place = look(view, marks[i].node);

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
