/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/recording_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/complain.h"
#include "src/tools/output/progress.h"
#include "src/tools/reading/recording_read.h"

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
    struct names *names;
    struct input *input;
    bool fine = false;

    if (!file) {
        char reason[128];

        (void)snprintf(fault->text, sizeof(fault->text), "cannot be opened: %s",
                       strerror_r(errno, reason, sizeof(reason)));
        return false;
    }
    input = input_open(file);
    names = names_open();
    if (input && names)
        fine = recording_read(input, recording_file_name(path), names, out, fault);
    else
        (void)snprintf(fault->text, sizeof(fault->text), "no host memory is left to read it");
    names_close(names);
    if (input)
        input_close(input);
    if (!is_input(path))
        (void)fclose(file);
    return fine;
}

bool recording_file_read(const char *path, struct recording *out)
{
    struct recording_fault fault;
    bool fine;

    progress_begin(recording_file_name(path));
    fine = recording_file_load(path, out, &fault);
    progress_end();
    if (fine)
        return true;
    complain("%s: %s", recording_file_name(path), fault.text);
    return false;
}

struct recording_limit_text recording_file_limit(enum recording_limit limit, uint64_t count)
{
    static const char *const one[] = {
        [RECORDING_LIMIT_LOST] = " before the first was overwritten",
        [RECORDING_LIMIT_NO_ROOM] = " before the first had no room in the file",
        [RECORDING_LIMIT_LEFT_OUT] = " or block does not fit the others, and is left out"};
    static const char *const more[] = {
        [RECORDING_LIMIT_LOST] = " before the first were overwritten",
        [RECORDING_LIMIT_NO_ROOM] = " before the first had no room in the file",
        [RECORDING_LIMIT_LEFT_OUT] = " or blocks do not fit the others, and are left out"};
    struct recording_limit_text out;

    (void)snprintf(out.text, sizeof(out.text), "%s%s", amount_of(count, "event").text,
                   count == 1 ? one[limit] : more[limit]);
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
        (void)snprintf(fault->text, sizeof(fault->text),
                       "it has neither events nor segments of any device");
    else
        (void)snprintf(fault->text, sizeof(fault->text),
                       "it has nothing of device %d; there is something of %s", number, numbers);
    return NULL;
}
