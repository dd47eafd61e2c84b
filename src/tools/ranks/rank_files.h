/* SPDX-License-Identifier: MIT */
/*
 * The snapshots of a folder, one for each process of a job.
 *
 * A snapshot is a regular file whose name ends in .pickle or .pkl, or in one of these and .zst.  Its rank is the number
 * after the last `rank` of its name that is not a `local_rank`, in upper or lower case, with at most one of `-_.=` between them:
 * oom-rank3-pid4711-1.pickle is of rank 3.
 *
 * A job may write several dumps of each rank.  The kind of a dump is its name without numbers: oom-rank#-pid#-#.  If files of one
 * rank are of several kinds, only the kind with most files is read; of equal ones the kind that was written last.  In a folder
 * without any rank, the last number of a name counts as the rank for this choice if it is less than the number of files: end_3.pickle.
 * Of several files of one rank and kind the one written last counts, unless their names contain the numbers of two hosts
 * (node0_rank0): these are two processes.
 *
 * Locking: none.
 */
#ifndef TOOLS_RANK_FILES_H
#define TOOLS_RANK_FILES_H

#include <stdbool.h>
#include <time.h>

#include "src/tools/reading/recording.h"

struct rank_file {
    char *path;
    const char *base;  /* in path: the name in its folder */
    char *kind;        /* the name without numbers */
    char *process;     /* the part before the rank, with numbers of hosts alone */
    int64_t rank;      /* -1: the name has none */
    int64_t number;    /* rank, or the last number of the name; -1: there is none */
    bool is_ambiguous; /* another file has the same rank */
    struct timespec written;
};

struct rank_files {
    struct rank_file *files; /* [count], by rank; those without one come last, by name */
    size_t count;
    size_t older;      /* files of which a newer one of the same rank is read */
    size_t others;     /* files of other kinds */
    size_t packed;     /* snapshots by their names that another program than zstd has compressed */
    char *packed_base; /* the name of one of these; NULL: there is none */
    char *
        kinds; /* of these kinds and of the one that is read, with numbers of files; NULL: there is one kind */
};

bool rank_files_is_folder(const char *path);

/*
 * Find the snapshots of a folder.
 *
 * @param kind  the kind of dump to read, if the folder has it; NULL: no preference
 *
 * Returns: false with a fault, also if the folder has no snapshot; there is nothing to free then
 */
bool rank_files_find(const char *folder, const char *kind, struct rank_files *out,
                     struct recording_fault *fault);
void rank_files_fini(struct rank_files *files);

/*
 * Keep the files of ranks that both have; those without a rank match by name.  Both have as many then, in one order.
 *
 * Returns: how many are dropped of both
 */
size_t rank_files_match(struct rank_files *a, struct rank_files *b);

/* "2 compressed files are not read, such as rank0.pickle.gz; decompress them, or compress them with zstd"; empty: all are read. */
void rank_files_describe_packed(const struct rank_files *files, char *text, size_t bytes);

/* "rank 3", or the name of the file; bytes that cannot be printed are shown as \xNN. */
void rank_files_name(const struct rank_file *file, char *text, size_t bytes);

#endif
