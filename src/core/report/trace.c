/* SPDX-License-Identifier: MIT */
#include "src/core/report/trace.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/config/size.h"
#include "src/core/report/words.h"

void xseg_snapshot_trace_init(struct xseg_snapshot_trace *trace, struct xseg_pickle_writer *pickle,
                              struct xseg_snapshot_stacks *stacks,
                              struct xseg_snapshot_naming *naming)
{
    memset(trace, 0, sizeof(*trace));
    trace->pickle = pickle;
    trace->stacks = stacks;
    trace->naming = naming;
    xseg_snapshot_trace_begin(trace);
}

void xseg_snapshot_trace_fini(struct xseg_snapshot_trace *trace)
{
    free(trace->causes);
    xseg_snapshot_paused_fini(&trace->paused);
}

void xseg_snapshot_trace_begin(struct xseg_snapshot_trace *trace)
{
    trace->events = trace->entries = 0;
    trace->cause_count = 0;
    trace->cause = XSEG_HISTORY_ACTIONS;
    xseg_snapshot_paused_begin(&trace->paused);
}

/* Note why the entry that comes next takes or brings memory.  Without host memory the cause is left out. */
static void note_cause(struct xseg_snapshot_trace *trace, uint8_t action)
{
    if (trace->cause_count == trace->cause_room) {
        const size_t room = trace->cause_room == 0 ? 64 : 2 * trace->cause_room;
        struct xseg_snapshot_cause *causes = realloc(trace->causes, room * sizeof(*causes));

        if (causes == NULL)
            return;
        trace->causes = causes;
        trace->cause_room = room;
    }
    trace->causes[trace->cause_count++] = (struct xseg_snapshot_cause){trace->entries, action};
}

/* The word of an action; XSEG_SNAPSHOT_EMPTY: it has no entry. */
static unsigned word_of(uint8_t action)
{
    static const unsigned words[XSEG_HISTORY_ACTIONS] = {
        [XSEG_HISTORY_ALLOC] = XSEG_SNAPSHOT_ALLOC,
        [XSEG_HISTORY_FREE_REQUESTED] = XSEG_SNAPSHOT_FREE_REQUESTED,
        [XSEG_HISTORY_FREE_COMPLETED] = XSEG_SNAPSHOT_FREE_COMPLETED,
        [XSEG_HISTORY_SEGMENT_ALLOC] = XSEG_SNAPSHOT_SEGMENT_ALLOC,
        [XSEG_HISTORY_SEGMENT_FREE] = XSEG_SNAPSHOT_SEGMENT_FREE,
        [XSEG_HISTORY_SEGMENT_MAP] = XSEG_SNAPSHOT_SEGMENT_MAP,
        [XSEG_HISTORY_SEGMENT_UNMAP] = XSEG_SNAPSHOT_SEGMENT_UNMAP,
        [XSEG_HISTORY_OOM] = XSEG_SNAPSHOT_OOM,
        [XSEG_HISTORY_REMAP] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_DECAY] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_TRIM] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_PAUSE] = XSEG_SNAPSHOT_SEGMENT_UNMAP,
        [XSEG_HISTORY_RESUME] = XSEG_SNAPSHOT_SEGMENT_MAP,
        [XSEG_HISTORY_ANNOTATION] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_BUDGET_REQUEST] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_BUDGET_RELEASE] = XSEG_SNAPSHOT_EMPTY,
    };

    return action < XSEG_HISTORY_ACTIONS ? words[action] : XSEG_SNAPSHOT_EMPTY;
}

/* The thread's label, as PyTorch's users set it with _set_memory_metadata(). */
static void write_label(struct xseg_snapshot_trace *trace, uint32_t label)
{
    const char *text = xseg_history_labels_text(&trace->naming->store->labels, label);

    xseg_pickle_key(trace->pickle, XSEG_SNAPSHOT_USER_METADATA);
    if (text == NULL)
        xseg_pickle_interned(trace->pickle, XSEG_SNAPSHOT_EMPTY);
    else
        xseg_pickle_string(trace->pickle, text, strlen(text));
}

static void write_entry(struct xseg_snapshot_trace *trace, const struct xseg_history_event *event,
                        unsigned word)
{
    struct xseg_pickle_writer *pickle = trace->pickle;
    const bool is_oom = event->action == XSEG_HISTORY_OOM;
    const uint64_t *pool = xseg_snapshot_naming_pool(trace->naming, event->pool);

    xseg_pickle_open_dict(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_ACTION);
    xseg_pickle_interned(pickle, word);
    xseg_pickle_key(pickle, is_oom ? XSEG_SNAPSHOT_DEVICE_FREE : XSEG_SNAPSHOT_ADDR);
    xseg_pickle_uint(pickle, is_oom ? xseg_history_event_bytes(event) : event->base);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_SIZE);
    xseg_pickle_uint(pickle,
                     is_oom ? xseg_round_up(event->requested, XSEG_SIZE_UNIT) : event->requested);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_STREAM);
    xseg_pickle_uint(pickle, event->stream);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_TIME_US);
    xseg_pickle_uint(pickle, xseg_snapshot_naming_us(trace->naming, &trace->moment, event->time));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_POOL_ID);
    xseg_pickle_pair(pickle, pool[0], pool[1]);
    write_label(trace, event->label);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_COMPILE_CONTEXT);
    xseg_pickle_interned(pickle, XSEG_SNAPSHOT_NOT_COMPILED);
    if ((event->stack | event->frames) != 0) {
        xseg_pickle_key(pickle, XSEG_SNAPSHOT_FRAMES);
        xseg_snapshot_stacks_write(trace->stacks, event->stack, event->frames);
    }
    xseg_pickle_close(pickle);
    trace->entries++;
}

