/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/host_memory.h"

#include <stdio.h>

#include "src/tools/output/amount.h"

static void update_peaks(struct host_memory *memory, const struct replay_model *model)
{
    memory->reserved = model->reserved;
    memory->allocated = model->allocated;
    if (model->reserved > memory->peak_reserved)
        memory->peak_reserved = model->reserved;
    if (model->allocated > memory->peak_allocated)
        memory->peak_allocated = model->allocated;
}

bool host_memory_init(struct host_memory *out, const struct recording *recording)
{
    const struct recording_device *host = &recording->host;
    struct replay_model model;
    bool success;

    *out = (struct host_memory){.is_recorded = recording_has_host(recording),
                                .entries = host->event_count};
    if (!out->is_recorded)
        return true;
    if (!replay_model_init(&model, recording, host))
        return false;
    do
        update_peaks(out, &model);
    while (replay_model_step(&model));
    success = !model.out_of_memory;
    replay_model_fini(&model);
    return success;
}

struct host_memory_text host_memory_describe(const struct host_memory *memory)
{
    struct host_memory_text out;

    (void)snprintf(out.text, sizeof(out.text),
                   "pinned host memory at the end: reserved %s, allocated %s; highest: reserved "
                   "%s, allocated %s",
                   amount_bytes(memory->reserved).text, amount_bytes(memory->allocated).text,
                   amount_bytes(memory->peak_reserved).text,
                   amount_bytes(memory->peak_allocated).text);
    return out;
}
