/* SPDX-License-Identifier: MIT */
/*
 * The snapshots of a folder, one for each process of a job.
 *
 * A snapshot is a regular file whose name ends in .pickle or .pkl, or in .pickle.zst or .pkl.zst.  Its rank is the number
 * after the last `rank` in its name that is not a `local_rank`, in upper or lower case, with at most one of `-_.=` before
 * the number: oom-rank3-pid4711-1.pickle is of rank 3.
 *
 * A job may write several dumps of each rank.  The kind of a dump is its name without numbers: oom-rank#-pid#-#.  If
 * files of one rank are of several kinds, only the kind with the most files is read; of kinds with equal numbers of files,
 * the kind that was written last.  In a folder without any rank, the last number of a name counts as the rank for this
 * choice if it is less than the number of files: end_3.pickle.  Of several files of one rank and kind, the file written
 * last is read, unless their names contain the numbers of different hosts (node0_rank0), which identify different processes.
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
    const char *base;  /* in `path`: the name in its folder */
    char *kind;        /* the name without numbers */
    char *process;     /* the part before the rank, without numbers except numbers of hosts */
    int64_t rank;      /* -1: none */
    int64_t number;    /* the rank, or the last number of the name; -1: none */
    bool is_ambiguous; /* another file has the same rank */
    struct timespec written;
};

struct rank_files {
    struct rank_file *files; /* [count], by rank; files without a rank last, by name */
    size_t count;
    size_t older;      /* omitted files, older ones of the same rank */
    size_t others;     /* omitted files of other kinds */
    size_t packed;     /* snapshots that another program than zstd has compressed */
    char *packed_base; /* the name of one such snapshot; NULL: none */
    char *kinds;       /* list of all kinds with numbers of files; NULL: there is one kind */
};

bool rank_files_is_folder(const char *path);

/*
 * Find the snapshots of a folder.
 *
 * kind: the preferred kind of dump; NULL: no preference.
 *
 * Returns: false with a fault, also if the folder has no snapshot; there is nothing to free then
 */
bool rank_files_find(const char *folder, const char *kind, struct rank_files *out,
                     struct recording_fault *fault);
void rank_files_fini(struct rank_files *files);

/*
 * Keep the files of ranks in both folders, in one order; files without a rank match by name.
 *
 * Returns: number of files omitted from both
 */
size_t rank_files_match(struct rank_files *a, struct rank_files *b);

/* Describe: "2 compressed files are not read, such as rank0.pickle.gz; decompress them, or compress them with zstd";
 * empty: none. */
void rank_files_describe_packed(const struct rank_files *files, char *text, size_t bytes);

/* Name a file: "rank 3", or the escaped name of the file. */
void rank_files_name(const struct rank_file *file, char *text, size_t bytes);

#endif
