/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/stress/exercise/world.h"

/* The state of an iteration over events. */
struct walk {
    struct world *world;
    uint64_t remaining; /* maximum number of further events */
    uint32_t order;     /* last sequence number */
    uint32_t stack;     /* last stack; 0: none */
    uint64_t time_ns;   /* time of the last event */
};

static bool visit_frame(void *context, const struct xseg_history_frame *frame)
{
    (void)context;
    CHECK(frame->pc != NULL);
    return true;
}

/* Check an event; times and sequence numbers must increase. */
static bool visit_event(void *context, const struct xseg_history_entry *entry)
{
    struct walk *walk = context;

    CHECK((unsigned)entry->action < XSEG_HISTORY_ACTIONS);
    CHECK(entry->requested <= entry->bytes || entry->action == XSEG_HISTORY_OOM);
    CHECK(entry->user == NULL || entry->user == user_of(entry->requested));
    CHECK(entry->device >= 0 && entry->device < (int)walk->world->options.devices);
    CHECK(entry->time_ns >= walk->time_ns);
    walk->time_ns = entry->time_ns;
    if (entry->order != 0) {
        CHECK(entry->order > walk->order);
        walk->order = entry->order;
    }
    if (entry->stack != 0)
        walk->stack = entry->stack;
    return --walk->remaining > 0;
}

static uint32_t gather_frames(void *context)
{
    (void)context;
    return 7;
}

static bool name_frames(void *context, uint32_t frames, char *text, size_t bytes)
{
    (void)context;
    CHECK(frames == 7 && bytes > 16);
    (void)strcpy(text, "line 7");
    return true;
}

static void discard_frames(void *context, const uint32_t *kept, size_t count)
{
    (void)context;
    CHECK(count == 0 || (count == 1 && kept[0] == 7));
}

static void set_hook(struct worker *worker)
{
    struct xseg_history_hook hook = {sizeof(hook)};

    hook.gather = gather_frames;
    hook.name = chance(worker, 2) ? name_frames : NULL;
    hook.discard = chance(worker, 2) ? discard_frames : NULL;
    (void)CALL(xseg_history_set_hook, worker->world->allocator, chance(worker, 2) ? &hook : NULL);
}

/* Write a snapshot of the current state, during calls of other threads. */
static void write_snapshot(struct worker *worker, uint64_t epoch)
{
    struct xseg_snapshot_options options = {sizeof(options)};
    const char *path = chance(worker, 4) ? "/dev/null/none" : NULL;
    char name[64];

    options.without_events = chance(worker, 4);
    options.host_bytes = chance(worker, 2) ? 65536 : 0;
    options.max_ms = chance(worker, 2) ? 5 : 0;
    (void)snprintf(name, sizeof(name), P_tmpdir "/xseg-exercise-%ld-%u", (long)getpid(),
                   worker->number);
    const xseg_status status =
        CALL(xseg_snapshot, worker->world->allocator, path == NULL ? name : path, &options);
    CHECK(status == (path == NULL ? XSEG_OK : XSEG_ERR_FILE) || !fault_was_none(epoch));
    CHECK(path != NULL || status != XSEG_OK || unlink(name) == 0);
}

/* Set the labels of 20,000 requests, so that the table of labels is full, and sweeps discard most of them. */
static void label_requests(struct worker *worker, uint64_t epoch)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    const uint64_t first = below(worker, 1000) * 1000000;
    const char *previous = NULL;
    char text[32];

    xseg_status status = CALL(xseg_history_label, allocator, "requests", NULL);
    if (status == XSEG_OK)
        status = CALL(xseg_history_label, allocator, "a request", &previous);
    for (uint64_t i = 0; i < 20000 && status == XSEG_OK; i++) {
        (void)snprintf(text, sizeof(text), "request %llu", (unsigned long long)(first + i));
        status = xseg_history_label(allocator, text, NULL);
    }
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    CHECK(previous == NULL || strcmp(previous, "requests") == 0);
}

void step_history(struct worker *worker)
{
    static const char *const label[] = {"forward", "backward", "optimizer", NULL};
    struct world *world = worker->world;
    struct walk walk = {.world = world, .remaining = 1 + below(worker, 400)};
    const uint64_t epoch = fault_epoch();

    xseg_status status =
        CALL(xseg_for_each_event, world->allocator, chance(worker, 2) ? -1 : any_device(worker),
             visit_event, &walk, NULL);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    /* ID 0, of an event without a stack, is unknown. */
    status = CALL(xseg_history_stack, world->allocator, walk.stack, visit_frame, NULL);
    CHECK(status == (walk.stack != 0 ? XSEG_OK : XSEG_ERR_ARGUMENT));
    (void)CALL(xseg_history_label, world->allocator, label[below(worker, 4)], NULL);
    (void)CALL(xseg_history_annotate, world->allocator, any_device(worker), "a step");
    if (chance(worker, 8))
        set_hook(worker);
    if (chance(worker, 256))
        label_requests(worker, epoch);
    if (chance(worker, 64))
        write_snapshot(worker, epoch);
    if (chance(worker, 8))
        (void)CALL(xseg_history_clear, world->allocator, -1);
}
