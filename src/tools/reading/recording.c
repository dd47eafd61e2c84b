/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/recording.h"

#include <stdlib.h>
#include <string.h>

void recording_fini(struct recording *recording)
{
    for (size_t i = 0; i < recording->device_count; i++) {
        free(recording->devices[i].segments);
        free(recording->devices[i].events);
        free(recording->devices[i].pages);
    }
    free(recording->devices);
    free(recording->blocks);
    free(recording->pools);
    free(recording->stacks);
    free(recording->stack_frames);
    free(recording->frames);
    free(recording->text);
    free(recording->texts);
    free(recording->name);
    memset(recording, 0, sizeof(*recording));
}

static unsigned kind_of_segments(const struct recording_device *device)
{
    unsigned kinds = RECORDING_UNSHOWN;

    for (size_t i = 0; i < device->segment_count; i++)
        kinds |= device->segments[i].is_expandable ? RECORDING_EXPANDABLE : RECORDING_CLASSIC;
    for (size_t i = 0; i < device->event_count; i++)
        switch (device->events[i].action) {
        case RECORDING_SEGMENT_MAP:
        case RECORDING_SEGMENT_UNMAP:
            kinds |= RECORDING_EXPANDABLE;
            break;
        case RECORDING_SEGMENT_ALLOC:
        case RECORDING_SEGMENT_FREE:
            kinds |= RECORDING_CLASSIC;
            break;
        default:
            break;
        }
    return kinds;
}

enum recording_segments recording_segments(const struct recording *recording)
{
    unsigned kinds = RECORDING_UNSHOWN;

    for (size_t i = 0; i < recording->device_count; i++)
        kinds |= kind_of_segments(&recording->devices[i]);
    return (enum recording_segments)kinds;
}

static uint64_t largest_segment(const struct recording_device *device)
{
    uint64_t largest = 0;

    for (size_t i = 0; i < device->segment_count; i++)
        if (device->segments[i].bytes > largest)
            largest = device->segments[i].bytes;
    return largest;
}

static bool has_more(const struct recording_device *left, const struct recording_device *right)
{
    if (left->event_count != right->event_count)
        return left->event_count > right->event_count;
    return left->event_count == 0 && largest_segment(left) > largest_segment(right);
}

const struct recording_device *recording_device(const struct recording *recording, int number)
{
    const struct recording_device *found = NULL;

    for (size_t i = 0; i < recording->device_count; i++) {
        const struct recording_device *device = &recording->devices[i];

        if (number >= 0 ? device->number == number : !found || has_more(device, found))
            found = device;
    }
    return found;
}

size_t recording_histories(const struct recording *recording)
{
    size_t count = 0;

    for (size_t i = 0; i < recording->device_count; i++)
        count += recording->devices[i].event_count > 0;
    return count;
}
