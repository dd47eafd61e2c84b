/* SPDX-License-Identifier: MIT */
/*
 * The report of a replay, as a table or as JSON.
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
 * Print up to REPORT_COLUMNS replays of one file side by side, and the difference of the second from the first.
 *
 * @param with_calls  also print the number of calls of each driver function
 */
void report_table(FILE *out, const struct report *reports, unsigned count, bool with_calls);

/* Make a JSON object of the report; NULL on host allocation failure. */
json_t *report_json(const struct report *report);

#endif
