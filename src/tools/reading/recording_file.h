/* SPDX-License-Identifier: MIT */
/*
 * Recordings of files by their paths; `-` is standard input.
 *
 * Locking: none; several threads may read files at a time, but standard input once.
 */
#ifndef TOOLS_RECORDING_FILE_H
#define TOOLS_RECORDING_FILE_H

#include "src/tools/reading/recording.h"

/* What reports call a file. */
const char *recording_file_name(const char *path);

/* Read a memory snapshot.  Returns false with a fault, which is a sentence; there is nothing to end then. */
bool recording_file_load(const char *path, struct recording *out, struct recording_fault *fault);

/* Read a memory snapshot.  Returns false where it cannot be read: standard error has the sentence. */
bool recording_file_read(const char *path, struct recording *out);

/*
 * The device of a number, or with -1 the one that recording_device() chooses.
 *
 * Returns: NULL with a fault where it has nothing of that device, or of none
 */
const struct recording_device *recording_file_device(const struct recording *recording, int number,
                                                     struct recording_fault *fault);

/* Events that a recording lacks, and events and blocks that do not fit the others. */
enum recording_limit { RECORDING_LIMIT_LOST, RECORDING_LIMIT_NO_ROOM, RECORDING_LIMIT_LEFT_OUT };

struct recording_limit_text {
    char text[128];
};

/* "3 events before the first were overwritten" */
struct recording_limit_text recording_file_limit(enum recording_limit limit, uint64_t count);

/* What a file without a history says about how to have one; completes "there is no history in it". */
#define RECORDING_FILE_HOW_TO \
    "torch.cuda.memory._record_memory_history() or `history:all` records one"

#endif
