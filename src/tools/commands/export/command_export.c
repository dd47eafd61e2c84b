/* SPDX-License-Identifier: MIT */
#include <inttypes.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/export/export_trace.h"
#include "src/tools/output/message.h"
#include "src/tools/output/progress.h"
#include "src/tools/output/output.h"
#include "src/tools/reading/recording.h"

/* Whether there is anything to write.  device: NULL: all of them */
static bool has_history(const struct recording *recording, const struct recording_device *device)
{
    for (size_t i = 0; i < recording->device_count; i++)
        if ((!device || device == &recording->devices[i]) && recording->devices[i].event_count > 0)
            return true;
    message_print("%s: there is no history in it, so there is nothing to show over "
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
    message_print("%s: device %" PRIu64 " has neither a segment nor an event", recording->name,
             number->number);
    return false;
}

static bool write_trace(const struct option_values *arguments, const struct recording *recording,
                        struct replay_model_dropped *dropped)
{
    const struct recording_device *device;
    struct output_file file;
    bool fine;

    if (!choose(arguments, recording, &device) ||
        !output_file_open(&file, arguments->of[OPTION_OUTPUT].text, arguments->operands,
                         arguments->operand_count))
        return false;
    progress_begin(recording->name);
    fine = export_trace_write(file.out, recording, device,
                              (size_t)arguments->of[OPTION_SLICES].number, dropped);
    progress_end();
    if (!fine)
        message_print("%s: no host memory is left to make a trace of it", recording->name);
    return output_file_close(&file, fine);
}

static int run(const struct option_values *arguments)
{
    struct replay_model_dropped dropped = {0, 0};
    struct recording recording;
    bool fine;

    if (!arguments->of[OPTION_PERFETTO].given) {
        message_error("needs --perfetto: the format to write");
        return COMMAND_BAD;
    }
    if (!arguments->of[OPTION_OUTPUT].text) {
        message_error("needs --output: the file to write");
        return COMMAND_BAD;
    }
    if (!recording_file_read(arguments->operands[0], &recording))
        return COMMAND_BAD;
    fine = write_trace(arguments, &recording, &dropped);
    if (fine && replay_model_report_dropped(recording.name, &dropped)) {
        recording_fini(&recording);
        return COMMAND_MISMATCH;
    }
    recording_fini(&recording);
    return fine ? COMMAND_FINE : COMMAND_BAD;
}

const struct command command_export = {
    .name = "export",
    .run = run,
    .sentence = "write a memory snapshot in the format of another programme",
    .usage = "--perfetto FILE -o OUT",
    .needs = "a memory snapshot",
    .operands = COMMAND_FILES,
    .least_operands = 1,
    .most_operands = 1,
    .options = {OPTION_PERFETTO, OPTION_OUTPUT, OPTION_ONE_DEVICE, OPTION_SLICES, OPTION_COLOR,
                OPTION_HELP},
    .description =
        "Reads a memory snapshot of PyTorch or xseg, plain or compressed with Zstandard, and "
        "writes its history as a trace that Perfetto opens: reserved, allocated, pending and "
        "cached bytes by device and pool, what happened to segments and why, requests that failed, "
        "and the largest blocks. A FILE may be `-`, standard input.",
    .examples =
        {
            {"xseg export --perfetto job.pickle -o job.perfetto", "a trace of all devices"},
            {"xseg export --perfetto --device 3 job.pickle -o job.perfetto", "of one of them"},
            {"xseg export --perfetto --blocks 20000 job.pickle -o job.perfetto",
             "with more blocks"},
        },
    .exits = {COMMAND_EXIT_FINE, COMMAND_EXIT_DROPPED, COMMAND_EXIT_BAD},
};
