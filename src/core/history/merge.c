/* SPDX-License-Identifier: MIT */
#include "src/core/history/merge.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"

void xseg_history_merge_init(struct xseg_history_merge *merge)
{
    memset(merge, 0, sizeof(*merge));
}

void xseg_history_merge_fini(struct xseg_history_merge *merge)
{
    for (size_t i = 0; i < merge->count; i++) {
        free(merge->runs[i].events);
        free(merge->runs[i].users);
    }
    free(merge->runs);
    free(merge->heap);
    memset(merge, 0, sizeof(*merge));
}

bool xseg_history_merge_add(struct xseg_history_merge *merge, struct xseg_history_event *events,
                            uint64_t *users, size_t count)
{
    XSEG_ASSERT(events != NULL && merge->heap == NULL);
    if (merge->count == merge->capacity) {
        const size_t capacity = merge->capacity == 0 ? 16 : merge->capacity * 2;
        struct xseg_history_run *runs = realloc(merge->runs, capacity * sizeof(*runs));

        if (runs == NULL) {
            free(events);
            free(users);
            return false;
        }
        merge->runs = runs;
        merge->capacity = capacity;
    }
    merge->runs[merge->count++] =
        (struct xseg_history_run){.events = events, .users = users, .count = count};
    return true;
}

/* --- The heap. --- */

/* Whether one run is before another in the order of the heap. */
typedef bool compare_runs(const struct xseg_history_merge *merge, size_t left, size_t right);

/* Whether the next event of a run is before that of another run. */
static bool has_earlier_event(const struct xseg_history_merge *merge, size_t left, size_t right)
{
    const struct xseg_history_run *a = &merge->runs[left], *b = &merge->runs[right];
    const struct xseg_history_event *first = &a->events[a->next], *second = &b->events[b->next];

    if (first->time != second->time)
        return first->time < second->time;
    return (first->order != 0 ? first->order : a->order) <
           (second->order != 0 ? second->order : b->order);
}

/* Whether the next sequence number of a run is below that of another run. */
static bool has_lower_order(const struct xseg_history_merge *merge, size_t left, size_t right)
{
    const struct xseg_history_run *a = &merge->runs[left], *b = &merge->runs[right];

    return a->events[a->ordered].order < b->events[b->ordered].order;
}

static void sift_run_down(struct xseg_history_merge *merge, compare_runs *is_before, size_t at)
{
    for (;;) {
        size_t min = at;

        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < merge->heap_count; child++)
            if (is_before(merge, merge->heap[child], merge->heap[min]))
                min = child;
        if (min == at)
            return;
        const size_t run = merge->heap[at];
        merge->heap[at] = merge->heap[min];
        merge->heap[min] = run;
        at = min;
    }
}

static void build_heap(struct xseg_history_merge *merge, compare_runs *is_before)
{
    for (size_t at = merge->heap_count; at-- > 0;)
        sift_run_down(merge, is_before, at);
}

/* Restore the heap after the run at the top has advanced; remove the run if it has ended. */
static void update_top_run(struct xseg_history_merge *merge, compare_runs *is_before,
                           bool has_ended)
{
    if (has_ended)
        merge->heap[0] = merge->heap[--merge->heap_count];
    sift_run_down(merge, is_before, 0);
}

/* --- Monotonic times. --- */

/* Raise the times of the events of a run, up to and including `index`, to those of their
 * predecessors, and the time of event `index` to `min`.  Returns the time of that event. */
static uint64_t raise_run_times(struct xseg_history_run *run, size_t index, uint64_t min)
{
    for (; run->next <= index && run->next < run->count; run->next++) {
        const uint64_t before = run->next == 0 ? 0 : run->events[run->next - 1].time;

        run->events[run->next].time = xseg_max(run->events[run->next].time, before);
    }
    struct xseg_history_event *event = &run->events[index];
    XSEG_ASSERT(index < run->count && run->next > index);
    event->time = xseg_max(event->time, min);
    return event->time;
}

/* Find the next event of a run with a sequence number, from index `from` on. */
static bool find_ordered_event(struct xseg_history_run *run, size_t from)
{
    for (run->ordered = from; run->ordered < run->count; run->ordered++)
        if (run->events[run->ordered].order != 0)
            return true;
    return false;
}

static void raise_all_times(struct xseg_history_merge *merge)
{
    uint64_t time = 0;

    for (size_t i = 0; i < merge->count; i++)
        if (find_ordered_event(&merge->runs[i], 0))
            merge->heap[merge->heap_count++] = i;
    build_heap(merge, has_lower_order);
    while (merge->heap_count > 0) {
        struct xseg_history_run *run = &merge->runs[merge->heap[0]];

        time = raise_run_times(run, run->ordered, time);
        update_top_run(merge, has_lower_order, !find_ordered_event(run, run->ordered + 1));
    }
    for (size_t i = 0; i < merge->count; i++) {
        struct xseg_history_run *run = &merge->runs[i];

        if (run->count != 0)
            (void)raise_run_times(run, run->count - 1, 0);
    }
}

bool xseg_history_merge_begin(struct xseg_history_merge *merge)
{
    XSEG_ASSERT(merge->heap == NULL);
    merge->heap = malloc((merge->count + 1) * sizeof(*merge->heap));
    if (merge->heap == NULL)
        return false;
    raise_all_times(merge);
    xseg_history_merge_restart(merge);
    return true;
}

void xseg_history_merge_restart(struct xseg_history_merge *merge)
{
    XSEG_ASSERT(merge->heap != NULL);
    merge->heap_count = 0;
    for (size_t i = 0; i < merge->count; i++) {
        merge->runs[i].next = 0;
        merge->runs[i].order = 0;
        if (merge->runs[i].count != 0)
            merge->heap[merge->heap_count++] = i;
    }
    build_heap(merge, has_earlier_event);
}

const struct xseg_history_event *xseg_history_merge_next(struct xseg_history_merge *merge)
{
    if (merge->heap_count == 0)
        return NULL;
    struct xseg_history_run *run = &merge->runs[merge->heap[0]];
    const struct xseg_history_event *event = &run->events[run->next];
    XSEG_ASSERT(run->next < run->count);
    merge->user = run->users == NULL ? 0 : run->users[run->next];
    run->next++;
    if (event->order != 0)
        run->order = event->order;
    update_top_run(merge, has_earlier_event, run->next == run->count);
    return event;
}
