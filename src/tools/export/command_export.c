/* SPDX-License-Identifier: MIT */
#include "src/tools/command/command.h"

#include <inttypes.h>

#include "src/tools/export/export_trace.h"
#include "src/tools/recording/recording_file.h"
#include "src/tools/text/complain.h"
#include "src/tools/text/whole_file.h"

/* Whether there is anything to write.  device: NULL: all of them */
static bool has_history(const struct recording *recording, const struct recording_device *device)
{
    for (size_t i = 0; i < recording->device_count; i++)
        if ((!device || device == &recording->devices[i]) && recording->devices[i].event_count > 0)
            return true;
    complain("%s: there is no history in it, so there is nothing to show over "
             "time; " RECORDING_FILE_HOW_TO,
             recording->name);
    return false;
}

/* The device that is asked for, or NULL for all of them.  Returns false where there is none such. */
static bool choose(const struct option_values *arguments, const struct recording *recording,
                   const struct recording_device **out)
{
    const struct option_value *number = &arguments->of[OPTION_ONE_DEVICE];

    *out = number->given ? recording_device(recording, (int)number->number) : NULL;
    if (!number->given || *out)
        return has_history(recording, *out);
    complain("%s: device %" PRIu64 " has neither a segment nor an event", recording->name,
             number->number);
    return false;
}

static bool write_trace(const struct option_values *arguments, const struct recording *recording)
{
    const struct recording_device *device;
    struct whole_file file;
    bool fine;

    if (!choose(arguments, recording, &device) ||
        !whole_file_open(&file, command_find("export"), arguments->of[OPTION_OUTPUT].text,
                         arguments->operands, arguments->operand_count))
        return false;
    fine = export_trace_write(file.out, recording, device,
                              (size_t)arguments->of[OPTION_SLICES].number);
    if (!fine)
        complain("%s: no host memory is left to make a trace of it", recording->name);
    return whole_file_close(&file, fine);
}

int command_export(const struct option_values *arguments)
{
    const struct command *command = command_find("export");
    struct recording recording;
    bool fine;

    if (!arguments->of[OPTION_PERFETTO].given) {
        command_complain(command, "needs --perfetto: the format to write");
        return COMMAND_BAD;
    }
    if (!arguments->of[OPTION_OUTPUT].text) {
        command_complain(command, "needs --output: the file to write");
        return COMMAND_BAD;
    }
    if (!recording_file_read(arguments->operands[0], &recording))
        return COMMAND_BAD;
    fine = write_trace(arguments, &recording);
    recording_fini(&recording);
    return fine ? COMMAND_FINE : COMMAND_BAD;
}
