/* SPDX-License-Identifier: MIT */
#include "vmm/sim/work.h"

#include <stdlib.h>

#include "vmm/sim/machine.h"

static uint64_t max_time(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t add_time(uint64_t a, uint64_t b)
{
    /* The most is one below SIM_OPEN, which means that the end is unknown. */
    return b >= SIM_OPEN - 1 - a ? SIM_OPEN - 1 : a + b;
}

struct sim_work *sim_work_refer(struct sim_work *work)
{
    if (work != NULL)
        work->references++;
    return work;
}

void sim_work_unrefer(struct sim_work *work)
{
    if (work == NULL || --work->references != 0)
        return;
    work->queue->pieces--;
    free(work);
}

static void work_unlink_dependency(struct sim_work *work)
{
    if (work->dependency == NULL)
        return;
    if (work->waiter_before != NULL)
        work->waiter_before->waiter_after = work->waiter_after;
    else
        work->dependency->waiters = work->waiter_after;
    if (work->waiter_after != NULL)
        work->waiter_after->waiter_before = work->waiter_before;
    work->dependency = work->waiter_before = work->waiter_after = NULL;
}

/* Something that the piece waited for ends then; the last such puts it in the list. */
static void work_notify_dependent(struct sim_work *work, uint64_t end, struct sim_work **list)
{
    work->earliest = max_time(work->earliest, end);
    if (work->before != NULL || work->dependency != NULL)
        return;
    work->link = *list;
    *list = work;
}

/*
 * Work out the end of each piece in a list, where nothing unknown stands before it any more, and go
 * on with those that waited for it.  A loop, not a recursion: chains can be as long as the program.
 */
static void work_compute_ends(struct sim_work *list)
{
    while (list != NULL) {
        struct sim_work *work = list;

        list = work->link;
        if (work->before != NULL || work->dependency != NULL || work->duration == SIM_OPEN)
            continue;
        work->end = add_time(work->earliest, work->duration);
        if (work->after != NULL) {
            work->after->before = NULL;
            work_notify_dependent(work->after, work->end, &list);
            work->after = NULL;
        }
        while (work->waiters != NULL) {
            struct sim_work *waiter = work->waiters;

            work_unlink_dependency(waiter);
            work_notify_dependent(waiter, work->end, &list);
        }
        sim_work_unrefer(work);
    }
}

static void work_set_dependency(struct sim_work *work, struct sim_work *dependency)
{
    if (dependency == NULL || sim_work_ended(dependency))
        return;
    if (dependency->end != SIM_OPEN) {
        work->earliest = max_time(work->earliest, dependency->end);
        return;
    }
    work->dependency = dependency;
    work->waiter_after = dependency->waiters;
    if (work->waiter_after != NULL)
        work->waiter_after->waiter_before = work;
    dependency->waiters = work;
}

/* Open work behind open work that nobody has taken note of is one piece. */
static bool can_extend_last_work(const struct sim_queue *queue, uint64_t duration,
                                 const struct sim_work *dependency)
{
    const struct sim_work *last = queue->last;

    return duration == SIM_OPEN && dependency == NULL && last != NULL &&
           last->duration == SIM_OPEN && last->end == SIM_OPEN &&
           last->references == 2 + last->touches && last->waiters == NULL;
}

bool sim_work_queue(struct sim_queue *queue, uint64_t duration, struct sim_work *dependency)
{
    struct sim_work *last = queue->last, *work;

    if (can_extend_last_work(queue, duration, dependency))
        return true;
    work = calloc(1, sizeof(*work));
    if (work == NULL)
        return false;
    work->queue = queue;
    work->number = ++queue->queued;
    work->earliest = sim_machine.now;
    work->duration = duration;
    work->end = SIM_OPEN;
    work->references = 2;
    queue->pieces++;

    if (!sim_work_ended(last)) {
        if (last->end == SIM_OPEN) {
            work->before = last;
            last->after = work;
        } else {
            work->earliest = max_time(work->earliest, last->end);
        }
    }
    work_set_dependency(work, dependency);
    queue->last = work;
    work_compute_ends(work);
    sim_work_unrefer(last);
    return true;
}

static void work_visit(struct sim_work *work, struct sim_work **list)
{
    if (work == NULL || work->visit == sim_machine.visits)
        return;
    work->visit = sim_machine.visits;
    work->link = *list;
    *list = work;
}

/* The open pieces that a piece of unknown end needs, itself included. */
static struct sim_work *find_open_predecessors(struct sim_work *work)
{
    struct sim_work *open = NULL, *list = NULL;

    sim_machine.visits++;
    work_visit(work, &list);
    while (list != NULL) {
        struct sim_work *here = list;

        list = here->link;
        work_visit(here->before, &list);
        work_visit(here->dependency, &list);
        if (here->duration == SIM_OPEN) {
            here->link_open = open;
            open = here;
        }
    }
    return open;
}

void sim_work_wait(struct sim_work *work)
{
    struct sim_work *open;

    sim_machine.waits = true;
    if (sim_work_ended(work))
        return;
    open = work->end == SIM_OPEN ? find_open_predecessors(work) : NULL;
    while (open != NULL) {
        struct sim_work *here = open;

        open = here->link_open;
        here->duration = 0;
        here->earliest = max_time(here->earliest, sim_machine.now);
        here->link = NULL;
        work_compute_ends(here);
    }
    sim_machine.now = max_time(sim_machine.now, work->end);
}

void sim_queue_finish(struct sim_queue *queue)
{
    struct sim_work *work = queue->last, *first = NULL;

    queue->cut = queue->queued;
    for (; work != NULL && work->end == SIM_OPEN; work = work->before) {
        work_unlink_dependency(work);
        work->duration = 0;
        work->earliest = sim_machine.now;
        first = work;
    }
    if (first != NULL) {
        first->link = NULL;
        work_compute_ends(first);
    }
}

void sim_queue_forget(struct sim_queue *queue)
{
    sim_work_unrefer(queue->last);
    queue->last = NULL;
}
