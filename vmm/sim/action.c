/* SPDX-License-Identifier: MIT */
#include "vmm/sim/action.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/sim/machine.h"
#include "vmm/sim/sparse.h"
#include "vmm/sim/stream.h"

static void completion_free(struct sim_action *action)
{
    sim_work_unrefer(action->work);
    free(action->staged);
    free(action);
}

bool sim_action_queue(struct sim_stream *stream, struct sim_action *action)
{
    struct sim_actions *actions = &sim_machine.actions;

    if (!sim_stream_queue(stream, 0, NULL)) {
        completion_free(action);
        return false;
    }
    action->work = sim_work_refer(stream->queue.last);
    action->device = stream->device;
    action->next = NULL;
    if (actions->first == NULL)
        actions->last = &actions->first;
    *actions->last = action;
    actions->last = &action->next;
    return true;
}

static void *pointer_to(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void run_memset(const struct sim_action *action)
{
    unsigned char *to = pointer_to(action->to);

    if (action->pattern == 0) {
        sim_sparse_clear(action->to, action->bytes);
        return;
    }
    if (action->width == 1) {
        memset(to, (int)(action->pattern & 0xff), action->bytes);
        return;
    }
    for (uint64_t at = 0; at < action->bytes; at += action->width)
        memcpy(to + at, &action->pattern, action->width);
}

static void completion_run(const struct sim_action *action)
{
    struct sim_actions *actions = &sim_machine.actions;

    if (action->function != NULL) {
        actions->is_running = true;
        sim_machine.is_plain = false;
        actions->runner = sim_thread()->number;
        actions->running = action;
        sim_unlock_for(action->function, action->argument);
        actions->running = NULL;
        actions->is_running = false;
    } else if (action->width != 0) {
        run_memset(action);
    } else if (action->staged != NULL) {
        memcpy(pointer_to(action->to), action->staged, action->bytes);
    } else {
        sim_sparse_copy(action->to, action->from, action->bytes);
    }
}

/* The link to the action that is due first, or NULL.  Work that was cut short has no end. */
static struct sim_action **next_due_completion(void)
{
    struct sim_action **found = NULL;
    uint64_t end = UINT64_MAX;

    for (struct sim_action **at = &sim_machine.actions.first; *at != NULL; at = &(*at)->next) {
        const struct sim_work *work = (*at)->work;

        if (sim_work_ended(work) && (found == NULL || work->end < end)) {
            found = at;
            end = work->end;
        }
    }
    return found;
}

static void completion_unlink(struct sim_action **at)
{
    struct sim_actions *actions = &sim_machine.actions;

    if (actions->last == &(*at)->next)
        actions->last = at;
    *at = (*at)->next;
}

void sim_actions_run(void)
{
    struct sim_action **at;

    while (!sim_machine.actions.is_running && (at = next_due_completion()) != NULL) {
        struct sim_action *action = *at;

        completion_unlink(at);
        completion_run(action);
        completion_free(action);
    }
}

static bool completion_precedes(const struct sim_action *action, const struct sim_work *work)
{
    return action->work->queue == work->queue && action->work->number <= work->number;
}

bool sim_actions_hold(const struct sim_work *work)
{
    const struct sim_actions *actions = &sim_machine.actions;

    if (work == NULL || !actions->is_running || actions->runner == sim_thread()->number)
        return false;
    if (completion_precedes(actions->running, work))
        return true;
    for (const struct sim_action *at = actions->first; at != NULL; at = at->next)
        if (completion_precedes(at, work))
            return true;
    return false;
}

static bool range_contains(uint64_t address, uint64_t base, uint64_t bytes)
{
    return address >= base && address - base < bytes;
}

const struct sim_action *sim_actions_find(uint64_t base, uint64_t bytes)
{
    const struct sim_action *at = sim_machine.actions.first;

    while (at != NULL &&
           (at->function != NULL || at->width != 0 ||
            (!range_contains(at->to, base, bytes) && !range_contains(at->from, base, bytes))))
        at = at->next;
    return at;
}

void sim_actions_drop(unsigned device)
{
    struct sim_action **at = &sim_machine.actions.first;

    while (*at != NULL) {
        struct sim_action *action = *at;

        if (action->device != device) {
            at = &action->next;
            continue;
        }
        completion_unlink(at);
        completion_free(action);
    }
}
