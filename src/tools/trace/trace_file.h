/* SPDX-License-Identifier: MIT */
/*
 * A file that is to be replayed: a trace, a tape or a memory snapshot, named on the command line.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_TRACE_FILE_H
#define TOOLS_TRACE_FILE_H

#include <stdbool.h>

#include "src/tools/trace/xtrace.h"

struct trace_file {
    const char *name; /* for messages and reports */
    struct xtrace trace;
    char *config; /* that the file was made under, as a replay takes it */
};

/*
 * Read the file at a path; `-` is standard input.
 *
 * @param path    must live as long as the file
 * @param device  of a snapshot, whose history is taken; -1: the one with most entries
 * @param out     filled in on success; the caller calls trace_file_fini()
 *
 * Returns: false where it cannot be replayed; standard error has the sentence.
 */
bool trace_file_read(const char *path, int device, struct trace_file *out);

void trace_file_fini(struct trace_file *file);

/* Bytes of the device that it is replayed on: `given`, else the file's, else 80 GiB; rounded down to 2 MiB. */
uint64_t trace_file_device_bytes(const struct trace_file *file, uint64_t given);

#endif