/* Note the cause of an entry that takes memory away or brings it back. */
static void find_cause(struct xseg_snapshot_trace *trace, const struct xseg_history_event *event)
{
    switch (event->action) {
    case XSEG_HISTORY_PAUSE:
    case XSEG_HISTORY_RESUME:
        note_cause(trace, event->action);
        break;
    case XSEG_HISTORY_SEGMENT_UNMAP:
    case XSEG_HISTORY_SEGMENT_FREE:
        if (trace->cause != XSEG_HISTORY_ACTIONS && trace->cause_base == event->base)
            note_cause(trace, trace->cause);
        trace->cause = XSEG_HISTORY_ACTIONS;
        break;
    default:
        break;
    }
}

/* --- Blocks whose memory goes and comes back. --- */

/* A block that the trace shows, and the event that it is for. */
struct moved {
    struct xseg_snapshot_trace *trace;
    const struct xseg_history_event *event;
};

static struct xseg_history_event move_of(const struct moved *moved,
                                         const struct xseg_snapshot_watched *block,
                                         enum xseg_history_action action)
{
    return (struct xseg_history_event){
        .time = moved->event->time,
        .base = block->base,
        .requested = block->requested,
        .stream = block->stream,
        .pool = block->pool,
        .stack = block->stack,
        .frames = block->frames,
        .label = block->label,
        .action = (uint8_t)action,
    };
}

static void write_leaving(void *self, const struct xseg_snapshot_watched *block)
{
    const struct moved *moved = self;
    struct xseg_history_event event = move_of(moved, block, XSEG_HISTORY_FREE_REQUESTED);

    if (block->is == XSEG_BLOCK_ALLOCATED)
        write_entry(moved->trace, &event, XSEG_SNAPSHOT_FREE_REQUESTED);
    event.action = XSEG_HISTORY_FREE_COMPLETED;
    write_entry(moved->trace, &event, XSEG_SNAPSHOT_FREE_COMPLETED);
}

static void write_return(void *self, const struct xseg_snapshot_watched *block)
{
    const struct moved *moved = self;
    struct xseg_history_event event = move_of(moved, block, XSEG_HISTORY_ALLOC);

    write_entry(moved->trace, &event, XSEG_SNAPSHOT_ALLOC);
    event.action = XSEG_HISTORY_FREE_REQUESTED;
    if (block->is == XSEG_BLOCK_PENDING_FREE)
        write_entry(moved->trace, &event, XSEG_SNAPSHOT_FREE_REQUESTED);
}

/* --- All events. --- */

static void write_event(struct xseg_snapshot_trace *trace, const struct xseg_history_event *event)
{
    struct moved moved = {trace, event};
    const uint64_t bytes = xseg_history_event_bytes(event);

    if (event->action == XSEG_HISTORY_PAUSE)
        xseg_snapshot_paused_visit(&trace->paused, event->base, bytes, write_leaving, &moved);
    find_cause(trace, event);
    write_entry(trace, event, word_of(event->action));
    if (event->action == XSEG_HISTORY_RESUME)
        xseg_snapshot_paused_visit(&trace->paused, event->base, bytes, write_return, &moved);
}

void xseg_snapshot_trace_write(struct xseg_snapshot_trace *trace,
                               const struct xseg_history_event *event, bool leave_out)
{
    const bool shows = xseg_snapshot_paused_note(&trace->paused, event);

    if (leave_out)
        return;
    trace->events++;
    if (word_of(event->action) != XSEG_SNAPSHOT_EMPTY) {
        if (shows)
            write_event(trace, event);
    } else if (event->action != XSEG_HISTORY_ANNOTATION &&
               event->action != XSEG_HISTORY_BUDGET_REQUEST) {
        trace->cause = event->action;
        trace->cause_base = event->base;
    }
}

static unsigned word_of_cause(uint8_t action)
{
    switch (action) {
    case XSEG_HISTORY_REMAP:
        return XSEG_SNAPSHOT_REMAP;
    case XSEG_HISTORY_DECAY:
        return XSEG_SNAPSHOT_DECAY;
    case XSEG_HISTORY_TRIM:
        return XSEG_SNAPSHOT_TRIM;
    case XSEG_HISTORY_BUDGET_RELEASE:
        return XSEG_SNAPSHOT_BUDGET_RELEASE;
    case XSEG_HISTORY_PAUSE:
        return XSEG_SNAPSHOT_PAUSE;
    default:
        XSEG_ASSERT(action == XSEG_HISTORY_RESUME);
        return XSEG_SNAPSHOT_RESUME;
    }
}

void xseg_snapshot_trace_write_causes(const struct xseg_snapshot_trace *trace)
{
    struct xseg_pickle_writer *pickle = trace->pickle;

    xseg_pickle_open_list(pickle);
    for (size_t i = 0; i < trace->cause_count; i++) {
        xseg_pickle_open_list(pickle);
        xseg_pickle_uint(pickle, trace->causes[i].entry);
        xseg_pickle_interned(pickle, word_of_cause(trace->causes[i].action));
        xseg_pickle_close(pickle);
    }
    xseg_pickle_close(pickle);
}
