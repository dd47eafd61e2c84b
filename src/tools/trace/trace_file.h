/* SPDX-License-Identifier: MIT */
/*
 * A file to replay, named on the command line: a trace, a tape or a memory snapshot.
 *
 * Locking: none; one thread uses a file.
 */
#ifndef TOOLS_TRACE_FILE_H
#define TOOLS_TRACE_FILE_H

#include <stdbool.h>

#include "src/tools/trace/xtrace.h"

struct trace_file {
    const char *name; /* in messages and reports */
    struct xtrace trace;
    char *config; /* the configuration of the program, complete for a replay */
};

/*
 * Read a file; the path `-` is standard input.
 *
 * path:   must outlive the file.
 * device: of a snapshot; -1: the device with the most entries.
 * out:    set on success; the caller calls trace_file_fini().
 *
 * Returns: false, with a message on standard error, if the file cannot be replayed
 */
bool trace_file_read(const char *path, int device, struct trace_file *out);

void trace_file_fini(struct trace_file *file);

/* Get the bytes of the replay's device: `option_bytes` unless it is 0, else the bytes in the file, else 80 GiB; rounded
 * down to a multiple of 2 MiB. */
uint64_t trace_file_device_bytes(const struct trace_file *file, uint64_t option_bytes);

#endif
