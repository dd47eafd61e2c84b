/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdio.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/view/view_model.h"
#include "src/tools/commands/view/view_page.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/progress.h"
#include "src/tools/reading/recording.h"

/* The maximal size of a block or segment, because the page iterates over it in steps of 2 MiB. */
#define BYTES_MAX ((uint64_t)1 << 44)

/* Find the size of the largest block or segment of a device. */
static uint64_t find_largest(const struct recording_device *device)
{
    uint64_t largest = 0;

    for (size_t i = 0; i < device->segment_count; i++)
        largest = device->segments[i].bytes > largest ? device->segments[i].bytes : largest;
    for (size_t i = 0; i < device->event_count; i++)
        if (device->events[i].action < RECORDING_OOM && device->events[i].bytes > largest)
            largest = device->events[i].bytes;
    return largest;
}

static const struct recording_device *select_device(const struct option_values *arguments,
                                                    const struct recording *recording)
{
    struct recording_fault fault;
    const struct recording_device *device =
        recording_file_device(recording, option_device(arguments, OPTION_SNAPSHOT_DEVICE), &fault);

    if (!device)
        message_print("%s: %s", recording->name, fault.text);
    else if (find_largest(device) > BYTES_MAX) {
        message_print("%s: a block or segment has %s; a page shows at most 16.00 TiB",
                      recording->name, amount_bytes(find_largest(device)).text);
        return NULL;
    } else if (device->event_count == 0)
        message_print("%s: no history was recorded, so the page shows only the state at the "
                      "end; " RECORDING_FILE_HOW_TO,
                      recording->name);
    return device;
}

static bool add_file(FILE *out, const struct option_values *arguments, unsigned number,
                     bool *has_dropped)
{
    const size_t max = (size_t)option_number(arguments, OPTION_BLOCKS);
    const struct recording_device *device;
    struct recording recording;
    struct replay_model_dropped dropped = {0, 0};
    size_t summed = 0;
    bool success;

    if (!recording_file_read(arguments->operands[number], &recording))
        return false;
    device = select_device(arguments, &recording);
    progress_begin(recording.name);
    success = device && view_model_write(out, number, &recording, device, max, &summed, &dropped);
    progress_end();
    if (device && !success)
        message_print("%s: out of host memory, page", recording.name);
    else if (summed > 0)
        message_print(
            "%s: the page is aggregated: it has the %s with the largest product of size and "
            "lifetime, "
            "and the sum of %s; --blocks sets the number",
            recording.name, amount_of(max, "block").text, amount_of(summed, "other").text);
    *has_dropped |= success && replay_model_report_dropped(recording.name, &dropped);
    recording_fini(&recording);
    return success;
}

static int command_view_run(const struct option_values *arguments)
{
    const char *path = option_text(arguments, OPTION_OUTPUT);
    struct output_file page;
    bool success = true, has_dropped = false;

    if (!path) {
        message_error("needs --output, the page to write");
        return COMMAND_ERROR;
    }
    if (!output_file_open(&page, path, arguments->operands, arguments->operand_count))
        return COMMAND_ERROR;
    (void)fwrite(view_page_head, 1, view_page_head_bytes, page.out);
    for (int i = 0; success && i < arguments->operand_count; i++)
        success = add_file(page.out, arguments, (unsigned)i, &has_dropped);
    if (success)
        (void)fwrite(view_page_tail, 1, view_page_tail_bytes, page.out);
    if (!output_file_close(&page, success))
        return COMMAND_ERROR;
    return has_dropped ? COMMAND_MISMATCH : COMMAND_SUCCESS;
}

const struct command command_view = {
    .name = "view",
    .run = command_view_run,
    .summary = "write an HTML page that shows a memory snapshot",
    .usage = "FILE [FILE] -o OUT",
    .required_operands = "a memory snapshot",
    .operands = COMMAND_FILES,
    .min_operands = 1,
    .max_operands = 2,
    .options = {OPTION_OUTPUT, OPTION_SNAPSHOT_DEVICE, OPTION_BLOCKS, OPTION_COLOR, OPTION_HELP},
    .description = "Reads a memory snapshot of PyTorch or xseg, plain or compressed with "
                   "Zstandard, and writes an interactive HTML page: allocated memory by call site "
                   "and reserved memory over time, the state of the memory pages over time, a map "
                   "of the memory at any event, and the call stack of each block. The HTML page is "
                   "one file and loads nothing from the network. Of two snapshots, it shows both "
                   "side by side. FILE may be `-`, standard input.",
    .examples =
        {
            {"xseg view job.pickle -o job.html", "a page of one snapshot"},
            {"xseg view before.pickle after.pickle -o both.html",
             "a page that compares two snapshots"},
            {"xseg view --device 3 job.pickle -o job.html", "a page of device 3"},
        },
    .exits = {COMMAND_EXIT_SUCCESS, COMMAND_EXIT_DROPPED, COMMAND_EXIT_ERROR},
};
