/* SPDX-License-Identifier: MIT */
#include "src/tools/command/command.h"

#include "src/tools/blame/blame_report.h"
#include "src/tools/ranks/rank_files.h"
#include "src/tools/ranks/ranks_run.h"
#include "src/tools/recording/recording_file.h"
#include "src/tools/text/complain.h"

/* A run of the command. */
struct blaming {
    const struct option_values *arguments;
};

static bool is_given(const struct blaming *blaming, enum option_id id)
{
    return blaming->arguments->of[id].given;
}

static uint64_t number_of(const struct blaming *blaming, enum option_id id)
{
    return blaming->arguments->of[id].number;
}

static int lacks_memory(void)
{
    command_complain(command_find("blame"), "no host memory is left");
    return COMMAND_BAD;
}

/* Options that are fine apart and not together. */
static bool agree(const struct blaming *blaming)
{
    const struct command *command = command_find("blame");

    if (is_given(blaming, OPTION_FLAME) && is_given(blaming, OPTION_JSON))
        return option_refuse(command, "--flame", "cannot be given with --json");
    if (is_given(blaming, OPTION_FLAME) && is_given(blaming, OPTION_LABEL))
        return option_refuse(command, "--flame", "is by stacks: it cannot be given with --label");
    if (is_given(blaming, OPTION_DEPTH) &&
        (is_given(blaming, OPTION_FLAME) || is_given(blaming, OPTION_LABEL)))
        return option_refuse(command, "--depth", "cannot be given with --flame or --label");
    return true;
}

/* The device that is asked for, or NULL: standard error has the sentence. */
static const struct recording_device *find_device(const struct blaming *blaming,
                                                  const struct recording *recording)
{
    const int number = is_given(blaming, OPTION_SNAPSHOT_DEVICE)
                           ? (int)number_of(blaming, OPTION_SNAPSHOT_DEVICE)
                           : -1;
    struct recording_fault fault;
    const struct recording_device *device = recording_file_device(recording, number, &fault);

    if (!device)
        complain("%s: %s", recording->name, fault.text);
    return device;
}

static bool print_json(const struct blame *blame, enum blame_by by)
{
    json_t *object = blame_report_json(blame, by);
    const bool fine = object && json_dumpf(object, stdout, JSON_INDENT(2)) == 0;

    if (fine)
        (void)fputc('\n', stdout);
    json_decref(object);
    return object != NULL;
}

static bool print(const struct blaming *blaming, const struct blame *blame)
{
    const enum blame_by by = (enum blame_by)number_of(blaming, OPTION_BY);

    if (is_given(blaming, OPTION_FLAME))
        return blame_report_folded(stdout, blame, by);
    if (is_given(blaming, OPTION_JSON))
        return print_json(blame, by);
    return blame_report_text(stdout, blame, by, (uint32_t)number_of(blaming, OPTION_ROWS));
}

static int blame_device(const struct blaming *blaming, const struct recording *recording)
{
    const struct recording_device *device = find_device(blaming, recording);
    const enum sites_by sites_by = is_given(blaming, OPTION_FLAME)   ? SITES_BY_STACK
                                   : is_given(blaming, OPTION_LABEL) ? SITES_BY_LABEL
                                                                     : SITES_BY_FRAME;
    struct blame blame;
    bool fine;

    if (!device)
        return COMMAND_BAD;
    if (!blame_init(&blame, recording, device, sites_by, (uint32_t)number_of(blaming, OPTION_DEPTH),
                    (enum blame_by)number_of(blaming, OPTION_BY)))
        return lacks_memory();
    fine = print(blaming, &blame);
    blame_fini(&blame);
    return fine ? COMMAND_FINE : lacks_memory();
}

int command_blame(const struct option_values *arguments)
{
    struct blaming blaming = {.arguments = arguments};
    const char *path = arguments->operands[0];
    struct recording recording;
    int status;

    if (!agree(&blaming))
        return COMMAND_BAD;
    if (rank_files_is_folder(path))
        return ranks_run_blame(arguments);
    if (!recording_file_read(path, &recording))
        return COMMAND_BAD;
    status = blame_device(&blaming, &recording);
    recording_fini(&recording);
    return status;
}
