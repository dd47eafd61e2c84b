/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/view/view_model.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "src/tools/commands/view/view_columns.h"
#include "src/tools/commands/view/view_lives.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "src/tools/replay_model/host_memory.h"
#include "src/tools/replay_model/sites.h"

#define STREAMS 256u /* more streams count as the last one */

/* The data of a device for the page. */
struct model {
    const struct recording *recording;
    const struct recording_device *device;
    struct sites sites; /* by frame */
    struct view_lives lives;
    struct view_columns columns;
    struct host_memory host;
    uint64_t streams[STREAMS];
    size_t stream_count, ooms;
};

static uint64_t number_stream(struct model *model, uint64_t stream)
{
    size_t at = 0;

    while (at < model->stream_count && model->streams[at] != stream)
        at++;
    if (at == model->stream_count && at < STREAMS)
        model->streams[model->stream_count++] = stream;
    return at < STREAMS ? at : STREAMS - 1;
}

/* --- Columns. --- */

static const struct recording_event *get_event(const struct model *model, size_t number)
{
    return &model->device->events[model->lives.events[number]];
}

static void add_times(struct model *model)
{
    uint64_t previous = 0;

    for (size_t i = 0; i < model->lives.event_count; i++) {
        view_columns_add_step(&model->columns, get_event(model, i)->time_us, previous);
        previous = get_event(model, i)->time_us;
    }
    previous = 0;
    for (size_t i = 0; model->lives.summed && i <= model->lives.event_count; i++) {
        view_columns_add_step(&model->columns, model->lives.summed[i], previous);
        previous = model->lives.summed[i];
    }
}

static void add_tables(struct model *model)
{
    const struct recording *recording = model->recording;
    struct view_columns *columns = &model->columns;

    for (size_t i = 0; i < recording->frame_count; i++)
        view_columns_add(columns, recording->frames[i].name);
    for (size_t i = 0; i < recording->frame_count; i++)
        view_columns_add(columns, recording->frames[i].file);
    for (size_t i = 0; i < recording->frame_count; i++)
        view_columns_add(columns, recording->frames[i].line);
    for (size_t i = 0; i < recording->frame_count; i++)
        view_columns_add(columns, sites_is_module(recording, (uint32_t)i));
    for (size_t i = 0; i < recording->stack_count; i++) {
        const struct recording_stack *stack = &recording->stacks[i];

        view_columns_add(columns, stack->count);
        for (uint32_t k = 0; k < stack->count; k++)
            view_columns_add(columns, recording->stack_frames[stack->first + k]);
    }
    for (size_t i = 0; i < recording->stack_count; i++)
        view_columns_add(columns, model->sites.of_stack[i]);
    for (size_t i = 0; i < recording->pool_count; i++) {
        view_columns_add(columns, recording->pools[i][0]);
        view_columns_add(columns, recording->pools[i][1]);
    }
    for (size_t i = 0; i < recording->context_count; i++) {
        view_columns_add(columns, recording->contexts[i].label);
        view_columns_add(columns, recording->contexts[i].region);
        view_columns_add(columns, recording->contexts[i].step);
        view_columns_add(columns, recording->contexts[i].stage);
    }
}

enum life_column {
    LIFE_ALLOCATED_AT,
    LIFE_FREE_REQUESTED_AT,
    LIFE_FREED_AT,
    LIFE_ADDRESS,
    LIFE_BYTES,
    LIFE_STREAM,
    LIFE_STACK,
    LIFE_FREE_STACK,
    LIFE_POOL,
    LIFE_CONTEXT,
    LIFE_COLUMNS
};

/* Add one number of a life. */
static void add_life(struct model *model, enum life_column column, const struct view_life *life,
                     const struct view_life *previous)
{
    const uint32_t end = (uint32_t)model->lives.event_count + 1;
    struct view_columns *columns = &model->columns;

    switch (column) {
    case LIFE_ALLOCATED_AT:
        view_columns_add(columns, life->allocated_at - previous->allocated_at);
        break;
    case LIFE_FREE_REQUESTED_AT:
        view_columns_add(columns, life->free_requested_at == end
                                      ? 0
                                      : life->free_requested_at - life->allocated_at + 1);
        break;
    case LIFE_FREED_AT:
        view_columns_add(columns,
                         life->freed_at == end ? 0 : life->freed_at - life->free_requested_at + 1);
        break;
    case LIFE_ADDRESS:
        view_columns_add_step(columns, life->address, previous->address);
        break;
    case LIFE_BYTES:
        view_columns_add(columns, life->bytes);
        break;
    case LIFE_STREAM:
        view_columns_add(columns, number_stream(model, life->stream));
        break;
    case LIFE_STACK:
        view_columns_add(columns, life->stack);
        break;
    case LIFE_FREE_STACK:
        view_columns_add(columns, life->free_stack);
        break;
    case LIFE_POOL:
        view_columns_add(columns, life->pool);
        break;
    default:
        view_columns_add(columns, life->context);
        break;
    }
}

static void add_lives(struct model *model)
{
    static const struct view_life zero;

    for (int column = 0; column < LIFE_COLUMNS; column++)
        for (size_t i = 0; i < model->lives.life_count; i++)
            add_life(model, (enum life_column)column, &model->lives.lives[i],
                     i > 0 ? &model->lives.lives[i - 1] : &zero);
}

