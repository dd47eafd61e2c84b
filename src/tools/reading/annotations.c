/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/annotations.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE   UINT32_MAX
#define REGION "Torch-Compiled Region"

enum kind { KIND_REGION, KIND_STEP, KIND_STAGE, KINDS };

/* The START or the END of an annotation. */
struct boundary {
    uint64_t time_us, device;
    uint32_t name;  /* text */
    uint32_t order; /* in the list */
    bool is_end;
};

/* The annotations that are active from a boundary to the next one. */
struct active {
    uint64_t since_us;
    uint32_t name[KINDS]; /* text; 0: none */
};

/* An annotation while it is active; its number is that of its START, or of its END if it has no START. */
struct link {
    uint32_t previous, next; /* in the order of their starts; NONE: none */
};

/* The annotations of one device, or of all devices. */
struct annotations {
    const struct recording *recording;
    const struct boundary *boundaries; /* [count], by time */
    uint32_t count;
    uint32_t *start;         /* of each END: the number of its START; NONE: no START */
    uint32_t *previous_open; /* of each START: the previous open START of the same name, or NONE */
    uint32_t *open;          /* by text: the last open START, or NONE */
    struct link *links;      /* [count] */
    uint32_t last[KINDS];    /* the last started of the active annotations, or NONE */
    struct active *active;   /* [count + 1]; the first is active before the first boundary */
};

static enum kind get_kind(const char *name)
{
    const size_t length = strlen(name);

    if (strncmp(name, REGION, strlen(REGION)) == 0)
        return KIND_REGION;
    return length > 0 && isdigit((unsigned char)name[length - 1]) && strcasestr(name, "step")
               ? KIND_STEP
               : KIND_STAGE;
}

/* --- Active annotations. --- */

static enum kind get_boundary_kind(const struct annotations *annotations, uint32_t number)
{
    return get_kind(recording_text(annotations->recording, annotations->boundaries[number].name));
}

static void activate(struct annotations *annotations, uint32_t number)
{
    uint32_t *const last = &annotations->last[get_boundary_kind(annotations, number)];

    annotations->links[number] = (struct link){.previous = *last, .next = NONE};
    if (*last != NONE)
        annotations->links[*last].next = number;
    *last = number;
}

static void deactivate(struct annotations *annotations, uint32_t number)
{
    const struct link link = annotations->links[number];

    if (link.previous != NONE)
        annotations->links[link.previous].next = link.next;
    if (link.next != NONE)
        annotations->links[link.next].previous = link.previous;
    else
        annotations->last[get_boundary_kind(annotations, number)] = link.previous;
}

/* Find the START of each END: the last open START of the same name. */
static void match_boundaries(struct annotations *annotations)
{
    for (uint32_t i = 0; i < annotations->count; i++)
        annotations->open[annotations->boundaries[i].name] = NONE;
    for (uint32_t i = 0; i < annotations->count; i++) {
        uint32_t *const open = &annotations->open[annotations->boundaries[i].name];

        if (!annotations->boundaries[i].is_end) {
            annotations->previous_open[i] = *open;
            *open = i;
            continue;
        }
        annotations->start[i] = *open;
        if (*open != NONE)
            *open = annotations->previous_open[*open];
    }
}

static void record_active(struct annotations *annotations, size_t at, uint64_t since_us)
{
    struct active *active = &annotations->active[at];

    active->since_us = since_us;
    for (int kind = 0; kind < KINDS; kind++)
        active->name[kind] = annotations->last[kind] == NONE
                                 ? 0
                                 : annotations->boundaries[annotations->last[kind]].name;
}

/* Find the active annotations after each boundary. */
static void compute_active(struct annotations *annotations)
{
    for (int kind = 0; kind < KINDS; kind++)
        annotations->last[kind] = NONE;
    /* Among annotations without a START, the annotation that ends last was started first. */
    for (uint32_t i = annotations->count; i-- > 0;)
        if (annotations->boundaries[i].is_end && annotations->start[i] == NONE)
            activate(annotations, i);
    record_active(annotations, 0, 0);
    for (uint32_t i = 0; i < annotations->count; i++) {
        const struct boundary *boundary = &annotations->boundaries[i];

        if (!boundary->is_end)
            activate(annotations, i);
        else
            deactivate(annotations, annotations->start[i] == NONE ? i : annotations->start[i]);
        record_active(annotations, i + (size_t)1, boundary->time_us);
    }
}

/* Find the annotations that are active at a time. */
static const struct active *find_active(const struct annotations *annotations, uint64_t time_us)
{
    size_t low = 0, high = annotations->count;

    while (low < high) {
        const size_t middle = low + (high - low + 1) / 2;

        if (annotations->active[middle].since_us <= time_us)
            low = middle;
        else
            high = middle - 1;
    }
    return &annotations->active[low];
}

/* --- Events. --- */

