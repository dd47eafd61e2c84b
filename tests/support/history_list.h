/* SPDX-License-Identifier: MIT */
/* The events of a history as an array, and as a string of action names. */
#ifndef XSEG_TESTS_HISTORY_LIST_H
#define XSEG_TESTS_HISTORY_LIST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/env.h"

struct history_list {
    struct xseg_history_entry *entry; /* [count] */
    size_t count, capacity;
    struct xseg_history_summary summary;
};

static inline bool history_add(void *context, const struct xseg_history_entry *entry)
{
    struct history_list *list = context;

    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 256 : list->capacity * 2;
        list->entry = realloc(list->entry, list->capacity * sizeof(*entry));
        assert_non_null(list->entry);
    }
    assert_int_equal(entry->struct_size, sizeof(*entry));
    list->entry[list->count++] = *entry;
    return true;
}

/* A list that frees its events at the end of its scope. */
#define HISTORY_LIST __attribute__((cleanup(history_free))) struct history_list

static inline void history_free(const struct history_list *list)
{
    free(list->entry);
}

/* Read the history of a device, or with -1 of all devices.  The caller frees `entry`, if the result is not a HISTORY_LIST. */
static inline struct history_list history_read(struct xseg_allocator *allocator, int device)
{
    struct history_list list = {.summary = {sizeof(list.summary)}};

    assert_int_equal(xseg_for_each_event(allocator, device, history_add, &list, &list.summary),
                     XSEG_OK);
    assert_int_equal(list.summary.events, list.count);
    for (size_t i = 1; i < list.count; i++)
        assert_true(list.entry[i].time_ns >= list.entry[i - 1].time_ns);
    return list;
}

/* The only event of an action. */
static inline struct xseg_history_entry history_single_in(const struct history_list *list,
                                                          enum xseg_history_action action)
{
    struct xseg_history_entry event = {.struct_size = 0};
    unsigned count = 0;

    for (size_t i = 0; i < list->count; i++)
        if (list->entry[i].action == action) {
            event = list->entry[i];
            count++;
        }
    assert_int_equal(count, 1);
    return event;
}

/* The only event of an action in the history of device 0. */
static inline struct xseg_history_entry history_single(struct xseg_allocator *allocator,
                                                       enum xseg_history_action action)
{
    const HISTORY_LIST list = history_read(allocator, 0);

    return history_single_in(&list, action);
}

static inline const char *history_action_name(enum xseg_history_action action)
{
    static const char *const names[XSEG_HISTORY_ACTIONS] = {
        [XSEG_HISTORY_ALLOC] = "alloc",
        [XSEG_HISTORY_FREE_REQUESTED] = "free",
        [XSEG_HISTORY_FREE_COMPLETED] = "done",
        [XSEG_HISTORY_SEGMENT_ALLOC] = "segment",
        [XSEG_HISTORY_SEGMENT_FREE] = "end",
        [XSEG_HISTORY_SEGMENT_MAP] = "map",
        [XSEG_HISTORY_SEGMENT_UNMAP] = "unmap",
        [XSEG_HISTORY_OOM] = "oom",
        [XSEG_HISTORY_REMAP] = "remap",
        [XSEG_HISTORY_DECAY] = "decay",
        [XSEG_HISTORY_TRIM] = "trim",
        [XSEG_HISTORY_PAUSE] = "pause",
        [XSEG_HISTORY_RESUME] = "resume",
        [XSEG_HISTORY_ANNOTATION] = "text",
        [XSEG_HISTORY_BUDGET_REQUEST] = "budget_request",
        [XSEG_HISTORY_BUDGET_RELEASE] = "budget_release",
    };

    assert_true(action < XSEG_HISTORY_ACTIONS);
    return names[action];
}

/* Expect exactly these actions, separated by blanks, in the histories of all devices; then clear the histories. */
static inline void history_expect(struct xseg_allocator *allocator, const char *expected)
{
    HISTORY_LIST list = history_read(allocator, -1);
    char actions[4096] = "";
    size_t length = 0;

    for (size_t i = 0; i < list.count; i++) {
        length += (size_t)snprintf(actions + length, sizeof(actions) - length, "%s%s",
                                   i == 0 ? "" : " ", history_action_name(list.entry[i].action));
        assert_true(length < sizeof(actions));
    }
    assert_string_equal(actions, expected);
    assert_int_equal(list.summary.lost, 0);
    assert_int_equal(xseg_history_clear(allocator, -1), XSEG_OK);
}

#endif
