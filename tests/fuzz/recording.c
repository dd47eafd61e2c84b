/* SPDX-License-Identifier: MIT */
/*
 * Reads any bytes as a snapshot into arrays; the first opcode is fixed.  Every index of an accepted snapshot is
 * valid, and blocks cover their segments without gaps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/reading/pickle.h"
#include "src/tools/reading/recording.h"
#include "tests/fuzz/holds.h"

static void check_names(const struct recording *recording)
{
    for (size_t i = 0; i < recording->text_count; i++)
        (void)strlen(recording_text(recording, (uint32_t)i));
    for (size_t i = 0; i < recording->frame_count; i++) {
        const struct recording_frame *frame = &recording->frames[i];

        HOLDS(frame->name < recording->text_count && frame->file < recording->text_count);
        HOLDS(frame->build_id < recording->text_count);
    }
    HOLDS(recording->text_count > 0 && recording_text(recording, 0)[0] == '\0');
    HOLDS(recording->stack_count > 0 && recording->stacks[0].count == 0);
    HOLDS(recording->pool_count > 0 && recording->pools[0][0] == 0 && recording->pools[0][1] == 0);
    for (size_t i = 0; i < recording->stack_count; i++)
        for (uint32_t k = 0; k < recording->stacks[i].count; k++)
            HOLDS(recording->stack_frames[recording->stacks[i].first + k] < recording->frame_count);
    for (size_t i = 0; i < recording->context_count; i++) {
        const struct recording_context *context = &recording->contexts[i];

        HOLDS(context->label < recording->text_count && context->region < recording->text_count);
        HOLDS(context->step < recording->text_count && context->stage < recording->text_count);
    }
    HOLDS(recording->config < recording->text_count);
}

static void check_segment(const struct recording *recording,
                          const struct recording_segment *segment)
{
    HOLDS(segment->pool < recording->pool_count);
    HOLDS(segment->bytes <= UINT64_MAX - segment->address);
    HOLDS(segment->count == 0 || segment->first + segment->count <= recording->block_count);
    for (uint32_t i = 0; i < segment->count; i++) {
        const struct recording_block *block = &recording->blocks[segment->first + i];

        HOLDS(block->state <= RECORDING_ALLOCATED && block->stack < recording->stack_count);
        HOLDS(block->bytes <= UINT64_MAX - block->address);
    }
}

static void check_device(const struct recording *recording, const struct recording_device *device)
{
    for (size_t i = 0; i < device->segment_count; i++) {
        HOLDS(i == 0 || device->segments[i - 1].address <= device->segments[i].address);
        check_segment(recording, &device->segments[i]);
    }
    for (size_t i = 0; i < device->event_count; i++) {
        const struct recording_event *event = &device->events[i];

        HOLDS(event->action <= RECORDING_OTHER && event->stack < recording->stack_count);
        HOLDS(event->pool < recording->pool_count && event->context < recording->context_count);
    }
    for (size_t i = 0; i < device->page_count; i++)
        HOLDS(device->pages[i].reason < recording->text_count);
}

static void check_recording(const struct recording *recording)
{
    check_names(recording);
    for (size_t i = 0; i < recording->device_count; i++) {
        HOLDS(i == 0 || recording->devices[i - 1].number < recording->devices[i].number);
        HOLDS(recording_device(recording, recording->devices[i].number) == &recording->devices[i]);
        check_device(recording, &recording->devices[i]);
    }
    HOLDS(recording->host.number == RECORDING_HOST);
    check_device(recording, &recording->host);
    HOLDS((recording_device(recording, -1) != NULL) == (recording->device_count > 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = size > 0 ? malloc(size) : NULL;
    struct recording_fault fault;
    struct recording recording;

    if (copy == NULL)
        return 0;
    memcpy(copy, data, size);
    copy[0] = PICKLE_PROTO;
    FILE *file = fmemopen(copy, size, "rb");
    struct input *input = file == NULL ? NULL : input_open(file);
    if (input == NULL)
        abort();
    if (recording_read(input, "any", NULL, &recording, &fault)) {
        check_recording(&recording);
        recording_fini(&recording);
    } else {
        HOLDS(fault.text[0] != '\0' && strlen(fault.text) < sizeof(fault.text));
    }
    input_close(input);
    (void)fclose(file);
    free(copy);
    return 0;
}
