/* SPDX-License-Identifier: MIT */
/*
 * The check of a replay against the answers of a tape.
 *
 * CHECK_EXACT: each `=` line is a step, together with the `p` and `s` lines directly after it; after another
 * operation, such lines are a separate step.  A step agrees if all its numbers are equal, and if the allocation before
 * the step has the same result, success or failure, in the replay and on the tape.
 *
 * A `p` line contains the offset of a block in its segment, and the first block of that segment.  So the address of
 * the first block of a segment determines the expected addresses of the others.
 *
 * CHECK_SUCCESS: each allocation that succeeded on the tape is a step, up to the first one that failed on the tape and
 * succeeds in the replay, where they diverge.  A step agrees if the allocation succeeds.
 *
 * The first differences are printed on standard error as FILE:LINE.
 *
 * Locking: none; one replay uses a check.
 */
#ifndef TOOLS_CHECK_H
#define TOOLS_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

enum check_mode { CHECK_OFF, CHECK_EXACT, CHECK_SUCCESS };

struct check {
    enum check_mode mode;
    const char *file;
    const struct xtrace *trace;
    void *const *blocks; /* [trace->slot_count] */
    uint64_t *bases;     /* [trace->place_count]: addresses of segments; 0: unknown */
    size_t next;         /* index of the next answer */
    uint64_t steps, mismatches;
    uint64_t differences; /* printed or suppressed */
    uint32_t last_after;  /* xtrace_answer.after of the last answer */
    bool step_open;       /* a step has begun at last_after */
    bool step_differs;    /* the step is counted as a mismatch */
    /* An allocation had another result; the step of the next answer differs. */
    bool pending_difference;
    bool ended; /* CHECK_SUCCESS: the replay has diverged */
    uint32_t ended_line;
};

void check_init(struct check *check, enum check_mode mode, const char *file,
                const struct xtrace *trace);

/* Set the blocks of the replay, and the array of bases, which is zero-filled. */
void check_places(struct check *check, void *const *blocks, uint64_t *bases);

/* Get the number of operations before the next answer. */
size_t check_until(const struct check *check);

/* Check all answers directly after the first `done` operations. */
void check_answers(struct check *check, size_t done, const struct xseg_statistics *stats);

/* Record an allocation that succeeded on the tape and in the replay. */
void check_served(struct check *check);

/* Record an allocation that succeeded only on the tape, or only in the replay. */
void check_only_tape(struct check *check);
void check_only_replay(struct check *check, const struct xtrace_op *op);

/* Close the last step, and report the number of suppressed differences. */
void check_fini(struct check *check);

#endif