static void add_spans(struct model *model)
{
    const struct view_span *spans = model->lives.spans;
    const size_t count = model->lives.span_count;
    struct view_columns *columns = &model->columns;

    for (size_t i = 0; i < count; i++)
        view_columns_add_step(columns, spans[i].mapped_at, i ? spans[i - 1].mapped_at : 0);
    for (size_t i = 0; i < count; i++)
        view_columns_add(columns, spans[i].unmapped_at - spans[i].mapped_at);
    for (size_t i = 0; i < count; i++)
        view_columns_add_step(columns, spans[i].address, i ? spans[i - 1].address : 0);
    for (size_t i = 0; i < count; i++)
        view_columns_add(columns, spans[i].bytes);
    for (size_t i = 0; i < count; i++)
        view_columns_add(columns, number_stream(model, spans[i].stream));
    for (size_t i = 0; i < count; i++)
        view_columns_add(columns, spans[i].pool);
    for (size_t i = 0; i < count; i++)
        view_columns_add(columns, spans[i].page);
}

static void add_ooms_and_pages(struct model *model)
{
    const struct recording_device *device = model->device;

    for (size_t i = 0; i < model->lives.event_count; i++) {
        const struct recording_event *event = get_event(model, i);

        if (event->action != RECORDING_OOM)
            continue;
        view_columns_add(&model->columns, i + 1);
        view_columns_add(&model->columns, event->bytes);
        view_columns_add(&model->columns, event->address);
        model->ooms++;
    }
    for (size_t i = 0; i < device->page_count; i++) {
        view_columns_add(&model->columns, device->pages[i].address);
        view_columns_add(&model->columns, device->pages[i].bytes);
        view_columns_add(&model->columns, device->pages[i].reason);
        view_columns_add(&model->columns, device->pages[i].registered);
    }
}

/* --- Facts. --- */

static json_t *texts_json(const struct recording *recording)
{
    json_t *texts = json_array();

    for (size_t i = 0; i < recording->text_count; i++)
        output_json_add(&texts, text_json(recording_text(recording, (uint32_t)i)));
    return texts;
}

/* Get the names of sites, by ID. */
static json_t *site_names_json(const struct sites *sites)
{
    json_t *names = json_array();

    for (uint32_t i = 0; i < sites->count; i++) {
        char *name = sites_name(sites, i);

        output_json_add(&names, name ? text_json(name) : NULL);
        free(name);
    }
    return names;
}

static json_t *streams_json(const struct model *model)
{
    json_t *streams = json_array();

    for (size_t i = 0; i < model->stream_count; i++)
        output_json_add(&streams, json_sprintf("0x%" PRIx64, model->streams[i]));
    return streams;
}

/* Escape '<', so that no string can end the element. */
static bool write_json(FILE *out, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENSURE_ASCII);

    if (!text)
        return false;
    for (const char *at = text; *at; at++)
        if (*at == '<')
            (void)fputs("\\u003c", out);
        else
            (void)fputc(*at, out);
    free(text);
    return true;
}

static bool write_summary(FILE *out, const struct model *model)
{
    const struct recording *recording = model->recording;
    const struct recording_device *device = model->device;
    json_t *summary = json_pack(
        "{s:o, s:i, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, "
        "s:o, s:o, s:o, s:o}",
        "name", text_json(recording->name), "device", device->number, "config",
        text_json(recording_text(recording, recording->config)), "own", (int)recording->is_own,
        "events", (json_int_t)model->lives.event_count, "frames",
        (json_int_t)recording->frame_count, "stacks", (json_int_t)recording->stack_count, "pools",
        (json_int_t)recording->pool_count, "contexts", (json_int_t)recording->context_count,
        "lives", (json_int_t)model->lives.life_count, "spans", (json_int_t)model->lives.span_count,
        "ooms", (json_int_t)model->ooms, "pages", (json_int_t)device->page_count, "lost",
        (json_int_t)device->lost, "omitted", (json_int_t)device->truncated, "synthetic",
        (json_int_t)device->synthetic, "unmatched", (json_int_t)model->lives.unmatched, "recorded",
        (json_int_t)device->event_count, "summed", (json_int_t)model->lives.summed_count, "texts",
        texts_json(recording), "sites", site_names_json(&model->sites), "streams",
        streams_json(model), "host",
        model->host.is_recorded ? json_string(host_memory_describe(&model->host).text)
                                : json_null());
    const bool success = summary && write_json(out, summary);

    json_decref(summary);
    return success;
}

bool view_model_write(FILE *out, unsigned number, const struct recording *recording,
                      const struct recording_device *device, size_t max_lives, size_t *summed,
                      struct replay_model_dropped *dropped)
{
    struct model model = {.recording = recording, .device = device};
    bool success;

    if (!host_memory_init(&model.host, recording) ||
        !sites_init(&model.sites, recording, SITES_BY_FRAME, 1))
        return false;
    if (!view_lives_init(&model.lives, recording, device)) {
        sites_fini(&model.sites);
        return false;
    }
    if (!view_lives_reduce(&model.lives, max_lives)) {
        view_lives_fini(&model.lives);
        sites_fini(&model.sites);
        return false;
    }
    *summed = model.lives.summed_count;
    *dropped = model.lives.dropped;
    add_times(&model);
    add_tables(&model);
    add_lives(&model);
    add_spans(&model);
    add_ooms_and_pages(&model);
    (void)fprintf(out, "<script type=\"application/json\" id=\"summary-%u\">", number);
    success = write_summary(out, &model);
    (void)fprintf(out, "</script>\n<script type=\"text/plain\" id=\"columns-%u\">", number);
    success = success && view_columns_write(&model.columns, out);
    (void)fputs("</script>\n", out);
    view_columns_fini(&model.columns);
    view_lives_fini(&model.lives);
    sites_fini(&model.sites);
    return success;
}
