/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a job, or of two jobs rank by rank: the figures of each rank, their sums, outliers, and their reports.
 *
 * Several threads read files, and each thread has one recording at a time.  Of each file a few numbers remain, such as
 * its columns: three figures of each site, and the figures of the rows `pending` and `idle`.  A site that a file does not
 * have has 0 bytes.
 *
 *   deviation  of one job: the sum over all columns of the distance between a rank and the median of all ranks; of
 *              two jobs: between the files of the rank.  In bytes.
 *   distance   the part of the deviation above RANKS_TOLERANCE times the median of all deviations, per column.  Of two
 *              jobs, and of two ranks of a job, the deviation.
 *   outlier    a rank whose distance is at least 1 % of the median of bytes reserved at the peak.  If this holds for most
 *              ranks, no rank is an outlier.
 *   typical    the rank with the smallest distance; of equal distances, with the smallest deviation.  Two ranks have no
 *              typical rank.
 *
 * Locking: none for users; one thread uses ranks.
 */
#ifndef TOOLS_RANKS_H
#define TOOLS_RANKS_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/ranks/compare.h"
#include "src/tools/ranks/rank_files.h"

#define RANKS_THREADS      8u /* maximum; also limited by the number of CPUs */
#define RANKS_NAME         128u
#define RANKS_SITE_COLUMNS 3u /* at the peak, allocated on average, fragmented on average */
#define RANKS_IDLE_COLUMNS 4u /* pending and idle: each at the peak, on average */
#define RANKS_TOLERANCE    5 /* of a normal distribution, one in 1,300 is further from the median */

struct ranks_site {
    const char *name; /* in ranks.sums[0], so equal names have equal addresses */
    float of[RANKS_SITE_COLUMNS];
};

struct ranks_columns {
    struct ranks_site *sites; /* [site_count], by name */
    size_t site_count;
    float idle[RANKS_IDLE_COLUMNS];
};

struct rank {
    char name[RANKS_NAME];
    bool is_read;
    bool lacks_history;
    struct replay_model_dropped dropped[2]; /* omitted blocks of its files */
    uint64_t entries[2];
    uint64_t totals[2][COMPARE_MEASURES]; /* bytes */
    double deviation, distance;           /* bytes */
    struct ranks_columns columns;         /* of one job */
    char *
        fault; /* message with the name of the file; NULL: the file was read, or out of host memory */
};

struct ranks {
    unsigned jobs; /* 1 or 2 */
    struct rank_files files[2];
    struct rank *ranks;     /* [count] */
    size_t count, read;     /* read: files that were read */
    size_t outliers;        /* of one job: number of outliers */
    size_t *order;          /* [read]: ranks by decreasing distance */
    struct profile sums[2]; /* of all files that were read */
    size_t unmatched;       /* files whose rank the other job does not have */
};

struct ranks_rules {
    struct profile_rules profile;
    int device;    /* number; -1: the device with the most entries of each file */
    bool progress; /* on standard error */
};

/*
 * Read the snapshots of a folder, or of two folders (b is not NULL).  A file that cannot be read is omitted, and its rank
 * has a fault.
 *
 * at: set to the folder of a fault.
 *
 * Returns: false with a fault if there is nothing to read or out of host memory; there is nothing to free then
 */
bool ranks_init(struct ranks *ranks, const char *a, const char *b, const struct ranks_rules *rules,
                const char **at, struct recording_fault *fault);
void ranks_fini(struct ranks *ranks);

/* Read the profile of a rank of one job again.  Returns false with a fault. */
bool ranks_profile(const struct ranks *ranks, size_t rank, const struct ranks_rules *rules,
                   struct profile *out, struct recording_fault *fault);

/* Get the rank with the largest distance, an outlier or not. */
static inline size_t ranks_furthest(const struct ranks *ranks)
{
    return ranks->order[0];
}

static inline bool ranks_has_typical(const struct ranks *ranks)
{
    return ranks->jobs == 1 && ranks->read > 2;
}

static inline size_t ranks_typical(const struct ranks *ranks)
{
    return ranks->order[ranks->read - 1];
}

/* --- Reports. --- */

/*
 * Describe the verdict: "rank 5 is the outlier of 64: it reserves 2.40 GiB more at the peak, all of it at model.py:212".
 *
 * pair: of one job, the comparison of its typical rank, A, and its furthest rank, B; NULL if only one file was read.
 *       Of two jobs, the comparison of their sums.
 *
 * The caller frees the text; NULL if out of host memory.
 */
char *ranks_report_verdict(const struct ranks *ranks, const struct compare *pair);

/* Get whether the ranks of a job, or the two jobs, differ; pair as above. */
bool ranks_report_differs(const struct ranks *ranks, const struct compare *pair);

/* Print a line about each kind of omitted data, and a table of at most `rows` ranks. */
void ranks_report_table(FILE *out, const struct ranks *ranks, uint32_t rows);

/* Make JSON of the ranks, and of the faults of files that could not be read; NULL if out of host memory. */
json_t *ranks_report_json(const struct ranks *ranks);
json_t *ranks_report_unread(const struct ranks *ranks);

#endif
