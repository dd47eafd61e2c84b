/* SPDX-License-Identifier: MIT */
/*
 * The histories of a recording that is being read.
 *
 * An entry of a history is a dictionary with an `action` in a list.  As a pickle filter, this module converts entries
 * to events and consumes them, so that an entry is in host memory only briefly.  The device of a list is known
 * at the end.
 *
 * HISTORIES-1  Events of a list are in the order of the list.
 *
 * Locking: none; one thread uses them.
 */
#ifndef TOOLS_HISTORIES_H
#define TOOLS_HISTORIES_H

#include "src/tools/containers/containers.h"
#include "src/tools/reading/reading.h"

#define HISTORIES_MEMORY ((size_t)1 << 30) /* of all events */

/* The events of a list. */
struct history {
    struct recording_event *events; /* [count] */
    size_t count, capacity;
    size_t rejected; /* number of the first item that is not an event, from 1; 0: none */
    bool is_assigned;
};

struct histories {
    struct reading *reading;
    struct history *histories;
    size_t count, bytes;
    struct id_map by_list; /* index of the history, by slot of the list */
    uint32_t last_list;    /* the list of the last event, and its history */
    size_t last;
};

void histories_init(struct histories *histories, struct reading *reading);
void histories_fini(struct histories *histories);

/* pickle_filter.on_item; self is a struct histories.  If the filter stops, the reading has a fault. */
enum pickle_filter_result histories_filter(void *self, uint32_t list, uint32_t item);

/* Get the number of entries of a list. */
size_t histories_count(const struct histories *histories, const struct pickle_value *list);

/* Move the events of a list to a device, which has none.  Returns false with a fault. */
bool histories_assign(struct histories *histories, const struct pickle_value *list,
                      struct recording_device *device);

#endif