static bool set_context(struct reading *reading, const struct active *active,
                        struct recording_event *event)
{
    struct recording_context context = reading->out->contexts[event->context];

    context.step = active->name[KIND_STEP];
    context.stage = active->name[KIND_STAGE];
    if (context.region == 0)
        context.region = active->name[KIND_REGION];
    return recording_names_context(&reading->names, &context, &event->context);
}

static bool set_contexts(struct reading *reading, const struct annotations *annotations,
                         struct recording_device *device)
{
    for (size_t i = 0; i < device->event_count; i++) {
        struct recording_event *event = &device->events[i];

        if (event->action == RECORDING_ALLOC && event->time_us > 0 &&
            !set_context(reading, find_active(annotations, event->time_us), event))
            return false;
    }
    return true;
}

static bool annotate_device(struct reading *reading, const struct boundary *boundaries,
                            size_t count, struct recording_device *device)
{
    struct annotations annotations = {
        .recording = reading->out,
        .boundaries = boundaries,
        .count = (uint32_t)count,
        .start = malloc((count + 1) * sizeof(*annotations.start)),
        .previous_open = malloc((count + 1) * sizeof(*annotations.previous_open)),
        .open = malloc((reading->out->text_count + 1) * sizeof(*annotations.open)),
        .links = malloc((count + 1) * sizeof(*annotations.links)),
        .active = malloc((count + 1) * sizeof(*annotations.active)),
    };
    bool success = annotations.start && annotations.previous_open && annotations.open &&
                   annotations.links && annotations.active;

    if (success) {
        match_boundaries(&annotations);
        compute_active(&annotations);
        success = set_contexts(reading, &annotations, device);
    }
    free(annotations.start);
    free(annotations.previous_open);
    free(annotations.open);
    free(annotations.links);
    free(annotations.active);
    return success || reading_out_of_memory(reading);
}

/* --- Reading. --- */

static bool read_boundary(struct reading *reading, const struct pickle_value *value,
                          struct boundary *out)
{
    const char *stage = pickle_string(reading->pickle, reading_find(reading, value, READING_STAGE));

    if (!stage || (strcmp(stage, "START") != 0 && strcmp(stage, "END") != 0))
        return reading_fail(reading, "`stage` is neither START nor END");
    out->is_end = strcmp(stage, "END") == 0;
    return reading_required(reading, value, READING_TIME_US, &out->time_us) &&
           reading_optional(reading, value, READING_DEVICE, &out->device) &&
           reading_text(reading, value, READING_NAME, &out->name);
}

static bool read_boundaries(struct reading *reading, const struct pickle_value *list,
                            struct boundary *out)
{
    for (size_t i = 0; i < reading_count(list); i++) {
        out[i] = (struct boundary){.order = (uint32_t)i};
        (void)snprintf(reading->context, sizeof(reading->context), "annotation %zu: ", i + 1);
        if (!read_boundary(reading, pickle_item(reading->pickle, list, i), &out[i]))
            return false;
    }
    return true;
}

static int compare_times(const void *first, const void *second)
{
    const struct boundary *a = first, *b = second;

    if (a->time_us != b->time_us)
        return a->time_us < b->time_us ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

static int compare_devices(const void *first, const void *second)
{
    const struct boundary *a = first, *b = second;

    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return compare_times(first, second);
}

/* Find the first boundary of a device, or of a later device. */
static size_t find_first(const struct boundary *boundaries, size_t count, uint64_t device)
{
    size_t low = 0, high = count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (boundaries[middle].device < device)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* boundaries: sorted by device */
static bool annotate_devices(struct reading *reading, const struct boundary *boundaries,
                             size_t count)
{
    for (size_t i = 0; i < reading->out->device_count; i++) {
        struct recording_device *device = &reading->out->devices[i];
        const size_t first = find_first(boundaries, count, (uint64_t)device->number);
        const size_t end = find_first(boundaries, count, (uint64_t)device->number + 1);

        if (end > first && !annotate_device(reading, boundaries + first, end - first, device))
            return false;
    }
    return true;
}

bool annotations_read(struct reading *reading, const struct pickle_value *list)
{
    const size_t count = reading_count(list);
    struct boundary *boundaries;
    bool success;

    if (count == 0)
        return true;
    boundaries = malloc(count * sizeof(*boundaries));
    if (!boundaries)
        return reading_out_of_memory(reading);
    success = read_boundaries(reading, list, boundaries);
    if (success) {
        qsort(boundaries, count, sizeof(*boundaries), compare_devices);
        success = annotate_devices(reading, boundaries, count);
    }
    /* Pinned host memory belongs to no device. */
    if (success && reading->out->host.event_count > 0) {
        qsort(boundaries, count, sizeof(*boundaries), compare_times);
        success = annotate_device(reading, boundaries, count, &reading->out->host);
    }
    free(boundaries);
    return success;
}
