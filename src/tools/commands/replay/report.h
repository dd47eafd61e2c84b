/* SPDX-License-Identifier: MIT */
/*
 * What a replay gave, as a table for people or as JSON for programs.
 *
 * Locking: none.
 */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "src/tools/replay/replay.h"
#include "src/tools/trace/trace_notes.h"

struct report {
    const char *file;
    const char *config;
    const char *driver;    /* gpu.h */
    uint64_t device_bytes; /* simulator only */
    struct replay_result result;
    enum check_mode check;
    bool has_min_device;
    struct trace_notes notes; /* of the file, under this configuration */
    uint64_t min_device;
};

#define REPORT_COLUMNS 2

/*
 * Up to REPORT_COLUMNS replays of one file, side by side; of two, with a sentence at the end about what
 * the second one does better or worse.
 *
 * @param with_calls  name each driver call; otherwise only how many there were
 */
void report_table(FILE *out, const struct report *reports, unsigned count, bool with_calls);

/* The report as one JSON object.  Returns NULL without host memory. */
json_t *report_json(const struct report *report);

#endif
