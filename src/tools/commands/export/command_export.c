/* SPDX-License-Identifier: MIT */
#include <inttypes.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/export/export_trace.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/progress.h"
#include "src/tools/reading/recording.h"

/* Get whether a device has events; print an error message if not.  device: NULL for all devices */
static bool has_history(const struct recording *recording, const struct recording_device *device)
{
    for (size_t i = 0; i < recording->device_count; i++)
        if ((!device || device == &recording->devices[i]) && recording->devices[i].event_count > 0)
            return true;
    message_print(
        "%s: no history was recorded, so there is nothing to export; " RECORDING_FILE_HOW_TO,
        recording->name);
    return false;
}

/* Find the device of --device; NULL: all devices.  Returns false if there is no such device. */
static bool select_device(const struct option_values *arguments, const struct recording *recording,
                          const struct recording_device **out)
{
    const struct option_value *number = &arguments->of[OPTION_ONE_DEVICE];

    *out = number->given ? recording_device(recording, (int)number->number) : NULL;
    if (!number->given || *out)
        return has_history(recording, *out);
    message_print("%s: device %" PRIu64 " has no segments and no entries", recording->name,
                  number->number);
    return false;
}

static bool write_trace(const struct option_values *arguments, const struct recording *recording,
                        struct replay_model_dropped *dropped)
{
    const struct recording_device *device;
    struct output_file file;
    bool success;

    if (!select_device(arguments, recording, &device) ||
        !output_file_open(&file, option_text(arguments, OPTION_OUTPUT), arguments->operands,
                          arguments->operand_count))
        return false;
    progress_begin(recording->name);
    success = export_trace_write(file.out, recording, device,
                                 (size_t)option_number(arguments, OPTION_SLICES), dropped);
    progress_end();
    if (!success)
        message_print("%s: out of host memory, trace", recording->name);
    return output_file_close(&file, success);
}

static int command_export_run(const struct option_values *arguments)
{
    struct replay_model_dropped dropped = {0, 0};
    struct recording recording;
    bool success;

    if (!option_given(arguments, OPTION_PERFETTO)) {
        message_error("needs --perfetto, the output format");
        return COMMAND_ERROR;
    }
    if (!option_text(arguments, OPTION_OUTPUT)) {
        message_error("needs --output, the file to write");
        return COMMAND_ERROR;
    }
    if (!recording_file_read(arguments->operands[0], &recording))
        return COMMAND_ERROR;
    success = write_trace(arguments, &recording, &dropped);
    if (success && replay_model_report_dropped(recording.name, &dropped)) {
        recording_fini(&recording);
        return COMMAND_MISMATCH;
    }
    recording_fini(&recording);
    return success ? COMMAND_SUCCESS : COMMAND_ERROR;
}

const struct command command_export = {
    .name = "export",
    .run = command_export_run,
    .summary = "convert a memory snapshot to a Perfetto trace",
    .usage = "--perfetto FILE -o OUT",
    .required_operands = "a memory snapshot",
    .operands = COMMAND_FILES,
    .min_operands = 1,
    .max_operands = 1,
    .options = {OPTION_PERFETTO, OPTION_OUTPUT, OPTION_ONE_DEVICE, OPTION_SLICES, OPTION_COLOR,
                OPTION_HELP},
    .description = "Reads a memory snapshot of PyTorch or xseg, plain or compressed with "
                   "Zstandard, and writes its history as a Perfetto trace: counters of reserved, "
                   "allocated, pending and cached bytes for each device and pool, events of "
                   "segments with their causes, out-of-memory errors, and the largest blocks as "
                   "slices. FILE may be `-`, standard input.",
    .examples =
        {
            {"xseg export --perfetto job.pickle -o job.perfetto", "a trace of all devices"},
            {"xseg export --perfetto --device 3 job.pickle -o job.perfetto", "a trace of device 3"},
            {"xseg export --perfetto --blocks 20000 job.pickle -o job.perfetto",
             "with 20000 blocks of each device instead of 1000"},
        },
    .exits = {COMMAND_EXIT_SUCCESS, COMMAND_EXIT_DROPPED, COMMAND_EXIT_ERROR},
};
