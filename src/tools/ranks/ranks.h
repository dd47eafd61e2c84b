/* SPDX-License-Identifier: MIT */
/*
 * The processes of a job, or those of two jobs rank by rank, by their snapshots: what each comes to, what all come to
 * together, and which one is unlike the others.
 *
 * Files are read by several threads, each of which holds one recording at a time.  What is kept of a file is a
 * few numbers, among them its columns.  These are bytes of each of its sites, for each of three figures, and those of the
 * two rows that are no site's.  A site that a file does not have has 0 bytes there.
 *
 *   gap       of one job: the sum over all columns of how far a rank is from the median of all ranks; of two jobs: from
 *             the other job's file of the rank.  In bytes
 *   distance  the part of the gap that is beyond what is usual in each column: RANKS_USUAL times the median of all gaps
 *             there.  Of two jobs, and of two ranks alone, it is the gap
 *   odd       a rank whose distance is a hundredth of what a rank reserves at the peak (the median), or more.  No rank
 *             is odd where most would be
 *   typical   the rank with the smallest distance; of equal ones the one with the smallest gap.  Of two ranks neither is
 *             more like all than the other, so no report names one
 *
 * Locking: none for users; it belongs to one thread.
 */
#ifndef TOOLS_RANKS_H
#define TOOLS_RANKS_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/ranks/compare.h"
#include "src/tools/ranks/rank_files.h"

#define RANKS_THREADS 8u /* at most, and not more than there are processors */
#define RANKS_NAME    128u
#define RANKS_OF_SITE 3u /* at the peak, live on average, stranded on average */
#define RANKS_OF_REST 4u /* pending and idle: each at the peak, on average */
#define RANKS_USUAL   5  /* of a normal distribution one in 1,300 is further from the median */

struct ranks_site {
    const char *name; /* one of ranks.sums[0], so equal names are one address */
    float of[RANKS_OF_SITE];
};

struct ranks_columns {
    struct ranks_site *sites; /* [site_count], in the order of names */
    size_t site_count;
    float rest[RANKS_OF_REST];
};

struct rank {
    char name[RANKS_NAME];
    bool is_read;
    bool lacks_history;
    struct replay_model_dropped dropped[2]; /* blocks of its files that are left out */
    uint64_t events[2];
    uint64_t whole[2][COMPARE_MEASURES]; /* bytes */
    double gap, distance;                /* bytes */
    struct ranks_columns columns;        /* of one job */
    char *
        fault; /* a sentence that names the file; NULL: it could be read, or there was no memory for a sentence */
};

struct ranks {
    unsigned jobs; /* 1 or 2 */
    struct rank_files files[2];
    struct rank *ranks;     /* [count] */
    size_t count, read;     /* of them were read */
    size_t odd;             /* of one job: how many are odd */
    size_t *order;          /* [read]: ranks, those with the largest distance first */
    struct profile sums[2]; /* of all that were read */
    size_t unmatched;       /* files whose rank the other job has not */
};

struct ranks_rules {
    struct profile_rules profile;
    int device;    /* number; -1: of each file the one with most events */
    bool progress; /* standard error says how many files were read */
};

/*
 * Read the snapshots of a folder, or of two (b is not NULL).  A file that cannot be read is left out, and its rank has the
 * reason.
 *
 * @param at  which of the two a fault is about
 *
 * Returns: false with a fault, where there is nothing to read, or host memory is short; there is nothing to end then
 */
bool ranks_init(struct ranks *ranks, const char *a, const char *b, const struct ranks_rules *rules,
                const char **at, struct recording_fault *fault);
void ranks_fini(struct ranks *ranks);

/* The profile of a rank of one job, read anew.  Returns false with a fault. */
bool ranks_profile(const struct ranks *ranks, size_t rank, const struct ranks_rules *rules,
                   struct profile *out, struct recording_fault *fault);

/* The rank with the largest distance, odd or not. */
static inline size_t ranks_furthest(const struct ranks *ranks)
{
    return ranks->order[0];
}

/* Whether there is a rank that is more like all than others are. */
static inline bool ranks_has_typical(const struct ranks *ranks)
{
    return ranks->jobs == 1 && ranks->read > 2;
}

static inline size_t ranks_typical(const struct ranks *ranks)
{
    return ranks->order[ranks->read - 1];
}

/*
 * What a job's ranks come to, as a sentence, as tables, and as JSON.
 *
 * Locking: none.
 */

/*
 * "rank 5 is the odd one of 64: it reserves 2.40 GiB more at the peak, all of it at model.py:212".
 *
 * @param pair  of one job: the comparison of its typical rank, A, and its furthest one, B; NULL where one file alone was read.
 *              Of two jobs: that of their sums
 *
 * The caller frees it; NULL without host memory.
 */
char *ranks_report_verdict(const struct ranks *ranks, const struct compare *pair);

/* Whether the ranks of a job, or the two jobs, differ by anything that is said; pair as above. */
bool ranks_report_differs(const struct ranks *ranks, const struct compare *pair);

/* A line about each thing that was left out, if any, and a table of so many ranks. */
void ranks_report_table(FILE *out, const struct ranks *ranks, uint32_t rows);

/* The ranks, and what could not be read; NULL without host memory. */
json_t *ranks_report_json(const struct ranks *ranks);
json_t *ranks_report_unread(const struct ranks *ranks);

#endif
