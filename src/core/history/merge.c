/* SPDX-License-Identifier: MIT */
#include "src/core/history/merge.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"

/* Where a numbered event is. */
struct place {
    uint32_t order, run;
    size_t index;
};

void xseg_history_merge_init(struct xseg_history_merge *merge)
{
    memset(merge, 0, sizeof(*merge));
}

void xseg_history_merge_fini(struct xseg_history_merge *merge)
{
    for (size_t i = 0; i < merge->count; i++)
        free(merge->runs[i].events);
    free(merge->runs);
    free(merge->heap);
    memset(merge, 0, sizeof(*merge));
}

bool xseg_history_merge_add(struct xseg_history_merge *merge, struct xseg_history_event *events,
                            size_t count)
{
    XSEG_ASSERT(events != NULL && merge->heap == NULL);
    if (merge->count == merge->capacity) {
        const size_t capacity = merge->capacity == 0 ? 16 : merge->capacity * 2;
        struct xseg_history_run *runs = realloc(merge->runs, capacity * sizeof(*runs));

        if (runs == NULL) {
            free(events);
            return false;
        }
        merge->runs = runs;
        merge->capacity = capacity;
    }
    merge->runs[merge->count++] = (struct xseg_history_run){.events = events, .count = count};
    return true;
}

/* --- Times that do not fall. --- */

static int compare_places(const void *a, const void *b)
{
    const uint32_t left = ((const struct place *)a)->order,
                   right = ((const struct place *)b)->order;

    return left < right ? -1 : left > right;
}

/* All numbered events, by number; NULL without host memory. */
static struct place *list_numbered(const struct xseg_history_merge *merge, size_t *count)
{
    size_t numbered = 0;

    for (size_t i = 0; i < merge->count; i++)
        for (size_t at = 0; at < merge->runs[i].count; at++)
            numbered += merge->runs[i].events[at].order != 0;
    struct place *places = malloc((numbered + 1) * sizeof(*places));
    if (places == NULL)
        return NULL;
    *count = 0;
    for (size_t i = 0; i < merge->count; i++)
        for (size_t at = 0; at < merge->runs[i].count; at++)
            if (merge->runs[i].events[at].order != 0)
                places[(*count)++] =
                    (struct place){merge->runs[i].events[at].order, (uint32_t)i, at};
    qsort(places, *count, sizeof(*places), compare_places);
    return places;
}

/* Raise the times of a run's events up to one, which is raised to `least` as well.  Returns its time. */
static uint64_t raise_to(struct xseg_history_run *run, size_t index, uint64_t least)
{
    for (; run->next <= index && run->next < run->count; run->next++) {
        const uint64_t before = run->next == 0 ? 0 : run->events[run->next - 1].time;

        run->events[run->next].time = xseg_max(run->events[run->next].time, before);
    }
    struct xseg_history_event *event = &run->events[index];
    XSEG_ASSERT(index < run->count && run->next > index);
    event->time = xseg_max(event->time, least);
    return event->time;
}

static bool raise_times(struct xseg_history_merge *merge)
{
    size_t count = 0;
    uint64_t time = 0;
    struct place *places = list_numbered(merge, &count);

    if (places == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        time = raise_to(&merge->runs[places[i].run], places[i].index, time);
    for (size_t i = 0; i < merge->count; i++) {
        struct xseg_history_run *run = &merge->runs[i];

        if (run->count != 0)
            (void)raise_to(run, run->count - 1, 0);
        run->next = 0;
    }
    free(places);
    return true;
}

/* --- The heap. --- */

static bool comes_before(const struct xseg_history_merge *merge, size_t left, size_t right)
{
    const struct xseg_history_run *a = &merge->runs[left], *b = &merge->runs[right];
    const struct xseg_history_event *first = &a->events[a->next], *second = &b->events[b->next];

    if (first->time != second->time)
        return first->time < second->time;
    return (first->order != 0 ? first->order : a->order) <
           (second->order != 0 ? second->order : b->order);
}

static void sift_down(struct xseg_history_merge *merge, size_t at)
{
    for (;;) {
        size_t least = at;

        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < merge->heap_count; child++)
            if (comes_before(merge, merge->heap[child], merge->heap[least]))
                least = child;
        if (least == at)
            return;
        const size_t run = merge->heap[at];
        merge->heap[at] = merge->heap[least];
        merge->heap[least] = run;
        at = least;
    }
}

bool xseg_history_merge_begin(struct xseg_history_merge *merge)
{
    XSEG_ASSERT(merge->heap == NULL);
    merge->heap = malloc((merge->count + 1) * sizeof(*merge->heap));
    if (merge->heap == NULL || !raise_times(merge))
        return false;
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
    for (size_t at = merge->heap_count; at-- > 0;)
        sift_down(merge, at);
}

const struct xseg_history_event *xseg_history_merge_next(struct xseg_history_merge *merge)
{
    if (merge->heap_count == 0)
        return NULL;
    struct xseg_history_run *run = &merge->runs[merge->heap[0]];
    const struct xseg_history_event *event = &run->events[run->next++];
    XSEG_ASSERT(run->next <= run->count);
    if (event->order != 0)
        run->order = event->order;
    if (run->next == run->count)
        merge->heap[0] = merge->heap[--merge->heap_count];
    sift_down(merge, 0);
    return event;
}
