/* SPDX-License-Identifier: MIT */
/*
 * An intrusive, circular, doubly linked list with a sentinel head.
 *
 * A node that is in no list points to itself, so removing it again has no effect.
 */
#ifndef XSEG_BASE_LIST_H
#define XSEG_BASE_LIST_H

#include "src/base/align.h"

struct xseg_list {
    struct xseg_list *prev, *next;
};

static inline void xseg_list_init(struct xseg_list *list)
{
    list->prev = list->next = list;
}

static inline bool xseg_list_is_empty(const struct xseg_list *list)
{
    return list->next == list;
}

/* Insert a node before `next`.  If `next` is the head, the node becomes the last one. */
static inline void xseg_list_insert(struct xseg_list *next, struct xseg_list *node)
{
    node->prev = next->prev;
    node->next = next;
    next->prev->next = node;
    next->prev = node;
}

static inline void xseg_list_remove(struct xseg_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    xseg_list_init(node);
}

/* The structure of the first node; the list must not be empty. */
#define XSEG_LIST_FIRST(head, type, member) XSEG_CONTAINER((head)->next, type, member)

#define XSEG_LIST_FOR(node, head) \
    for (struct xseg_list *node = (head)->next; node != (head); node = node->next)

/* As XSEG_LIST_FOR, but the body may remove the node. */
#define XSEG_LIST_FOR_SAFE(node, head)                                                      \
    for (struct xseg_list *node = (head)->next, *after_##node = node->next; node != (head); \
         node = after_##node, after_##node = node->next)

#endif
