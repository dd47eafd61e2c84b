/* SPDX-License-Identifier: MIT */
/*
 * The histories of a recording that is being read: events, which are taken out of the pickle while it is read, so that
 * host memory has an entry of a history for a moment only.
 *
 * An entry is a dictionary in a list that has an `action`.  Which device its list belongs to is known at the end.
 *
 * TRACES-1  What is taken out of a list is in the order of the list.
 *
 * Locking: none; they belong to one thread.
 */
#ifndef TOOLS_TRACES_H
#define TOOLS_TRACES_H

#include "src/tools/containers/idmap.h"
#include "src/tools/reading/reading.h"

#define TRACES_MEMORY ((size_t)1 << 30) /* of all events */

/* What was taken out of a list. */
struct trace {
    struct recording_event *events; /* [count] */
    size_t count, room;
    size_t left; /* number of the first entry behind an event that is no event, from 1; 0: none */
    bool is_given;
};

struct traces {
    struct reading *reading;
    struct trace *traces;
    size_t count, bytes;
    struct idmap by_list; /* numbers of traces by those of their lists */
    uint32_t last_list;   /* the list of which something was taken last, and its trace */
    size_t last;
};

void traces_init(struct traces *traces, struct reading *reading);
void traces_fini(struct traces *traces);

/* A pickle_taker's; self is a struct traces.  The reading has a fault if it stops. */
enum pickle_taking traces_take(void *self, uint32_t list, uint32_t item);

/* How many entries a list had. */
size_t traces_count(const struct traces *traces, const struct pickle_value *list);

/* Give the events of a list to a device, which has none yet.  Returns: false with a fault. */
bool traces_give(struct traces *traces, const struct pickle_value *list,
                 struct recording_device *device);

#endif
