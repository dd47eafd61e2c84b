/* SPDX-License-Identifier: MIT */
/*
 * The snapshots of a folder, one for each process of a job.
 *
 * A snapshot is a regular file whose name ends in .pickle or .pkl, or in one of these and .zst.  Its rank is the number
 * behind the last `rank` of its name, with at most one of `-_.=` between them: oom-rank3-pid4711-1.pickle is of rank 3.
 * Of several files of one rank whose names begin alike the one written last counts.
 *
 * Locking: none.
 */
#ifndef TOOLS_RANK_FILES_H
#define TOOLS_RANK_FILES_H

#include <stdbool.h>
#include <time.h>

#include "src/tools/recording/recording.h"

struct rank_file {
    char *path;
    const char *base;  /* in path: the name in its folder */
    size_t before;     /* bytes of the base before `rank`; where there is no rank, all of them */
    int64_t rank;      /* -1: the name has none */
    bool is_ambiguous; /* another file has the same rank */
    struct timespec written;
};

struct rank_files {
    struct rank_file *files; /* [count], by rank; those without one come last, by name */
    size_t count;
    size_t older; /* files that a newer one of their rank stands for */
};

bool rank_files_is_folder(const char *path);

/* Find them.  Returns false with a fault, which is a sentence, also where there is none; there is nothing to end then. */
bool rank_files_find(const char *folder, struct rank_files *out, struct recording_fault *fault);
void rank_files_fini(struct rank_files *files);

/*
 * Keep the files of ranks that both have; those without a rank match by name.  Both have as many then, in one order.
 *
 * Returns: how many are dropped of both
 */
size_t rank_files_match(struct rank_files *a, struct rank_files *b);

/* "rank 3", or the name of the file; bytes that cannot be printed are shown as \xNN. */
void rank_files_name(const struct rank_file *file, char *text, size_t bytes);

#endif
