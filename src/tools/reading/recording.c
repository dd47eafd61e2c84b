/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/recording.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/message.h"
#include "src/tools/output/progress.h"

static void free_device(const struct recording_device *device)
{
    free(device->segments);
    free(device->events);
    free(device->pages);
}

void recording_fini(struct recording *recording)
{
    for (size_t i = 0; i < recording->device_count; i++)
        free_device(&recording->devices[i]);
    free_device(&recording->host);
    free(recording->devices);
    free(recording->blocks);
    free(recording->pools);
    free(recording->contexts);
    free(recording->stacks);
    free(recording->stack_frames);
    free(recording->frames);
    free(recording->text);
    free(recording->texts);
    free(recording->name);
    memset(recording, 0, sizeof(*recording));
}

static unsigned find_segment_kinds(const struct recording_device *device)
{
    unsigned kinds = RECORDING_UNKNOWN;

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
    unsigned kinds = RECORDING_UNKNOWN;

    for (size_t i = 0; i < recording->device_count; i++)
        kinds |= find_segment_kinds(&recording->devices[i]);
    return (enum recording_segments)kinds;
}

static uint64_t find_largest_segment(const struct recording_device *device)
{
    uint64_t largest = 0;

    for (size_t i = 0; i < device->segment_count; i++)
        if (device->segments[i].bytes > largest)
            largest = device->segments[i].bytes;
    return largest;
}

static bool is_preferred(const struct recording_device *device,
                         const struct recording_device *other)
{
    if (device->event_count != other->event_count)
        return device->event_count > other->event_count;
    return device->event_count == 0 && find_largest_segment(device) > find_largest_segment(other);
}

const struct recording_device *recording_device(const struct recording *recording, int number)
{
    const struct recording_device *found = NULL;

    for (size_t i = 0; i < recording->device_count; i++) {
        const struct recording_device *device = &recording->devices[i];

        if (number >= 0 ? device->number == number : !found || is_preferred(device, found))
            found = device;
    }
    return found;
}

size_t recording_history_count(const struct recording *recording)
{
    size_t count = 0;

    for (size_t i = 0; i < recording->device_count; i++)
        count += recording->devices[i].event_count > 0;
    return count;
}

static bool is_input(const char *path)
{
    return strcmp(path, "-") == 0;
}

const char *recording_file_name(const char *path)
{
    return is_input(path) ? "standard input" : path;
}

bool recording_file_load(const char *path, struct recording *out, struct recording_fault *fault)
{
    FILE *file = is_input(path) ? stdin : fopen(path, "rb");
    struct symbols *names;
    struct input *input;
    bool success = false;

    if (!file) {
        char reason[128];

        (void)snprintf(fault->text, sizeof(fault->text), "cannot be opened: %s",
                       strerror_r(errno, reason, sizeof(reason)));
        return false;
    }
    input = input_open(file);
    names = symbols_open();
    if (input && names)
        success = recording_read(input, recording_file_name(path), names, out, fault);
    else
        (void)snprintf(fault->text, sizeof(fault->text), "out of host memory");
    symbols_close(names);
    if (input)
        input_close(input);
    if (!is_input(path))
        (void)fclose(file);
    return success;
}

bool recording_file_read(const char *path, struct recording *out)
{
    struct recording_fault fault;
    bool success;

    progress_begin(recording_file_name(path));
    success = recording_file_load(path, out, &fault);
    progress_end();
    if (success)
        return true;
    message_print("%s: %s", recording_file_name(path), fault.text);
    return false;
}

struct recording_limit_text recording_file_limit(enum recording_limit limit, uint64_t count)
{
    static const char *const singular[] = {
        [RECORDING_LIMIT_LOST] = "earlier entry was overwritten",
        [RECORDING_LIMIT_TRUNCATED] = "earlier entry did not fit in the file",
        [RECORDING_LIMIT_SYNTHETIC] = "synthetic entry of the allocator is not counted",
        [RECORDING_LIMIT_OMITTED] = "inconsistent entry or block is omitted"};
    static const char *const plural[] = {
        [RECORDING_LIMIT_LOST] = "earlier entries were overwritten",
        [RECORDING_LIMIT_TRUNCATED] = "earlier entries did not fit in the file",
        [RECORDING_LIMIT_SYNTHETIC] = "synthetic entries of the allocator are not counted",
        [RECORDING_LIMIT_OMITTED] = "inconsistent entries or blocks are omitted"};
    struct recording_limit_text out;

    (void)snprintf(out.text, sizeof(out.text), "%s %s", amount_count(count).text,
                   count == 1 ? singular[limit] : plural[limit]);
    return out;
}

const struct recording_device *recording_file_device(const struct recording *recording, int number,
                                                     struct recording_fault *fault)
{
    const struct recording_device *device = recording_device(recording, number);
    char numbers[128] = "";
    size_t at = 0;

    if (device)
        return device;
    for (size_t i = 0; i < recording->device_count && at < sizeof(numbers) - 16; i++)
        at += (size_t)snprintf(numbers + at, sizeof(numbers) - at, "%s%d", i > 0 ? ", " : "",
                               recording->devices[i].number);
    if (recording->device_count == 0)
        (void)snprintf(fault->text, sizeof(fault->text), "no entries or segments of any device");
    else
        (void)snprintf(fault->text, sizeof(fault->text),
                       "no entries or segments of device %d; devices of the file: %s", number,
                       numbers);
    return NULL;
}
